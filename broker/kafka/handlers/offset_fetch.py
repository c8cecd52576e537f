"""OffsetFetch (9): how far groups have read. One group before version 8, any number since."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from broker.kafka.api import Api, Call
from broker.kafka.groups.offset_coordinator import FetchedTopic
from broker.kafka.groups.offsets import CommittedOffset
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from broker.kafka.broker import KafkaBroker

# What Kafka answers for a partition of which nothing is committed; it is no error.
NOTHING = CommittedOffset(offset=-1, leader_epoch=-1, metadata="", commit_ms=-1)


def handle(broker: "KafkaBroker", call: Call) -> Mapping[str, Any]:
    """``require_stable`` (from version 7 on) changes nothing while no transaction commits offsets."""
    body = call.body
    if call.api_version >= 8:
        return {"groups": [{"group_id": one.group_id, **_group(broker, one)} for one in body.groups]}
    fields = _group(broker, body)
    if call.api_version < 2 and fields["error_code"]:  # these have no error but the partitions'
        fields["topics"] = [
            _topic((topic.name, [(index, None) for index in topic.partition_indexes]), fields["error_code"])
            for topic in body.topics
        ]
    return fields


def _group(broker: "KafkaBroker", wanted: Any) -> dict[str, Any]:
    topics = None if wanted.topics is None else [(topic.name, topic.partition_indexes) for topic in wanted.topics]
    error, found = broker.groups.offsets.fetch(wanted.group_id, topics)
    return {"error_code": error, "topics": [_topic(topic, ErrorCode.none) for topic in found]}


def _topic(topic: FetchedTopic, error: ErrorCode) -> dict[str, Any]:
    name, partitions = topic
    return {
        "name": name,
        "partitions": [_partition(index, committed or NOTHING, error) for index, committed in partitions],
    }


def _partition(index: int, committed: CommittedOffset, error: ErrorCode) -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": error,
    }


API = Api(key=ApiKey.OFFSET_FETCH, min_version=1, max_version=8, handle=handle)
