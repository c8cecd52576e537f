"""One step of a member towards its target assignment: what it keeps, what it has to give up, and what it gets.

Pure, and it changes nothing: ``ConsumerGroup`` puts a ``Step`` into effect. A step costs as much as the member has partitions,
assigned and in its target, whatever the size of the group. ``member_states.py`` has the table of states.
"""

from collections.abc import Callable
from uuid import UUID

import attrs

from broker.kafka.groups.consumer.member_states import MemberEvent, MemberState, next_state
from broker.kafka.groups.consumer.members import ConsumerMember
from broker.kafka.groups.consumer.ownership import Ownership
from broker.kafka.groups.consumer.values import NO_PARTITIONS, Assignment, TopicPartitions

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
    """What the member is reconciled to. ``subscribes``: whether it subscribes to the topic with this id."""

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
    """``owned``: what its client says it has; None if it has not said. None if the member stays as it is."""
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
    """Take from the member what it does not subscribe to any longer, although there is no newer target yet."""
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
    state, advances = next_state(member.state, event)
    return Step(state, target.epoch if advances else member.epoch, assigned, revoking)
