"""Tracks delayed messages of a subscription with shared consumers (Shared, Key_Shared) until they are due. Pure.

The dispatcher adds each entry that has a time of delivery, and asks for due entries whenever ``next_at`` has come. Times are
wall-clock ms. *Strict*: no entry is due before its time, and it is at most the width of a bucket late. Otherwise an entry is due
up to one tick before its time, as in Pulsar, which saves wake-ups.

Entries lie in buckets by time. The finest buckets are as wide as the largest power of two in a tick (512 ms for the tick of 1 s);
those of each further level are 64 times as wide. An entry lies in the finest level that covers 64 buckets up to its time. When
the time of a coarse bucket comes, its entries move to finer buckets, at most SLICE of them in a call. So there are few buckets
even for times years ahead, and an entry takes 16 bytes.

The memory is bounded: at ``most`` entries the tracker is ``full``, and the dispatcher reads no further until some are due.
Later entries in the log are then delivered late, but never lost. ``paused`` is true earlier for a topic on which every message
has the same delay: later messages are due after all tracked messages (Pulsar's fixed-delay detection), so reading them early has
no use.

``next_at`` is exactly the time from which ``due`` returns or moves entries: a timer set for it always has work to do, and a
caller that has called ``due`` until it returns nothing may wait for it. (If these two differ, a subscription stands still:
Pulsar's issues 21554, 26012 and 26236.)
"""

from array import array
from heapq import heappop, heappush
from typing import Final

# Entries that are tracked at most: 16 MB.
ENTRIES_MAX: Final = 1_000_000
# The number of tracked entries at which a fixed delay pauses reading (Pulsar's delayedDeliveryFixedDelayDetectionLookahead).
FIXED_DELAY_LOOK_AHEAD: Final = 50_000
# Entries of a coarse bucket that are moved in one call: 5 ms.
SLICE: Final = 10_000
_LEVEL_BITS: Final = 6  # 64 buckets of a level are a bucket of the next level
_LEVELS: Final = 6  # the coarsest buckets are 17 years wide


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
        ] = []  # a heap of (time at which it is opened, level, number), one for each bucket
        self._ready = array("q")  # due offsets that were not taken, descending
        self._count = 0
        self._highest = -1  # offset
        self._latest_ms = 0  # time of delivery
        self._fixed = True
        self._now_ms = 0

    def __len__(self) -> int:
        """The number of tracked entries, including due entries that were not taken."""
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
        """No more entries should be read until some of the tracked entries are due: the tracker is full, or every message has
        the same delay and enough of them are tracked."""
        return self._count >= self._look_ahead and (self._fixed or self._count >= self._most)

    def next_at(self) -> int | None:
        """The time (wall-clock ms) from which ``due`` has work to do; it may have passed. None: nothing is tracked."""
        if self._ready:
            return self._now_ms
        return self._queue[0][0] - self._early_ms if self._queue else None

    # -- changes ------------------------------------------------------------------------------------------------------

    def add(self, deliver_at_ms: int, offset: int) -> None:
        """Track the entry. An entry may be added only once; ``clear`` is called before the log is read again."""
        if not self._count:
            self._forget_delays()
        self._count += 1
        self._highest = max(self._highest, offset)
        # As in Pulsar: a message that is due more than a tick before another shows that the delays differ.
        if deliver_at_ms < self._latest_ms - self._tick_ms:
            self._fixed = False
        self._latest_ms = max(self._latest_ms, deliver_at_ms)
        self._put(deliver_at_ms, offset, _LEVELS - 1)

    def passed(self) -> None:
        """The dispatcher has read an entry that is not or no longer delayed: more such entries may follow."""
        self._fixed = False

    def due(self, now_ms: int, most: int) -> list[int]:
        """Remove and return the offsets of up to ``most`` due entries, by bucket, and ascending within a bucket.

        May return none although ``next_at`` has passed: it has moved a part of a large bucket and must be called again.
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
        """Everything before the offset is acknowledged. If that includes all tracked entries, they are dropped; otherwise
        ``due`` still returns acknowledged entries at their time."""
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
            # The finest buckets are due when the last of their entries is; coarser ones are opened when the first may be.
            at = ((number + 1) << bits) - 1 if level == 0 else number << bits
            heappush(self._queue, (at, level, number))
        bucket.times.append(deliver_at_ms)
        bucket.offsets.append(offset)

    def _open(self, moves: int) -> int:
        """Open the first bucket: a finest bucket becomes ready; of a coarser one, up to ``moves`` entries move. Returns the
        number of moved entries."""
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
