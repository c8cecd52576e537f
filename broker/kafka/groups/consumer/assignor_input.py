"""What an assignor is given: members, what they subscribe to, and what each of them had. Members are numbers here.

Tests: tests/kafka/groups/consumer/test_uniform_assignor.py, tests/kafka/groups/consumer/test_range_assignor.py.
"""

from uuid import UUID

import attrs

from broker.kafka.groups.consumer.values import Assignment


@attrs.frozen(eq=False)
class Subscribers:
    """Members that subscribe to the same topics, in ascending order."""

    topic_ids: tuple[UUID, ...]
    members: tuple[int, ...]


@attrs.frozen(eq=False)
class AssignorInput:
    """``previous``: what each member had; its length is the number of members. Members have no partition in common.

    ``partitions``: how many each topic has, for the topics that anybody subscribes to. Members are sorted by instance id, those
    without one after the others, and by member id.
    """

    partitions: dict[UUID, int]
    subscribers: tuple[Subscribers, ...]
    previous: list[Assignment]

    def topic_subscribers(self) -> dict[UUID, list[int]]:
        """The members that subscribe to each topic, in ascending order."""
        found: dict[UUID, list[int]] = {topic_id: [] for topic_id in self.partitions}
        for each in self.subscribers:
            for topic_id in each.topic_ids:
                found[topic_id].extend(each.members)
        if len(self.subscribers) > 1:
            for members in found.values():
                members.sort()
        return found
