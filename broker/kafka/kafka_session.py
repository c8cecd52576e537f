"""Kafka's frames to requests.

A ``KafkaSession`` belongs to its processor's thread.

Tests: tests/kafka/test_service.py.
"""

import struct
from collections.abc import Mapping

import attrs

from broker.kafka.api import Api, KafkaRequest
from broker.kafka.context import KafkaContext
from broker.kafka.producing.runs import RunFinder
from broker.security.security import Software
from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages.headers import parse_request_header

_LENGTH = struct.Struct(">i").unpack_from
# The smallest request: key, version and correlation id.
_SMALLEST = 8
# Of a client's name for itself that is shown.
_WORDS_MAX = 300


@attrs.frozen
class Runs:
    """Several Produce requests become one of ``api``. One for all sessions of a service."""

    context: KafkaContext
    api: Api


class KafkaSession:
    """One Kafka connection. A connection has one request in flight at a time."""

    in_flight_max = 1

    def __init__(self, apis: dict[int, Api], runs: Runs | None = None) -> None:
        """``apis``: those that are served, by key. ``runs``: several Produce requests may be handled together."""
        self._apis = apis
        self._runs = runs
        self._finder: RunFinder | None = None  # once the client has produced
        self.client_software: Software | None = None  # what the client says it is
        self.client_id: str | None = None  # of its ApiVersions request
        self.has_logged_in = True  # it is settled who the client is

    @property
    def client_words(self) -> Mapping[str, str]:
        """What the client says of itself, for people. Any thread."""
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
        if size <= len(data) and not data[5] and self._runs is not None:  # the lower byte of API key 0
            return self._run_size(data, size)
        return size

    def _run_size(self, data: memoryview, first: int) -> int:
        """There is a whole frame in ``data``, perhaps one of Produce, and perhaps there are more."""
        if self._finder is None:
            assert self._runs is not None
            self._finder = RunFinder(self._runs.context)
        return self._finder.find(data, first)

    def receive(self, frame: memoryview) -> KafkaRequest:
        if self._finder is not None and self._finder.size:
            assert self._runs is not None
            return self._finder.request(self._runs.api)
        key, version, correlation_id, client_id, body_offset = parse_request_header(frame)
        api = self._apis.get(key)
        if api is None:
            raise ProtocolError(self.unserved(key))
        if not api.min_version <= version <= api.max_version and key != ApiKey.API_VERSIONS:
            raise ProtocolError(f"version {version} of {api.key.name} is not served here")
        request = KafkaRequest()
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
