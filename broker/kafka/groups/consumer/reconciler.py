"""One step of a member towards its target assignment: the partitions that it keeps, gives up, and gets.

``reconcile`` is pure and changes nothing: ``Membership`` puts a ``Step`` into effect. A step costs as much as the member has
partitions, assigned and in its target, whatever the size of the group. ``members.py`` has the table of states.

``Ownership`` has the owner of each partition: the member to which it is assigned, or which was asked to give it up and may still
have it. It is pure bookkeeping of a ``ConsumerGroup``, under the group's lock. A partition has at most one owner; anything else
is a bug (AssertionError), because two consumers would read it.

Tests: tests/kafka/groups/consumer/test_consumer_machine.py.
"""

from collections.abc import Callable
from uuid import UUID

import attrs

from broker.kafka.groups.consumer.members import ADVANCES, ConsumerMember, MemberEvent, MemberState, next_state
from broker.kafka.groups.consumer.values import NO_PARTITIONS, Assignment, TopicPartitions

_NOBODY: dict[int, ConsumerMember] = {}


class Ownership:
    def __init__(self) -> None:
        self._owners: dict[UUID, dict[int, ConsumerMember]] = {}

    @property
    def is_empty(self) -> bool:
        return not self._owners

    def owner(self, topic_id: UUID, partition: int) -> ConsumerMember | None:
        return self._owners.get(topic_id, _NOBODY).get(partition)

    def free_for(self, member: ConsumerMember, topic_id: UUID, partitions: frozenset[int]) -> frozenset[int]:
        """The partitions among these that no other member owns."""
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


_NONE: frozenset[int] = frozenset()


@attrs.frozen
class Step:
    state: MemberState
    epoch: int
    assigned: Assignment
    revoking: Assignment

    def leaves_as_it_is(self, member: ConsumerMember) -> bool:
        return (
            self.state is member.state
            and self.epoch == member.epoch
            and self.assigned == member.assigned
            and self.revoking == member.revoking
        )


@attrs.frozen
class Target:
    """A member's target. ``subscribes``: whether it subscribes to the topic with this id."""

    epoch: int
    assignment: Assignment
    subscribes: Callable[[UUID], bool]


def reconcile(
    member: ConsumerMember,
    target: Target,
    ownership: Ownership,
    owned: TopicPartitions | None,
    is_subscription_new: bool,
) -> Step | None:
    """``owned``: the partitions that its client reports, or None. Returns None if the member is unchanged."""
    if member.state is MemberState.STABLE and member.epoch == target.epoch:
        return _enforce_subscription(member, target, owned) if is_subscription_new else None
    if member.state is MemberState.UNREVOKED_PARTITIONS and _still_has(owned, member.revoking):
        return _enforce_subscription(member, target, owned) if is_subscription_new else None
    return _next_step(member, target, ownership, owned)


def _still_has(owned: TopicPartitions | None, revoking: Assignment) -> bool:
    """Whether the client may still have some of these partitions."""
    if owned is None:
        return bool(revoking)
    return any(not revoking.get(topic_id, _NONE).isdisjoint(partitions) for topic_id, partitions in owned)


def _next_step(member: ConsumerMember, target: Target, ownership: Ownership, owned: TopicPartitions | None) -> Step:
    assigned: dict[UUID, frozenset[int]] = {}
    revoking: dict[UUID, frozenset[int]] = {}
    added: dict[UUID, frozenset[int]] = {}
    is_release_awaited = False
    for topic_id in {**member.assigned, **target.assignment}:
        current = member.assigned.get(topic_id, _NONE)
        wanted = target.assignment.get(topic_id, _NONE) if target.subscribes(topic_id) else _NONE
        kept = current & wanted
        if kept:
            assigned[topic_id] = kept
        if len(kept) < len(current):
            revoking[topic_id] = current - kept
        if len(kept) < len(wanted):
            missing = wanted - kept
            free = ownership.free_for(member, topic_id, missing)
            is_release_awaited |= len(free) < len(missing)
            if free:
                added[topic_id] = free
    if revoking and _still_has(owned, revoking):
        return _step(member, MemberEvent.REVOCATION_REQUIRED, target, assigned, revoking)
    for topic_id, free in added.items():
        assigned[topic_id] = assigned.get(topic_id, _NONE) | free
    event = MemberEvent.RELEASE_AWAITED if is_release_awaited else MemberEvent.TARGET_REACHED
    return _step(member, event, target, assigned, NO_PARTITIONS)


def _enforce_subscription(member: ConsumerMember, target: Target, owned: TopicPartitions | None) -> Step | None:
    """Take partitions from the member that it no longer subscribes to, although there is no newer target yet."""
    lost = {topic_id: each for topic_id, each in member.assigned.items() if not target.subscribes(topic_id)}
    if not lost:
        return None
    assigned = {topic_id: each for topic_id, each in member.assigned.items() if topic_id not in lost}
    revoking = {**member.revoking}
    for topic_id, partitions in lost.items():
        revoking[topic_id] = revoking.get(topic_id, _NONE) | partitions
    if _still_has(owned, revoking):
        return _step(member, MemberEvent.REVOCATION_REQUIRED, target, assigned, revoking)
    return _step(member, MemberEvent.SUBSCRIPTION_SHRUNK, target, assigned, NO_PARTITIONS)


def _step(
    member: ConsumerMember, event: MemberEvent, target: Target, assigned: Assignment, revoking: Assignment
) -> Step:
    epoch = target.epoch if event in ADVANCES else member.epoch
    return Step(next_state(member.state, event), epoch, assigned, revoking)
