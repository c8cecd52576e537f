"""Which messages of its producers a topic has already: the highest sequence id of each producer, by its name.

A message whose sequence id is not above that is a duplicate: it is not stored again, and its producer gets a receipt when
everything that the log has by then is durable. All chunks of a message have one sequence id, so only the last one counts.

After a restart the table is the one of the last snapshot, with the entries that the log has from the snapshot's offset on. So
it is exactly what the log has. A snapshot is due every so many entries, which bounds what is read then, and when some time has
passed, because retention may delete the entries.

``Deduplication`` belongs to one log; any thread may call, and nothing in it blocks except ``replay``.

Tests: tests/pulsar/producers/test_deduplication.py.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable

from broker.errors import StorageError
from broker.log import get_logger
from broker.runtime.threads import Lock
from broker.storage.log.log import Log
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import BatchHeader, batches
from protocol.kafka.records.entry import entry_value
from protocol.pulsar.metadata import is_chunk, read_stored_metadata, signed
from protocol.pulsar.parsing import as_bytes
from protocol.pulsar.pulsar_pb2 import MessageMetadata
from protocol.pulsar.sends import read_stored_part

log = get_logger("pulsar")

# Entries between two snapshots, and producers that a topic remembers: those that have not sent for the longest time go. A name
# takes 200 bytes of memory.
SNAPSHOT_ENTRIES = 1000
MOST_PRODUCERS = 10_000
_READ_BYTES = 1024 * 1024


class Deduplication:
    def __init__(self, store: Log, most_producers: int = MOST_PRODUCERS) -> None:
        self._store = store
        self._most = most_producers
        self._highest: OrderedDict[str, int] = OrderedDict()  # who has sent last is last
        self._lock = Lock()
        # Appends that are under way: the end of the log before each. What they append may not be in the table yet.
        self._appending: dict[int, int] = {}
        self._next_token = 0
        self._since_snapshot = 0  # entries
        self.changed = False  # since the last snapshot

    def last(self, name: str) -> int:
        """The highest sequence id of a producer; -1: it has sent nothing."""
        return self._highest.get(name, -1)

    # -- appending --------------------------------------------------------------------------------------------------------

    def begin(self) -> int:
        """Before an append. Returns what ``end`` is to be given."""
        with self._lock:
            self._next_token += 1
            self._appending[self._next_token] = self._store.log_end_offset
            return self._next_token

    def end(self, token: int, appended: Iterable[tuple[str, int]]) -> bool:
        """After the append: producer and highest sequence id of each entry that is in the log now. True if a snapshot is
        due."""
        with self._lock:
            del self._appending[token]
            for name, highest in appended:
                self._note(name, highest)
                self._since_snapshot += 1
                self.changed = True
            if self._since_snapshot < SNAPSHOT_ENTRIES:
                return False
            self._since_snapshot = 0
            return True

    def _note(self, name: str, highest: int) -> None:
        known = self._highest
        known[name] = max(highest, known.get(name, -1))
        known.move_to_end(name)
        if len(known) > self._most:
            known.popitem(last=False)

    # -- snapshots --------------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The table, and the offset from which on entries may not be in it."""
        with self._lock:
            self.changed = False
            offset = min(self._appending.values(), default=self._store.log_end_offset)
            return json.dumps({"offset": offset, "highest": list(self._highest.items())}).encode()

    def restore(self, snapshot: bytes) -> None:
        """The table as it was, and what the log has after that. Blocks. Raises StorageError, Refusal."""
        try:
            found = json.loads(snapshot)
            self._highest = OrderedDict((str(name), int(highest)) for name, highest in found["highest"])
            offset = int(found["offset"])
        except (ValueError, TypeError, KeyError):
            raise StorageError("The catalogue has a snapshot of sequence ids that cannot be read.") from None
        self.replay(offset)

    def replay(self, offset: int) -> None:
        """Note all entries from this offset on. Blocks. Raises StorageError, Refusal."""
        store = self._store
        offset = max(offset, store.log_start_offset)
        while offset < store.log_end_offset:
            read = store.read(offset, _READ_BYTES)
            if not read.size:
                return
            try:
                for region in read.regions:
                    data = memoryview(region.file.pread(region.size, region.offset))
                    for position, header in batches(data):
                        if header.base_offset >= offset and header.is_entry:
                            self._note_entry(data, position, header)
                        offset = max(offset, header.next_offset)
            except ProtocolError as error:
                raise store.state.go_offline(f"a record batch is damaged: {error}") from error
            except OSError as error:
                raise store.state.failed("entries could not be read", error) from error

    def _note_entry(self, data: memoryview, position: int, header: BatchHeader) -> None:
        start, size = entry_value(data, position, header)
        stored = read_stored_part(data, start, start + size)
        metadata = read_stored_metadata(data[stored.metadata : stored.payload])
        if counts(metadata):
            name = as_bytes(metadata.producer_name).decode("utf-8", "replace")
            self._note(name, highest_sequence_id(metadata.sequence_id, metadata.highest_sequence_id))


def counts(metadata: MessageMetadata) -> bool:
    """Whether the sequence id of this entry is the producer's highest: not for the chunks before a message's last one."""
    return not is_chunk(metadata) or metadata.chunk_id == metadata.num_chunks_from_msg - 1


def highest_sequence_id(sequence_id: int, highest: int) -> int:
    """Of an entry: a batch has the first message's and the last one's. As in Java the numbers are signed."""
    return max(signed(sequence_id), signed(highest))
