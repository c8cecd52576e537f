"""The threads that read entries: from the disk, and from batches of Kafka's producers, which are transcoded.

One queue and a few threads (``pulsar_reader_threads``), so that a read that waits for the disk holds up the others only when as
many wait. Each job is short: one read batch of one log. A job hands its result on and does not wait for anybody.

Tests: tests/pulsar/entries/test_reader.py.
"""

from collections import deque
from collections.abc import Callable, Sequence

from broker.log import EventLimit, get_logger
from broker.network.part import PartThread
from broker.runtime.clock import Clock
from broker.runtime.threads import Condition, Lock

logger = get_logger("pulsar")

Job = Callable[[], None]


class Readers:
    """The queue, and the bodies of its threads. Any thread may call ``submit``."""

    def __init__(self, clock: Clock, threads: int) -> None:
        self._clock = clock
        self._changed = Condition()
        self._jobs: deque[Job] = deque()
        self._failures = EventLimit()
        # Held while a batch is translated that is large inside: one at a time is in memory.
        self.large = Lock()
        self.bodies: Sequence[_Reader] = [_Reader(self) for _ in range(threads)]

    def threads(self) -> list[PartThread]:
        """For the service's part."""
        return [PartThread(f"pulsar-reader-{number}", body) for number, body in enumerate(self.bodies)]

    def submit(self, job: Job) -> None:
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()

    def take(self, reader: "_Reader", timeout: float | None) -> Job | None:
        with self._changed:
            if not self._jobs and not reader.woken and timeout != 0:
                self._changed.wait(timeout)
            reader.woken = False
            return self._jobs.popleft() if self._jobs else None

    def run(self, job: Job) -> None:
        try:
            job()
        except Exception as error:  # the seam: one read fails, never the thread
            dropped = self._failures.take(self._clock.monotonic())
            if dropped is not None:
                logger.error("entry_read_failed", exc_info=error, dropped=dropped)

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
        job = self._readers.take(self, timeout)
        if job is None:
            return False
        self._readers.run(job)
        return True

    def wakeup(self) -> None:
        self._readers.wake(self)
