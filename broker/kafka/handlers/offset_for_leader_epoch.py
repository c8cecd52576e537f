"""OffsetForLeaderEpoch (23): where a leader epoch ended, which shows a consumer that its log was truncated (KIP-320)."""

from collections.abc import Mapping
from typing import Any

from broker.errors import Refusal, StorageError
from broker.kafka.api import Api, Call
from broker.kafka.checks import check_leader_epoch, error_fields, online_log
from broker.kafka.context import KafkaContext
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

UNDEFINED = -1


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    return {"topics": call.array(call.body.topics, lambda topic: _topic(context, call, topic))}


def _topic(context: KafkaContext, call: Call, topic: Any) -> dict[str, Any]:
    name = topic.topic
    return {"topic": name, "partitions": call.array(topic.partitions, lambda wanted: _answer(context, name, wanted))}


def _answer(context: KafkaContext, topic: str, wanted: Any) -> dict[str, Any]:
    try:
        log = online_log(context, topic, wanted.partition)
        check_leader_epoch(log, wanted.current_leader_epoch)
        epoch, end_offset = log.end_offset_for_epoch(wanted.leader_epoch)
        code = int(ErrorCode.none)
    except (Refusal, StorageError) as error:
        code, epoch, end_offset = error_fields(error)[0], UNDEFINED, UNDEFINED
    return {"partition": wanted.partition, "error_code": code, "leader_epoch": epoch, "end_offset": end_offset}


API = Api(key=ApiKey.OFFSET_FOR_LEADER_EPOCH, min_version=2, max_version=4, handle=handle)
