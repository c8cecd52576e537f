"""The simulated disk sometimes loses the data that it may lose, and never loses the data that it must keep."""

import errno
from collections.abc import Iterator

import pytest

from tests.sim.disk import Medium, SimDisk, SimFile
from tests.sim.world import World

SEEDS = range(60)


class Machine:
    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.medium = Medium(self.world)
        self.disk = SimDisk(self.world.boot(), self.medium)
        self.disk.makedirs("/data")
        self.disk.sync_dir("/")

    def die(self, *, power: bool) -> None:
        process = self.world.process
        assert process is not None
        self.medium.process_died(process, power=power)
        self.world.end_process()
        self.disk = SimDisk(self.world.boot(), self.medium)

    def write(self, path: str, data: bytes, offset: int = 0) -> SimFile:
        file = self.disk.open(path, create=True)
        file.pwrite([data], offset)
        return file

    def read(self, path: str) -> bytes | None:
        return self.disk.open(path).pread(1000, 0) if self.disk.exists(path) else None


@pytest.fixture
def machine() -> Machine:
    return Machine(1)


def machines() -> Iterator[Machine]:
    return (Machine(seed) for seed in SEEDS)


def test_a_kill_loses_nothing(machine: Machine) -> None:
    machine.write("/data/a", b"unsynced")
    machine.disk.rename("/data/a", "/data/b")
    machine.die(power=False)
    assert machine.read("/data/b") == b"unsynced"
    assert machine.disk.listdir("/data") == ["b"]


def test_what_was_synced_survives_a_power_loss() -> None:
    for machine in machines():
        file = machine.write("/data/a", b"synced")
        file.sync()
        machine.disk.sync_dir("/data")
        machine.write("/data/a", b"not synced", 6)
        machine.die(power=True)
        assert (machine.read("/data/a") or b"")[:6] == b"synced"


def test_unsynced_data_may_be_lost_torn_or_kept() -> None:
    found = set()
    for machine in machines():
        machine.write("/data/a", b"").sync()
        machine.disk.sync_dir("/data")
        machine.write("/data/a", b"one")
        machine.write("/data/a", b"two", 3)
        machine.die(power=True)
        found.add(machine.read("/data/a"))
    assert {b"", b"one", b"onetwo", b"\0\0\0two"} <= found
    assert any(data not in (b"", b"one", b"onetwo", b"\0\0\0two") for data in found), "no write is ever torn"


def test_unsynced_name_may_vanish_with_its_data() -> None:
    found = set()
    for machine in machines():
        machine.write("/data/a", b"data").sync()
        machine.die(power=True)
        found.add(machine.read("/data/a"))
    assert found == {None, b"data"}


def test_a_rename_happens_wholly_or_not_at_all() -> None:
    found = set()
    for machine in machines():
        machine.write("/data/new", b"new").sync()
        machine.write("/data/old", b"old").sync()
        machine.disk.sync_dir("/data")
        machine.disk.rename("/data/new", "/data/old")
        machine.die(power=True)
        found.add((machine.read("/data/new"), machine.read("/data/old")))
    assert found == {(b"new", b"old"), (None, b"new")}


def test_unsynced_removal_may_be_undone() -> None:
    found = set()
    for machine in machines():
        machine.write("/data/a", b"data").sync()
        machine.disk.sync_dir("/data")
        machine.disk.remove("/data/a")
        machine.die(power=True)
        found.add(machine.read("/data/a"))
    assert found == {None, b"data"}


def test_truncation_removes_all_later_data() -> None:
    for machine in machines():
        file = machine.write("/data/a", b"0123456789")
        file.sync()
        machine.disk.sync_dir("/data")
        file.truncate(2)
        file.pwrite([b"xy"], 2)
        machine.die(power=True)
        assert machine.read("/data/a") in (b"0123456789", b"01", b"01x", b"01xy")


def test_after_a_failed_fsync_the_next_one_lies(machine: Machine) -> None:
    machine.write("/data/a", b"").sync()
    machine.disk.sync_dir("/data")
    file = machine.write("/data/a", b"data")
    machine.medium.faults.sync_error = 1.0
    with pytest.raises(OSError, match="Input/output") as failure:
        file.sync()
    assert failure.value.errno == errno.EIO
    machine.medium.faults.sync_error = 0.0
    file.sync()
    assert machine.read("/data/a") == b"data"
    machine.die(power=True)
    assert machine.read("/data/a") == b""


def test_a_full_disk_takes_a_part(machine: Machine) -> None:
    file = machine.write("/data/a", b"there")
    machine.medium.faults.full = True
    with pytest.raises(OSError, match="No space") as failure:
        file.pwrite([b"0123456789"], 5)
    assert failure.value.errno == errno.ENOSPC
    assert 5 <= file.size() < 15
    assert file.pwrite([b"THERE"], 0) == 5, "what is there may be written again"
    assert machine.disk.free_bytes("/data") == 0


def test_a_flipped_bit_is_one(machine: Machine) -> None:
    machine.write("/data/a", bytes(100)).sync()
    machine.disk.sync_dir("/data")
    assert machine.medium.flip_bit(machine.world.rng("test"), lambda path: path.endswith("a")) == "/data/a"
    data = machine.read("/data/a")
    assert data is not None
    assert sum(byte.bit_count() for byte in data) == 1


def test_the_platter_can_be_looked_at(machine: Machine) -> None:
    file = machine.write("/data/a", b"a promise")
    assert not machine.medium.would_survive("/data", b"promise")
    file.sync()
    assert not machine.medium.would_survive("/data", b"promise"), "its name would not"
    machine.disk.sync_dir("/data")
    assert machine.medium.would_survive("/data", b"promise")


def test_the_dead_do_nothing(machine: Machine) -> None:
    from tests.sim.world import Killed

    file, disk = machine.write("/data/a", b"data"), machine.disk
    machine.die(power=False)
    with pytest.raises(Killed):
        file.pwrite([b"ghost"], 0)
    with pytest.raises(Killed):
        disk.remove("/data/a")
    assert machine.read("/data/a") == b"data"
