"""DeleteRecords (21): records before an offset cannot be read any more. A file is removed when its segment lies before it."""

from collections.abc import Mapping
from typing import Any

from broker.errors import Refusal, RequestError, StorageError
from broker.kafka.api import Api, Call
from broker.kafka.authorization import denied
from broker.kafka.checks import error_fields, online_log
from broker.kafka.context import KafkaContext
from broker.network.work import ADMIN
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    """A repeated partition is answered once, as in Kafka: for the last offset."""
    wanted: dict[str, dict[int, Any]] = {}
    for topic in call.body.topics:
        wanted.setdefault(topic.name, {}).update(
            {partition.partition_index: partition for partition in topic.partitions}
        )
    forbidden = denied(context, call.connection, Operation.DELETE, ResourceType.TOPIC, wanted)
    topics: list[dict[str, Any]] = []
    for name, partitions in wanted.items():
        results = []
        for partition in partitions.values():
            call.work.checkpoint()  # each waits for the disk
            results.append(_refused(partition) if name in forbidden else _delete(context, name, partition))
        topics.append({"name": name, "partitions": results})
    return {"topics": topics}


def _refused(wanted: Any) -> dict[str, Any]:
    return {
        "partition_index": wanted.partition_index,
        "low_watermark": -1,
        "error_code": ErrorCode.topic_authorization_failed,
    }


def _delete(context: KafkaContext, topic: str, wanted: Any) -> dict[str, Any]:
    partition = wanted.partition_index
    try:
        log = online_log(context, topic, partition)
        if log.config.compact and not log.config.delete:
            # Kafka's rule: a log that is only compacted keeps the last value of every key.
            raise RequestError(ErrorCode.policy_violation, f"cleanup.policy of {topic!r} does not include delete.")
        # -1 is the high watermark, here as in the request.
        low = log.trimming.delete_records(wanted.offset)
        return {"partition_index": partition, "low_watermark": low, "error_code": ErrorCode.none}
    except (Refusal, StorageError) as error:
        return {"partition_index": partition, "low_watermark": -1, "error_code": error_fields(error)[0]}


API = Api(key=ApiKey.DELETE_RECORDS, min_version=0, max_version=2, handle=handle, lane=ADMIN)
