"""Consumer groups over a raw connection, in any version."""

import itertools
from collections.abc import Sequence
from typing import Any

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.consumer_protocol import encode_subscription
from tests.kafka.handlers.kafka_client import Kafka

_names = itertools.count()


def new_group() -> str:
    """A name not used before."""
    return f"group-{next(_names)}"


def join_fields(group: str, member_id: str = "", *, topics: Sequence[str] = ("orders",), **how: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout": 30_000,
        "rebalance_timeout": 60_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": bytes(encode_subscription(topics))}],
    } | how


def ask_join(kafka: Kafka, group: str, member_id: str = "", *, version: int = 9, **how: Any) -> Any:
    return kafka.ask(ApiKey.JOIN_GROUP, version, **join_fields(group, member_id, **how))


def join(kafka: Kafka, group: str, *, version: int = 9, **how: Any) -> Any:
    """As a new member, with as many requests as the version wants."""
    answer = ask_join(kafka, group, version=version, **how)
    if answer.error_code == ErrorCode.member_id_required:
        answer = ask_join(kafka, group, answer.member_id, version=version, **how)
    assert answer.error_code == ErrorCode.none, answer
    return answer


def ask_sync(kafka: Kafka, group: str, member_id: str, generation: int, *, version: int = 5, **how: Any) -> Any:
    fields = {
        "group_id": group,
        "generation_id": generation,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocol_name": "range",
    }
    return kafka.ask(ApiKey.SYNC_GROUP, version, **fields | how)


def stable(kafka: Kafka, group: str, **how: Any) -> str:
    """A stable group of generation 1 with one member, which is assigned b"all"; its id."""
    member_id: str = join(kafka, group, **how).member_id
    assignments = [{"member_id": member_id, "assignment": b"all"}]
    answer = ask_sync(
        kafka, group, member_id, 1, assignments=assignments, protocol_type=how.get("protocol_type", "consumer")
    )
    assert answer.error_code == ErrorCode.none, answer
    return member_id


def heartbeat(kafka: Kafka, group: str, member_id: str, generation: int, *, version: int = 4, **how: Any) -> ErrorCode:
    fields = {"group_id": group, "member_id": member_id, "generation_id": generation}
    error: ErrorCode = kafka.ask(ApiKey.HEARTBEAT, version, **fields | how).error_code
    return error


def leave(kafka: Kafka, group: str, member_id: str) -> None:
    members = [{"member_id": member_id}]
    assert kafka.ask(ApiKey.LEAVE_GROUP, 5, group_id=group, members=members).error_code == ErrorCode.none


def commit(kafka: Kafka, group: str, topic: str, *offsets: int, version: int = 8, **how: Any) -> Any:
    """One offset for each partition, from 0 on; the answers' error codes."""
    partition_fields = {"committed_leader_epoch": -1, "committed_metadata": None, **how.pop("partition", {})}
    partitions = [
        {"partition_index": index, "committed_offset": offset, **partition_fields}
        for index, offset in enumerate(offsets)
    ]
    fields = {"group_id": group, "topics": [{"name": topic, "partitions": partitions}]}
    answer = kafka.ask(ApiKey.OFFSET_COMMIT, version, **fields | how)
    (of_topic,) = answer.topics
    assert kafka.name_of(of_topic) in (topic, None)
    assert [partition.partition_index for partition in of_topic.partitions] == list(range(len(offsets)))
    return [partition.error_code for partition in of_topic.partitions]
