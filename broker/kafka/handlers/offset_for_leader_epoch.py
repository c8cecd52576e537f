"""OffsetForLeaderEpoch (23): where a leader epoch ended, which shows a consumer that its log was truncated (KIP-320)."""

from collections.abc import Mapping
from typing import Any

from broker.errors import Refusal, StorageError
from broker.kafka.api import Api, Call
from broker.kafka.authorization import NO_NAMES, denied, may
from broker.kafka.checks import check_leader_epoch, error_fields, online_log
from broker.kafka.context import KafkaContext
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

UNDEFINED = -1


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    """CLUSTER_ACTION on the cluster stands for DESCRIBE on every topic, because Kafka's brokers ask each other this."""
    connection, unauthorized = call.connection, NO_NAMES
    if not may(context, connection, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, audited=False):
        names = (topic.topic for topic in call.body.topics)
        unauthorized = denied(context, connection, Operation.DESCRIBE, ResourceType.TOPIC, names)

    def answer(topic: Any) -> dict[str, Any]:
        name = topic.topic
        if name in unauthorized:
            partitions = call.array(
                topic.partitions, lambda partition: _error(partition, ErrorCode.topic_authorization_failed)
            )
        else:
            partitions = call.array(topic.partitions, lambda partition: _answer(context, name, partition))
        return {"topic": name, "partitions": partitions}

    return {"topics": call.array(call.body.topics, answer)}


def _answer(context: KafkaContext, topic: str, wanted: Any) -> dict[str, Any]:
    try:
        log = online_log(context, topic, wanted.partition)
        check_leader_epoch(log, wanted.current_leader_epoch)
        epoch, end_offset = log.end_offset_for_epoch(wanted.leader_epoch)
    except (Refusal, StorageError) as error:
        return _error(wanted, error_fields(error)[0])
    return {
        "partition": wanted.partition,
        "error_code": ErrorCode.none,
        "leader_epoch": epoch,
        "end_offset": end_offset,
    }


def _error(wanted: Any, code: int) -> dict[str, Any]:
    return {
        "partition": wanted.partition,
        "error_code": code,
        "leader_epoch": UNDEFINED,
        "end_offset": UNDEFINED,
    }


API = Api(key=ApiKey.OFFSET_FOR_LEADER_EPOCH, min_version=2, max_version=4, handle=handle)
