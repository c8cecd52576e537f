"""Verifying the bytes of a segment, and looking for what is behind a bad batch."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.runtime.disk import SystemDisk, SystemFile
from broker.storage.recovery.scan import find_batch, never_written, scan
from protocol.kafka.records.batch import stamp
from tests.storage.helpers import batch


def build(*sizes: int, base: int = 0) -> tuple[bytes, list[int]]:
    """Batches of one record with values of these sizes, and where each begins."""
    out, positions = bytearray(), []
    for number, size in enumerate(sizes):
        view = batch(b"v" * size)
        stamp(view, 0, base + number, 0)
        positions.append(len(out))
        out += view
    return bytes(out), positions


def opened(directory: Path, data: bytes) -> SystemFile:
    (directory / "log").write_bytes(data)
    return SystemDisk().open(f"{directory}/log")


def test_good_batches_are_all_seen(tmp_path: Path) -> None:
    data, positions = build(5, 1_500_000, 5, 700_000, 700_000)
    seen: list[int] = []
    file = opened(tmp_path, data)
    end = scan(file, 0, len(data), 0, base_offset=0, on_batch=lambda position, header: seen.append(position))
    assert end == (len(data), 5, False)
    assert seen == positions


def test_scan_stops_after_about_the_requested_work(tmp_path: Path) -> None:
    data, positions = build(*[400_000] * 10)
    position, offset, bad = scan(opened(tmp_path, data), 0, len(data), 0, base_offset=0, stop_after=500_000)
    assert (500_000 <= position <= 1_500_000, bad) == (True, False)
    assert positions[offset] == position


@given(where=st.floats(0, 0.999), bit=st.integers(0, 7))
def test_any_flipped_bit_ends_it_at_its_batch(tmp_path_factory: pytest.TempPathFactory, where: float, bit: int) -> None:
    data, positions = build(5, 50, 5, 500)
    position = int(where * len(data))
    flipped = bytearray(data)
    flipped[position] ^= 1 << bit
    stop, offset, found = scan(opened(tmp_path_factory.mktemp("scan"), bytes(flipped)), 0, len(data), 0, base_offset=0)
    number = max(n for n, begin in enumerate(positions) if begin <= position)
    assert (stop, offset, found) == (positions[number], number, True)


@given(size=st.integers(0, 1000))
def test_it_ends_at_the_last_whole_batch(tmp_path_factory: pytest.TempPathFactory, size: int) -> None:
    data, positions = build(5, 50, 5, 500)
    ends = [*positions[1:], len(data)]
    size = min(size, len(data))
    stop, offset, bad = scan(opened(tmp_path_factory.mktemp("scan"), data[:size]), 0, size, 0, base_offset=0)
    whole = sum(end <= size for end in ends)
    assert (stop, offset, bad) == ((ends[whole - 1] if whole else 0), whole, size not in (0, *ends))


def test_a_gap_is_allowed_only_where_compaction_was(tmp_path: Path) -> None:
    first, _ = build(5)
    second, _ = build(5, base=10)
    file = opened(tmp_path, first + second)
    end = len(first + second)
    assert scan(file, 0, end, 0, base_offset=0, dense_from=10) == (end, 11, False)
    assert scan(file, 0, end, 0, base_offset=0, dense_from=9) == (len(first), 1, True)
    assert scan(file, 0, end, 0, base_offset=0) == (len(first), 1, True)


def test_falling_offsets_and_unknown_epochs_are_bad(tmp_path: Path) -> None:
    data, _ = build(5, 5, base=3)
    file = opened(tmp_path, data)
    assert scan(file, 0, len(data), 4, base_offset=0, dense_from=99) == (0, 4, True)
    view = memoryview(bytearray(data))
    stamp(view, 0, 3, 2)
    (tmp_path / "other").mkdir()
    file = opened(tmp_path / "other", bytes(view))
    assert scan(file, 0, len(data), 3, base_offset=3, newest_epoch=1) == (0, 3, True)
    assert scan(file, 0, len(data), 3, base_offset=3, newest_epoch=2) == (len(data), 5, False)


def test_a_batch_behind_a_bad_one_is_found(tmp_path: Path) -> None:
    data, positions = build(5, 3_000_000, 50, 5)
    file = opened(tmp_path, data)
    assert [find_batch(file, position + 1, len(data), number) for number, position in enumerate(positions)] == [
        *positions[1:],
        None,
    ]
    assert find_batch(file, positions[1], len(data), 0) == positions[1]


def test_batch_of_earlier_offsets_does_not_follow(tmp_path: Path) -> None:
    """A record may hold anything, for example batches of another log."""
    inner, _ = build(5, 5)
    outer = batch(inner)
    stamp(outer, 0, 1000, 0)
    file = opened(tmp_path, bytes(outer))
    assert find_batch(file, 1, len(outer), 1000) is None


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (bytes(100), True),
        (bytes(5) + b"x" + bytes(100), False),
        (b"x" * 512 + bytes(512) + b"x", True),
        (b"x" * 500 + bytes(512) + b"x" * 100, False),
        (b"x" * 500 + bytes(1024) + b"x" * 100, True),
        (b"x" * 500 + bytes(12 + 511), False),
        (b"x" * 10_000, False),
        (b"x" * 3_000_000 + bytes(1200) + b"x", True),
        (bytes(3_000_000) + b"x", True),
    ],
)
def test_whole_sectors_of_zeros_were_never_written(tmp_path: Path, data: bytes, expected: bool) -> None:
    assert never_written(opened(tmp_path, data), 0, len(data), 0) is expected


def test_hole_until_next_batch_was_never_written(tmp_path: Path) -> None:
    data = b"x" * 510 + bytes(189) + b"x" * 100
    assert never_written(opened(tmp_path, data), 510, 699, 10)
    assert not never_written(opened(tmp_path, data), 510, 700, 10)


@pytest.mark.parametrize(
    ("before", "zeros", "offset", "expected"),
    [
        (500, 12, 0, False),
        (499, 13, 0, True),
        (499, 12, 0, False),
        (300, 212, 0, True),
        (300, 211, 0, False),
        (300, 50, 0, False),
        (504, 8, 114, True),
        (505, 7, 114, False),
        (505, 7, 256, True),
        (504, 7, 114, False),
    ],
)
def test_header_with_zeros_to_sector_end_never_written(
    tmp_path: Path, before: int, zeros: int, offset: int, expected: bool
) -> None:
    data = b"x" * before + bytes(zeros) + b"x" * 700
    assert never_written(opened(tmp_path, data), before, len(data), offset) is expected
