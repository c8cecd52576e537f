"""The threads that read entries: from the disk, and from batches of Kafka's producers, which are transcoded.

A few threads (``pulsar_reader_threads``) take jobs from the lines of all logs in turn. From one line only half of them work at a
time, so that neither a disk that is slow for one log nor a thousand subscriptions of one topic hold up the others for longer than
a job takes. Each job is short: one read batch of one log. It hands its result on and does not wait for anybody.

Tests: tests/pulsar/entries/test_reader.py.
"""

from collections import deque
from collections.abc import Callable, Sequence

import attrs

from broker.log import EventLimit, get_logger
from broker.network.part import PartThread
from broker.runtime.clock import Clock
from broker.runtime.threads import Condition, Lock

logger = get_logger("pulsar")

Job = Callable[[], None]


@attrs.define(eq=False)
class Line:
    """The jobs for one log, in order. Guarded by the lock of ``Readers``. ``ready``: it is among those whose turn comes."""

    jobs: deque[Job] = attrs.field(factory=deque)
    running: int = 0
    ready: bool = False


class Readers:
    """The lines, and the bodies of the threads. Any thread may call ``submit``."""

    def __init__(self, clock: Clock, threads: int) -> None:
        self._clock = clock
        self._width = max(1, threads // 2)  # threads that work for one line at a time
        self._changed = Condition()
        self._ready: deque[Line] = deque()  # lines with a job that may be done now, in turn
        self._own = Line()
        self._failures = EventLimit()
        # Held while a batch is translated that is large inside: one at a time is in memory.
        self.large = Lock()
        self.bodies: Sequence[_Reader] = [_Reader(self) for _ in range(threads)]

    def threads(self) -> list[PartThread]:
        """For the service's part."""
        return [PartThread(f"pulsar-reader-{number}", body) for number, body in enumerate(self.bodies)]

    def submit(self, job: Job, line: Line | None = None) -> None:
        """Have the job done after those that are in the line already; without one, after others that are for no log."""
        line = line or self._own
        with self._changed:
            line.jobs.append(job)
            self._offer(line)

    def _offer(self, line: Line) -> None:
        """The lock is held."""
        if line.jobs and not line.ready and line.running < self._width:
            line.ready = True
            self._ready.append(line)
            self._changed.notify()

    def take(self, reader: "_Reader", timeout: float | None) -> tuple[Line, Job] | None:
        with self._changed:
            if not self._ready and not reader.woken and timeout != 0:
                self._changed.wait(timeout)
            reader.woken = False
            if not self._ready:
                return None
            line = self._ready.popleft()
            line.ready = False
            line.running += 1
            job = line.jobs.popleft()
            self._offer(line)
            return line, job

    def run(self, line: Line, job: Job) -> None:
        try:
            job()
        except Exception as error:  # the seam: one read fails, never the thread
            dropped = self._failures.take(self._clock.monotonic())
            if dropped is not None:
                logger.error("entry_read_failed", exc_info=error, dropped=dropped)
        finally:
            with self._changed:
                line.running -= 1
                self._offer(line)

    def wake(self, reader: "_Reader") -> None:
        with self._changed:
            reader.woken = True
            self._changed.notify_all()


class _Reader:
    """The body of one thread. ``woken`` is guarded by the lock of ``Readers``."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self.woken = False

    def step(self, timeout: float | None) -> bool:
        taken = self._readers.take(self, timeout)
        if taken is None:
            return False
        self._readers.run(*taken)
        return True

    def wakeup(self) -> None:
        self._readers.wake(self)
