import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.frames import crc32c
from protocol.kafka.records import batch
from protocol.kafka.records.batch import (
    BatchHeader,
    CorruptBatch,
    UnsupportedMagic,
    batches,
    check_crc,
    read_header,
    set_times,
    stamp,
)
from protocol.kafka.records.records import build_batch, records

ONE = bytes(build_batch([(b"key", b"value", [], 1000)], base_offset=5))


def test_the_header_is_read() -> None:
    data = build_batch(
        [(b"k", b"v", [], 1000), (b"k", b"v", [], 900)],
        base_offset=7,
        producer_id=12,
        producer_epoch=3,
        base_sequence=99,
        attributes=batch.TRANSACTIONAL,
        partition_leader_epoch=4,
    )
    header = read_header(data)
    assert header == BatchHeader(7, len(data) - 12, 4, 2, header.crc, 16, 1, 1000, 1000, 12, 3, 99, 2)
    assert (header.size, header.last_offset, header.next_offset) == (len(data), 8, 9)
    assert (header.compression, header.is_transactional, header.is_control) == (0, True, False)
    assert (header.has_producer, header.is_log_append_time) == (True, False)
    assert crc32c(data[21:]) == header.crc
    check_crc(data, 0, header)


@given(st.integers(0, 5), st.integers(0, 255))
def test_a_changed_byte_under_the_checksum_is_found(position: int, value: int) -> None:
    data = bytearray(b"before" + ONE)
    at = 6 + batch.CRC_START + position * 9
    changed = data[at] != value
    data[at] = value
    header = read_header(data, 6)
    if changed:
        with pytest.raises(CorruptBatch):
            check_crc(data, 6, header)
    else:
        check_crc(data, 6, header)


def test_offsets_are_stamped_outside_the_checksum() -> None:
    data = bytearray(b"before" + ONE + b"after")
    stamp(memoryview(data), 6, 1 << 40, 9)
    header = read_header(data, 6)
    assert (header.base_offset, header.partition_leader_epoch) == (1 << 40, 9)
    check_crc(data, 6, header)
    stamp(data, 6, 5, -1)
    assert data == b"before" + ONE + b"after"


def test_log_append_time_applies_to_every_record() -> None:
    data = bytearray(b"before") + build_batch([(b"k", b"v", [], 1000), (b"k", b"v", [], 900)], compression=1)
    batch.set_log_append_time(memoryview(data), 6, read_header(data, 6), 5000)
    header = read_header(data, 6)
    check_crc(data, 6, header)
    assert (header.is_log_append_time, header.max_timestamp, header.base_timestamp) == (True, 5000, 1000)
    assert [record.timestamp for record in records(data, 6)] == [5000, 5000]


def test_batches_follow_each_other() -> None:
    two = bytes(build_batch([(None, b"x" * 100, [], 1)], base_offset=6))
    headers = list(batches(memoryview(ONE + two)))
    assert [(0, 5), (len(ONE), 6)] == [(pos, header.base_offset) for pos, header in headers]
    assert list(batches(b"")) == []
    for size in range(1, len(two)):
        with pytest.raises(ProtocolError):
            list(batches(ONE + two[:size]))


def test_each_truncation_is_a_protocol_error() -> None:
    for size in range(len(ONE)):
        with pytest.raises(ProtocolError):
            read_header(ONE[:size])


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48, len(ONE) - 11, 2**31 - 1])
def test_a_length_that_cannot_be_is_refused(length: int) -> None:
    with pytest.raises(ProtocolError):
        read_header(ONE[:8] + struct.pack(">i", length) + ONE[12:])


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_sets_raise_unsupported_magic(magic: int) -> None:
    # offset, size, CRC, magic, attributes, (timestamp), key and value: v0 and v1 are shorter than a batch's header.
    old = struct.pack(">qiIbb", 0, 14, 0, magic, 0) + (bytes(8) if magic else b"") + b"\xff" * 4 + bytes(4)
    for data in (old, old + bytes(100)):
        with pytest.raises(UnsupportedMagic):
            read_header(data)


def test_a_format_from_the_future_is_refused() -> None:
    with pytest.raises(ProtocolError, match="format 3") as caught:
        read_header(ONE[:16] + b"\x03" + ONE[17:])
    assert caught.type is ProtocolError


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1), st.booleans())
def test_who_sends_a_batch_is_written_into_it(producer_id: int, epoch: int, sequence: int, transactional: bool) -> None:
    records_sent: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]] = [(b"k", b"v", [], 7)]
    data = build_batch(records_sent, attributes=0 if transactional else batch.TRANSACTIONAL)
    batch.set_producer(data, producer_id, epoch, sequence, transactional)
    as_built = build_batch(
        records_sent,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=batch.TRANSACTIONAL if transactional else 0,
    )
    assert as_built == data


@given(st.binary(max_size=100))
def test_any_bytes_raise_nothing_but_protocol_errors(data: bytes) -> None:
    try:
        list(batches(data))
    except ProtocolError:
        pass


# Walking batches ------------------------------------------------------------------------------------------------------

LOGS = st.lists(st.integers(1, 4), min_size=1, max_size=5)


@given(LOGS, st.data())
def test_whole_batches_end_after_the_last_whole_batch(sizes: list[int], data: st.DataObject) -> None:
    log, ends = bytearray(), [(0, -1)]
    offset = 100
    for size in sizes:
        log += build_batch([(None, b"value", [], 0)] * size, base_offset=offset)
        offset += size
        ends.append((len(log), offset))
    cut = data.draw(st.integers(0, len(log)))
    expected = max(end for end in ends if end[0] <= cut)
    assert expected == batch.whole_batches(memoryview(log)[:cut])


@given(st.binary(min_size=61, max_size=200))
def test_whole_batches_of_noise_never_go_beyond_it(noise: bytes) -> None:
    try:
        size, _ = batch.whole_batches(memoryview(noise))
    except ProtocolError:
        return
    assert 0 <= size <= len(noise)


def test_messages_of_format_1_are_refused() -> None:
    old = build_batch([(None, b"v", [], 0)])
    old[16] = 1
    with pytest.raises(ProtocolError, match="format 1"):
        batch.whole_batches(memoryview(old))


def test_a_batch_is_moved_in_time() -> None:
    batch = build_batch([(None, b"a", [], 1000), (None, b"b", [], 1500)])
    set_times(batch, 9000)
    check_crc(batch, 0, read_header(batch))
    assert [8500, 9000] == [record.timestamp for record in records(batch)]
    assert 9000 == read_header(batch).max_timestamp
