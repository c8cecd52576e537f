"""Members of share groups over a raw connection."""

import uuid
from collections.abc import Sequence
from typing import Any

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka

Assigned = dict[uuid.UUID, list[int]]


def ask_heartbeat(
    kafka: Kafka, group: str, member_id: str, epoch: int, topics: Sequence[str] | None = None, **how: Any
) -> Any:
    fields = {"group_id": group, "member_id": member_id, "member_epoch": epoch, "subscribed_topic_names": topics}
    return kafka.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, **fields | how)


def assigned(answer: Any) -> Assigned | None:
    """What a heartbeat's answer assigns; None if it says nothing of that."""
    if answer.assignment is None:
        return None
    return {each.topic_id: list(each.partitions) for each in answer.assignment.topic_partitions}


class ShareMember:
    """A member that knows its epoch and its assignment, as a client does."""

    def __init__(self, kafka: Kafka, group: str, *topics: str) -> None:
        self._kafka = kafka
        self.group = group
        self.member_id = str(uuid.uuid4())
        self.epoch = 0
        self.assigned: Assigned = {}
        self.topics: Sequence[str] | None = topics

    def join(self) -> "ShareMember":
        assert self.beat(self.topics).error_code == ErrorCode.none
        return self

    def beat(self, topics: Sequence[str] | None = None) -> Any:
        answer = ask_heartbeat(self._kafka, self.group, self.member_id, self.epoch, topics)
        if not answer.error_code:
            self.epoch = answer.member_epoch
            told = assigned(answer)
            if told is not None:
                self.assigned = told
        return answer

    def leave(self) -> Any:
        return ask_heartbeat(self._kafka, self.group, self.member_id, -1)


def describe(kafka: Kafka, *groups: str, authorized_operations: bool = False) -> list[Any]:
    answer = kafka.ask(
        ApiKey.SHARE_GROUP_DESCRIBE, 1, group_ids=groups, include_authorized_operations=authorized_operations
    )
    return list(answer.groups)
