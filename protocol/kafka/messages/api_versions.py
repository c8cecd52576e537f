"""ApiVersions, versions 0 to 4: a client's first request, which asks for the APIs and versions that the broker serves.

The response's header is always version 0. A broker that does not serve the request's version answers with the body of version 0
and error 35 (unsupported version), so that any client can read which version to use instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from protocol.errors import ProtocolError
from protocol.wire import Reader, Writer

MIN_VERSION, MAX_VERSION = 0, 4

_FLEXIBLE = 3
# From this version on, readers accept a supported feature with the lowest level 0 (KIP-1022); older readers fail on it.
_LEVEL_0 = 4
# Field tags.
_SUPPORTED_FEATURES, _FEATURES_EPOCH, _FINALIZED_FEATURES = 0, 1, 2


class ApiVersionsRequest(NamedTuple):
    """Empty in versions before 3."""

    client_software_name: str = ""
    client_software_version: str = ""


def parse_request(view: memoryview, version: int, pos: int = 0) -> ApiVersionsRequest:
    """The client's software. Never raises: every client must get the response, whatever it sent."""
    if version < _FLEXIBLE:
        return ApiVersionsRequest()
    reader = Reader(view, pos)
    try:
        return ApiVersionsRequest(reader.compact_string(), reader.compact_string())
    except ProtocolError:
        return ApiVersionsRequest()


class Features(NamedTuple):
    """The tagged fields of a response.

    ``finalized``: the levels that the cluster has agreed on, by name. A client uses the finalized levels with the largest
    ``epoch`` that it has seen; -1: the broker does not know them.
    """

    supported: Mapping[str, tuple[int, int]]  # name -> (lowest, highest level)
    finalized: Mapping[str, int]
    epoch: int


def response(
    correlation_id: int,
    request_version: int,
    error: int,
    ranges: Mapping[int, tuple[int, int]],
    throttle_ms: int = 0,
    features: Features | None = None,
) -> bytes:
    """The whole response frame. ``ranges`` is API key -> (lowest, highest version).

    Versions before 3 have no fields for features. For a request of an unsupported version, pass version 0, error 35 and
    only the range of ApiVersions.
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
        if features is None:
            out.no_tags()
        else:
            _tag_features(out, features, request_version)
    out.data[:4] = (len(out.data) - 4).to_bytes(4, "big")
    return out.getvalue()


def _tag_features(out: Writer, features: Features, version: int) -> None:
    supported = {name: levels for name, levels in features.supported.items() if levels[0] > 0 or version >= _LEVEL_0}
    # As in Kafka, a level is sent as the range (level, level), and a feature at level 0 is omitted.
    finalized = {name: (level, level) for name, level in features.finalized.items() if level > 0}
    out.uvarint(3)
    _tag(out, _SUPPORTED_FEATURES, _levels(supported))
    _tag(out, _FEATURES_EPOCH, features.epoch.to_bytes(8, "big", signed=True))
    _tag(out, _FINALIZED_FEATURES, _levels(finalized))


def _levels(ranges: Mapping[str, tuple[int, int]]) -> bytes:
    field = Writer()
    field.compact_array(len(ranges))
    for name, (first, second) in ranges.items():
        field.compact_string(name)
        field.i16(first)
        field.i16(second)
        field.no_tags()
    return field.getvalue()


def _tag(out: Writer, tag: int, field: bytes) -> None:
    out.uvarint(tag)
    out.uvarint(len(field))
    out.raw(field)
