"""``record_scan`` agrees about a batch with a reader of its records."""

from typing import Any

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.kafka.records.batch import LOG_APPEND_TIME, BatchHeader, read_header
from protocol.kafka.records.compression import SNAPPY, compress
from protocol.kafka.records.record_scan import check_records, check_shape, first_record, latest_record
from protocol.kafka.records.records import (
    MOST_HEADERS,
    MOST_HEADERS_OF_RECORD,
    SMALLEST_RECORD,
    Record,
    build_batch,
    read_records,
    unpack,
    varint,
)

NULLABLE = st.none() | st.binary(max_size=200)
RECORDS = st.lists(
    st.tuples(
        NULLABLE,
        NULLABLE,
        st.lists(st.tuples(st.text(max_size=3), NULLABLE), max_size=2),
        st.integers(0, 2**40),
    ),
    min_size=1,
    max_size=6,
)
NOTHING_LIMITED = 1_000_000


def batch_of(*timestamps: int, base_offset: int = 0, attributes: int = 0) -> tuple[BatchHeader, bytes]:
    data = build_batch(
        [(None, b"v", [], timestamp) for timestamp in timestamps], base_offset=base_offset, attributes=attributes
    )
    header = read_header(data)
    return header, unpack(data, 0, header)


def read_all(header: BatchHeader, data: bytes) -> list[Record] | None:
    """None for records that cannot be read."""
    try:
        return list(read_records(header, data))
    except ProtocolError:
        return None


def is_well_formed(data: bytes, count: int, dense: bool) -> bool:
    try:
        check_records(data, count, dense=dense)
    except ProtocolError:
        return False
    return True


@given(RECORDS, st.data())
def test_check_accepts_exactly_readable_records(
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]], data: st.DataObject
) -> None:
    """The two walks over the records agree, also on changed bytes."""
    batch = build_batch(records)
    header = read_header(batch)
    changed = bytearray(unpack(batch, 0, header))
    assert is_well_formed(bytes(changed), len(records), dense=True)
    for _ in range(data.draw(st.integers(0, 2))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(changed[: data.draw(st.integers(0, len(changed)))])
    for body in (bytes(changed), cut):
        readable = read_all(header, body)
        deltas = [] if readable is None else [record.offset for record in readable]
        ascends = readable is not None and deltas == sorted(set(deltas)) and all(delta >= 0 for delta in deltas)
        assert ascends == is_well_formed(body, len(records), dense=False)
        assert (ascends and deltas == list(range(len(records)))) == is_well_formed(body, len(records), dense=True)


@given(RECORDS, st.integers(0, 6))
def test_records_without_key_are_named_up_to_limit(
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]], most: int
) -> None:
    batch = build_batch(records)
    data = unpack(batch, 0, read_header(batch))
    keyless = [index for index, (key, *_) in enumerate(records) if key is None]
    assert keyless[:most] == check_records(data, len(records), most)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=8), st.integers(0, 100), st.integers(0, 12))
def test_times_are_those_of_the_records(timestamps: list[int], timestamp: int, start: int) -> None:
    header, data = batch_of(*timestamps, base_offset=3)
    records = [(record.offset, record.timestamp) for record in read_records(header, data) if record.offset >= start]
    first = next((record for record in records if record[1] >= timestamp), None)
    latest = max(records, key=lambda record: (record[1], -record[0]), default=None)
    assert first == first_record(header, data, timestamp, start, NOTHING_LIMITED)
    assert latest == latest_record(header, data, start, NOTHING_LIMITED)


def test_log_append_time_applies_to_every_record() -> None:
    header, data = batch_of(5, 9, 7, attributes=LOG_APPEND_TIME)
    assert (0, 9) == first_record(header, data, 8, 0, NOTHING_LIMITED)
    assert (1, 9) == latest_record(header, data, 1, NOTHING_LIMITED)


def test_no_more_records_are_looked_at_than_allowed() -> None:
    header, data = batch_of(1, 2, 3)
    for look in (lambda: first_record(header, data, 1, 0, 2), lambda: latest_record(header, data, 0, 2)):
        with pytest.raises(ProtocolError, match="a batch of 3 records, where 2 are looked at"):
            look()


# -- what is cheap to see --------------------------------------------------------------------------------------------------


def has_shape(data: bytes, count: int, codec: int = 0) -> bool:
    try:
        check_shape(memoryview(data), codec, count)
    except ProtocolError:
        return False
    return True


def lengths_fit(data: bytes, count: int) -> bool:
    """The same check, record by record."""
    pos = 0
    try:
        for _ in range(count):
            size, pos = varint(data, pos)
            pos += size
            if size < 0 or pos > len(data):
                return False
    except (IndexError, ProtocolError):
        return False
    return pos == len(data)


# Runs of one size, which are followed in strides, and the records that end them.
SIZES = st.lists(st.tuples(st.sampled_from([0, 1, 55, 56, 57, 120, 121, 122, 9000]), st.integers(1, 40)), max_size=6)


@given(SIZES.filter(bool), st.data())
def test_shape_of_records_follows_their_lengths(sizes: list[tuple[int, int]], data: st.DataObject) -> None:
    records = [(None, b"v" * size, [], 0) for size, times in sizes for _ in range(times)]
    batch = build_batch(records)
    whole = unpack(batch, 0, read_header(batch))
    assert has_shape(whole, len(records))
    for wrong in (len(records) - 1, len(records) + 1):
        assert not has_shape(whole, wrong)
    cut = data.draw(st.integers(1, len(whole)))
    assert not has_shape(whole[:-cut], len(records))
    assert not has_shape(whole + b"\0" * cut, len(records))
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, min(len(changed) - 1, 300)))
        changed[at] = data.draw(st.sampled_from([0, 1, 2, 14, 0x7F, 0x80, 0x81, 0xFF]))
    assert lengths_fit(bytes(changed), len(records)) == has_shape(bytes(changed), len(records))


@given(st.binary(max_size=300), st.integers(1, 40))
def test_any_bytes_have_the_shape_of_their_lengths(data: bytes, count: int) -> None:
    assert lengths_fit(data, count) == has_shape(data, count)


@given(RECORDS, st.integers(1, 4), st.integers(1, 4))
def test_compressed_records_begin_as_their_codec_does(records: list[Any], codec: int, other: int) -> None:
    data = unpack(batch := build_batch(records), 0, read_header(batch))
    packed = compress(codec, data)
    assert has_shape(packed, len(records), codec)
    assert codec == other or SNAPPY in (codec, other) or not has_shape(packed, len(records), other)
    assert not has_shape(packed, len(records), 5)
    for wrong in (data, b"", b"\xff" * 20):
        assert not has_shape(wrong, len(records), other) or (other == SNAPPY and wrong is data)


def test_zstd_may_begin_with_a_skippable_frame() -> None:
    assert has_shape(b"\x5f\x2a\x4d\x18\0\0\0\0" + compress(4, bytes(7)), 1, 4)
    assert not has_shape(b"\x4f\x2a\x4d\x18\0\0\0\0" + compress(4, bytes(7)), 1, 4)


@pytest.mark.parametrize("count", [1, 20, 2000])
def test_raw_snappy_tells_how_much_is_inside(count: int) -> None:
    packed = bytes(cramjam.snappy.compress_raw(bytes(count * SMALLEST_RECORD)))
    assert has_shape(packed, count, SNAPPY)
    assert not has_shape(packed, count + 1, SNAPPY)
    if count < 100:  # otherwise the end is not checked
        assert not has_shape(packed[:-1], count, SNAPPY)


@given(RECORDS)
def test_raw_snappy_of_any_records_has_its_shape(records: list[Any]) -> None:
    data = unpack(batch := build_batch(records), 0, read_header(batch))
    assert has_shape(bytes(cramjam.snappy.compress_raw(data)), len(records), SNAPPY)


@pytest.mark.parametrize("values", [[b"a", b"b"], [b"x" * 100], [b"one", b"two", b"three"] * 50])
def test_plain_records_have_not_the_shape_of_snappy(values: list[bytes]) -> None:
    data = unpack(batch := build_batch([(None, value, [], 0) for value in values]), 0, read_header(batch))
    assert not has_shape(data, len(values), SNAPPY)


@pytest.mark.parametrize(
    ("records", "headers", "complaint"),
    [
        (1, MOST_HEADERS_OF_RECORD, None),
        (1, MOST_HEADERS_OF_RECORD + 1, "a record of 100001 headers"),
        (11, MOST_HEADERS // 10, "a batch of more than 1000000 headers"),
    ],
)
def test_no_more_headers_are_looked_at_than_allowed(records: int, headers: int, complaint: str | None) -> None:
    """The smallest header, of two bytes, repeated."""
    batch = build_batch([(None, None, [("", None)] * headers, 1)])
    record = unpack(batch, 0, read_header(batch))
    offset = record.index(b"\0\0\0\x01\x01") + 2  # attributes, timestamp delta, offset delta, no key, no value
    data = b"".join(record[:offset] + bytes([2 * number]) + record[offset + 1 :] for number in range(records))
    header = read_header(batch)._replace(record_count=records)
    for look in (lambda: check_records(data, records), lambda: list(read_records(header, data))):
        if complaint is None:
            look()
        else:
            with pytest.raises(ProtocolError, match=complaint):
                look()
