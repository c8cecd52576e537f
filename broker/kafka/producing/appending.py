"""One record batch of a Produce request to the log of its partition: the checks that are Kafka's, and the result for the answer.

On the connection's processor, or on a handler thread. From version 13 on a request names topics by their ids, as 16 bytes, and
everything here looks up by what the request says. So records for a topic that was deleted never get into a new topic under the
old name.

How Produce requests with ``acks=all`` wait for an fsync, without a thread.

Begun on the thread that has appended; the answer comes on the one that has synced the log, or on the timer's if the request times
out.

Tests: tests/kafka/handlers/test_produce.py,
tests/kafka/test_ack_deadlines.py.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from broker.errors import Refusal, StorageError
from broker.kafka.ack_deadlines import AckDeadlines
from broker.kafka.api import KafkaRequest
from broker.kafka.context import KafkaContext
from broker.kafka.error_codes import code_of
from broker.kafka.transactions.transaction import Claim
from broker.kafka.transactions.version_2 import FIRST_VERSION
from broker.metrics.tracing import LogCall
from broker.runtime.threads import Lock
from broker.storage.log.append import AppendInfo
from broker.storage.log.log import Log
from broker.storage.refusals import InvalidTimestamp, InvalidTransactionState, KeylessRecords
from protocol.errors import ProtocolError
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import produce
from protocol.kafka.messages.produce import PartitionResult
from protocol.kafka.records.batch import COMPRESSION_MASK, TRANSACTIONAL, read_header
from protocol.kafka.records.compression import ZSTD

# How long (s) appends go to the handler pool after a slow one: the disk is busy writing back.
SLOW_FOR_S = 1.0
# Older clients cannot read it.
_ZSTD_SINCE = 7
# The position in a batch of the byte whose TRANSACTIONAL bit says that the batch belongs to a transaction.
_ATTRIBUTES = 22
_FIRST_BY_ID = produce.FIRST_WITH_TOPIC_ID
# Since then clients know that a transaction can be aborted and the producer go on.
_ABORTABLE_SINCE = 11
Partitions = Mapping[tuple[Any, int], Log]  # by the name of the topic, or by its id


def partitions_of(context: KafkaContext, request: KafkaRequest) -> Partitions:
    """All logs, by what requests of this version call their topics."""
    return context.logs.partitions if request.api_version < _FIRST_BY_ID else context.logs.partitions_by_id


def is_transactional(records: memoryview | None) -> bool:
    return records is not None and len(records) > _ATTRIBUTES and bool(records[_ATTRIBUTES] & TRANSACTIONAL)


def append(
    context: KafkaContext,
    request: KafkaRequest,
    topic: str | bytes,
    partition: int,
    records: memoryview | None,
    acks: int,
    transactional_id: str | None,
) -> tuple[produce.PartitionResult, Log | None]:
    """Append to one partition. Returns the result and, if the append succeeded, the log, which may have to be flushed."""
    target = partitions_of(context, request).get((topic, partition))
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
    if (
        request.api_version < _ZSTD_SINCE
        and len(records) > _ATTRIBUTES
        and records[_ATTRIBUTES] & COMPRESSION_MASK == ZSTD
    ):
        return produce.PartitionResult(topic, partition, ErrorCode.unsupported_compression_type), None
    if len(records) > _ATTRIBUTES and records[_ATTRIBUTES] & TRANSACTIONAL:
        refused = _refuse(context, request, target, records, transactional_id)
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
        context.appends_slow_until = context.clock.monotonic() + SLOW_FOR_S
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
    if isinstance(error, InvalidTimestamp):
        return [(number, error.message) for number in error.numbers]
    if not isinstance(error, KeylessRecords):
        return ()
    where = f"{target.topic}-{target.partition}"
    message = f"Compacted topic cannot accept message without key in topic partition {where}."
    return [(number, message) for number in error.numbers]


def _refuse(
    context: KafkaContext, request: KafkaRequest, target: Log, records: memoryview, transactional_id: str | None
) -> ErrorCode:
    """The error of a transaction's batch whose producer does not have the transactional id of the request, or whose predecessor
    is not in the log.

    With transactions version 2 each transaction has an epoch of its own and begins with 0, and a log forgets no producer with
    an open transaction. So a log that does not know the producer lacks what came before: it was refused, or the topic was made
    anew. In the classic flow the log may have forgotten the producer between two transactions.
    """
    try:
        header = read_header(records)
    except ProtocolError:
        return ErrorCode.none  # the append refuses the batch and says why
    refused = context.transactions.may_write(transactional_id, header.producer_id)
    if not refused and header.base_sequence and request.api_version >= FIRST_VERSION:
        return ErrorCode.none if target.knows_producer(header.producer_id) else ErrorCode.out_of_order_sequence_number
    return refused


# Results that take the place of those that were due if the records had become durable in time, by their index.
Failed = Mapping[int, PartitionResult]

# Called with an error and a message for the client, which are None if the records are durable.
Answer = Callable[[ErrorCode | None, str | None], None]


class Written(NamedTuple):
    """What was appended to one log: the indexes of the results, and the topic as the request calls it."""

    indexes: Sequence[int]
    topic: str | bytes
    log: Log


class AwaitedAppend:
    """A request that has appended to one log, as nearly all do. ``answer`` is called once: by whoever has removed this from the
    deadlines."""

    __slots__ = ("_answer", "_deadlines", "deadline")

    def __init__(self, deadlines: AckDeadlines, answer: Answer) -> None:
        self._deadlines = deadlines
        self._answer = answer
        self.deadline = 0.0

    def begin(self, context: KafkaContext, request: KafkaRequest, log: Log, timeout_ms: int) -> None:
        """The log is to become durable as far as it goes now."""
        self.deadline = request.received_at + timeout_ms / 1000
        self._deadlines.add(self)
        context.flusher.wait_durable(log, log.log_end_offset, self._flushed)

    def _flushed(self, error: StorageError | None) -> None:
        if self._deadlines.remove(self):
            if error is None:
                self._answer(None, None)
            else:
                self._answer(ErrorCode.kafka_storage_error, str(error))

    def expire(self) -> None:
        """The request has timed out. As in Kafka, the records may become durable all the same."""
        self._answer(ErrorCode.request_timed_out, None)


class AwaitedFlush:
    """A request of several partitions, or several requests that are answered together: ``send`` is called once."""

    def __init__(self, context: KafkaContext, request: KafkaRequest, send: Callable[[Failed], None]) -> None:
        self._context = context
        self._received_at = request.received_at
        self._send = send
        self._lock = Lock()
        self._failed: dict[int, PartitionResult] = {}
        self._unflushed: list[Written] = []
        self._answered = False
        self.deadline = 0.0

    def begin(self, written: Sequence[Written], timeout_ms: int) -> None:
        self._unflushed = list(written)
        self.deadline = self._received_at + timeout_ms / 1000
        self._context.ack_deadlines.add(self)
        for one in written:
            self._context.flusher.wait_durable(one.log, one.log.log_end_offset, partial(self._flushed, one))

    def _flushed(self, one: Written, error: StorageError | None) -> None:
        with self._lock:
            if self._answered:
                return
            if error is not None:
                self._fail(one, ErrorCode.kafka_storage_error, str(error))
            self._unflushed = [other for other in self._unflushed if other is not one]
            if self._unflushed:
                return
            self._answered = True
        self._context.ack_deadlines.remove(self)
        self._send(self._failed)

    def expire(self) -> None:
        """The request has timed out. As in Kafka, the records may become durable all the same."""
        with self._lock:
            if self._answered:
                return
            self._answered = True
            for one in self._unflushed:
                self._fail(one, ErrorCode.request_timed_out, None)
        self._send(self._failed)

    def _fail(self, one: Written, error: ErrorCode, message: str | None) -> None:
        self._failed.update(dict.fromkeys(one.indexes, failure(one.log, one.topic, error, message)))


def failure(log: Log, topic: str | bytes, error: ErrorCode, message: str | None) -> PartitionResult:
    """``topic``: as the request calls it."""
    return PartitionResult(topic, log.partition, error, -1, -1, log.log_start_offset, message)
