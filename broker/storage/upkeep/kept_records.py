"""Which records of a log one cleaning keeps: the last record of each key, and those that transactions and producers still need.

Pure, but for the memory that it takes for keys. Housekeeper thread. The rules are in ``cleaner.py``.

``CleanedTransactions`` is the cleaning's knowledge of transactions while it reads a log from its start: which were aborted, and
which have records left. Kafka's rules (CleanedTransactionMetadata). A marker may be removed if none of its transaction's records
was in the log when a cleaning came to it; records that this same cleaning removes still count. So one cleaning removes the
records, a later one gives the marker the time when it may be removed, and a third removes it. The second of these also removes
the entry in the index of aborted transactions.

Tests: tests/storage/upkeep/test_kept_records.py, tests/storage/upkeep/test_cleaner.py,
tests/storage/log/test_transactions.py.
"""

import hashlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import TypeVar

from broker.runtime.threads import Lock
from broker.storage.log import inspection
from broker.storage.log.log_config import LogConfig
from broker.storage.segments.index_file import AbortedTransaction
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import (
    COMPRESSION_MASK,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    BatchHeader,
    read_header,
)
from protocol.kafka.records.compression import compress
from protocol.kafka.records.record_scan import Columns, as_int64, check_records, picked
from protocol.kafka.records.records import with_checksum


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

# The bytes that a key takes in addition to its own bytes: the dict's entry, the bytes object, the int, the sorted offset.
KEY_OVERHEAD_BYTES = 150
# Longer keys are kept as a digest of this size: no two keys have the same.
DIGEST_BYTES = 32


class KeptRecords:
    """The records that one cleaning keeps. ``learn`` gets the batches of the part that was not cleaned yet; then ``what_stays``
    gets those of the log from its start. Records from ``end_offset`` on are not cleaned. ``unread`` has the base offsets of
    batches that cannot be read.

    Records are not made into objects: ``learn`` reads the columns of a batch, and of what it has learnt only the offsets are
    needed afterwards. So of the part that was not cleaned yet, a batch of which all records or none stay is not opened again.
    """

    def __init__(self, config: LogConfig, now_ms: int) -> None:
        self._config = config
        self._now_ms = now_ms
        self._latest: dict[
            bytes | None, int
        ] = {}  # key -> offset of its last record; None is not in it between two calls
        self._last_records: array[int] | None = None  # the offsets in ``_latest``, sorted; None while it is learning
        self._learnt_from: int | None = None  # the batches from here on up to ``end_offset`` have been learnt
        self._open_again: set[int] = set()  # base offsets of learnt batches with tombstones
        self._large = Lock()  # of its own: there is one cleaning at a time, and no request waits for it
        self.end_offset = 0
        self.transactions = CleanedTransactions([])
        self.last_of_producers: set[int] = set()  # last offsets of batches with a producer's sequence number
        self.last_epochs: dict[int, int] = {}  # producer id -> epoch, if only a marker has it
        self.unread: set[int] = set()

    def learn(self, batch: memoryview, header: BatchHeader) -> int:
        """Remember the keys of a batch. Returns the memory for them, in bytes."""
        if self._learnt_from is None:
            self._learnt_from = self.end_offset
        if header.is_entry:
            plain = self._records_of(batch, header)
            if plain is None:
                self.end_offset = max(self.end_offset, header.next_offset)
                return 0
            batch, header = plain, read_header(plain)
        taken = 0
        aborted = self.transactions.is_aborted(header)
        if header.last_offset >= self.end_offset and not header.is_control and not aborted:
            taken = self._inspect(batch, header, lambda data, columns: self._add_keys(header, columns), 0)
        self.end_offset = max(self.end_offset, header.next_offset)
        return taken

    def _add_keys(self, header: BatchHeader, columns: Columns) -> int:
        """Returns the memory for the new keys, in bytes."""
        keys, deltas, latest = _remembered(columns.keys), columns.deltas, self._latest
        if header.base_offset < self.end_offset:
            known = bisect_left(deltas, self.end_offset - header.base_offset)
            keys, deltas = keys[known:], deltas[known:]
        new = {*keys}.difference(latest)
        new.discard(None)
        latest.update(zip(keys, map(header.base_offset.__add__, deltas), strict=True))
        latest.pop(None, None)
        taken = len(new) * KEY_OVERHEAD_BYTES + sum(map(len, new))  # type: ignore[arg-type]  # None is not in it
        if columns.without_value:
            self._open_again.add(header.base_offset)
            taken += KEY_OVERHEAD_BYTES
        return taken

    def what_stays(self, batch: memoryview, header: BatchHeader) -> memoryview | bytearray | None:
        """The next batch of the log as it is kept; None if nothing of it is kept."""
        self.transactions.saw(header)
        base = header.base_offset
        if base >= self.end_offset:
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
        learnt = self._learnt_from is not None and self._learnt_from <= base and not header.is_control
        if learnt and base not in self._open_again:
            return batch if base in self.unread else self._stays_by_offsets(batch, header)

        def look(data: bytes, columns: Columns) -> memoryview | bytearray | None:
            kept = columns.deltas if header.is_control else self._kept(header, columns, passed)
            timed = header.is_control or not set(columns.without_value).isdisjoint(kept)
            until = horizon
            if until is None and timed:
                until = self._now_ms + self._config.delete_retention_ms
            elif len(kept) == header.record_count > 0:
                return batch
            return self._rewritten(header, data, kept, until if timed else None)

        unread: memoryview | bytearray | None = batch
        return self._inspect(batch, header, look, unread)

    def _stays_by_offsets(self, batch: memoryview, header: BatchHeader) -> memoryview | bytearray | None:
        """As ``what_stays``, for a batch that has been learnt and has no tombstones: it is opened only if it loses some of its
        records and not all."""
        if self._last_records is None:
            self._last_records = array("q", sorted(self._latest.values()))
        base, offsets = header.base_offset, self._last_records
        first = bisect_left(offsets, base)
        after = bisect_right(offsets, header.last_offset, first)
        if after - first == header.record_count > 0:
            return batch
        kept = [offset - base for offset in offsets[first:after]]
        if not kept:
            return self._rewritten(header, b"", kept, None)
        # It was well formed when it was learnt. It is large inside, or not, as then.
        return inspection.inspect(
            batch, header, self._config, self._large, lambda data: self._rewritten(header, data, kept, None)
        )

    def _kept(self, header: BatchHeader, columns: Columns, horizon_passed: bool) -> list[int]:
        """The offset deltas of the records that stay."""
        base, last_offset_of = header.base_offset, self._latest.get
        kept = [
            delta
            for delta, key in zip(columns.deltas, _remembered(columns.keys), strict=True)
            if key is not None and last_offset_of(key, -1) <= base + delta
        ]
        if horizon_passed:
            gone = set(columns.without_value)
            kept = [delta for delta in kept if delta not in gone]
        if header.last_offset >= self.end_offset:  # the rest is not cleaned
            end = self.end_offset - base
            kept = kept[: bisect_left(kept, end)] + columns.deltas[bisect_left(columns.deltas, end) :]
        return kept

    def _rewritten(self, header: BatchHeader, data: bytes, kept: list[int], horizon: int | None) -> bytearray | None:
        """The batch with only the records of these offset deltas, and with ``horizon`` as the time when it may be removed. None
        if nothing is kept of it."""
        if not kept and header.last_offset not in self.last_of_producers:
            return None
        base_timestamp, newest, body = header.base_timestamp, header.max_timestamp, bytearray()
        attributes = header.attributes & ~DELETE_HORIZON & ~COMPRESSION_MASK
        if horizon is not None:
            attributes |= DELETE_HORIZON
            base_timestamp = horizon
        elif not kept:
            base_timestamp = NO_TIMESTAMP
        if kept:
            body, delta = picked(data, header.record_count, kept, header.base_timestamp - base_timestamp)
            if not header.is_log_append_time:
                newest = as_int64(header.base_timestamp + delta)
            if header.compression:
                attributes |= header.compression
                body = bytearray(compress(header.compression, body))
        rewritten = header._replace(
            batch_length=HEADER_SIZE - LOG_OVERHEAD + len(body),
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=newest,
            record_count=len(kept),
        )
        return with_checksum(HEADER.pack(*rewritten), body)

    def _is_over(self, marker: BatchHeader) -> bool:
        """Is the marker no longer needed, apart from the time for which it is kept like a tombstone?"""
        needed = self.last_epochs.get(marker.producer_id, -1) == marker.producer_epoch
        return not needed and self.transactions.is_over(marker.base_offset)

    def _records_of(self, batch: memoryview, header: BatchHeader) -> memoryview | None:
        """An entry as a batch of records; None for an entry that stays whole, because its records are unknown."""
        return inspection.taken_apart(batch, header, self._large)

    def _inspect(self, batch: memoryview, header: BatchHeader, look: Callable[[bytes, Columns], T], otherwise: T) -> T:
        """Return the result of ``look`` for the bytes of the batch's records, which are well formed, and their columns;
        ``otherwise`` for a batch that cannot be read."""

        def check_and_look(data: bytes) -> T:
            columns = Columns()
            check_records(data, header.record_count, dense=False, columns=columns)
            if columns.deltas and columns.deltas[-1] > header.last_offset_delta:
                raise ProtocolError("a record whose offset is not within its batch's")
            return look(data, columns)

        try:
            return inspection.inspect(batch, header, self._config, self._large, check_and_look)
        except ProtocolError:
            self.unread.add(header.base_offset)
            return otherwise

    def has_entry(self, entry: AbortedTransaction) -> bool:
        """Does the index of aborted transactions keep this entry?"""
        return entry.last_offset >= self.end_offset or not self.transactions.is_over(entry.last_offset)


def _remembered(keys: list[bytes | None]) -> list[bytes | None]:
    """Long keys as their digests."""
    if max(map(len, filter(None, keys)), default=0) < DIGEST_BYTES:
        return keys
    return [_digest(key) if key is not None and len(key) >= DIGEST_BYTES else key for key in keys]


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=DIGEST_BYTES).digest()
