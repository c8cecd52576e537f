"""Group commit."""

import errno
import threading

from broker.errors import StorageError
from broker.runtime.threads import SystemThreads
from tests.storage.helpers import Storage, append, append_many


def test_one_fsync_answers_all_who_wait(storage: Storage) -> None:
    log, flusher = storage.create(), storage.manager.flusher
    answers: list[tuple[int, StorageError | None]] = []
    for number in range(10):
        info = append(log, b"x")
        flusher.wait_durable(log, info.last_offset + 1, lambda error, n=number: answers.append((n, error)))
    assert answers == []
    storage.disk.synced.clear()
    assert flusher.step(0)
    assert answers == [(number, None) for number in range(10)]
    assert sum(path.endswith(".log") for path in storage.disk.synced) == 1
    assert not flusher.step(0)


def test_what_is_durable_already_is_answered_at_once(storage: Storage) -> None:
    log = storage.create()
    append(log, b"x")
    log.flush_to(1)
    answers: list[StorageError | None] = []
    storage.manager.flusher.wait_durable(log, 1, answers.append)
    assert answers == [None]


def test_a_failure_is_answered_to_those_it_concerns_and_to_nobody_else(storage: Storage) -> None:
    storage.create("bad")
    storage.create("good")
    answers: dict[str, StorageError | None] = {}
    storage.disk.fail["sync", "bad-0"] = errno.EIO
    for name in ("bad", "good"):
        append(storage.log(name), b"x")
        storage.manager.flusher.wait_durable(
            storage.log(name), 1, lambda error, name=name: answers.__setitem__(name, error)
        )
    storage.manager.flusher.step(0)
    assert answers["good"] is None
    assert isinstance(answers["bad"], StorageError)


def test_waiting_for_a_deleted_topic_ends_with_an_error(storage: Storage) -> None:
    log = storage.create()
    append(log, b"x")
    answers: list[StorageError | None] = []
    storage.manager.flusher.wait_durable(log, 1, answers.append)
    storage.manager.delete_topic("t")
    storage.manager.flusher.step(0)
    assert isinstance(answers[0], StorageError)


def test_an_append_that_came_during_the_fsync_waits_for_the_next(storage: Storage) -> None:
    log, flusher = storage.create(), storage.manager.flusher
    answers: list[int] = []
    append(log, b"x")
    flusher.wait_durable(log, 1, lambda error: answers.append(1))

    def while_syncing(what: str, path: str) -> None:
        if what == "sync" and log.log_end_offset == 1:
            append(log, b"y")
            flusher.wait_durable(log, 2, lambda error: answers.append(2))

    storage.disk.before = while_syncing
    flusher.step(0)
    assert (answers, log.durable_offset) == ([1], 1)
    flusher.step(0)
    assert (answers, log.durable_offset) == ([1, 2], 2)


def test_a_new_segment_is_synced_in_the_background(storage: Storage) -> None:
    log = storage.create(segment_bytes=300)
    append_many(log, 4)
    assert log.durable_offset == 0
    storage.manager.flusher.step(0)
    assert log.durable_offset == 4


def test_flush_ms_is_kept(storage: Storage) -> None:
    log, flusher = storage.create(flush_ms=5000), storage.manager.flusher
    append(log, b"x")
    storage.clock.sleep_ms(4000)
    flusher.step(0)
    assert log.durable_offset == 0
    storage.clock.sleep_ms(1100)
    flusher.step(0)
    assert log.durable_offset == 1


def test_on_a_thread_of_its_own_it_serves_many_at_once_and_can_be_stopped(storage: Storage) -> None:
    log, flusher = storage.create(), storage.manager.flusher
    handle = SystemThreads().spawn("flusher", flusher, on_crash=lambda error: None)
    done = threading.Barrier(9)

    def produce() -> None:
        for _ in range(20):
            written = threading.Event()
            info = append(log, b"x")
            flusher.wait_durable(log, info.last_offset + 1, lambda error, written=written: written.set())
            assert written.wait(30)
        done.wait(30)

    threads = [threading.Thread(target=produce) for _ in range(8)]
    for thread in threads:
        thread.start()
    done.wait(60)
    assert log.durable_offset == 160
    assert handle.stop(10)
