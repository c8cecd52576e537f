"""The file of a compacted topic: whole, or refused."""

import contextlib
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.errors import StorageError
from broker.pulsar.compaction.compactions import Compacted, CompactedFile, CompactedWriter
from broker.runtime.disk import SystemDisk
from tests.sim.disk import Medium, SimDisk
from tests.sim.world import Killed, World

DISK = SystemDisk()
ENTRIES = [Compacted(3, 2, b"three"), Compacted(10, 1, b""), Compacted(11, 5, b"x" * 300_000), Compacted(40, 1, b"end")]


def written(directory: Path, entries: list[Compacted], horizon: int = 50) -> str:
    path = str(directory / "file.compacted")
    writer = CompactedWriter(DISK, path)
    for entry in entries:
        writer.add(*entry)
    writer.finish(horizon)
    return path


def test_compacted_file_is_readable_from_any_offset(tmp_path: Path) -> None:
    path = written(tmp_path, ENTRIES)
    assert [path] == [str(one) for one in tmp_path.iterdir()]
    file = CompactedFile(DISK, path)
    assert (50, 3, (40, 1), 4) == (file.horizon, file.first, file.last, len(file))
    for offset, first in ((0, 0), (3, 0), (4, 0), (5, 1), (10, 1), (11, 2), (15, 2), (16, 3), (40, 3)):
        assert ENTRIES[first:] == list(file.read(offset, 100, 1_000_000))
    assert [] == list(file.read(41, 100, 1_000_000))
    assert ENTRIES[:2] == list(file.read(0, 2, 1_000_000))
    assert ENTRIES[:2] == list(file.read(0, 100, 1000))
    assert ENTRIES[2:3] == list(file.read(11, 100, 1))


def test_fully_compacted_topic_still_has_file(tmp_path: Path) -> None:
    file = CompactedFile(DISK, written(tmp_path, []))
    assert (50, 50, None, 0) == (file.horizon, file.first, file.last, len(file))
    assert [] == list(file.read(0, 1, 1))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_a_file_cut_short_or_damaged_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    path = Path(written(tmp_path, [ENTRIES[0], ENTRIES[3]]))
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[place] ^= 1 << data.draw(st.integers(0, 7))
    for content in (whole[:place], bytes(damaged)):
        path.write_bytes(content)
        try:
            CompactedFile(DISK, str(path)).read(0, 10, 1000)
        except StorageError:
            continue
        raise AssertionError(f"damaged at {place}")


def test_a_file_that_was_abandoned_leaves_nothing(tmp_path: Path) -> None:
    writer = CompactedWriter(DISK, str(tmp_path / "file.compacted"))
    writer.add(*ENTRIES[0])
    writer.abandon()
    assert [] == list(tmp_path.iterdir())


def test_power_loss_leaves_whole_file_or_none() -> None:
    entries = [*ENTRIES[:2], Compacted(11, 5, b"x" * 3000)]
    found = set()
    for seed in range(100):
        world = World(seed)
        medium = Medium(world)
        process = world.boot()
        process.countdown = seed // 5  # disk operations until the power fails
        with contextlib.suppress(Killed):
            writer = CompactedWriter(SimDisk(process, medium), "/c")
            for entry in entries:
                writer.add(*entry)
            writer.finish(50)
        process.countdown = -1
        world.end_process()
        medium.process_died(process, power=True)
        disk = SimDisk(world.boot(), medium)
        there = disk.exists("/c")
        found.add(there)
        assert not there or entries == list(CompactedFile(disk, "/c").read(0, 10, 1_000_000))
    assert {False, True} == found
