"""Computes one target assignment from an unchangeable picture of the group, so that it can be done without the group's lock.

Effect of a ``ConsumerGroup`` whose target assignment is too expensive to compute at once: the coordinator calls ``run`` on a
thread that may be busy for a while, with no lock held, and hands the task to the group's ``assignment_computed``. Meanwhile
members get heartbeats answered by the assignment that there is, and those that join wait for the new one.

``cost`` counts what ``run`` goes through: members, partitions, subscriptions. One takes up to 2 us, as measured
with 500 members and 10,000 partitions.

Tests: tests/kafka/groups/consumer/test_group_offloading.py, tests/kafka/groups/consumer/test_consumer_group.py.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple
from uuid import UUID

import attrs

from broker.kafka.groups.consumer.assignor_input import AssignorInput, Subscribers
from broker.kafka.groups.consumer.assignors import ASSIGNORS
from broker.kafka.groups.consumer.members import Subscription
from broker.kafka.groups.consumer.values import NO_PARTITIONS, Assignment, TopicsImage


class TaskMember(NamedTuple):
    member_id: str
    instance_id: str | None
    subscription: Subscription

    @property
    def order(self) -> tuple[bool, str, str]:
        """By instance id, members without one after the others, and by member id."""
        return (self.instance_id is None, self.instance_id or "", self.member_id)


# Name -> topic id and partitions, None for a topic that does not exist: what an assignment was computed from.
TopicsUsed = Mapping[str, tuple[UUID, int] | None]


@attrs.define(eq=False)
class AssignmentTask:
    """``resolved``: regular expression -> names of topics. ``previous`` and ``targets``: member id -> partitions.

    ``targets`` is None until ``run`` is done, and if it failed, which ``error`` tells. ``used`` are the topics that were looked
    at."""

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
        """Takes long for large groups."""
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
            found = (self.used[name] for name in sorted(names_of[subscription]))
            topic_ids = tuple(each[0] for each in found if each is not None)
            by_topics.setdefault(topic_ids, []).extend(numbers)
        given = AssignorInput(
            partitions,
            tuple(Subscribers(topic_ids, tuple(sorted(numbers))) for topic_ids, numbers in by_topics.items()),
            [self.previous.get(member.member_id, NO_PARTITIONS) for member in members],
        )
        assigned = ASSIGNORS[self.assignor](given)
        return {member.member_id: assignment for member, assignment in zip(members, assigned, strict=True)}


def topics_used(names: frozenset[str], topics: TopicsImage) -> dict[str, tuple[UUID, int] | None]:
    # Sorted, so that what is assigned does not depend on the order of a set of strings, which differs from process to process.
    by_name = topics.by_name
    return {name: None if (info := by_name.get(name)) is None else (info[0], info[1]) for name in sorted(names)}


def hash_of(used: TopicsUsed) -> str:
    """A digest of it, which is the same in every process."""
    digest = blake2b(digest_size=8)
    for name in sorted(used):
        each = used[name]
        if each is not None:
            digest.update(f"{name}\0{each[0].hex}\0{each[1]}\0".encode())
    return digest.hexdigest()
