"""The metrics that clients push (KIP-714): ``MetricsData`` of OpenTelemetry's protocol, version 1, in protobuf.

Kafka's clients push gauges and sums. Histograms, summaries and fields not listed here are skipped. The number of fields is
bounded, because each costs about 1 us, whatever its content: a message of 1 MiB may have 500,000. Pure.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from protocol.errors import ProtocolError

# The most fields of a message. A client with 1,000 metrics sends about 10,000.
FIELDS_MAX: Final = 50_000

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_DOUBLE, _SIGNED_64 = struct.Struct("<d"), struct.Struct("<q")

# Field numbers, with their message.
_RESOURCE_METRICS = 1  # MetricsData
_SCOPE_METRICS = 2  # ResourceMetrics
_METRICS = 2  # ScopeMetrics
_NAME, _GAUGE, _SUM = 1, 5, 7  # Metric
_DATA_POINTS = 1  # Gauge, Sum
_AS_DOUBLE, _AS_INT, _ATTRIBUTES = 4, 6, 7  # NumberDataPoint
_KEY, _VALUE = 1, 2  # KeyValue
_STRING, _BOOL, _INT, _FLOAT = 1, 2, 3, 4  # AnyValue

# A field's number and value: an int for a varint, otherwise bytes.
_Field = tuple[int, int | memoryview]


class Point(NamedTuple):
    """One value of a metric. Of several attributes with the same key, the last counts."""

    metric: str
    attributes: dict[str, str]
    value: float


def parse_metrics(data: bytes | memoryview) -> list[Point]:
    """Raises ProtocolError for invalid protobuf, and for more than ``FIELDS_MAX`` fields."""
    reader = _Reader()
    return [
        point
        for of_resource in reader.messages(memoryview(data), _RESOURCE_METRICS)
        for of_scope in reader.messages(of_resource, _SCOPE_METRICS)
        for metric in reader.messages(of_scope, _METRICS)
        for point in _points(reader, metric)
    ]


def _points(reader: "_Reader", metric: memoryview) -> Iterator[Point]:
    name, points = "", list[memoryview]()
    for number, value in reader.fields(metric):
        if isinstance(value, int):
            continue
        if number == _NAME:
            name = _text(value)
        elif number in (_GAUGE, _SUM):
            points += reader.messages(value, _DATA_POINTS)
    for point in points:
        number_value: float | None = None
        attributes: dict[str, str] = {}
        for number, value in reader.fields(point):
            if isinstance(value, int):
                continue
            if number == _AS_DOUBLE and len(value) == 8:
                number_value = _DOUBLE.unpack(value)[0]
            elif number == _AS_INT and len(value) == 8:
                number_value = float(_SIGNED_64.unpack(value)[0])
            elif number == _ATTRIBUTES:
                key, text = _attribute(reader, value)
                attributes[key] = text
        if number_value is not None:
            yield Point(name, attributes, number_value)


def _attribute(reader: "_Reader", pair: memoryview) -> tuple[str, str]:
    key, text = "", ""
    for number, value in reader.fields(pair):
        if isinstance(value, int):
            continue
        if number == _KEY:
            key = _text(value)
        elif number == _VALUE:
            text = _any_value(reader, value)
    return key, text


def _any_value(reader: "_Reader", data: memoryview) -> str:
    """Lists and maps, which no client sends, become ""."""
    text = ""
    for number, value in reader.fields(data):
        if isinstance(value, int):
            if number == _BOOL:
                text = "true" if value else "false"
            elif number == _INT:
                text = str(value - (1 << 64) if value >> 63 else value)
        elif number == _STRING:
            text = _text(value)
        elif number == _FLOAT and len(value) == 8:
            text = str(_DOUBLE.unpack(value)[0])
    return text


def _text(data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        raise ProtocolError("a text that is not UTF-8") from None


class _Reader:
    """Reads a message and its submessages, and counts their fields."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = FIELDS_MAX

    def messages(self, data: memoryview, wanted: int) -> list[memoryview]:
        """The messages in the field ``wanted``."""
        return [value for number, value in self.fields(data) if number == wanted and not isinstance(value, int)]

    def fields(self, data: memoryview) -> Iterator[_Field]:
        at, end = 0, len(data)
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise ProtocolError(f"a message of more than {FIELDS_MAX} fields")
            tag, at = _varint(data, at)
            kind = tag & 7
            if kind == _VARINT:
                value, at = _varint(data, at)
                yield tag >> 3, value
                continue
            if kind == _BYTES:
                size, at = _varint(data, at)
            elif kind == _FIXED_64:
                size = 8
            elif kind == _FIXED_32:
                size = 4
            else:
                raise ProtocolError(f"protobuf has no wire type {kind}")
            if size > end - at:
                raise ProtocolError("a protobuf field that is longer than what is left")
            yield tag >> 3, data[at : at + size]
            at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """The number at ``at``, of at most 64 bits, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ProtocolError("a protobuf number that ends too early")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
    raise ProtocolError("a protobuf number of more than ten bytes")
