"""One classic consumer group as a state machine: Kafka's rules, nothing else.

Pure: events go in with ``now`` (monotonic seconds), what must be done comes out of ``take_effects`` (answers to send,
generations to make durable), and ``wake`` says when ``expire`` is due. There is no lock, clock or catalogue here: the events
of one group come one after another, under the coordinator's lock for it. Offsets are in ``offsets.py``.

=====================  ============================================================  ====================
state                  event                                                         next state
=====================  ============================================================  ====================
EMPTY                  a member joins                                                PREPARING_REBALANCE
EMPTY                  the group is deleted, or nothing is left of it                DEAD
PREPARING_REBALANCE    every member has joined and none is awaited, or time is up:   COMPLETING_REBALANCE
                       who has not joined is out, but for static members
PREPARING_REBALANCE    the same, and no member is left                               EMPTY
COMPLETING_REBALANCE   the leader's assignment is durable                            STABLE
COMPLETING_REBALANCE   a member joins, changes its protocols, leaves or fails; a     PREPARING_REBALANCE
                       static member comes back; the assignment cannot be saved
COMPLETING_REBALANCE,  a member has not synced in time (it is out)                   PREPARING_REBALANCE
STABLE
STABLE                 a member joins, leaves or fails; the leader joins again; a    PREPARING_REBALANCE
                       follower joins again with other protocols; a static member
                       comes back and changes the vote
=====================  ============================================================  ====================

A join is parked in PREPARING_REBALANCE (and in STABLE for a static member that is back, until its new id is durable), a sync
in COMPLETING_REBALANCE. Each is answered exactly once. While a member is parked its session does not run out, except a new
member's: it may be long gone and nobody could tell.

Kafka forgets a parked request in two cases, when its member sends another one and when a member that waits in sync leaves;
here it is answered, as its connection would stay muted otherwise.
"""

from math import inf

import attrs

from broker.kafka.groups.rebalance import COMPLETING, DEAD, EMPTY, PREPARING, STABLE, Assigned, GroupLimits, Rebalance
from broker.kafka.groups.roster import Member, size_of
from broker.kafka.groups.values import (
    UNKNOWN_MEMBER,
    GroupDescription,
    GroupSnapshot,
    JoinAnswer,
    JoinReply,
    JoinRequest,
    JoinResult,
    MemberDescription,
    Save,
    SyncAnswer,
    SyncReply,
    SyncRequest,
    SyncResult,
)
from protocol.kafka.errors import ErrorCode

__all__ = ["Group", "GroupLimits"]

# 5 min, Kafka's NewMemberJoinTimeoutMs: a new member cannot send heartbeats before its first join is answered.
_NEW_MEMBER_TIMEOUT_S = 300.0


@attrs.frozen
class _Replaced:
    """What a save is for: a static member's new member id. ``before`` is the member as it was, should saving fail."""

    generation: int
    request: JoinRequest
    old_leader: str
    before: Member


class Group(Rebalance):
    """What clients ask of a group. What they may not do is an error code in the answer."""

    @classmethod
    def restore(cls, group_id: str, limits: GroupLimits, snapshot: GroupSnapshot, now: float) -> "Group":
        """The group as it was when ``snapshot`` was saved. Its members have a whole session timeout to show up."""
        group = cls(group_id, limits)
        # "" is what a group of which only offsets are known would be saved with.
        group.protocol_type = snapshot.protocol_type or None
        group.generation = snapshot.generation
        group.protocol_name = snapshot.protocol_name
        for kept in snapshot.members:
            member = Member(
                kept.member_id,
                kept.group_instance_id,
                kept.client_id,
                kept.client_host,
                kept.session_timeout_ms,
                kept.rebalance_timeout_ms,
                kept.protocols,
                kept.assignment,
            )
            group.roster.add(member)
            group._expect_heartbeat(member, now)
        if snapshot.leader in group.roster:
            group.roster.leader = snapshot.leader
        group.state = STABLE if len(group.roster) else EMPTY
        group.topics = group._subscribed_topics()
        if len(group.roster) > limits.max_size:
            group._prepare_rebalance(now)  # the limit was lowered: who is last to join again is turned away
        return group

    # Requests -------------------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, to: JoinReply, now: float, free_bytes: float = inf) -> None:
        """``free_bytes``: by how much this group may grow for the sake of all others."""
        member_id = request.member_id
        if not self._has_room_for(member_id):
            self._forget(member_id)
            self._refuse(to, ErrorCode.group_max_size_reached, UNKNOWN_MEMBER)
        elif self.state is DEAD:
            self._refuse(to, ErrorCode.coordinator_not_available, member_id)
        elif not self._supports(request):
            self._refuse(to, ErrorCode.inconsistent_group_protocol, member_id)
        elif error := self._refusal_of_size(request, free_bytes):
            self._refuse(to, error, member_id)
        elif member_id == UNKNOWN_MEMBER:
            self._join_unknown(request, to, now)
        elif member_id in self._pending and request.group_instance_id is None:
            self._add(member_id, request, to, now)
        else:
            self._join_known(request, to, now)
        self._try_complete_join(now)

    def sync(self, request: SyncRequest, to: SyncReply, now: float, free_bytes: float = inf) -> None:
        """``free_bytes`` as for ``join``."""
        error = self._check_sync(request)
        if error:
            self._effects.append(SyncAnswer(to, SyncResult(error)))
            return
        member = self.roster[request.member_id]
        self._not_synced.discard(member.member_id)
        if not self._not_synced:
            self._sync_deadline = None
        if self.state is STABLE:
            self._effects.append(SyncAnswer(to, self._assignment_of(member)))
            self._expect_heartbeat(member, now)
            return
        self._park_sync(member.member_id, to)
        if member.member_id == self.roster.leader and not self._saving_assignment:
            # A member that the leader has left out gets nothing.
            assignments = {one.member_id: request.assignments.get(one.member_id, b"") for one in self.roster}
            growth = sum(len(assignments[one.member_id]) - len(one.assignment) for one in self.roster)
            if growth > 0 and growth > min(free_bytes, self._limits.max_bytes - self.roster.size_bytes):
                # What Kafka tells all members where the group does not fit into a message of its offsets topic.
                self._refuse_syncs(ErrorCode.unknown_server_error, now)
                self._prepare_rebalance(now)
                return
            self._saving_assignment = True
            self._effects.append(Save(self.snapshot(assignments), Assigned(self.generation, assignments)))

    def heartbeat(self, member_id: str, group_instance_id: str | None, generation: int, now: float) -> ErrorCode:
        error = self._check_generation(member_id, group_instance_id, generation)
        if error:
            return error
        self._expect_heartbeat(self.roster[member_id], now)
        return ErrorCode.rebalance_in_progress if self.state is PREPARING else ErrorCode.none

    def leave(self, member_id: str, group_instance_id: str | None, now: float) -> ErrorCode:
        """By member id, or by group instance id alone: an operator removes a static member."""
        if member_id == UNKNOWN_MEMBER and group_instance_id is not None:
            member_id = self.roster.static_member_id(group_instance_id) or UNKNOWN_MEMBER
        elif member_id in self._pending:
            self._forget(member_id)
            self._try_complete_join(now)
            return ErrorCode.none
        error = self._check_member(member_id, group_instance_id)
        if not error:
            self._remove(member_id, now)
        return error

    def check_commit(self, member_id: str, group_instance_id: str | None, generation: int, now: float) -> ErrorCode:
        """May this member, or this consumer that is no member, commit offsets now? Counts as a heartbeat."""
        if self.state is EMPTY and generation < 0:
            return ErrorCode.none  # a consumer that assigns its partitions itself, or an operator
        error = self._check_generation(member_id, group_instance_id, generation)
        if error:
            return error
        if self.state is COMPLETING:
            return ErrorCode.rebalance_in_progress
        # While preparing, the previous generation may still commit how far it has read.
        self._expect_heartbeat(self.roster[member_id], now)
        return ErrorCode.none

    def delete(self) -> ErrorCode:
        """The end of it, if it has no members."""
        if self.state is DEAD:
            return ErrorCode.group_id_not_found
        if self.state is not EMPTY:
            return ErrorCode.non_empty_group
        self._die()
        return ErrorCode.none

    # Other events ---------------------------------------------------------------------------------------------------

    def saved(self, save: Save, error: ErrorCode, now: float) -> None:
        """``save`` is durable; or (``error``) it could not be made so."""
        if isinstance(save.then, Assigned):
            self._assigned(save.then, error, now)
        elif isinstance(save.then, _Replaced):
            self._replaced(save.then, error, now)
        # Else the group became empty. Not saved, the generation before would be back after a restart, and time out.

    def shut_down(self) -> None:
        """The broker stops. Who is parked will look for the coordinator again; the group stays as it was saved."""
        for member_id in list(self._joining):
            self._answer_join(member_id, JoinResult(ErrorCode.not_coordinator, member_id))
        for member_id in list(self._syncing):
            self._answer_sync(member_id, SyncResult(ErrorCode.not_coordinator))
        self._die()

    def _die(self) -> None:
        self.state = DEAD
        self._pending.clear()
        self._pending_bytes = 0
        self._deadlines.clear()
        self.wake = inf

    # What can be seen -------------------------------------------------------------------------------------------------

    @property
    def has_pending_members(self) -> bool:
        return bool(self._pending)

    @property
    def was_never_joined(self) -> bool:
        """Nobody has been a member and nobody is about to be one: what is worth keeping of it can only be offsets."""
        return self.state is EMPTY and self.generation == 0 and not self._pending

    def describe(self) -> GroupDescription:
        stable = self.state is STABLE
        members = tuple(
            MemberDescription(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.metadata(self.protocol_name) if stable else b"",
                member.assignment if stable else b"",
            )
            for member in self.roster
        )
        protocol_name = (self.protocol_name or "") if stable else ""
        return GroupDescription(self.group_id, self.state, self.protocol_type or "", protocol_name, members)

    # Checks -----------------------------------------------------------------------------------------------------------

    def _has_room_for(self, member_id: str) -> bool:
        if self.state in (EMPTY, DEAD):
            return True
        if self.state is PREPARING:
            # Counts who has joined: where the limit was lowered, the last ones to join again are too many.
            return member_id in self._joining or len(self._joining) < self._limits.max_size
        return member_id in self.roster or len(self.roster) < self._limits.max_size

    def _refusal_of_size(self, request: JoinRequest, free_bytes: float) -> ErrorCode:
        """Whether what this member brings along is too much for the group, or for the broker; ``none`` if it is not.

        Pending members count for nothing here: they make room for each other.
        """
        known = request.member_id
        if known == UNKNOWN_MEMBER and request.group_instance_id is not None:
            known = self.roster.static_member_id(request.group_instance_id) or UNKNOWN_MEMBER
        new_id = request.member_id or request.new_member_id
        growth = size_of(new_id, request.group_instance_id, request.client_id, request.protocols)
        if known in self.roster:
            growth -= self.roster[known].size_bytes
        if growth > 0 and self.roster.size_bytes + growth > self._limits.max_bytes:
            return ErrorCode.group_max_size_reached
        return ErrorCode.coordinator_not_available if growth > max(0, free_bytes) else ErrorCode.none

    def _supports(self, request: JoinRequest) -> bool:
        if self.state is EMPTY:
            return bool(request.protocol_type and request.protocols)
        return self.protocol_type == request.protocol_type and self.roster.supports_one_of(request.protocols)

    def _check_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        if self.state is DEAD:
            return ErrorCode.coordinator_not_available
        if group_instance_id is not None:
            current = self.roster.static_member_id(group_instance_id)
            if current is None:
                return ErrorCode.unknown_member_id
            if current != member_id:
                return ErrorCode.fenced_instance_id
        return ErrorCode.none if member_id in self.roster else ErrorCode.unknown_member_id

    def _check_generation(self, member_id: str, group_instance_id: str | None, generation: int) -> ErrorCode:
        error = self._check_member(member_id, group_instance_id)
        if not error and generation != self.generation:
            return ErrorCode.illegal_generation
        return error

    def _check_sync(self, request: SyncRequest) -> ErrorCode:
        error = self._check_generation(request.member_id, request.group_instance_id, request.generation)
        if error:
            return error
        if request.protocol_type not in (None, self.protocol_type):
            return ErrorCode.inconsistent_group_protocol
        if request.protocol_name not in (None, self.protocol_name):
            return ErrorCode.inconsistent_group_protocol
        return ErrorCode.rebalance_in_progress if self.state is PREPARING else ErrorCode.none

    # Joining ----------------------------------------------------------------------------------------------------------

    def _refuse(self, to: JoinReply, error: ErrorCode, member_id: str) -> None:
        self._effects.append(JoinAnswer(to, JoinResult(error, member_id)))

    def _join_unknown(self, request: JoinRequest, to: JoinReply, now: float) -> None:
        """A member without a member id."""
        member_id, instance_id = request.new_member_id, request.group_instance_id
        if instance_id is not None:
            if self.roster.static_member_id(instance_id) is None:
                self._add(member_id, request, to, now)
            else:
                self._replace(instance_id, request, to, now)
        elif request.member_id_required:
            self._await(member_id, now + request.session_timeout_ms / 1000)
            self._refuse(to, ErrorCode.member_id_required, member_id)
        else:
            self._add(member_id, request, to, now)

    def _join_known(self, request: JoinRequest, to: JoinReply, now: float) -> None:
        error = self._check_member(request.member_id, request.group_instance_id)
        if error:
            self._refuse(to, error, request.member_id)
            return
        member = self.roster[request.member_id]
        same = member.protocols == request.protocols
        # A stable group's leader joins again when it wants a rebalance (its topics have other partitions now).
        wants_rebalance = self.state is STABLE and member.member_id == self.roster.leader
        if self.state is not PREPARING and same and not wants_rebalance:
            self._effects.append(JoinAnswer(to, self._generation_for(member)))  # it has not seen its first answer
            return
        self._update(member, request)
        self._park_join(member.member_id, to)
        if self.state is not PREPARING:
            self._prepare_rebalance(now)

    def _add(self, member_id: str, request: JoinRequest, to: JoinReply, now: float) -> None:
        member = Member(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
            is_new=True,
        )
        if self.state is PREPARING and self.generation == 0:
            self._member_added = True
        if not len(self.roster):
            self.protocol_type = request.protocol_type
        self._pending_bytes -= self._pending.pop(member_id, 0)
        self.roster.add(member)
        self._deadlines.set(member_id, self._due(now + _NEW_MEMBER_TIMEOUT_S))
        self._park_join(member_id, to)
        if self.state is not PREPARING:
            self._prepare_rebalance(now)

    def _update(self, member: Member, request: JoinRequest) -> None:
        self.roster.update(member, request.client_id, request.protocols)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.client_host = request.client_host

    def _replace(self, instance_id: str, request: JoinRequest, to: JoinReply, now: float) -> None:
        """A static member is back, without its member id: it gets a new one, and who has the old one is fenced."""
        old_id, new_id = self.roster.static_member_id(instance_id) or "", request.new_member_id
        before, old_leader = attrs.evolve(self.roster[old_id]), self.roster.leader or ""
        self._answer_join(old_id, JoinResult(ErrorCode.fenced_instance_id, old_id))
        self._answer_sync(old_id, SyncResult(ErrorCode.fenced_instance_id))
        member = self._rename(old_id, new_id)
        self._update(member, request)
        self._park_join(new_id, to)
        if self.state is STABLE and self.roster.select_protocol() == self.protocol_name:
            # No rebalance: it gets its old assignment, once a restart of the broker could not undo its new id.
            then = _Replaced(self.generation, request, old_leader, before)
            self._effects.append(Save(self.snapshot(), then))
        elif self.state is not PREPARING:
            self._prepare_rebalance(now)

    def _rename(self, old_id: str, new_id: str) -> Member:
        if old_id in self._not_synced:
            self._not_synced.remove(old_id)
            self._not_synced.add(new_id)
        self._deadlines.rename(old_id, new_id)
        return self.roster.replace(old_id, new_id)

    def _replaced(self, then: _Replaced, error: ErrorCode, now: float) -> None:
        member_id = then.request.new_member_id
        if member_id not in self._joining or self.state is not STABLE or self.generation != then.generation:
            return  # it has left or was replaced again; or a rebalance has begun, and its join is a part of that
        if error:
            to = self._joining.pop(member_id)
            before = then.before
            member = self._rename(member_id, before.member_id)
            self.roster.update(member, before.client_id, before.protocols)
            member.session_timeout_ms = before.session_timeout_ms
            member.rebalance_timeout_ms = before.rebalance_timeout_ms
            self._expect_heartbeat(member, now)
            self._refuse(to, error, UNKNOWN_MEMBER)
            return
        member = self.roster[member_id]
        result = self._generation_for(member)
        if then.request.can_skip_assignment:
            # The leader leads again, but must not assign anew: a stable group would not hand that out.
            result = attrs.evolve(result, skip_assignment=member_id == self.roster.leader)
        else:
            # Before version 9 the only way to keep it from assigning is to name its old id as the leader.
            result = attrs.evolve(result, leader=then.old_leader, members=())
        self._answer_join(member_id, result)
        self._expect_heartbeat(member, now)
