"""The members of a consumer group with their partitions, deadlines and rows: the base of every kind of request.

Pure, under the group's lock. ``Heartbeats`` interprets the requests of consumers, and ``ClassicRequests`` those of classic
members; both call the ``Membership``.

``Saver`` has the rows that are not durable yet, and the answers that wait for them. Events change the group at once and mark the
rows to write; at the end of the event ``flush`` emits one ``SaveRows`` of all of them. An answer with news for a client is sent
when the save with that news is durable, so that a restored group agrees with what clients were told.

If a save fails, its answers become NOT_COORDINATOR and its rows are marked again: the next event writes their then present
state. The answers of saves that were on their way become NOT_COORDINATOR as well, because these saves may build on the missing
rows.

Tests: tests/kafka/groups/consumer/test_consumer_group.py,
tests/kafka/groups/consumer/test_group_static_members.py,
tests/kafka/groups/consumer/test_consumer_machine.py,
tests/kafka/groups/consumer/test_group_offloading.py.
"""

from collections.abc import Callable

from broker.kafka.groups.consumer.members import ConsumerMember, ConsumerMembers, MemberState
from broker.kafka.groups.consumer.reconciler import Ownership, Target, reconcile
from broker.kafka.groups.consumer.rows import (
    GroupRow,
    assignment_row,
    encode_assignment,
    encode_group,
    encode_metadata,
)
from broker.kafka.groups.consumer.targets import AssignmentTask, Targets
from broker.kafka.groups.consumer.values import (
    LEAVE_FOR_A_WHILE_EPOCH,
    NO_PARTITIONS,
    BecomeClassic,
    ConsumerGroupLimits,
    RegexTask,
    SaveNote,
    TopicPartitions,
)
from broker.kafka.groups.coordinated import GROUP_ROW, ParkedMembers, UnsavedRows, member_row
from broker.kafka.groups.deadlines import ConsumerSchedule
from broker.kafka.groups.group import Answer, SaveRows
from broker.kafka.groups.values import JoinAnswer, SyncAnswer
from protocol.kafka.errors import ErrorCode

# Makes the answer, or an answer with this error instead.
AnswerMaker = Callable[[ErrorCode], Answer | JoinAnswer | SyncAnswer]
Emit = Callable[[Answer | JoinAnswer | SyncAnswer | SaveRows], None]


class Saver:
    """``encode`` returns the present content of a row; None if the member no longer exists."""

    def __init__(self, emit: Emit, encode: Callable[[str], bytes | None]) -> None:
        self.rows = UnsavedRows()
        # Number of the last save with a known outcome.
        self.settled = 0
        # Number of the last save whose stored rows may be incomplete.
        self._failed = 0
        self._emit = emit
        self._encode = encode
        self._waiting: dict[int, list[AnswerMaker]] = {}
        self._replaces_classic = False

    def mark(self, row: str) -> None:
        self.rows.add(row)

    def replace_classic(self) -> None:
        """Have the next save replace a classic group."""
        self._replaces_classic = True

    def next_note(self) -> SaveNote:
        """The note of a save of all marked rows that the caller emits."""
        self.rows.take()
        return SaveNote(self.rows.number)

    def flush(self) -> None:
        """Emit a save of all marked rows."""
        if not self.rows.changed:
            return
        put = {row: self._encode(row) for row in self.rows.take()}
        replaces_classic, self._replaces_classic = self._replaces_classic, False
        self._emit(SaveRows(put, SaveNote(self.rows.number, replaces_classic)))

    def is_durable(self, number: int) -> bool:
        """Whether nothing is to be written, and the save with this number is durable."""
        return not self.rows.changed and number <= self.settled

    def answer(self, number: int | None, answer: AnswerMaker) -> None:
        """Emit the answer when all marked rows are durable, or without marked rows, when the save with this number is."""
        if self.rows.changed:
            number = self.rows.number + 1
        elif number is None or number <= self.settled:
            self._emit(answer(ErrorCode.none))
            return
        self._waiting.setdefault(number, []).append(answer)

    def saved(self, save: SaveRows | BecomeClassic, error: ErrorCode) -> None:
        note: SaveNote = save.then
        self.settled = note.number
        if error:
            self._failed = self.rows.number
        if isinstance(save, SaveRows):
            self._replaces_classic |= note.replaces_classic and bool(error)
            self.rows.saved(note.number, save.put, failed=bool(error))
        code = ErrorCode.not_coordinator if note.number <= self._failed else ErrorCode.none
        for answer in self._waiting.pop(note.number, ()):
            self._emit(answer(code))


ConsumerGroupEffect = Answer | JoinAnswer | SyncAnswer | SaveRows | BecomeClassic | AssignmentTask | RegexTask


class Membership:
    def __init__(self, group_id: str, limits: ConsumerGroupLimits, emit: Callable[[ConsumerGroupEffect], None]) -> None:
        self.group_id = group_id
        self.limits = limits
        self.emit = emit
        self.members = ConsumerMembers()
        self.ownership = Ownership()
        self.schedule = ConsumerSchedule()
        self.parked = ParkedMembers()
        self.saver = Saver(emit, self._encode)
        self.targets = Targets(limits, self.members, self.schedule, emit, lambda: self.saver.mark(GROUP_ROW))
        # Members that have missed a deadline while their answers were not durable. Some may have gone meanwhile.
        self._unheard: list[str] = []

    # Members --------------------------------------------------------------------------------------------------------

    def add(self, member: ConsumerMember) -> None:
        self.members.add(member)
        self.mark(member)

    def mark(self, member: ConsumerMember) -> None:
        """Mark both rows of the member to be written."""
        self.saver.mark(member_row(member.member_id))
        self.saver.mark(assignment_row(member.member_id))

    def remove(self, member: ConsumerMember, error: ErrorCode, now: float) -> None:
        """The member leaves or is fenced: its partitions are free. Its waiting request is answered with ``error``."""
        self.ownership.release(member, member.assigned)
        self.ownership.release(member, member.revoking)
        self.members.remove(member)
        self.targets.assignments.pop(member.member_id, None)
        self.schedule.forget(member.member_id)
        self.mark(member)
        self.targets.bump()
        self.parked.finish(member.member_id, error, now)

    def replace(self, member: ConsumerMember, member_id: str, now: float) -> None:
        """A static member has come back under a new member id, and takes over its former state."""
        old_id = member.member_id
        self.parked.finish(old_id, ErrorCode.fenced_instance_id, now)
        self.schedule.forget(old_id)
        self.mark(member)
        self.members.rename(member, member_id)
        self.targets.rename(old_id, member_id)
        member.epoch = member.previous_epoch = 0
        member.unchanged = None
        self.mark(member)

    def leave_for_a_while(self, member: ConsumerMember, now: float) -> None:
        """A static member keeps its partitions until its session ends, but has given up those that it was asked to."""
        self.parked.finish(member.member_id, ErrorCode.unknown_member_id, now)
        self.ownership.release(member, member.revoking)
        self.members.assign(member, member.assigned, NO_PARTITIONS)
        if member.epoch != LEAVE_FOR_A_WHILE_EPOCH:
            member.previous_epoch, member.epoch = member.epoch, LEAVE_FOR_A_WHILE_EPOCH
        member.unchanged = None
        self.schedule.revocations.remove(member.member_id)
        self.saver.mark(assignment_row(member.member_id))

    def expect_heartbeat(self, member: ConsumerMember, now: float) -> None:
        """The member has shown that it is alive: its session begins anew."""
        timeout_ms = self.limits.session_timeout_ms if member.classic is None else member.classic.session_timeout_ms
        self.schedule.set(self.schedule.sessions, member.member_id, now + timeout_ms / 1000)

    def put_off(self, member: ConsumerMember) -> bool:
        """The member has missed a deadline. True if its answer still waits to be durable: then it does not know yet what to do,
        and its deadlines begin anew when it does."""
        if member.saved_in <= self.saver.settled:
            return False
        deadlines = (self.schedule.sessions, self.schedule.revocations)
        if not any(member.member_id in each for each in deadlines):
            return False
        for each in deadlines:
            each.remove(member.member_id)
        self._unheard.append(member.member_id)
        return True

    def saved(self, save: SaveRows | BecomeClassic, error: ErrorCode, now: float) -> None:
        self.saver.saved(save, error)
        if not self._unheard:
            return
        unheard, self._unheard = self._unheard, []
        for member in map(self.members.get, unheard):
            if member is None:
                continue
            if member.saved_in > self.saver.settled:
                self._unheard.append(member.member_id)
                continue
            self.expect_heartbeat(member, now)
            self.watch_revocation(member, now)

    def are_all_reconciled(self) -> bool:
        return all(member.is_reconciled_to(self.targets.assignment_epoch) for member in self.members)

    # Reconciliation -------------------------------------------------------------------------------------------------

    def step(
        self, member: ConsumerMember, owned: TopicPartitions | None, is_subscription_new: bool, now: float
    ) -> bool:
        """Bring the member one step nearer to its target. Returns whether its assignment has changed."""
        target = Target(self.targets.assignment_epoch, self.targets.of(member), self.targets.subscribes(member))
        step = reconcile(member, target, self.ownership, owned, is_subscription_new)
        if step is None or step.leaves_as_it_is(member):
            return False
        is_assignment_new = step.assigned != member.assigned
        if is_assignment_new or step.revoking != member.revoking:
            self.ownership.release(member, member.assigned)
            self.ownership.release(member, member.revoking)
            self.members.assign(member, step.assigned, step.revoking)
            self.ownership.take(member, member.assigned)
            self.ownership.take(member, member.revoking)
        if step.epoch != member.epoch:
            member.previous_epoch = member.epoch
        member.state, member.epoch = step.state, step.epoch
        member.unchanged = None
        self.saver.mark(assignment_row(member.member_id))
        self.watch_revocation(member, now)
        return is_assignment_new

    def watch_revocation(self, member: ConsumerMember, now: float) -> None:
        """A member with partitions to give up has its rebalance timeout for that. A classic member has it to join again."""
        revocations = self.schedule.revocations
        if member.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None:
            self.schedule.set(revocations, member.member_id, now + member.rebalance_timeout_ms / 1000)
        else:
            revocations.remove(member.member_id)

    def awaits_release(self, member: ConsumerMember) -> bool:
        """Whether partitions of the member's target still belong to others."""
        for topic_id, wanted in self.targets.of(member).items():
            missing = wanted - member.assigned.get(topic_id, frozenset())
            if missing and len(self.ownership.free_for(member, topic_id, missing)) < len(missing):
                return True
        return False

    def advance(self, now: float) -> None:
        """Continue the assignment, and requests that wait for it."""
        if len(self.members) and self.targets.topics.generation >= 0:
            self.targets.ensure()
        if len(self.parked) and self.parked.release(self.targets.assignment_epoch, now):
            self.schedule.set_other(now)

    # Rows -----------------------------------------------------------------------------------------------------------

    def stored_rows(self) -> tuple[str, ...]:
        """All rows that may be stored."""
        rows = {GROUP_ROW: None}
        for member in self.members:
            rows[member_row(member.member_id)] = rows[assignment_row(member.member_id)] = None
        rows.update(dict.fromkeys(self.saver.rows.changed))
        return tuple(rows)

    def _encode(self, row: str) -> bytes | None:
        if row == GROUP_ROW:
            targets = self.targets
            return encode_group(GroupRow(targets.epoch, targets.assignment_epoch, targets.topics_hash))
        kind, _, member_id = row.partition("/")
        member = self.members.get(member_id)
        if member is None:
            return None
        member.saved_in = self.saver.rows.number
        return encode_metadata(member) if kind == "m" else encode_assignment(member)
