"""Appends the batches of a Produce request to the logs of their partitions: Kafka's checks, and the results for the answer.

``handlers/produce.py`` brings every request to ``produce``, as groups of batches for one partition each. Nearly all requests are
runs, and nearly all of their batches are usual: ``Appender.append_run`` writes those of a group at once. The first unusual batch
and those behind it are appended one by one, as if each had come alone; so is each batch of a request that is not a run.

Runs on the connection's processor, or on a handler thread. With ``acks=all`` the request waits for an fsync without a thread: the
answer is sent by the thread that has synced the last log, or by the timer's if the request times out.

From version 13 on a request names topics by their ids, as 16 bytes. Everything here looks up by the request's own key, name or
id, so records for a deleted topic never get into a new topic under the old name.

Tests: tests/kafka/handlers/test_produce.py,
tests/kafka/handlers/test_produce_runs.py,
tests/kafka/handlers/test_time_outs.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from broker.errors import Refusal, StorageError
from broker.kafka import leader_hints
from broker.kafka.ack_deadlines import AwaitedFlush, Undurable, Written
from broker.kafka.api import KafkaRequest
from broker.kafka.context import KafkaContext
from broker.kafka.error_codes import code_of
from broker.kafka.leader_hints import TELLING
from broker.kafka.transactions.transaction import Claim
from broker.kafka.transactions.version_2 import FIRST_VERSION
from broker.metrics.tracing import LogCall
from broker.network.service import Outbox
from broker.storage.log.append import AppendInfo
from broker.storage.log.log import Log
from broker.storage.refusals import InvalidTimestamp, InvalidTransactionState, KeylessRecords
from protocol.errors import ProtocolError
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.leaders import Hints
from protocol.kafka.messages.produce import FIRST_WITH_LEADERS, PartitionResult, Template, response
from protocol.kafka.records.batch import COMPRESSION_MASK, TRANSACTIONAL, read_header
from protocol.kafka.records.compression import ZSTD

# How long (s) appends go to the handler pool after a slow one: the disk is busy writing back.
SLOW_FOR_S = 1.0
# Older clients cannot read it.
_ZSTD_SINCE = 7
# The position in a batch of the byte whose TRANSACTIONAL bit says that the batch belongs to a transaction.
_ATTRIBUTES = 22
# From here on clients know TRANSACTION_ABORTABLE: the producer can abort and go on.
_ABORTABLE_SINCE = 11
# The errors of partitions to which a request must not append, by topic and partition as the request calls them.
Refusals = Mapping[tuple[str | bytes, int], ErrorCode]


class Group(NamedTuple):
    """The batches of a request for one partition."""

    topic: str | bytes  # its name, or from version 13 on its id
    partition: int
    log: Log | None  # None: there is no such partition
    indexes: Sequence[int]  # of the batches' results among those of the request
    records: Sequence[memoryview]  # writable; empty if the request has none
    # Only for a run: the packer of the usual responses, and their correlation ids.
    template: Template | None
    correlation_ids: Sequence[int]


class Batches(NamedTuple):
    """The batches that a request wants to have stored."""

    groups: Sequence[Group]
    acks: int
    timeout_ms: int
    transactional_id: str | None


class ProduceRequest(KafkaRequest):
    """One that is not in a run."""

    __slots__ = ()

    may_wait = True


class RunRequest(KafkaRequest):
    """Several Produce requests of one batch each that are handled together, each with its own response. ``correlation_id`` is
    the last request's."""

    __slots__ = ("batches", "correlation_ids", "count")

    may_wait = True
    count: int
    # None once it is handled: while it waits for an fsync, the memory of its records is used again.
    batches: Batches | None
    correlation_ids: Sequence[int]


def is_transactional(records: memoryview) -> bool:
    return len(records) > _ATTRIBUTES and bool(records[_ATTRIBUTES] & TRANSACTIONAL)


def produce(context: KafkaContext, request: KafkaRequest, outbox: Outbox, batches: Batches, refused: Refusals) -> None:
    """Append the batches, except those of ``refused`` partitions, and answer: with ``acks=all`` when all are durable."""
    groups, acks, timeout_ms, _ = batches
    written: list[Written] = []
    results: Any  # a list of results, or of the responses of a run
    if type(request) is not RunRequest:
        results = [_store_one(context, request, batches, group, 0, refused, written) for group in groups]
    elif len(groups) == 1:
        results = _store_run(context, request, batches, groups[0], refused, written)
    else:
        results = [b""] * request.count
        for group in groups:
            stored = _store_run(context, request, batches, group, refused, written)
            for index, result in zip(group.indexes, stored, strict=True):
                results[index] = result
    if acks == 0:
        # With acks=0 an error can only be shown by closing the connection: the client then asks for metadata again.
        if any(result.error for result in results):
            outbox.close(request)
        else:
            outbox.no_op(request)
    elif written:
        answer = partial(_answer, context, request, outbox, results)
        deadline = request.received_at + timeout_ms / 1000
        AwaitedFlush(context.ack_deadlines, deadline, answer).begin(context.flusher, written)
    else:
        _answer(context, request, outbox, results, ())


def _store_run(
    context: KafkaContext,
    request: RunRequest,
    batches: Batches,
    group: Group,
    refused: Refusals,
    written: list[Written],
) -> list[bytes]:
    """Append a partition's batches. Returns the responses, and adds to ``written`` the appends to make durable first."""
    topic, partition, log, indexes, records, template, correlation_ids = group
    assert template is not None
    acks = batches.acks
    responses: list[bytes] = []
    if (
        log is not None
        and (acks == 1 or log.config.min_insync_replicas <= 1)
        and not (refused and (topic, partition) in refused)
    ):
        try:
            base_offsets, start_offset = log.append_run(records, now_ms=context.clock.time_ms())
        except StorageError as error:
            failed = _failed(context, topic, log, error)
            for _ in indexes:
                context.errors.add(request.api.label, failed.error)
            return [_response(context, request, index, failed) for index in indexes]
        responses = template.answers(correlation_ids, base_offsets, start_offset)
        if log.state.slow_until > context.appends_slow_until:
            context.appends_slow_until = context.clock.monotonic() + SLOW_FOR_S
        stored = len(responses)
        if stored and _awaits(acks, log):
            written.append(Written(indexes[:stored], topic, log))
    for number in range(len(responses), len(records)):  # the batches that `append_run` did not take
        result = _store_one(context, request, batches, group, number, refused, written)
        responses.append(_response(context, request, indexes[number], result))
    return responses


def _store_one(
    context: KafkaContext,
    request: KafkaRequest,
    batches: Batches,
    group: Group,
    number: int,
    refused: Refusals,
    written: list[Written],
) -> PartitionResult:
    """The same for any one batch, by its number in its group."""
    topic, partition, log, indexes, all_records, template, _ = group
    acks, records = batches.acks, all_records[number]
    error = refused.get((topic, partition)) if refused else None
    if template is not None and context.authorizer is not None and is_transactional(records):
        # It needs the right to a transactional id, and the requests of a run have none.
        error = ErrorCode.transactional_id_authorization_failed
    if error is None:
        result = _append(context, request, batches, topic, partition, log, records)
    else:
        result = PartitionResult(topic, partition, error)
    if result.error:
        if acks:
            context.errors.add(request.api.label, result.error)
    elif log is not None and _awaits(acks, log):
        written.append(Written((indexes[number],), topic, log))
    return result


def _awaits(acks: int, log: Log) -> bool:
    """Whether the answer waits until the records are durable. Where the disk is a cache, what is in the page cache is lost with
    the machine, so ``acks=1`` waits, too."""
    return acks == -1 or (acks == 1 and log.state.config.is_shipped)


def _response(context: KafkaContext, request: RunRequest, index: int, result: PartitionResult) -> bytes:
    """The response to a request of a run."""
    hints = _hints(context, request, [result])
    return response(request.correlation_ids[index], request.api_version, [result], 0, hints)


def _hints(context: KafkaContext, request: KafkaRequest, results: Iterable[PartitionResult]) -> Hints | None:
    if context.nodes is None or request.api_version < FIRST_WITH_LEADERS:
        return None
    failed = [(result.topic, result.partition) for result in results if result.error in TELLING]
    return leader_hints.hints(context, request.connection.peer, failed) if failed else None


def _answer(
    context: KafkaContext,
    request: KafkaRequest,
    outbox: Outbox,
    results: list[Any],
    undurable: Iterable[Undurable],
) -> None:
    """Send the results, or a run's responses. All appends are durable, except ``undurable``."""
    for (indexes, topic, log), error, message in undurable:
        failed = PartitionResult(topic, log.partition, error, -1, -1, log.log_start_offset, message)
        for index in indexes:
            context.errors.add(request.api.label, error)
            results[index] = _response(context, request, index, failed) if type(request) is RunRequest else failed
    if type(request) is RunRequest:
        outbox.send(request, [b"".join(results)])
    else:
        hints = None if context.nodes is None else _hints(context, request, results)
        outbox.send(request, [response(request.correlation_id, request.api_version, results, 0, hints)])


def _failed(context: KafkaContext, topic: str | bytes, log: Log, error: StorageError) -> PartitionResult:
    context.complain("append_failed", log.topic, log.partition, error)
    return PartitionResult(topic, log.partition, ErrorCode.kafka_storage_error, -1, -1, -1, str(error))


def _append(
    context: KafkaContext,
    request: KafkaRequest,
    batches: Batches,
    topic: str | bytes,
    partition: int,
    log: Log | None,
    records: memoryview,
) -> PartitionResult:
    """Append a batch, or return the error."""
    if log is None:
        return PartitionResult(topic, partition, context.why_absent(topic, partition))
    refused = _refused(context, request, batches, log, records)
    if refused is not None:
        return PartitionResult(topic, partition, refused[0], -1, -1, -1, refused[1])
    try:
        if context.traces is None:
            info = log.append(records, now_ms=context.clock.time_ms())
        else:
            info = _append_traced(context, request, log, records)
    except Refusal as error:
        code = code_of(error)
        transactional_id = batches.transactional_id
        if isinstance(error, InvalidTransactionState) and transactional_id is not None:
            # The log knows only that the producer may not; the coordinator knows why.
            header = read_header(records)
            code = context.transactions.why_refused(transactional_id, Claim(header.producer_id, header.producer_epoch))
            if code == ErrorCode.invalid_txn_state and request.api_version >= _ABORTABLE_SINCE:
                code = ErrorCode.transaction_abortable
        start_offset = log.log_start_offset
        numbers = _record_errors(log, error)
        return PartitionResult(topic, partition, code, -1, -1, start_offset, error.message, numbers)
    except StorageError as error:
        return _failed(context, topic, log, error)
    if log.state.slow_until > context.appends_slow_until:
        context.appends_slow_until = context.clock.monotonic() + SLOW_FOR_S
    base_offset, _, append_time_ms, start_offset, _ = info
    return PartitionResult(topic, partition, 0, base_offset, append_time_ms, start_offset)


def _refused(
    context: KafkaContext, request: KafkaRequest, batches: Batches, log: Log, records: memoryview
) -> tuple[ErrorCode, str | None] | None:
    """The error, with a message, if Kafka's rules forbid the batch; None: it may be appended."""
    acks = batches.acks
    if acks not in (0, 1, -1):
        return ErrorCode.invalid_required_acks, None
    if not len(records):
        return ErrorCode.invalid_record, "a produce request without records"
    if acks == -1 and log.config.min_insync_replicas > 1:
        least = log.config.min_insync_replicas
        return ErrorCode.not_enough_replicas, f"min.insync.replicas is {least}; this broker is the only replica"
    if len(records) > _ATTRIBUTES:
        attributes = records[_ATTRIBUTES]
        if attributes & COMPRESSION_MASK == ZSTD and request.api_version < _ZSTD_SINCE:
            return ErrorCode.unsupported_compression_type, None
        if attributes & TRANSACTIONAL:
            error = _transaction_error(context, request, log, records, batches.transactional_id)
            return (error, None) if error else None
    return None


def _append_traced(context: KafkaContext, request: KafkaRequest, log: Log, records: memoryview) -> AppendInfo:
    """Append, and note the times on the request."""
    began = context.clock.monotonic()
    info = log.append(records, now_ms=context.clock.time_ms())
    ended = context.clock.monotonic()
    request.note_log_call(LogCall("append", log.topic, log.partition, info.base_offset, began, ended))
    return info


def _record_errors(log: Log, error: Refusal) -> Sequence[tuple[int, str]]:
    """The indexes of the batch's invalid records (KIP-467), each with Kafka's message."""
    if isinstance(error, InvalidTimestamp):
        return [(number, error.message) for number in error.numbers]
    if not isinstance(error, KeylessRecords):
        return ()
    where = f"{log.topic}-{log.partition}"
    message = f"Compacted topic cannot accept message without key in topic partition {where}."
    return [(number, message) for number in error.numbers]


def _transaction_error(
    context: KafkaContext, request: KafkaRequest, log: Log, records: memoryview, transactional_id: str | None
) -> ErrorCode:
    """The error of a transaction's batch if its producer does not have the request's transactional id, or if its predecessor is
    not in the log.

    With transactions version 2 each transaction has an epoch of its own and begins with 0, and a log forgets no producer with
    an open transaction. So a log that does not know the producer lacks the earlier batches: they were refused, or the topic was
    created again. In the classic flow the log may have forgotten the producer between two transactions.
    """
    try:
        header = read_header(records)
    except ProtocolError:
        return ErrorCode.none  # the append refuses the batch and says why
    refused = context.transactions.may_write(transactional_id, header.producer_id)
    if not refused and header.base_sequence and request.api_version >= FIRST_VERSION:
        return ErrorCode.none if log.transactions.knows(header.producer_id) else ErrorCode.out_of_order_sequence_number
    return refused
