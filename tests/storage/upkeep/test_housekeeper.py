"""The background thread: what is due when, and that no error ends it."""

import errno
from pathlib import Path

import pytest

from broker.runtime.threads import SystemThreads
from tests.storage.helpers import NOW_MS, Storage, append, append_many, read_records


def test_duties_come_round_at_their_intervals(storage: Storage) -> None:
    housekeeper = storage.manager.housekeeper
    log = storage.create()
    append(log, b"x")
    assert not housekeeper.step(0)
    storage.clock.sleep_ms(59_000)
    housekeeper.step(0)
    assert log.recovery_point == 0
    storage.clock.sleep_ms(1_000)
    assert housekeeper.step(0)
    assert log.recovery_point == 1


def test_error_of_one_log_spares_the_others(storage: Storage) -> None:
    for name in ("a", "b", "c"):
        append_many(storage.create(name, retention_bytes=0, segment_bytes=300), 10)
    storage.disk.fail["rename", "b-0"] = errno.EIO
    storage.disk.fail["sync", "b-0"] = errno.EIO
    storage.housekeep()
    assert [storage.log(name).offline is None for name in ("a", "b", "c")] == [True, False, True]
    assert storage.log("a").log_start_offset == storage.log("c").log_start_offset > 0
    assert storage.log("a").recovery_point == storage.log("c").recovery_point == 10


def test_housekeeper_waits_at_most_until_next_duty(storage: Storage) -> None:
    waits: list[float] = []

    class Event:
        def wait(self, timeout: float) -> None:
            waits.append(timeout)

        def set(self) -> None: ...
        def clear(self) -> None: ...

    housekeeper = storage.manager.housekeeper
    housekeeper._event = Event()  # type: ignore[assignment]  # a wait without the waiting
    housekeeper.step(None)
    housekeeper.delete_later(["x"], 300)
    housekeeper.step(None)
    housekeeper.step(0.1)
    assert waits == pytest.approx([1.0, 0.3, 0.1])  # the scrub is due every second


def test_files_are_removed_when_their_time_has_come(storage: Storage) -> None:
    root = Path(storage.directory)
    deleted = root / f"t-0.{'0' * 32}-delete"
    deleted.mkdir()
    for path in (root / "one", root / "two", deleted / "partition.metadata"):
        path.write_bytes(b"x")
    housekeeper = storage.manager.housekeeper
    housekeeper.delete_later([f"{root}/one"], 1000)
    housekeeper.delete_later([str(deleted), f"{root}/never was"], 500)
    housekeeper.step(0)
    assert deleted.exists()
    storage.clock.sleep_ms(500)
    housekeeper.step(0)
    assert (not deleted.exists(), (root / "one").exists()) == (True, True)
    storage.clock.sleep_ms(500)
    housekeeper.step(0)
    assert (not (root / "one").exists(), (root / "two").exists()) == (True, True)


def test_idle_files_are_closed(storage: Storage) -> None:
    append(storage.create(), b"x")
    assert storage.manager.files.count() > 0
    for _ in range(2):
        storage.clock.sleep_ms(61_000)
        storage.manager.housekeeper.step(0)
    # The checkpoint in the first round used them once more.
    storage.clock.sleep_ms(61_000)
    storage.manager.housekeeper.step(0)
    assert storage.manager.files.count() == 0
    append(storage.log(), b"y")


def test_a_compaction_is_done_in_small_steps(storage: Storage) -> None:
    log = storage.create(cleanup_policy="compact", segment_bytes=3_000_000, min_cleanable_dirty_ratio=0)
    for number in range(8):
        append(log, b"v" * 900_000, keys=[b"k%d" % number])
    housekeeper = storage.manager.housekeeper
    storage.manager.checkpoint()
    storage.clock.sleep_ms(15_000)
    steps = 0
    while housekeeper.step(0):
        steps += 1
    assert steps > 5
    assert log.first_dirty_offset > 0


def step_all(storage: Storage) -> None:
    while storage.manager.flusher.threads[0].step(0):
        pass
    while storage.manager.housekeeper.step(0):
        pass


def test_compaction_does_not_wait_for_the_next_checkpoint(storage: Storage) -> None:
    log = storage.create(cleanup_policy="compact", segment_bytes=300, min_cleanable_dirty_ratio=0.01)
    other = storage.create("other", segment_bytes=300)
    for number in range(20):
        append(log, b"v%d" % number, keys=[b"k"])
        append(other, b"v%d" % number)
    storage.clock.sleep_ms(15_000)  # log.cleaner.backoff.ms; the checkpoint is due after 60 s
    step_all(storage)
    kept = [record.offset for record in read_records(log)]
    assert kept == [*range(log.view.bases[-1] - 1, 20)]  # of the closed part only the last
    # The others are left to it.
    assert other.recovery_point == 0
    storage.crash()
    assert storage.log().offline is None
    assert kept == [record.offset for record in read_records(storage.log())]


def test_nothing_is_flushed_for_compaction_that_is_undue(storage: Storage) -> None:
    log = storage.create(cleanup_policy="compact", segment_bytes=300, min_compaction_lag_ms=3_600_000)
    for number in range(20):
        append(log, b"v%d" % number, keys=[b"k"])
    storage.clock.sleep_ms(15_000)
    step_all(storage)
    assert log.recovery_point == 0
    assert len(read_records(log)) == 20


def test_topic_with_short_lag_is_checked_in_time(storage: Storage) -> None:
    log = storage.create(
        cleanup_policy="compact", segment_bytes=300, min_cleanable_dirty_ratio=1, max_compaction_lag_ms=100
    )
    storage.clock.sleep_ms(15_000)
    step_all(storage)  # from here on it is known that there is one
    for turn in range(1, 4):
        for number in range(10):
            append(log, b"v%d" % number, keys=[b"k"])
            storage.clock.sleep_ms(1)
        storage.clock.sleep_ms(1_000)
        step_all(storage)
        assert len(read_records(log)) < 8, turn


def test_housekeeper_runs_and_stops_on_its_own_thread(storage: Storage) -> None:
    errors: list[BaseException] = []
    handle = SystemThreads().spawn("housekeeper", storage.manager.housekeeper, errors.append)
    append_many(storage.create(), 5, timestamp=NOW_MS)
    storage.manager.housekeeper.hurry()
    assert handle.stop(30)
    assert errors == []


def test_long_duties_are_done_a_piece_a_step(storage: Storage) -> None:
    """So that the thread ends soon when it is asked to."""
    logs = 50
    storage.manager.create_topic("t", logs, {"segment.bytes": "100", "retention.bytes": "1"})
    for number in range(logs):
        append_many(storage.log("t", number), 3)
    while storage.manager.flusher.threads[0].step(0):
        pass
    storage.manager.housekeeper.hurry()
    syncs: list[int] = []
    while True:
        storage.disk.synced.clear()
        if not storage.manager.housekeeper.step(0):
            break
        syncs.append(len(storage.disk.synced))
    assert len(syncs) > logs
    # A few files each of two logs, and the checkpoint files of all.
    assert max(syncs) <= 16
    assert all(storage.log("t", number).recovery_point == 3 for number in range(logs))
    assert all(len(storage.log("t", number).view.segments) <= 2 for number in range(logs))
