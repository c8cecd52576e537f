"""How subscriptions read entries: from the cache at once (``EntryReader``), or on a reader thread (``Readers``).

A log has an ``EntryReader``, which all of its subscriptions use. Any thread may call; only the functions that run on reader
threads block. Batches that consumers do not see are skipped, which shows as a gap between the offsets of two entries.

A few reader threads (``pulsar_reader_threads``) read entries from the disk and transcode batches of Kafka's producers. They take
jobs from the lines of all logs in turn. At most half of them work for the same line at a time, so that neither a log on a slow
disk nor a thousand subscriptions of a topic delay the others for longer than a job takes. A job is short: it reads once from a
single log, passes on the result and waits for nothing.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby, takewhile

import attrs

from broker.errors import Refusal, StorageError
from broker.log import EventLimit, get_logger
from broker.part import PartThread
from broker.pulsar.entries.cache import EntryCache, LogEntries
from broker.pulsar.entries.log_entries import LogEntriesReader, warm
from broker.pulsar.entry import Entry
from broker.runtime.clock import Clock
from broker.runtime.threads import Condition, Lock
from broker.storage.log.log import Log

Job = Callable[[], None]


@attrs.define(eq=False)
class Line:
    """The jobs for a log, in order. Guarded by the lock of ``Readers``. ``ready``: it is in the queue of lines with jobs."""

    jobs: deque[Job] = attrs.field(factory=deque)
    running: int = 0
    ready: bool = False


class Readers:
    """The lines, and the bodies of the threads. Any thread may call ``submit``."""

    def __init__(self, clock: Clock, threads: int) -> None:
        self._clock = clock
        self._width = max(1, threads // 2)  # threads that work for the same line at a time
        self._changed = Condition()
        self._ready: deque[Line] = deque()  # lines with a job that may be done now, in turn
        self._own = Line()
        self._failures = EventLimit()
        # Held while a batch that is large when decompressed is transcoded, so that only one is in memory at a time.
        self.large = Lock()
        self.bodies: Sequence[_Reader] = [_Reader(self) for _ in range(threads)]

    def threads(self) -> list[PartThread]:
        """For the service's part."""
        return [PartThread(f"pulsar-reader-{number}", body) for number, body in enumerate(self.bodies)]

    def submit(self, job: Job, line: Line | None = None) -> None:
        """Add the job to the line; without a line, to that of jobs that belong to no log."""
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


logger = get_logger("pulsar")

# Entries of a Kafka producer's batch that are kept for the next reads, beyond those that a read returns.
MOST_AHEAD = 5000

Done = Callable[[Sequence[Entry] | Exception], None]
Wanted = Callable[[], bool]


class EntryReader:
    """Reads the entries of a log. A tailing subscription needs ``appended``, ``read`` and ``replay`` only.

    ``by_key`` is a second reader of the same log, for Key_Shared subscriptions: it splits a batch of a Kafka producer, which may
    have many keys, into an entry for each run of records with the same key. Entries of Pulsar's producers are the same in both
    readers, and so is their part of the cache.
    """

    __slots__ = ("_cached", "_gap", "_line", "_log", "_readers", "_scan", "_translated", "by_key")

    def __init__(self, log: Log, cache: EntryCache, readers: Readers, shared: LogEntries | None = None) -> None:
        """``shared``: only for ``by_key``."""
        self._log = log
        self._readers = readers
        self._line = Line()
        self._cached = LogEntries(cache) if shared is None else shared
        self._translated = LogEntries(cache)  # entries that were transcoded from batches of Kafka's producers
        self._scan = LogEntriesReader(log, readers.large, by_key=shared is not None)
        self.by_key: EntryReader = self if shared is not None else EntryReader(log, cache, readers, self._cached)
        # (start, end): consumers see nothing between these offsets. Replaced as a whole.
        self._gap = (0, 0)

    @property
    def end(self) -> int:
        """The offset up to which consumers may read: the last stable offset or, if the batches before that are known to be
        invisible (such as markers of transactions), the offset after the last entry."""
        end = self._log.last_stable_offset
        start, gap_end = self._gap
        return start if gap_end == end else end

    # -- cursors -------------------------------------------------------------------------------------------------------

    def cursor_opened(self) -> None:
        """A cursor got consumers: expect another read of each new entry. The caller holds the topic's lock."""
        self._cached.cursors += 1

    def cursor_closed(self) -> None:
        """A cursor has no more consumers. The caller holds the topic's lock."""
        self._cached.cursors -= 1

    def expect(self, offsets: Sequence[int]) -> None:
        """These entries will be replayed: keep them if they are in the cache."""
        self._cached.expect(offsets)
        self._translated.expect(offsets)

    # -- reading -------------------------------------------------------------------------------------------------------

    def appended(self, entries: Sequence[Entry]) -> None:
        """Cache these consecutive entries, which a producer has appended."""
        self._cached.put(entries)

    def read(self, offset: int, max_entries: int, max_bytes: int) -> Sequence[Entry] | None:
        """Entries from ``offset`` on that are in memory; the first is returned whatever its size. Empty at the end; None if the
        log has to be read."""
        end = self.end
        if offset >= end:
            return ()
        if self._log.offline is not None:
            return None
        cached, translated = self._cached, self._translated
        entries: list[Entry] = []
        while len(entries) < max_entries and offset < end:
            most = max_entries - len(entries)
            run = cached.read(offset, end, most, max_bytes) or translated.read(offset, end, most, max_bytes)
            if not run:
                break
            entries += run
            max_bytes -= sum([entry.size for entry in run])
            offset = run[-1].last + 1
        if not entries:
            first = cached.get(offset) or translated.get(offset)
            if first is None:
                return None
            entries.append(first)  # even if it is larger than ``max_bytes``
        return entries

    def replay(self, offsets: Sequence[int]) -> Sequence[Entry] | None:
        """The entries at these offsets if all are in memory; None otherwise."""
        if self._log.offline is not None:
            return None
        entries = []
        for offset in offsets:
            entry = self._cached.get(offset) or self._translated.get(offset)
            if entry is None or entry.offset != offset:
                return None
            entries.append(entry)
        return entries

    def read_later(
        self, offset: int, max_entries: int, max_bytes: int, done: Done, wanted: Wanted | None = None
    ) -> None:
        """As ``read``, from the log. ``done`` is called on a reader thread, with an empty sequence if there is nothing for
        consumers from ``offset`` to the end, or with the error: StorageError, or a Refusal if the topic was deleted.

        ``wanted`` is asked when it is the read's turn; if it returns false, nothing is read, and ``done`` gets nothing."""
        read = partial(self._read, offset, max_entries, max_bytes)
        self._readers.submit(partial(self._run, done, read, wanted), self._line)

    def replay_later(self, offsets: Sequence[int], done: Done, wanted: Wanted | None = None) -> None:
        """As ``replay``, from the log: ``done`` gets those that still exist. ``offsets`` ascend."""
        self._readers.submit(partial(self._run, done, partial(self._replay, offsets), wanted), self._line)

    def _run(self, done: Done, attempt: Callable[[], Sequence[Entry]], wanted: Wanted | None) -> None:
        result: Sequence[Entry] | Exception
        if wanted is not None and not wanted():
            done(())
            return
        try:
            result = attempt()
        except (StorageError, Refusal) as error:
            result = error
        except OSError as error:
            result = self._log.state.failed("entries could not be read", error)
        except BaseException as error:
            # A defect. The caller still needs an answer; ``Readers.run`` logs the error.
            done(StorageError(f"{self._log.topic}-{self._log.partition}: entries could not be read: {error!r}"))
            raise
        done(result)

    def _read(self, offset: int, max_entries: int, max_bytes: int) -> Sequence[Entry]:
        cached = self.read(offset, max_entries, max_bytes)  # several subscriptions may have asked for the same
        if cached is not None:
            return cached
        self._cached.missed()
        stable = self._log.last_stable_offset
        result = self._scan.read(offset, max_entries, max_bytes)
        if not result.entries:
            if result.searched >= stable > offset:
                start, end = self._gap
                self._gap = (min(start, offset), end) if end == stable else (offset, stable)
            return ()
        warm(result.entries)
        self._keep(offset, result.entries, self._cached.cursors - 1)  # for the other cursors
        ahead = list(takewhile(_is_translated, result.more[:MOST_AHEAD]))
        if ahead:
            # Otherwise the next read would have to transcode the same batch again.
            self._keep(ahead[0].offset, ahead, max(1, self._cached.cursors))
        return result.entries

    def _replay(self, offsets: Sequence[int]) -> Sequence[Entry]:
        cached = self.replay(offsets)
        if cached is not None:
            return cached
        entries = self._scan.replay(offsets)
        warm(entries)
        return entries

    def _keep(self, start: int, entries: Sequence[Entry], reads: int) -> None:
        if reads <= 0:
            return
        for translated, run in groupby(entries, _is_translated):
            of_one_kind = list(run)
            (self._translated if translated else self._cached).put(of_one_kind, start, reads)
            start = of_one_kind[-1].last + 1

    def close(self) -> None:
        """Forget the cached entries: the topic was deleted or unloaded."""
        self._cached.close()
        self._translated.close()
        self.by_key._translated.close()


def _is_translated(entry: Entry) -> bool:
    return type(entry.data) is bytes  # the data of other entries are views, or regions of files
