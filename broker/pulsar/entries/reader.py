"""What the subscriptions of one log read it through: from the cache at once, or on a reader thread.

Any thread may call. Nothing here blocks, except in the functions that run on reader threads (``readers.py``). What is skipped on
reading, because it is not for consumers, is told by the offsets of the entries: they do not follow each other then.

The threads that read entries: from the disk, and from batches of Kafka's producers, which are transcoded.

A few threads (``pulsar_reader_threads``) take jobs from the lines of all logs in turn. From one line only half of them work at a
time, so that neither a disk that is slow for one log nor a thousand subscriptions of one topic hold up the others for longer than
a job takes. Each job is short: one read batch of one log. It hands its result on and does not wait for anybody.
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
    """The jobs for one log, in order. Guarded by the lock of ``Readers``. ``ready``: it is among those whose turn comes."""

    jobs: deque[Job] = attrs.field(factory=deque)
    running: int = 0
    ready: bool = False


class Readers:
    """The lines, and the bodies of the threads. Any thread may call ``submit``."""

    def __init__(self, clock: Clock, threads: int) -> None:
        self._clock = clock
        self._width = max(1, threads // 2)  # threads that work for one line at a time
        self._changed = Condition()
        self._ready: deque[Line] = deque()  # lines with a job that may be done now, in turn
        self._own = Line()
        self._failures = EventLimit()
        # Held while a batch is translated that is large inside: one at a time is in memory.
        self.large = Lock()
        self.bodies: Sequence[_Reader] = [_Reader(self) for _ in range(threads)]

    def threads(self) -> list[PartThread]:
        """For the service's part."""
        return [PartThread(f"pulsar-reader-{number}", body) for number, body in enumerate(self.bodies)]

    def submit(self, job: Job, line: Line | None = None) -> None:
        """Have the job done after those that are in the line already; without one, after others that are for no log."""
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

# Entries of a batch of a Kafka producer that are kept for the next reads, beyond those that a read was to return.
MOST_AHEAD = 5000

Done = Callable[[Sequence[Entry] | Exception], None]
Wanted = Callable[[], bool]


class EntryReader:
    """One for each log. ``appended``, ``read`` and ``replay`` are what a tailing subscription needs.

    ``by_key`` is a second one for the same log, which Key_Shared subscriptions use: a batch of a Kafka producer, in which there
    may be many keys, is not one entry for them, but one for each run of records with the same key. Entries of Pulsar's producers
    are the same in both, and so is their part of the cache.
    """

    __slots__ = ("_cached", "_gap", "_line", "_log", "_readers", "_scan", "_translated", "by_key")

    def __init__(self, log: Log, cache: EntryCache, readers: Readers, shared: LogEntries | None = None) -> None:
        """``shared``: only for ``by_key``."""
        self._log = log
        self._readers = readers
        self._line = Line()
        self._cached = LogEntries(cache) if shared is None else shared
        self._translated = LogEntries(cache)  # entries that batches of Kafka's producers have become
        self._scan = LogEntriesReader(log, readers.large, by_key=shared is not None)
        self.by_key: EntryReader = self if shared is not None else EntryReader(log, cache, readers, self._cached)
        # (start, end): there is nothing for consumers between these offsets. Replaced as a whole.
        self._gap = (0, 0)

    @property
    def end(self) -> int:
        """The end of what consumers may read. If it is known that only what they do not see (such as the markers of
        transactions) stands before it, the offset after the last entry."""
        end = self._log.last_stable_offset
        start, gap_end = self._gap
        return start if gap_end == end else end

    # -- cursors -------------------------------------------------------------------------------------------------------

    def cursor_opened(self) -> None:
        """A cursor has consumers from now on: each new entry will be read once more. The caller holds the topic's lock."""
        self._cached.cursors += 1

    def cursor_closed(self) -> None:
        """The opposite. The caller holds the topic's lock."""
        self._cached.cursors -= 1

    def expect(self, offsets: Sequence[int]) -> None:
        """These entries will be replayed: keep them if they are in the cache."""
        self._cached.expect(offsets)
        self._translated.expect(offsets)

    # -- reading -------------------------------------------------------------------------------------------------------

    def appended(self, entries: Sequence[Entry]) -> None:
        """The producers' path has appended these, one right after the other."""
        self._cached.put(entries)

    def read(self, offset: int, max_entries: int, max_bytes: int) -> Sequence[Entry] | None:
        """Entries from ``offset`` on that are in memory; the first one whatever its size. Empty at the end; None if the log has
        to be read."""
        end = self.end
        if offset >= end:
            return ()
        if self._log.offline is not None:
            return None
        cached, translated = self._cached, self._translated
        entries: list[Entry] = []
        while len(entries) < max_entries and offset < end:
            most = max_entries - len(entries)
            found = cached.read(offset, end, most, max_bytes) or translated.read(offset, end, most, max_bytes)
            if not found:
                break
            entries += found
            max_bytes -= sum([entry.size for entry in found])
            offset = found[-1].last + 1
        if not entries:
            first = cached.get(offset) or translated.get(offset)
            if first is None:
                return None
            entries.append(first)  # it has more bytes
        return entries

    def replay(self, offsets: Sequence[int]) -> Sequence[Entry] | None:
        """The entries that begin at these offsets, if all of them are in memory; None otherwise."""
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

        ``wanted``: asked when the turn of the read has come; if it is false, nothing is read, and ``done`` gets nothing."""
        read = partial(self._read, offset, max_entries, max_bytes)
        self._readers.submit(partial(self._run, done, read, wanted), self._line)

    def replay_later(self, offsets: Sequence[int], done: Done, wanted: Wanted | None = None) -> None:
        """As ``replay``, from the log: ``done`` gets those that are still there. ``offsets`` ascend."""
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
            # A defect. Whoever waits must hear of it all the same; the thread's own handling reports it.
            done(StorageError(f"{self._log.topic}-{self._log.partition}: entries could not be read: {error!r}"))
            raise
        done(result)

    def _read(self, offset: int, max_entries: int, max_bytes: int) -> Sequence[Entry]:
        known = self.read(offset, max_entries, max_bytes)  # several subscriptions may have asked for the same
        if known is not None:
            return known
        self._cached.missed()
        stable = self._log.last_stable_offset
        found = self._scan.read(offset, max_entries, max_bytes)
        if not found.entries:
            if found.searched >= stable > offset:
                start, end = self._gap
                self._gap = (min(start, offset), end) if end == stable else (offset, stable)
            return ()
        warm(found.entries)
        self._keep(offset, found.entries, self._cached.cursors - 1)  # for the others, if there are any
        ahead = list(takewhile(_is_translated, found.more[:MOST_AHEAD]))
        if ahead:
            # Otherwise the next read would have to translate the same batch again.
            self._keep(ahead[0].offset, ahead, max(1, self._cached.cursors))
        return found.entries

    def _replay(self, offsets: Sequence[int]) -> Sequence[Entry]:
        known = self.replay(offsets)
        if known is not None:
            return known
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
        """The topic is deleted or no longer served here: forget what is cached."""
        self._cached.close()
        self._translated.close()
        self.by_key._translated.close()


def _is_translated(entry: Entry) -> bool:
    return type(entry.data) is bytes  # the data of others are views, or regions of files
