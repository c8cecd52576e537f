"""Requests about offsets: where partitions begin and end, and the committed offsets of groups. ``Cluster`` has a method for each.

Tests: tests/client/kafka/test_cluster.py, tests/client/kafka/test_other_brokers.py, tests/client/kafka/test_versions.py.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from broker.client.kafka.config import Address
from broker.client.kafka.errors import RETRIABLE, BrokerAnswerError, LinkError, RetriableError, code_name
from broker.client.kafka.routing import GROUP, Routing
from broker.client.kafka.values import ISOLATION_LEVELS, MAX_TIMESTAMP, OffsetAndMetadata, TopicPartition
from protocol.kafka.api_keys import ApiKey


def list_offsets(
    routing: Routing, times: Mapping[TopicPartition, int], isolation: str
) -> dict[TopicPartition, int | None]:
    """See ``Cluster.offsets``. Sends one request to each leader, and another for partitions that failed for the moment."""
    pending = dict(times)
    offsets: dict[TopicPartition, int | None] = {}

    def ask() -> None:
        failed: RetriableError | None = None
        for address, partitions in _by_leader(routing, pending).items():
            asked = {key: pending[key] for key in partitions}
            for topic, partition, offset, code in ask_leader(routing, address, asked, isolation):
                key = (topic, partition)
                if code in RETRIABLE:
                    routing.forget_leader(topic, partition)
                    failed = RetriableError(f"No offset of {topic}-{partition}: {code_name(code)}.", code)
                elif code:
                    raise BrokerAnswerError(f"No offset of {topic}-{partition}: {code_name(code)}.", code)
                elif pending.pop(key, None) is not None:
                    offsets[key] = offset if offset >= 0 else None
        if failed is not None:
            raise failed
        if pending:
            topic, partition = next(iter(pending))
            raise BrokerAnswerError(f"The broker said nothing about {topic}-{partition}.")

    if pending:
        routing.retrying(ask)
    return offsets


def _by_leader(routing: Routing, partitions: Iterable[TopicPartition]) -> dict[Address, list[TopicPartition]]:
    routing.learn_leaders(partitions)
    by_leader: dict[Address, list[TopicPartition]] = {}
    for topic, partition in partitions:
        by_leader.setdefault(routing.leader(topic, partition), []).append((topic, partition))
    return by_leader


def ask_leader(
    routing: Routing, address: Address, times: Mapping[TopicPartition, int], isolation: str
) -> list[tuple[str, int, int, int]]:
    """Return (topic, partition, offset, error code) of each partition."""
    try:
        connection = routing.connection(address)
    except LinkError:
        for key in times:
            routing.forget_leader(*key)
        raise
    lowest = 7 if MAX_TIMESTAMP in times.values() else 2 if ISOLATION_LEVELS[isolation] else 1
    version = connection.version(ApiKey.LIST_OFFSETS, lowest, 7)
    more = {"current_leader_epoch": -1} if version >= 4 else {}
    partitions = {key: {"partition_index": key[1], "timestamp": time} | more for key, time in times.items()}
    fields: dict[str, Any] = {"replica_id": -1, "topics": _nested(partitions)}
    if version >= 2:
        fields["isolation_level"] = ISOLATION_LEVELS[isolation]
    answer = connection.ask(ApiKey.LIST_OFFSETS, version, fields)
    return [
        (topic.name, partition.partition_index, partition.offset, int(partition.error_code))
        for topic in answer.topics
        for partition in topic.partitions
    ]


def fetch_committed(
    routing: Routing, group: str, partitions: Collection[TopicPartition] | None, stable: bool
) -> dict[TopicPartition, OffsetAndMetadata]:
    """See ``Cluster.committed``."""

    def ask() -> dict[TopicPartition, OffsetAndMetadata]:
        connection = routing.coordinator(GROUP, group)
        version = connection.version(ApiKey.OFFSET_FETCH, 2 if partitions is None else 1, 7)
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions or ():
            topics.setdefault(topic, []).append(partition)
        named = [{"name": topic, "partition_indexes": indexes} for topic, indexes in topics.items()]
        fields: dict[str, Any] = {"group_id": group, "topics": None if partitions is None else named}
        if version >= 7:
            fields["require_stable"] = stable
        answer = connection.ask(ApiKey.OFFSET_FETCH, version, fields)
        what = f"the offsets of the group {group!r}"
        routing.check_coordinator_answer(getattr(answer, "error_code", 0), what, GROUP, group)
        committed: dict[TopicPartition, OffsetAndMetadata] = {}
        for topic in answer.topics:
            for partition in topic.partitions:
                index = partition.partition_index
                routing.check_coordinator_answer(partition.error_code, f"{what} for {topic.name}-{index}", GROUP, group)
                if partition.committed_offset >= 0:
                    epoch = getattr(partition, "committed_leader_epoch", -1)
                    committed[topic.name, index] = OffsetAndMetadata(
                        partition.committed_offset, partition.metadata or "", epoch
                    )
        return committed

    return {} if partitions is not None and not partitions else routing.retrying(ask)


def commit(routing: Routing, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> None:
    """See ``Cluster.commit``."""

    def ask() -> None:
        connection = routing.coordinator(GROUP, group)
        version = connection.version(ApiKey.OFFSET_COMMIT, 2, 8)
        fields: dict[str, Any] = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": commit_fields(offsets, version >= 6),
        }
        answer = connection.ask(ApiKey.OFFSET_COMMIT, version, fields)
        for topic in answer.topics:
            for partition in topic.partitions:
                what = f"the commit of the group {group!r} for {topic.name}-{partition.partition_index}"
                routing.check_coordinator_answer(partition.error_code, what, GROUP, group)

    if offsets:
        routing.retrying(ask)


def commit_fields(offsets: Mapping[TopicPartition, OffsetAndMetadata | int], with_epoch: bool) -> list[dict[str, Any]]:
    """The topics of an OffsetCommit or TxnOffsetCommit."""
    partitions: dict[TopicPartition, dict[str, Any]] = {}
    for key, value in offsets.items():
        commit = OffsetAndMetadata(value) if isinstance(value, int) else value
        partitions[key] = {
            "partition_index": key[1],
            "committed_offset": commit.offset,
            "committed_metadata": commit.metadata,
        }
        if with_epoch:
            partitions[key]["committed_leader_epoch"] = commit.leader_epoch
    return _nested(partitions)


def _nested(partitions: Mapping[TopicPartition, dict[str, Any]]) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, _), fields in partitions.items():
        topics.setdefault(topic, []).append(fields)
    return [{"name": topic, "partitions": fields} for topic, fields in topics.items()]
