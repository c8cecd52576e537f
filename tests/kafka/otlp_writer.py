"""Writes the metrics that a client pushes, as OpenTelemetry's ``metrics.proto`` says."""

import struct
from collections.abc import Mapping

from protocol.pulsar.frames import varint

GAUGE, SUM, HISTOGRAM = 5, 7, 9


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def attribute(key: str, value: str | bool | int | float) -> bytes:
    if isinstance(value, str):
        wrapped = field(1, value.encode())
    elif isinstance(value, bool):
        wrapped = varint(2 << 3) + varint(value)
    elif isinstance(value, int):
        wrapped = varint(3 << 3) + varint(value)
    else:
        wrapped = varint(4 << 3 | 1) + struct.pack("<d", value)
    return field(1, key.encode()) + field(2, wrapped)


def point(value: float, attributes: Mapping[str, str | bool | int | float]) -> bytes:
    """With the times that clients send, which nobody reads."""
    times = varint(2 << 3 | 1) + bytes(8) + varint(3 << 3 | 1) + bytes(8)
    number = (
        varint(6 << 3 | 1) + struct.pack("<q", value)
        if isinstance(value, int)
        else varint(4 << 3 | 1) + struct.pack("<d", value)
    )
    return b"".join(field(7, attribute(*each)) for each in attributes.items()) + times + number


def metric(name: str, *points: bytes, kind: int = GAUGE) -> bytes:
    data = b"".join(field(1, each) for each in points)
    if kind == SUM:
        data += varint(2 << 3) + varint(2) + varint(3 << 3) + varint(1)  # cumulative, monotonic
    return field(1, name.encode()) + field(2, b"a description") + field(3, b"ms") + field(kind, data)


def metrics_data(*metrics: bytes) -> bytes:
    scope = field(1, field(1, b"a scope")) + b"".join(field(2, each) for each in metrics)
    resource = field(1, field(1, attribute("of", "the resource")))
    return field(1, resource + field(2, scope))


def gauges(**values: float) -> bytes:
    """Metrics of one value without attributes; ``__`` in a name is a dot."""
    return metrics_data(*(metric(name.replace("__", "."), point(value, {})) for name, value in values.items()))
