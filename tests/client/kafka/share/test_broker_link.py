"""Batches and acquired ranges to records."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.kafka.share.acquired import AcquiredRange, RecordState
from broker.client.kafka.share.broker_link import RecordReader
from broker.client.kafka.share.record import ShareRecord
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import CONTROL
from protocol.kafka.records.records import build_batch


class Owner:
    """Notes the calls of records to their consumer."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, object]] = []

    def decide(self, record: ShareRecord, decision: int) -> None:
        self.heard.append((record.offset, decision))

    def ask_renewal(self, record: ShareRecord) -> None:
        self.heard.append((record.offset, "renew"))


def acquired(first: int, last: int, count: int = 1) -> AcquiredRange:
    return AcquiredRange("jobs", (UUID(int=1), 3), first, last, count, 30.0)


def batch(base: int, count: int, **how: int) -> bytes:
    rows = [(b"k%d" % n, b"v%d" % n, [("h", b"x")], 1000 + n) for n in range(base, base + count)]
    return bytes(build_batch(rows, base_offset=base, **how))


def test_record_has_all_fields_and_passes_decisions_on() -> None:
    owner = Owner()
    (record,) = RecordReader(owner).read(memoryview(batch(5, 1)), [acquired(5, 5, 4)])
    assert (record.topic, record.partition, record.offset, record.timestamp) == ("jobs", 3, 5, 1005)
    assert (record.key, record.value, record.headers, record.delivery_count) == (b"k5", b"v5", [("h", b"x")], 4)
    assert repr(record) == "ShareRecord(jobs-3@5, key=b'k5', value=b'v5', delivery_count=4)"
    record.accept()
    record.release()
    record.reject()
    record.renew()
    assert owner.heard == [(5, 1), (5, 2), (5, 3), (5, "renew")]


def test_only_acquired_records_come_and_gaps_are_marked() -> None:
    data = batch(0, 3) + batch(3, 1, attributes=CONTROL) + batch(10, 4, compression=1)
    ranges = [acquired(1, 3), acquired(8, 9), acquired(11, 12, 2)]
    records = RecordReader(Owner()).read(memoryview(data), ranges)
    assert [(record.offset, record.delivery_count) for record in records] == [(1, 1), (2, 1), (11, 2), (12, 2)]
    states = [[range_.state(offset) for offset in range_] for range_ in ranges]
    buffered, gap = RecordState.BUFFERED, RecordState.PENDING_GAP
    assert states == [[buffered, buffered, gap], [gap, gap], [buffered, buffered]]


def test_cut_off_end_of_a_batch_is_ignored() -> None:
    data = batch(0, 2) + batch(2, 2)
    ranges = [acquired(0, 3)]
    assert [record.offset for record in RecordReader(Owner()).read(memoryview(data[:-1]), ranges)] == [0, 1]


def test_batch_with_wrong_checksum_is_an_error() -> None:
    data = bytearray(batch(0, 2))
    data[-1] ^= 1
    with pytest.raises(ProtocolError, match="checksum"):
        RecordReader(Owner()).read(memoryview(data), [acquired(0, 1)])


def test_repeated_batch_is_read_from_the_last_position() -> None:
    data = memoryview(batch(0, 1000, compression=1))
    reader, offsets, ranges = RecordReader(Owner()), [], []
    for first in (*range(0, 990, 9), 5):  # the last range was released, and comes again
        ranges.append(acquired(first, first + 8))
        offsets += [record.offset for record in reader.read(data, ranges[-1:])]
    assert offsets == [*range(990), *range(5, 14)]
    assert all(range_.state(offset) is RecordState.BUFFERED for range_ in ranges for offset in range_)


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    kept=st.sets(st.integers(0, 30)),
    cuts=st.lists(st.integers(0, 30), min_size=2, max_size=8, unique=True),
    one_by_one=st.booleans(),
)
def test_every_acquired_record_comes_exactly_once(
    sizes: list[int], kept: set[int], cuts: list[int], one_by_one: bool
) -> None:
    data, base, there = b"", 0, set()
    for size in sizes:  # compaction keeps some records of each batch
        offsets = [offset for offset in range(base, base + size) if offset in kept] or [base]
        rows = [(None, b"%d" % offset, [], 0) for offset in offsets]
        data += bytes(build_batch(rows, base_offset=base, offsets=offsets, last_offset_delta=size - 1))
        there |= set(offsets)
        base += size
    cuts.sort()
    ranges = [acquired(cuts[n], cuts[n + 1] - 1) for n in range(0, len(cuts) - 1, 2)]
    wanted = {offset for range_ in ranges for offset in range_}
    reader = RecordReader(Owner())
    if one_by_one:
        records = [record for range_ in ranges for record in reader.read(memoryview(data), [range_])]
    else:
        records = reader.read(memoryview(data), ranges)
    assert [record.offset for record in records] == sorted(there & wanted)
    for range_ in ranges:
        for offset in range_:
            assert (range_.state(offset) is RecordState.BUFFERED) is (offset in there)
