"""Both indexes, against a plain list of their entries."""

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.runtime.disk import SystemDisk
from broker.runtime.open_files import OpenFiles
from broker.storage.segments.index_file import OffsetIndex, TimeIndex


class SmallOffsetIndex(OffsetIndex):
    PAGE_ENTRIES = 4  # pages are soon full


class SmallTimeIndex(TimeIndex):
    PAGE_ENTRIES = 4


def small(directory: Path, base: int = 100) -> SmallOffsetIndex:
    return SmallOffsetIndex(OpenFiles(SystemDisk(), 5).cached(f"{directory}/i"), base)


steps = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 100)), max_size=40)


@settings(max_examples=100)
@given(steps=steps, wanted=st.lists(st.integers(0, 250), min_size=1), flush=st.booleans(), reopen=st.booleans())
def test_the_entry_before_is_found(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]], wanted: list[int], flush: bool, reopen: bool
) -> None:
    directory = tmp_path_factory.mktemp("index")
    index = small(directory)
    entries: list[tuple[int, int]] = []
    offset, position = 100, 0
    for more, size in steps:
        offset, position = offset + more, position + size
        index.add(offset, position)
        entries.append((offset, position))
    if flush or reopen:
        index.flush()
    if reopen:
        index = small(directory)
    assert len(index) == len(entries)
    for number in wanted:
        expected = max((e for e in entries if e[0] <= 100 + number), default=None)
        assert index.batch_before(100 + number) == expected
        by_position = max((e[1] for e in entries if e[1] <= number * 10), default=0)
        assert index.position_before(number * 10) == by_position
        assert index.count_below(number * 10, 1) == sum(e[1] < number * 10 for e in entries) or not (flush or reopen)


@settings(max_examples=100)
@given(steps=steps, durable=st.integers(0, 40), lost=st.sets(st.integers(0, 10)), wanted=st.integers(0, 5000))
def test_lost_pages_hide_no_entry_before_them(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]], durable: int, lost: set[int], wanted: int
) -> None:
    """The first entries are durable; of the others some pages are zero, and later ones are there."""
    directory = tmp_path_factory.mktemp("index")
    index = small(directory)
    offset, position, entries = 100, 0, []
    for more, size in steps:
        offset, position = offset + more, position + size
        index.add(offset, position)
        entries.append(position)
    index.flush()
    data = bytearray((directory / "i").read_bytes())
    for number in lost:
        for entry in range(max(durable, number * 4), min(len(entries), number * 4 + 4)):
            data[entry * 8 : entry * 8 + 8] = bytes(8)
    (directory / "i").write_bytes(data)
    end = min(wanted, entries[durable - 1] + 1 if 0 < durable <= len(entries) else wanted)
    whole = next((n for n in range(len(entries)) if data[n * 8 : n * 8 + 8] == bytes(8)), len(entries))
    assert small(directory).rising_below(end, 1) in (
        (sum(p < end for p in entries[:whole]),) if whole else (0, 1)  # zeros may be the first entry
    )


def test_cut_entries_stay_in_file_but_never_found(tmp_path: Path) -> None:
    index = small(tmp_path)
    for number in range(1, 11):
        index.add(100 + number, number * 100)
    index.flush()
    size = (tmp_path / "i").stat().st_size
    index.truncate(6)
    assert size == (tmp_path / "i").stat().st_size
    assert (6, (106, 600), (106, 600)) == (len(index), index.batch_before(109), index.batch_before(106))
    assert 600 == index.position_before(5000)
    index.add(120, 2000)
    assert ((106, 600), (120, 2000)) == (index.batch_before(119), index.batch_before(120))
    index.flush()
    assert size // 10 * 7 == (tmp_path / "i").stat().st_size
    assert (120, 2000) == small(tmp_path).batch_before(130)


@settings(max_examples=50)
@given(steps=steps, keep=st.integers(0, 40), more=steps)
def test_cut_entries_are_gone_and_more_may_follow(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]], keep: int, more: list[tuple[int, int]]
) -> None:
    index = small(tmp_path_factory.mktemp("index"), 0)
    entries: list[tuple[int, int]] = []

    def add(rows: list[tuple[int, int]]) -> None:
        offset, position = entries[-1] if entries else (0, 0)
        for further, size in rows:
            offset, position = offset + further, position + size
            index.add(offset, position)
            entries.append((offset, position))

    add(steps)
    keep = min(keep, len(entries))
    index.truncate(keep)
    del entries[keep:]
    add(more)
    index.flush()
    assert len(index) == len(entries)
    for entry in entries:
        assert index.batch_before(entry[0]) == entry


def test_index_files_are_laid_out_as_kafka_reads(tmp_path: Path) -> None:
    files = OpenFiles(SystemDisk(), 5)
    offsets, times = OffsetIndex(files.cached(f"{tmp_path}/o"), 1000), TimeIndex(files.cached(f"{tmp_path}/t"), 1000)
    offsets.add(1003, 4200)
    offsets.add(1009, 9000)
    times.add(77, 1002)
    times.add(77, 1005)
    times.add(76, 1006)
    times.add(2**40, 1009)
    offsets.flush()
    times.flush()
    assert (tmp_path / "o").read_bytes() == struct.pack(">iiii", 3, 4200, 9, 9000)
    assert (tmp_path / "t").read_bytes() == struct.pack(">qiqi", 77, 2, 2**40, 9)


def test_the_latest_entry_not_after_a_time(tmp_path: Path) -> None:
    times = SmallTimeIndex(OpenFiles(SystemDisk(), 5).cached(f"{tmp_path}/t"), 10)
    assert times.largest() == (-1, 10)
    for number in range(11):
        times.add(number * 10, 10 + number)
    found = {time: times.at_or_before(time) for time in (-1, 0, 9, 10, 55, 100, 999)}
    assert found == {-1: None, 0: (0, 10), 9: (0, 10), 10: (10, 11), 55: (50, 15), 100: (100, 20), 999: (100, 20)}
    assert times.largest() == (100, 20)


def test_memory_does_not_grow_with_the_index(tmp_path: Path) -> None:
    index = small(tmp_path, 0)
    for number in range(1, 1000):
        index.add(number, number)
    assert len(index._tail[0]) < 4
    assert (tmp_path / "i").stat().st_size >= 8 * 996


@given(data=st.binary(max_size=120), key=st.integers(-5, 2**31), column=st.sampled_from([0, 1]))
def test_damaged_file_never_answers_beyond_the_request(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, key: int, column: int
) -> None:
    directory = tmp_path_factory.mktemp("index")
    (directory / "i").write_bytes(data)
    found = small(directory, 0).floor(key, column)
    assert found is None or found[column] <= key


def test_empty_index_has_no_file_until_finished(tmp_path: Path) -> None:
    index = small(tmp_path)
    assert (len(index), index.batch_before(5), index.last()) == (0, None, None)
    index.truncate(0)
    assert not (tmp_path / "i").exists()
    index.flush()
    assert (tmp_path / "i").read_bytes() == b""
