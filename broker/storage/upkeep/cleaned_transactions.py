"""What a cleaning knows of transactions while it reads a log from its start: which were aborted, and of which something is left.
Kafka's rules (CleanedTransactionMetadata).

A marker may be removed if nothing of its transaction was in the log when a cleaning came to it; what this same cleaning removes
was still there. So one cleaning removes the records, a later one gives the marker the time when it may be removed, and a third
removes it. The second of these also removes the entry in the index of aborted transactions.

Pure. Housekeeper thread.
"""

from collections.abc import Iterable

from broker.storage.segments.txn_index import AbortedTransaction
from protocol.kafka.records.batch import BatchHeader


class CleanedTransactions:
    """Of one cleaning. It sees the batches of the log in order."""

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
        """The next batch of the log, as it was before the cleaning."""
        if header.is_control:
            if header.producer_id in self._left:
                self._left.discard(header.producer_id)
            else:
                self._nothing_left.add(header.base_offset)
        elif header.is_transactional:
            self._left.add(header.producer_id)

    def is_over(self, marker_offset: int) -> bool:
        """True if nothing was left of the transaction that this marker ends. ``saw`` has had the marker."""
        return marker_offset in self._nothing_left
