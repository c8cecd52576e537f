"""Moves a classic group from one generation to the next.

Owns the group's state (``classic_states.py`` has the table), its generation, and the progress of the rebalance. ``ClassicGroup``
interprets requests and tells the rebalancer. Pure, under the group's lock: effects go to ``emit``.

A rebalance has two phases. In PREPARING_REBALANCE every member has to join; in COMPLETING_REBALANCE every member has to sync, and
gets its answer once the leader's assignment is durable.

While a member's request is parked its session does not time out, since the broker keeps it waiting. A new member is the
exception: it cannot send heartbeats before its first join is answered, so its death would go unnoticed.

Tests: tests/kafka/groups/test_group_joining.py, tests/kafka/groups/test_group_syncing.py,
tests/kafka/groups/test_group_sessions.py, tests/kafka/groups/test_group_machine.py.
"""

from collections.abc import Callable

import attrs

from broker.kafka.groups.classic_states import ClassicGroupEvent, ClassicGroupState, next_state
from broker.kafka.groups.deadlines import Schedule
from broker.kafka.groups.members import Member, Members, ParkedRequests, PendingMembers
from broker.kafka.groups.values import (
    CONSUMER,
    UNKNOWN_MEMBER,
    Assigned,
    Effect,
    GroupSnapshot,
    JoinMember,
    JoinResult,
    Save,
    SyncResult,
    subscribed_topics,
)
from protocol.kafka.errors import ErrorCode

EMPTY = ClassicGroupState.EMPTY
PREPARING = ClassicGroupState.PREPARING_REBALANCE
COMPLETING = ClassicGroupState.COMPLETING_REBALANCE
STABLE = ClassicGroupState.STABLE

# A rebalance that nobody joined is tried again after the rebalance timeout, which a client may have set to 0.
_RETRY_MIN_S = 1.0
# 5 min, Kafka's NewMemberJoinTimeoutMs: a new member cannot send heartbeats before its first join is answered.
_NEW_MEMBER_TIMEOUT_S = 300.0


@attrs.frozen
class GroupLimits:
    """The operator's limits for every group."""

    max_size: int = 2**31 - 1
    initial_rebalance_delay_ms: int = 0
    # Size of the group's members with their metadata and assignments. Pending members may take as much again.
    max_bytes: int = 2**31 - 1


class Rebalancer:
    def __init__(
        self,
        limits: GroupLimits,
        members: Members,
        pending: PendingMembers,
        parked: ParkedRequests,
        schedule: Schedule,
        emit: Callable[[Effect], None],
    ) -> None:
        self.state = EMPTY
        self.generation = 0
        # None: only offsets of the group are known, no member ever joined.
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        # Topics that the current generation subscribes to; None if the coordinator cannot know them.
        self.topics: frozenset[str] | None = None
        self._limits = limits
        self._members = members
        self._pending = pending
        self._parked = parked
        self._schedule = schedule
        self._emit = emit
        # The first rebalance of an empty group does not wait for its members but for a fixed time, which is prolonged while
        # members arrive. Seconds by which it may still be prolonged; None in every other rebalance.
        self._initial_left_s: float | None = None
        # A member was added since the initial delay began or was last prolonged.
        self._member_added = False
        # Members of this generation whose sync is awaited.
        self.not_synced: set[str] = set()
        # The leader has sent its assignment, and it is being saved.
        self._saving_assignment = False

    def restore(self, snapshot: GroupSnapshot, now: float) -> None:
        """Take over a saved generation. The members have a whole session timeout to send a heartbeat."""
        # "" is saved for a group with offsets only.
        self.protocol_type = snapshot.protocol_type or None
        self.generation = snapshot.generation
        self.protocol_name = snapshot.protocol_name
        for saved in snapshot.members:
            member = Member.restore(saved)
            self._members.add(member)
            self.expect_heartbeat(member, now)
        if snapshot.leader in self._members:
            self._members.leader = snapshot.leader
        self.state = STABLE if len(self._members) else EMPTY
        self.topics = self._subscribed_topics()
        if len(self._members) > self._limits.max_size:
            self.prepare(ClassicGroupEvent.LIMIT_LOWERED, now)  # the last members to join again are turned away
        elif snapshot.leader is None and len(self._members):
            # The group was a consumer group until its last member of that kind left, and has had no leader since.
            self.prepare(ClassicGroupEvent.MEMBER_LEFT, now)

    def close(self, event: ClassicGroupEvent) -> None:
        """The group ends: it is deleted, or the broker stops."""
        self.state = next_state(self.state, event)
        self._pending.clear()
        self._schedule.clear()

    # Members --------------------------------------------------------------------------------------------------------

    def add(self, member: Member, now: float) -> None:
        """Add a new member, whose join is about to be parked."""
        if self.state is PREPARING and self.generation == 0:
            self._member_added = True
        self._pending.remove(member.member_id)
        self._members.add(member)
        self._schedule.set_member(member.member_id, now + _NEW_MEMBER_TIMEOUT_S)

    def rename(self, old_id: str, new_id: str) -> Member:
        """Give a static member another member id."""
        if old_id in self.not_synced:
            self.not_synced.remove(old_id)
            self.not_synced.add(new_id)
        self._schedule.members.rename(old_id, new_id)
        return self._members.replace(old_id, new_id)

    def await_return(self, member_id: str, deadline: float) -> None:
        """A client was given this member id and has to come back with it."""
        for forgotten in self._pending.add(member_id):
            self._schedule.members.remove(forgotten)
        self._schedule.set_member(member_id, deadline)

    def expect_heartbeat(self, member: Member, now: float) -> None:
        """The member has shown that it is alive: its session begins anew."""
        self._schedule.set_member(member.member_id, now + member.session_timeout_ms / 1000)

    def forget(self, member_id: str) -> None:
        """Remove a member, known or pending. The caller goes on with the group."""
        self._parked.answer_join(member_id, JoinResult(ErrorCode.unknown_member_id, UNKNOWN_MEMBER))
        self._parked.answer_sync(member_id, SyncResult(ErrorCode.unknown_member_id))
        self._members.remove(member_id)
        self._pending.remove(member_id)
        self._schedule.members.remove(member_id)

    def remove(self, member_id: str, now: float) -> None:
        """A member leaves, or its session has timed out."""
        self.forget(member_id)
        if self.state in (STABLE, COMPLETING):
            self.prepare(ClassicGroupEvent.MEMBER_LEFT, now)
        else:
            self.try_complete_join(now)

    # Joining --------------------------------------------------------------------------------------------------------

    def prepare(self, event: ClassicGroupEvent, now: float) -> None:
        """Begin a rebalance, for this reason."""
        before = self.state
        self.state = next_state(before, event)
        assert self.state is PREPARING, event
        if before is COMPLETING:
            self._refuse_syncs(ErrorCode.rebalance_in_progress, now)
        self.not_synced.clear()
        self._schedule.sync_deadline = None
        timeout_s = self._members.rebalance_timeout_ms / 1000
        if before is EMPTY:
            delay_s = self._limits.initial_rebalance_delay_ms / 1000
            self._initial_left_s = max(timeout_s - delay_s, 0.0)
            self._schedule.set_join(now + delay_s)
            if delay_s == 0:
                self._end_joining(now)
        else:
            self._initial_left_s = None
            self._schedule.set_join(now + timeout_s)
            self.try_complete_join(now)

    def try_complete_join(self, now: float) -> None:
        """Start the next generation if every member has joined and no pending member is awaited."""
        if self.state is not PREPARING or self._initial_left_s is not None:
            return
        if len(self._parked.joins) == len(self._members) and not len(self._pending):
            self._complete_join(now)

    def _end_joining(self, now: float) -> None:
        """The join deadline has passed."""
        if self._initial_left_s and self._member_added:
            self._member_added = False
            delay_s = min(self._limits.initial_rebalance_delay_ms / 1000, self._initial_left_s)
            self._initial_left_s -= delay_s
            self._schedule.set_join(now + delay_s)
        else:
            self._complete_join(now)

    def _complete_join(self, now: float) -> None:
        """The members that have joined form the next generation."""
        members, joins = self._members, self._parked.joins
        for member in list(members):
            if member.member_id not in joins and member.group_instance_id is None:
                self.forget(member.member_id)
        self._initial_left_s = None
        if len(members) and not joins:
            # Only static members remain and none of them is back: wait until one comes or all have timed out.
            timeout_s = max(members.rebalance_timeout_ms / 1000, _RETRY_MIN_S)
            self._schedule.set_join(now + timeout_s)
            return
        self._schedule.join_deadline = None
        self.generation += 1
        if not len(members):
            self.protocol_name = None
            self.topics = self._subscribed_topics()
            self.state = next_state(self.state, ClassicGroupEvent.GENERATION_EMPTY)
            self._emit(Save(self.snapshot(), None))
            return
        if members.leader not in joins:
            members.leader = next(iter(joins))
        self.protocol_name = members.select_protocol()
        self.topics = self._subscribed_topics()
        self.state = next_state(self.state, ClassicGroupEvent.GENERATION_STARTED)
        self._saving_assignment = False
        for member in members:
            self._parked.answer_join(member.member_id, self.generation_for(member))
            self.expect_heartbeat(member, now)
            member.is_new = False
            self.not_synced.add(member.member_id)
        self._schedule.set_sync(now + members.rebalance_timeout_ms / 1000)

    def generation_for(self, member: Member) -> JoinResult:
        """The answer to a member's join in the current generation."""
        members = self._members
        is_leader = member.member_id == members.leader
        return JoinResult(
            ErrorCode.none,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol_name,
            members.leader or "",
            members=tuple(
                JoinMember(each.member_id, each.group_instance_id, each.metadata(self.protocol_name))
                for each in members
            )
            if is_leader
            else (),
        )

    # Syncing --------------------------------------------------------------------------------------------------------

    def member_synced(self, member_id: str) -> None:
        self.not_synced.discard(member_id)
        if not self.not_synced:
            self._schedule.sync_deadline = None

    def take_assignment(self, assignments: dict[str, bytes], free_bytes: float, now: float) -> None:
        """Save the leader's assignment, by member id, unless it is too large."""
        if self._saving_assignment:
            return
        members = self._members
        # A member that the leader has left out gets an empty assignment.
        complete = {member.member_id: assignments.get(member.member_id, b"") for member in members}
        growth = sum(len(complete[member.member_id]) - len(member.assignment) for member in members)
        if growth > 0 and growth > min(free_bytes, self._limits.max_bytes - members.size_bytes):
            # Kafka's answer to all members if the group does not fit into a message of its offsets topic.
            self._fail_assignment(ErrorCode.unknown_server_error, now)
            return
        self._saving_assignment = True
        self._emit(Save(self.snapshot(complete), Assigned(self.generation, complete)))

    def assigned(self, then: Assigned, error: ErrorCode, now: float) -> None:
        """The leader's assignment is durable, or could not be saved (``error``)."""
        if self.state is not COMPLETING or self.generation != then.generation:
            return  # a rebalance has begun meanwhile
        if error:
            self._fail_assignment(error, now)
            return
        for member in self._members:
            self._members.assign(member, then.assignments[member.member_id])
            if self._parked.answer_sync(member.member_id, self.assignment_of(member)):
                self.expect_heartbeat(member, now)
        self.state = next_state(self.state, ClassicGroupEvent.ASSIGNMENT_SAVED)

    def assignment_of(self, member: Member) -> SyncResult:
        return SyncResult(ErrorCode.none, self.protocol_type, self.protocol_name, member.assignment)

    def _fail_assignment(self, error: ErrorCode, now: float) -> None:
        self._refuse_syncs(error, now)
        self.prepare(ClassicGroupEvent.ASSIGNMENT_FAILED, now)

    def _refuse_syncs(self, error: ErrorCode, now: float) -> None:
        for member in self._members:
            if self._parked.answer_sync(member.member_id, SyncResult(error)):
                self.expect_heartbeat(member, now)

    def snapshot(self, assignments: dict[str, bytes] | None = None) -> GroupSnapshot:
        """The current generation, with these assignments instead of the members' present assignments."""
        members = tuple(
            member.snapshot(member.assignment if assignments is None else assignments[member.member_id])
            for member in self._members
        )
        return GroupSnapshot(
            self.protocol_type or "", self.generation, self.protocol_name, self._members.leader, members
        )

    def _subscribed_topics(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER:
            return None
        return subscribed_topics(member.metadata(self.protocol_name) for member in self._members)

    # Time -----------------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Handle everything that is due by ``now``, in the order of the deadlines."""
        schedule = self._schedule
        due = schedule.next()
        while due <= now:
            # The end of joining first: clients' default rebalance timeout is as long as a new member may stay parked.
            if schedule.join_deadline == due:
                self._end_joining(now)
            elif schedule.sync_deadline == due:
                for member_id in sorted(self.not_synced):
                    self.forget(member_id)
                self.prepare(ClassicGroupEvent.SYNC_TIMED_OUT, now)
            else:
                self._expire_member(now)
            due = schedule.next()
        schedule.wake = due

    def _expire_member(self, now: float) -> None:
        """Expire the member, known or pending, with the earliest deadline."""
        member_id = self._schedule.members.first_key()
        assert member_id is not None
        if member_id in self._pending:
            self.forget(member_id)
            self.try_complete_join(now)
        elif not self._members[member_id].is_new and (
            member_id in self._parked.joins or member_id in self._parked.syncs
        ):
            # The broker keeps the member waiting: its session continues when its request is answered.
            self._schedule.members.remove(member_id)
        else:
            self.remove(member_id, now)
