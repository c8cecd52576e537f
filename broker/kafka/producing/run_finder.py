"""Runs: usual Produce requests, taken by what they have in common with earlier ones, and several of them together.

A session that has received a Produce request asks ``RunFinder`` whether the requests at the beginning of what was received are a
run, which ``protocol.kafka.messages.produce_runs`` decides. If they are, the processor gets all of them as one frame, and they
become one ``RunRequest``: one write for each log, one fsync with ``acks=all``, one answer with as many responses (``runs.py``).
The order of what is stored and answered is that in which the requests have come. A client that waits for each answer has runs of
one request, which are still not parsed field by field.

On the connection's processor. Only requests that the processor would handle itself may be in a run.

Tests: tests/kafka/producing/test_runs.py, tests/kafka/producing/test_run_finder.py.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from broker.kafka.api import Api, KafkaRequest
from broker.kafka.context import KafkaContext
from broker.storage.log.log import Log
from protocol.kafka.messages.produce import FIRST_WITH_TOPIC_ID
from protocol.kafka.messages.produce_runs import Run, Template, Templates

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
