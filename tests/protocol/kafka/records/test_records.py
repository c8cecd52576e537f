import contextlib
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.kafka.records import compression
from protocol.kafka.records.batch import HEADER, HEADER_SIZE, LOG_APPEND_TIME, check_crc, read_header
from protocol.kafka.records.records import Record, build_batch, read_records, records, unpack

Given = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]

CODECS = st.integers(0, 4)
FIELD = st.none() | st.binary(max_size=9) | st.sampled_from([bytes(63), bytes(64), bytes(8192)])
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
TIMES = st.integers(0, 2**42) | st.just(-1)
RECORDS = st.lists(st.tuples(FIELD, FIELD, HEADERS, TIMES), max_size=6)


def as_records(given: list[Given], base_offset: int) -> list[Record]:
    return [Record(base_offset + i, time, key, value, headers) for i, (key, value, headers, time) in enumerate(given)]


@given(RECORDS, CODECS, st.integers(0, 2**62))
def test_what_is_built_is_read_back(given: list[Given], codec: int, base_offset: int) -> None:
    data = bytes(build_batch(given, compression=codec, base_offset=base_offset))
    header = read_header(data)
    check_crc(data, 0, header)
    assert (header.size, header.compression, header.record_count) == (len(data), codec, len(given))
    assert header.max_timestamp == max((time for _, _, _, time in given), default=-1)
    assert as_records(given, base_offset) == list(records(data))
    assert as_records(given, base_offset) == list(records(memoryview(b"before" + data + b"after"), 6))


def test_a_cleaned_batch_keeps_its_offsets_and_bounds() -> None:
    data = build_batch(
        [(b"a", None, [], 20), (b"b", b"x", [], 10)],
        base_offset=100,
        offsets=[103, 107],
        last_offset_delta=9,
        base_timestamp=5,
        max_timestamp=99,
    )
    header = read_header(data)
    assert (header.base_offset, header.last_offset, header.base_timestamp, header.max_timestamp) == (100, 109, 5, 99)
    assert [(103, 20), (107, 10)] == [(record.offset, record.timestamp) for record in records(data)]


def test_a_batch_may_be_empty() -> None:
    data = build_batch([], base_offset=5, last_offset_delta=3)
    header = read_header(data)
    assert (header.record_count, header.next_offset, header.max_timestamp, len(data)) == (0, 9, -1, HEADER_SIZE)
    assert list(records(data)) == []


def test_header_names_that_are_no_text_survive() -> None:
    ((name, value),) = next(records(build_batch([(None, None, [("\udcff", b"1")], 0)]))).headers
    assert name.encode("utf-8", "surrogateescape") == b"\xff"
    assert value == b"1"


def test_log_append_time_goes_before_the_records_own() -> None:
    data = build_batch([(None, b"", [], 5), (None, b"", [], 6)], attributes=LOG_APPEND_TIME, max_timestamp=77)
    assert [record.timestamp for record in records(data)] == [77, 77]


def with_body(body: bytes, count: int, codec: int = 0) -> bytes:
    """A batch of ``count`` records with the bytes ``body``."""
    header = read_header(build_batch([]))
    fields = header._replace(batch_length=49 + len(body), record_count=count, attributes=codec)
    return HEADER.pack(*fields) + body


ONE = bytes(build_batch([(b"k", b"v", [("h", b"x")], 0)]))[HEADER_SIZE:]


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (ONE, 2),
        (ONE, 0),
        (ONE, -1),
        (ONE, 2**31 - 1),
        (ONE + b"\x00", 1),
        (ONE[:-1], 1),
        (b"\x01" + ONE[1:], 1),  # a record of -1 bytes
        (b"\xfe\xff\xff\xff\x0f" + ONE[1:], 1),  # of 2 GiB
        (bytes([ONE[0] + 2]) + ONE[1:] + b"\x00", 1),  # longer than its fields
        (bytes([ONE[0] + 2]) + ONE[1:] + ONE, 2),  # and into the next one
        (ONE[:4] + b"\x7e" + ONE[5:], 1),  # a key longer than the record
        (ONE[:8] + b"\x7e" + ONE[9:], 1),  # more headers than the record has room for
        (ONE[:8] + b"\x01" + ONE[9:], 1),  # -1 headers
        (ONE[:9] + b"\x01" + ONE[10:], 1),  # a header without a name
        (b"\xff\xff\xff\xff\xff\x00" + ONE[1:], 1),  # a varint of six bytes
    ],
)
def test_records_that_lie_about_themselves_are_refused(body: bytes, count: int) -> None:
    assert list(records(with_body(ONE, 1))) == [Record(0, -1, b"k", b"v", [("h", b"x")])]
    with pytest.raises(ProtocolError):
        list(records(with_body(body, count)))


def test_false_count_is_refused_before_the_first_record() -> None:
    with pytest.raises(ProtocolError, match="2147483647 records"):
        records(with_body(ONE, 2**31 - 1))


@given(RECORDS, CODECS, st.data())
def test_any_mutation_raises_only_protocol_errors_or_parses(
    given: list[Given], codec: int, data: st.DataObject
) -> None:
    batch = build_batch(given, compression=codec)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(batch) - 1))
        batch[position] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    try:
        list(records(batch, max_size=100_000))
    except ProtocolError:
        pass


@given(st.binary(max_size=60), st.integers(0, 5))
def test_any_records_raise_only_protocol_errors_or_parse(body: bytes, count: int) -> None:
    try:
        list(records(with_body(body, count)))
    except ProtocolError:
        pass


def test_batch_is_decompressed_only_to_the_bound() -> None:
    data = build_batch([(None, bytes(10_000_000), [], 0)], compression=compression.ZSTD)
    assert len(data) < 2000
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="more than 100000 bytes"):
            records(data, max_size=100_000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_codec_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ProtocolError):
        list(records(with_body(ONE, 1, codec=5)))


def test_a_batch_may_come_from_a_generator() -> None:
    stream: Any = ((None, b"%d" % i, [], i) for i in range(3))
    assert [record.value for record in records(build_batch(stream))] == [b"0", b"1", b"2"]


@given(st.lists(st.integers(1, 300), max_size=700), st.integers(0, 100), st.integers(-5, 100_000))
def test_records_before_an_offset_can_be_left_out(steps: list[int], base_offset: int, first_offset: int) -> None:
    """Offsets ascend with gaps, and the sizes of values take one or two bytes."""
    offsets, last = [], base_offset
    for step in steps:
        offsets.append(last)
        last += step
    given = [(None, bytes(step % 90), [], step) for step in steps]
    data = bytes(build_batch(given, base_offset=base_offset, offsets=offsets))
    header = read_header(data)
    wanted = [record for record in records(data) if record.offset >= first_offset]
    assert wanted == list(read_records(header, unpack(data, 0, header), first_offset))


@given(st.binary(max_size=2000), st.integers(0, 500), st.integers(1, 600))
def test_skipped_records_are_bounded_by_their_bytes(data: bytes, count: int, first_offset: int) -> None:
    header = read_header(bytes(build_batch([])))._replace(record_count=count)
    with contextlib.suppress(ProtocolError):
        assert len(list(read_records(header, data, first_offset))) <= count
