"""What a machine has shipped is there on the next one, whatever happened to files, names and rows."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.sim.journal import Outcome
from tests.storage.journal.helpers import Machine, Machines


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


def write(machine: Machine, path: str, data: bytes, position: int = 0, *, sync: bool = True) -> None:
    machine.inner.makedirs(f"{machine.directory}/{path}".rpartition("/")[0])
    file = machine.disk.open(f"{machine.directory}/{path}", create=True)
    file.pwrite([data], position)
    if sync:
        file.sync()
    file.close()


def test_synced_bytes_are_on_the_next_machine(machines: Machines) -> None:
    first = machines.next()
    write(first, "t-0/a.log", b"abc")
    write(first, "t-0/a.log", b"defg" * 100, 3)
    assert machines.next().files() == {"t-0/a.log": b"abc" + b"defg" * 100}


def test_bytes_that_were_not_synced_are_lost(machines: Machines) -> None:
    first = machines.next()
    write(first, "a", b"abc")
    write(first, "a", b"def", 3, sync=False)
    assert machines.next().files() == {"a": b"abc"}


def test_names_are_shipped_in_order(machines: Machines) -> None:
    first = machines.next()
    disk, root = first.disk, first.directory
    write(first, "t-0/a.tmp", b"new")
    write(first, "t-0/a", b"old")
    disk.rename(f"{root}/t-0/a.tmp", f"{root}/t-0/a")
    disk.sync_dir(root)
    assert machines.next().files() == {"t-0/a": b"new"}


def test_what_only_needs_its_order_waits_for_what_comes_next(machines: Machines) -> None:
    first = machines.next()
    snapshot = f"t-0/{7:020d}.snapshot"
    write(first, snapshot, b"producers")
    write(first, "t-0/a", b"abc", sync=False)
    first.disk.sync_dir(f"{first.directory}/t-0")
    assert {} == machines.table.rows
    write(first, "recovery-points", b"7")
    assert 1 == len(machines.table.rows)
    assert machines.next().files() == {snapshot: b"producers", "t-0/a": b"", "recovery-points": b"7"}


def test_directory_moves_with_its_files(machines: Machines) -> None:
    first = machines.next()
    disk, root = first.disk, first.directory
    write(first, "t-0/a", b"abc")
    disk.rename(f"{root}/t-0", f"{root}/t-0.deleted")
    disk.sync_dir(root)
    write(first, "t-0/a", b"again")
    assert machines.next().files() == {"t-0.deleted/a": b"abc", "t-0/a": b"again"}


def test_indexes_are_not_shipped(machines: Machines) -> None:
    first = machines.next()
    for name in (f"{0:020d}.index", f"{0:020d}.timeindex.deleted", f"{0:020d}.txnindex"):
        write(first, f"t-0/{name}", b"abc")
    assert machines.next().files() == {f"t-0/{0:020d}.txnindex": b"abc"}


def test_other_directories_are_not_shipped(machines: Machines, tmp_path: Path) -> None:
    first = machines.next()
    with contextlib.closing(first.disk.open(f"{tmp_path}/elsewhere", create=True)) as file:
        file.pwrite([b"abc"], 0)
        file.sync()
    first.disk.sync_dir(str(tmp_path))
    assert machines.next().files() == {}
    assert first.shipper.table.get("elsewhere") is None


def test_a_file_that_is_elsewhere_is_forgotten(machines: Machines) -> None:
    first = machines.next()
    write(first, "t-0/a.log", b"abc")
    path = f"{first.directory}/t-0/a.log"
    assert first.disk.is_shipped(path)
    first.disk.forget([path])
    assert first.files() == {"t-0/a.log": b"abc"}
    assert machines.next().files() == {}


def test_unshipped_bytes_are_known(machines: Machines) -> None:
    first = machines.next()
    write(first, "a", b"abc", sync=False)
    assert not first.disk.is_shipped(f"{first.directory}/a")
    write(first, "a", b"d", 3)
    assert first.disk.is_shipped(f"{first.directory}/a")


def test_a_fenced_machine_can_sync_nothing(machines: Machines) -> None:
    first = machines.next()
    write(first, "a", b"abc")
    machines.next()
    with pytest.raises(OSError, match="replaced"):
        write(first, "a", b"def")
    with pytest.raises(OSError):
        first.disk.sync_dir(first.directory)
    assert machines.next().files() == {"a": b"abc"}


class ShippedFiles(RuleBasedStateMachine):
    """Files, names, syncs, take-overs, and the journal being tidied, with outcomes that are not known.

    ``synced`` has each file as it was last synced, if nothing has happened to it since.
    """

    names = st.sampled_from(["t-0/a", "t-0/b", "t-1/a", "c", "d.tmp"])

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.machines = Machines(Path(self.directory.name))
        self.outcomes: Iterator[Outcome] = iter(())
        self.machines.table.outcomes = lambda: next(self.outcomes, Outcome.STORED)
        self.machine = self.machines.next()
        self.synced: dict[str, bytes] = {}

    def path(self, name: str) -> str:
        return f"{self.machine.directory}/{name}"

    @rule(name=names, data=st.binary(min_size=1, max_size=700), position=st.integers(0, 600), sync=st.booleans())
    def write(self, name: str, data: bytes, position: int, sync: bool) -> None:
        write(self.machine, name, data, position, sync=sync)
        self._noted(name, sync)

    @rule(name=names, size=st.integers(0, 700), sync=st.booleans())
    def truncate(self, name: str, size: int, sync: bool) -> None:
        if not self.machine.inner.exists(self.path(name)):
            return
        file = self.machine.disk.open(self.path(name))
        file.truncate(size)
        if sync:
            file.sync()
        self._noted(name, sync)

    def _noted(self, name: str, sync: bool) -> None:
        self.synced.pop(name, None)
        if sync:
            self.synced[name] = Path(self.path(name)).read_bytes()

    @rule(old=names, new=names)
    def rename(self, old: str, new: str) -> None:
        if old == new or not self.machine.inner.exists(self.path(old)):
            return
        self.machine.inner.makedirs(self.path(new).rpartition("/")[0])
        self.machine.disk.rename(self.path(old), self.path(new))
        self.machine.disk.sync_dir(self.machine.directory)
        content = self.synced.pop(old, None)
        self.synced.pop(new, None)
        if content is not None:
            self.synced[new] = content

    @rule(name=names)
    def remove(self, name: str) -> None:
        if self.machine.inner.exists(self.path(name)):
            self.machine.disk.remove(self.path(name))
            self.machine.disk.sync_dir(self.machine.directory)
            self.synced.pop(name, None)

    @rule(outcomes=st.lists(st.sampled_from(Outcome), max_size=4))
    def have_outcomes(self, outcomes: list[Outcome]) -> None:
        self.outcomes = iter(outcomes)

    @rule()
    def tidy(self) -> None:
        self.machine.shipper.tidy(lambda path: self.machine.inner.open(self.path(path)))

    @precondition(lambda self: self.machines.count < 5)
    @rule()
    def take_over(self) -> None:
        self.lose_the_machine()

    def lose_the_machine(self) -> None:
        names = set(self.machine.files())
        self.machine = self.machines.next()
        assert set(self.machine.files()) <= names
        files = self.machine.files()
        assert self.synced == {name: files.get(name) for name in self.synced}

    @invariant()
    def the_journal_holds_no_more_than_it_may(self) -> None:
        assert len(self.machine.shipper.rows) == len(self.machines.table.rows)

    def teardown(self) -> None:
        self.outcomes = iter(())
        try:
            self.lose_the_machine()
        finally:
            self.directory.cleanup()


def test_synced_files_survive_any_take_over() -> None:
    run_state_machine_as_test(ShippedFiles, settings=settings(stateful_step_count=40, deadline=None))
