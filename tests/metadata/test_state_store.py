"""States in the catalogue: answered changes are durable, many changes share a row, and failures are tried again."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from broker.errors import StorageError
from broker.metadata.state_store import INTERVAL_S, StateStore
from broker.metadata.writer import CatalogueWriter, Done
from broker.runtime.timers import Timer
from tests.storage.helpers import HandClock


class Rows:
    """The catalogue: a table in memory that fails while ``broken``."""

    def __init__(self) -> None:
        self.table: dict[str, bytes] = {}
        self.writes = 0
        self.broken = False

    def together(self, changes: Iterable[Callable[[Any], None]]) -> None:
        for change in changes:
            change(self)

    def write(self, key: str, state: bytes) -> None:
        self._check()
        self.writes += 1
        self.table[key] = state

    def remove(self, keys: Iterable[str]) -> None:
        self._check()
        for key in keys:
            self.table.pop(key, None)

    def _check(self) -> None:
        if self.broken:
            raise StorageError("the disk is full")


class Thing:
    """``value`` None: deleted."""

    def __init__(self, key: str = "k") -> None:
        self.key = key
        self.value: bytes | None = b"0"
        self.version = 0
        self.saved_versions: list[int] = []
        self.settled: list[Done] = []

    def set(self, value: bytes | None) -> None:
        self.value = value
        self.version += 1

    def state(self) -> tuple[int, bytes] | None:
        return None if self.value is None else (self.version, self.value)

    def saved(self, version: int, state: bytes) -> bool:
        self.saved_versions.append(version)
        return version == self.version

    def settle(self, done: Done) -> None:
        self.settled.append(done)


class Bench:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.timer = Timer(self.clock)
        self.rows = Rows()
        self.reports: list[tuple[str, str]] = []
        self.writer = CatalogueWriter(self.rows)  # type: ignore[arg-type]
        self.store: StateStore[str] = StateStore(
            self.writer,
            self.clock,
            self.timer,
            lambda catalogue, key, state: catalogue.write(key, state),  # type: ignore[attr-defined]
            lambda catalogue, keys: catalogue.remove(keys),  # type: ignore[attr-defined]
            lambda key, error, _: self.reports.append((key, str(error))),
        )

    def run(self) -> None:
        self.writer.flush()

    def wait(self, seconds: float = INTERVAL_S) -> None:
        self.clock.sleep_ms(round(seconds * 1000))
        self.timer.step(0)
        self.run()

    def save(self, thing: Thing) -> list[StorageError | None]:
        answers: list[StorageError | None] = []
        self.store.save(thing, answers.append)
        return answers

    def delete(self, *keys: str) -> list[StorageError | None]:
        answers: list[StorageError | None] = []
        self.store.delete(keys, answers.append)
        return answers


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_saves_that_wait_together_are_one_row(bench: Bench) -> None:
    thing = Thing()
    answers = []
    for value in (b"1", b"2", b"3"):
        thing.set(value)
        answers.append(bench.save(thing))
    assert [[]] * 3 == answers
    bench.run()
    assert ([[None]] * 3, 1, {"k": b"3"}) == (answers, bench.rows.writes, bench.rows.table)


def test_change_is_written_within_a_second(bench: Bench) -> None:
    thing = Thing()
    bench.store.changed(thing)
    bench.store.changed(thing)
    bench.wait(0.9)
    assert {} == bench.rows.table
    bench.wait(0.1)
    assert ({"k": b"0"}, 1) == (bench.rows.table, bench.rows.writes)
    assert bench.timer.next_deadline() is None


def test_change_during_the_write_is_written_again(bench: Bench) -> None:
    thing = Thing()
    write = bench.rows.write

    def change_meanwhile(key: str, state: bytes) -> None:
        write(key, state)
        thing.set(b"late")
        bench.rows.write = write  # type: ignore[method-assign]

    bench.rows.write = change_meanwhile  # type: ignore[method-assign]
    bench.save(thing)
    bench.run()
    assert {"k": b"0"} == bench.rows.table
    bench.wait()
    assert ({"k": b"late"}, [0, 1]) == (bench.rows.table, thing.saved_versions)


def test_failed_write_is_reported_and_retried(bench: Bench) -> None:
    thing = Thing()
    bench.rows.broken = True
    answers = bench.save(thing)
    bench.run()
    assert ["the disk is full"] == [str(answer) for answer in answers]
    assert [("k", "the disk is full")] == bench.reports
    bench.rows.broken = False
    bench.wait()
    assert {"k": b"0"} == bench.rows.table


def test_one_failed_state_does_not_hold_up_others(bench: Bench) -> None:
    class Unstorable(Thing):
        def state(self) -> tuple[int, bytes] | None:
            raise StorageError("too large")

    answers = [bench.save(thing) for thing in (Thing("a"), Unstorable("b"), Thing("c"))]
    bench.run()
    assert [[None], [StorageError], [None]] == [[type(one) if one else None for one in each] for each in answers]
    assert {"a", "c"} == set(bench.rows.table)


def test_missing_state_settles_waiting_callers(bench: Bench) -> None:
    thing = Thing()
    answers = bench.save(thing)
    thing.set(None)
    bench.run()
    assert ([], 1, {}) == (answers, len(thing.settled), bench.rows.table)


def test_waiting_callers_can_be_taken_from_queue(bench: Bench) -> None:
    thing = Thing()
    answers = bench.save(thing)
    (done,) = bench.store.take_waiting(thing)
    bench.run()
    assert [] == answers
    done(None)
    assert [None] == answers


def test_unchanged_is_not_written(bench: Bench) -> None:
    thing = Thing()
    bench.store.changed(thing)
    bench.store.unchanged(thing)
    bench.wait()
    assert {} == bench.rows.table


def test_flush_hands_over_pending_states(bench: Bench) -> None:
    bench.store.changed(Thing())
    bench.store.flush()
    bench.run()
    assert {"k": b"0"} == bench.rows.table


def test_deletion_comes_after_earlier_saves(bench: Bench) -> None:
    saved, deleted = bench.save(Thing()), bench.delete("k")
    assert bench.store.is_being_deleted("k")
    bench.run()
    assert ([None], [None], {}) == (saved, deleted, bench.rows.table)
    assert not bench.store.is_being_deleted("k")


def test_failed_deletion_is_tried_again(bench: Bench) -> None:
    bench.rows.table = {"a": b"", "b": b""}
    bench.rows.broken = True
    answers = bench.delete("a", "b")
    bench.run()
    assert ["the disk is full"] == [str(answer) for answer in answers]
    assert not bench.store.is_being_deleted("a")
    bench.wait()
    bench.rows.broken = False
    bench.wait()
    assert {} == bench.rows.table
    bench.wait()
    assert bench.timer.next_deadline() is None


def failed_deletion(bench: Bench, *keys: str) -> None:
    bench.rows.broken = True
    bench.delete(*keys)
    bench.run()
    bench.rows.broken = False


@pytest.mark.parametrize("even_queued", [False, True])
def test_failed_deletion_spares_a_new_state(bench: Bench, even_queued: bool) -> None:
    bench.rows.table = {"a": b"new", "b": b"old"}
    failed_deletion(bench, "a", "b")
    bench.store.spare("a", even_queued=even_queued)
    bench.wait()
    assert {"a": b"new"} == bench.rows.table


@pytest.mark.parametrize("even_queued", [False, True])
def test_queued_deletion_spares_only_when_told(bench: Bench, even_queued: bool) -> None:
    bench.rows.table = {"k": b"row"}
    answers = bench.delete("k")
    bench.store.spare("k", even_queued=even_queued)
    assert (not even_queued) == bench.store.is_being_deleted("k")
    bench.run()
    assert ([None], even_queued) == (answers, "k" in bench.rows.table)


def test_deletion_may_be_spared_while_it_fails(bench: Bench) -> None:
    bench.rows.table = {"k": b"new"}

    def spare_and_fail(keys: Iterable[str]) -> None:
        bench.store.spare("k", even_queued=True)
        raise StorageError("the disk is full")

    bench.rows.remove = spare_and_fail  # type: ignore[method-assign]
    answers = bench.delete("k")
    bench.run()
    assert ["the disk is full"] == [str(answer) for answer in answers]
    bench.wait()
    assert {"k": b"new"} == bench.rows.table


def test_saved_state_survives_an_older_deletion(bench: Bench) -> None:
    failed_deletion(bench, "k")
    answers = bench.save(Thing())
    bench.wait()
    assert ([None], {"k": b"0"}) == (answers, bench.rows.table)


def test_later_deletion_replaces_a_failed_one(bench: Bench) -> None:
    failed_deletion(bench, "k")
    answers = bench.delete("k")
    bench.run()
    assert [None] == answers
    bench.rows.table = {"k": b"new"}  # made when no deletion was left
    bench.wait()
    assert {"k": b"new"} == bench.rows.table
