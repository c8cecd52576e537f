"""A consumer group (KIP-848): the requests of its clients, by Kafka's rules, and its restoration after a restart.

Pure: events come in with ``now`` (monotonic seconds), and effects come out of ``take_effects``: answers to send, rows to make
durable, work to do without the lock. ``wake`` says when ``expire`` is due. There is no lock, clock or catalogue here: the
coordinator passes the events of a group one by one, under its lock for the group.

Effects, in order: ``Answer``, ``JoinAnswer``, ``SyncAnswer`` (send it); ``SaveRows``, ``BecomeClassic`` (make
it durable, then call ``saved``); ``AssignmentTask`` (``run``, then ``assignment_computed``); ``RegexTask`` (``run_slice`` until
it is True, then ``regexes_resolved``). The two tasks run on a thread that may be busy for a while, with no lock held. If one of
them is lost, the only consequence is that members that have joined get no partitions.

Costs of a step under the lock: a heartbeat that changes nothing about 2 us, a member's own step 1 us for each of its partitions,
an inline assignment 1 ms, taking a large assignment 1 us a member, answering parked members 5 ms (``RELEASE_MAX``).

Deliberate differences from Kafka: a static member may join again under its own member id although it has not left, as its
answer may have been lost (Kafka: UNRELEASED_INSTANCE_ID, which ends the client); a full group takes static members back; and a
request that joins is answered with its partitions although the assignment is computed elsewhere.

Restoration: the target assignment is not stored. If every member had reached it, the members' partitions are the target, and
the group goes on as if nothing had happened. Otherwise the group epoch is bumped, and the next heartbeat has a new target
computed from the members' partitions: nobody was told of the lost target (docs/decisions/0013-consumer-group-rows.md). Until
then each member's target is its present assignment.

A save that failed while a later save succeeded can leave a partition with two members: the first was asked to give it up and
did, which was not written; the second got it, which was written. The member with the greater epoch has it. Such a failure can
also leave a row of a member whose other row is missing. No client was told of either, and useless rows are deleted with the next
save.
"""

from collections.abc import Mapping
from math import inf
from typing import ClassVar, Final
from uuid import UUID

from broker.errors import RequestError
from broker.kafka.groups.classic_group import ClassicGroup
from broker.kafka.groups.consumer.classic_requests import (
    ClassicRequests,
    become_classic,
    fill_from_classic,
    may_become_classic,
)
from broker.kafka.groups.consumer.heartbeats import Heartbeats
from broker.kafka.groups.consumer.members import ConsumerMember, GroupState, group_state
from broker.kafka.groups.consumer.membership import ConsumerGroupEffect, Membership
from broker.kafka.groups.consumer.rows import (
    GroupRow,
    assignment_row,
    decode_group,
    decode_member,
)
from broker.kafka.groups.consumer.targets import AssignmentTask
from broker.kafka.groups.consumer.values import (
    LEAVE_FOR_A_WHILE_EPOCH,
    Assignment,
    BecomeClassic,
    ConsumerGroupDescription,
    ConsumerGroupLimits,
    ConsumerMemberDescription,
    HeartbeatReply,
    HeartbeatRequest,
    HeartbeatResult,
    RegexTask,
    TopicsImage,
)
from broker.kafka.groups.coordinated import GROUP_ROW, JOIN_EPOCH, member_row
from broker.kafka.groups.group import GroupType, SaveRows
from broker.kafka.groups.values import (
    JoinAnswer,
    JoinReply,
    JoinRequest,
    JoinResult,
    SyncAnswer,
    SyncReply,
    SyncRequest,
    SyncResult,
)
from protocol.kafka.errors import ErrorCode

CONSUMER_MEMBER: Final = 1
CLASSIC_MEMBER: Final = 0


class ConsumerGroup:
    """A request against the rules gets an error code as its answer, and changes nothing."""

    type: ClassVar[GroupType] = GroupType.CONSUMER

    def __init__(self, group_id: str, limits: ConsumerGroupLimits) -> None:
        self.group_id = group_id
        self._effects: list[ConsumerGroupEffect] = []
        self._core = Membership(group_id, limits, self._effects.append)
        self._heartbeats = Heartbeats(self._core)
        self._classic = ClassicRequests(self._core)
        self._is_dead = False

    @classmethod
    def restore(
        cls, group_id: str, limits: ConsumerGroupLimits, rows: Mapping[str, bytes], now: float
    ) -> "ConsumerGroup":
        """The group as of the saved rows. Its members have a whole session timeout to send a heartbeat.

        Raises StorageError if the rows cannot be read.
        """
        group = cls(group_id, limits)
        restore_members(group._core, rows)
        for member in group._core.members:
            group._core.expect_heartbeat(member, now)
            group._core.watch_revocation(member, now)
        return group

    @classmethod
    def from_classic(
        cls, classic: ClassicGroup, limits: ConsumerGroupLimits, topics: TopicsImage, now: float
    ) -> "ConsumerGroup":
        """The consumer group that a classic group of consumers becomes, on a heartbeat of a consumer group's member.

        Raises RequestError if it cannot be upgraded. The old group is unchanged. The caller passes the heartbeat to the new group
        and, unless that is refused, calls ``hand_over`` of the old group and puts the new group into its place. The first save
        has every row."""
        group = cls(classic.group_id, limits)
        group._core.targets.see_topics(topics)
        fill_from_classic(group._core, classic, topics, now)
        return group

    def set_limits(self, limits: ConsumerGroupLimits) -> None:
        """The operator has changed the limits."""
        self._core.limits = self._core.targets.limits = limits
        for member in self._core.members:
            member.unchanged = None

    # State that the coordinator reads --------------------------------------------------------------------------------

    @property
    def state(self) -> GroupState:
        if self._is_dead:
            return GroupState.DEAD
        core, targets = self._core, self._core.targets
        return group_state(len(core.members), targets.epoch, targets.assignment_epoch, core.are_all_reconciled())

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def member_count(self) -> int:
        return len(self._core.members)

    @property
    def is_empty(self) -> bool:
        return not len(self._core.members) and not self._is_dead

    @property
    def is_dead(self) -> bool:
        return self._is_dead

    @property
    def epoch(self) -> int:
        return self._core.targets.epoch

    @property
    def topics(self) -> frozenset[str] | None:
        """Topics that its members subscribe to; None while an expression has not been matched."""
        return self._core.targets.subscribed_topics()

    @property
    def wake(self) -> float:
        """When ``expire`` is due: no deadline is earlier."""
        return self._core.schedule.wake

    @property
    def size_bytes(self) -> int:
        """Approximate memory in addition to that of every group."""
        return self._core.members.size_bytes

    @property
    def has_pending_members(self) -> bool:
        return False

    @property
    def was_never_joined(self) -> bool:
        """Whether no client has ever been a member: only offsets of the group are worth keeping."""
        return self._core.targets.epoch == 0

    def may_read(self, topics: frozenset[str]) -> bool:
        """Whether a change of one of these topics may concern the group."""
        members = self._core.members
        return bool(members.regexes) or not members.subscriptions.names.isdisjoint(topics)

    def is_of_consumer_protocol(self, member_id: str) -> bool:
        """False for a member of the classic protocol, and for a missing member."""
        member = self._core.members.get(member_id)
        return member is not None and member.classic is None

    def take_effects(self) -> list[ConsumerGroupEffect]:
        """The effects of the events since the last call, in order."""
        effects = self._effects.copy()
        self._effects.clear()
        return effects

    def describe(self) -> ConsumerGroupDescription:
        core, targets = self._core, self._core.targets
        members = tuple(
            ConsumerMemberDescription(
                member.member_id,
                member.instance_id,
                member.rack_id,
                member.epoch,
                member.client_id,
                member.client_host,
                tuple(sorted(member.subscription.names)),
                member.subscription.regex or None,
                member.assigned,
                targets.of(member),
                CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
            )
            for member in core.members
        )
        assignor = core.members.preferred_assignor(core.limits.assignors)
        return ConsumerGroupDescription(
            self.group_id, self.state_name, targets.epoch, targets.assignment_epoch, assignor, members
        )

    # Requests of consumers ------------------------------------------------------------------------------------------

    def heartbeat(
        self,
        request: HeartbeatRequest,
        topics: TopicsImage,
        to: HeartbeatReply,
        now: float,
        free_bytes: float = inf,
    ) -> HeartbeatResult | None:
        """The answer if it is known now; None if it comes as an ``Answer``.

        The request has passed ``check_heartbeat``, and has a member id, which the caller gives a joining client of version 0.
        ``free_bytes``: how much memory this group may take in addition, within the bound of all groups."""
        member = self._core.members.get(request.member_id)
        if member is not None and self._heartbeats.changes_nothing(member, request, topics, now):
            self._core.expect_heartbeat(member, now)
            return member.unchanged
        if self._is_dead:
            return HeartbeatResult(ErrorCode.coordinator_not_available)
        result = None
        try:
            if request.member_epoch < JOIN_EPOCH:
                self._core.targets.see_topics(topics)
                self._heartbeats.leave(request, to, now)
            else:
                result = self._heartbeats.heartbeat(request, topics, to, now, free_bytes)
        except RequestError as refusal:
            result = HeartbeatResult(ErrorCode(refusal.code), refusal.message or None)
        self._settle(now, may_downgrade=request.member_epoch < JOIN_EPOCH)
        return result

    def check_commit(self, member_id: str, instance_id: str | None, epoch: int, now: float) -> ErrorCode:
        """Whether this member, or this consumer that is not a member, may commit offsets now.

        A commit of a classic member counts as a heartbeat.
        """
        if self._is_dead:
            return ErrorCode.coordinator_not_available
        members = self._core.members
        if epoch < 0 and not len(members):
            return ErrorCode.none  # a consumer that assigns its own partitions, or an operator
        member = members.get(member_id)
        if instance_id is not None and members.static(instance_id) not in (None, member):
            return ErrorCode.fenced_instance_id
        error = self._check_member_epoch(member_id, epoch)
        if not error and member is not None and member.classic is not None:
            self._core.expect_heartbeat(member, now)
        return error

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Whether a consumer may read the group's offsets. A consumer that names no member may."""
        if member_id is None and epoch < 0:
            return ErrorCode.none
        return self._check_member_epoch(member_id or "", epoch)

    def delete(self) -> ErrorCode:
        """End the group if it has no members."""
        if self._is_dead:
            return ErrorCode.group_id_not_found
        if len(self._core.members):
            return ErrorCode.non_empty_group
        self._close()
        return ErrorCode.none

    # Requests of classic members ------------------------------------------------------------------------------------

    def classic_join(
        self, request: JoinRequest, topics: TopicsImage, to: JoinReply, now: float, free_bytes: float = inf
    ) -> None:
        """JoinGroup. The answer comes as a ``JoinAnswer``. ``free_bytes`` as for ``heartbeat``."""
        if self._is_dead:
            self._effects.append(JoinAnswer(to, JoinResult(ErrorCode.coordinator_not_available, request.member_id)))
            return
        may_downgrade = self._classic.join(request, topics, to, now, free_bytes)
        self._settle(now, may_downgrade=may_downgrade)

    def classic_sync(self, request: SyncRequest, to: SyncReply, now: float) -> None:
        """SyncGroup. The answer comes as a ``SyncAnswer``."""
        if self._is_dead:
            self._effects.append(SyncAnswer(to, SyncResult(ErrorCode.coordinator_not_available)))
            return
        self._classic.sync(request, to, now)
        self._settle(now)

    def classic_heartbeat(self, member_id: str, instance_id: str | None, generation: int, now: float) -> ErrorCode:
        if self._is_dead:
            return ErrorCode.coordinator_not_available
        return self._classic.heartbeat(member_id, instance_id, generation, now)

    def classic_leave(self, member_id: str, instance_id: str | None, now: float) -> ErrorCode:
        """One member of a LeaveGroup."""
        if self._is_dead:
            return ErrorCode.coordinator_not_available
        error = self._classic.leave(member_id, instance_id, now)
        self._settle(now, may_downgrade=True)
        return error

    # Other events ---------------------------------------------------------------------------------------------------

    def saved(self, save: SaveRows | BecomeClassic, error: ErrorCode, now: float) -> None:
        """``save`` is durable, or has failed."""
        self._core.saved(save, error, now)

    def topics_changed(self, topics: TopicsImage, now: float) -> None:
        """A topic was made or deleted, or has grown. Heartbeats bring the topics as well; this only makes it sooner."""
        if not self._is_dead:
            self._core.targets.see_topics(topics)
            self._core.targets.resolve_regexes(now)
            self._core.advance(now)
            self._settle(now)

    def assignment_computed(self, task: AssignmentTask, now: float) -> None:
        """``task`` has run. If it has failed, members that wait for it are told so, and the next heartbeat causes another."""
        if not self._is_dead:
            if self._core.targets.computed(task):
                self._core.advance(now)
            else:
                self._core.parked.refuse_all(ErrorCode.unknown_server_error, now)
            self._settle(now)

    def regexes_resolved(self, task: RegexTask, now: float) -> None:
        """``task`` has run. If it has failed, it is repeated after a pause."""
        if not self._is_dead:
            self._core.targets.regexes_resolved(task, now)
            self._core.advance(now)
            self._settle(now)

    def expire(self, now: float) -> None:
        """Handle everything that is due by ``now``."""
        core, schedule = self._core, self._core.schedule
        has_fenced = False
        while (member_id := schedule.next_member(now)) is not None:
            member = core.members.get(member_id)
            assert member is not None
            if core.put_off(member):
                continue
            core.remove(member, ErrorCode.unknown_member_id, now)
            has_fenced = True
        if schedule.other <= now:
            schedule.other = inf
            core.targets.resolve_regexes(now)
            core.advance(now)
        schedule.wake = schedule.next()
        self._settle(now, may_downgrade=has_fenced)

    def rebalance(self, now: float) -> bool:
        """Have all members give up their partitions, and assign these anew when nobody has any. Bumping the epoch alone would not
        do: the assignors are sticky, and the members would notice nothing. False if there are no members."""
        if not len(self._core.members):
            return False
        self._core.targets.withhold()
        self._core.advance(now)
        self._settle(now)
        return True

    def time_out(self, member_id: str | None, now: float) -> bool:
        """Remove this member, or all, as at the end of its session. False if there is none."""
        found = [each for each in self._core.members if member_id in (None, each.member_id)]
        for member in found:
            self._core.remove(member, ErrorCode.unknown_member_id, now)
        if found:
            self._settle(now, may_downgrade=True)
        return bool(found)

    def shut_down(self) -> None:
        """The broker stops. Waiting requests are answered; the group stays as it was saved."""
        if not self._is_dead:
            self._core.parked.refuse_all(ErrorCode.not_coordinator, 0.0)
            self._close()

    # Inside ---------------------------------------------------------------------------------------------------------

    def _settle(self, now: float, *, may_downgrade: bool = False) -> None:
        """End an event: have its changes stored."""
        if may_downgrade and may_become_classic(self._core):
            self._effects.append(become_classic(self._core, now))
            self._close()
            return
        if self._core.targets.is_withheld and self._core.ownership.is_empty:
            self._core.targets.give_back()
            self._core.advance(now)
        self._core.saver.flush()

    def _check_member_epoch(self, member_id: str, epoch: int) -> ErrorCode:
        member = self._core.members.get(member_id)
        if member is None:
            return ErrorCode.unknown_member_id
        if epoch == member.epoch:
            return ErrorCode.none
        return ErrorCode.stale_member_epoch if member.classic is None else ErrorCode.illegal_generation

    def _close(self) -> None:
        self._is_dead = True
        self._core.schedule.clear()


def restore_members(core: Membership, rows: Mapping[str, bytes]) -> None:
    """Fill an empty membership from the rows. Raises StorageError."""
    group = decode_group(core.group_id, rows[GROUP_ROW]) if GROUP_ROW in rows else GroupRow(0, 0)
    members = []
    for row, content in rows.items():
        kind, _, member_id = row.partition("/")
        metadata, assignment = rows.get(member_row(member_id)), rows.get(assignment_row(member_id))
        if row != GROUP_ROW and (metadata is None or assignment is None):
            core.saver.mark(row)
        elif kind == "m" and assignment is not None:
            members.append(decode_member(core.group_id, member_id, content, assignment))
    _settle_conflicts(members)
    for member in members:
        if member.instance_id is not None and core.members.static(member.instance_id) is not None:
            core.mark(member)  # the save that deletes it has failed
            continue
        member.subscription = core.members.subscriptions.intern(member.subscription)
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
