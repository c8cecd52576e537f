"""What a cleaning knows of transactions while it goes through a log from its begin: what was aborted, and of which transactions
something is left. Kafka's rules (CleanedTransactionMetadata).

A marker may go once nothing of its transaction is in the log any more when a cleaning comes to it; what this very cleaning takes
away was still there. So the records go first, a later cleaning gives the marker the time when it may go, and a still later one
takes it away. The entry in the index of aborted transactions goes with the second of these.
"""

from collections.abc import Iterable

from broker.storage.segments.txn_index import AbortedTransaction
from protocol.kafka.records.batch import BatchHeader


class CleanedTransactions:
    """One cleaning's."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        # Producer id -> (first, last offset) of what it aborted.
        self._aborted: dict[int, list[tuple[int, int]]] = {}
        for entry in aborted:
            self._aborted.setdefault(entry.producer_id, []).append((entry.first_offset, entry.last_offset))
        self._left: set[int] = set()  # producers of whose present transaction there was a batch
        self._nothing_left: set[int] = set()  # offsets of markers

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
        """Nothing is left of the transaction that this marker ends. The marker was seen."""
        return marker_offset in self._nothing_left
