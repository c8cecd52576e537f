"""Produce: append record batches to partitions.

Runs on the connection's processor as long as appends go to the page cache quickly; ``acks=all`` then waits for the flusher
without holding a thread. Batches are not opened: see ``broker.storage.log.log``.
"""

from collections.abc import Sequence
from functools import partial

from broker.errors import Refusal, StorageError
from broker.kafka.api import Api, KafkaRequest
from broker.kafka.context import KafkaContext
from broker.kafka.error_codes import code_of
from broker.kafka.transactions.transaction import Claim
from broker.network.service import Handover, Outbox
from broker.network.work import INLINE_ENTRIES, REQUEST_ENTRIES_MAX
from broker.runtime.threads import Lock
from broker.storage.log.log import Log
from broker.storage.refusals import InvalidTransactionState, KeylessRecords
from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import produce
from protocol.kafka.records.batch import TRANSACTIONAL, read_header

# After a slow append the next ones go to the handler pool for this long (s): the disk is busy writing back.
_SLOW_FOR_S = 1.0
# Bytes of a request that a processor may write by itself: about 1 ms. Enough for the batch of 1 MiB that is the largest by
# default.
_INLINE_MAX_BYTES = 2 * 1024 * 1024
# Where in a batch the byte is that says whether it belongs to a transaction.
_ATTRIBUTES = 22
_HANDOVER = Handover()


def _prepare(context: KafkaContext, request: KafkaRequest) -> produce.ProduceRequest | Handover:
    parsed = produce.parse_request(request.frame, request.api_version, request.body_offset, INLINE_ENTRIES)
    if request.received_at < context.appends_slow_until:
        return _HANDOVER
    partitions = context.logs.partitions
    for topic, partition, _ in parsed.topics:
        entry = partitions.get((topic, partition))
        if entry is not None and (entry.config.compact or entry.config.compression_codec is not None):
            return _HANDOVER  # the batch has to be decompressed
    return parsed


def _handle(
    context: KafkaContext, request: KafkaRequest, outbox: Outbox, parsed: produce.ProduceRequest | None
) -> None:
    if parsed is None:
        parsed = produce.parse_request(request.frame, request.api_version, request.body_offset, REQUEST_ENTRIES_MAX)
    acks = parsed.acks
    if acks == 1 and len(parsed.topics) == 1:  # the usual request, without the loop's book-keeping
        topic, partition, records = parsed.topics[0]
        result = _append(context, topic, partition, records, acks, parsed.transactional_id)[0]
        outbox.send(request, [produce.response(request.correlation_id, request.api_version, [result], 0)])
        return
    _Produce(context, request, outbox, parsed).run()


def _append(
    context: KafkaContext,
    topic: str,
    partition: int,
    records: memoryview | None,
    acks: int,
    transactional_id: str | None,
) -> tuple[produce.PartitionResult, Log | None]:
    """One partition's append; its result and, when it succeeded, the log to be flushed."""
    target = context.logs.partitions.get((topic, partition))
    if target is None:
        return produce.PartitionResult(topic, partition, ErrorCode.unknown_topic_or_partition), None
    if acks not in (0, 1, -1):
        return produce.PartitionResult(topic, partition, ErrorCode.invalid_required_acks), None
    if records is None or not len(records):
        message = "a produce request without records"
        return produce.PartitionResult(topic, partition, ErrorCode.invalid_record, -1, -1, -1, message), None
    if acks == -1 and target.config.min_insync_replicas > 1:
        message = f"min.insync.replicas is {target.config.min_insync_replicas}; this broker is the only replica"
        return produce.PartitionResult(topic, partition, ErrorCode.not_enough_replicas, -1, -1, -1, message), None
    if len(records) > _ATTRIBUTES and records[_ATTRIBUTES] & TRANSACTIONAL:
        refused = _refuse(context, records, transactional_id)
        if refused:
            return produce.PartitionResult(topic, partition, refused), None
    try:
        info = target.append(records, now_ms=context.clock.time_ms())
    except Refusal as error:
        code = code_of(error)
        if isinstance(error, InvalidTransactionState) and transactional_id is not None:
            header = read_header(
                records
            )  # the log knows no more than that the producer may not; the coordinator knows why
            code = context.transactions.why_refused(transactional_id, Claim(header.producer_id, header.producer_epoch))
        return produce.PartitionResult(
            topic, partition, code, -1, -1, target.log_start_offset, error.message, _record_errors(target, error)
        ), None
    except StorageError as error:
        context.complain("append_failed", topic, partition, error)
        return produce.PartitionResult(topic, partition, ErrorCode.kafka_storage_error, -1, -1, -1, str(error)), None
    if target.state.slow_until > context.appends_slow_until:
        context.appends_slow_until = context.clock.monotonic() + _SLOW_FOR_S
    return (
        produce.PartitionResult(
            topic, partition, 0, info.base_offset, info.log_append_time_ms, info.log_start_offset, None
        ),
        target,
    )


def _record_errors(target: Log, error: Refusal) -> Sequence[tuple[int, str]]:
    """Which records of the batch were at fault (KIP-467), with Kafka's sentence for it."""
    if not isinstance(error, KeylessRecords):
        return ()
    where = f"{target.topic}-{target.partition}"
    message = f"Compacted topic cannot accept message without key in topic partition {where}."
    return [(number, message) for number in error.numbers]


def _refuse(context: KafkaContext, records: memoryview, transactional_id: str | None) -> ErrorCode:
    """Of a transaction's batch: does its producer have the transactional id of the request?"""
    try:
        header = read_header(records)
    except ProtocolError:
        return ErrorCode.none  # the log will say what is wrong with it
    return context.transactions.may_write(transactional_id, header.producer_id)


class _Produce:
    """A request of several partitions, or one that waits for its fsync, or one that wants no answer."""

    def __init__(
        self, context: KafkaContext, request: KafkaRequest, outbox: Outbox, parsed: produce.ProduceRequest
    ) -> None:
        self._context = context
        self._request = request
        self._outbox = outbox
        self._parsed = parsed
        self._results: list[produce.PartitionResult] = []
        self._lock = Lock()
        self._unflushed: set[int] = set()  # indexes into the results
        self._answered = False
        self.deadline = 0.0

    def run(self) -> None:
        acks = self._parsed.acks
        written: list[tuple[int, Log]] = []
        for topic, partition, records in self._parsed.topics:
            result, target = _append(self._context, topic, partition, records, acks, self._parsed.transactional_id)
            if target is not None:
                written.append((len(self._results), target))
            self._results.append(result)
        if acks == 0:
            # The client hears nothing of errors but the end of its connection: it then asks for metadata again.
            if any(result.error for result in self._results):
                self._outbox.close(self._request)
            else:
                self._outbox.no_op(self._request)
        elif acks == -1 and written:
            self._await_flush(written)
        else:
            self._send()

    def _await_flush(self, written: Sequence[tuple[int, Log]]) -> None:
        self._unflushed = {index for index, _ in written}
        self.deadline = self._request.received_at + self._parsed.timeout_ms / 1000
        self._context.ack_deadlines.add(self)
        for index, target in written:
            self._context.flusher.wait_durable(target, target.log_end_offset, partial(self._flushed, index))

    def _flushed(self, index: int, error: StorageError | None) -> None:
        with self._lock:
            if self._answered:
                return
            if error is not None:
                self._results[index] = self._results[index]._replace(
                    error=ErrorCode.kafka_storage_error, base_offset=-1, error_message=str(error)
                )
            self._unflushed.discard(index)
            if self._unflushed:
                return
            self._answered = True
        self._context.ack_deadlines.remove(self)
        self._send()

    def expire(self) -> None:
        """The time-out of the request is over. As from Kafka, the client learns that its records may yet turn out durable."""
        with self._lock:
            if self._answered:
                return
            self._answered = True
            for index in self._unflushed:
                self._results[index] = self._results[index]._replace(error=ErrorCode.request_timed_out)
        self._send()

    def _send(self) -> None:
        request = self._request
        reply = produce.response(request.correlation_id, request.api_version, self._results, 0)
        self._outbox.send(request, [reply])


API = Api(
    key=ApiKey.PRODUCE,
    min_version=3,
    max_version=9,
    # librdkafka before 2.11 takes a minimum above 0 for "no compression here".
    advertised_min=0,
    handle_raw=_handle,
    prepare=_prepare,
    inline_max_bytes=_INLINE_MAX_BYTES,
    sized_by_bytes=False,
)
