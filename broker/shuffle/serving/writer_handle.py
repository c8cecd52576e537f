"""A writer's opened partition: its handle, its credit, and the acknowledgement of its pushes.

A handle is owned by the connection's processor. Credit counts buffers and is backed by bytes: for each credit, the budget
reserves room for a buffer as large as the writer's last ones; before its first push, for one of Flink's 32 KiB.

A window is the number of pushes that a writer may be ahead of its grants. It holds at most as many bytes as a window of 32 KiB
buffers, but always a few buffers. A writer of small buffers gets up to eight times as many, because a writer that waits after
each 64 KiB mostly waits.

A writer keeps its pushes until they are acknowledged, and stops when they fill its window. The broker does not know the size of
that window, so an acknowledgement must not depend on the writer's next push. It is due when the first of these is reached:

    reached                                          decided by
    ``AFTER_BYTES`` of payloads                      ``Unacknowledged``
    a push, ``WITHIN_S`` after the last              ``Unacknowledged``: it costs a frame, where a timer wakes two threads
    acknowledgement
    a quarter of the pushes granted                  ``writers.py``, with the next credit
    ``WITHIN_S`` after any other push                ``Soon``, on the timer's thread

The first three keep a stream going without a pause. The last is for a connection that has become idle: whatever its window and
buffer size, its writer gets an acknowledgement of everything that has arrived.

``Unacknowledged`` is pure and belongs to the processor of the writer's connection. All connections share ``Soon``.

Tests: tests/shuffle/test_writing.py,
tests/shuffle/test_bounds.py.
"""

from collections.abc import Callable, Iterable
from math import inf

from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer
from broker.shuffle.partition.budget import IN_MEMORY_BYTES, Budget
from broker.shuffle.partition.result_partition import ResultPartition

log = get_logger("shuffle")

# As many bytes as 32 of Flink's buffers: a frame of some 30 bytes for each MiB costs nothing, and no writer has a smaller window
# without good reason.
AFTER_BYTES = 1024 * 1024
# A writer with a window of a single buffer waits this long for each. It causes at most 50 acknowledgements a second for each
# writer, in addition to those for its bytes and credits, and 50 wake-ups for all writers. With 5 ms, 16 writers cost the broker
# 10 % more.
WITHIN_S = 0.020


class Unacknowledged:
    """A writer's pushes since the last acknowledgement."""

    __slots__ = ("_at", "_next", "size")

    def __init__(self) -> None:
        self.size = 0  # bytes of payloads
        self._at = -inf  # time of the last acknowledgement (monotonic, s)
        self._next: dict[int, int] = {}  # subpartition -> the number expected next

    def __bool__(self) -> bool:
        return bool(self._next)

    def add(self, subpartition: int, next_sequence: int, size: int, now: float) -> bool:
        """A push of ``size`` bytes has been taken, at ``now`` (monotonic, s). True: acknowledge now."""
        self._next[subpartition] = next_sequence
        self.size += size
        return self.size >= AFTER_BYTES or now - self._at >= WITHIN_S

    def take(self, now: float) -> Iterable[tuple[int, int]]:
        """(subpartition, next sequence) of each subpartition with a push; they now count as acknowledged."""
        taken, self._next = self._next, {}
        self.size = 0
        self._at = now
        return taken.items()


class Soon:
    """Calls all callbacks registered within ``WITHIN_S`` of the first, after that time. Any thread may register."""

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
            except Exception as error:  # the seam: a failing callback must not delay the others
                log.error("timer_callback_failed", exc_info=error)


# A window holds this many bytes for each push of its initial size, if buffers are smaller than that; and at most this many times
# the pushes.
_SMALL_BYTES = 8 * 1024
_LARGER_MAX = 8
# The fewest pushes by which the size of the next pushes is estimated.
_JUDGED_BY = 16
# The assumed size of a buffer before the first push; windows of larger buffers have fewer: Flink's memory segment.
_BUFFER_BYTES = 32 * 1024
# A window of larger buffers has at least this many.
_LARGE_MIN = 4
# Credit is for buffers as large as the largest of the last 64 to 128, which may come again.
_REMEMBERED = 64


class WriterHandle:
    """``epoch``: of this opening. ``initial_window``: pushes granted at first.

    Its only state is ``finishing``: the writer has pushed everything, and waits for the answer. A closed handle is
    removed from the connection's table.
    """

    __slots__ = (
        "_budget",
        "_initial_window",
        "_largest_before",
        "_pushes",
        "epoch",
        "finishing",
        "largest",
        "number",
        "partition",
        "reserved",
        "unacknowledged",
        "used",
        "used_bytes",
        "window",
    )

    def __init__(
        self, number: int, partition: ResultPartition, epoch: int, initial_window: int, budget: Budget
    ) -> None:
        self.number = number
        self.partition = partition
        self.epoch = epoch
        self.finishing = False
        self.unacknowledged = Unacknowledged()
        self.window = 0  # pushes that it may be ahead of its grants
        # The next three are counted by `Writers.push`, for each buffer.
        self.used = 0  # credits used and not granted again
        self.used_bytes = 0  # bytes of these pushes
        self.largest = 0  # bytes of the largest of the last pushes, up to 64
        self._largest_before = partition.lease.buffer_bytes or min(_BUFFER_BYTES, budget.memory_max // 8)
        self._pushes = 0  # pushes granted again since then
        self.reserved = 0  # bytes that the budget reserves for its credit, used credit included
        self._initial_window = initial_window
        self._budget = budget

    @property
    def buffer_bytes(self) -> int:
        """The estimated size of the next buffer, from the last buffers."""
        return max(self.largest, self._largest_before)

    @property
    def left(self) -> int:
        """Unused credits."""
        return self.window - self.used

    def promise(self) -> int:
        """Grant it as much new credit as its window and the budget have room for; returns the number of credits.

        If it has none left and gets none, its partition announces room later.
        """
        left = self.left
        wanted = self._fitting_window() - left
        each = self.buffer_bytes + IN_MEMORY_BYTES
        # Marked before the budget is asked, so that room freed in between is announced.
        self.partition.hold_writer_back()
        granted = self._budget.promise(max(wanted, 1 - left), each, left == 0) if wanted > 0 or left == 0 else 0
        if granted or left:
            self.partition.hold_writer_back(False)
            self.reserved += granted * each
            self.window = left + granted
            self._forget_sizes()
            self.used = self.used_bytes = 0
        return granted

    def reserve_left(self) -> None:
        """Reserve only for its unused credit: its pushes are counted as held by now."""
        self._reserve(min(self.reserved, self.left * (self.buffer_bytes + IN_MEMORY_BYTES)))

    def give_up_credit(self) -> None:
        """It pushes no more: others may have its reserved room."""
        self._reserve(0, unused=True)

    def _reserve(self, size: int, unused: bool = False) -> None:
        if size != self.reserved:
            self._budget.unreserve(self.reserved - size, unused)
            self.reserved = size

    def _forget_sizes(self) -> None:
        self._pushes += self.used
        if self._pushes >= _REMEMBERED:
            self._largest_before, self.largest, self._pushes = self.largest, 0, 0

    def _fitting_window(self) -> int:
        """The window for pushes as large as the last ones."""
        size, initial = self.buffer_bytes, self._initial_window
        if size > _BUFFER_BYTES:
            return max(min(_LARGE_MIN, initial), initial * _BUFFER_BYTES // size)
        if self.used < _JUDGED_BY:
            return max(initial, self.window)
        fitting = initial * _SMALL_BYTES * self.used // max(1, self.used_bytes)
        return max(initial, min(fitting, initial * _LARGER_MAX))
