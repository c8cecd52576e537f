"""Produce: append record batches to partitions.

Requests are handled on the connection's processor as long as appends to the page cache are fast. With ``acks=all`` a request then
waits for the flusher without occupying a thread. Batches are not decompressed: see ``broker.storage.log.log``.

From version 12 on, a batch of a transaction adds its partition to the transaction (``broker.kafka.transactions.first_batches``).
From version 13 on a request names topics by their ids, as 16 bytes, and everything here looks up by what the request says. So
records for a topic that was deleted never get into a new topic under the old name.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from broker.errors import Refusal, StorageError
from broker.kafka.api import Api, KafkaRequest
from broker.kafka.authorization import denied, denied_ids, may
from broker.kafka.context import KafkaContext
from broker.kafka.error_codes import code_of
from broker.kafka.transactions import first_batches
from broker.kafka.transactions.first_batches import FirstBatches
from broker.kafka.transactions.transaction import Claim
from broker.network.service import Handover, Outbox
from broker.network.traces import LogCall
from broker.network.work import INLINE_ENTRIES, REQUEST_ENTRIES_MAX
from broker.runtime.threads import Lock
from broker.security.acl import Operation, ResourceType
from broker.storage.log.append import AppendInfo
from broker.storage.log.log import Log
from broker.storage.refusals import InvalidTransactionState, KeylessRecords
from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import produce
from protocol.kafka.records.batch import TRANSACTIONAL, read_header

# How long (s) appends go to the handler pool after a slow one: the disk is busy writing back.
_SLOW_FOR_S = 1.0
# The longest request (bytes) that a processor handles: about 1 ms of writing. Enough for a batch of 1 MiB, the default maximum.
_INLINE_MAX_BYTES = 2 * 1024 * 1024
# The position in a batch of the byte whose TRANSACTIONAL bit says that the batch belongs to a transaction.
_ATTRIBUTES = 22
_HANDOVER = Handover()
_FIRST_BY_ID = produce.FIRST_WITH_TOPIC_ID
_Partitions = Mapping[tuple[Any, int], Log]  # by the name of the topic, or by its id
# Since then clients know that a transaction can be aborted and the producer go on.
_ABORTABLE_SINCE = 11
_FirstBatches = Mapping[Any, tuple[Claim, Log]]
# Looking up a member of an enumeration costs as much as an authorizer's answer.
_WRITE, _TOPIC, _TRANSACTIONAL_ID = Operation.WRITE, ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID


def _prepare(context: KafkaContext, request: KafkaRequest) -> produce.ProduceRequest | Handover:
    parsed = produce.parse_request(request.frame, request.api_version, request.body_offset, INLINE_ENTRIES)
    if request.received_at < context.appends_slow_until:
        return _HANDOVER
    partitions = _partitions(context, request)
    for topic, partition, _ in parsed.topics:
        entry = partitions.get((topic, partition))
        if entry is not None and (entry.config.compact or entry.config.compression_codec is not None):
            return _HANDOVER  # the batch has to be decompressed
    if (
        parsed.transactional_id is not None
        and request.api_version >= first_batches.FIRST_VERSION
        and _missing(context, request, parsed, ())
    ):
        return _HANDOVER
    return parsed


def _partitions(context: KafkaContext, request: KafkaRequest) -> _Partitions:
    """All logs, by what requests of this version call their topics."""
    return context.logs.partitions if request.api_version < _FIRST_BY_ID else context.logs.partitions_by_id


def _missing(
    context: KafkaContext, request: KafkaRequest, parsed: produce.ProduceRequest, refused: Container[str | bytes]
) -> _FirstBatches:
    """The batches that have to be added to their transaction first; none of the topics ``refused``."""
    partitions = _partitions(context, request)
    return first_batches.missing(
        ((topic, partition), partitions.get((topic, partition)), records)
        for topic, partition, records in parsed.topics
        if topic not in refused
    )


def _handle(
    context: KafkaContext,
    request: KafkaRequest,
    outbox: Outbox,
    prepared: produce.ProduceRequest | FirstBatches | None,
) -> None:
    first: FirstBatches | None = None
    if type(prepared) is produce.ProduceRequest:
        parsed = prepared
        refused = None if context.authorizer is None else _unauthorized(context, request, parsed)
    else:
        parsed = produce.parse_request(request.frame, request.api_version, request.body_offset, REQUEST_ENTRIES_MAX)
        refused = None if context.authorizer is None else _unauthorized(context, request, parsed)
        if isinstance(prepared, FirstBatches):
            first = prepared
        elif parsed.transactional_id is not None and request.api_version >= first_batches.FIRST_VERSION:
            missing = _missing(context, request, parsed, refused or ())
            if missing:
                first = FirstBatches()
                go_on = partial(outbox.hand_over, request, Handover(None, first))
                first.add(context.transactions.version_2, parsed.transactional_id, missing, go_on)
                return
    acks = parsed.acks
    if (
        acks == 1 and len(parsed.topics) == 1 and not refused and first is None
    ):  # the usual request, which needs no _Produce object
        topic, partition, records = parsed.topics[0]
        result, written = _append(context, request, topic, partition, records, acks, parsed.transactional_id)
        if written is None:
            context.errors.add(API.label, result.error)
        outbox.send(request, [produce.response(request.correlation_id, request.api_version, [result], 0)])
        return
    _Produce(context, request, outbox, parsed).run(refused, {} if first is None else first.errors)


def _unauthorized(
    context: KafkaContext, request: KafkaRequest, parsed: produce.ProduceRequest
) -> Mapping[str | bytes, ErrorCode] | None:
    """The topics to which the client may not write, each with its error: all, if it may not use the transactional id."""
    connection = request.connection
    topics: Sequence[tuple[Any, int, memoryview | None]] = parsed.topics  # all names, or all ids
    by_id = request.api_version >= _FIRST_BY_ID
    if len(topics) == 1:
        topic, _, records = topics[0]
        if not _is_transactional(records):
            name = topic
            if by_id:
                info = context.logs.topics_by_id.get(topic)
                if info is None:
                    return None
                name = info.name
            allowed = may(context, connection, _WRITE, _TOPIC, name)
            return None if allowed else {topic: ErrorCode.topic_authorization_failed}
    if any(_is_transactional(records) for _, _, records in topics):
        transactional_id = parsed.transactional_id
        if transactional_id is None or not may(context, connection, _WRITE, _TRANSACTIONAL_ID, transactional_id):
            return {topic: ErrorCode.transactional_id_authorization_failed for topic, _, _ in topics}
    wanted = [topic for topic, _, _ in topics]
    refused: Iterable[str | bytes]
    if by_id:
        refused = denied_ids(context, connection, _WRITE, wanted)
    else:
        refused = denied(context, connection, _WRITE, _TOPIC, wanted)
    return dict.fromkeys(refused, ErrorCode.topic_authorization_failed)


def _is_transactional(records: memoryview | None) -> bool:
    return records is not None and len(records) > _ATTRIBUTES and bool(records[_ATTRIBUTES] & TRANSACTIONAL)


def _append(
    context: KafkaContext,
    request: KafkaRequest,
    topic: str | bytes,
    partition: int,
    records: memoryview | None,
    acks: int,
    transactional_id: str | None,
) -> tuple[produce.PartitionResult, Log | None]:
    """Append to one partition. Returns the result and, if the append succeeded, the log, which may have to be flushed."""
    target = _partitions(context, request).get((topic, partition))
    if target is None:
        is_unknown_id = isinstance(topic, bytes) and topic not in context.logs.topics_by_id
        absent = ErrorCode.unknown_topic_id if is_unknown_id else ErrorCode.unknown_topic_or_partition
        return produce.PartitionResult(topic, partition, absent), None
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
        if context.traces is None:
            info = target.append(records, now_ms=context.clock.time_ms())
        else:
            info = _append_traced(context, request, target, records)
    except Refusal as error:
        code = code_of(error)
        if isinstance(error, InvalidTransactionState) and transactional_id is not None:
            # The log knows no more than that the producer may not; the coordinator knows why.
            header = read_header(records)
            code = context.transactions.why_refused(transactional_id, Claim(header.producer_id, header.producer_epoch))
            if code == ErrorCode.invalid_txn_state and request.api_version >= _ABORTABLE_SINCE:
                code = ErrorCode.transaction_abortable
        return produce.PartitionResult(
            topic, partition, code, -1, -1, target.log_start_offset, error.message, _record_errors(target, error)
        ), None
    except StorageError as error:
        context.complain("append_failed", target.topic, partition, error)
        return produce.PartitionResult(topic, partition, ErrorCode.kafka_storage_error, -1, -1, -1, str(error)), None
    if target.state.slow_until > context.appends_slow_until:
        context.appends_slow_until = context.clock.monotonic() + _SLOW_FOR_S
    return (
        produce.PartitionResult(
            topic, partition, 0, info.base_offset, info.log_append_time_ms, info.log_start_offset, None
        ),
        target,
    )


def _append_traced(context: KafkaContext, request: KafkaRequest, target: Log, records: memoryview) -> AppendInfo:
    """Append, and note when on the request."""
    began = context.clock.monotonic()
    info = target.append(records, now_ms=context.clock.time_ms())
    ended = context.clock.monotonic()
    request.note_log_call(LogCall("append", target.topic, target.partition, info.base_offset, began, ended))
    return info


def _record_errors(target: Log, error: Refusal) -> Sequence[tuple[int, str]]:
    """The numbers of the records of the batch that were at fault (KIP-467), each with Kafka's message."""
    if not isinstance(error, KeylessRecords):
        return ()
    where = f"{target.topic}-{target.partition}"
    message = f"Compacted topic cannot accept message without key in topic partition {where}."
    return [(number, message) for number in error.numbers]


def _refuse(context: KafkaContext, records: memoryview, transactional_id: str | None) -> ErrorCode:
    """The error of a transaction's batch whose producer does not have the transactional id of the request."""
    try:
        header = read_header(records)
    except ProtocolError:
        return ErrorCode.none  # the append refuses the batch and says why
    return context.transactions.may_write(transactional_id, header.producer_id)


class _Produce:
    """A request of several partitions, a request that waits for an fsync, or one with ``acks=0``, which gets no answer."""

    def __init__(
        self, context: KafkaContext, request: KafkaRequest, outbox: Outbox, parsed: produce.ProduceRequest
    ) -> None:
        self._context = context
        self._request = request
        self._outbox = outbox
        self._parsed = parsed
        self._results: list[produce.PartitionResult] = []
        self._lock = Lock()
        self._unflushed: set[int] = set()  # indexes into the results of those that wait for an fsync
        self._answered = False
        self.deadline = 0.0

    def run(self, refused: Mapping[str | bytes, int] | None, errors: Mapping[tuple[str | bytes, int], int]) -> None:
        """``refused``, ``errors``: topics and partitions to which nothing is appended, with their errors."""
        acks, topics = self._parsed.acks, self._parsed.topics
        written: list[tuple[int, Log]] = []
        if refused:
            self._results += [
                produce.PartitionResult(topic, partition, refused[topic])
                for topic, partition, _ in topics
                if topic in refused
            ]
            topics = [one for one in topics if one[0] not in refused]
        for topic, partition, records in topics:
            if errors and (topic, partition) in errors:
                self._results.append(produce.PartitionResult(topic, partition, errors[topic, partition]))
                continue
            result, target = _append(
                self._context, self._request, topic, partition, records, acks, self._parsed.transactional_id
            )
            if target is not None:
                written.append((len(self._results), target))
            self._results.append(result)
        if acks == 0:
            # With acks=0 an error can only be shown by closing the connection: the client then asks for metadata again.
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
        """The request has timed out. As in Kafka, the records may become durable all the same."""
        with self._lock:
            if self._answered:
                return
            self._answered = True
            for index in self._unflushed:
                self._results[index] = self._results[index]._replace(error=ErrorCode.request_timed_out)
        self._send()

    def _send(self) -> None:
        request = self._request
        for result in self._results:
            if result.error:
                self._context.errors.add(API.label, result.error)
        reply = produce.response(request.correlation_id, request.api_version, self._results, 0)
        self._outbox.send(request, [reply])


API = Api(
    key=ApiKey.PRODUCE,
    min_version=3,
    max_version=produce.MAX_VERSION,
    # librdkafka before 2.11 takes a minimum above 0 for "no compression here".
    advertised_min=0,
    handle_raw=_handle,
    prepare=_prepare,
    inline_max_bytes=_INLINE_MAX_BYTES,
    sized_by_bytes=False,
)
