"""The target assignment of a consumer group: the partitions that each member is to have, its computation, and its topics.

``Targets`` owns the group's epochs. The *group epoch* is bumped when something changes that the assignment depends on: members,
subscriptions, topics. The *assignment epoch* is the group epoch that the target assignment was computed for. Pure, under the
group's lock.

A target assignment that costs up to ``INLINE_COST_MAX`` is computed at once. A more expensive one is an effect, an
``AssignmentTask``, which is computed from an immutable picture of the group without the group's lock: the coordinator calls
``run`` on a thread that may be busy for a while, and passes the task to the group's ``assignment_computed``. Meanwhile heartbeats
are answered by the present assignment, and members that join wait for the new one. At most one task is computed at a time, so
later changes are in the next task: 500 members that join together cause a few computations, not 500. ``cost`` counts the
members, partitions and subscriptions that ``run`` goes through. Each takes up to 2 us (`python -m tests.bench groups`).

``Resolutions`` has the topics that the group's regular expressions match, and when they have to be matched again. All
expressions of a group are matched together, so that the members are assigned anew once: when there is a new expression, when the
topics have changed, and from time to time, because the rights to topics may have changed. The pause in between is at least
``_PAUSE_S``, and 20 times the time of the matching (up to 10 s), which limits the work that a client can cause by sending new
expressions, or by making topics, to a twentieth of one thread.

Tests: tests/kafka/groups/consumer/test_group_offloading.py,
tests/kafka/groups/consumer/test_group_regexes.py,
tests/kafka/groups/consumer/test_consumer_group.py.
"""

from collections.abc import Callable, Mapping
from hashlib import blake2b
from math import inf
from typing import NamedTuple
from uuid import UUID

import attrs

from broker.kafka.groups.consumer.assignors import ASSIGNORS, AssignorInput, Subscribers
from broker.kafka.groups.consumer.members import ConsumerMember, ConsumerMembers, Subscription
from broker.kafka.groups.consumer.values import NO_PARTITIONS, Assignment, ConsumerGroupLimits, RegexTask, TopicsImage
from broker.kafka.groups.deadlines import ConsumerSchedule


class TaskMember(NamedTuple):
    member_id: str
    instance_id: str | None
    subscription: Subscription

    @property
    def order(self) -> tuple[bool, str, str]:
        """By instance id, members without an instance id last, and by member id."""
        return (self.instance_id is None, self.instance_id or "", self.member_id)


# Name -> topic id and partitions, None for a missing topic: the topics from which an assignment was computed.
TopicsUsed = Mapping[str, tuple[UUID, int] | None]


@attrs.define(eq=False)
class AssignmentTask:
    """``resolved``: regular expression -> names of topics. ``previous`` and ``targets``: member id -> partitions.

    ``targets`` is None until ``run`` is done; it stays None after a failure, which ``error`` tells. ``used`` are the topics of
    the computation."""

    epoch: int
    assignor: str
    members: list[TaskMember]
    resolved: Mapping[str, frozenset[str]]
    previous: Mapping[str, Assignment]
    topics: TopicsImage
    cost: int
    targets: dict[str, Assignment] | None = None
    used: TopicsUsed = attrs.Factory(dict)
    topics_hash: str = ""
    error: Exception | None = None

    def run(self) -> None:
        """Compute the assignment. Takes long for large groups."""
        try:
            self.targets = self._assign()
        except Exception as error:
            self.error = error

    def _assign(self) -> dict[str, Assignment]:
        members = sorted(self.members, key=lambda member: member.order)
        subscribers: dict[Subscription, list[int]] = {}
        for number, member in enumerate(members):
            subscribers.setdefault(member.subscription, []).append(number)
        names_of = {each: each.names | self.resolved.get(each.regex, frozenset()) for each in subscribers}
        self.used = topics_used(frozenset().union(*names_of.values()), self.topics)
        self.topics_hash = hash_of(self.used)
        if not members:
            return {}
        partitions = dict(used for used in self.used.values() if used is not None)
        by_topics: dict[tuple[UUID, ...], list[int]] = {}
        for subscription, numbers in subscribers.items():
            topics = (self.used[name] for name in sorted(names_of[subscription]))
            topic_ids = tuple(each[0] for each in topics if each is not None)
            by_topics.setdefault(topic_ids, []).extend(numbers)
        given = AssignorInput(
            partitions,
            tuple(Subscribers(topic_ids, tuple(sorted(numbers))) for topic_ids, numbers in by_topics.items()),
            [self.previous.get(member.member_id, NO_PARTITIONS) for member in members],
        )
        assigned = ASSIGNORS[self.assignor](given)
        return {member.member_id: assignment for member, assignment in zip(members, assigned, strict=True)}


def topics_used(names: frozenset[str], topics: TopicsImage) -> dict[str, tuple[UUID, int] | None]:
    # Sorted, so that the assignment does not depend on the order of a set of strings, which differs from process to process.
    by_name = topics.by_name
    return {name: None if (info := by_name.get(name)) is None else (info[0], info[1]) for name in sorted(names)}


def hash_of(used: TopicsUsed) -> str:
    """A digest, which is the same in every process."""
    digest = blake2b(digest_size=8)
    for name in sorted(used):
        each = used[name]
        if each is not None:
            digest.update(f"{name}\0{each[0].hex}\0{each[1]}\0".encode())
    return digest.hexdigest()


_PAUSE_S = 1.0
_PAUSE_FACTOR = 20
_PAUSE_MAX_S = 10.0


class Resolutions:
    def __init__(self, refresh_s: float) -> None:
        # Expression -> names of topics. Replaced as a whole, never changed.
        self.resolved: Mapping[str, frozenset[str]] = {}
        # The requester on whose behalf topics are matched.
        self.context: object = None
        self.task: RegexTask | None = None
        self._refresh_s = refresh_s
        self._generation = -1
        self._not_before = -inf
        self._refresh_at = inf

    def are_complete(self, regexes: frozenset[str]) -> bool:
        """Whether every expression has been matched at least once."""
        return not regexes or self.resolved.keys() >= regexes

    def due(self, regexes: frozenset[str], topics: TopicsImage) -> float:
        """When they are to be matched again; infinity if that is not foreseeable."""
        if not regexes or self.task is not None:
            return inf
        if not self.are_complete(regexes) or topics.generation != self._generation:
            return self._not_before
        return max(self._refresh_at, self._not_before)

    def begin(self, regexes: frozenset[str], topics: TopicsImage, now: float) -> RegexTask:
        self.task = RegexTask(tuple(sorted(regexes)), topics, self.context, now)
        return self.task

    def end(self, task: RegexTask, regexes: frozenset[str], now: float) -> bool:
        """Returns whether the topics of an expression have changed."""
        self.task = None
        pause_s = _PAUSE_FACTOR * (now - task.started)
        self._not_before = now + min(max(_PAUSE_S, pause_s), _PAUSE_MAX_S)
        if task.matches is None:
            return False  # repeated after the pause
        self._generation = task.topics.generation
        self._refresh_at = now + self._refresh_s
        before = self.resolved
        after = {regex: task.matches.get(regex, before.get(regex)) for regex in regexes}
        self.resolved = {regex: names for regex, names in after.items() if names is not None}
        return any(before.get(regex) != names for regex, names in self.resolved.items())


# About 1 ms on a slow core.
INLINE_COST_MAX = 500
NO_TOPICS = TopicsImage.of(-1, {})


class Targets:
    """``changed`` is called when the epochs have changed, which then have to be stored."""

    def __init__(
        self,
        limits: ConsumerGroupLimits,
        members: ConsumerMembers,
        schedule: ConsumerSchedule,
        emit: Callable[[AssignmentTask | RegexTask], None],
        changed: Callable[[], None],
    ) -> None:
        self.epoch = 0
        self.assignment_epoch = 0
        # By member id. A member without an entry has no partitions in the target.
        self.assignments: dict[str, Assignment] = {}
        # As of the last request.
        self.topics = NO_TOPICS
        # Of the topics from which the target assignment was computed.
        self.topics_hash = ""
        self.resolutions = Resolutions(limits.regex_refresh_interval_ms / 1000)
        self.limits = limits
        self._members = members
        self._schedule = schedule
        self._emit = emit
        self._changed = changed
        # The topics from which the target assignment was computed. None after a restart: only their hash is known.
        self._used: TopicsUsed | None = {}
        self._task: AssignmentTask | None = None
        # While it is withheld, nobody has partitions in the target.
        self.is_withheld = False
        # Static members that were replaced while an assignment was computed: new member id -> old id.
        self._replaced: dict[str, str] = {}

    def restore(self, epoch: int, assignment_epoch: int, topics_hash: str) -> None:
        self.epoch, self.assignment_epoch, self.topics_hash = epoch, assignment_epoch, topics_hash
        self._used = None

    def of(self, member: ConsumerMember) -> Assignment:
        return self.assignments.get(member.member_id, NO_PARTITIONS)

    def bump(self) -> None:
        """Something has changed that the assignment depends on. Changes before the next computation count as one."""
        is_being_computed = self._task is not None and self._task.epoch == self.epoch
        if self.epoch == self.assignment_epoch or is_being_computed:
            self.epoch += 1
            self._changed()

    def withhold(self) -> None:
        """Nobody is to have partitions, until ``give_back``."""
        self.is_withheld = True
        self.bump()

    def give_back(self) -> None:
        """The partitions are to be assigned anew."""
        self.is_withheld = False
        self.bump()

    def rename(self, old_id: str, new_id: str) -> None:
        """A static member has another member id now."""
        if old_id in self.assignments:
            self.assignments[new_id] = self.assignments.pop(old_id)
        if self._task is not None:
            self._replaced[new_id] = self._replaced.pop(old_id, old_id)

    # Topics ---------------------------------------------------------------------------------------------------------

    def subscribes(self, member: ConsumerMember) -> Callable[[UUID], bool]:
        """Whether the member subscribes to a topic. It does while its expression has not been matched, so that it keeps its
        partitions and can report them."""
        names, regex = member.subscription
        matched = self.resolutions.resolved.get(regex) if regex else frozenset()
        if matched is None:
            return lambda _: True
        name_of = self.topics.name_of

        def subscribes(topic_id: UUID) -> bool:
            name = name_of.get(topic_id)
            return name is not None and (name in names or name in matched)

        return subscribes

    def see_topics(self, topics: TopicsImage) -> None:
        """Take note of topics that were made or deleted or have grown."""
        if topics.generation <= self.topics.generation:
            return
        self.topics = topics
        self._bump_if_topics_changed()

    def subscribed_topics(self) -> frozenset[str] | None:
        """All subscribed topics; None if expressions were not matched yet."""
        regexes = self._members.regexes
        if not regexes:
            return self._members.subscriptions.names
        if not self.resolutions.are_complete(regexes):
            return None
        return self._members.subscriptions.names.union(*(self.resolutions.resolved[regex] for regex in regexes))

    def resolve_regexes(self, now: float) -> None:
        """Have regular expressions matched if that is due."""
        regexes = self._members.regexes
        due = self.resolutions.due(regexes, self.topics)
        if due <= now:
            self._emit(self.resolutions.begin(regexes, self.topics, now))
        elif due < inf:
            self._schedule.set_other(due)

    def regexes_resolved(self, task: RegexTask, now: float) -> None:
        if task is not self.resolutions.task:
            return
        has_changed = self.resolutions.end(task, self._members.regexes, now)
        if has_changed and self._used is not None:
            self.bump()
        else:
            self._bump_if_topics_changed()
        self.resolve_regexes(now)

    def _bump_if_topics_changed(self) -> None:
        if len(self._members) and self.epoch == self.assignment_epoch and self._have_topics_changed():
            self.bump()

    def _have_topics_changed(self) -> bool:
        """Whether topics have changed since the target assignment was computed."""
        if self._used is not None:
            by_name = self.topics.by_name
            for name, used in self._used.items():
                info = by_name.get(name)
                if (None if info is None else (info[0], info[1])) != used:
                    return True
            return False
        names = self.subscribed_topics()
        if names is None:
            return False  # checked again when they are known
        used_now = topics_used(names, self.topics)
        if hash_of(used_now) != self.topics_hash:
            return True
        self._used = used_now
        return False

    # Computation ----------------------------------------------------------------------------------------------------

    def ensure(self) -> bool:
        """Have the target assignment computed if it is not up to date. True if it is."""
        if self.epoch == self.assignment_epoch:
            return True
        if self._task is not None:
            return False
        if self.is_withheld:
            self.assignments, self.assignment_epoch = {}, self.epoch
            self._changed()
            return True
        if not self.resolutions.are_complete(self._members.regexes):
            return False
        task = self._new_task()
        if task.cost > INLINE_COST_MAX:
            self._task = task
            self._emit(task)
            return False
        task.run()
        if task.error is not None:
            raise task.error  # a bug in an assignor
        self._take(task)
        return True

    def computed(self, task: AssignmentTask) -> bool:
        """Take the result of a computation. False if it has failed."""
        if task is not self._task:
            return True  # the group was loaded again meanwhile
        self._task = None
        if task.error is not None:
            return False
        self._take(task)
        if task.topics is not self.topics:
            self._bump_if_topics_changed()
        return True

    def _new_task(self) -> AssignmentTask:
        by_name, resolved = self.topics.by_name, self.resolutions.resolved
        cost = len(self._members)
        for subscription, members in self._members.subscriptions.items():
            names = subscription.names | resolved.get(subscription.regex, frozenset())
            cost += len(names) * members
            cost += sum(by_name[name].partitions for name in names if name in by_name)
        self._replaced.clear()
        return AssignmentTask(
            self.epoch,
            self._members.preferred_assignor(self.limits.assignors),
            [TaskMember(each.member_id, each.instance_id, each.subscription) for each in self._members],
            resolved,
            self.assignments.copy(),
            self.topics,
            cost,
        )

    def _take(self, task: AssignmentTask) -> None:
        targets = task.targets
        assert targets is not None
        for new_id, old_id in self._replaced.items():
            if old_id in targets:
                targets[new_id] = targets.pop(old_id)
        self._replaced.clear()
        self.assignments = {each.member_id: targets.get(each.member_id, NO_PARTITIONS) for each in self._members}
        self.assignment_epoch = task.epoch
        self._used, self.topics_hash = task.used, task.topics_hash
        self._changed()
