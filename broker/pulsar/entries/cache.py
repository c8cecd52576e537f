"""Recent entries of all topics, in memory, so that consumers at the end of a topic are served without a look at the log.

One queue over all topics, oldest first (Pulsar's PIP-430). What is in it goes when it is old, or when the bytes exceed their
bound. An entry that cursors still have to read goes to the end of the queue instead, a few times at most, because a reader that
never comes must not keep it. One call never does more than a fixed amount of that work; what was left is done by the next calls.

The data of an entry is what was received, or what was read: the cache makes no copy. Any thread may call. Looking up takes no
lock; putting in and removing do, for a moment.
"""

from collections import deque
from collections.abc import Callable, Sequence

import attrs

from broker.pulsar.entry import Entry
from broker.runtime.clock import Clock
from broker.runtime.disk import FileRegion
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer, TimerHandle

# What an entry takes beside its data: itself, its keys, views, the batch around its data, and its place in the queue (measured).
OVERHEAD_BYTES = 900
# How long an entry stays that no cursor is known to need (s), and how often one that is needed begins anew. Pulsar's numbers.
MAX_AGE_S = 1.0
MOST_REQUEUES = 5
# Entries that one call looks at. Each put looks at more than it adds, so the queue does not outgrow the bound for long.
STEP = 64


@attrs.define(eq=False)
class _Cached:
    """``keys`` are the offsets under which it is found: its own, and the one from which on a reader meets it first."""

    entry: Entry
    keys: tuple[int, ...]
    of: "LogEntries"
    size: int
    since: float  # when it was put in, or put back
    # Reads that are expected. Counted down without a lock: where two threads meet, the entry goes a little later, or sooner.
    expected: int
    requeues: int = 0


class LogEntries:
    """The cached entries of one log. Whoever reads the log holds it, and closes it when the log is closed or deleted."""

    __slots__ = ("_cache", "_entries", "closed", "cursors")

    def __init__(self, cache: "EntryCache") -> None:
        self._cache = cache
        self._entries: dict[int, _Cached] = {}
        self.closed = False
        # Cursors with consumers: that many reads of each new entry are expected.
        self.cursors = 0

    def get(self, offset: int) -> Entry | None:
        """The entry that a reader at ``offset`` meets first."""
        cached = self._entries.get(offset)
        if cached is None:
            return None
        cached.expected -= 1
        return cached.entry

    def expect(self, offsets: Sequence[int]) -> None:
        """These entries will be read once more: they are to be delivered again."""
        for offset in offsets:
            cached = self._entries.get(offset)
            if cached is not None:
                cached.expected += 1

    def put(self, entries: Sequence[Entry], start: int | None = None, expected: int | None = None) -> None:
        """Keep these, which follow each other; what lies between two of them is not for consumers. ``start``: a reader that goes
        on from there meets the first of them first. ``expected``: how many reads of each, if not one for each cursor."""
        self._cache.put(self, entries, start, self.cursors if expected is None else expected)

    def close(self) -> None:
        """Forget all entries. Their places in the queue are empty from then on, and go in their turn."""
        self.closed = True
        self._cache.drop(self)


class EntryCache:
    """``max_bytes`` bounds what is kept, of all topics together; 0 keeps nothing."""

    def __init__(self, clock: Clock, timer: Timer, max_bytes: int, run: Callable[[Callable[[], None]], None]) -> None:
        """``run`` has a function called soon, on a thread that may be busy for a moment (``readers.py``)."""
        self._clock = clock
        self._timer = timer
        self._run = run
        self._lock = Lock()
        self._queue: deque[_Cached] = deque()
        self._alarm: TimerHandle | None = None
        self.max_bytes = max_bytes
        # Beyond this, also entries go that are needed: one eighth more, for the time that it takes to find those that are not.
        self._most_bytes = max_bytes + max_bytes // 8
        self.bytes = 0  # what the entries in the queue take

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, log: LogEntries, entries: Sequence[Entry], start: int | None, expected: int) -> None:
        if self.max_bytes <= 0:
            return
        now = self._clock.monotonic()
        known = log._entries
        with self._lock:
            if log.closed:
                return
            for entry in entries:
                first = entry.offset if start is None else min(start, entry.offset)
                start = entry.last + 1
                if entry.offset in known:
                    continue
                keys = (entry.offset,) if first == entry.offset else (entry.offset, first)
                # The bytes of a region are not in memory.
                size = OVERHEAD_BYTES + (0 if isinstance(entry.data, FileRegion) else entry.size)
                cached = _Cached(entry, keys, log, size, now, expected)
                for key in keys:
                    known[key] = cached
                self._queue.append(cached)
                self.bytes += size
            self._evict(now, STEP + 2 * len(entries))
            self._wind()

    def drop(self, log: LogEntries) -> None:
        with self._lock:
            log._entries = {}

    def evict(self) -> None:
        """Let go what is due."""
        with self._lock:
            self._alarm = None
            self._evict(self._clock.monotonic(), 16 * STEP)
            self._wind()

    def _wind(self) -> None:
        """While there is anything, look again when the oldest is due, but not at each entry."""
        if self._queue and self._alarm is None:
            due = max(self._queue[0].since + MAX_AGE_S, self._clock.monotonic() + MAX_AGE_S / 20)
            self._alarm = self._timer.at(due, self._wake)

    def _wake(self) -> None:
        self._run(self.evict)

    def _evict(self, now: float, most: int) -> None:
        queue = self._queue
        for _ in range(most):
            if not queue:
                return
            oldest = queue[0]
            gone = oldest.of._entries.get(oldest.entry.offset) is not oldest
            if not (gone or self.bytes > self.max_bytes or now - oldest.since >= MAX_AGE_S):
                return
            queue.popleft()
            needed = oldest.expected > 0 and oldest.requeues < MOST_REQUEUES and self.bytes <= self._most_bytes
            if needed and not gone:
                oldest.requeues += 1
                oldest.since = now
                queue.append(oldest)
                continue
            self.bytes -= oldest.size
            if not gone:
                for key in oldest.keys:
                    if oldest.of._entries.get(key) is oldest:
                        del oldest.of._entries[key]
