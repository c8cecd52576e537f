"""DescribeLogDirs (35): the size of the partitions, and the free space of their volume. The one directory is never cordoned
(version 5)."""

from collections.abc import Iterator, Mapping
from typing import Any

from broker.errors import StorageError
from broker.kafka.api import Api, Call
from broker.kafka.authorization import may
from broker.kafka.context import KafkaContext
from broker.network.work import ADMIN
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    if not may(context, call.connection, Operation.DESCRIBE, ResourceType.CLUSTER):
        # Before version 3 there is no field for the error: as in Kafka the list is empty.
        return {"error_code": ErrorCode.cluster_authorization_failed, "results": []}
    topics = []
    work = call.work
    for name, partitions in work.each(_wanted(context, call.body)):
        sizes = [size for size in (_size(context, name, partition) for partition in work.each(partitions)) if size]
        if sizes:
            topics.append({"name": name, "partitions": sizes})
    directory: dict[str, Any] = {
        "log_dir": context.logs.data_dir,
        "error_code": ErrorCode.none,
        "topics": topics,
        "is_cordoned": False,
    }
    try:
        directory["total_bytes"] = context.logs.disk.total_bytes(context.logs.data_dir)
        directory["usable_bytes"] = context.logs.disk.free_bytes(context.logs.data_dir)
    except OSError:
        directory["error_code"] = ErrorCode.kafka_storage_error
    return {"error_code": ErrorCode.none, "results": [directory]}


def _wanted(context: KafkaContext, request: Any) -> Iterator[tuple[str, Any]]:
    """No list of topics means all of them. Repeated names are described once, as by Kafka."""
    if request.topics is None:
        for info in sorted(context.logs.topics(), key=lambda info: info.name):
            yield info.name, range(info.partitions)
    else:
        wanted: dict[str, dict[int, None]] = {}
        for topic in request.topics:
            wanted.setdefault(topic.topic, {}).update(dict.fromkeys(topic.partitions))
        yield from wanted.items()


def _size(context: KafkaContext, topic: str, partition: int) -> dict[str, Any] | None:
    """None for a partition that does not exist or is offline: Kafka leaves those out."""
    log = context.logs.get(topic, partition)
    if log is None or log.offline is not None:
        return None
    try:
        size = log.local_bytes()  # as Kafka: what is in the object store is not in this directory
    except StorageError:
        return None
    return {
        "partition_index": partition,
        "partition_size": size,
        "offset_lag": log.log_end_offset - log.high_watermark,
        "is_future_key": False,
    }


API = Api(key=ApiKey.DESCRIBE_LOG_DIRS, min_version=1, max_version=5, handle=handle, lane=ADMIN)
