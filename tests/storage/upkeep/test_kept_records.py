"""When a cleaning may drop the records of an aborted transaction, and when the marker after them. Which records of any batches it
keeps: those that a model keeps, which reads every record."""

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.storage.log.log_config import LogConfig
from broker.storage.segments.index_file import AbortedTransaction
from broker.storage.upkeep.kept_records import CleanedTransactions, KeptRecords
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import (
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    check_crc,
    read_header,
    set_log_append_time,
)
from protocol.kafka.records.records import Record, build_batch, build_marker, records
from tests.storage.helpers import NOW_MS, batch, garbage, lying


def data(offset: int, producer_id: int, *, transactional: bool = True) -> BatchHeader:
    view = batch(b"v", producer=(producer_id, 0, 0), attributes=TRANSACTIONAL if transactional else 0)
    return read_header(view)._replace(base_offset=offset)


def marker(offset: int, producer_id: int) -> BatchHeader:
    view = build_marker(producer_id, 0, commit=False, coordinator_epoch=0, timestamp_ms=NOW_MS)
    return read_header(view)._replace(base_offset=offset)


def test_only_producer_records_within_aborted_range_are_aborted() -> None:
    cleaned = CleanedTransactions([AbortedTransaction(7, 10, 19, 10), AbortedTransaction(7, 30, 39, 30)])
    aborted = [offset for offset in (9, 10, 19, 20, 30, 39, 40) if cleaned.is_aborted(data(offset, 7))]
    assert aborted == [10, 19, 30, 39]
    assert not cleaned.is_aborted(data(15, 8))
    assert not cleaned.is_aborted(data(15, 7, transactional=False))
    assert not cleaned.is_aborted(marker(15, 7))


def test_marker_expires_once_its_transaction_has_no_records() -> None:
    cleaned = CleanedTransactions([])
    for header in (data(1, 7), data(2, 8), marker(3, 7), marker(4, 7), marker(5, 8), data(6, 9, transactional=False)):
        cleaned.saw(header)
    assert [offset for offset in (3, 4, 5) if cleaned.is_over(offset)] == [4]


def test_records_outside_of_transaction_do_not_hold_marker() -> None:
    cleaned = CleanedTransactions([])
    cleaned.saw(data(1, 7, transactional=False))
    cleaned.saw(marker(2, 7))
    assert cleaned.is_over(2)


CONFIG = LogConfig()
HORIZON_MS = NOW_MS + CONFIG.delete_retention_ms


@attrs.frozen
class Stored:
    """A batch of a log, and what a cleaning is told about it. ``horizon_ms``: when its tombstones may be removed."""

    rows: Sequence[tuple[bytes | None, bytes | None, int, int]]  # key, value, timestamp, gap before it
    codec: int = 0
    kind: str = "plain"  # or "garbage", "append time", "aborted", "marker"
    horizon_ms: int | None = None
    is_last_of_producer: bool = False
    gap_after: int = 0

    def build(self, base: int) -> memoryview:
        if self.kind == "marker":
            return moved(memoryview(build_marker(7, 0, commit=True, coordinator_epoch=0, timestamp_ms=NOW_MS)), base)
        offsets, offset = [], base
        for _, _, _, gap in self.rows:
            offsets.append(offset + gap)
            offset += gap + 1
        last_offset_delta = max(0, offset - 1 - base + self.gap_after)
        producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0} if self.is_last_of_producer else {}
        if self.kind == "aborted":
            producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "attributes": TRANSACTIONAL}
        view = build_batch(
            [(key, value, [("h", key)] if value else [], time) for key, value, time, _ in self.rows],
            base_offset=base,
            offsets=offsets,
            last_offset_delta=last_offset_delta,
            compression=self.codec,
            **producer,  # type: ignore[arg-type]
        )
        if self.kind == "append time":
            set_log_append_time(view, 0, read_header(view), NOW_MS - 1)
        if self.kind == "garbage" and self.rows:
            return lying(memoryview(view), lambda data: garbage(data, self.codec))
        if self.horizon_ms is not None and self.kind != "append time":
            header = read_header(view)
            view = build_batch(
                [(r.key, r.value, r.headers, r.timestamp) for r in records(view)],
                base_offset=base,
                offsets=offsets,
                last_offset_delta=last_offset_delta,
                compression=self.codec,
                base_timestamp=self.horizon_ms,
                **producer | {"attributes": header.attributes & ~7 | DELETE_HORIZON},  # type: ignore[arg-type]
            )
        return memoryview(view)


def moved(view: memoryview, base: int) -> memoryview:
    """The base offset is not in the checksum."""
    view = memoryview(bytearray(view))
    view[:8] = base.to_bytes(8, "big")
    return view


def is_horizon(header: BatchHeader) -> bool:
    return header.attributes & DELETE_HORIZON != 0


def read(view: memoryview) -> list[Record] | None:
    """None for records that cannot be read."""
    try:
        return list(records(view))
    except ProtocolError:
        return None


class Model:
    """Reads every record, and keeps the last one of each key. The state is that of one cleaning."""

    def __init__(self, dirty: int, end: int, last_of_producers: set[int], aborted: set[int]) -> None:
        self.dirty, self.end, self.last_of_producers, self.aborted = dirty, end, last_of_producers, aborted
        self.latest: dict[bytes, int] = {}
        self.markers_over: set[int] = set()

    def learn(self, view: memoryview) -> None:
        header, found = read_header(view), read(view)
        if found is None or header.is_control or header.base_offset in self.aborted:
            return
        for record in found:
            if record.key is not None and self.dirty <= record.offset < self.end:
                self.latest[record.key] = record.offset

    def left(self, view: memoryview) -> tuple[list[Record], int | None] | None:
        """The records that stay, and the time when the tombstones among them may be removed; None if the batch goes."""
        header, found = read_header(view), read(view)
        horizon = header.base_timestamp if is_horizon(header) else None
        if found is None or header.base_offset >= self.end:
            return found or [], horizon
        if header.is_control:
            return found, NOW_MS + CONFIG.delete_retention_ms if header.base_offset in self.markers_over else None
        stay = [] if header.base_offset in self.aborted else [one for one in found if self.stays(one, horizon)]
        if not stay and header.last_offset not in self.last_of_producers:
            return None
        has_tombstone = any(record.value is None for record in stay)
        if len(stay) == len(found) > 0 and horizon is not None:
            return stay, horizon  # unchanged
        return stay, (horizon or HORIZON_MS) if has_tombstone else None

    def stays(self, record: Record, horizon: int | None) -> bool:
        if record.key is None or self.latest.get(record.key, -1) > record.offset:
            return False
        return record.value is not None or horizon is None or horizon > NOW_MS


ROWS = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b", b"c", b"d", b"long" * 20, b"long" * 21, None]),
        st.none() | st.binary(max_size=3) | st.binary(min_size=120, max_size=300),
        st.sampled_from([NOW_MS - 1, NOW_MS, 5, NOW_MS + 100_000]),
        st.sampled_from([0, 0, 0, 1, 200]),
    ),
    max_size=6,
)
BATCHES = st.lists(
    st.builds(
        Stored,
        ROWS,
        codec=st.integers(0, 4),
        kind=st.sampled_from(["plain", "plain", "plain", "garbage", "append time", "aborted", "marker"]),
        horizon_ms=st.sampled_from([None, None, NOW_MS, NOW_MS + 1]),
        is_last_of_producer=st.booleans(),
        gap_after=st.sampled_from([0, 0, 3]),
    ),
    max_size=12,
)


@settings(max_examples=200)
@given(BATCHES, st.integers(0, 12), st.integers(0, 12))
@example([Stored([(b"a", b"", 5, 0)]), Stored([(b"a", None, 5, 0)], horizon_ms=NOW_MS)], 0, 2)
def test_cleaning_keeps_what_a_model_keeps_that_reads_every_record(
    log: list[Stored], cleaned: int, learnt: int
) -> None:
    """``cleaned`` batches were cleaned before, of the others as many as are ``learnt`` fit the memory."""
    views, next_offset = [], 0
    for stored in log:
        views.append(stored.build(next_offset))
        next_offset = read_header(views[-1]).next_offset
    headers = [read_header(view) for view in views]
    of_log = list(zip(log, headers, strict=True))
    aborted = {header.base_offset for stored, header in of_log if stored.kind == "aborted"}
    last = {header.last_offset for stored, header in of_log if stored.is_last_of_producer}

    kept = KeptRecords(CONFIG, NOW_MS)
    kept.transactions = CleanedTransactions([AbortedTransaction(7, base, base, base) for base in aborted])
    kept.last_of_producers = last
    dirty = kept.end_offset = headers[cleaned].base_offset if cleaned < len(views) else next_offset
    dirty_ones = list(zip(views, headers, strict=True))[cleaned : cleaned + learnt]
    for view, header in dirty_ones:
        kept.learn(view, header)
    model = Model(dirty, kept.end_offset, last, aborted)
    for view, _ in dirty_ones:
        model.learn(view)

    open_transaction = False
    for view, header in zip(views, headers, strict=True):
        if header.is_control and not open_transaction:
            model.markers_over.add(header.base_offset)
        open_transaction = not header.is_control and (open_transaction or header.is_transactional)
        assert_alike(model.left(view), view, kept.what_stays(view, header))
    unreadable = {header.base_offset for view, header in zip(views, headers, strict=True) if read(view) is None}
    assert kept.unread == {offset for offset in unreadable if offset < kept.end_offset}


def assert_alike(expected: tuple[list[Record], int | None] | None, view: memoryview, actual: Any) -> None:
    if expected is None or actual is None:
        assert expected is actual is None
        return
    before, after = read_header(view), read_header(actual)
    check_crc(actual, 0, after)
    assert (expected[0], expected[1]) == (read(actual) or [], after.base_timestamp if is_horizon(after) else None)
    if after.record_count == before.record_count and is_horizon(after) == is_horizon(before):
        assert actual is view or not after.record_count
    same = "base_offset last_offset_delta producer_id producer_epoch base_sequence partition_leader_epoch".split()
    assert [getattr(before, name) for name in same] == [getattr(after, name) for name in same]
    assert before.compression == after.compression or not after.record_count
    if actual is not view and expected[0] and not before.attributes & LOG_APPEND_TIME:
        assert max(record.timestamp for record in expected[0]) == after.max_timestamp


@pytest.mark.parametrize("value", [b"v", None])
def test_times_at_the_end_of_their_range_do_not_end_the_cleaning(value: bytes | None) -> None:
    """Java's numbers begin again there. Such a batch can come while ``message.timestamp`` is not bounded."""
    view = build_batch([(b"a", value, [], 0), (b"b", value, [], 10)], base_timestamp=0, max_timestamp=0)
    late = lying(memoryview(view), base_timestamp=2**63 - 1)
    kept = KeptRecords(CONFIG, NOW_MS)
    for offset, one in ((0, late), (2, moved(batch(b"new", keys=[b"a"]), 2))):
        kept.learn(one, read_header(one)._replace(base_offset=offset))
    left = kept.what_stays(late, read_header(late))
    assert left is not None
    assert [b"b"] == [record.key for record in records(left)]


def test_batch_with_an_offset_beyond_its_last_one_stays_whole() -> None:
    """It came when nobody looked inside. The record at its offset is another batch's."""
    rows = [(b"a", b"1", (), NOW_MS), (b"b", b"2", (), NOW_MS)]
    wrong = memoryview(build_batch(rows, offsets=[0, 3], last_offset_delta=1))
    others = [moved(batch(b"3", b"4", keys=[b"b", b"c"]), 2), moved(batch(b"5", keys=[b"c"]), 4)]
    kept = KeptRecords(CONFIG, NOW_MS)
    for view in (wrong, *others):
        kept.learn(view, read_header(view))
    left = [kept.what_stays(view, read_header(view)) for view in (wrong, *others)]
    assert left[0] is wrong
    assert [[b"b"], [b"c"]] == [[record.key for record in records(view)] for view in left[1:] if view is not None]
    assert {0} == kept.unread
