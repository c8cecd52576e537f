"""A consumer group as it comes back from its rows after a restart.

The target assignment is not stored. If every member had reached it, what the members have is the target, and the group goes on
as if nothing had happened. Otherwise the group epoch is bumped, and the next heartbeat has a new target computed, from what the
members have: nobody was told of the target that is lost (docs/decisions/0013-consumer-group-rows.md). Until then each member's
target is what it has.

A save that failed while a later one succeeded can leave a partition with two members: one was asked to give it up, said that it
had, and that was not written; the other got it, and that was. The member with the greater epoch has it. It can also leave a row
of a member whose other row is missing. No client was told of either, and rows that are of no use are deleted with the next
save."""

from collections.abc import Mapping
from uuid import UUID

from broker.kafka.groups.consumer.members import ConsumerMember
from broker.kafka.groups.consumer.membership import Membership
from broker.kafka.groups.consumer.rows import (
    GROUP_ROW,
    GroupRow,
    assignment_row,
    decode_group,
    decode_member,
    metadata_row,
)
from broker.kafka.groups.consumer.values import LEAVE_FOR_A_WHILE_EPOCH, Assignment


def restore_members(core: Membership, rows: Mapping[str, bytes]) -> None:
    """Put what the rows have into an empty membership. Raises StorageError."""
    group = decode_group(core.group_id, rows[GROUP_ROW]) if GROUP_ROW in rows else GroupRow(0, 0)
    members = []
    for row, content in rows.items():
        kind, _, member_id = row.partition("/")
        metadata, assignment = rows.get(metadata_row(member_id)), rows.get(assignment_row(member_id))
        if row != GROUP_ROW and (metadata is None or assignment is None):
            core.saver.mark(row)
        elif kind == "m" and assignment is not None:
            members.append(decode_member(core.group_id, member_id, content, assignment))
    _settle_conflicts(members)
    for member in members:
        if member.instance_id is not None and core.members.static(member.instance_id) is not None:
            core.mark(member)  # the save that deletes it has failed
            continue
        member.subscription = core.members.intern(member.subscription)
        core.members.add(member)
        core.ownership.take(member, member.assigned)
        core.ownership.take(member, member.revoking)
        core.targets.assignments[member.member_id] = member.assigned
    assignment_epoch = max((member.epoch for member in core.members), default=0)
    assignment_epoch = max(assignment_epoch, group.assignment_epoch)
    epoch = max(group.epoch, assignment_epoch)
    if epoch == assignment_epoch and not all(_was_reconciled(each, epoch) for each in core.members):
        epoch += 1
    core.targets.restore(epoch, assignment_epoch, group.topics_hash)


def _was_reconciled(member: ConsumerMember, epoch: int) -> bool:
    if member.epoch == LEAVE_FOR_A_WHILE_EPOCH:
        return member.previous_epoch == epoch and not member.revoking
    return member.is_reconciled_to(epoch)


def _settle_conflicts(members: list[ConsumerMember]) -> None:
    taken: set[tuple[UUID, int]] = set()
    for member in sorted(members, key=lambda each: max(each.epoch, each.previous_epoch), reverse=True):
        member.assigned = _without(member.assigned, taken)
        member.revoking = _without(member.revoking, taken)
        for assignment in (member.assigned, member.revoking):
            taken.update((topic_id, each) for topic_id, partitions in assignment.items() for each in partitions)


def _without(assignment: Assignment, taken: set[tuple[UUID, int]]) -> Assignment:
    left = {
        topic_id: frozenset(each for each in partitions if (topic_id, each) not in taken)
        for topic_id, partitions in assignment.items()
    }
    return {topic_id: partitions for topic_id, partitions in left.items() if partitions}
