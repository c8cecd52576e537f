"""When a writer is told that it need not keep its pushes any longer.

A writer keeps its pushes until they are acknowledged, and stops when they fill its window. The broker does not know how large
that window is, so an acknowledgement must not depend on what the writer sends next. It is due when the first of these is
reached:

    reached                                          decided by
    ``AFTER_BYTES`` of payloads                      ``Unacknowledged``
    a push, ``WITHIN_S`` after the last              ``Unacknowledged``: it costs a frame, where a timer wakes two threads
    acknowledgement
    a quarter of the pushes granted                  ``writers.py``, with the next credit
    ``WITHIN_S`` after any other push                ``Soon``, on the timer's thread

The first three keep a stream going without a pause. The last is for a connection that has fallen idle: whatever its window and
buffer size, its writer is told about everything that has arrived.

``Unacknowledged`` is pure and belongs to the processor of the writer's connection. ``Soon`` is shared by all connections.
"""

from collections.abc import Callable, Iterable
from math import inf

from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer

log = get_logger("shuffle")

# As many bytes as 32 of Flink's buffers: a frame of some 30 bytes for each MiB costs nothing, and no writer has a smaller
# window without good reason.
AFTER_BYTES = 1024 * 1024
# A writer whose window holds a single buffer waits this long for each. It makes at most 50 acknowledgements a second for each
# writer, beside those for its bytes and credits, and 50 wake-ups for all writers. With 5 ms, 16 writers cost the broker a tenth
# more.
WITHIN_S = 0.020


class Unacknowledged:
    """What one writer has pushed since the last acknowledgement."""

    __slots__ = ("_at", "_next", "size")

    def __init__(self) -> None:
        self.size = 0  # bytes of payloads
        self._at = -inf  # when they were acknowledged last
        self._next: dict[int, int] = {}  # subpartition -> the number expected next

    def __bool__(self) -> bool:
        return bool(self._next)

    def add(self, subpartition: int, next_sequence: int, size: int, now: float) -> bool:
        """A push of ``size`` bytes has been taken, at ``now`` (monotonic, s). True: acknowledge now."""
        self._next[subpartition] = next_sequence
        self.size += size
        return self.size >= AFTER_BYTES or now - self._at >= WITHIN_S

    def take(self, now: float) -> Iterable[tuple[int, int]]:
        """(subpartition, next sequence) of each subpartition that had a push; from now on they count as acknowledged."""
        taken, self._next = self._next, {}
        self.size = 0
        self._at = now
        return taken.items()


class Soon:
    """Calls back, ``WITHIN_S`` after the first request, everybody that has asked for it meanwhile. Any thread may ask."""

    def __init__(self, clock: Clock, timer: Timer) -> None:
        self._clock = clock
        self._timer = timer
        self._lock = Lock()
        self._waiting: list[Callable[[], None]] = []

    def call(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called on the timer's thread."""
        with self._lock:
            self._waiting.append(callback)
            first = len(self._waiting) == 1
        if first:
            self._timer.at(self._clock.monotonic() + WITHIN_S, self._due)

    def _due(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for callback in waiting:
            try:
                callback()
            except Exception as error:  # the seam: what fails for one is not to keep the others waiting
                log.error("timer_callback_failed", exc_info=error)
