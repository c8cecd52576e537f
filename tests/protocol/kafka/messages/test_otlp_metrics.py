"""Pushed metrics are read as they were written, whatever else the message has, in a time bounded by its size."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.kafka.messages.otlp_metrics import FIELDS_MAX, Point, parse_metrics
from protocol.pulsar.frames import varint
from tests.kafka import otlp_writer
from tests.kafka.otlp_writer import GAUGE, HISTOGRAM, SUM, field, gauges, metric, metrics_data, point

names = st.text(min_size=1, max_size=20)
numbers = st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False)
values = st.text(max_size=10) | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False)
points = st.tuples(numbers, st.dictionaries(names, values, max_size=4))
metrics = st.lists(st.tuples(names, st.sampled_from([GAUGE, SUM]), st.lists(points, max_size=4)), max_size=6)


def text(value: str | bool | int | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@given(metrics)
def test_gauges_and_sums_are_read_with_their_attributes(
    written: list[tuple[str, int, list[tuple[float, dict[str, str | bool | int | float]]]]],
) -> None:
    data = metrics_data(*(metric(name, *(point(*each) for each in of), kind=kind) for name, kind, of in written))
    expected = [
        Point(name, {key: text(each) for key, each in attributes.items()}, float(number))
        for name, _, of in written
        for number, attributes in of
    ]
    assert expected == parse_metrics(data)


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_holds_no_metrics(data: bytes) -> None:
    try:
        parse_metrics(data)
    except ProtocolError:
        pass


@given(st.data())
def test_damaged_metrics_are_refused_or_read(data: st.DataObject) -> None:
    whole = bytearray(gauges(org__apache__kafka__producer__x=1.5, y=3))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    try:
        parse_metrics(bytes(whole[: data.draw(st.integers(at, len(whole)))]))
    except ProtocolError:
        pass


def test_other_metrics_and_unknown_fields_are_skipped() -> None:
    unknown = field(99, b"?") + varint(98 << 3) + varint(1 << 40) + varint(97 << 3 | 5) + bytes(4)
    histogram = metric("h", field(9, b"") + varint(4 << 3 | 1) + struct.pack("<d", 1.0), kind=HISTOGRAM)
    data = metrics_data(histogram, unknown + metric("g", point(1, {"a": "b"}) + unknown) + unknown) + unknown
    assert [Point("g", {"a": "b"}, 1.0)] == parse_metrics(data)
    assert [] == parse_metrics(b"")


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",  # a length that is missing
        b"\x0a\x02\x00",  # longer than the data
        b"\x0a\x05",  # five bytes, but none follow
        b"\x0b",  # a group
        b"\x80" * 11,
        b"\x09\x00",  # eight bytes, but one follows
        field(1, field(2, field(2, field(1, b"\xff") + field(5, field(1, point(1, {})))))),  # a name that is not UTF-8
    ],
)
def test_what_is_not_protobuf_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_metrics(data)


def test_the_number_of_fields_is_bounded() -> None:
    assert [] == parse_metrics(b"\x10\x00" * FIELDS_MAX)
    with pytest.raises(ProtocolError, match="more than"):
        parse_metrics(b"\x10\x00" * (FIELDS_MAX + 1))
    nested = otlp_writer.field(2, b"\x10\x00" * (FIELDS_MAX // 2))
    with pytest.raises(ProtocolError, match="more than"):
        parse_metrics(field(1, field(2, nested) * 3))
