"""DeleteRecords (21): everything before an offset is gone at once; the files follow when a whole segment is below it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from broker.errors import RequestError, StorageError
from broker.kafka.admin import error_fields, online_log
from broker.kafka.api import Api, Call
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from broker.kafka.broker import KafkaBroker


def handle(broker: "KafkaBroker", call: Call) -> Mapping[str, Any]:
    topics = [
        {"name": topic.name, "partitions": [_delete(broker, topic.name, wanted) for wanted in topic.partitions]}
        for topic in call.body.topics
    ]
    return {"topics": topics}


def _delete(broker: "KafkaBroker", topic: str, wanted: Any) -> dict[str, Any]:
    partition = wanted.partition_index
    try:
        log = online_log(broker, topic, partition)
        if log.config.compact and not log.config.delete:
            # Kafka's rule: in a log that is only compacted, a key's last value is there to stay.
            raise RequestError(ErrorCode.policy_violation, f"cleanup.policy of {topic!r} does not include delete.")
        # -1 is the high watermark, here as in the request.
        low = log.delete_records(wanted.offset)
        return {"partition_index": partition, "low_watermark": low, "error_code": ErrorCode.none}
    except (RequestError, StorageError) as error:
        return {"partition_index": partition, "low_watermark": -1, "error_code": error_fields(error)[0]}


API = Api(key=ApiKey.DELETE_RECORDS, min_version=0, max_version=2, handle=handle)
