"""Kafka's frames to requests.

A frame is one request, except for Produce: consecutive requests that are alike become one request together, a *run*.

A ``KafkaSession`` belongs to its processor's thread.

Tests: tests/kafka/test_service.py, tests/kafka/test_kafka_session_runs.py.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from broker.kafka.api import Api, KafkaRequest
from broker.kafka.context import KafkaContext
from broker.kafka.producing.appending import Batches, Group, ProduceRequest, RunRequest
from broker.security.security import Software
from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages.headers import parse_request_header
from protocol.kafka.messages.produce import FIRST_WITH_TOPIC_ID, Run, Template, Templates

_LENGTH = struct.Struct(">i").unpack_from
# The smallest request: key, version and correlation id.
_SMALLEST = 8
# The part of a client's own id that is shown.
_WORDS_MAX = 300


# A run of this size takes about half a millisecond.
_RUN_MAX = 128
RUN_BYTES_MAX = 512 * 1024
# Templates of one connection: a producer to more partitions may have its requests handled one at a time.
_TEMPLATES_MAX = 64
# After so many requests without a gain, this many are not looked at.
_FAILURES_MAX = 4
_SKIPPED = 64
# The same for a client with so many templates that they were dropped before each was used so often.
_SKIPPED_BY_MANY = 1024
_LEAST_USES = 4
_PRODUCE = int(ApiKey.PRODUCE)  # an attribute of an enumeration is slow
_new = tuple.__new__


class KafkaSession:
    """One Kafka connection. A connection has one request in flight at a time."""

    in_flight_max = 1

    def __init__(self, apis: dict[int, Api], context: KafkaContext | None = None) -> None:
        """``apis``: the served APIs by key. ``context``: to look for runs; None: every frame is a request."""
        self._apis = apis
        self._context = context
        self._finder: RunFinder | None = None  # once the client has produced
        self.client_software: Software | None = None  # as the client names it
        self.client_id: str | None = None  # from its ApiVersions request
        self.has_logged_in = True  # the client's identity is settled

    @property
    def client_words(self) -> Mapping[str, str]:
        """The client's description of itself, for people. Any thread."""
        software, client_id = self.client_software, self.client_id
        words = {} if client_id is None else {"client_id": client_id[:_WORDS_MAX]}
        return words if software is None else {**words, "software": software.name, "version": software.version}

    def frame_size(self, data: memoryview) -> int:
        if len(data) < 4:
            return 0
        (length,) = _LENGTH(data)
        if length < _SMALLEST:
            raise ProtocolError(f"a request of {length} bytes")
        size: int = 4 + length
        if size <= len(data) and not data[5] and self._context is not None:  # the lower byte of API key 0
            return (self._finder or self._new_finder()).find(data, size)
        return size

    def _new_finder(self) -> "RunFinder":
        assert self._context is not None
        self._finder = RunFinder(self._context, self._apis[ApiKey.PRODUCE])
        return self._finder

    def receive(self, frame: memoryview) -> KafkaRequest:
        finder = self._finder
        if finder is not None and finder.found is not None:
            run, finder.found = finder.found, None
            return run
        key, version, correlation_id, client_id, body_offset = parse_request_header(frame)
        api = self._apis.get(key)
        if api is None:
            raise ProtocolError(self.unserved(key))
        if not api.min_version <= version <= api.max_version and key != ApiKey.API_VERSIONS:
            raise ProtocolError(f"version {version} of {api.key.name} is not served here")
        request = ProduceRequest() if key == _PRODUCE else KafkaRequest()
        request.api = api
        request.kind = api.label
        request.api_version = version
        request.correlation_id = correlation_id
        request.client_id = client_id
        request.body_offset = body_offset
        return request

    def unserved(self, key: int) -> str:
        """Why an API has no handler here."""
        return f"API key {key} is not served here"


class RunFinder:
    """Finds runs: usual Produce requests at the beginning of a connection's received bytes, recognised by templates of earlier
    requests, and handled together. Each connection has its own.

    The processor gets a run as one frame, and ``found`` is its request. Requests are stored and answered in the order of their
    arrival. A client that waits for each answer has runs of one request, which are still not parsed field by
    field. Only requests that the processor would handle itself may be in a run.
    """

    __slots__ = ("_api", "_bytes_max", "_context", "_failures", "_skip", "_templates", "_uses", "found")

    def __init__(self, context: KafkaContext, api: Api) -> None:
        """``api``: Produce."""
        self._context = context
        self._api = api
        # The processor takes a run for one frame, which must not be larger than a frame may be.
        self._bytes_max = min(RUN_BYTES_MAX, context.config.socket_request_max_bytes)
        self._templates = Templates()
        self._uses = 0  # how many requests have matched these templates
        self._skip = 0
        self._failures = 0
        self.found: RunRequest | None = None  # the run that ``find`` has found

    def find(self, data: memoryview, first: int) -> int:
        """The size of the run at the beginning of ``data``, or of its first frame (``first``), if no run begins there."""
        self.found = None
        if self._skip:
            self._skip -= 1
            return first
        if first > self._bytes_max:
            return first
        context = self._context
        if context.traces is not None or context.faults is not None:
            return first  # each request is traced by itself, and meets faults by itself
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
        its_templates, correlation_ids, records, end, is_uniform = run
        template = its_templates[0]
        logs = context.logs
        partitions: Any = logs.partitions if template.version < FIRST_WITH_TOPIC_ID else logs.partitions_by_id
        groups: Sequence[Group]
        if is_uniform:
            topic, partition = template.topic, template.partition
            log = partitions.get((topic, partition))
            indexes = range(len(records))
            groups = (_new(Group, (topic, partition, log, indexes, records, template, correlation_ids)),)
            if log is not None and log.decompresses:
                return self._leave(run, first)
        else:
            groups = _divide(run, partitions)
            if any(group.log is not None and group.log.decompresses for group in groups):
                return self._leave(run, first)
        if was_known:
            self._failures = 0
        self._uses += len(records)
        self.found = self._request(template, correlation_ids, groups)
        return end

    def _leave(self, run: Run, first: int) -> int:
        """Give up a run because a handler has to decompress some of its batches."""
        self._fail()
        self._skip = max(self._skip, len(run.records) - 1)  # not to match the same requests again for each of them
        return first

    def _request(self, template: Template, correlation_ids: Sequence[int], groups: Sequence[Group]) -> RunRequest:
        """``template``: of any of the requests, since what is read here is the same for all of them."""
        request = RunRequest()
        request.api = api = self._api
        request.kind = api.label
        request.api_version = template.version
        request.correlation_id = correlation_ids[-1]
        request.client_id = template.client_id
        request.body_offset = 0
        request.count = len(correlation_ids)
        request.correlation_ids = correlation_ids
        request.batches = _new(Batches, (groups, template.acks, template.timeout_ms, None))
        return request

    def _learn(self, frame: memoryview) -> None:
        """Make a template of the next request, which matches none."""
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
    """The requests by their partitions. A partition may have several templates, for example with other tagged fields."""
    parts: dict[tuple[Any, int], tuple[Template, list[int], list[int], list[memoryview]]] = {}
    for index, (template, correlation_id, records) in enumerate(
        zip(run.templates, run.correlation_ids, run.records, strict=True)
    ):
        key = template.topic, template.partition
        part = parts.get(key)
        if part is None:
            part = parts[key] = template, [], [], []
        part[1].append(index)
        part[2].append(correlation_id)
        part[3].append(records)
    return tuple(
        Group(*key, partitions.get(key), indexes, records, template, correlation_ids)
        for key, (template, indexes, correlation_ids, records) in parts.items()
    )
