"""What the subscriptions of one log read it through: from the cache at once, or on a reader thread.

Any thread may call. Nothing here blocks, except in the functions that run on reader threads (``readers.py``). What is skipped on
reading, because it is not for consumers, is told by the offsets of the entries: they do not follow each other then.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby, takewhile

from broker.errors import Refusal, StorageError
from broker.log import get_logger
from broker.pulsar.entries.cache import EntryCache, LogEntries
from broker.pulsar.entries.log_entries import LogEntriesReader, warm
from broker.pulsar.entries.readers import Line, Readers
from broker.pulsar.entry import Entry
from broker.storage.log.log import Log

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
            result = self._log.failed("entries could not be read", error)
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
