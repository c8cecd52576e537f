"""How a group gets from one generation to the next: the half of the state machine that clients do not ask for.

Holds the state, the members, the parked requests and every deadline. ``group.py`` has the state table and the requests.
Pure, as ``group.py`` says.
"""

from math import inf

import attrs

from broker.kafka.groups.deadlines import Deadlines
from broker.kafka.groups.room import PENDING_BYTES
from broker.kafka.groups.roster import Member, Roster
from broker.kafka.groups.subscription import CONSUMER, subscribed_topics
from broker.kafka.groups.values import (
    UNKNOWN_MEMBER,
    Effect,
    GroupSnapshot,
    GroupState,
    JoinAnswer,
    JoinMember,
    JoinReply,
    JoinResult,
    Save,
    SyncAnswer,
    SyncReply,
    SyncResult,
)
from protocol.kafka.errors import ErrorCode

EMPTY = GroupState.EMPTY
PREPARING = GroupState.PREPARING_REBALANCE
COMPLETING = GroupState.COMPLETING_REBALANCE
STABLE = GroupState.STABLE
DEAD = GroupState.DEAD

# A rebalance that nobody joined is tried again after the rebalance timeout, which a client may have set to nothing.
_LEAST_RETRY_S = 1.0
# Members that were told their id and have not come back, of one group. A client comes back at once; when so many have not, the
# one that has been away longest is forgotten and, if it does come, begins anew. Ten times the members of a large group.
_PENDING_MAX = 1000


@attrs.frozen
class GroupLimits:
    """What the operator sets for all groups."""

    max_size: int = 2**31 - 1
    initial_rebalance_delay_ms: int = 0
    # Of its members, with what they send and what is assigned to them; and as much again of pending ones.
    max_bytes: int = 2**31 - 1


@attrs.frozen
class Assigned:
    """What a save is for: the leader's assignment of this generation."""

    generation: int
    assignments: dict[str, bytes]


class Rebalance:
    """Base of ``Group``."""

    def __init__(self, group_id: str, limits: GroupLimits) -> None:
        self.group_id = group_id
        self.state = EMPTY
        self.generation = 0
        self.protocol_type: str | None = None  # None: offsets only, nobody ever joined
        self.protocol_name: str | None = None
        self.roster = Roster()
        # Topics that the current generation subscribes to; None if the coordinator cannot know.
        self.topics: frozenset[str] | None = None
        self.wake = inf  # no deadline is earlier than this
        self._limits = limits
        self._effects: list[Effect] = []
        # Members that were told their id and have not come back -> the bytes that they count for; the oldest first.
        self._pending: dict[str, int] = {}
        self._pending_bytes = 0
        # When members, known and pending, are given up (monotonic seconds); none for those that we keep waiting.
        self._deadlines = Deadlines()
        self._joining: dict[str, JoinReply] = {}  # parked joins by member id
        self._syncing: dict[str, SyncReply] = {}  # parked syncs by member id
        self._not_synced: set[str] = set()  # members of this generation whose sync is awaited
        self._saving_assignment = False
        self._join_deadline: float | None = None
        self._sync_deadline: float | None = None
        # The first rebalance of an empty group waits for a fixed time instead of for its members. Seconds by which
        # that may still be prolonged; None in every other rebalance.
        self._initial_left_s: float | None = None
        self._member_added = False  # since the initial delay began or was last prolonged

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory, besides what every group does."""
        return self.roster.size_bytes + self._pending_bytes + len(self.protocol_type or "")

    # Answers ------------------------------------------------------------------------------------------------------

    def take_effects(self) -> list[Effect]:
        """What the events since the last call ask for, in order."""
        effects, self._effects = self._effects, []
        return effects

    def _park_join(self, member_id: str, to: JoinReply) -> None:
        # The member has given up an earlier request of its own, if there is one, but its connection may still be there.
        self._answer_join(member_id, JoinResult(ErrorCode.rebalance_in_progress, member_id))
        self._joining[member_id] = to

    def _park_sync(self, member_id: str, to: SyncReply) -> None:
        self._answer_sync(member_id, SyncResult(ErrorCode.rebalance_in_progress))
        self._syncing[member_id] = to

    def _answer_join(self, member_id: str, result: JoinResult) -> None:
        """Answer the member's parked join, if there is one."""
        to = self._joining.pop(member_id, None)
        if to is not None:
            self._effects.append(JoinAnswer(to, result))

    def _answer_sync(self, member_id: str, result: SyncResult) -> bool:
        to = self._syncing.pop(member_id, None)
        if to is None:
            return False
        self._effects.append(SyncAnswer(to, result))
        return True

    def _generation_for(self, member: Member) -> JoinResult:
        """What a member is told of the current generation."""
        leads = member.member_id == self.roster.leader
        return JoinResult(
            ErrorCode.none,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol_name,
            self.roster.leader or "",
            members=self._members_for_leader() if leads else (),
        )

    def _members_for_leader(self) -> tuple[JoinMember, ...]:
        return tuple(
            JoinMember(member.member_id, member.group_instance_id, member.metadata(self.protocol_name))
            for member in self.roster
        )

    def _assignment_of(self, member: Member) -> SyncResult:
        return SyncResult(ErrorCode.none, self.protocol_type, self.protocol_name, member.assignment)

    # Members ------------------------------------------------------------------------------------------------------

    def _forget(self, member_id: str) -> None:
        """Remove a member, known or pending, without looking at what follows for the group."""
        self._answer_join(member_id, JoinResult(ErrorCode.unknown_member_id, UNKNOWN_MEMBER))
        self._answer_sync(member_id, SyncResult(ErrorCode.unknown_member_id))
        self.roster.remove(member_id)
        self._pending_bytes -= self._pending.pop(member_id, 0)
        self._deadlines.remove(member_id)

    def _await(self, member_id: str, deadline: float) -> None:
        """A member was told this id and is to come back with it."""
        size = PENDING_BYTES + len(member_id)
        while self._pending and (
            len(self._pending) >= _PENDING_MAX or self._pending_bytes + size > self._limits.max_bytes
        ):
            self._forget(next(iter(self._pending)))
        self._pending[member_id] = size
        self._pending_bytes += size
        self._deadlines.set(member_id, self._due(deadline))

    def _remove(self, member_id: str, now: float) -> None:
        """A member leaves or has failed."""
        self._forget(member_id)
        if self.state in (STABLE, COMPLETING):
            self._prepare_rebalance(now)
        else:
            self._try_complete_join(now)

    def _expect_heartbeat(self, member: Member, now: float) -> None:
        """A sign of life: its session begins anew."""
        self._deadlines.set(member.member_id, self._due(now + member.session_timeout_ms / 1000))

    # From generation to generation ----------------------------------------------------------------------------------

    def _prepare_rebalance(self, now: float) -> None:
        assert self.state in (EMPTY, STABLE, COMPLETING), self.state
        if self.state is COMPLETING:
            self._refuse_syncs(ErrorCode.rebalance_in_progress, now)
        self._not_synced.clear()
        self._sync_deadline = None
        timeout_s = self.roster.rebalance_timeout_ms / 1000
        if self.state is EMPTY:
            delay_s = self._limits.initial_rebalance_delay_ms / 1000
            self._initial_left_s = max(timeout_s - delay_s, 0.0)
            self._join_deadline = self._due(now + delay_s)
            self.state = PREPARING
            if delay_s == 0:
                self._join_time_is_up(now)
        else:
            self._initial_left_s = None
            self._join_deadline = self._due(now + timeout_s)
            self.state = PREPARING
            self._try_complete_join(now)

    def _try_complete_join(self, now: float) -> None:
        """Go on if nobody is awaited any more."""
        if self.state is not PREPARING or self._initial_left_s is not None:
            return
        if len(self._joining) == len(self.roster) and not self._pending:
            self._complete_join(now)

    def _join_time_is_up(self, now: float) -> None:
        if self._initial_left_s and self._member_added:
            self._member_added = False
            delay_s = min(self._limits.initial_rebalance_delay_ms / 1000, self._initial_left_s)
            self._initial_left_s -= delay_s
            self._join_deadline = self._due(now + delay_s)
        else:
            self._complete_join(now)

    def _complete_join(self, now: float) -> None:
        """Whoever has joined makes the next generation."""
        for member in list(self.roster):
            if member.member_id not in self._joining and member.group_instance_id is None:
                self._forget(member.member_id)
        self._initial_left_s = None
        if len(self.roster) and not self._joining:
            # Only static members are left and none of them is back: wait on, until one comes or all have timed out.
            timeout_s = max(self.roster.rebalance_timeout_ms / 1000, _LEAST_RETRY_S)
            self._join_deadline = self._due(now + timeout_s)
            return
        self._join_deadline = None
        self.generation += 1
        if not len(self.roster):
            self.protocol_name = None
            self.topics = self._subscribed_topics()
            self.state = EMPTY
            self._effects.append(Save(self.snapshot(), None))
            return
        if self.roster.leader not in self._joining:
            self.roster.leader = next(iter(self._joining))
        self.protocol_name = self.roster.select_protocol()
        self.topics = self._subscribed_topics()
        self.state = COMPLETING
        self._saving_assignment = False
        for member in self.roster:
            self._answer_join(member.member_id, self._generation_for(member))
            self._expect_heartbeat(member, now)
            member.is_new = False
            self._not_synced.add(member.member_id)
        self._sync_deadline = self._due(now + self.roster.rebalance_timeout_ms / 1000)

    def _assigned(self, then: Assigned, error: ErrorCode, now: float) -> None:
        """The leader's assignment is durable, or could not be made so."""
        if self.state is not COMPLETING or self.generation != then.generation:
            return  # a rebalance has begun since
        if error:
            self._refuse_syncs(error, now)
            self._prepare_rebalance(now)
            return
        for member in self.roster:
            self.roster.assign(member, then.assignments[member.member_id])
            if self._answer_sync(member.member_id, self._assignment_of(member)):
                self._expect_heartbeat(member, now)
        self.state = STABLE

    def _refuse_syncs(self, error: ErrorCode, now: float) -> None:
        for member in self.roster:
            if self._answer_sync(member.member_id, SyncResult(error)):
                self._expect_heartbeat(member, now)

    def snapshot(self, assignments: dict[str, bytes] | None = None) -> GroupSnapshot:
        """The current generation, with these assignments instead of the members' own."""
        members = tuple(
            member.snapshot(member.assignment if assignments is None else assignments[member.member_id])
            for member in self.roster
        )
        return GroupSnapshot(self.protocol_type or "", self.generation, self.protocol_name, self.roster.leader, members)

    def _subscribed_topics(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER:
            return None
        return subscribed_topics(member.metadata(self.protocol_name) for member in self.roster)

    # Deadlines ------------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Act on whatever is due by ``now``, in the order in which it fell due."""
        due = self._next_deadline()
        while due <= now:
            # The end of a rebalance first: clients' default rebalance timeout is as long as a new member may stay parked.
            if self._join_deadline == due:
                self._join_time_is_up(now)
            elif self._sync_deadline == due:
                for member_id in sorted(self._not_synced):
                    self._forget(member_id)
                self._prepare_rebalance(now)
            else:
                self._expire_member(now)
            due = self._next_deadline()
        self.wake = due

    def _expire_member(self, now: float) -> None:
        """The member, known or pending, that was to be heard of first."""
        member_id = self._deadlines.first_key()
        assert member_id is not None
        if member_id in self._pending:
            self._forget(member_id)
            self._try_complete_join(now)
        elif not self.roster[member_id].is_new and (member_id in self._joining or member_id in self._syncing):
            self._deadlines.remove(member_id)  # it is we who keep it waiting: its session goes on when it is answered
        else:
            self._remove(member_id, now)

    def _due(self, deadline: float) -> float:
        self.wake = min(self.wake, deadline)
        return deadline

    def _next_deadline(self) -> float:
        if self.state is DEAD:
            return inf
        due = self._deadlines.first()
        for deadline in (self._join_deadline, self._sync_deadline):
            if deadline is not None and deadline < due:
                due = deadline
        return due
