"""One segment: walking and locating batches, and indexes that are only hints."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.runtime.open_files import OpenFiles
from broker.storage.segments.index_file import CorruptIndex
from broker.storage.segments.segment import (
    BASE_OFFSET,
    LAST_DELTA,
    LENGTH,
    MAX_TIMESTAMP,
    NEVER,
    CorruptSegment,
    Segment,
    new_segment,
)
from protocol.kafka.records.batch import LOG_OVERHEAD, read_header, stamp
from tests.storage.helpers import FaultyDisk, batch

BASE = 100
# (base offset, records, timestamp) of each batch: offsets 102 and 103 are a gap that compaction has left.
BATCHES = [(100, 2, 1000), (104, 1, 3000), (105, 3, 2000), (108, 1, 3000)]


@pytest.fixture
def files() -> Iterator[OpenFiles]:
    files = OpenFiles(FaultyDisk(), 10)
    yield files
    files.close_all()


@pytest.fixture
def segment(files: OpenFiles, tmp_path: Path) -> Segment:
    """An entry of the indexes for each batch but the first."""
    segment = new_segment(files, str(tmp_path), BASE, 0)
    for base, count, timestamp in BATCHES:
        data = bytearray(batch(*[b"v"] * count, timestamp=timestamp))
        stamp(data, 0, base, 0)
        header = read_header(data)
        segment.log.get().pwrite([data], segment.size)
        segment.appended(segment.size, header[LENGTH] + LOG_OVERHEAD, base + count - 1, timestamp, 0)
    return segment


def positions(segment: Segment) -> list[int]:
    return [position for position, _ in segment.walk(0, segment.size)]


def test_walking_finds_every_batch(segment: Segment) -> None:
    headers = [header for _, header in segment.walk(0, segment.size)]
    assert BATCHES == [(h[BASE_OFFSET], h[LAST_DELTA] + 1, h[MAX_TIMESTAMP]) for h in headers]


def test_walking_stops_at_what_is_no_batch(segment: Segment) -> None:
    with pytest.raises(CorruptSegment):
        list(segment.walk(1, segment.size))
    with pytest.raises(CorruptSegment):
        list(segment.walk(0, segment.size - 1))


@pytest.mark.parametrize(("offset", "number"), [(100, 0), (101, 0), (102, 1), (104, 1), (107, 2), (108, 3), (109, 4)])
def test_offset_is_located_in_its_batch_or_next(segment: Segment, offset: int, number: int) -> None:
    assert [*positions(segment), segment.size][number] == segment.locate(offset, segment.size)


def test_index_entry_beside_batch_is_noticed(segment: Segment) -> None:
    segment.offsets.add(110, 7)
    with pytest.raises(CorruptIndex):
        segment.locate(111, segment.size)


def test_as_many_batches_as_fit(segment: Segment) -> None:
    starts = [*positions(segment), segment.size]
    for size in range(starts[1], segment.size):
        stop, following = segment.end_within(BASE, 0, size, segment.size)
        assert max(start for start in starts if start <= size) == stop
        bases = [base for base, _, _ in BATCHES]
        # After the second batch the offset that follows is the same with or without the gap.
        assert following in (bases[starts.index(stop)], 102)


def test_the_first_batch_with_the_largest_timestamp_counts(segment: Segment) -> None:
    assert (3000, 104) == segment.largest() == segment.check_largest()


def test_indexes_made_again_are_what_they_were(segment: Segment) -> None:
    segment.finish_indexes()
    before = [Path(segment.offsets.cached.path).read_bytes(), Path(segment.times.cached.path).read_bytes()]
    Path(segment.offsets.cached.path).write_bytes(b"junk!junk!junk!!")
    segment.rebuild_indexes(0)
    segment.finish_indexes()
    assert before == [Path(segment.offsets.cached.path).read_bytes(), Path(segment.times.cached.path).read_bytes()]


def test_an_offset_behind_everything_before_a_position(segment: Segment) -> None:
    starts = positions(segment)
    assert 105 == segment.end_offset_at(starts[1])
    assert NEVER == segment.end_offset_at(segment.size)


def test_segment_that_cannot_be_made_leaves_no_file(files: OpenFiles, tmp_path: Path) -> None:
    disk = files.disk
    assert isinstance(disk, FaultyDisk)
    (tmp_path / "00000000000000000007.log").write_bytes(b"left by an attempt that failed")
    disk.fail["truncate", ".log"] = 5
    with pytest.raises(OSError, match="truncate"):
        new_segment(files, str(tmp_path), 7, 0)
    assert [] == list(tmp_path.iterdir())
    disk.fail.clear()
    assert 0 == new_segment(files, str(tmp_path), 7, 0).log.size()
