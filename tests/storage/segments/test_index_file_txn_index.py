"""The index of aborted transactions of one segment."""

from pathlib import Path

import pytest

from broker.runtime.disk import SystemDisk
from broker.runtime.open_files import OpenFiles
from broker.storage.segments.index_file import AbortedTransaction, TransactionIndex
from protocol.frames import crc32c

# Producer, first offset, offset of the marker, last stable offset behind it.
ENTRIES = [AbortedTransaction(1, 0, 9, 5), AbortedTransaction(2, 5, 12, 13), AbortedTransaction(1, 20, 30, 31)]


@pytest.fixture
def index(tmp_path: Path) -> TransactionIndex:
    return TransactionIndex(OpenFiles(SystemDisk(), 5).cached(f"{tmp_path}/00000000000000000000.txnindex"))


def filled(index: TransactionIndex) -> TransactionIndex:
    for entry in ENTRIES:
        index.add(entry)
    return index


def test_an_index_without_entries_has_no_file(index: TransactionIndex) -> None:
    assert (0, []) == (len(index), index.entries())
    index.sync()
    assert not index.collect(0, 100, [])
    assert not Path(index.cached.path).exists()


def test_entries_are_kept_in_kafka_s_format(index: TransactionIndex) -> None:
    assert ENTRIES == filled(index).entries()
    assert 34 * len(ENTRIES) == Path(index.cached.path).stat().st_size
    assert 3 == len(TransactionIndex(index.cached)), "an index that is opened again counts what is in the file"


@pytest.mark.parametrize(
    ("offset", "end", "producers", "enough"),
    [
        (0, 4, [1], True),  # the first marker leaves nothing unstable before 5
        (0, 10, [1, 2], True),
        (10, 12, [2], True),
        (13, 20, [], True),
        (13, 40, [1], False),  # a later segment may have more
        (31, 40, [], False),
    ],
)
def test_what_has_records_in_a_range_is_collected(
    index: TransactionIndex, offset: int, end: int, producers: list[int], enough: bool
) -> None:
    collected: list[AbortedTransaction] = []
    assert enough == filled(index).collect(offset, end, collected)
    assert producers == [entry.producer_id for entry in collected]


@pytest.mark.parametrize(("offset", "left"), [(0, 0), (9, 0), (10, 1), (30, 2), (31, 3)])
def test_entries_are_removed_by_offset_of_marker(index: TransactionIndex, offset: int, left: int) -> None:
    filled(index).truncate_from(offset)
    assert (left, ENTRIES[:left]) == (len(index), index.entries())


def test_the_checksum_is_that_of_the_file(index: TransactionIndex) -> None:
    content = Path(filled(index).cached.path).read_bytes()
    for count in range(4):
        assert crc32c(content[: 34 * count]) == index.checksum(count) == index.read_checksum(count)
    assert -1 == index.read_checksum(4)


def test_a_file_that_is_missing_has_no_checksum(index: TransactionIndex) -> None:
    assert -1 == index.read_checksum(1)


def test_entries_can_be_replaced(index: TransactionIndex) -> None:
    filled(index).replace(ENTRIES[1:])
    assert ENTRIES[1:] == index.entries()
    assert index.read_checksum(2) == index.checksum(2)
