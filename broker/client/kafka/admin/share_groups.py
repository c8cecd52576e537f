"""Share groups (KIP-932): where they begin in each partition, and how that is set and forgotten. The rest is in ``groups.py``.

For any broker that serves these APIs, which Apache Kafka does from 4.1 on.

Tests: tests/cli/test_share_groups.py.
"""

from collections.abc import Collection, Mapping
from typing import Any

import attrs

from broker.client.kafka.admin.groups import check
from broker.client.kafka.admin.requests import ask
from broker.client.kafka.errors import COORDINATOR_MOVED
from broker.client.kafka.routing import GROUP, Routing
from broker.client.kafka.values import TopicPartition
from protocol.kafka.api_keys import ApiKey


@attrs.frozen
class ShareOffset:
    """Where a group begins; before it, everything is done with. ``lag``: how many records are not done with from there on; None
    if the broker does not know it."""

    start: int
    lag: int | None


def start_offsets(routing: Routing, group: str) -> dict[TopicPartition, ShareOffset]:
    """Of all partitions that the group has begun with."""

    def attempt() -> dict[TopicPartition, ShareOffset]:
        fields = {"groups": [{"group_id": group, "topics": None}]}
        answer = ask(routing.coordinator(GROUP, group), ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, (0, 1), fields)
        (one,) = answer.groups
        check(routing, group, one.error_code, one.error_message)
        found = {}
        for topic in one.topics:
            for partition in topic.partitions:
                if not partition.error_code and partition.start_offset >= 0:
                    lag = getattr(partition, "lag", -1)  # from version 1 on
                    offset = ShareOffset(partition.start_offset, lag if lag >= 0 else None)
                    found[topic.topic_name, partition.partition_index] = offset
        return found

    return routing.retrying(attempt)


def set_start_offsets(routing: Routing, group: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The error code of each partition, 0 for success. The group is made if there is none. Raises BrokerAnswerError, with the
    code NON_EMPTY_GROUP while it has members."""
    topics: dict[str, list[dict[str, int]]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, []).append({"partition_index": partition, "start_offset": offset})
    fields = {"group_id": group, "topics": [{"topic_name": name, "partitions": own} for name, own in topics.items()]}

    def attempt() -> dict[TopicPartition, int]:
        answer = ask(routing.coordinator(GROUP, group), ApiKey.ALTER_SHARE_GROUP_OFFSETS, (0, 0), fields)
        check(routing, group, answer.error_code, answer.error_message)
        return {
            (topic.topic_name, partition.partition_index): _retried(routing, group, partition.error_code)
            for topic in answer.responses
            for partition in topic.partitions
        }

    return routing.retrying(attempt)


def forget_topics(routing: Routing, group: str, topics: Collection[str]) -> dict[str, int]:
    """The error code of each topic, 0 for success. Raises as ``set_start_offsets``."""
    fields = {"group_id": group, "topics": [{"topic_name": name} for name in topics]}

    def attempt() -> dict[str, int]:
        answer: Any = ask(routing.coordinator(GROUP, group), ApiKey.DELETE_SHARE_GROUP_OFFSETS, (0, 0), fields)
        check(routing, group, answer.error_code, answer.error_message)
        return {one.topic_name: _retried(routing, group, one.error_code) for one in answer.responses}

    return routing.retrying(attempt)


def _retried(routing: Routing, group: str, code: int) -> int:
    """The code of a part of an answer. Raises where the whole request is to be sent again."""
    if code in COORDINATOR_MOVED:
        check(routing, group, code, None)
    return int(code)
