"""AlterReplicaLogDirs (34): there is one directory, and every replica is in it already."""

from collections.abc import Mapping
from typing import Any

from broker.errors import Refusal, StorageError
from broker.kafka.api import Api, Call
from broker.kafka.authorization import may
from broker.kafka.checks import online_log
from broker.kafka.context import KafkaContext
from broker.network.work import ADMIN
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    denied = not may(context, call.connection, Operation.ALTER, ResourceType.CLUSTER)
    results: dict[str, list[dict[str, Any]]] = {}
    for directory in call.body.dirs:
        is_ours = directory.path == context.logs.data_dir  # as DescribeLogDirs tells it
        for topic in directory.topics:
            partitions = results.setdefault(topic.name, [])
            for partition in call.work.each(topic.partitions):
                if denied:
                    error = ErrorCode.cluster_authorization_failed
                else:
                    error = _move(context, topic.name, partition) if is_ours else ErrorCode.log_dir_not_found
                partitions.append({"partition_index": partition, "error_code": error})
    return {"results": [{"topic_name": name, "partitions": partitions} for name, partitions in results.items()]}


def _move(context: KafkaContext, topic: str, partition: int) -> ErrorCode:
    try:
        online_log(context, topic, partition)
    except Refusal:
        return ErrorCode.replica_not_available  # as Kafka calls it here
    except StorageError:
        return ErrorCode.kafka_storage_error
    return ErrorCode.none


API = Api(key=ApiKey.ALTER_REPLICA_LOG_DIRS, min_version=1, max_version=2, handle=handle, lane=ADMIN)
