"""The target assignment of a share group: when it is computed, and from what; and the states of the group.

Pure, part of a ``ShareGroup``, under the group's lock. A change of members or topics asks for a run (``AssignmentDue``). The run
looks up the subscribed topics, has partitions initialised that the group has never read (``Initialise``), and has the assignor
compute the assignment (``AssignorTask``) from the initialised partitions. Changes during a run are left to another run, which is
asked for when this run ends.

A request may name topics with very many partitions. A run has at most ``INITIALISE_MAX`` of them initialised, and asks for
another run.

``TABLE`` has the states of a share group, by Kafka's names. MEMBER_JOINED: the first member joins; further members change
nothing here. LAST_MEMBER_LEFT: it leaves, or its session times out. GROUP_DELETED: an administrator deletes the group.
BROKER_STOPPED: the broker stops.

``PHASES`` has the progress of the assignor. The target assignment is not computed while a request is handled, but soon
afterwards, by a run that serves all changes until it begins. CHANGED: members or topics have changed, and the target assignment
with them. NEEDS_PARTITIONS: the run has met partitions without a start offset in this group; they are initialised before they
are assigned. READY: the assignor can begin, without the group's lock. ASSIGNED: it has ended.

A pair that the tables lack is a bug in the broker (AssertionError).

Tests: tests/kafka/groups/share/test_share_group.py,
tests/kafka/groups/share/test_share_group_machine.py.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from enum import Enum, auto
from uuid import UUID

from broker.kafka.groups.share.members import ShareMember, ShareMembers
from broker.kafka.groups.share.values import (
    AssignmentDue,
    AssignorTask,
    Initialise,
    NewPartitions,
    ShareEffect,
    Topics,
)
from broker.transitions import Transitions


class ShareGroupState(Enum):
    """The value is the name that ShareGroupDescribe and ListGroups show."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


class ShareGroupEvent(Enum):
    MEMBER_JOINED = auto()
    LAST_MEMBER_LEFT = auto()
    GROUP_DELETED = auto()
    BROKER_STOPPED = auto()


class AssignmentPhase(Enum):
    IDLE = auto()
    SCHEDULED = auto()
    INITIALISING = auto()
    COMPUTING = auto()


class AssignmentEvent(Enum):
    CHANGED = auto()
    NEEDS_PARTITIONS = auto()
    READY = auto()
    ASSIGNED = auto()


TABLE = Transitions(
    ShareGroupState,
    ShareGroupEvent,
    """
    EMPTY   MEMBER_JOINED     STABLE
    EMPTY   GROUP_DELETED     DEAD
    EMPTY   BROKER_STOPPED    DEAD
    STABLE  LAST_MEMBER_LEFT  EMPTY
    STABLE  BROKER_STOPPED    DEAD
    DEAD    BROKER_STOPPED    DEAD
    """,
)
next_state = TABLE.next

PHASES = Transitions(
    AssignmentPhase,
    AssignmentEvent,
    """
    IDLE          CHANGED           SCHEDULED
    SCHEDULED     CHANGED           SCHEDULED
    SCHEDULED     NEEDS_PARTITIONS  INITIALISING
    SCHEDULED     READY             COMPUTING
    INITIALISING  CHANGED           INITIALISING
    INITIALISING  READY             COMPUTING
    COMPUTING     CHANGED           COMPUTING
    COMPUTING     ASSIGNED          IDLE
    """,
)
next_phase = PHASES.next

IDLE, SCHEDULED = AssignmentPhase.IDLE, AssignmentPhase.SCHEDULED
INITIALISING, COMPUTING = AssignmentPhase.INITIALISING, AssignmentPhase.COMPUTING

# Number of partitions that a run has initialised: each is a row in the catalogue.
INITIALISE_MAX = 1000


class TargetAssignment:
    """``epoch``: the group epoch of the assignment; the group sets it."""

    def __init__(self, members: ShareMembers, ask: Callable[[ShareEffect], None]) -> None:
        self.epoch = 0
        self._members = members
        self._ask = ask
        self._phase = IDLE
        # The topics of the last run, by name; None is a missing topic.
        self._topics: dict[str, tuple[UUID, int] | None] = {}
        # By topic id: the number of partitions, from 0 on, with a start offset in this group.
        self._initialised: dict[UUID, int] = {}
        # Whether anything has changed since the run began; and members that have joined or changed their subscriptions since.
        self._changed_meanwhile = False
        self._late: set[str] = set()
        # Start offsets were deleted since the run began.
        self._was_forgotten = False
        # The partitions that the run waits for.
        self._awaited: tuple[NewPartitions, ...] = ()
        self._task: AssignorTask | None = None

    @property
    def phase(self) -> AssignmentPhase:
        return self._phase

    @property
    def is_pending(self) -> bool:
        """Whether a run is due or going on."""
        return self._phase is not IDLE

    def changed(self, member_id: str | None = None) -> None:
        """Members or topics have changed. ``member_id``: this member has joined, or has another subscription."""
        if member_id is not None:
            self._late.add(member_id)
        if self._phase is IDLE:
            self._ask(AssignmentDue())
        elif self._phase is not SCHEDULED:
            self._changed_meanwhile = True
        self._phase = next_phase(self._phase, AssignmentEvent.CHANGED)

    def must_wait(self, member_id: str) -> bool:
        """Whether no run has seen the member's subscription yet."""
        return member_id in self._late

    def differs(self, topics: Topics, names: Collection[str]) -> bool:
        """Whether a subscribed topic among these differs from what the last run has seen, and no run is due that will see it."""
        return self._phase is not SCHEDULED and any(
            topics(name) != self._topics.get(name) for name in self._members.subscriptions.names.intersection(names)
        )

    def forget(self) -> None:
        """Start offsets were deleted: the next run initialises all partitions again. A partition that still has its start offset
        keeps it."""
        self._initialised.clear()
        self._was_forgotten = True

    # A run ----------------------------------------------------------------------------------------------------------

    def begin(self, topics: Topics) -> bool:
        """Look up the topics. True if ``ready`` can be called now; False if it must wait for ``initialised``, or if no run is
        due."""
        if self._phase is not SCHEDULED:
            return False
        self._late.clear()
        self._changed_meanwhile = self._was_forgotten = False
        self._topics = {name: topics(name) for name in self._members.subscriptions.names}
        known = {topic[0] for topic in self._topics.values() if topic is not None}
        self._initialised = {topic_id: count for topic_id, count in self._initialised.items() if topic_id in known}
        self._awaited = tuple(self._new_partitions(INITIALISE_MAX))
        if not self._awaited:
            return True
        self._phase = next_phase(self._phase, AssignmentEvent.NEEDS_PARTITIONS)
        self._ask(Initialise(self._awaited))
        return False

    def initialised(self, partitions: tuple[NewPartitions, ...], *, failed: bool) -> bool:
        """These have a start offset now, or could not be given one. False if the run does not wait for them."""
        if self._phase is not INITIALISING or partitions is not self._awaited:
            return False
        if not failed and not self._was_forgotten:
            for each in partitions:
                self._initialised[each.topic_id] = each.end
        return True

    def ready(self, epoch: int) -> AssignorTask:
        """Begin the assignor's task, when its input is complete. ``epoch``: the group's present epoch."""
        self._phase = next_phase(self._phase, AssignmentEvent.READY)
        topic_ids = {
            subscription: frozenset(self._assignable(subscription.names))
            for subscription in self._members.subscriptions
        }
        self._task = AssignorTask(
            epoch,
            {member.member_id: topic_ids[member.subscription] for member in self._members},
            self._initialised.copy(),
            {member.member_id: member.target for member in self._members},
        )
        return self._task

    def assigned(self, task: AssignorTask) -> list[ShareMember] | None:
        """The assignor has ended. Returns the members with a new target; None if this run was not waited for."""
        if task is not self._task:
            return None
        self._task = None
        self._phase = next_phase(self._phase, AssignmentEvent.ASSIGNED)
        targets = task.targets or {}
        changed = []
        for member in self._members:
            target = targets.get(member.member_id, member.target)
            if member.target != target:
                self._members.set_target(member, target)
                changed.append(member)
        return changed

    def run_again(self, *, incomplete: bool) -> None:
        """After ``assigned``: ask for another run if this run has not seen all changes, or (``incomplete``) has not initialised
        all partitions."""
        if self._changed_meanwhile or (incomplete and self.is_incomplete):
            self.changed()

    @property
    def is_incomplete(self) -> bool:
        """Whether partitions are not assigned because they are not initialised."""
        return next(self._new_partitions(1), None) is not None

    def _assignable(self, names: Iterable[str]) -> Iterator[UUID]:
        for name in names:
            topic = self._topics.get(name)
            if topic is not None and topic[0] in self._initialised:
                yield topic[0]

    def _new_partitions(self, most: int) -> Iterator[NewPartitions]:
        for name, topic in self._topics.items():
            if topic is None:
                continue
            topic_id, count = topic
            first = self._initialised.get(topic_id, 0)
            if first < count:
                end = min(count, first + most)
                yield NewPartitions(name, topic_id, first, end)
                most -= end - first
                if not most:
                    return
