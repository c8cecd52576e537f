"""When a writer is told that it need not keep its pushes any longer.

A writer stops when what it keeps fills its window, and the broker does not know how large that is. So an acknowledgement must
not depend on what the writer sends next. It is due when one of these is reached, whichever comes first:

    reached                                          decided by
    ``AFTER_BYTES`` of payloads                      ``Unacknowledged``
    a push, ``WITHIN_S`` after the acknowledgement   ``Unacknowledged``: it costs a frame, where a timer wakes two threads
    before
    a quarter of the pushes granted                  ``writers.py``, with the next credit
    ``WITHIN_S`` after any other push                ``Soon``, on the timer's thread

The first three keep a stream going without a pause. The last one is for a connection that has fallen idle: whatever window and
buffer size a writer has, it is told about everything that has arrived.

``Unacknowledged`` is pure and belongs to the processor of the writer's connection.
"""

from collections.abc import Callable, Iterable
from math import inf

from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer

# As many bytes as 32 of Flink's buffers: a frame of some 30 bytes for each MiB costs nothing, and no writer has a smaller
# window without good reason.
AFTER_BYTES = 1024 * 1024
# A writer whose window holds a single buffer waits this long for each. So there are at most 50 acknowledgements a second for each
# writer beside those of its bytes and credits, and 50 wake-ups for all. With 5 ms, 16 writers cost the broker a tenth more.
WITHIN_S = 0.020


class Unacknowledged:
    """What has been taken from one writer since the last acknowledgement."""

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
        """(subpartition, next sequence) of each subpartition that had a push; they count as acknowledged."""
        taken, self._next = self._next, {}
        self.size = 0
        self._at = now
        return taken.items()


class Soon:
    """Calls, ``WITHIN_S`` later, all that have asked for it meanwhile. For all connections; from any thread."""

    def __init__(self, clock: Clock, timer: Timer) -> None:
        self._clock = clock
        self._timer = timer
        self._lock = Lock()
        self._waiting: list[Callable[[], None]] = []

    def call(self, callback: Callable[[], None]) -> None:
        """On the timer's thread."""
        with self._lock:
            self._waiting.append(callback)
            first = len(self._waiting) == 1
        if first:
            self._timer.at(self._clock.monotonic() + WITHIN_S, self._due)

    def _due(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()
