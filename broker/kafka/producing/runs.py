"""Handles runs (see ``run_finder.py``): one write for each log, one fsync with ``acks=all``, one answer with all responses.

On the connection's processor. What is not the usual case is appended batch by batch, as if it had come alone.

Tests: tests/kafka/producing/test_runs.py.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from broker.errors import StorageError
from broker.kafka.api import Api, KafkaRequest
from broker.kafka.authorization import NO_NAMES, denied, denied_ids
from broker.kafka.context import KafkaContext
from broker.kafka.producing.appending import SLOW_FOR_S, append, is_transactional
from broker.kafka.producing.awaited_flush import AwaitedAppend, AwaitedFlush, Failed, Written, failure
from broker.kafka.producing.run_finder import RUN_BYTES_MAX, Group, RunRequest
from broker.network.service import Outbox
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.produce import PartitionResult, response
from protocol.kafka.messages.produce_runs import FIRST_VERSION, LAST_VERSION, Template

_WRITE, _TOPIC = Operation.WRITE, ResourceType.TOPIC


def _handle(context: KafkaContext, request: KafkaRequest, outbox: Outbox, prepared: None) -> None:
    assert isinstance(request, RunRequest)
    groups = request.groups
    request.groups = ()  # while it waits for an fsync, it keeps no view of its records: their memory is used again
    refused = NO_NAMES if context.authorizer is None else _refused(context, request, groups)
    written: list[Written] = []
    if len(groups) == 1:
        answers = _store(context, request, groups[0], refused, written)
    else:
        answers = [b""] * request.count
        for group in groups:
            for index, answer in zip(group.indexes, _store(context, request, group, refused, written), strict=True):
                answers[index] = answer
    if len(written) == 1 and len(groups) == 1:
        send_one = partial(_send_one, context, request, outbox, groups[0].correlation_ids, answers, written[0])
        awaited = AwaitedAppend(context.ack_deadlines, send_one)
        awaited.begin(context, request, written[0].log, request.timeout_ms)
    elif written:
        correlation_ids: dict[int, int] = {}
        for group in groups:
            correlation_ids.update(zip(group.indexes, group.correlation_ids, strict=True))
        send = partial(_send, context, request, outbox, correlation_ids, answers)
        AwaitedFlush(context, request, send).begin(written, request.timeout_ms)
    else:
        outbox.send(request, [b"".join(answers)])


def _store(
    context: KafkaContext,
    request: RunRequest,
    group: Group,
    refused: frozenset[str | bytes],
    written: list[Written],
) -> list[bytes]:
    """Append the records of one partition. Returns the answers, and adds to ``written`` what has to become durable first."""
    template, log, indexes, correlation_ids, records = group
    acks = template.acks
    if refused and template.topic in refused:
        return [
            _answer(context, request, correlation_id, _refusal(template, one))
            for correlation_id, one in zip(correlation_ids, records, strict=True)
        ]
    answers: list[bytes] = []
    if log is not None and (acks == 1 or log.config.min_insync_replicas <= 1):
        try:
            base_offsets, start_offset = log.append_run(records, now_ms=context.clock.time_ms())
        except StorageError as error:
            context.complain("append_failed", log.topic, log.partition, error)
            code = ErrorCode.kafka_storage_error
            failed = PartitionResult(template.topic, log.partition, code, -1, -1, -1, str(error))
            return [_answer(context, request, correlation_id, failed) for correlation_id in correlation_ids]
        answers = template.answers(correlation_ids, base_offsets, start_offset)
        if log.state.slow_until > context.appends_slow_until:
            context.appends_slow_until = context.clock.monotonic() + SLOW_FOR_S
    stored = len(answers)
    if stored == len(records) and acks == 1:
        return answers
    succeeded = {} if log is None or not stored else {log: list(indexes[:stored])}
    for number in range(stored, len(records)):  # those that `append_run` has left
        one = records[number]
        if context.authorizer is not None and is_transactional(one):
            answers.append(_answer(context, request, correlation_ids[number], _refusal(template, one)))
            continue
        result, appended_to = append(context, request, template.topic, template.partition, one, acks, None)
        answers.append(_answer(context, request, correlation_ids[number], result))
        if appended_to is not None:  # another log than before if the topic was made again meanwhile
            succeeded.setdefault(appended_to, []).append(indexes[number])
    if acks == -1:
        written += [Written(those, template.topic, appended_to) for appended_to, those in succeeded.items()]
    return answers


def _answer(context: KafkaContext, request: RunRequest, correlation_id: int, result: PartitionResult) -> bytes:
    if result.error:
        context.errors.add(RUN_API.label, result.error)
    return response(correlation_id, request.api_version, [result], 0)


def _send(
    context: KafkaContext,
    request: RunRequest,
    outbox: Outbox,
    correlation_ids: Mapping[int, int] | Sequence[int],  # by the index
    answers: list[bytes],
    failed: Failed,
) -> None:
    """What was written is durable, but for ``failed``."""
    for index, result in failed.items():
        answers[index] = _answer(context, request, correlation_ids[index], result)
    outbox.send(request, [b"".join(answers)])


def _send_one(
    context: KafkaContext,
    request: RunRequest,
    outbox: Outbox,
    correlation_ids: Sequence[int],
    answers: list[bytes],
    written: Written,
    error: ErrorCode | None,
    message: str | None,
) -> None:
    """As ``_send``, for a run of one group that has written to one log. ``error``: it is not durable."""
    failed: Failed = {}
    if error is not None:
        failed = dict.fromkeys(written.indexes, failure(written.log, written.topic, error, message))
    _send(context, request, outbox, correlation_ids, answers, failed)


def _refused(context: KafkaContext, request: RunRequest, groups: Sequence[Group]) -> frozenset[str | bytes]:
    """The topics to which the client may not write."""
    topics = [group.template.topic for group in groups]
    ids = [topic for topic in topics if isinstance(topic, bytes)]
    names = [topic for topic in topics if isinstance(topic, str)]
    connection = request.connection
    return frozenset(
        (*denied_ids(context, connection, _WRITE, ids), *denied(context, connection, _WRITE, _TOPIC, names))
    )


def _refusal(template: Template, records: memoryview) -> PartitionResult:
    """The result of a batch that the client may not write. A transaction's batch needs the right to a transactional id, and the
    requests of a run have none."""
    for_topic, for_id = ErrorCode.topic_authorization_failed, ErrorCode.transactional_id_authorization_failed
    return PartitionResult(template.topic, template.partition, for_id if is_transactional(records) else for_topic)


RUN_API = Api(
    key=ApiKey.PRODUCE,
    min_version=FIRST_VERSION,
    max_version=LAST_VERSION,
    handle_raw=_handle,
    inline=True,
    inline_max_bytes=RUN_BYTES_MAX,
    sized_by_bytes=False,
)
