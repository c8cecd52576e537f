"""Frames to requests, and where each request is handled: at once, by a handler, or through a lane."""

import struct
from typing import Any
from unittest import mock

import pytest

from broker.kafka import handlers
from broker.kafka.api import Api, KafkaRequest
from broker.kafka.kafka_session import KafkaSession
from broker.kafka.service import KafkaService
from broker.network.service import Handover
from broker.network.work import ADMIN, BULK, BULK_BYTES, INLINE_BYTES
from protocol.errors import ProtocolError, TooManyEntries
from protocol.kafka.api_keys import ApiKey


def header(key: int, version: int = 0, correlation_id: int = 7) -> bytes:
    return struct.pack(">hhih", key, version, correlation_id, -1)


def frame(body: bytes) -> memoryview:
    return memoryview(bytearray(struct.pack(">i", len(body)) + body))


SESSION = KafkaSession(handlers.load())


def test_frame_length_is_its_first_four_bytes() -> None:
    whole = frame(header(ApiKey.HEARTBEAT) + bytes(20))
    assert SESSION.frame_size(whole) == SESSION.frame_size(whole[:4]) == len(whole)
    assert SESSION.frame_size(whole[:3]) == 0


@pytest.mark.parametrize("length", [-1, 0, 7])
def test_frame_shorter_than_a_header_is_refused(length: int) -> None:
    with pytest.raises(ProtocolError, match=f"a request of {length} bytes"):
        SESSION.frame_size(memoryview(struct.pack(">i", length)))


@pytest.mark.parametrize(
    ("key", "version", "message"), [(999, 0, "API key 999"), (ApiKey.PRODUCE, 2, "version 2 of PRODUCE")]
)
def test_what_is_not_served_is_refused(key: int, version: int, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        SESSION.receive(frame(header(key, version)))


def test_api_versions_is_taken_in_any_version() -> None:
    request = SESSION.receive(frame(header(ApiKey.API_VERSIONS, 99) + b"\0"))
    assert isinstance(request, KafkaRequest)
    assert (request.api.key, request.api_version, request.correlation_id) == (ApiKey.API_VERSIONS, 99, 7)


def route(size: int, **api: Any) -> Any:
    """What the service answers for a request with a body of so many bytes."""
    request = KafkaRequest()
    request.api = Api(ApiKey.HEARTBEAT, 0, 0, **({"handle": lambda *_: None} | api))
    request.body_offset = 10
    request.frame = memoryview(bytes(10 + size))
    return KafkaService(mock.Mock(metering=None, faults=None), {}).inline(request)


def test_cheap_api_is_inline_for_short_requests() -> None:
    assert route(INLINE_BYTES, inline=True) is None
    assert route(INLINE_BYTES + 1, inline=True) == Handover()


def test_long_requests_and_slow_apis_use_a_lane() -> None:
    assert route(BULK_BYTES) == Handover()
    assert route(BULK_BYTES + 1) == Handover(BULK)
    assert route(10, lane=ADMIN) == Handover(ADMIN)
    assert route(BULK_BYTES + 1, lane=ADMIN) == Handover(ADMIN)
    assert route(BULK_BYTES + 1, sized_by_bytes=False) == Handover()


def test_prepare_is_called_unless_the_request_is_long() -> None:
    def too_many(*_: Any) -> Any:
        raise TooManyEntries("201")

    raw = {"handle": None, "handle_raw": lambda *_: None}
    assert route(10, **raw, prepare=lambda *_: "found") == "found"
    assert route(10, **raw, prepare=lambda *_: Handover(ADMIN, "found")) == Handover(ADMIN, "found")
    assert route(10, **raw, prepare=too_many) == Handover(BULK)
    assert route(INLINE_BYTES + 1, **raw, prepare=lambda *_: "found") == Handover()
    assert route(INLINE_BYTES + 1, **raw, prepare=lambda *_: "found", inline_max_bytes=BULK_BYTES) == "found"


def test_every_handler_module_is_an_api() -> None:
    apis = handlers.load()
    assert list(apis) == sorted(apis)
    for key, api in apis.items():
        assert key == api.key
        assert (api.handle is None) != (api.handle_raw is None)
        assert api.prepare is None or api.handle_raw is not None, "only raw handlers are given what was prepared"
        assert api.lane is None or not api.inline, f"{api.key.name} is slow and handled inline"
