"""A classic consumer group: the requests of its clients, by Kafka's rules.

Pure: events come in with ``now`` (monotonic seconds), and effects come out of ``take_effects``: answers to send, generations to
make durable. ``wake`` says when ``expire`` is due. There is no lock, clock or catalogue here: the coordinator passes the events
of a group one by one, under its lock for the group. Offsets are in ``offsets.py``.

The group consists of its members, the clients that were given a member id and have not come back, the requests that wait for an
answer (all in ``members.py``), its deadlines (``deadlines.py``) and the rebalancer (``rebalancer.py``), which owns the state.
``classic_states.py`` has the table of states.

Tests: tests/kafka/groups/test_group_joining.py, tests/kafka/groups/test_group_sessions.py,
tests/kafka/groups/test_group_static.py, tests/kafka/groups/test_group_syncing.py, tests/kafka/groups/test_group_machine.py.
"""

from math import inf
from typing import ClassVar

import attrs

from broker.kafka.groups.classic_states import ClassicGroupEvent, ClassicGroupState
from broker.kafka.groups.deadlines import Schedule
from broker.kafka.groups.group import GroupType
from broker.kafka.groups.members import Member, Members, ParkedRequests, PendingMembers, size_of
from broker.kafka.groups.rebalancer import COMPLETING, EMPTY, PREPARING, STABLE, GroupLimits, Rebalancer
from broker.kafka.groups.values import (
    UNKNOWN_MEMBER,
    Assigned,
    Effect,
    GroupDescription,
    GroupSnapshot,
    JoinAnswer,
    JoinReply,
    JoinRequest,
    JoinResult,
    MemberDescription,
    Replaced,
    Save,
    SyncAnswer,
    SyncReply,
    SyncRequest,
    SyncResult,
)
from protocol.kafka.errors import ErrorCode

DEAD = ClassicGroupState.DEAD


class ClassicGroup:
    """A ``Group``. A request against the rules gets an error code as its answer."""

    type: ClassVar[GroupType] = GroupType.CLASSIC

    def __init__(self, group_id: str, limits: GroupLimits) -> None:
        self.group_id = group_id
        self.members = Members()
        self._limits = limits
        self._effects: list[Effect] = []
        self._pending = PendingMembers(limits.max_bytes)
        self._parked = ParkedRequests(self._effects.append)
        self._schedule = Schedule()
        self._rebalancer = Rebalancer(
            limits, self.members, self._pending, self._parked, self._schedule, self._effects.append
        )

    @classmethod
    def restore(cls, group_id: str, limits: GroupLimits, snapshot: GroupSnapshot, now: float) -> "ClassicGroup":
        """The group as of ``snapshot``. Its members have a whole session timeout to send a heartbeat."""
        group = cls(group_id, limits)
        group._rebalancer.restore(snapshot, now)
        return group

    # State that the coordinator reads --------------------------------------------------------------------------------

    @property
    def state(self) -> ClassicGroupState:
        return self._rebalancer.state

    @property
    def state_name(self) -> str:
        return self._rebalancer.state.value

    @property
    def is_empty(self) -> bool:
        return self._rebalancer.state is EMPTY

    @property
    def is_dead(self) -> bool:
        return self._rebalancer.state is DEAD

    @property
    def member_count(self) -> int:
        return len(self.members)

    @property
    def epoch(self) -> int:
        return self._rebalancer.generation

    @property
    def generation(self) -> int:
        return self._rebalancer.generation

    @property
    def protocol_type(self) -> str | None:
        """None if only offsets of the group are known."""
        return self._rebalancer.protocol_type

    @property
    def protocol_name(self) -> str | None:
        """The assignor of the present generation."""
        return self._rebalancer.protocol_name

    @property
    def topics(self) -> frozenset[str] | None:
        """Topics that the current generation subscribes to; None if the coordinator cannot know them."""
        return self._rebalancer.topics

    @property
    def wake(self) -> float:
        """When ``expire`` is due: no deadline is earlier."""
        return self._schedule.wake

    @property
    def size_bytes(self) -> int:
        """Approximate memory in addition to that of every group."""
        return self.members.size_bytes + self._pending.size_bytes + len(self.protocol_type or "")

    @property
    def has_pending_members(self) -> bool:
        return bool(len(self._pending))

    @property
    def was_never_joined(self) -> bool:
        """Whether no client has been a member or is about to become a member: only its offsets are worth keeping."""
        return self.state is EMPTY and self.generation == 0 and not self.has_pending_members

    def take_effects(self) -> list[Effect]:
        """The effects of the events since the last call, in order."""
        effects = self._effects.copy()
        self._effects.clear()
        return effects

    def describe(self) -> GroupDescription:
        rebalancer = self._rebalancer
        is_stable = rebalancer.state is STABLE
        members = tuple(
            MemberDescription(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.metadata(rebalancer.protocol_name) if is_stable else b"",
                member.assignment if is_stable else b"",
            )
            for member in self.members
        )
        protocol_name = (rebalancer.protocol_name or "") if is_stable else ""
        return GroupDescription(self.group_id, rebalancer.state, rebalancer.protocol_type or "", protocol_name, members)

    # Requests -------------------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, to: JoinReply, now: float, free_bytes: float = inf) -> None:
        """``free_bytes``: how much memory this group may take in addition, within the bound of all groups."""
        member_id = request.member_id
        if not self._is_size_allowed_with(member_id):
            self._rebalancer.forget(member_id)
            self._refuse(to, ErrorCode.group_max_size_reached, UNKNOWN_MEMBER)
        elif self.state is DEAD:
            self._refuse(to, ErrorCode.coordinator_not_available, member_id)
        elif not self._supports(request):
            self._refuse(to, ErrorCode.inconsistent_group_protocol, member_id)
        elif error := self._check_bytes(request, free_bytes):
            self._refuse(to, error, member_id)
        elif member_id == UNKNOWN_MEMBER:
            self._join_unknown(request, to, now)
        elif member_id in self._pending and request.group_instance_id is None:
            self._add(member_id, request, to, now)
        else:
            self._join_known(request, to, now)
        self._rebalancer.try_complete_join(now)

    def sync(self, request: SyncRequest, to: SyncReply, now: float, free_bytes: float = inf) -> None:
        """``free_bytes`` as for ``join``."""
        error = self._check_sync(request)
        if error:
            self._effects.append(SyncAnswer(to, SyncResult(error)))
            return
        rebalancer = self._rebalancer
        member = self.members[request.member_id]
        rebalancer.member_synced(member.member_id)
        if rebalancer.state is STABLE:
            self._effects.append(SyncAnswer(to, rebalancer.assignment_of(member)))
            rebalancer.expect_heartbeat(member, now)
            return
        self._parked.park_sync(member.member_id, to)
        if member.member_id == self.members.leader:
            rebalancer.take_assignment(request.assignments, free_bytes, now)

    def heartbeat(self, member_id: str, group_instance_id: str | None, generation: int, now: float) -> ErrorCode:
        error = self._check_generation(member_id, group_instance_id, generation)
        if error:
            return error
        self._rebalancer.expect_heartbeat(self.members[member_id], now)
        return ErrorCode.rebalance_in_progress if self._rebalancer.state is PREPARING else ErrorCode.none

    def leave(self, member_id: str, group_instance_id: str | None, now: float) -> ErrorCode:
        """By member id; or by group instance id alone, when an operator removes a static member."""
        if member_id == UNKNOWN_MEMBER and group_instance_id is not None:
            member_id = self.members.static_member_id(group_instance_id) or UNKNOWN_MEMBER
        elif member_id in self._pending:
            self._rebalancer.forget(member_id)
            self._rebalancer.try_complete_join(now)
            return ErrorCode.none
        error = self._check_member(member_id, group_instance_id)
        if not error:
            self._rebalancer.remove(member_id, now)
        return error

    def check_commit(self, member_id: str, group_instance_id: str | None, generation: int, now: float) -> ErrorCode:
        """Whether this member, or this consumer that is not a member, may commit offsets now. Counts as a heartbeat."""
        if self.state is EMPTY and generation < 0:
            return ErrorCode.none  # a consumer that assigns its own partitions, or an operator
        error = self._check_generation(member_id, group_instance_id, generation)
        if error:
            return error
        if self.state is COMPLETING:
            return ErrorCode.rebalance_in_progress
        # While a rebalance is prepared, members of the previous generation may still commit.
        self._rebalancer.expect_heartbeat(self.members[member_id], now)
        return ErrorCode.none

    def delete(self) -> ErrorCode:
        """End the group if it has no members."""
        if self.state is DEAD:
            return ErrorCode.group_id_not_found
        if self.state is not EMPTY:
            return ErrorCode.non_empty_group
        self._rebalancer.close(ClassicGroupEvent.GROUP_DELETED)
        return ErrorCode.none

    # Other events ---------------------------------------------------------------------------------------------------

    def saved(self, save: Save, error: ErrorCode, now: float) -> None:
        """``save`` is durable, or has failed (``error``)."""
        if isinstance(save.then, Assigned):
            self._rebalancer.assigned(save.then, error, now)
        elif isinstance(save.then, Replaced):
            self._replaced(save.then, error, now)
        # Otherwise the group has become empty. If that was not saved, a restart restores the previous generation, whose members
        # then time out.

    def expire(self, now: float) -> None:
        """Handle everything that is due by ``now``."""
        self._rebalancer.expire(now)

    def rebalance(self, now: float) -> bool:
        """Have all members join again, unless they are already being asked to. False if there are no members."""
        if self.state in (STABLE, COMPLETING):
            self._rebalancer.prepare(ClassicGroupEvent.MEMBER_LEFT, now)
        return bool(len(self.members))

    def time_out(self, member_id: str | None, now: float) -> bool:
        """Remove this member, or all, as at the end of its session, also while its request is parked. False if there is none."""
        found = [each.member_id for each in self.members if member_id in (None, each.member_id)]
        for each in found:
            if each in self.members:  # a rebalance that the others have ended removes those that have not joined
                self._rebalancer.remove(each, now)
        return bool(found)

    def hand_over(self) -> None:
        """Another group takes over the members. Parked members are told to join again, and nothing else happens here."""
        self._parked.answer_all(ErrorCode.rebalance_in_progress)

    def shut_down(self) -> None:
        """The broker stops. Parked members are told to look for the coordinator again; the group stays as it was saved."""
        self._parked.answer_all(ErrorCode.not_coordinator)
        self._rebalancer.close(ClassicGroupEvent.BROKER_STOPPED)

    # Checks -----------------------------------------------------------------------------------------------------------

    def _is_size_allowed_with(self, member_id: str) -> bool:
        """Whether the group has at most ``max_size`` members including this member."""
        if self.state in (EMPTY, DEAD):
            return True
        if self.state is PREPARING:
            # Counts the members that have joined: if the limit was lowered, the last members to join again are turned away.
            return member_id in self._parked.joins or len(self._parked.joins) < self._limits.max_size
        return member_id in self.members or len(self.members) < self._limits.max_size

    def _check_bytes(self, request: JoinRequest, free_bytes: float) -> ErrorCode:
        """Whether the member's metadata is too large for the group, or for the broker. Pending members have their own bound."""
        known = request.member_id
        if known == UNKNOWN_MEMBER and request.group_instance_id is not None:
            known = self.members.static_member_id(request.group_instance_id) or UNKNOWN_MEMBER
        new_id = request.member_id or request.new_member_id
        growth = size_of(new_id, request.group_instance_id, request.client_id, request.protocols)
        if known in self.members:
            growth -= self.members[known].size_bytes
        if growth > 0 and self.members.size_bytes + growth > self._limits.max_bytes:
            return ErrorCode.group_max_size_reached
        return ErrorCode.coordinator_not_available if growth > max(0, free_bytes) else ErrorCode.none

    def _supports(self, request: JoinRequest) -> bool:
        if self.state is EMPTY:
            return bool(request.protocol_type and request.protocols)
        return self.protocol_type == request.protocol_type and self.members.supports_one_of(request.protocols)

    def _check_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        if self._rebalancer.state is DEAD:
            return ErrorCode.coordinator_not_available
        if group_instance_id is not None:
            current = self.members.static_member_id(group_instance_id)
            if current is None:
                return ErrorCode.unknown_member_id
            if current != member_id:
                return ErrorCode.fenced_instance_id
        return ErrorCode.none if member_id in self.members else ErrorCode.unknown_member_id

    def _check_generation(self, member_id: str, group_instance_id: str | None, generation: int) -> ErrorCode:
        error = self._check_member(member_id, group_instance_id)
        if not error and generation != self._rebalancer.generation:
            return ErrorCode.illegal_generation
        return error

    def _check_sync(self, request: SyncRequest) -> ErrorCode:
        error = self._check_generation(request.member_id, request.group_instance_id, request.generation)
        if error:
            return error
        if request.protocol_type not in (None, self._rebalancer.protocol_type):
            return ErrorCode.inconsistent_group_protocol
        if request.protocol_name not in (None, self._rebalancer.protocol_name):
            return ErrorCode.inconsistent_group_protocol
        return ErrorCode.rebalance_in_progress if self.state is PREPARING else ErrorCode.none

    # Joining ----------------------------------------------------------------------------------------------------------

    def _refuse(self, to: JoinReply, error: ErrorCode, member_id: str) -> None:
        self._effects.append(JoinAnswer(to, JoinResult(error, member_id)))

    def _join_unknown(self, request: JoinRequest, to: JoinReply, now: float) -> None:
        """Join a client that has no member id."""
        member_id, instance_id = request.new_member_id, request.group_instance_id
        if instance_id is not None:
            if self.members.static_member_id(instance_id) is None:
                self._add(member_id, request, to, now)
            else:
                self._replace(instance_id, request, to, now)
        elif request.member_id_required:
            self._rebalancer.await_return(member_id, now + request.session_timeout_ms / 1000)
            self._refuse(to, ErrorCode.member_id_required, member_id)
        else:
            self._add(member_id, request, to, now)

    def _join_known(self, request: JoinRequest, to: JoinReply, now: float) -> None:
        error = self._check_member(request.member_id, request.group_instance_id)
        if error:
            self._refuse(to, error, request.member_id)
            return
        member = self.members[request.member_id]
        is_unchanged = member.protocols == request.protocols
        # The leader of a stable group joins again when it wants a rebalance, for example because a topic got more partitions.
        wants_rebalance = self.state is STABLE and member.member_id == self.members.leader
        if self.state is not PREPARING and is_unchanged and not wants_rebalance:
            # The client has not received the answer to its first join.
            self._effects.append(JoinAnswer(to, self._rebalancer.generation_for(member)))
            return
        self.members.update(member, request)
        self._parked.park_join(member.member_id, to)
        if self.state is not PREPARING:
            self._rebalancer.prepare(ClassicGroupEvent.MEMBER_CHANGED, now)

    def _add(self, member_id: str, request: JoinRequest, to: JoinReply, now: float) -> None:
        if not len(self.members):
            self._rebalancer.protocol_type = request.protocol_type
        self._rebalancer.add(Member.new(member_id, request), now)
        self._parked.park_join(member_id, to)
        if self.state is not PREPARING:
            self._rebalancer.prepare(ClassicGroupEvent.MEMBER_JOINED, now)

    # Static members ---------------------------------------------------------------------------------------------------

    def _replace(self, instance_id: str, request: JoinRequest, to: JoinReply, now: float) -> None:
        """A static member is back without its member id: it gets a new id, and a client that still uses the old id is fenced."""
        rebalancer = self._rebalancer
        old_id, new_id = self.members.static_member_id(instance_id) or "", request.new_member_id
        before, old_leader = attrs.evolve(self.members[old_id]), self.members.leader or ""
        self._parked.answer_join(old_id, JoinResult(ErrorCode.fenced_instance_id, old_id))
        self._parked.answer_sync(old_id, SyncResult(ErrorCode.fenced_instance_id))
        self.members.update(rebalancer.rename(old_id, new_id), request)
        self._parked.park_join(new_id, to)
        if rebalancer.state is STABLE and self.members.select_protocol() == rebalancer.protocol_name:
            # No rebalance is needed. The member gets its old assignment once its new id survives a restart of the broker.
            then = Replaced(rebalancer.generation, request, old_leader, before.snapshot(b""))
            self._effects.append(Save(rebalancer.snapshot(), then))
        elif rebalancer.state is not PREPARING:
            rebalancer.prepare(ClassicGroupEvent.MEMBER_CHANGED, now)

    def _replaced(self, then: Replaced, error: ErrorCode, now: float) -> None:
        """The static member's new id is durable, or could not be saved (``error``)."""
        rebalancer = self._rebalancer
        member_id = then.request.new_member_id
        if member_id not in self._parked.joins or self.state is not STABLE or self.generation != then.generation:
            return  # it has left or was replaced again; or its join is part of a new rebalance
        if error:
            self._parked.answer_join(member_id, JoinResult(error, UNKNOWN_MEMBER))
            member = rebalancer.rename(member_id, then.before.member_id)
            self.members.update(member, then.before)
            rebalancer.expect_heartbeat(member, now)
            return
        member = self.members[member_id]
        result = rebalancer.generation_for(member)
        if then.request.can_skip_assignment:
            # A leader leads again but must not assign anew: the group is stable, so nobody would get that assignment.
            result = attrs.evolve(result, skip_assignment=member_id == self.members.leader)
        else:
            # Before version 9 the only way to keep the leader from assigning is to name its old id as the leader.
            result = attrs.evolve(result, leader=then.old_leader, members=())
        self._parked.answer_join(member_id, result)
        rebalancer.expect_heartbeat(member, now)
