"""Writes the throttle time into an encoded response.

Whether a client is throttled is known only when its response is about to be sent, and rarely true: so responses are encoded
with a throttle time of 0, and this module knows its position in a frame. Any thread.
"""

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

from protocol.kafka.api_keys import ApiKey, response_header_version
from protocol.kafka.schema.schema_reader import NUMBER_FORMATS, field_specs
from protocol.wire import BytesLike

_I32 = struct.Struct(">i")
_FIELD = "throttle_time"
# From these versions on, tagged fields follow the throttle time where it is the last field.
_PRODUCE_FLEXIBLE, _API_VERSIONS_FLEXIBLE = 9, 3


def with_throttle_time(parts: Sequence[Any], api_key: int, version: int, throttle_ms: int) -> Sequence[Any]:
    """The parts of a response frame with this throttle time. ``parts`` and their contents are not modified.

    ``parts`` is returned if this version of the response has no throttle time. Of several Produce responses in one part, the last
    gets it: the client gets no other response until that time is over.
    """
    at = _position(parts[0], api_key, version)
    if at is None:
        return parts
    for number, part in enumerate(parts):
        size = len(part)
        if at < size:
            head = bytearray(memoryview(part)[: at + _I32.size])
            _I32.pack_into(head, at, throttle_ms)
            rest = [memoryview(part)[at + _I32.size :]] if at + _I32.size < size else []
            return [*parts[:number], head, *rest, *parts[number + 1 :]]
        at -= size
    raise AssertionError("a response that ends before its throttle time")


def _position(first: BytesLike, api_key: int, version: int) -> int | None:
    """Its position in the frame. ``first``: the first part of the frame; the first two APIs have only this part."""
    if api_key == ApiKey.PRODUCE:  # the last field
        return len(first) - _I32.size - (version >= _PRODUCE_FLEXIBLE)
    if api_key == ApiKey.API_VERSIONS:
        return _after_the_ranges(first, version)
    before = _bytes_before(api_key, version)
    return None if before is None else 8 + response_header_version(api_key, version) + before


def _after_the_ranges(frame: BytesLike, version: int) -> int | None:
    """In ApiVersions the throttle time follows the array of ranges. The header never has tagged fields."""
    if version == 0:
        return None
    if version < _API_VERSIONS_FLEXIBLE:
        (ranges,) = _I32.unpack_from(frame, 10)
        return 14 + 6 * int(ranges)
    count, at, shift = 0, 10, 0
    while True:
        byte = frame[at]
        at += 1
        count |= (byte & 0x7F) << shift
        if byte < 0x80:
            return at + 7 * (count - 1)
        shift += 7


@cache
def _bytes_before(api_key: int, version: int) -> int | None:
    """All other responses have only fixed-size fields before the throttle time, or no throttle time."""
    if api_key in (ApiKey.END_TXNS, ApiKey.BACKUP):
        return 0
    from kio.index import load_response_schema

    before = 0
    for spec in field_specs(load_response_schema(api_key, version)):
        if spec.name == _FIELD:
            return before
        form = None if spec.is_array else NUMBER_FORMATS.get(spec.kafka_type or "")
        if form is None:
            return None
        before += struct.calcsize(form)
    return None
