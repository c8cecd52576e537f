"""fsyncs for the appends of a processor, by the kernel."""

import errno
import select
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.errors import StorageError
from broker.runtime.disk import File, SyncQueue
from broker.runtime.threads import SystemThreads
from broker.storage.log.log import Log
from broker.storage.upkeep.flusher import ProcessorFlusher, processor_flusher
from tests.storage.helpers import Storage, append, append_many
from tests.waiting import wait_for


class HandQueue:
    """Syncs a file when the test says so."""

    def __init__(self, room: int = 100, takes: int = 100) -> None:
        self.started: list[tuple[Any, File]] = []
        self.done: list[tuple[Any, OSError | None]] = []
        self.size = room
        self.takes = takes
        self.waited: list[float] = []
        self.closed = False

    @property
    def pending(self) -> int:
        return len(self.started) + len(self.done)

    @property
    def room(self) -> int:
        return self.size - self.pending

    def fileno(self) -> int:
        raise AssertionError("no poller here")

    def start(self, requests: Sequence[tuple[Any, File]]) -> int:
        assert 0 < len(requests) <= self.room
        taken = requests[: self.takes]
        self.started += taken
        return len(taken)

    def complete(self, number: int = 0, error: OSError | None = None) -> None:
        name, file = self.started.pop(number)
        if error is None:
            try:
                file.sync()
            except OSError as failed:
                error = failed
        self.done.append((name, error))

    def results(self, patience_s: float = 0.0) -> Sequence[tuple[Any, OSError | None]]:
        if not self.done and patience_s:
            self.waited.append(patience_s)
        done, self.done = self.done, []
        return done

    def close(self) -> None:
        assert not self.pending
        self.closed = True


class Answers:
    def __init__(self) -> None:
        self.by_name: dict[object, StorageError | None] = {}

    def to(self, name: object) -> Callable[[StorageError | None], None]:
        def callback(error: StorageError | None) -> None:
            assert name not in self.by_name, "answered twice"
            self.by_name[name] = error

        return callback


PROCESSOR = 7  # its thread


def attached(storage: Storage, queue: SyncQueue | None = None, ident: int = PROCESSOR) -> ProcessorFlusher:
    flusher = ProcessorFlusher(storage.manager.flusher, queue or HandQueue())
    storage.ident = ident
    flusher.attach()
    return flusher


def create(storage: Storage, name: str = "t", **configs: object) -> Log:
    """A log whose directory is durable. The first fsync after it was made is more than that of one file."""
    log = storage.create(name, **configs)
    append(log, b"first")
    log.durability.flush_to(1)
    return log


def threads_work(storage: Storage) -> None:
    while storage.manager.flusher.threads[0].step(0):
        pass


def test_kernel_syncs_log_without_any_thread(storage: Storage) -> None:
    log, answers, queue = create(storage), Answers(), HandQueue()
    flusher = attached(storage, queue)
    append(log, b"x")
    storage.manager.flusher.wait_durable(log, 2, answers.to(1))
    assert not storage.manager.flusher.threads[0].step(0)
    assert flusher.due
    flusher.begin_due()
    assert not flusher.due
    assert not storage.manager.flusher.threads[0].step(0)
    flusher.ready()  # a poller may be wrong
    assert (answers.by_name, log.durable_offset) == ({}, 1)
    queue.complete()
    flusher.ready()
    assert (answers.by_name, log.durable_offset) == ({1: None}, 2)
    assert not storage.manager.flusher.waiting


def test_appends_together_share_fsync_and_later_ones_next(storage: Storage) -> None:
    log, answers, queue = create(storage), Answers(), HandQueue()
    flusher = attached(storage, queue)
    for offset in (1, 2):
        append(log, b"x")
        storage.manager.flusher.wait_durable(log, offset + 1, answers.to(offset))
    flusher.begin_due()
    storage.ident = 1  # another thread
    append(log, b"x")
    storage.manager.flusher.wait_durable(log, 4, answers.to(3))
    assert not storage.manager.flusher.threads[0].step(0)
    assert len(queue.started) == 1
    queue.complete()
    flusher.ready()
    assert (answers.by_name, log.durable_offset) == ({1: None, 2: None}, 3)
    assert flusher.due
    flusher.begin_due()
    queue.complete()
    flusher.ready()
    assert (answers.by_name[3], log.durable_offset) == (None, 4)
    assert not flusher.due


def test_appends_of_other_threads_are_left_to_threads(storage: Storage) -> None:
    log, answers = create(storage), Answers()
    flusher = attached(storage)
    storage.ident = 1
    append(log, b"x")
    storage.manager.flusher.wait_durable(log, 2, answers.to(1))
    assert not flusher.due
    threads_work(storage)
    assert answers.by_name == {1: None}


def test_failed_fsync_is_answered_with_the_error(storage: Storage) -> None:
    log, answers, queue = create(storage), Answers(), HandQueue()
    flusher = attached(storage, queue)
    append(log, b"x")
    storage.manager.flusher.wait_durable(log, 2, answers.to(1))
    flusher.begin_due()
    storage.manager.flusher.wait_durable(log, 2, answers.to("late"))
    queue.complete(error=OSError(errno.EIO, "Input/output error"))
    flusher.ready()
    assert isinstance(answers.by_name[1], StorageError)
    assert log.durable_offset == 1
    flusher.begin_due()  # the log is offline, which a thread finds out
    threads_work(storage)
    assert isinstance(answers.by_name["late"], StorageError)


def test_more_than_one_file_is_left_to_threads(storage: Storage) -> None:
    log, answers, queue = create(storage, segment_bytes=300), Answers(), HandQueue()
    flusher = attached(storage, queue)
    append_many(log, 6)  # in several segments
    storage.manager.flusher.wait_durable(log, 7, answers.to(6))
    flusher.begin_due()
    assert not queue.started
    threads_work(storage)
    assert (answers.by_name, log.durable_offset) == ({6: None}, 7)


def test_hints_and_watchers_are_left_to_the_threads(storage: Storage) -> None:
    log, answers, queue = create(storage), Answers(), HandQueue()
    flusher = attached(storage, queue)
    append(log, b"x")
    storage.manager.flusher.wait_durable(log, 2, answers.to(1))
    storage.manager.flusher.wake_soon(log)
    log.durability.flush_to(2)
    flusher.begin_due()
    assert not queue.started
    assert answers.by_name == {}
    threads_work(storage)
    assert answers.by_name == {1: None}


def test_who_has_become_durable_meanwhile_needs_no_fsync(storage: Storage) -> None:
    log, answers, queue = create(storage), Answers(), HandQueue()
    flusher = attached(storage, queue)
    append(log, b"x")
    storage.manager.flusher.wait_durable(log, 2, answers.to(1))
    log.durability.flush_to(2)
    flusher.begin_due()
    assert not queue.started
    assert answers.by_name == {1: None}
    assert not storage.manager.flusher.threads[0].step(0)


def test_thread_syncs_files_that_kernel_does_not_take(storage: Storage) -> None:
    logs, answers, queue = [create(storage, name) for name in "abc"], Answers(), HandQueue(takes=1)
    flusher = attached(storage, queue)
    for log in logs:
        append(log, b"x")
        storage.manager.flusher.wait_durable(log, 2, answers.to(log.topic))
    storage.disk.fail["sync", "b-0"] = errno.EIO
    flusher.begin_due()
    threads_work(storage)
    assert isinstance(answers.by_name.pop("b"), StorageError)
    assert answers.by_name == {"c": None}
    queue.complete()
    flusher.ready()
    assert answers.by_name == {"a": None, "c": None}


def test_threads_get_fsyncs_beyond_room_of_the_queue(storage: Storage) -> None:
    logs, answers, queue = [create(storage, name) for name in "abc"], Answers(), HandQueue(room=2)
    flusher = attached(storage, queue)
    for log in logs:
        append(log, b"x")
        storage.manager.flusher.wait_durable(log, 2, answers.to(log.topic))
    flusher.begin_due()
    assert len(queue.started) == 2
    threads_work(storage)
    assert answers.by_name == {"c": None}


def test_ended_processor_leaves_all_to_the_threads(storage: Storage) -> None:
    begun, due, answers, queue = create(storage, "begun"), create(storage, "due"), Answers(), HandQueue()
    flusher = attached(storage, queue)
    append(begun, b"x")
    storage.manager.flusher.wait_durable(begun, 2, answers.to(1))
    flusher.begin_due()
    append(begun, b"x")
    storage.manager.flusher.wait_durable(begun, 3, answers.to(2))
    append(due, b"x")
    storage.manager.flusher.wait_durable(due, 2, answers.to("due"))
    flusher.detach()
    assert (answers.by_name, queue.closed, queue.waited) == ({}, False, [])
    queue.complete()
    threads_work(storage)
    assert answers.by_name == {1: None, 2: None, "due": None}
    assert queue.closed
    append(due, b"x")
    storage.manager.flusher.wait_durable(due, 3, answers.to("after"))
    threads_work(storage)
    assert answers.by_name["after"] is None


def test_late_waiter_of_ended_processor_need_not_queue(storage: Storage) -> None:
    log, hanging, answers, queue = create(storage, "a"), create(storage, "b"), Answers(), HandQueue()
    flusher = attached(storage, queue)
    for one in (log, hanging):
        append(one, b"x")
        storage.manager.flusher.wait_durable(one, 2, answers.to(one.topic))
    flusher.begin_due()
    append(log, b"x")
    storage.manager.flusher.wait_durable(log, 3, answers.to("meanwhile"))
    flusher.detach()
    queue.complete()
    first_thread = storage.manager.flusher.take_left()
    assert first_thread is not None
    second = storage.manager.flusher.threads[1]
    right = queue.results

    def results(patience_s: float = 0.0) -> Sequence[tuple[Any, OSError | None]]:
        done = right(patience_s)
        if not done:  # the first thread waits for the disk, and has woken the second one
            wait_for(lambda: "meanwhile" in answers.by_name)
            queue.complete()
        return done

    queue.results = results  # type: ignore[method-assign]
    crashes: list[BaseException] = []
    handle = SystemThreads().spawn("flusher", second, on_crash=crashes.append)
    try:
        wait_for(lambda: second in storage.manager.flusher._idle)
        first_thread()
    finally:
        assert handle.stop(30)
    assert not crashes
    assert answers.by_name == {"a": None, "meanwhile": None, "b": None}


def test_ended_idle_processor_closes_its_queue(storage: Storage) -> None:
    queue = HandQueue()
    attached(storage, queue).detach()
    assert queue.closed
    assert not storage.manager.flusher.threads[0].step(0)


def test_ending_thread_finishes_tasks_of_ended_processor(storage: Storage) -> None:
    log, other, answers, queue = create(storage, "a"), create(storage, "b"), Answers(), HandQueue()
    flusher = attached(storage, queue)
    append(log, b"x")
    storage.manager.flusher.wait_durable(log, 2, answers.to(1))
    flusher.begin_due()
    queue.complete()
    storage.ident = 1
    append(other, b"x")

    def leave(_: object) -> None:
        flusher.detach()  # while the thread is at work and no other one is idle

    storage.manager.flusher.wait_durable(other, 2, leave)
    assert storage.manager.flusher.threads[0].step(0)  # its last step
    assert answers.by_name == {1: None}
    assert queue.closed


def test_log_with_flush_messages_is_left_to_threads(storage: Storage) -> None:
    """Its appends wait for fsyncs, so a processor must not have to end one."""
    log, answers, queue = create(storage, flush_messages=3), Answers(), HandQueue()
    flusher = attached(storage, queue)
    append(log, b"x")
    storage.manager.flusher.wait_durable(log, 2, answers.to(2))
    flusher.begin_due()
    assert not queue.started
    append_many(log, 2)
    assert log.durable_offset == 4
    threads_work(storage)
    assert answers.by_name == {2: None}


def test_flush_messages_may_be_set_during_kernel_sync(storage: Storage) -> None:
    log, answers, queue = create(storage), Answers(), HandQueue()
    flusher = attached(storage, queue)
    append(log, b"x")
    storage.manager.flusher.wait_durable(log, 2, answers.to(2))
    flusher.begin_due()
    storage.manager.alter_topic_configs("t", {"flush.messages": "1"})
    append(log, b"x")  # on the thread that has to end the fsync
    assert log.durable_offset == 1
    queue.complete()
    flusher.ready()
    assert (answers.by_name, log.durable_offset) == ({2: None}, 2)
    append(log, b"x")
    assert log.durable_offset == 4


def test_checkpoint_waits_during_fsync_and_topic_may_vanish(storage: Storage) -> None:
    log, answers, queue = create(storage), Answers(), HandQueue()
    flusher = attached(storage, queue)
    append(log, b"x")
    storage.manager.flusher.wait_durable(log, 2, answers.to(1))
    flusher.begin_due()
    storage.manager.delete_topic("t")
    queue.complete()
    flusher.ready()
    assert list(answers.by_name) == [1]


def test_with_the_system_the_poller_is_told(storage: Storage) -> None:
    flusher = processor_flusher(storage.manager.flusher, storage.disk)
    if flusher is None:
        pytest.skip("no asynchronous I/O here")
    storage.ident = PROCESSOR
    flusher.attach()
    poll = select.poll()
    poll.register(flusher.source, select.POLLIN)
    answers = Answers()
    logs = [create(storage, name) for name in "abc"]
    for turn in range(1, 20):
        for log in logs:
            append(log, b"x")
            storage.manager.flusher.wait_durable(log, turn + 1, answers.to((log.topic, turn)))
        flusher.begin_due()
        while any(log.durable_offset <= turn for log in logs):
            assert poll.poll(30_000)
            flusher.ready()
    assert answers.by_name == {(log.topic, turn): None for log in logs for turn in range(1, 20)}
    append(logs[0], b"x")
    storage.manager.flusher.wait_durable(logs[0], 21, answers.to("last"))
    flusher.begin_due()
    flusher.detach()
    threads_work(storage)
    assert answers.by_name["last"] is None


STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 3), st.integers(0, 2)),  # thread, log
    st.tuples(st.just("begin"), st.integers(0, 1)),
    st.tuples(st.just("complete"), st.integers(0, 1), st.integers(0, 3)),
    st.tuples(st.just("ready"), st.integers(0, 1)),
    st.tuples(st.just("threads"), st.integers(0, 1)),
    st.tuples(st.just("hint"), st.integers(0, 2)),
    st.tuples(st.just("flush"), st.integers(0, 2)),
    st.tuples(st.just("detach"), st.integers(0, 1)),
)


@given(st.lists(STEPS, max_size=60), st.integers(1, 3), st.integers(0, 3))
@example([("append", 0, 0), ("begin", 0), ("detach", 0)], 1, 1)
def test_every_append_is_answered_once_when_durable(steps: list[tuple[Any, ...]], room: int, takes: int) -> None:
    """Two processors and the threads, in any order."""
    with TemporaryDirectory() as directory:
        storage = Storage(Path(directory))
        logs = [create(storage, name, segment_bytes=1000) for name in "abc"]
        queues = [HandQueue(room, takes), HandQueue(room, takes)]
        flushers = [attached(storage, queue, ident) for ident, queue in enumerate(queues)]
        gone: set[int] = set()
        answered: dict[int, int] = {}
        asked = 0

        def ask(log: Log) -> None:
            nonlocal asked
            offset, number = append(log, b"." * 100).last_offset + 1, asked
            asked += 1

            def callback(error: StorageError | None) -> None:
                assert error is None
                assert log.durable_offset >= offset
                answered[number] = answered.get(number, 0) + 1

            storage.manager.flusher.wait_durable(log, offset, callback)

        for what, *which in steps:
            storage.ident = which[0]
            if what == "append":
                ask(logs[which[1]])
            elif what == "begin" and which[0] not in gone:
                flushers[which[0]].begin_due()
            elif what == "complete" and queues[which[0]].started:
                queues[which[0]].complete(which[1] % len(queues[which[0]].started))
            elif what == "ready" and which[0] not in gone:
                flushers[which[0]].ready()
            elif what == "threads":
                storage.manager.flusher.threads[which[0]].step(0)
            elif what == "hint":
                storage.manager.flusher.wake_soon(logs[which[0]])
            elif what == "flush" and not any(queue.pending for queue in queues):  # it would wait for them
                logs[which[0]].durability.flush_to(logs[which[0]].log_end_offset)
            elif what == "detach" and which[0] not in gone:
                gone.add(which[0])
                while queues[which[0]].started:
                    queues[which[0]].complete()
                flushers[which[0]].detach()
        for _ in range(3 * len(steps) + 3):
            for ident, (flusher, queue) in enumerate(zip(flushers, queues, strict=True)):
                storage.ident = ident
                while queue.started:
                    queue.complete()
                if ident not in gone:
                    flusher.ready()
                    flusher.begin_due()
            # Those of a processor that has gone are what a thread finishes first.
            live = [queue for ident, queue in enumerate(queues) if ident not in gone]
            while not any(queue.pending for queue in live) and storage.manager.flusher.threads[0].step(0):
                pass
        assert answered == dict.fromkeys(range(asked), 1)
        assert not storage.manager.flusher.waiting
        storage.stop()


@pytest.mark.parametrize("begun", [False, True], ids=["before it begins", "before it ends"])
def test_a_processor_does_not_wait_for_a_write_of_another_thread(storage: Storage, begun: bool) -> None:
    log, answers, queue = create(storage), Answers(), HandQueue()
    flusher = attached(storage, queue)
    append(log, b"x")
    storage.manager.flusher.wait_durable(log, 2, answers.to(1))
    if begun:
        flusher.begin_due()
        queue.complete()
    writing, gate = threading.Event(), threading.Event()

    def hang(what: str, path: str) -> None:
        if what == "write":
            writing.set()
            assert gate.wait(60)

    storage.disk.before = hang
    writer = threading.Thread(target=append, args=(log, b"y"))
    writer.start()
    try:
        assert writing.wait(20)
        (flusher.ready if begun else flusher.begin_due)()
        assert ({}, []) == (answers.by_name, queue.started)
    finally:
        gate.set()
        writer.join()
    threads_work(storage)
    assert {1: None} == answers.by_name
    assert log.durable_offset >= 2
