"""A share group: the requests of its members, by Kafka's rules.

Pure: events come in with ``now`` (monotonic seconds), and effects come out of ``take_effects``: answers to send, rows to make
durable, and the effects in ``values.py``. ``wake`` says when ``expire`` is due.

A member heartbeats with its epoch. If nothing has changed, it is answered at once. A change (a member joins, leaves or subscribes
to other topics; a topic has changed) increases the group epoch, and the target assignment is computed by a *run* soon afterwards
(``target_assignment.py``). A member whose epoch is behind gets the new epoch and its target with its next heartbeat. Every answer
that tells of a change waits until the rows with that change are durable.

``target_assignment.py`` has the tables of states.

Tests: tests/kafka/groups/share/test_share_group.py, tests/kafka/groups/share/test_share_group_machine.py.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from math import inf
from typing import Any, ClassVar

import attrs

from broker.kafka.groups.coordinated import (
    GROUP_ROW,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    ParkedMembers,
    ParkedRequest,
    UnsavedRows,
    member_row,
)
from broker.kafka.groups.deadlines import Deadlines
from broker.kafka.groups.group import Answer, GroupType, SaveRows
from broker.kafka.groups.share import members as rows
from broker.kafka.groups.share.members import ShareMember, ShareMembers, Subscription, texts_of
from broker.kafka.groups.share.target_assignment import ShareGroupEvent, ShareGroupState, TargetAssignment, next_state
from broker.kafka.groups.share.values import (
    AssignorTask,
    HeartbeatRequest,
    HeartbeatResult,
    MemberDescription,
    MemberFenced,
    NewPartitions,
    Reply,
    ShareGroupDescription,
    ShareGroupLimits,
    Topics,
)
from protocol.kafka.errors import ErrorCode

EMPTY, STABLE, DEAD = ShareGroupState.EMPTY, ShareGroupState.STABLE, ShareGroupState.DEAD

# Rows that could not be written, and partitions that could not be initialised, are tried again after this time.
RETRY_S = 5.0


@attrs.frozen(eq=False)
class _Saving:
    """The keys of a save in ``UnsavedRows``: the group's own row, and ids of members. The answers to members that have left wait
    for it."""

    number: int
    keys: tuple[str, ...]
    left: tuple[Answer, ...]


class ShareGroup:
    """A request against the rules gets an error code as its answer."""

    type: ClassVar[GroupType] = GroupType.SHARE

    def __init__(self, group_id: str, limits: ShareGroupLimits) -> None:
        self.group_id = group_id
        self.members = ShareMembers()
        self.epoch = 0
        self.wake = inf
        self._limits = limits
        self._state = EMPTY
        self._effects: list[Any] = []
        self._target = TargetAssignment(self.members, self._effects.append)
        self._unsaved = UnsavedRows()
        self._parked = ParkedMembers()
        self._left: list[Answer] = []
        self._sessions = Deadlines()
        # When to retry failed work: to save rows, to initialise partitions.
        self._save_again_at = inf
        self._initialise_again_at = inf

    @classmethod
    def restore(
        cls,
        group_id: str,
        limits: ShareGroupLimits,
        stored: Mapping[str, bytes],
        now: float,
    ) -> "ShareGroup":
        """The group as it was saved. Its members have a whole session timeout to send a heartbeat. Raises StorageError."""
        group, saved = cls(group_id, limits), rows.decode(group_id, stored)
        # A member's row may be newer than the group's, if the group's could not be written.
        group.epoch = max((saved.epoch, *(member.epoch for member in saved.members)))
        group._target.epoch = max((saved.assignment_epoch, *(member.epoch for member in saved.members)))
        for member in saved.members:
            member.session_s = limits.restored_session_s
            group.members.add(member)
            group._expect_heartbeat(member, now)
        if saved.members:
            group._state = STABLE
            group._target.changed()  # topics may have changed while the broker was down
        return group

    # State that the coordinator reads --------------------------------------------------------------------------------

    @property
    def state(self) -> ShareGroupState:
        return self._state

    @property
    def state_name(self) -> str:
        return self._state.value

    @property
    def assignment_epoch(self) -> int:
        """The group epoch of the target assignment."""
        return self._target.epoch

    @property
    def member_count(self) -> int:
        return len(self.members)

    @property
    def is_empty(self) -> bool:
        return self._state is EMPTY

    @property
    def is_dead(self) -> bool:
        return self._state is DEAD

    @property
    def topics(self) -> frozenset[str]:
        return self.members.subscriptions.names

    @property
    def size_bytes(self) -> int:
        return self.members.size_bytes

    @property
    def has_pending_members(self) -> bool:
        return False

    @property
    def was_never_joined(self) -> bool:
        return self.epoch == 0

    def take_effects(self) -> list[Any]:
        effects = self._effects.copy()
        self._effects.clear()
        return effects

    def describe(self) -> ShareGroupDescription:
        members = tuple(
            MemberDescription(
                member.member_id,
                member.rack_id,
                member.epoch,
                member.client_id,
                member.client_host,
                member.subscription.names,
                member.assigned,
            )
            for member in self.members
        )
        return ShareGroupDescription(self.group_id, self.state_name, self.epoch, self.assignment_epoch, members)

    # Requests -------------------------------------------------------------------------------------------------------

    def heartbeat(
        self, request: HeartbeatRequest, to: Reply, session_s: float, now: float, free_bytes: float = inf
    ) -> HeartbeatResult | None:
        """The result if it is known now; None if ``to`` gets it later. ``free_bytes``: how much memory this group may take in
        addition, within the bound of all groups."""
        member_id, epoch = request.member_id, request.member_epoch
        member = self.members.get(member_id)
        if (
            member is not None
            and epoch == member.epoch == self._target.epoch
            and request.subscribed_topic_names is None
            and request.rack_id is None
            and member_id not in self._unsaved
        ):
            # The usual case. A session that has become shorter, or longer, counts from here on.
            member.session_s = session_s
            self._expect_heartbeat(member, now)
            return HeartbeatResult(ErrorCode.none, member_id, epoch)
        if self._state is DEAD:
            return HeartbeatResult(ErrorCode.coordinator_not_available, member_id)
        if epoch == LEAVE_EPOCH:
            return self._leave(member_id, to, now)
        error = self._check(member, request, free_bytes)
        if error:
            return HeartbeatResult(error, member_id)
        if member is None:
            member = self._join(request)
        elif not self._update(member, request) and not self._is_behind(member):
            member.session_s = session_s
            self._expect_heartbeat(member, now)
            return self._result(member, full=True)
        member.session_s = session_s
        self._expect_heartbeat(member, now)
        self._park(member, to, now, full=request.subscribed_topic_names is not None or epoch != member.epoch)
        if not self._target.must_wait(member_id):  # otherwise the run that is due saves the changes, and answers
            self._advance(member)
            self._save()
        return None

    def check_commit(self, member_id: str, instance_id: str | None, epoch: int, now: float) -> ErrorCode:
        """Share groups have no committed offsets. The answer is Kafka's."""
        return ErrorCode.group_id_not_found

    def delete(self) -> ErrorCode:
        """End the group if it has no members."""
        if self._state is DEAD:
            return ErrorCode.group_id_not_found
        if self._state is not EMPTY:
            return ErrorCode.non_empty_group
        self._state = next_state(self._state, ShareGroupEvent.GROUP_DELETED)
        self._answer_left(ErrorCode.none)
        return ErrorCode.none

    def begin_alter(self) -> ErrorCode:
        """An administrator sets start offsets: a new group epoch. A missing group is made, and stored."""
        if self._state is DEAD:
            return ErrorCode.coordinator_not_available
        if self._state is not EMPTY:
            return ErrorCode.non_empty_group
        self.epoch += 1
        self._unsaved.add(GROUP_ROW)
        self._save()
        return ErrorCode.none

    def forget(self) -> None:
        """The start offsets of some topics are deleted. They are initialised again when a member comes."""
        self._target.forget()

    # Other events ---------------------------------------------------------------------------------------------------

    def topics_changed(self, topics: Topics, names: Collection[str]) -> None:
        """The topics of these names were created, deleted, or have got more partitions."""
        if self._state is STABLE and self._target.differs(topics, names):
            self._change()

    def begin_run(self, topics: Topics) -> AssignorTask | None:
        """Carry out an ``AssignmentDue``. Returns the assignor's task, if that is the next step."""
        is_ready = self._state is not DEAD and self._target.begin(topics)
        return self._target.ready(self.epoch) if is_ready else None

    def initialised(self, partitions: tuple[NewPartitions, ...], error: ErrorCode, now: float) -> AssignorTask | None:
        """An ``Initialise`` is durable, or has failed (``error``). Returns the assignor's task."""
        if self._state is DEAD or not self._target.initialised(partitions, failed=bool(error)):
            return None
        if error:
            self._initialise_again_at = now + RETRY_S
            self.wake = min(self.wake, self._initialise_again_at)
        return self._target.ready(self.epoch)

    def assigned(self, task: AssignorTask, now: float) -> None:
        """The assignor has ended its task. Changes since the last run are made durable."""
        changed = None if self._state is DEAD else self._target.assigned(task)
        if changed is None:
            return
        epoch = task.epoch
        if changed and epoch == self._target.epoch:  # partitions that were not initialised before
            if epoch == self.epoch:
                self.epoch += 1
            epoch = self.epoch
        if epoch != self._target.epoch:
            self._target.epoch = epoch
            self._unsaved.add(GROUP_ROW)
        for member in changed:
            self._unsaved.add(member.member_id)
        self._target.run_again(incomplete=self._initialise_again_at == inf)
        waiting = [member for member in map(self.members.get, self._parked) if member is not None]
        ready = [member for member in waiting if not self._target.must_wait(member.member_id)]
        for member in ready:
            self._advance(member)
        self._save()
        for member in ready:
            if member.member_id not in self._unsaved:
                self._answer(member.member_id, ErrorCode.none, now)

    def saved(self, save: SaveRows, error: ErrorCode, now: float) -> None:
        saving: _Saving = save.then
        self._unsaved.saved(saving.number, saving.keys, failed=bool(error))
        self._effects += _with_error(saving.left, error)
        if error:
            self._save_again_at = min(self._save_again_at, now + RETRY_S)
            self.wake = min(self.wake, self._save_again_at)
        for key in saving.keys:
            if error or key not in self._unsaved:
                self._answer(key, error, now)

    def expire(self, now: float) -> None:
        """Handle everything that is due by ``now``."""
        while self._sessions.first() <= now:
            member_id = self._sessions.first_key()
            assert member_id is not None
            self._fence(member_id, now)
        if self._initialise_again_at <= now:
            self._initialise_again_at = inf
            if len(self.members):
                self._target.changed()
        if self._save_again_at <= now:
            self._save_again_at = inf
            if not self._target.is_pending:  # otherwise the run that is due does it
                self._save()
        self.wake = min(self._sessions.first(), self._save_again_at, self._initialise_again_at)

    def rebalance(self, now: float) -> bool:
        """Have the partitions assigned anew. False if there are no members."""
        if self._state is STABLE:
            self._change()
        return self._state is STABLE

    def time_out(self, member_id: str | None, now: float) -> bool:
        """Remove this member, or all, as at the end of its session. False if there is none."""
        found = [each.member_id for each in self.members if member_id in (None, each.member_id)]
        for each in found:
            self._fence(each, now)
        return bool(found)

    def shut_down(self) -> None:
        """The broker stops. Waiting members are told to look for the coordinator again; the group stays as it was saved."""
        self._parked.refuse_all(ErrorCode.not_coordinator, 0.0)
        self._answer_left(ErrorCode.not_coordinator)
        self._state = next_state(self._state, ShareGroupEvent.BROKER_STOPPED)

    # Members --------------------------------------------------------------------------------------------------------

    def _check(self, member: ShareMember | None, request: HeartbeatRequest, free_bytes: float) -> ErrorCode:
        """Why this heartbeat cannot be accepted."""
        epoch = request.member_epoch
        if member is None:
            if epoch != JOIN_EPOCH:
                return ErrorCode.unknown_member_id
            if len(self.members) >= self._limits.max_size:
                return ErrorCode.group_max_size_reached
        elif epoch not in (JOIN_EPOCH, member.epoch, member.previous_epoch):
            return ErrorCode.fenced_member_epoch
        names, rack_id = request.subscribed_topic_names, request.rack_id
        if member is not None and names is None and rack_id is None:
            return ErrorCode.none
        if member is not None and rack_id is None:
            rack_id = member.rack_id
        wanted = Subscription.to(names or ()) if names is not None or member is None else None
        texts = texts_of(request.client_id, request.client_host, rack_id)
        growth = self.members.growth(wanted, request.member_id, texts)
        if growth > 0 and self.members.size_bytes + growth > self._limits.max_bytes:
            return ErrorCode.group_max_size_reached
        return ErrorCode.coordinator_not_available if growth > max(0, free_bytes) else ErrorCode.none

    def _join(self, request: HeartbeatRequest) -> ShareMember:
        if not len(self.members):
            self._state = next_state(self._state, ShareGroupEvent.MEMBER_JOINED)
        subscription = Subscription.to(request.subscribed_topic_names or ())
        member = ShareMember(request.member_id, request.client_id, request.client_host, request.rack_id, subscription)
        self.members.add(member)
        self._unsaved.add(request.member_id)
        self._change(request.member_id)
        return member

    def _update(self, member: ShareMember, request: HeartbeatRequest) -> bool:
        """Apply the member's metadata and subscription. True if they have changed."""
        names = request.subscribed_topic_names
        if names is None and request.rack_id is None:
            return False
        metadata = (
            request.client_id,
            request.client_host,
            request.rack_id if request.rack_id is not None else member.rack_id,
        )
        is_new = metadata != (member.client_id, member.client_host, member.rack_id)
        if is_new:
            self.members.rename(member, *metadata)
            self._unsaved.add(member.member_id)
        if names is not None and (wanted := Subscription.to(names)) != member.subscription:
            self.members.change_subscription(member, wanted)
            self._unsaved.add(member.member_id)
            self._change(member.member_id)
            return True
        return is_new

    def _leave(self, member_id: str, to: Reply, now: float) -> HeartbeatResult | None:
        if member_id not in self.members:
            return HeartbeatResult(ErrorCode.unknown_member_id, member_id)
        self._remove(member_id, now)
        self._left.append(Answer(to, HeartbeatResult(ErrorCode.none, member_id, LEAVE_EPOCH)))
        return None

    def _fence(self, member_id: str, now: float) -> None:
        """The member's session has ended."""
        self._remove(member_id, now)
        self._effects.append(MemberFenced(member_id))

    def _remove(self, member_id: str, now: float) -> None:
        self.members.remove(member_id)
        self._sessions.remove(member_id)
        self._parked.finish(member_id, ErrorCode.unknown_member_id, now)
        self._unsaved.add(member_id)
        if not len(self.members):
            self._state = next_state(self._state, ShareGroupEvent.LAST_MEMBER_LEFT)
        self._change()

    def _answer_left(self, error: ErrorCode) -> None:
        """Nothing more is saved, so members that have left need not wait for it."""
        self._effects += _with_error(self._left, error)
        self._left.clear()

    def _is_behind(self, member: ShareMember) -> bool:
        """Whether the member must be told a change that is not durable yet."""
        return member.epoch != self._target.epoch or member.member_id in self._unsaved

    def _advance(self, member: ShareMember) -> None:
        """The member gets the epoch of the target assignment, and its part of it."""
        if member.epoch != self._target.epoch:
            member.previous_epoch, member.epoch = member.epoch, self._target.epoch
            self._unsaved.add(member.member_id)
        if member.assigned != member.target:
            self._unsaved.add(member.member_id)
            member.wants_assignment = True
        member.assigned = member.target

    def _expect_heartbeat(self, member: ShareMember, now: float) -> None:
        deadline = now + member.session_s
        self._sessions.set(member.member_id, deadline)
        if deadline < self.wake:
            self.wake = deadline

    # Changes --------------------------------------------------------------------------------------------------------

    def _change(self, member_id: str | None = None) -> None:
        """Members or topics have changed: a new group epoch. ``member_id`` as in ``TargetAssignment.changed``."""
        self.epoch += 1
        self._unsaved.add(GROUP_ROW)
        self._target.changed(member_id)

    def _save(self) -> None:
        """Make all changed rows durable."""
        if not self._unsaved.changed:
            return
        keys = self._unsaved.take()
        put: dict[str, bytes | None] = {}
        for key in keys:
            if key == GROUP_ROW:
                put[GROUP_ROW] = rows.encode_group(self.epoch, self._target.epoch)
            else:
                member = self.members.get(key)
                put[member_row(key)] = None if member is None else rows.encode_member(member)
        self._effects.append(SaveRows(put, _Saving(self._unsaved.number, tuple(keys), tuple(self._left))))
        self._left.clear()

    # Answers --------------------------------------------------------------------------------------------------------

    def _park(self, member: ShareMember, to: Reply, now: float, *, full: bool) -> None:
        """The request waits. ``full``: the answer has the assignment even if that has not changed."""
        full = full or member.wants_assignment
        # The client has given up its waiting request, or somebody else uses its id.
        self._parked.supersede(member.member_id, now)
        self._parked.park(member.member_id, ParkedRequest(partial(self._finish, member, to)))
        member.wants_assignment = full

    def _answer(self, member_id: str, error: ErrorCode, now: float) -> None:
        """Answer the member's waiting request, if any."""
        member = self.members.get(member_id)
        if member is None or member_id not in self._parked or (not error and self._target.must_wait(member_id)):
            return
        self._expect_heartbeat(member, now)
        self._parked.finish(member_id, error, now)

    def _finish(self, member: ShareMember, to: Reply, error: ErrorCode, now: float) -> None:
        full, member.wants_assignment = member.wants_assignment, False
        result = HeartbeatResult(error, member.member_id) if error else self._result(member, full=full)
        self._effects.append(Answer(to, result))

    def _result(self, member: ShareMember, *, full: bool) -> HeartbeatResult:
        return HeartbeatResult(ErrorCode.none, member.member_id, member.epoch, member.assigned if full else None)


def _with_error(answers: Iterable[Answer], error: ErrorCode) -> list[Answer]:
    return [attrs.evolve(answer, result=attrs.evolve(answer.result, error=error)) for answer in answers]
