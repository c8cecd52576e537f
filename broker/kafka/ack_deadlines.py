"""Produce requests that wait for an fsync without occupying a thread, and their deadlines: a request that misses its deadline is
answered that it timed out.

Nearly all requests are answered within milliseconds. A timer for each would cost more than most of them are worth, so all are
checked together, a few times a second, as long as any request waits.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from broker.errors import StorageError
from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer
from broker.storage.log.log import Log
from broker.storage.upkeep.flusher import Flusher
from protocol.kafka.errors import ErrorCode

log = get_logger("kafka")

# The answer comes at most this long (s) after the deadline.
TICK_S = 0.25


class Waiting(Protocol):
    deadline: float  # Clock.monotonic() s

    def expire(self) -> None:
        """The deadline has passed, and the request has been removed here. Called on the timer's thread."""


class AckDeadlines:
    """Any thread may call ``add`` and ``remove``."""

    def __init__(self, clock: Clock, timer: Timer) -> None:
        self._clock = clock
        self._timer = timer
        self._waiting: dict[Waiting, None] = {}
        self._ticking = False
        self._lock = Lock()  # between threads that start the timer

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, waiting: Waiting) -> None:
        self._waiting[waiting] = None
        if not self._ticking:
            self._tick_on()

    def remove(self, waiting: Waiting) -> bool:
        """The request is answered. False if it was removed before: only the first caller may answer."""
        return self._waiting.pop(waiting, self) is None

    def _tick_on(self) -> None:
        with self._lock:
            if not self._ticking:
                self._ticking = True
                self._timer.at(self._clock.monotonic() + TICK_S, self._tick)

    def _tick(self) -> None:
        now = self._clock.monotonic()
        for waiting in self._waiting.copy():
            if waiting.deadline <= now and self.remove(waiting):
                try:
                    waiting.expire()
                except Exception as error:  # the seam: one request's failure must not keep the others waiting
                    log.error("timer_callback_failed", exc_info=error)
        self._ticking = False  # cleared first: a request that is added after the next line starts the timer itself
        if self._waiting:
            self._tick_on()


class Written(NamedTuple):
    """What was appended to one log: the indexes of the results, and the topic as the request calls it."""

    indexes: Sequence[int]
    topic: str | bytes
    log: Log


# An append that did not become durable in time: the error, with a message for the client.
Undurable = tuple[Written, ErrorCode, str | None]


class AwaitedFlush:
    """A request that waits until its records are durable. ``answer`` is called once, by the thread that has
    removed this from the deadlines.

    That is the thread that synced the last log, or the timer's; ``begin`` calls it at once if all is durable. Logs may be
    synced by several threads: no lock is needed, because each step that they share is one operation on a dict.
    """

    __slots__ = ("_answer", "_deadlines", "_undurable", "_waiting", "deadline")

    def __init__(self, deadlines: AckDeadlines, deadline: float, answer: Callable[[Iterable[Undurable]], None]) -> None:
        """``deadline``: Clock.monotonic() s."""
        self.deadline = deadline
        self._deadlines = deadlines
        self._answer = answer
        self._waiting: dict[int, Written] = {}
        self._undurable: dict[int, Undurable] = {}

    def begin(self, flusher: Flusher, written: Sequence[Written]) -> None:
        """Wait until these logs are durable up to their present ends."""
        self._waiting = dict(enumerate(written))
        self._deadlines.add(self)
        for number, appended in enumerate(written):
            flusher.wait_durable(appended.log, appended.log.log_end_offset, partial(self._flushed, number))

    def _flushed(self, number: int, error: StorageError | None) -> None:
        if error is not None:
            self._undurable[number] = self._waiting[number], ErrorCode.kafka_storage_error, str(error)
        del self._waiting[number]  # last: a thread that sees nothing waiting sees all errors
        if not self._waiting and self._deadlines.remove(self):
            self._answer(self._undurable.values())

    def expire(self) -> None:
        """The request has timed out. As in Kafka, the records may become durable all the same."""
        late = {
            number: (appended, ErrorCode.request_timed_out, None) for number, appended in self._waiting.copy().items()
        }
        self._answer((late | self._undurable).values())
