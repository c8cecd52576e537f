import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from protocol.errors import ProtocolError
from protocol.kafka.records.batch import COMPRESSION_MASK, HEADER_SIZE, check_crc, read_header, set_producer, stamp
from protocol.kafka.records.entry import ENTRY, ENTRY_END, build_entry, entry_head, entry_value
from protocol.kafka.records.records import build_batch, records

values = st.binary(max_size=300)
keys = st.none() | st.binary(max_size=200)
counts = st.integers(1, 2**31 - 1)


@given(values, counts, st.integers(-1, 2**62), keys)
def test_an_entry_is_a_batch_with_one_record(value: bytes, messages: int, timestamp: int, key: bytes | None) -> None:
    batch = build_entry(memoryview(value), messages, timestamp, key)
    stamp(batch, 0, 1000, 7)
    header = read_header(batch)
    check_crc(batch, 0, header)
    assert header.is_entry
    assert (1000, 1000 + messages - 1) == (header.base_offset, header.last_offset)
    assert (timestamp, timestamp) == (header.base_timestamp, header.max_timestamp)
    (record,) = records(batch)
    assert (1000, timestamp, key, value, []) == record


@given(values, counts, keys, st.binary(max_size=70))
def test_the_value_is_found_where_it_lies(value: bytes, messages: int, key: bytes | None, before: bytes) -> None:
    batch = build_entry(value, messages, 5, key)
    header = read_header(batch)
    view = before + batch + before
    at, size = entry_value(view, len(before), header)
    assert value == view[at : at + size]
    assert entry_head(value, messages, 5, key) + value + ENTRY_END == batch
    assert at - len(before) == len(entry_head(value, messages, 5, key))
    # The beginning of a large batch is sufficient, too.
    assert (at, size) == entry_value(view[:at], len(before), header)


@given(values, counts, keys, st.data())
def test_a_beginning_that_is_too_short_is_refused(
    value: bytes, messages: int, key: bytes | None, data: st.DataObject
) -> None:
    batch = build_entry(value, messages, 5, key)
    header = read_header(batch)
    at, _ = entry_value(batch, 0, header)
    with pytest.raises(ProtocolError, match=r"ends before its value|not its first offset"):
        entry_value(batch[: data.draw(st.integers(HEADER_SIZE, at - 1))], 0, header)


@given(values, keys, st.data())
def test_changed_bytes_are_read_or_refused(value: bytes, key: bytes | None, data: st.DataObject) -> None:
    batch = build_entry(value, 3, 5, key)
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    try:
        at, size = entry_value(batch, 0, read_header(batch))
    except ProtocolError:
        return
    assert HEADER_SIZE < at <= at + size < len(batch)


@given(st.lists(st.tuples(keys, st.none() | values), min_size=1, max_size=4), st.integers(0, 4))
def test_kafka_batch_with_the_mark_is_not_entry(kept: list[tuple[bytes | None, bytes | None]], codec: int) -> None:
    batch = build_batch([(key, value, [("h", b"")], 5) for key, value in kept], compression=codec)
    header = read_header(batch)
    assert not header.is_entry
    with pytest.raises(ProtocolError, match="not an entry"):
        entry_value(batch, 0, header)
    with pytest.raises(ProtocolError):
        entry_value(batch, 0, header._replace(attributes=header.attributes | ENTRY))


def test_transactional_or_compressed_batch_is_not_entry() -> None:
    batch = build_entry(b"value", 1, 5)
    header = read_header(batch)
    for codec in range(1, COMPRESSION_MASK + 1):
        with pytest.raises(ProtocolError, match="not an entry"):
            entry_value(batch, 0, header._replace(attributes=ENTRY | codec))
    set_producer(batch, 1, 0, 0, transactional=True)
    with pytest.raises(ProtocolError, match="not an entry"):
        entry_value(batch, 0, read_header(batch))


@pytest.mark.parametrize("size", [0, 50, 63, 64, 8180, 8191, 8192, 1 << 20, (1 << 20) + 1])
def test_values_of_every_length_of_their_length(size: int) -> None:
    batch = build_entry(bytes(size), 1, 5)
    assert (len(batch) - len(ENTRY_END) - size, size) == entry_value(batch, 0, read_header(batch))
    assert [bytes(size)] == [record.value for record in records(batch)]


def test_kafka_reader_sees_one_record_and_all_offsets() -> None:
    batch = build_entry(b"as it was sent", 100, 1_700_000_000_000, b"key")
    stamp(batch, 0, 500, 0)
    read = DefaultRecordBatch(bytes(batch))
    assert read.validate_crc()
    assert (500, 99, 1) == (read.base_offset, read.last_offset_delta, len(list(read)))
    assert not (read.is_control_batch or read.is_transactional or read.compression_type)
    (record,) = list(DefaultRecordBatch(bytes(batch)))
    assert (500, 1_700_000_000_000, b"key", b"as it was sent") == (
        record.offset,
        record.timestamp,
        record.key,
        record.value,
    )
