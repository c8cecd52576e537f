"""The reader of subscriptions with ``read_compacted``: the compacted file up to its horizon, then the log.

It replaces the log's reader (``broker/pulsar/entries/reader.py``) and asks that for the entries behind the horizon. The file is
looked up with each read, so a compaction that ends meanwhile is used at once. Any thread; the file is read on the readers'
threads.

Tests: tests/pulsar/compaction/test_compactions.py.
"""

from collections.abc import Callable, Sequence
from functools import partial

from broker.errors import StorageError
from broker.pulsar.compaction.compactions import CompactedFile, Compactions
from broker.pulsar.entries.reader import EntryReader, Readers, Wanted
from broker.pulsar.entry import Entry, from_metadata
from broker.storage.log.log import Log
from protocol.errors import ProtocolError
from protocol.pulsar.metadata import read_stored_metadata
from protocol.pulsar.sends import read_stored_part

Done = Callable[[Sequence[Entry] | Exception], None]


class CompactedReader:
    def __init__(self, log: Log, reader: EntryReader, compactions: Compactions, readers: Readers) -> None:
        self._log = log
        self._reader = reader
        self._compactions = compactions
        self._readers = readers

    @property
    def end(self) -> int:
        return self._reader.end

    @property
    def first(self) -> int:
        """Where reading may begin: the log may have deleted what the file still has."""
        file = self._compactions.file(self._log)
        start = self._log.log_start_offset
        return start if file is None else min(start, file.first)

    @property
    def ends_log(self) -> bool:
        """Whether nothing was written since the last compaction."""
        file = self._compactions.file(self._log)
        return file is not None and file.horizon >= self._reader.end

    def read_last(self, done: Done) -> None:
        """The rest of the last entry before the horizon."""
        file = self._compactions.file(self._log)
        last = None if file is None else file.last
        if file is None or last is None:
            done(())
        else:
            self._readers.submit(partial(self._read_file, file, last[0], 1, 1, done, None))

    def read(self, offset: int, max_entries: int, max_bytes: int) -> Sequence[Entry] | None:
        file = self._compactions.file(self._log)
        if file is not None and offset < file.horizon:
            return None
        return self._reader.read(offset, max_entries, max_bytes)

    def read_later(
        self, offset: int, max_entries: int, max_bytes: int, done: Done, wanted: Wanted | None = None
    ) -> None:
        file = self._compactions.file(self._log)
        if file is not None and offset < file.horizon:
            self._readers.submit(partial(self._read_file, file, offset, max_entries, max_bytes, done, wanted))
        else:
            self._reader.read_later(offset, max_entries, max_bytes, done, wanted)

    def replay(self, offsets: Sequence[int]) -> Sequence[Entry] | None:
        return self._reader.replay(offsets)

    def replay_later(self, offsets: Sequence[int], done: Done, wanted: Wanted | None = None) -> None:
        self._reader.replay_later(offsets, done, wanted)

    def _read_file(
        self,
        file: CompactedFile,
        offset: int,
        max_entries: int,
        max_bytes: int,
        done: Done,
        wanted: Wanted | None,
    ) -> None:
        """On a reader's thread."""
        if wanted is not None and not wanted():
            done(())
            return
        try:
            entries = [_entry(one.offset, one.messages, one.data) for one in file.read(offset, max_entries, max_bytes)]
        except StorageError as error:
            done(error)
            return
        except ProtocolError as error:
            done(StorageError(f"{file.path}: {error}"))
            return
        except BaseException as error:
            # A defect. The waiting caller must hear of it all the same; the thread's own handling reports it.
            done(StorageError(f"{file.path}: {error!r}"))
            raise
        if entries:
            done(entries)
        else:
            # Nothing is left up to the horizon.
            self._reader.read_later(max(file.horizon, self._log.log_start_offset), max_entries, max_bytes, done, wanted)


def _entry(offset: int, messages: int, data: bytes) -> Entry:
    view = memoryview(data)
    stored = read_stored_part(view)
    metadata = read_stored_metadata(view[stored.metadata : stored.payload])
    return from_metadata(offset, messages, view, len(view), metadata)
