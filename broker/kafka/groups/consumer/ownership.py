"""Which member each partition belongs to: what is assigned to a member, and what it has been asked to give up and still may
have.

Pure bookkeeping of a ``ConsumerGroup``, under the group's lock. A partition has one owner at most; anything else is a bug
(AssertionError), because two consumers would read it.

Tests: tests/kafka/groups/consumer/test_reconciler.py, tests/kafka/groups/consumer/test_consumer_machine.py.
"""

from uuid import UUID

from broker.kafka.groups.consumer.members import ConsumerMember
from broker.kafka.groups.consumer.values import Assignment

_NOBODY: dict[int, ConsumerMember] = {}


class Ownership:
    def __init__(self) -> None:
        self._owners: dict[UUID, dict[int, ConsumerMember]] = {}

    def owner(self, topic_id: UUID, partition: int) -> ConsumerMember | None:
        return self._owners.get(topic_id, _NOBODY).get(partition)

    def free_for(self, member: ConsumerMember, topic_id: UUID, partitions: frozenset[int]) -> frozenset[int]:
        """Those of the partitions that no other member owns."""
        owners = self._owners.get(topic_id)
        if owners is None:
            return partitions
        return frozenset(each for each in partitions if owners.get(each, member) is member)

    def take(self, member: ConsumerMember, assignment: Assignment) -> None:
        for topic_id, partitions in assignment.items():
            owners = self._owners.setdefault(topic_id, {})
            for partition in partitions:
                owner = owners.setdefault(partition, member)
                assert owner is member, f"{topic_id}-{partition} belongs to {owner.member_id}"

    def release(self, member: ConsumerMember, assignment: Assignment) -> None:
        for topic_id, partitions in assignment.items():
            owners = self._owners[topic_id]
            for partition in partitions:
                owner = owners.pop(partition)
                assert owner is member, f"{topic_id}-{partition} belongs to {owner.member_id}"
            if not owners:
                del self._owners[topic_id]
