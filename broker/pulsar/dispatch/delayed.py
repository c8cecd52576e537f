"""Which delayed messages are due: the tracker of a subscription whose consumers share it (Shared, Key_Shared). Pure.

The dispatcher hands over each entry that has a time of delivery, and asks which are due whenever ``next_at`` has come. Times
are wall-clock ms. *Strict*: no entry is due before its time, and it is at most one width of a bucket late. Otherwise an entry
is due up to one tick before its time, as in Pulsar, which saves wake-ups.

Entries lie in buckets by time. The finest are as wide as the largest power of two in a tick (512 ms for the tick of 1 s);
those of each further level are 64 times as wide. An entry lies in the finest level that covers 64 buckets up to its time. When
the time of a coarse bucket comes, its entries move to finer ones, at most SLICE of them in a call. So there are few buckets
even for times years ahead, and an entry takes 16 bytes.

The memory is bounded: at ``most`` entries the tracker is ``full``, and the dispatcher reads no further until some are due.
What comes after them in the log is late then, never lost. ``paused`` says the same earlier for a topic on which every message
is delayed by the same time: those that follow are due later than all that are tracked (Pulsar's fixed-delay detection), so
reading them early has no use.

``next_at`` is exactly the time from which ``due`` returns or moves something: a timer set for it never finds nothing to do,
and whoever has called ``due`` until it returns nothing may wait for it. (Where these two differ, a subscription stands still:
Pulsar's issues 21554, 26012 and 26236.)
"""

from array import array
from heapq import heappop, heappush
from typing import Final

# Entries that are tracked at most: 16 MB.
ENTRIES_MAX: Final = 1_000_000
# How many are tracked when a fixed delay pauses reading, as in Pulsar (delayedDeliveryFixedDelayDetectionLookahead).
FIXED_DELAY_LOOK_AHEAD: Final = 50_000
# Entries of a coarse bucket that are moved in one call: 5 ms.
SLICE: Final = 10_000
_LEVEL_BITS: Final = 6  # 64 buckets of a level are one of the next
_LEVELS: Final = 6  # the coarsest are 17 years wide


class _Bucket:
    __slots__ = ("offsets", "times")

    def __init__(self) -> None:
        self.times = array("q")
        self.offsets = array("q")


class DelayedTracker:
    __slots__ = (
        "_buckets",
        "_count",
        "_early_ms",
        "_fixed",
        "_highest",
        "_latest_ms",
        "_look_ahead",
        "_most",
        "_now_ms",
        "_queue",
        "_ready",
        "_tick_ms",
        "_width_bits",
    )

    def __init__(
        self,
        tick_ms: int = 1000,
        strict: bool = False,
        *,
        most: int = ENTRIES_MAX,
        look_ahead: int = FIXED_DELAY_LOOK_AHEAD,
    ) -> None:
        self._early_ms = 0 if strict else tick_ms
        self._tick_ms = tick_ms
        self._width_bits = max(1, tick_ms).bit_length() - 1
        self._most = most
        self._look_ahead = look_ahead
        self._buckets: dict[tuple[int, int], _Bucket] = {}  # (level, start >> bits of the level)
        self._queue: list[
            tuple[int, int, int]
        ] = []  # a heap of (when it is looked at, level, number), one for each bucket
        self._ready = array("q")  # offsets that are due and were not taken, descending
        self._count = 0
        self._highest = -1  # offset
        self._latest_ms = 0  # time of delivery
        self._fixed = True
        self._now_ms = 0

    def __len__(self) -> int:
        """How many entries wait, those included that are due and were not taken."""
        return self._count

    # -- questions ----------------------------------------------------------------------------------------------------

    def is_due(self, deliver_at_ms: int, now_ms: int) -> bool:
        """Whether an entry that has just been read need not be tracked."""
        return deliver_at_ms <= now_ms + self._early_ms

    @property
    def full(self) -> bool:
        return self._count >= self._most

    @property
    def paused(self) -> bool:
        """Nothing more is to be read until some of the tracked entries are due: the tracker is full, or every message has the
        same delay and enough of them are tracked."""
        return self._count >= self._look_ahead and (self._fixed or self._count >= self._most)

    def next_at(self) -> int | None:
        """From when (wall-clock ms) on ``due`` has something to do; it may have passed. None: nothing is tracked."""
        if self._ready:
            return self._now_ms
        return self._queue[0][0] - self._early_ms if self._queue else None

    # -- changes ------------------------------------------------------------------------------------------------------

    def add(self, deliver_at_ms: int, offset: int) -> None:
        """Track the entry. Each at most once; ``clear`` is called before the log is read again."""
        if not self._count:
            self._forget_delays()
        self._count += 1
        self._highest = max(self._highest, offset)
        # As Pulsar: a message that is due more than a tick before another shows that the delays differ.
        if deliver_at_ms < self._latest_ms - self._tick_ms:
            self._fixed = False
        self._latest_ms = max(self._latest_ms, deliver_at_ms)
        self._put(deliver_at_ms, offset, _LEVELS - 1)

    def passed(self) -> None:
        """The dispatcher has read an entry that is not delayed, or no longer: there may be more of them to come."""
        self._fixed = False

    def due(self, now_ms: int, most: int) -> list[int]:
        """Offsets of up to ``most`` entries that are due, those of the earliest bucket first, ascending within it. They are no
        longer tracked.

        It may return none while ``next_at`` has passed: then it has moved a part of a large bucket and is to be called again.
        """
        self._now_ms = now_ms
        cutoff = now_ms + self._early_ms
        taken: list[int] = []
        moves = SLICE
        while len(taken) < most:
            ready = self._ready
            if ready:
                count = min(most - len(taken), len(ready))
                taken += ready[: -count - 1 : -1]
                del ready[-count:]
            elif self._queue and self._queue[0][0] <= cutoff and moves > 0:
                moves -= self._open(moves)
            else:
                break
        self._count -= len(taken)
        if not self._count:
            self._forget_delays()
        return taken

    def marked_deleted(self, offset: int) -> None:
        """Everything before the offset is acknowledged. Entries that were tracked all the same come out of ``due`` one day,
        unless this is all of them."""
        if offset > self._highest:
            self.clear()

    def clear(self) -> None:
        """Track nothing: the consumers have left, or the log is read again."""
        self._buckets.clear()
        self._queue.clear()
        self._ready = array("q")
        self._count = 0
        self._highest = -1
        self._forget_delays()

    def _forget_delays(self) -> None:
        self._fixed = True
        self._latest_ms = 0

    def _put(self, deliver_at_ms: int, offset: int, coarsest: int) -> None:
        bits = self._width_bits
        level = 0
        ahead = deliver_at_ms - self._now_ms
        while level < coarsest and ahead >> bits >= 1 << _LEVEL_BITS:
            level += 1
            bits += _LEVEL_BITS
        number = deliver_at_ms >> bits
        bucket = self._buckets.get((level, number))
        if bucket is None:
            bucket = self._buckets[level, number] = _Bucket()
            # The finest are due when the last of their entries is; coarser ones are opened when the first may be.
            at = ((number + 1) << bits) - 1 if level == 0 else number << bits
            heappush(self._queue, (at, level, number))
        bucket.times.append(deliver_at_ms)
        bucket.offsets.append(offset)

    def _open(self, moves: int) -> int:
        """The first bucket: take all it has, or move that many of its entries. How many were moved."""
        _, level, number = self._queue[0]
        bucket = self._buckets[level, number]
        if level == 0:
            self._remove_first()
            self._ready = array("q", sorted(bucket.offsets, reverse=True))
            return 0
        times, offsets = bucket.times[-moves:], bucket.offsets[-moves:]
        del bucket.times[-moves:], bucket.offsets[-moves:]
        if not bucket.offsets:
            self._remove_first()
        for deliver_at_ms, offset in zip(times, offsets, strict=True):
            self._put(deliver_at_ms, offset, level - 1)
        return len(offsets)

    def _remove_first(self) -> None:
        _, level, number = heappop(self._queue)
        del self._buckets[level, number]
