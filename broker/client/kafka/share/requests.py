"""The requests of share groups, and their answers as far as this client reads them.

Tests: tests/client/kafka/share/test_requests.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from broker.client.kafka.share.acquired import TopicIdPartition
from broker.client.kafka.share.holdings import Acknowledgements
from broker.client.kafka.share.membership import HeartbeatAnswer
from broker.client.kafka.share.session import FetchPlan
from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.schema import control

# Lowest and highest version. Version 0 was the early access of Kafka 4.0, which brokers since then do not serve.
HEARTBEAT_VERSIONS = (1, 1)
FETCH_VERSIONS = (1, 2)
ACKNOWLEDGE_VERSIONS = (1, 2)
FIRST_WITH_RENEWAL = 2  # also the first that can count records instead of whole batches

# The broker locks at most so many records of a partition (share.partition.max.record.locks), 10,000 by Kafka's rules. An answer
# that names far more, of one partition or of all, is not to be believed. Each costs a byte here.
_RANGE_MAX = 1 << 20
_ANSWER_MAX = 1 << 22

_RECORD_LIMIT = 1


@attrs.frozen
class FetchLimits:
    """``strict``: ``max_records`` counts records. Otherwise the broker may send the rest of a batch as well."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    strict: bool


@attrs.frozen(eq=False)
class PartitionAnswer:
    """``acquired``: first and last offset and delivery count. ``records`` is valid as long as the frame is."""

    partition: TopicIdPartition
    error: int
    acknowledge_error: int
    message: str
    records: memoryview
    acquired: tuple[tuple[int, int, int], ...]


@attrs.frozen(eq=False)
class ShareAnswer:
    """``lock_s`` 0: the broker does not say how long locks last."""

    error: int
    message: str
    throttle_s: float
    lock_s: float
    partitions: tuple[PartitionAnswer, ...]


def share_fetch(
    version: int,
    group: str,
    member_id: str,
    plan: FetchPlan,
    acknowledgements: Acknowledgements,
    limits: FetchLimits,
) -> Mapping[str, Any]:
    named = dict.fromkeys(plan.added, ()) | acknowledgements
    fields: dict[str, Any] = {
        "group_id": group,
        "member_id": member_id,
        "share_session_epoch": plan.epoch,
        "max_wait": limits.max_wait_ms,
        "min_bytes": limits.min_bytes,
        "max_bytes": limits.max_bytes,
        "max_records": limits.max_records,
        "batch_size": limits.max_records,
        "topics": _topics(named),
        "forgotten_topics_data": [
            {"topic_id": topic_id, "partitions": indexes} for topic_id, indexes in _by_topic(plan.forgotten).items()
        ],
    }
    if version >= FIRST_WITH_RENEWAL:
        fields["share_acquire_mode"] = _RECORD_LIMIT if limits.strict else 0
    return fields


def share_acknowledge(
    version: int, group: str, member_id: str, epoch: int, acknowledgements: Acknowledgements, *, renewal: bool = False
) -> Mapping[str, Any]:
    fields = {
        "group_id": group,
        "member_id": member_id,
        "share_session_epoch": epoch,
        "topics": _topics(acknowledgements),
    }
    if version >= FIRST_WITH_RENEWAL:
        fields["is_renew_ack"] = renewal
    return fields


def _by_topic(partitions: Sequence[TopicIdPartition]) -> dict[Any, list[int]]:
    topics: dict[Any, list[int]] = {}
    for topic_id, partition in partitions:
        topics.setdefault(topic_id, []).append(partition)
    return topics


def _topics(named: Mapping[TopicIdPartition, Sequence[tuple[int, int, bytes]]]) -> list[Mapping[str, Any]]:
    topics: dict[Any, list[Mapping[str, Any]]] = {}
    for (topic_id, partition), batches in named.items():
        topics.setdefault(topic_id, []).append(
            {
                "partition_index": partition,
                "acknowledgement_batches": [
                    {"first_offset": first, "last_offset": last, "acknowledge_types": list(types)}
                    for first, last, types in batches
                ],
            }
        )
    return [{"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in topics.items()]


# -- answers ----------------------------------------------------------------------------------------------------


def read_fetched(version: int, frame: memoryview) -> tuple[int, ShareAnswer]:
    """The correlation id and the answer. Raises ProtocolError."""
    correlation_id, answer = control.parse_response(ApiKey.SHARE_FETCH, version, frame)
    partitions = []
    for topic in answer.responses:
        for data in topic.partitions:
            records = data.records
            partitions.append(
                PartitionAnswer(
                    (topic.topic_id, data.partition_index),
                    data.error_code,
                    data.acknowledge_error_code,
                    data.error_message or data.acknowledge_error_message or "",
                    memoryview(records) if records is not None else memoryview(b""),
                    _acquired(data.acquired_records),
                )
            )
    total = sum(last - first + 1 for data in partitions for first, last, _ in data.acquired)
    if total > _ANSWER_MAX:
        raise ProtocolError(f"{total} acquired records in one answer")
    return correlation_id, _answer(answer, partitions)


def read_acknowledged(version: int, frame: memoryview) -> tuple[int, ShareAnswer]:
    """The correlation id and the answer. Raises ProtocolError."""
    correlation_id, answer = control.parse_response(ApiKey.SHARE_ACKNOWLEDGE, version, frame)
    partitions = [
        PartitionAnswer(
            (topic.topic_id, data.partition_index),
            0,
            data.error_code,
            data.error_message or "",
            memoryview(b""),
            (),
        )
        for topic in answer.responses
        for data in topic.partitions
    ]
    return correlation_id, _answer(answer, partitions)


def _answer(answer: Any, partitions: list[PartitionAnswer]) -> ShareAnswer:
    lock = getattr(answer, "acquisition_lock_timeout", None)
    return ShareAnswer(
        answer.error_code,
        answer.error_message or "",
        answer.throttle_time.total_seconds(),
        0.0 if lock is None else lock.total_seconds(),
        tuple(partitions),
    )


def _acquired(ranges: Sequence[Any]) -> tuple[tuple[int, int, int], ...]:
    total, before = 0, -1
    for acquired in ranges:
        if not before < acquired.first_offset <= acquired.last_offset:
            raise ProtocolError(f"acquired records {acquired.first_offset} to {acquired.last_offset} after {before}")
        before = acquired.last_offset
        total += acquired.last_offset - acquired.first_offset + 1
    if total > _RANGE_MAX:
        raise ProtocolError(f"{total} acquired records of one partition")
    return tuple((acquired.first_offset, acquired.last_offset, acquired.delivery_count) for acquired in ranges)


def heartbeat_answer(answer: Any) -> HeartbeatAnswer:
    assigned = None
    if answer.assignment is not None:
        assigned = frozenset(
            (topic.topic_id, partition)
            for topic in answer.assignment.topic_partitions
            for partition in topic.partitions
        )
    return HeartbeatAnswer(
        answer.error_code, answer.member_epoch, max(0.05, answer.heartbeat_interval.total_seconds()), assigned
    )
