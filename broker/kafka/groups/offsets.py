"""The committed offsets of a group, and the rule for their expiration.

Pure, under the group's lock. A commit is staged first and can only be fetched once it is durable.

Tests: tests/kafka/groups/test_offset_coordinator.py, tests/kafka/groups/test_bounds.py.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import attrs

from broker.kafka.groups.classic_group import ClassicGroup
from broker.kafka.groups.classic_states import ClassicGroupState
from broker.kafka.groups.group import Group
from broker.kafka.groups.values import CONSUMER, OFFSET_BYTES
from broker.metadata.catalogue import Catalogue, OffsetRow

NEVER = -1


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int  # wall clock
    expire_ms: int = NEVER  # set by the client, in versions that have the field

    @property
    def size_bytes(self) -> int:
        """Approximate memory."""
        return OFFSET_BYTES + len(self.metadata)


Partition = tuple[str, int]
Offsets = dict[Partition, CommittedOffset]


def rows_of(offsets: Offsets) -> list[OffsetRow]:
    """Rows for the catalogue, which has no column for the expiry that a client sets: a restart loses it."""
    return [
        (topic, partition, committed.offset, committed.leader_epoch, committed.metadata, committed.commit_ms)
        for (topic, partition), committed in offsets.items()
    ]


def delete_offsets(group_id: str, partitions: list[Partition], catalogue: Catalogue) -> None:
    """A change of the catalogue."""
    catalogue.delete_offsets(group_id, partitions)


@attrs.frozen
class Retention:
    """The rule for offsets that may be forgotten at ``now_ms``."""

    now_ms: int
    retention_ms: int
    # Kept whatever their age, because members read these.
    topics: frozenset[str] = frozenset()
    # When the group became empty; 0 if that does not count.
    empty_since_ms: int = 0

    def is_over(self, topic: str, committed: CommittedOffset) -> bool:
        if topic in self.topics:
            return False
        if committed.expire_ms != NEVER:
            return self.now_ms >= committed.expire_ms
        # Kafka counts only from the time when the group became empty, so it drops an offset that an operator has just set on a
        # group that has been empty for long.
        since_ms = max(committed.commit_ms, self.empty_since_ms)
        return self.now_ms - since_ms >= self.retention_ms


def retention_of(group: Group, empty_since_ms: int, now_ms: int, retention_ms: int) -> Retention | None:
    """The rule for a group in its present state (KIP-211); None if none of its offsets may be deleted."""
    if isinstance(group, ClassicGroup) and group.protocol_type is None:
        return Retention(now_ms, retention_ms)  # offsets only
    if group.is_empty:
        return Retention(now_ms, retention_ms, empty_since_ms=empty_since_ms)
    if not isinstance(group, ClassicGroup):
        return None if group.topics is None else Retention(now_ms, retention_ms, topics=group.topics)
    if group.state is ClassicGroupState.STABLE and group.protocol_type == CONSUMER and group.topics is not None:
        return Retention(now_ms, retention_ms, topics=group.topics)
    return None


class GroupOffsets:
    """A group's offsets, by topic and partition."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[int, CommittedOffset]] = {}
        self._staged: Offsets = {}
        # Number of open transactions that commit an offset of the partition.
        self._unstable: Counter[Partition] = Counter()
        self._durable_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Approximate memory. A staged or unstable offset counts without its metadata."""
        return self._durable_bytes + OFFSET_BYTES * (len(self._staged) + len(self._unstable))

    def growth(self, offsets: Offsets) -> int:
        """The additional bytes for these offsets."""
        return sum(
            committed.size_bytes - (before.size_bytes if (before := self.get(*key)) is not None else 0)
            for key, committed in offsets.items()
        )

    def __bool__(self) -> bool:
        """True if there is any offset, durable, staged or unstable."""
        return bool(self._topics or self._staged or self._unstable)

    def load(self, topic: str, partition: int, committed: CommittedOffset) -> None:
        partitions = self._topics.setdefault(topic, {})
        before = partitions.get(partition)
        self._durable_bytes += committed.size_bytes - (0 if before is None else before.size_bytes)
        partitions[partition] = committed

    def stage(self, offsets: Offsets) -> None:
        """These offsets are being written."""
        self._staged.update(offsets)

    def publish(self, offsets: Offsets) -> None:
        """These staged offsets are durable. Offsets that were removed meanwhile stay removed."""
        for key, committed in offsets.items():
            if key in self._staged:
                self.load(*key, committed)
        self.unstage(offsets)

    def unstage(self, offsets: Offsets) -> None:
        """These offsets are no longer being written."""
        for key, committed in offsets.items():
            if self._staged.get(key) is committed:  # else a later commit of the partition is staged
                del self._staged[key]

    def make_unstable(self, keys: Iterable[Partition]) -> None:
        """An open transaction commits these."""
        self._unstable.update(keys)

    def make_stable(self, keys: Iterable[Partition]) -> None:
        self._unstable.subtract(keys)
        self._unstable = +self._unstable

    def is_unstable(self, topic: str, partition: int) -> bool:
        return (topic, partition) in self._unstable

    def get(self, topic: str, partition: int) -> CommittedOffset | None:
        partitions = self._topics.get(topic)
        return None if partitions is None else partitions.get(partition)

    def among(self, topics: frozenset[str]) -> list[str]:
        """The topics among these that have durable offsets, in any order."""
        return list(self._topics.keys() & topics)

    def copy_of(self, topic: str) -> dict[int, CommittedOffset]:
        """The topic's durable offsets, by partition."""
        return dict(self._topics.get(topic, ()))

    def __iter__(self) -> Iterator[tuple[str, dict[int, CommittedOffset]]]:
        return iter(self._topics.items())

    def remove(self, keys: Iterable[Partition]) -> None:
        for topic, partition in keys:
            self._staged.pop((topic, partition), None)
            partitions = self._topics.get(topic)
            if partitions is not None:
                removed = partitions.pop(partition, None)
                self._durable_bytes -= 0 if removed is None else removed.size_bytes
                if not partitions:
                    del self._topics[topic]

    def may_have(self, topic: str) -> bool:
        """False if there is no offset of the topic. May be called without the group's lock."""
        return topic in self._topics or bool(self._staged)

    def of_topic(self, topic: str) -> list[Partition]:
        """The topic's partitions that have an offset, durable or staged."""
        keys = {key for key in self._staged if key[0] == topic}
        keys.update((topic, partition) for partition in self._topics.get(topic, ()))
        return sorted(keys)

    def expired(self, retention: Retention) -> list[Partition]:
        """The partitions whose offset is too old. Staged and unstable offsets are not."""
        return [
            (topic, partition)
            for topic, partitions in self._topics.items()
            for partition, committed in partitions.items()
            if (topic, partition) not in self._staged
            and (topic, partition) not in self._unstable
            and retention.is_over(topic, committed)
        ]
