"""One member acquires records of one share partition, batch by batch of the log. Pure; under the share partition's lock.

Whoever reads the log calls ``take`` for each batch from ``offset`` on, ascending, until it is ``full``, and sends those batches
of which something was taken. What lies between two batches is absent from the log.

In the *batch-optimized* mode ``max_records`` is reached by whole batches of the log, so that no other member has to decompress
the rest of one; in the *record-limit* mode it is not exceeded. The bound of the share partition is never exceeded.

Tests: tests/kafka/share/test_share_partition.py.
"""

from broker.kafka.share.share_partition import SharePartition
from protocol.kafka.messages.share_fetch import AcquiredRecords

BATCH_OPTIMIZED, RECORD_LIMIT = 0, 1

_NO_LIMIT = 1 << 62


class Acquisition:
    """``acquired``: what the member has got, ascending; complete after ``finish``. ``count``: how many offsets that are."""

    __slots__ = (
        "_at",
        "_batch_size",
        "_end",
        "_exact",
        "_first",
        "_member_id",
        "_most",
        "_now",
        "_owner",
        "_partition",
        "acquired",
        "count",
        "full",
    )

    def __init__(
        self,
        partition: SharePartition,
        member_id: str,
        offset: int,
        now: float,
        *,
        max_records: int,
        batch_size: int = 0,
        mode: int = BATCH_OPTIMIZED,
    ) -> None:
        """``batch_size``: how many records the client would like to acknowledge at once; 0: as many as there are."""
        self._partition = partition
        self._member_id = member_id
        self._owner = partition.owner(member_id)
        self._at = offset
        self._now = now
        self._most = max_records
        self._batch_size = batch_size if batch_size > 0 else _NO_LIMIT
        self._exact = mode == RECORD_LIMIT
        # New offsets that the member has got and that are not in flight yet: whole batches become one range.
        self._first = self._end = 0
        self.acquired: list[AcquiredRecords] = []
        self.count = 0
        self.full = False

    def take(self, base: int, last: int, *, visible: bool = True) -> bool:
        """The next batch of the log has these offsets. Whether the member gets one. ``visible``: consumers may see them."""
        partition, first = self._partition, max(base, self._at)
        if self._at < base:
            partition.absent(self._at, base)
        self._at = last + 1
        if not visible:
            partition.absent(first, last + 1)
            return False
        before = self.count
        self._take_available(first, last)
        self._take_new(first, last)
        if self.count >= self._most:
            self.full = True
        return self.count > before

    def finish(self) -> list[AcquiredRecords]:
        self._flush()
        self._partition.forget_owner(self._member_id)
        return self.acquired

    @property
    def _left(self) -> int:
        return self._most - self.count if self._exact else _NO_LIMIT

    def _take_available(self, first: int, last: int) -> None:
        while self._left > 0 and (record := self._partition.available_from(first, last)) is not None:
            stop = min(last, record.first + min(record.weight, self._left) - 1)
            self._partition.acquire_again(self._owner, record, stop, self._now)
            self._add(record.first, stop, record.failures + 1)
            first = stop + 1

    def _take_new(self, first: int, last: int) -> None:
        partition = self._partition
        first = max(first, partition.end)
        if first > last:
            return
        end = min(last + 1, first + max(0, min(self._left, partition.room)))
        if end <= last:
            self.full = True
        if end <= first:
            return
        if first != self._end or self._end - self._first >= self._batch_size:
            self._flush()
            self._first = first
        self._end = end
        self.count += end - first
        partition.pass_to(end)

    def _flush(self) -> None:
        if self._first < self._end:
            self._partition.acquire_new(self._owner, self._first, self._end, self._now)
            self.acquired.append(AcquiredRecords(self._first, self._end - 1, 1))
            self._first = self._end

    def _add(self, first: int, last: int, delivery_count: int) -> None:
        self.count += last - first + 1
        if self.acquired:
            before = self.acquired[-1]
            if (
                before.last == first - 1
                and before.delivery_count == delivery_count
                and last - before.first < self._batch_size
            ):
                self.acquired[-1] = AcquiredRecords(before.first, last, delivery_count)
                return
        self.acquired.append(AcquiredRecords(first, last, delivery_count))
