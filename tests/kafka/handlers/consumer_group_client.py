"""Members of consumer groups of KIP-848 over a raw connection."""

from typing import Any
from uuid import UUID

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka

# What a heartbeat says that has nothing new.
UNCHANGED: dict[str, Any] = {
    "instance_id": None,
    "rack_id": None,
    "rebalance_timeout": -1,
    "subscribed_topic_names": None,
    "subscribed_topic_regex": None,
    "server_assignor": None,
    "topic_partitions": None,
}


def heartbeat(kafka: Kafka, group: str, member_id: str, epoch: int, *, version: int = 1, **how: Any) -> Any:
    fields = UNCHANGED | {"group_id": group, "member_id": member_id, "member_epoch": epoch} | how
    if version == 0:
        del fields["subscribed_topic_regex"]
    return kafka.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, **fields)


def ask_join(kafka: Kafka, group: str, member_id: str, topics: list[str] | None, **how: Any) -> Any:
    new: dict[str, Any] = {"rebalance_timeout": 60_000, "subscribed_topic_names": topics, "topic_partitions": []}
    return heartbeat(kafka, group, member_id, 0, **new | how)


def join(kafka: Kafka, group: str, member_id: str, topics: list[str] | None, **how: Any) -> "Member":
    member = Member(kafka, group, member_id, 0, {})
    member.take(ask_join(kafka, group, member_id, topics, **how))
    return member


class Member:
    """A client that does as it is told."""

    def __init__(self, kafka: Kafka, group: str, member_id: str, epoch: int, owned: dict[UUID, list[int]]) -> None:
        self.kafka, self.group, self.id, self.epoch, self.owned = kafka, group, member_id, epoch, owned

    def heartbeat(self, **how: Any) -> Any:
        """Reports its partitions if they have changed since its last assignment."""
        owned = [{"topic_id": topic, "partitions": partitions} for topic, partitions in self.owned.items()]
        return self.take(heartbeat(self.kafka, self.group, self.id, self.epoch, **{"topic_partitions": owned, **how}))

    def take(self, answer: Any) -> Any:
        assert answer.error_code == ErrorCode.none, answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = assignment(answer)
        return answer

    def leave(self, epoch: int = -1, **how: Any) -> Any:
        return heartbeat(self.kafka, self.group, self.id, epoch, **how)

    @property
    def partitions(self) -> int:
        return sum(map(len, self.owned.values()))


def id_of(kafka: Kafka, topic: str) -> UUID:
    info = kafka.inside.logs.topic(topic)
    assert info is not None
    return info.topic_id


def assignment(answer: Any) -> dict[UUID, list[int]]:
    return {partition.topic_id: list(partition.partitions) for partition in answer.assignment.topic_partitions}


def describe(kafka: Kafka, *groups: str, version: int = 1, operations: bool = False) -> Any:
    answer = kafka.ask(
        ApiKey.CONSUMER_GROUP_DESCRIBE, version, group_ids=list(groups), include_authorized_operations=operations
    )
    return answer.groups
