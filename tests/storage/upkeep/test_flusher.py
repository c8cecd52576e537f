"""Group commit, of several logs at once."""

import errno
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import attrs
import pytest

from broker.errors import StorageError
from broker.runtime.disk import File, SystemDisk
from broker.runtime.threads import SystemThreads
from broker.storage.log.durability import Durability
from broker.storage.log.log import Log
from tests.storage.helpers import FaultyFile, Storage, append, append_many


@contextmanager
def running(storage: Storage) -> Iterator[None]:
    """All of the flusher's threads."""
    crashes: list[BaseException] = []
    bodies = storage.manager.flusher.threads
    handles = [SystemThreads().spawn("flusher", body, on_crash=crashes.append) for body in bodies]
    try:
        yield
    finally:
        ended = [handle.stop(30) for handle in handles]
    assert all(ended)
    assert not crashes


def test_one_fsync_answers_all_who_wait(storage: Storage) -> None:
    log, flusher = storage.create(), storage.manager.flusher
    answers: list[tuple[int, StorageError | None]] = []
    for number in range(10):
        info = append(log, b"x")
        flusher.wait_durable(log, info.last_offset + 1, lambda error, n=number: answers.append((n, error)))
    assert answers == []
    storage.disk.synced.clear()
    assert flusher.threads[0].step(0)
    assert answers == [(number, None) for number in range(10)]
    assert sum(path.endswith(".log") for path in storage.disk.synced) == 1
    assert not flusher.threads[0].step(0)


def test_only_appends_are_counted_as_waiting(storage: Storage) -> None:
    log, other, flusher = storage.create(), storage.create("other"), storage.manager.flusher
    for one in (log, other):
        append(one, b"x")
        flusher.flush_soon(one)
        flusher.wake_soon(one)
    flusher.wait_durable(log, 1, lambda error: None)
    flusher.wait_durable(log, 1, lambda error: None)
    flusher.begin_soon(log)
    assert flusher.waiting == 2
    while flusher.threads[0].step(0):
        pass
    flusher.begin_soon(log)
    assert flusher.waiting == 0


def test_what_is_durable_already_is_answered_at_once(storage: Storage) -> None:
    log = storage.create()
    append(log, b"x")
    log.durability.flush_to(1)
    answers: list[StorageError | None] = []
    storage.manager.flusher.wait_durable(log, 1, answers.append)
    assert answers == [None]


def test_failure_is_answered_only_to_its_waiters(storage: Storage) -> None:
    storage.create("bad")
    storage.create("good")
    answers: dict[str, StorageError | None] = {}
    storage.disk.fail["sync", "bad-0"] = errno.EIO
    for name in ("bad", "good"):
        append(storage.log(name), b"x")
        storage.manager.flusher.wait_durable(
            storage.log(name), 1, lambda error, name=name: answers.__setitem__(name, error)
        )
    while storage.manager.flusher.threads[0].step(0):
        pass
    assert answers["good"] is None
    assert isinstance(answers["bad"], StorageError)


def test_waiting_for_deleted_topic_ends_with_error(storage: Storage) -> None:
    log = storage.create()
    append(log, b"x")
    answers: list[StorageError | None] = []
    storage.manager.flusher.wait_durable(log, 1, answers.append)
    storage.manager.delete_topic("t")
    storage.manager.flusher.threads[0].step(0)
    assert isinstance(answers[0], StorageError)


def test_append_during_fsync_waits_for_next_fsync(storage: Storage) -> None:
    log, flusher = storage.create(), storage.manager.flusher
    answers: list[int] = []
    append(log, b"x")
    flusher.wait_durable(log, 1, lambda error: answers.append(1))

    def while_syncing(what: str, path: str) -> None:
        if what == "sync" and log.log_end_offset == 1:
            append(log, b"y")
            flusher.wait_durable(log, 2, lambda error: answers.append(2))

    storage.disk.before = while_syncing
    flusher.threads[0].step(0)
    assert (answers, log.durable_offset) == ([1], 1)
    flusher.threads[0].step(0)
    assert (answers, log.durable_offset) == ([1, 2], 2)


def test_a_new_segment_is_synced_in_the_background(storage: Storage) -> None:
    log = storage.create(segment_bytes=300)
    append_many(log, 4)
    assert log.durable_offset == 0
    storage.manager.flusher.threads[0].step(0)
    assert log.durable_offset == 4


def test_flush_ms_is_kept(storage: Storage) -> None:
    log, flusher = storage.create(flush_ms=5000), storage.manager.flusher
    append(log, b"x")
    storage.clock.sleep_ms(4000)
    flusher.threads[0].step(0)
    assert log.durable_offset == 0
    storage.clock.sleep_ms(1100)
    flusher.threads[0].step(0)
    assert log.durable_offset == 1


def test_later_changes_of_flush_ms_apply_at_once(storage: Storage) -> None:
    log, manager = storage.create(), storage.manager
    other = storage.create("other")

    def passes(ms: int) -> None:
        storage.clock.sleep_ms(ms)
        while manager.flusher.threads[0].step(0):
            pass

    append(log, b"x")
    passes(2000)  # the flusher has looked once which logs have it
    assert 0 == log.durable_offset
    manager.alter_topic_configs(log.topic, {"flush.ms": "1000"})
    passes(2000)
    assert (1, 0) == (log.durable_offset, other.durable_offset)
    manager.alter_topic_configs(log.topic, {"flush.ms": None})
    append(log, b"y")
    passes(2000)
    assert 1 == log.durable_offset
    manager.reconfigure(attrs.evolve(manager.config, defaults=attrs.evolve(manager.config.defaults, flush_ms=1000)))
    append(other, b"z")
    passes(2000)
    assert (2, 1) == (log.durable_offset, other.durable_offset)
    new = storage.create("new")
    append(new, b"x")
    passes(2000)
    assert 1 == new.durable_offset
    manager.delete_topic("new")
    passes(2000)


def test_waiters_during_fsync_queue_behind_other_logs(storage: Storage) -> None:
    first, second = storage.create("first"), storage.create("second")
    flusher = storage.manager.flusher
    answers: list[str] = []
    for name, log in (("first", first), ("second", second)):
        append(log, b"x")
        flusher.wait_durable(log, 1, lambda error, name=name: answers.append(name))

    def while_syncing(what: str, path: str) -> None:
        if what == "sync" and first.log_end_offset == 1:
            append(first, b"y")
            flusher.wait_durable(first, 2, lambda error: answers.append("first again"))

    storage.disk.before = while_syncing
    while flusher.threads[0].step(0):
        pass
    assert answers == ["first", "second", "first again"]


def test_log_with_long_fsync_delays_no_other(storage: Storage) -> None:
    slow, quick = storage.create("slow"), storage.create("quick")
    flusher = storage.manager.flusher
    began, free, answered = threading.Event(), threading.Event(), threading.Event()

    def while_syncing(what: str, path: str) -> None:
        if what == "sync" and "slow-0" in path:
            began.set()
            assert free.wait(60)

    storage.disk.before = while_syncing
    append(slow, b"x")
    append(quick, b"x")
    done = threading.Event()
    with running(storage):
        flusher.wait_durable(slow, 1, lambda error: done.set())
        assert began.wait(30)
        flusher.wait_durable(quick, 1, lambda error: answered.set())
        try:
            assert answered.wait(30)
            assert slow.durable_offset == 0
        finally:
            free.set()
        assert done.wait(30)


def test_every_waiter_is_answered_and_logs_sync_once(
    storage: Storage,
) -> None:
    names = [f"log-{number}" for number in range(12)]  # more than there are threads
    logs = [storage.create(name) for name in names]
    flusher = storage.manager.flusher
    lock = threading.Lock()
    syncing: Counter[str] = Counter()
    most: Counter[str] = Counter()
    right = Durability.flush_to

    def flush_to(durability: Durability, offset: int) -> None:
        with lock:
            syncing[str(id(durability))] += 1
            most[str(id(durability))] = max(most[str(id(durability))], syncing[str(id(durability))])
        try:
            right(durability, offset)
        finally:
            with lock:
                syncing[str(id(durability))] -= 1

    answers: Counter[int] = Counter()

    def produce(mine: int) -> None:
        for turn in range(25):
            number = (mine * 5 + turn * 7) % len(logs)
            info = append(logs[number], b"x")
            written = threading.Event()
            flusher.wait_durable(logs[number], info.last_offset + 1, lambda error, event=written: event.set())
            flusher.threads[turn % len(flusher.threads)].wakeup()  # which may be about to get a log
            assert written.wait(60)
            answers[mine] += 1

    Durability.flush_to = flush_to  # type: ignore[method-assign]
    try:
        with running(storage):
            threads = [threading.Thread(target=produce, args=(mine,)) for mine in range(16)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(120)
    finally:
        Durability.flush_to = right  # type: ignore[method-assign]
    assert answers == dict.fromkeys(range(16), 25)
    assert set(most.values()) == {1}
    assert sum(log.durable_offset for log in logs) == 16 * 25
    assert flusher.waiting == 0


def test_waiting_logs_sync_together_with_answers_of_own(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[list[str]] = []
    right = storage.disk.sync_all

    def sync_all(files: Sequence[File], patience_s: float) -> Iterator[tuple[int, OSError | None] | None]:
        batches.append([file.path.split("/")[-2] for file in files])
        return right(files, patience_s)

    names = ["good", "bad", "new", "gone", "offline", "hinted", "durable", "last"]
    logs = {name: storage.create(name) for name in names}
    flusher = storage.manager.flusher
    for log in logs.values():  # then their directories are durable
        append(log, b"x")
        log.durability.flush_to(1)
    answers: dict[str, StorageError | None] = {}
    monkeypatch.setattr(storage.disk, "sync_all", sync_all)
    monkeypatch.setattr(flusher, "_at_once", 8)
    for name, log in logs.items():
        append(log, b"y")
        flusher.wait_durable(log, 2, lambda error, name=name: answers.__setitem__(name, error))
    logs["new"].rolling.roll(storage.clock.time_ms())
    storage.disk.fail["sync", "bad-0"] = errno.EIO
    storage.manager.delete_topic("gone")
    logs["offline"].state.go_offline("for the test")
    flusher.wake_soon(logs["hinted"])
    logs["durable"].durability.flush_to(2)
    while flusher.threads[0].step(0):
        pass
    assert batches == [["good-0", "bad-0", "last-0"]]
    assert {name for name, error in answers.items() if error is not None} == {"bad", "gone", "offline"}
    assert answers.keys() == logs.keys()
    assert {log.durable_offset for name, log in logs.items() if answers[name] is None} == {2}
    assert logs["bad"].durable_offset == 1
    assert flusher.waiting == 0
    append(logs["good"], b"z")
    with pytest.raises(StorageError):
        append(logs["bad"], b"z")


def test_callback_may_wait_for_log_of_same_batch(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    flusher = storage.manager.flusher
    monkeypatch.setattr(flusher, "_at_once", 8)
    logs = [storage.create(f"log-{number}", flush_messages=2) for number in range(4)]
    for log in logs:
        append(log, b"x")
        log.durability.flush_to(1)
    appended: list[StorageError | None] = []

    def append_to_others(mine: Log, error: StorageError | None) -> None:
        for log in logs:
            if log is not mine and log.log_end_offset < 4:
                append(log, b"y")  # the second record waits for an fsync
        appended.append(error)

    for log in logs:
        append(log, b"x")
        flusher.wait_durable(log, 2, partial(append_to_others, log))
    with running(storage):
        handle = threading.Timer(0, flusher.threads[0].wakeup)
        handle.start()
        handle.join()
    while flusher.threads[0].step(0):
        pass
    assert appended == [None] * 4
    assert all(log.durable_offset >= 3 for log in logs)


def test_batch_with_hanging_log_does_not_delay_others(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()

    def sync_all(files: Sequence[File], patience_s: float) -> Iterator[tuple[int, OSError | None] | None]:
        for number, file in sorted(enumerate(files), key=lambda each: "slow" in each[1].path):
            while "slow" in file.path and not free.wait(patience_s):
                yield None
            file.sync()
            yield number, None

    flusher = storage.manager.flusher
    monkeypatch.setattr(storage.disk, "sync_all", sync_all)
    monkeypatch.setattr(flusher, "_at_once", 8)
    slow = [storage.create(f"slow-{number}") for number in range(6)]
    quick = [storage.create(f"quick-{number}") for number in range(6)]
    for log in slow + quick:
        append(log, b"x")
        log.durability.flush_to(1)
    answered = {name: threading.Semaphore(0) for name in ("slow", "quick")}
    with running(storage):
        for turn in range(3):  # three batches of slow logs, one after the other: more than are to be at work at once
            for log in slow[2 * turn : 2 * turn + 2]:
                append(log, b"x")
                flusher.wait_durable(log, 2, lambda error: answered["slow"].release())
        for log in quick:
            append(log, b"x")
            flusher.wait_durable(log, 2, lambda error: answered["quick"].release())
        try:
            for _ in quick:
                assert answered["quick"].acquire(timeout=30)
        finally:
            free.set()
        for _ in slow:
            assert answered["slow"].acquire(timeout=30)


def test_the_kernel_syncs_what_many_producers_wait_for(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.disk, "sync_all", partial(SystemDisk.sync_all, storage.disk))
    flusher = storage.manager.flusher
    logs = [storage.create(f"log-{number}") for number in range(20)]

    def produce(mine: int) -> None:
        for turn in range(30):
            log = logs[(mine * 7 + turn) % len(logs)]
            info = append(log, b"x")
            written = threading.Event()
            flusher.wait_durable(log, info.last_offset + 1, lambda error, event=written: event.set())
            assert written.wait(60)
            assert log.durable_offset > info.last_offset

    with running(storage):
        threads = [threading.Thread(target=produce, args=(mine,)) for mine in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert sum(log.durable_offset for log in logs) == 20 * 30
    assert flusher.waiting == 0


def test_thread_that_stopped_waiting_gets_nothing(storage: Storage) -> None:
    log, flusher = storage.create(), storage.manager.flusher
    impatient, other = flusher.threads[1:3]
    assert not impatient.step(0.001)
    impatient.wakeup()
    impatient.wakeup()
    assert not impatient.step(None)
    append(log, b"x")
    flusher.flush_soon(log)
    assert other.step(0)
    assert log.durable_offset == 1


def test_unwaited_appends_begin_writing_while_others_wait(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[str, int, int]] = []
    monkeypatch.setattr(
        FaultyFile, "begin_sync", lambda file, offset, size: begun.append((file.path.split("/")[-2], offset, size))
    )
    bulk, other = storage.create("bulk"), storage.create("other")
    flusher = storage.manager.flusher

    def load(megabytes: int) -> None:
        for _ in range(megabytes):
            append(bulk, bytes(1_000_000))
        while flusher.threads[0].step(0):
            pass

    load(9)
    assert begun == []  # nobody waits
    append(other, b"x")
    flusher.wait_durable(other, 1, lambda error: None)
    flusher.threads[0].step(0)
    load(9)
    assert sum(size for _, _, size in begun) in range(16 << 20, 18_010_000)
    assert {name for name, _, _ in begun} == {"bulk-0"}
    position = 0
    for _, offset, size in begun:
        assert offset == position
        position += size
    assert position % 4096 == 0
    assert bulk.durable_offset == 0
    begun.clear()
    storage.clock.sleep_ms(11_000)
    load(9)
    assert begun == []
    append(other, b"x")
    flusher.wait_durable(other, 2, lambda error: None)
    flusher.threads[0].step(0)
    bulk.rolling.roll(storage.clock.time_ms())
    load(5)
    assert begun[0][:2] == ("bulk-0", 0)  # of the new segment


def test_a_hint_that_fails_does_no_harm(storage: Storage) -> None:
    log, flusher = storage.create(), storage.manager.flusher
    append(log, bytes(100_000))
    storage.manager.files.close_all()
    storage.disk.fail["open", "t-0/"] = errno.EMFILE
    log.durability.begin_sync()
    storage.disk.fail.clear()
    answers: list[StorageError | None] = []
    flusher.wait_durable(log, 1, answers.append)
    flusher.threads[0].step(0)
    assert answers == [None]
    storage.manager.delete_topic("t")
    log.durability.begin_sync()


def test_flusher_threads_serve_many_and_can_be_stopped(storage: Storage) -> None:
    log, flusher = storage.create(), storage.manager.flusher
    done = threading.Barrier(9)

    def produce() -> None:
        for _ in range(20):
            written = threading.Event()
            info = append(log, b"x")
            flusher.wait_durable(log, info.last_offset + 1, lambda error, written=written: written.set())
            assert written.wait(30)
        done.wait(30)

    with running(storage):
        threads = [threading.Thread(target=produce) for _ in range(8)]
        for thread in threads:
            thread.start()
        done.wait(60)
    assert log.durable_offset == 160
