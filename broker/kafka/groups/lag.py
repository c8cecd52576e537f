"""The lag of a group: in records, and in time.

The lag in records of a partition is the distance from the committed offset to the end of the log, as Kafka's tools count it:
markers of transactions and offsets that compaction has removed are included. The lag in time is the age of the oldest record
that the group has not committed, by the timestamp in the header of its batch: one small read from the log, so it is only computed
on request, on a thread that may block, and for a bounded number of partitions.
"""

from collections.abc import Iterable, Mapping
from uuid import UUID

import attrs

from broker.errors import Refusal, StorageError
from broker.kafka.groups.offsets import CommittedOffset
from broker.storage.log.log import Log
from broker.storage.log_manager import LogManager

# Timestamps read from logs, by topic id, partition and offset. Groups that stand still are queried again and again.
_REMEMBERED_MAX = 20_000


@attrs.frozen
class PartitionLag:
    """``end_offset`` and ``lag`` are None for a partition that does not exist or is offline; ``lag_s`` if it is unknown."""

    topic: str
    partition: int
    committed: CommittedOffset
    end_offset: int | None
    lag: int | None
    lag_s: float | None = None


def behind(committed: int, end_offset: int) -> int:
    """The lag in records. A commit beyond the end, which clients may make, is no lag."""
    return max(0, end_offset - committed)


def age_s(timestamp_ms: int, now_ms: int) -> float | None:
    """The age of the timestamp; None if there is none. A timestamp in the future has the age 0."""
    return None if timestamp_ms < 0 else max(0, now_ms - timestamp_ms) / 1000


class Lags:
    """For any thread that may block."""

    def __init__(self, logs: LogManager) -> None:
        self._logs = logs
        # Several threads may read the same timestamp at once.
        self._timestamps: dict[tuple[UUID, int, int], int] = {}

    def of(self, topic: str, partition: int, committed: CommittedOffset) -> PartitionLag:
        """The lag in records."""
        log = self._logs.get(topic, partition)
        if log is None or log.offline is not None:
            return PartitionLag(topic, partition, committed, None, None)
        end = log.high_watermark
        return PartitionLag(topic, partition, committed, end, behind(committed.offset, end))

    def are_here(self, offsets: Mapping[str, Iterable[int]]) -> bool:
        """Whether all these partitions are with this node, so that their lag is known."""
        nodes = self._logs.nodes
        return nodes is None or all(
            nodes.has_partition(topic, number) for topic, numbers in offsets.items() for number in numbers
        )

    def in_time(self, lag: PartitionLag, now_ms: int) -> PartitionLag:
        """Add the lag in time. May read from the disk."""
        if lag.lag is None:
            return lag
        log = self._logs.get(lag.topic, lag.partition)
        if not lag.lag or log is None:
            return attrs.evolve(lag, lag_s=0.0)
        return attrs.evolve(lag, lag_s=self._lag_s(log, lag.committed.offset, now_ms))

    def _lag_s(self, log: Log, offset: int, now_ms: int) -> float | None:
        offset = max(offset, log.log_start_offset)
        key = log.topic_id, log.partition, offset
        timestamp = self._timestamps.get(key)
        if timestamp is None:
            try:
                timestamp = log.times.timestamp_at(offset)
            except (Refusal, StorageError):
                return None
            if len(self._timestamps) >= _REMEMBERED_MAX:
                self._timestamps.clear()
            self._timestamps[key] = timestamp
        return age_s(timestamp, now_ms)

    def records(self, offsets: Mapping[str, Mapping[int, CommittedOffset]]) -> int | None:
        """The total lag in records. None: it is not known here, as another node has some of these partitions."""
        if not self.are_here(offsets):
            return None
        total = 0
        get = self._logs.get
        for topic, partitions in offsets.items():
            for partition, committed in partitions.items():
                log = get(topic, partition)
                if log is not None and log.offline is None:
                    total += max(0, log.high_watermark - committed.offset)
        return total


def total_lag(lags: Iterable[PartitionLag]) -> int:
    return sum(lag.lag for lag in lags if lag.lag is not None)


def longest_s(lags: Iterable[PartitionLag]) -> float | None:
    """The lag in time of a group: that of the partition that is furthest behind."""
    return max((lag.lag_s for lag in lags if lag.lag_s is not None), default=None)
