"""The deduplication of a topic's messages: a table of the highest sequence id of each producer, by name.

A message with a sequence id that is not higher is a duplicate: it is not stored again, and its producer gets a receipt when all
present records of the log are durable. The chunks of a message share its sequence id, so only the last chunk counts.

After a restart the table is restored from the last snapshot and the log's entries from the snapshot's offset on, so it agrees
with the log. A snapshot is due after SNAPSHOT_ENTRIES entries, which bounds the reading at a restart, and after some time,
because retention may delete the entries.

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
from protocol.pulsar.frames import as_bytes
from protocol.pulsar.metadata import is_chunk, read_stored_metadata, signed
from protocol.pulsar.pulsar_pb2 import MessageMetadata
from protocol.pulsar.sends import read_stored_part

log = get_logger("pulsar")

# Entries between two snapshots, and producers in the table of a topic, 200 bytes each. If there are more, the producers that have
# not sent for the longest time are removed.
SNAPSHOT_ENTRIES = 1000
MOST_PRODUCERS = 10_000
_READ_BYTES = 1024 * 1024


class Deduplication:
    def __init__(self, store: Log, most_producers: int = MOST_PRODUCERS) -> None:
        self._store = store
        self._most = most_producers
        self._highest: OrderedDict[str, int] = OrderedDict()  # the latest sender is last
        self._lock = Lock()
        # Appends in progress, by token: the end of the log before each. Their entries may not be in the table yet.
        self._appending: dict[int, int] = {}
        self._next_token = 0
        self._since_snapshot = 0  # entries
        self.changed = False  # since the last snapshot

    def last(self, name: str) -> int:
        """The highest sequence id of a producer; -1 if it has sent nothing."""
        return self._highest.get(name, -1)

    # -- appending --------------------------------------------------------------------------------------------------------

    def begin(self) -> int:
        """Call it before an append. Returns the token for ``end``."""
        with self._lock:
            self._next_token += 1
            self._appending[self._next_token] = self._store.log_end_offset
            return self._next_token

    def end(self, token: int, appended: Iterable[tuple[str, int]]) -> bool:
        """Call it after the append with the producer and the highest sequence id of each appended entry. True if a snapshot is
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
        """The table as JSON, with the offset from which entries may be missing in it."""
        with self._lock:
            self.changed = False
            offset = min(self._appending.values(), default=self._store.log_end_offset)
            return json.dumps({"offset": offset, "highest": list(self._highest.items())}).encode()

    def restore(self, snapshot: bytes) -> None:
        """Restore the table, and replay the log's later entries. Blocks. Raises StorageError, Refusal."""
        try:
            content = json.loads(snapshot)
            self._highest = OrderedDict((str(name), int(highest)) for name, highest in content["highest"])
            offset = int(content["offset"])
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
    """Whether the sequence id of this entry counts. That of a chunk counts only for a message's last chunk."""
    return not is_chunk(metadata) or metadata.chunk_id == metadata.num_chunks_from_msg - 1


def highest_sequence_id(sequence_id: int, highest: int) -> int:
    """The highest sequence id of an entry: a batch has those of its first and its last message. As in Java they are signed."""
    return max(signed(sequence_id), signed(highest))
