"""The flusher threads: one fsync answers every append to a log that waits for it (group commit), and several logs are synced at
once.

While an fsync of a log runs, new appends to it queue up; the next fsync covers all of them. No two threads sync the same log, but
many logs are synced at the same time: the kernel joins the commands that make a disk empty its cache, so 100 logs take hardly
longer than one, whereas one after the other they took 25 to 50 times as long. A log with much to write does not keep the others
waiting either. Appends that do not wait for an fsync (``acks=1``) are never queued here.

A processor that appends has the kernel sync the log, if the disk offers that, and goes on with other connections
(``ProcessorFlusher``); no other thread takes part. A flusher thread would cost a request two thread switches: one until the fsync
begins, one until the answer is sent. With little load, these took as long as half an fsync, and half of the CPU time. The
kernel's fsync (``Disk.sync_queue``) ends with one more event of the processor's poller. It begins when the processor has handled
everything that it has read. So appends to a log that arrived together share one fsync, and later appends share the next.

The threads are for everything else: appends on other threads, systems without asynchronous I/O, and logs that need more than the
fsync of one file, because they have a new segment or get a hint.

If the disk can sync many files for one thread (``Disk.sync_all``), a thread takes all logs that wait. This costs half the CPU
time of a thread for each log. Logs that need more than the fsync of one file are left to a thread of their own.

``Flusher`` may be used from any thread. Its ``lock`` guards the waiting logs and the idle threads; no other lock is taken under
it. A callback runs on the thread that has synced its log, while callbacks of other logs run on others.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf

from broker.errors import Refusal, StorageError
from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.runtime.disk import Disk, File, SyncQueue
from broker.runtime.threads import Lock, QueueEmpty, SimpleQueue, get_ident
from broker.storage.log.durability import Sync
from broker.storage.log.log import Log

logger = get_logger("storage")

Callback = Callable[[StorageError | None], None]

# The offset up to which to sync, and a callback. With offset 0 there is nothing to sync, and the callback only runs on one of
# these threads.
Waiters = list[tuple[int, Callback]]

# Of a flusher thread.
Task = Callable[[], None]

# How many logs are synced at once where a thread can sync only one log. With 100 logs, 2, 4, 8 and 16 threads took 21, 8, 3.7 and
# 2.2 % of the time that one took.
FLUSHER_THREADS = 8

# How many threads at most have several logs synced: the fewer, the more logs each takes and the less CPU time a log costs. A
# thread that has waited this long (s) for one of its logs is not counted.
_BATCHES = 2
_PATIENCE_S = 0.01

# While nobody has waited for an fsync for this long (s), appends that nobody waits for are left to the operating system.
_WAITS_AGAIN_S = 10.0

# How often logs with flush.ms are checked. Kafka's log.flush.scheduler.interval.ms is off by default; then the interval is
# flush.ms.
_FLUSH_MS_CHECK_S = 1.0


def _nobody(error: StorageError | None) -> None:
    """The callback of an fsync that nobody waits for."""


def _is_append(offset: int, callback: Callback) -> bool:
    """Whether an append waits for the fsync, and not only the broker itself."""
    return offset > 0 and callback is not _nobody


def _end_flush(log: Log, sync: Sync, error: OSError | None) -> StorageError | None:
    try:
        log.durability.end_flush(sync, error)
    except StorageError as failed:
        return failed
    return None


class Flusher:
    def __init__(
        self,
        clock: Clock,
        disk: Disk,
        with_flush_ms: Callable[[], list[Log]] = list,
        get_ident: Callable[[], int] = get_ident,
    ) -> None:
        """``with_flush_ms`` returns the logs whose flush.ms is set; ``get_ident`` tells threads apart."""
        self._clock = clock
        self._disk = disk
        self._at_once = disk.syncs_at_once()
        self._with_flush_ms = with_flush_ms
        self._next_check = clock.monotonic() + _FLUSH_MS_CHECK_S  # only the first thread uses it
        self._lock = Lock()
        # By log, the callbacks that the next fsync answers. A log that is queued or being synced has an entry.
        self._waiting: dict[Log, Waiters] = {}
        # Logs that no thread has taken. Empty if a thread is idle, unless a thread was woken, which takes all, or threads that
        # look here next are at work.
        self._queue: deque[Log] = deque()
        self._get_ident = get_ident
        self._of_processors: dict[int, deque[Log]] = {}  # by the processor's thread, the logs that it syncs itself
        self._tasks: deque[Task] = deque()  # left by a thread to another; empty if a thread is idle
        self._idle: list[FlusherThread] = []
        self._batches = 0  # how many threads have several logs synced, except those for which that takes long
        self._woken = False  # a thread was given a log and has not taken more from the queue yet
        self._last_wait = -inf  # when (monotonic s) an fsync was last answered
        self.threads = [FlusherThread(self, number == 0) for number in range(FLUSHER_THREADS)]

    @property
    def waiting(self) -> int:
        """Appends that wait for an fsync that has not begun."""
        with self._lock:
            return sum(
                _is_append(offset, callback) for waiters in self._waiting.values() for offset, callback in waiters
            )

    def wait_durable(self, log: Log, offset: int, callback: Callback) -> None:
        """Call ``callback(None)`` once every record before ``offset`` is durable, or ``callback(error)`` if that failed.

        It runs on a flusher thread or a processor's, or at once on the caller's if the records are durable already. It must be
        quick.
        """
        if log.durable_offset >= offset:
            callback(None)
        else:
            self._add(log, offset, callback)

    def flush_soon(self, log: Log) -> None:
        """fsync the log's present records; nothing waits for that."""
        self._add(log, log.log_end_offset, _nobody)

    def wake_soon(self, log: Log) -> None:
        """Call the log's watchers on a flusher thread."""
        self._add(log, 0, lambda _: log.watchers.wake())

    def begin_soon(self, log: Log) -> None:
        """Have the operating system begin to write appends that nobody waits for, if others wait for fsyncs.

        Otherwise it writes nothing for up to half a minute and then hundreds of MB at once, and every fsync waits behind them.
        """
        if self._clock.monotonic() - self._last_wait < _WAITS_AGAIN_S:
            self._add(log, 0, lambda _: log.durability.begin_sync())

    def _add(self, log: Log, offset: int, callback: Callback) -> None:
        with self._lock:
            waiters = self._waiting.get(log)
            if waiters is not None:
                waiters.append((offset, callback))
                return
            self._waiting[log] = [(offset, callback)]
            if self._of_processors:
                due = self._of_processors.get(self._get_ident())
                if due is not None:
                    due.append(log)
                    return
            self._queue.append(log)
            self._wake_one()

    def _wake_one(self) -> None:
        """Give the queued log to an idle thread, unless others take it soon enough. ``lock`` is held."""
        if self._queue and self._idle and not self._woken and self._batches < _BATCHES:
            self._woken = self._at_once > 1
            self._idle.pop().inbox.put(partial(self._flush, self._queue.popleft()))  # the thread that worked last

    # -- for the threads -----------------------------------------------------------------------------------------------

    def take(self, idle: "FlusherThread | None") -> Task | None:
        """The task that has waited longest. If there is none, ``idle`` gets the next task into its inbox."""
        with self._lock:
            if self._tasks:
                return self._tasks.popleft()
            if self._queue:
                return partial(self._flush, self._queue.popleft())
            if idle is not None:
                self._idle.append(idle)
            return None

    def take_left(self) -> Task | None:
        """A task that a thread, or a processor that has ended, has left to another thread."""
        with self._lock:
            return self._tasks.popleft() if self._tasks else None

    def not_idle(self, thread: "FlusherThread") -> None:
        """The thread waits no more. It may have got a log before this returns, but gets none afterwards."""
        with self._lock:
            if thread in self._idle:
                self._idle.remove(thread)

    def _flush(self, log: Log) -> None:
        """fsync this log, and the logs that wait with it, for all their waiters."""
        logs = [log]
        if self._at_once > 1:
            with self._lock:
                self._woken = False
                while self._queue and len(logs) < self._at_once:
                    logs.append(self._queue.popleft())
                self._wake_one()
        if len(logs) > 1:
            self._flush_together(logs)
        else:
            self._flush_alone(log, self.begin(log))

    def _flush_alone(self, log: Log, waiters: Waiters) -> None:
        error: StorageError | None = None
        try:
            log.durability.flush_to(max(offset for offset, _ in waiters))
        except StorageError as failed:
            error = failed
        except Refusal as deleted:  # the topic was deleted
            error = StorageError(str(deleted))
        self.end(log, waiters, error)

    def _flush_together(self, logs: list[Log]) -> None:
        begun: list[tuple[Log, Waiters, Sync]] = []
        files: list[File] = []
        for log in logs:
            waiters = self.begin(log)
            flush = self.begin_sync(log, waiters)
            if flush is None:
                self.hand_over(partial(self._flush_alone, log, waiters))
            else:
                begun.append((log, waiters, flush[0]))
                files.append(flush[1])
        with self._lock:
            self._batches += 1
        counted = 1
        answers: list[tuple[Log, Waiters, StorageError | None]] = []
        for done in self._disk.sync_all(files, _PATIENCE_S):
            if done is None:  # this takes long, so others must do the rest of the work
                with self._lock:
                    self._batches -= counted
                    counted = 0
                    self._wake_one()
                if answers:
                    self.hand_over(partial(self._end_all, answers))
                    answers = []
                continue
            log, waiters, sync = begun[done[0]]
            answers.append((log, waiters, _end_flush(log, sync, done[1])))
        # Not before: a callback may append to a log of this batch, and wait for its fsync, which has not ended.
        self._end_all(answers)
        with self._lock:
            self._batches -= counted

    def _end_all(self, answers: list[tuple[Log, Waiters, StorageError | None]]) -> None:
        for log, waiters, error in answers:
            self.end(log, waiters, error)

    def hand_over(self, task: Task) -> None:
        """Give a task to an idle thread."""
        with self._lock:
            if self._idle:
                self._idle.pop().inbox.put(task)
            else:
                self._tasks.append(task)

    def begin(self, log: Log) -> Waiters:
        """The callbacks that wait for the fsync that begins now."""
        with self._lock:
            waiters, self._waiting[log] = self._waiting[log], []
        return waiters

    def begin_sync(self, log: Log, waiters: Waiters) -> tuple[Sync, File] | None:
        """None if the waiters need more than the fsync of one file, or must wait before it begins."""
        offsets = [offset for offset, _ in waiters]
        # 0: a hint, which may wait for the disk, or watchers.
        return log.durability.begin_flush(max(offsets)) if min(offsets) else None

    def end_sync(
        self, log: Log, waiters: Waiters, sync: Sync, error: OSError | None, queue: deque[Log] | None = None
    ) -> None:
        """Call ``end`` after the fsync of the file, which may have failed."""
        self.end(log, waiters, _end_flush(log, sync, error), queue)

    def end(self, log: Log, waiters: Waiters, error: StorageError | None, queue: deque[Log] | None = None) -> None:
        """Answer the waiters. Later waiters are queued behind the other logs, in ``queue`` or for the threads."""
        if any(_is_append(offset, callback) for offset, callback in waiters):
            self._last_wait = self._clock.monotonic()
        durable = log.durable_offset
        for offset, callback in waiters:
            callback(None if durable >= offset else error)
        with self._lock:
            if self._waiting[log]:
                # The thread that calls this looks into ``queue`` next.
                (self._queue if queue is None else queue).append(log)
            else:
                del self._waiting[log]

    # -- for processors --------------------------------------------------------------------------------------------------

    def join(self, due: deque[Log]) -> None:
        """From now on, logs to which the calling thread has appended are put into ``due``, and it syncs them."""
        self.leave(due)  # the thread that did so before
        with self._lock:
            self._of_processors = {**self._of_processors, self._get_ident(): due}

    def leave(self, due: deque[Log]) -> None:
        """Put nothing into ``due`` any more. Any thread."""
        with self._lock:
            self._of_processors = {ident: each for ident, each in self._of_processors.items() if each is not due}

    def leave_to_threads(self, log: Log, waiters: Waiters) -> None:
        """Have one of the threads sync this log, for these waiters and those that arrive before it begins."""
        with self._lock:
            self._waiting[log][:0] = waiters
            self._queue.append(log)
            self._wake_one()

    # -- for logs with flush.ms ------------------------------------------------------------------------------------------

    def until_check(self, timeout: float | None) -> float:
        """The longest time to wait before logs with flush.ms must be checked."""
        left = self._next_check - self._clock.monotonic()
        return max(0.0, left if timeout is None else min(timeout, left))

    def flush_by_time(self) -> None:
        """Queue the logs whose oldest undurable record is older than flush.ms, if a check is due."""
        if self._clock.monotonic() < self._next_check:
            return
        self._next_check = self._clock.monotonic() + _FLUSH_MS_CHECK_S
        now_ms = self._clock.time_ms()
        for log in self._with_flush_ms():
            due = (
                log.durable_offset < log.log_end_offset and now_ms - log.durability.last_flush_ms >= log.config.flush_ms
            )
            if due or now_ms < log.durability.last_flush_ms:  # the clock was set back
                self.flush_soon(log)


class FlusherThread:
    """The body of one of the threads. The first thread also checks flush.ms."""

    def __init__(self, flusher: Flusher, is_first: bool) -> None:
        self._flusher = flusher
        self._is_first = is_first
        # The tasks given to it while it was idle; None only wakes it.
        self.inbox: SimpleQueue[Task | None] = SimpleQueue()

    def step(self, timeout: float | None) -> bool:
        """Sync one log, or the logs that wait together."""
        flusher = self._flusher
        if self._is_first:
            flusher.flush_by_time()
            timeout = flusher.until_check(timeout)
        task = flusher.take(self if timeout != 0 else None)
        if task is None and timeout != 0:
            task = self._wait(timeout)
        if task is None:
            return False
        task()
        # Even if this thread is to end: other threads rely on it for tasks that they left.
        while (left := flusher.take_left()) is not None:
            left()
        return True

    def _wait(self, timeout: float | None) -> Task | None:
        """Wait for a log from another thread."""
        task: Task | None = None
        try:
            task = self.inbox.get(True, timeout)
        except QueueEmpty:
            pass
        if task is not None:
            return task
        self._flusher.not_idle(self)
        try:
            while task is None:  # it may have been woken several times
                task = self.inbox.get_nowait()
        except QueueEmpty:
            pass
        return task

    def wakeup(self) -> None:
        self.inbox.put(None)


# A log and the waiters for its fsync, which has begun.
_Begun = tuple[Log, Waiters, Sync]

# How long (s) a flusher thread waits at a time for the fsyncs of a processor that has ended.
_PROCESSOR_FLUSHER_PATIENCE_S = 60.0


def processor_flusher(flusher: Flusher, disk: Disk) -> "ProcessorFlusher | None":
    """The flusher of another processor; None if the disk needs threads for its fsyncs."""
    syncs = disk.sync_queue()
    return None if syncs is None else ProcessorFlusher(flusher, syncs)


class ProcessorFlusher:
    """An attachment of a processor. A log is in ``due``, or its fsync has begun here, or others have it."""

    def __init__(self, flusher: Flusher, syncs: SyncQueue) -> None:
        self.due: deque[Log] = deque()
        self._flusher = flusher
        self.source = self._syncs = syncs

    def attach(self) -> None:
        self._flusher.join(self.due)

    def begin_due(self) -> None:
        flusher, room = self._flusher, self._syncs.room
        requests: list[tuple[_Begun, File]] = []
        while self.due:
            log = self.due.popleft()
            waiters = flusher.begin(log)
            offsets = [offset for offset, _ in waiters]
            if 0 < min(offsets) and max(offsets) <= log.durable_offset:  # the last fsync began after these appends
                flusher.end(log, waiters, None, self.due)
                continue
            # Another thread is writing, and holds the log's lock until the disk lets it go on.
            waits = log.state.writing_since
            flush = flusher.begin_sync(log, waiters) if len(requests) < room and not waits else None
            if flush is None:
                flusher.leave_to_threads(log, waiters)
            else:
                requests.append(((log, waiters, flush[0]), flush[1]))
        taken = self._syncs.start(requests) if requests else 0
        for begun, file in requests[taken:]:
            flusher.hand_over(partial(self._sync, begun, file))

    def ready(self) -> None:
        for (log, waiters, sync), error in self._syncs.results():
            if log.state.writing_since:  # as in ``begin_due``
                self._flusher.hand_over(partial(self._flusher.end_sync, log, waiters, sync, error))
            else:
                self._flusher.end_sync(log, waiters, sync, error, self.due)

    def detach(self) -> None:
        self._flusher.leave(self.due)
        self._leave_due()
        if self._syncs.pending:
            self._flusher.hand_over(self._finish)
        else:
            self._syncs.close()

    def _finish(self) -> None:
        """Finish on a flusher thread, because the processor has ended."""
        while self._syncs.pending:
            for (log, waiters, sync), error in self._syncs.results(_PROCESSOR_FLUSHER_PATIENCE_S):
                self._flusher.end_sync(log, waiters, sync, error, self.due)
            self._leave_due()  # not after the fsyncs for which this thread still waits
        self._syncs.close()

    def _leave_due(self) -> None:
        while self.due:
            self._flusher.leave_to_threads(self.due.popleft(), [])

    def _sync(self, begun: _Begun, file: File) -> None:
        """Sync on a flusher thread, because the kernel did not take the fsync."""
        error: OSError | None = None
        try:
            file.sync()
        except OSError as failed:
            error = failed
        self._flusher.end_sync(*begun, error)
