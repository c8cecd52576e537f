"""Finds and handles runs: one write for each log, one fsync with ``acks=all``, one answer with all responses.

On the connection's processor. What is not the usual case is appended batch by batch, as if it had come alone.

Runs: usual Produce requests, taken by what they have in common with earlier ones, and several of them together.

A session that has received a Produce request asks ``RunFinder`` whether the requests at the beginning of what was received are a
run, which ``protocol.kafka.messages.produce_runs`` decides. If they are, the processor gets all of them as one frame, and they
become one ``RunRequest``: one write for each log, one fsync with ``acks=all``, one answer with as many responses (``runs.py``).
The order of what is stored and answered is that in which the requests have come. A client that waits for each answer has runs of
one request, which are still not parsed field by field.

On the connection's processor. Only requests that the processor would handle itself may be in a run.

Tests: tests/kafka/handlers/test_produce_runs.py,
tests/kafka/test_kafka_session_runs.py.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from broker.errors import StorageError
from broker.kafka.api import Api, KafkaRequest
from broker.kafka.authorization import NO_NAMES, denied, denied_ids
from broker.kafka.context import KafkaContext
from broker.kafka.producing.appending import (
    SLOW_FOR_S,
    AwaitedAppend,
    AwaitedFlush,
    Failed,
    Written,
    append,
    failure,
    is_transactional,
)
from broker.network.service import Outbox
from broker.security.acl import Operation, ResourceType
from broker.storage.log.log import Log
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.produce import FIRST_WITH_TOPIC_ID, PartitionResult, response
from protocol.kafka.messages.produce_runs import FIRST_VERSION, LAST_VERSION, Run, Template, Templates

# A run of this size takes about half a millisecond.
_RUN_MAX = 128
RUN_BYTES_MAX = 512 * 1024
# Of one connection: a producer to more partitions than this may have its requests handled one by one.
_TEMPLATES_MAX = 64
# After so many requests with which nothing was won, this many are not looked at.
_FAILURES_MAX = 4
_SKIPPED = 64
# The same for a client that has made its templates be forgotten, because there were too many, before each was used so often.
_SKIPPED_BY_MANY = 1024
_LEAST_USES = 4
_new = tuple.__new__


class Group(NamedTuple):
    """The requests of a run for one partition, by their indexes in the run. ``log`` is None if there is no such partition."""

    template: Template  # of one of them
    log: Log | None
    indexes: Any  # a range or a list of numbers
    correlation_ids: list[int]
    records: list[memoryview]


class RunRequest(KafkaRequest):
    """The requests of a run. ``correlation_id`` is that of the last one."""

    __slots__ = ("count", "groups", "timeout_ms")

    is_handled_once = True

    count: int
    groups: Sequence[Group]
    timeout_ms: int


class RunFinder:
    """That of one connection."""

    __slots__ = ("_bytes_max", "_context", "_failures", "_groups", "_run", "_skip", "_templates", "_uses", "size")

    def __init__(self, context: KafkaContext) -> None:
        self._context = context
        # The processor takes a run for one frame, which must not be larger than a frame may be.
        self._bytes_max = min(RUN_BYTES_MAX, context.config.socket_request_max_bytes)
        self._templates = Templates()
        self._uses = 0  # how many requests were followed with these templates
        self._skip = 0
        self._failures = 0
        self._run: Run | None = None
        self._groups: Sequence[Group] = ()
        self.size = 0  # of the frames that are a run

    def find(self, data: memoryview, first: int) -> int:
        """The size of the run at the beginning of ``data``, or of its first frame (``first``), if that begins none."""
        self.size = 0
        if self._skip:
            self._skip -= 1
            return first
        if first > self._bytes_max:
            return first
        context = self._context
        if context.traces is not None:
            return first  # each request is traced by itself
        most_bytes = self._bytes_max
        metering = context.metering
        if metering is not None and metering.run_max_bytes < most_bytes:
            most_bytes = max(first, metering.run_max_bytes)
        if context.appends_slow_until and context.clock.monotonic() < context.appends_slow_until:
            return first
        templates = self._templates
        run = templates.follow(data, _RUN_MAX, most_bytes)
        was_known = run is not None
        if run is None:
            self._learn(data[:first])
            run = templates.follow(data, _RUN_MAX, most_bytes)
            if run is None:
                return first
        template = run.templates[0]
        logs = context.logs
        partitions: Any = logs.partitions if template.version < FIRST_WITH_TOPIC_ID else logs.partitions_by_id
        if run.is_uniform:
            log = partitions.get((template.topic, template.partition))
            self._groups = (_new(Group, (template, log, range(len(run.records)), run.correlation_ids, run.records)),)
            if log is not None and log.decompresses:
                return self._leave(run, first)
        else:
            self._groups = _divide(run, partitions)
            if any(group.log is not None and group.log.decompresses for group in self._groups):
                return self._leave(run, first)
        if was_known:
            self._failures = 0
        self._uses += len(run.records)
        self._run = run
        self.size = run.end
        return run.end

    def _leave(self, run: Run, first: int) -> int:
        """Some of the batches have to be decompressed, which a handler does."""
        self._groups = ()
        self._fail()
        self._skip = max(self._skip, len(run.records) - 1)  # not to follow the same requests again for each of them
        return first

    def request(self, api: Api) -> RunRequest:
        """That of the run that was found."""
        run = self._run
        assert run is not None
        request = RunRequest()
        request.groups = self._groups
        self._groups, self._run, self.size = (), None, 0
        templates, correlation_ids, *_ = run
        last = templates[-1]
        request.api = api
        request.kind = api.label
        request.api_version = last.version
        request.correlation_id = correlation_ids[-1]
        request.client_id = last.client_id
        request.body_offset = 0
        request.count = len(templates)
        request.timeout_ms = last.timeout_ms
        return request

    def _learn(self, frame: memoryview) -> None:
        """From the next request, which has no template."""
        templates = self._templates
        if len(templates) >= _TEMPLATES_MAX:
            if self._uses < _LEAST_USES * _TEMPLATES_MAX:
                self._skip = _SKIPPED_BY_MANY
            templates.clear()
            self._uses = 0
        known = len(templates)
        if not templates.learn(frame) or len(templates) <= known:
            self._fail()

    def _fail(self) -> None:
        self._failures += 1
        if self._failures >= _FAILURES_MAX:
            self._failures = 0
            self._skip = _SKIPPED


def _divide(run: Run, partitions: Any) -> Sequence[Group]:
    """The requests by their partitions. Several templates may be of one partition, for example with other tagged fields."""
    groups: dict[tuple[Any, int], Group] = {}
    for index, (template, correlation_id, records) in enumerate(
        zip(run.templates, run.correlation_ids, run.records, strict=True)
    ):
        partition = template.topic, template.partition
        group = groups.get(partition)
        if group is None:
            group = groups[partition] = Group(template, partitions.get(partition), [], [], [])
        group.indexes.append(index)
        group.correlation_ids.append(correlation_id)
        group.records.append(records)
    return tuple(groups.values())


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
