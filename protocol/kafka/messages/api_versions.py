"""ApiVersions, versions 0 to 4: the first request of a client, which asks what the broker serves.

The response's header is always version 0. A broker that does not know the request's version answers with the body of version 0
and error 35 (unsupported version), so that any client can read which version to use instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from protocol.errors import ProtocolError
from protocol.wire import Reader, Writer

MIN_VERSION, MAX_VERSION = 0, 4

_FLEXIBLE = 3
_SUPPORTED_FEATURES = 0  # the tag of this field


class ApiVersionsRequest(NamedTuple):
    """Empty in versions before 3."""

    client_software_name: str = ""
    client_software_version: str = ""


def parse_request(view: memoryview, version: int, pos: int = 0) -> ApiVersionsRequest:
    """The name of the client's software. Never fails: the response must reach every client, whatever it sent."""
    if version < _FLEXIBLE:
        return ApiVersionsRequest()
    reader = Reader(view, pos)
    try:
        return ApiVersionsRequest(reader.compact_string(), reader.compact_string())
    except ProtocolError:
        return ApiVersionsRequest()


def response(
    correlation_id: int,
    request_version: int,
    error: int,
    ranges: Mapping[int, tuple[int, int]],
    throttle_ms: int = 0,
    features: Mapping[str, tuple[int, int]] | None = None,
) -> bytes:
    """The whole response frame. ``ranges`` is API key -> (lowest, highest version).

    ``features`` are the supported ones, name -> (lowest, highest level); versions before 3 have no field for them. For a
    request of a version that is not served, pass version 0, error 35 and only the range of ApiVersions.
    """
    flexible = request_version >= _FLEXIBLE
    out = Writer(bytearray(4))
    out.i32(correlation_id)
    out.i16(error)
    out.any_array(len(ranges), flexible)
    for key, (lowest, highest) in ranges.items():
        out.i16(key)
        out.i16(lowest)
        out.i16(highest)
        if flexible:
            out.no_tags()
    if request_version >= 1:
        out.i32(throttle_ms)
    if flexible:
        if features:
            _tag_features(out, features)
        else:
            out.no_tags()
    out.data[:4] = (len(out.data) - 4).to_bytes(4, "big")
    return out.getvalue()


def _tag_features(out: Writer, features: Mapping[str, tuple[int, int]]) -> None:
    """The supported features, the only tagged field here: no feature of Kafka's own is supported, so none is finalized."""
    field = Writer()
    field.compact_array(len(features))
    for name, (lowest, highest) in features.items():
        field.compact_string(name)
        field.i16(lowest)
        field.i16(highest)
        field.no_tags()
    out.uvarint(1)
    out.uvarint(_SUPPORTED_FEATURES)
    out.uvarint(len(field.data))
    out.raw(field.data)
