"""Recent entries of all topics in memory, so that consumers at the end of a topic are served without reading the log.

The cache is a queue over all topics, oldest first (Pulsar's PIP-430), of *runs*: consecutive entries of a log that were appended
or read together. A run is evicted when it is old, or when the bytes exceed their bound. A run that cursors still have to read
moves to the end of the queue instead, a few times at most, because a reader that never comes must not keep it. If runs of a log
were kept in vain, fewer reads of its new entries are expected, by the number of reads that were missing, until the log has to be
read again. Each call does a bounded amount of eviction and leaves the rest to the next calls.

The cache does not copy an entry's data: it keeps the bytes that were received or read. Any thread may call. Lookups take no
lock; insertions and removals hold the lock for a moment.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

import attrs

from broker.pulsar.entry import Entry
from broker.runtime.clock import Clock
from broker.runtime.disk import FileRegion
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer, TimerHandle

# Memory of an entry beside its data (the entry, its offset, its place in the table, a view, the batch around its data), and of a
# run beside its entries (measured).
OVERHEAD_BYTES = 400
RUN_BYTES = 450
# How long (s) a run stays if no cursor is known to need it, and how often a run that is needed is requeued. Pulsar's numbers.
MAX_AGE_S = 1.0
MOST_REQUEUES = 5
# Entries that a call checks for eviction. Each put checks more than it adds, so the queue does not exceed its bound for long.
STEP = 64
# Entries of a run: as many as the session takes together.
RUN_ENTRIES = 128


@attrs.define(eq=False)
class _Run:
    """``keys`` are the offsets under which the table lists the run: those of its entries, and those from which a reader skips
    ahead to an entry of the run."""

    entries: Sequence[Entry]
    keys: Sequence[int]
    of: "LogEntries"
    data_bytes: int
    size: int
    since: float  # when it was inserted or requeued (Clock.monotonic(), s)
    # Expected reads of single entries. Counted down without a lock: a race evicts the run only a little later or sooner.
    expected: int
    requeues: int = 0

    def find(self, key: int) -> int:
        """The index of the entry for a key."""
        entries = self.entries
        guess = key - entries[0].offset  # right if each entry has a single message
        if 0 <= guess < len(entries) and entries[guess].offset == key:
            return guess
        return bisect_left(entries, key, key=_offset_of)


def _offset_of(entry: Entry) -> int:
    return entry.offset


class LogEntries:
    """The cached entries of a log. The log's reader owns it, and closes it when the log is closed or deleted."""

    __slots__ = ("_cache", "_runs", "_unread", "closed", "cursors")

    def __init__(self, cache: "EntryCache") -> None:
        self._cache = cache
        self._runs: dict[int, _Run] = {}  # by each of their keys
        # The number of cursors for which runs were kept in vain.
        self._unread = 0
        self.closed = False
        # Cursors with consumers: that many reads of each new entry are expected.
        self.cursors = 0

    def get(self, offset: int) -> Entry | None:
        """The first entry for a reader at ``offset``."""
        run = self._runs.get(offset)
        if run is None:
            return None
        run.expected -= 1
        return run.entries[run.find(offset)]

    def read(self, offset: int, end: int, max_entries: int, max_bytes: int) -> Sequence[Entry]:
        """Entries before ``end``, from the first for a reader at ``offset`` to the end of its run. Empty if the first is larger
        than ``max_bytes``."""
        run = self._runs.get(offset)
        if run is None:
            return ()
        first = run.find(offset)
        entries = run.entries[first : first + max_entries]
        if entries[-1].offset >= end:
            entries = list(takewhile(lambda entry: entry.offset < end, entries))
        if run.data_bytes > max_bytes:
            for number, entry in enumerate(entries):
                max_bytes -= entry.size
                if max_bytes < 0:
                    entries = entries[:number]
                    break
        run.expected -= len(entries)
        return entries

    def expect(self, offsets: Sequence[int]) -> None:
        """These entries will be read once more, because they are to be redelivered."""
        for offset in offsets:
            run = self._runs.get(offset)
            if run is not None:
                run.expected += 1

    def missed(self) -> None:
        """An entry had to be read from the log: expect reads from all cursors again."""
        self._unread = 0

    def put(self, entries: Sequence[Entry], start: int | None = None, expected: int | None = None) -> None:
        """Keep these consecutive entries; consumers do not see anything between them. ``start``: the first of them is the next
        entry for a reader at this offset. ``expected``: reads of each entry; by default, a read for each cursor."""
        if expected is None:
            expected = max(0, self.cursors - self._unread)
        for at in range(0, len(entries), RUN_ENTRIES):
            run = entries[at : at + RUN_ENTRIES]
            self._cache.put(self, run, start, expected)
            start = run[-1].last + 1

    def kept_for_nothing(self, run: _Run) -> None:
        """The run was evicted before all expected reads. The lock of the cache is held."""
        self._unread = min(self.cursors, -(-run.expected // len(run.entries)))

    def close(self) -> None:
        """Forget all entries. Their runs leave the queue in their turn."""
        self.closed = True
        self._cache.drop(self)


class EntryCache:
    """``max_bytes`` bounds the memory of all topics together; 0 keeps nothing."""

    def __init__(self, clock: Clock, timer: Timer, max_bytes: int, run: Callable[[Callable[[], None]], None]) -> None:
        """``run`` has a function called soon, on a reader thread (``reader.py``)."""
        self._clock = clock
        self._timer = timer
        self._run = run
        self._lock = Lock()
        self._queue: deque[_Run] = deque()
        self._alarm: TimerHandle | None = None
        self.max_bytes = max_bytes
        # Beyond this, runs are evicted even if they are needed. The margin gives time to evict unneeded runs first.
        self._most_bytes = max_bytes + max_bytes // 8
        self.bytes = 0  # memory of the runs in the queue

    def __len__(self) -> int:
        """The number of entries."""
        return sum(len(run.entries) for run in self._queue)

    def put(self, log: LogEntries, entries: Sequence[Entry], start: int | None, expected: int) -> None:
        if self.max_bytes <= 0:
            return
        now = self._clock.monotonic()
        known = log._runs
        count = len(entries)
        with self._lock:
            if log.closed:
                return
            keys = [entry.offset for entry in entries]
            if not known.keys().isdisjoint(keys):
                # Several readers have read the same: keep the new entries, each as a run.
                for entry in entries:
                    first = entry.offset if start is None else min(start, entry.offset)
                    start = entry.last + 1
                    if entry.offset not in known:
                        self._add(log, (entry,), {entry.offset, first}, expected, now)
            else:
                if start is not None:
                    keys += _gaps(entries, start)
                self._add(log, entries, keys, expected, now)
            self._evict(now, STEP + 2 * count)
            self._wind()

    def _add(self, log: LogEntries, entries: Sequence[Entry], keys: Iterable[int], expected: int, now: float) -> None:
        data_bytes = in_memory = 0
        for entry in entries:
            data_bytes += entry.size
            if type(entry.data) is not FileRegion:  # the bytes of a region are not in memory
                in_memory += entry.size
        keys = tuple(keys)
        size = RUN_BYTES + len(entries) * OVERHEAD_BYTES + in_memory
        run = _Run(entries, keys, log, data_bytes, size, now, expected * len(entries))
        log._runs.update(dict.fromkeys(keys, run))
        self._queue.append(run)
        self.bytes += size

    def drop(self, log: LogEntries) -> None:
        with self._lock:
            log._runs = {}

    def evict(self) -> None:
        """Evict the runs that are due."""
        with self._lock:
            self._alarm = None
            self._evict(self._clock.monotonic(), 16 * STEP)
            self._wind()

    def _wind(self) -> None:
        """Set a timer for when the oldest run is due, but for MAX_AGE_S / 20 at least, so that it does not fire for each run."""
        if self._queue and self._alarm is None:
            due = max(self._queue[0].since + MAX_AGE_S, self._clock.monotonic() + MAX_AGE_S / 20)
            self._alarm = self._timer.at(due, self._wake)

    def _wake(self) -> None:
        self._run(self.evict)

    def _evict(self, now: float, most: int) -> None:
        """Check runs from the oldest on, until ``most`` entries have been checked or a run is not due."""
        queue = self._queue
        while queue and most > 0:
            oldest = queue[0]
            log = oldest.of
            closed = log.closed
            if not (closed or self.bytes > self.max_bytes or now - oldest.since >= MAX_AGE_S):
                return
            queue.popleft()
            most -= len(oldest.entries)
            if oldest.expected > 0 and not closed and self.bytes <= self._most_bytes:
                if oldest.requeues < MOST_REQUEUES:
                    oldest.requeues += 1
                    oldest.since = now
                    queue.append(oldest)
                    continue
                log.kept_for_nothing(oldest)
            self.bytes -= oldest.size
            runs = log._runs
            for key in oldest.keys if not closed else ():
                if runs.get(key) is oldest:
                    del runs[key]


def _gaps(entries: Sequence[Entry], start: int) -> list[int]:
    """The offsets, other than the entries' own, at which a reader skips ahead to one of these entries."""
    gaps = []
    for entry in entries:
        if start < entry.offset:
            gaps.append(start)
        start = entry.last + 1
    return gaps
