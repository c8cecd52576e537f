"""Request and response headers. ``parse_request_header`` runs on the processor for every request.

A request frame begins with its length, the API key and version, the correlation id and the client id; from header
version 2 on, tagged fields follow. The client id keeps its old int16 length in all versions.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from protocol.errors import ProtocolError
from protocol.kafka.api_keys import FIRST_FLEXIBLE_VERSION, NO_FLEXIBLE_VERSION
from protocol.wire import BytesLike, Reader

_FIXED = struct.Struct(">ihhih")  # frame length, API key, API version, correlation id, length of the client id
_FIXED_SIZE = _FIXED.size
_I32 = struct.Struct(">i")
_I32_TAGS = struct.Struct(">iB")
# The most tagged fields of a header. Kafka's schemas define none for requests, and processors read headers.
_TAGS_MAX = 64


class RequestHeader(NamedTuple):
    """``body_offset`` is the position in the frame at which the body begins."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int


_new = tuple.__new__  # skips the generated __new__: 0.15 us of 1 us


def parse_request_header(frame: BytesLike) -> RequestHeader:
    """The header of a whole frame, length prefix included. Raises ProtocolError."""
    try:
        _, key, version, correlation_id, size = _FIXED.unpack_from(frame)
    except struct.error:
        raise ProtocolError(f"a request of {len(frame)} bytes has no header") from None
    client_id: str | None
    if size >= 0:
        end = _FIXED_SIZE + size
        if end > len(frame):
            raise ProtocolError("the request ends inside its client id")
        try:
            client_id = str(frame[_FIXED_SIZE:end], "utf-8")
        except UnicodeDecodeError:
            raise ProtocolError("a client id that is not UTF-8") from None
    elif size == -1:
        client_id = None
        end = _FIXED_SIZE
    else:
        raise ProtocolError(f"a client id of {size} bytes")
    if version >= FIRST_FLEXIBLE_VERSION.get(key, NO_FLEXIBLE_VERSION):
        if end >= len(frame):
            raise ProtocolError("the request ends before its header's tagged fields")
        if frame[end] == 0:
            end += 1
        else:
            reader = Reader(frame, end, _TAGS_MAX)
            reader.skip_tags()
            end = reader.pos
    return _new(RequestHeader, (key, version, correlation_id, client_id, end))


def request_header(key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """A request's header without the frame's length, as a client sends it."""
    text = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(text)
    tags = b"\x00" if version >= FIRST_FLEXIBLE_VERSION.get(key, NO_FLEXIBLE_VERSION) else b""
    return struct.pack(">hhih", key, version, correlation_id, size) + text + tags


def response_header(correlation_id: int, version: int) -> bytes:
    """A response's header, version 0 or 1, without the frame's length."""
    return _I32_TAGS.pack(correlation_id, 0) if version else _I32.pack(correlation_id)
