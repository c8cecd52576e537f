"""Which records of a log one cleaning keeps: the last record of each key, and those that transactions and producers still need.

Pure, but for the memory that it takes for keys. Housekeeper thread. The rules are in ``cleaner.py``.

``CleanedTransactions`` is the cleaning's knowledge of transactions while it reads a log from its start: which were aborted, and
which have records left. Kafka's rules (CleanedTransactionMetadata). A marker may be removed if none of its transaction's records
was in the log when a cleaning came to it; records that this same cleaning removes still count. So one cleaning removes the
records, a later one gives the marker the time when it may be removed, and a third removes it. The second of these also removes
the entry in the index of aborted transactions.

Tests: tests/storage/upkeep/test_cleaner.py,
tests/storage/log/test_transactions.py.
"""

import hashlib
from collections.abc import Callable, Iterable
from typing import TypeVar

from broker.runtime.threads import Lock
from broker.storage.log import inspection
from broker.storage.log.log_config import LogConfig
from broker.storage.segments.index_file import AbortedTransaction
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import DELETE_HORIZON, BatchHeader, read_header
from protocol.kafka.records.record_scan import check_records
from protocol.kafka.records.records import Record, build_batch, read_records


class CleanedTransactions:
    """The transactions of one cleaning, which sees the batches of the log in order."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        # Producer id -> (first, last offset) of its aborted transactions.
        self._aborted: dict[int, list[tuple[int, int]]] = {}
        for entry in aborted:
            self._aborted.setdefault(entry.producer_id, []).append((entry.first_offset, entry.last_offset))
        self._left: set[int] = set()  # producers whose current transaction has had a batch
        self._nothing_left: set[int] = set()  # offsets of markers before which no batch of the transaction was left

    def is_aborted(self, header: BatchHeader) -> bool:
        ranges = self._aborted.get(header.producer_id)
        if ranges is None or not header.is_transactional or header.is_control:
            return False
        return any(first <= header.base_offset <= last for first, last in ranges)

    def saw(self, header: BatchHeader) -> None:
        """Note the next batch of the log, as it was before the cleaning."""
        if header.is_control:
            if header.producer_id in self._left:
                self._left.discard(header.producer_id)
            else:
                self._nothing_left.add(header.base_offset)
        elif header.is_transactional:
            self._left.add(header.producer_id)

    def is_over(self, marker_offset: int) -> bool:
        """True if the transaction that this marker ends had no record left. ``saw`` has had the marker."""
        return marker_offset in self._nothing_left


T = TypeVar("T")

# The bytes that a key takes in a Python dict in addition to its own bytes: the entry, the bytes object, the int.
KEY_OVERHEAD_BYTES = 150
# Longer keys are kept as a digest of this size: no two keys have the same.
DIGEST_BYTES = 32

_BITS_KEPT = ~0x07  # all attributes except for the codec


class KeptRecords:
    """The records that one cleaning keeps. ``learn`` gets the batches of the part that was not cleaned yet; then ``what_stays``
    gets those of the log from its start. Records from ``end_offset`` on are not cleaned. ``unread`` has the base offsets of
    batches that cannot be read.
    """

    def __init__(self, config: LogConfig, now_ms: int) -> None:
        self._config = config
        self._now_ms = now_ms
        self._latest: dict[bytes, int] = {}  # key -> offset of its last record
        self._large = Lock()  # of its own: there is one cleaning at a time, and no request waits for it
        self.end_offset = 0
        self.transactions = CleanedTransactions([])
        self.last_of_producers: set[int] = set()  # last offsets of batches with a producer's sequence number
        self.last_epochs: dict[int, int] = {}  # producer id -> epoch, if only a marker has it
        self.unread: set[int] = set()

    def learn(self, batch: memoryview, header: BatchHeader) -> int:
        """Remember the keys of a batch. Returns the memory for them, in bytes."""
        if header.is_entry:
            plain = self._records_of(batch, header)
            if plain is None:
                self.end_offset = max(self.end_offset, header.next_offset)
                return 0
            batch, header = plain, read_header(plain)
        taken = 0
        aborted = self.transactions.is_aborted(header)
        if header.last_offset >= self.end_offset and not header.is_control and not aborted:
            taken = self._inspect(batch, header, lambda data: self._add_keys(header, data), 0)
        self.end_offset = max(self.end_offset, header.next_offset)
        return taken

    def _add_keys(self, header: BatchHeader, data: bytes) -> int:
        """Returns the memory for the new keys, in bytes."""
        latest, taken = self._latest, 0
        for record in read_records(header, data):
            if record.key is not None and record.offset >= self.end_offset:
                key = _digest(record.key)
                if key not in latest:
                    taken += len(key) + KEY_OVERHEAD_BYTES
                latest[key] = record.offset
        return taken

    def what_stays(self, batch: memoryview, header: BatchHeader) -> memoryview | bytearray | None:
        """The next batch of the log as it is kept; None if nothing of it is kept."""
        self.transactions.saw(header)
        if header.base_offset >= self.end_offset:
            return batch
        if header.is_entry:
            plain = self._records_of(batch, header)
            stays = None if plain is None else self.what_stays(plain, read_header(plain))
            return batch if plain is None or stays is plain else stays
        if header.is_control and not self._is_over(header):
            return batch
        horizon = header.base_timestamp if header.attributes & DELETE_HORIZON else None
        passed = horizon is not None and horizon <= self._now_ms
        if self.transactions.is_aborted(header) or (header.is_control and passed):
            return self._rewritten(header, b"", [], horizon if header.is_control else None)

        def look(data: bytes) -> memoryview | bytearray | None:
            kept: list[int] = []
            has_tombstone = False
            for record in read_records(header, data):
                if header.is_control or self._stays(record, passed):
                    kept.append(record.offset)
                    has_tombstone = has_tombstone or record.value is None
            timed = header.is_control or has_tombstone
            until = horizon
            if until is None and timed:
                until = self._now_ms + self._config.delete_retention_ms
            elif len(kept) == header.record_count:
                return batch
            return self._rewritten(header, data, kept, until if timed else None)

        unread: memoryview | bytearray | None = batch
        return self._inspect(batch, header, look, unread)

    def _stays(self, record: Record, horizon_passed: bool) -> bool:
        if record.offset >= self.end_offset:
            return True
        if record.key is None:
            return False
        if self._latest.get(_digest(record.key), -1) > record.offset:
            return False
        return record.value is not None or not horizon_passed

    def _rewritten(self, header: BatchHeader, data: bytes, kept: list[int], horizon: int | None) -> bytearray | None:
        """The batch with only the records of these offsets, and with ``horizon`` as the time when it may be removed. None if
        nothing is kept of it."""
        if not kept and header.last_offset not in self.last_of_producers:
            return None
        attributes = header.attributes & _BITS_KEPT & ~DELETE_HORIZON
        base_timestamp = None if kept else -1
        if horizon is not None:
            attributes |= DELETE_HORIZON
            base_timestamp = horizon
        stays = set(kept)
        return build_batch(
            (
                (record.key, record.value, record.headers, record.timestamp)
                for record in (read_records(header, data) if kept else ())
                if record.offset in stays
            ),
            base_offset=header.base_offset,
            compression=header.compression if kept else 0,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            attributes=attributes,
            offsets=kept,
            last_offset_delta=header.last_offset_delta,
            base_timestamp=base_timestamp,
            max_timestamp=header.max_timestamp if header.is_log_append_time or not kept else None,
            partition_leader_epoch=header.partition_leader_epoch,
        )

    def _is_over(self, marker: BatchHeader) -> bool:
        """Is the marker no longer needed, apart from the time for which it is kept like a tombstone?"""
        needed = self.last_epochs.get(marker.producer_id, -1) == marker.producer_epoch
        return not needed and self.transactions.is_over(marker.base_offset)

    def _records_of(self, batch: memoryview, header: BatchHeader) -> memoryview | None:
        """An entry as a batch of records; None for an entry that stays whole, because its records are unknown."""
        return inspection.taken_apart(batch, header, self._large)

    def _inspect(self, batch: memoryview, header: BatchHeader, look: Callable[[bytes], T], otherwise: T) -> T:
        """Return the result of ``look`` for the bytes of the batch's records, which are well formed; ``otherwise`` for a batch
        that cannot be read."""

        def check_and_look(data: bytes) -> T:
            check_records(data, header.record_count, dense=False)
            return look(data)

        try:
            return inspection.inspect(batch, header, self._config, self._large, check_and_look)
        except ProtocolError:
            self.unread.add(header.base_offset)
            return otherwise

    def has_entry(self, entry: AbortedTransaction) -> bool:
        """Does the index of aborted transactions keep this entry?"""
        return entry.last_offset >= self.end_offset or not self.transactions.is_over(entry.last_offset)


def _digest(key: bytes) -> bytes:
    return key if len(key) < DIGEST_BYTES else hashlib.blake2b(key, digest_size=DIGEST_BYTES).digest()
