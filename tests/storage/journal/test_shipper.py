"""Gathering flushes, the order of rows, failures, and removing rows."""

import errno
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

from broker.errors import StorageError
from broker.metadata.journal import JournalRow
from broker.runtime.clock import SystemClock
from broker.runtime.disk import Buffer
from broker.runtime.objects import MemoryObjects
from broker.runtime.threads import Event, SystemThreads
from broker.storage.journal.operations import Write, decode
from broker.storage.journal.shipper import ShippingLimits
from tests.sim.journal import Outcome
from tests.storage.journal.helpers import SMALL, FailingObjects, Machine, Machines
from tests.waiting import wait_for


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


def write(machine: Machine, path: str, data: bytes, position: int = 0) -> None:
    file = machine.disk.open(f"{machine.directory}/{path}", create=True)
    file.pwrite([data], position)
    file.sync()


def writes(row: JournalRow) -> list[Write]:
    return [each for each in decode(row.index).operations if isinstance(each, Write)]


def test_files_that_are_synced_together_share_a_row(machines: Machines) -> None:
    machine = machines.next()
    files = [machine.disk.open(f"{machine.directory}/{name}", create=True) for name in "abc"]
    for file in files:
        file.pwrite([b"x"], 0)
    assert [(0, None), (1, None), (2, None)] == list(machine.disk.sync_all(files, 1.0))
    (row,) = machines.table.rows.values()
    assert [Write(name, 0, 1) for name in "abc"] == writes(row)


def test_small_flushes_are_inline_and_large_ones_objects(machines: Machines) -> None:
    machine = machines.next()
    write(machine, "a", bytes(SMALL.inline_max))
    write(machine, "b", bytes(SMALL.inline_max + 1))
    inline, large = machines.table.rows.values()
    assert (bytes(SMALL.inline_max), None) == (inline.data, inline.object)
    assert (None, "journal/00000001/000000000002") == (large.data, large.object)
    assert [(large.object, SMALL.inline_max + 1)] == list(machines.objects.list(""))


def test_a_large_file_takes_several_flushes(machines: Machines) -> None:
    machine = machines.next()
    write(machine, "a", bytes(3 * SMALL.flush_max + 5))
    sizes = [piece.size for row in machines.table.rows.values() for piece in writes(row)]
    assert [SMALL.flush_max] * 3 + [5] == sizes


class HeldObjects(MemoryObjects):
    """Puts wait for ``free``, but for those of keys that end with one of ``pass_``."""

    def __init__(self, passing: str) -> None:
        super().__init__()
        self.free = Event()
        self.arrived: list[str] = []
        self._passing = passing

    def put(self, key: str, parts: Iterable[Buffer], size: int, *, create: bool = False) -> None:
        self.arrived.append(key)
        if not key.endswith(self._passing):
            assert self.free.wait(30)
        super().put(key, parts, size, create=create)


def running(machine: Machine) -> Callable[[], None]:
    threads = [
        SystemThreads().spawn("shipper", body, lambda error: pytest.fail(str(error)))
        for body in machine.shipper.threads
    ]

    def stop() -> None:
        for thread in threads:
            assert thread.stop(30)

    return stop


def test_rows_wait_for_the_rows_before_them(tmp_path: Path) -> None:
    machines = Machines(tmp_path, limits=ShippingLimits(inline_max=8, flush_max=100, linger_s=0.0))
    machines.objects = held = HeldObjects(passing="2")
    machine = machines.next()
    stop = running(machine)
    done: list[str] = []
    for number, name in enumerate("ab", 1):
        file = machine.disk.open(f"{machine.directory}/{name}", create=True)
        file.pwrite([bytes(50)], 0)
        state = machine.shipper.table.get(name)
        assert state is not None
        machine.shipper.ask([(state, file)], partial(lambda name, _: done.append(name), name))
        wait_for(partial(lambda number: len(held.arrived) == number, number))
    wait_for(lambda: [key for key, _ in held.list("")] == ["journal/00000001/000000000002"])
    assert ({}, []) == (machines.table.rows, done)
    held.free.set()
    wait_for(lambda: done == ["a", "b"])
    assert [1, 2] == list(machines.table.rows)
    stop()


def ask(machine: Machine, path: str, size: int) -> Callable[[], bool]:
    """Write a new file and have it shipped, without waiting. Whether it is durable."""
    file = machine.disk.open(f"{machine.directory}/{path}", create=True)
    file.pwrite([bytes(size)], 0)
    state = machine.shipper.table.get(path)
    assert state is not None
    done: list[OSError | None] = []
    machine.shipper.ask([(state, file)], done.append)
    return lambda: done == [None]


NEVER_S = 1e6


def test_an_object_is_put_beside_others_once_enough_waits(tmp_path: Path) -> None:
    machines = Machines(tmp_path, limits=ShippingLimits(inline_max=8, beside_min=100, linger_s=NEVER_S))
    machines.objects = held = HeldObjects(passing="2")
    machine = machines.next()
    stop = running(machine)
    durable = [ask(machine, "a", 50)]
    wait_for(lambda: len(held.arrived) == 1)
    durable.append(ask(machine, "b", 99))
    assert not machine.shipper.help()
    durable.append(ask(machine, "c", 1))
    wait_for(lambda: [key for key, _ in held.list("")] == ["journal/00000001/000000000002"])
    assert [False] * 3 == [is_durable() for is_durable in durable]
    held.free.set()
    wait_for(lambda: all(is_durable() for is_durable in durable))
    assert [["a"], ["b", "c"]] == [[each.path for each in writes(row)] for row in machines.table.rows.values()]
    stop()


def test_an_object_is_put_while_rows_are_committed_but_a_row_waits_and_shares_the_next_commit(tmp_path: Path) -> None:
    machines = Machines(tmp_path, limits=ShippingLimits(inline_max=8, linger_s=NEVER_S))
    machine = machines.next()
    committing, free = Event(), Event()

    def outcome() -> Outcome:
        committing.set()
        assert free.wait(30)
        return Outcome.STORED

    machines.table.outcomes = outcome
    stop = running(machine)
    durable = [ask(machine, "a", 1)]
    assert committing.wait(30)
    durable.append(ask(machine, "b", 8))
    assert not machine.shipper.help()
    durable.append(ask(machine, "c", 1))
    wait_for(lambda: [key for key, _ in machines.objects.list("")] == ["journal/00000001/000000000002"])
    assert {} == machines.table.rows
    free.set()
    wait_for(lambda: all(is_durable() for is_durable in durable))
    assert [["a"], ["b", "c"]] == [[each.path for each in writes(row)] for row in machines.table.rows.values()]
    stop()


def test_what_a_full_flush_has_left_counts_for_the_next_one(tmp_path: Path) -> None:
    limits = ShippingLimits(inline_max=8, flush_max=100, beside_min=100, linger_s=NEVER_S)
    machines = Machines(tmp_path, limits=limits)
    machines.objects = held = HeldObjects(passing="-")
    machine = machines.next()
    stop = running(machine)
    durable = ask(machine, "a", 350)
    wait_for(lambda: len(held.arrived) == 3)  # all that are full; the fourth waits for them
    assert not machine.shipper.help()
    held.free.set()
    wait_for(durable)
    assert [100, 100, 100, 50] == [each.size for row in machines.table.rows.values() for each in writes(row)]
    stop()


def test_what_fails_is_tried_again(machines: Machines) -> None:
    machines.objects = FailingObjects(2)
    outcomes = iter([Outcome.FAILED, Outcome.UNKNOWN_LOST, Outcome.UNKNOWN_STORED, Outcome.UNKNOWN_LATE])
    machines.table.outcomes = lambda: next(outcomes, Outcome.STORED)
    machine = machines.next()
    write(machine, "a", bytes(100))
    assert {"a": bytes(100)} == machines.next().files()


def test_closing_gives_up_what_cannot_be_shipped(machines: Machines) -> None:
    machines.objects = FailingObjects(10**9)
    machine = machines.next()
    machine.shipper.close()
    with pytest.raises(OSError, match="stops"):
        write(machine, "a", bytes(100))
    with pytest.raises(OSError, match="stops"):
        machine.disk.sync_dir(machine.directory)


def test_nobody_waits_longer_than_a_stop_may_take(machines: Machines) -> None:
    """No thread ships here, as if all of them were waiting for the engine."""
    machine = machines.next()
    machine.shipper.wait_until(SystemClock.monotonic() + 0.05)
    with pytest.raises(OSError, match="has not answered in time"):
        write(machine, "a", bytes(100))
    ((number, error),) = machine.disk.sync_all([machine.disk.open(f"{machine.directory}/a")], 1.0)
    assert (0, errno.ESHUTDOWN) == (number, error and error.errno)


def test_rows_that_no_file_needs_are_removed(machines: Machines) -> None:
    machine = machines.next()
    open_file = lambda path: machine.inner.open(f"{machine.directory}/{path}")  # noqa: E731
    for _ in range(3):
        write(machine, "a", bytes(100))
        machine.disk.remove(f"{machine.directory}/a")
        machine.disk.sync_dir(machine.directory)
    machine.shipper.tidy(open_file)
    machine.shipper.tidy(open_file)
    assert {} == machines.table.rows
    assert [] == list(machines.objects.list(""))
    write(machine, "b", b"b")
    assert {"b": b"b"} == machines.next().files()


def test_trickling_files_pile_up_neither_rows_nor_objects(tmp_path: Path) -> None:
    machines = Machines(tmp_path, limits=ShippingLimits(inline_max=64, rows=20))
    machine = machines.next()
    open_file = lambda path: machine.inner.open(f"{machine.directory}/{path}")  # noqa: E731
    for number in range(100):
        write(machine, f"{number % 7}", bytes([number]) * 10, number // 7 * 10)
        machine.shipper.tidy(open_file)
    assert len(machines.table.rows) <= 20
    assert len(list(machines.objects.list(""))) <= 20
    assert machine.files() == machines.next().files()


def test_files_that_are_larger_than_the_journal_may_be_are_not_shipped_over_and_over(tmp_path: Path) -> None:
    machines = Machines(tmp_path, limits=ShippingLimits(flush_max=100, rows=4, bytes=200))
    machine = machines.next()
    for name in "abcdef":
        write(machine, name, bytes(100))
    before = dict(machines.table.rows)
    for _ in range(3):
        machine.shipper.tidy(lambda path: machine.inner.open(f"{machine.directory}/{path}"))
    assert before == machines.table.rows


def test_files_are_carried_over_some_at_a_time(tmp_path: Path) -> None:
    """Each is open meanwhile, and what others ask for waits for one part only."""
    machines = Machines(tmp_path, limits=ShippingLimits(rows=4))
    machine = machines.next()
    names = [f"{number:04}" for number in range(1_201)]
    for some in (names[:600], names[600:1200], names[1200:]):
        files = [machine.disk.open(f"{machine.directory}/{name}", create=True) for name in some]
        for file in files:
            file.pwrite([b"x"], 0)
        assert [None] * len(files) == [each and each[1] for each in machine.disk.sync_all(files, 1.0)]
    machine.shipper.tidy(lambda path: machine.inner.open(f"{machine.directory}/{path}"))
    first, second, third, *carried = ([each.path for each in writes(row)] for row in machines.table.rows.values())
    assert [names[:600], names[600:1200], names[1200:]] == [first, second, third]
    assert [names[:500], names[500:1000], names[1000:1200]] == carried
    assert dict.fromkeys(names, b"x") == machines.next().files()


def test_large_files_may_have_more_rows_before_they_are_shipped_again(tmp_path: Path) -> None:
    """Otherwise few bytes that trickle would have all files shipped, over and over."""
    machines = Machines(tmp_path, limits=ShippingLimits(rows=4))
    machine = machines.next()
    open_file = lambda path: machine.inner.open(f"{machine.directory}/{path}")  # noqa: E731
    write(machine, "a", bytes(5 * 64 * 1024))
    for number in range(4):
        write(machine, "b", b"b", number)
        machine.shipper.tidy(open_file)
    assert list(range(1, 6)) == list(machines.table.rows)
    write(machine, "b", b"b", 4)
    for _ in range(3):
        machine.shipper.tidy(open_file)
    assert [5 * 64 * 1024, 5] == [each.size for row in machines.table.rows.values() for each in writes(row)][-2:]
    assert 1 not in machines.table.rows


def test_objects_of_lost_owners_are_swept(machines: Machines) -> None:
    first = machines.next()
    write(first, "a", bytes(100))
    machines.objects.put("journal/00000001/000000000009", [b"late"], 4)
    second = machines.next()
    machines.objects.put("journal/00000003/000000000002", [b"of an owner that came later"], 27)
    second.shipper.sweep("journal")
    left = [key for key, _ in machines.objects.list("journal")]
    assert ["journal/00000001/000000000001", "journal/00000003/000000000002"] == sorted(left)


def test_nothing_is_removed_that_another_owner_needs(machines: Machines) -> None:
    first = machines.next()
    open_file = lambda path: first.inner.open(f"{first.directory}/{path}")  # noqa: E731
    write(first, "a", bytes(100))
    first.disk.remove(f"{first.directory}/a")
    first.disk.sync_dir(first.directory)
    first.shipper.tidy(open_file)
    second = machines.next()
    with pytest.raises((OSError, StorageError)):
        first.shipper.tidy(open_file)
    assert 1 == len(list(machines.objects.list("")))
    assert second.files() == machines.next().files()


def test_an_error_of_the_local_disk_ends_all_shipping(machines: Machines) -> None:
    machine = machines.next()
    failures: list[OSError] = []
    machine.shipper.on_failed = failures.append
    file = machine.inner.open(f"{machine.directory}/a", create=True)
    state = machine.shipper.table.created("a")
    state.wrote(0, 10)
    file.close()  # reading fails
    with pytest.raises(OSError, match="Bad file descriptor"):
        machine.shipper.ship([(state, file)])
    assert 1 == len(failures)
    with pytest.raises(OSError, match="Bad file descriptor"):
        machine.disk.sync_dir(machine.directory)
