"""OffsetForLeaderEpoch (23): where a leader epoch ended, so that a consumer notices when its log was cut under it (KIP-320)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from broker.errors import RequestError, StorageError
from broker.kafka.api import Api, Call
from broker.kafka.checks import check_leader_epoch, error_fields, online_log
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from broker.kafka.context import KafkaBroker

UNDEFINED = -1


def handle(broker: "KafkaBroker", call: Call) -> Mapping[str, Any]:
    return {"topics": call.array(call.body.topics, lambda topic: _topic(broker, call, topic))}


def _topic(broker: "KafkaBroker", call: Call, topic: Any) -> dict[str, Any]:
    name = topic.topic
    return {"topic": name, "partitions": call.array(topic.partitions, lambda wanted: _answer(broker, name, wanted))}


def _answer(broker: "KafkaBroker", topic: str, wanted: Any) -> dict[str, Any]:
    try:
        log = online_log(broker, topic, wanted.partition)
        check_leader_epoch(log, wanted.current_leader_epoch)
        epoch, end_offset = log.end_offset_for_epoch(wanted.leader_epoch)
        code = int(ErrorCode.none)
    except (RequestError, StorageError) as error:
        code, epoch, end_offset = error_fields(error)[0], UNDEFINED, UNDEFINED
    return {"partition": wanted.partition, "error_code": code, "leader_epoch": epoch, "end_offset": end_offset}


API = Api(key=ApiKey.OFFSET_FOR_LEADER_EPOCH, min_version=2, max_version=4, handle=handle)
