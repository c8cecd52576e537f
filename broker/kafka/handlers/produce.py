"""Produce: append record batches to partitions.

Requests are handled on the connection's processor as long as appends to the page cache are fast. With ``acks=all`` a request then
waits for the flusher without occupying a thread. Batches are not decompressed, unless the topic asks for it: then a handler does,
one request after the other (``work.VALIDATION``).

From version 12 on, a batch of a transaction adds its partition to the transaction (``broker.kafka.transactions.version_2``).
From version 13 on a request names topics by their ids.

Requests that a client has sent without waiting for answers are handled together: see ``broker.kafka.producing``.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from broker.kafka.api import Api, KafkaRequest
from broker.kafka.authorization import denied, denied_ids, may
from broker.kafka.context import KafkaContext
from broker.kafka.producing.appending import (
    AwaitedAppend,
    AwaitedFlush,
    Failed,
    Written,
    append,
    failure,
    is_transactional,
    partitions_of,
)
from broker.kafka.transactions import version_2
from broker.kafka.transactions.transaction import Claim
from broker.kafka.transactions.version_2 import FirstBatches
from broker.network.service import Handover, Outbox
from broker.network.work import INLINE_ENTRIES, REQUEST_ENTRIES_MAX, VALIDATION
from broker.security.acl import Operation, ResourceType
from broker.storage.log.log import Log
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import produce

# The longest request (bytes) that a processor handles: about 1 ms of writing. Enough for a batch of 1 MiB, the default maximum.
_INLINE_MAX_BYTES = 2 * 1024 * 1024
_HANDOVER = Handover()
_VALIDATED = Handover(VALIDATION)
_FIRST_BY_ID = produce.FIRST_WITH_TOPIC_ID
_FirstBatches = Mapping[Any, tuple[Claim, Log]]
# Looking up a member of an enumeration costs as much as an authorizer's answer.
_WRITE, _TOPIC, _TRANSACTIONAL_ID = Operation.WRITE, ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID


def _prepare(context: KafkaContext, request: KafkaRequest) -> produce.ProduceRequest | Handover:
    parsed = produce.parse_request(request.frame, request.api_version, request.body_offset, INLINE_ENTRIES)
    if _decompresses(context, request, parsed):
        return _VALIDATED
    if request.received_at < context.appends_slow_until:
        return _HANDOVER
    if (
        parsed.transactional_id is not None
        and request.api_version >= version_2.FIRST_VERSION
        and _missing(context, request, parsed, ())
    ):
        return _HANDOVER
    return parsed


def _decompresses(context: KafkaContext, request: KafkaRequest, parsed: produce.ProduceRequest) -> bool:
    """Whether some of the batches have to be decompressed before they are stored."""
    partitions = partitions_of(context, request)
    for topic, partition, _ in parsed.topics:
        entry = partitions.get((topic, partition))
        if entry is not None and entry.decompresses:
            return True
    return False


def _missing(
    context: KafkaContext, request: KafkaRequest, parsed: produce.ProduceRequest, refused: Container[str | bytes]
) -> _FirstBatches:
    """The batches that have to be added to their transaction first; none of the topics ``refused``."""
    partitions = partitions_of(context, request)
    return version_2.missing(
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
        if request.lane is None and _decompresses(context, request, parsed):  # the processor has not looked
            outbox.hand_over(request, _VALIDATED)
            return
        refused = None if context.authorizer is None else _unauthorized(context, request, parsed)
        if isinstance(prepared, FirstBatches):
            first = prepared
        elif parsed.transactional_id is not None and request.api_version >= version_2.FIRST_VERSION:
            missing = _missing(context, request, parsed, refused or ())
            if missing:
                first = FirstBatches()
                go_on = partial(outbox.hand_over, request, Handover(request.lane, first))
                first.add(context.transactions.version_2, parsed.transactional_id, missing, go_on)
                return
    acks = parsed.acks
    if acks != 0 and len(parsed.topics) == 1 and not refused and first is None:  # the usual request
        topic, partition, records = parsed.topics[0]
        result, written = append(context, request, topic, partition, records, acks, parsed.transactional_id)
        if written is None:
            context.errors.add(API.label, result.error)
        elif acks == -1:
            answer = partial(_answer_durable, context, request, outbox, result, written)
            AwaitedAppend(context.ack_deadlines, answer).begin(context, request, written, parsed.timeout_ms)
            return
        outbox.send(request, [produce.response(request.correlation_id, request.api_version, [result], 0)])
        return
    _several(context, request, outbox, parsed, refused, {} if first is None else first.errors)


def _answer_durable(
    context: KafkaContext,
    request: KafkaRequest,
    outbox: Outbox,
    result: produce.PartitionResult,
    log: Log,
    error: ErrorCode | None,
    message: str | None,
) -> None:
    """``result`` is right unless there is an error."""
    if error is not None:
        context.errors.add(API.label, error)
        result = failure(log, result.topic, error, message)
    outbox.send(request, [produce.response(request.correlation_id, request.api_version, [result], 0)])


def _unauthorized(
    context: KafkaContext, request: KafkaRequest, parsed: produce.ProduceRequest
) -> Mapping[str | bytes, ErrorCode] | None:
    """The topics to which the client may not write, each with its error: all, if it may not use the transactional id."""
    connection = request.connection
    topics: Sequence[tuple[Any, int, memoryview | None]] = parsed.topics  # all names, or all ids
    by_id = request.api_version >= _FIRST_BY_ID
    if len(topics) == 1:
        topic, _, records = topics[0]
        if not is_transactional(records):
            name = topic
            if by_id:
                info = context.logs.topics_by_id.get(topic)
                if info is None:
                    return None
                name = info.name
            allowed = may(context, connection, _WRITE, _TOPIC, name)
            return None if allowed else {topic: ErrorCode.topic_authorization_failed}
    if any(is_transactional(records) for _, _, records in topics):
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


def _several(
    context: KafkaContext,
    request: KafkaRequest,
    outbox: Outbox,
    parsed: produce.ProduceRequest,
    refused: Mapping[str | bytes, int] | None,
    errors: Mapping[tuple[str | bytes, int], int],
) -> None:
    """A request of several partitions, or one with ``acks=0``, which gets no answer.

    ``refused``, ``errors``: topics and partitions to which nothing is appended, with their errors."""
    acks, topics = parsed.acks, parsed.topics
    results: list[produce.PartitionResult] = []
    written: list[Written] = []
    if refused:
        results += [
            produce.PartitionResult(topic, partition, refused[topic])
            for topic, partition, _ in topics
            if topic in refused
        ]
        topics = [one for one in topics if one[0] not in refused]
    for topic, partition, records in topics:
        if errors and (topic, partition) in errors:
            results.append(produce.PartitionResult(topic, partition, errors[topic, partition]))
            continue
        result, log = append(context, request, topic, partition, records, acks, parsed.transactional_id)
        if log is not None:
            written.append(Written((len(results),), topic, log))
        results.append(result)

    def send(failed: Failed) -> None:
        for index, result in failed.items():
            results[index] = result
        for result in results:
            if result.error:
                context.errors.add(API.label, result.error)
        outbox.send(request, [produce.response(request.correlation_id, request.api_version, results, 0)])

    if acks == 0:
        # With acks=0 an error can only be shown by closing the connection: the client then asks for metadata again.
        if any(result.error for result in results):
            outbox.close(request)
        else:
            outbox.no_op(request)
    elif acks == -1 and written:
        AwaitedFlush(context, request, send).begin(written, parsed.timeout_ms)
    else:
        send({})


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
