"""Metadata: which topics and partitions there are, and where. Makes topics that are asked for, if the settings allow.

Every client asks at its start and every few minutes, and a thousand topics take milliseconds to encode: so answers are kept
until the next change of any topic (``LogManager.generation``). Creating topics waits for the disk and is left to a handler.
"""

from typing import Any

from broker.errors import RequestError, StorageError
from broker.kafka.admin import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from broker.kafka.api import Api, KafkaRequest
from broker.kafka.broker import KafkaBroker
from broker.log import get_logger
from broker.network.service import Outbox
from broker.storage.log_manager import TopicInfo
from protocol.frames import with_correlation_id
from protocol.kafka import metadata
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

log = get_logger("kafka")

# Answers kept; clients of one kind ask the same thing, so few are enough.
_CACHE_MAX = 64
# A request of more topics than this is encoded by a handler.
_INLINE_TOPICS_MAX = 20


def _key(broker: KafkaBroker, request: KafkaRequest) -> tuple[Any, ...]:
    return (request.api_version, broker.advertised(request.connection.peer), bytes(request.body))


def _prepare(broker: KafkaBroker, request: KafkaRequest) -> bool:
    key = _key(broker, request)
    cached = broker.metadata_cache.get(key)
    if cached is not None and cached[0] == broker.logs.generation:
        request.prepared = cached[1]
        return True
    parsed = metadata.parse_request(request.body, request.api_version)
    return (
        parsed.topics is not None
        and len(parsed.topics) <= _INLINE_TOPICS_MAX
        and all(broker.logs.topic(name) is not None for name in parsed.topics)
    )


def _handle(broker: KafkaBroker, request: KafkaRequest, outbox: Outbox) -> None:
    frame = request.prepared
    if frame is None:
        # Read before the topics: a change in between makes the answer count as old at once.
        generation = broker.logs.generation
        key = _key(broker, request)
        frame, complete = _answer(broker, request)
        if complete and generation == broker.logs.generation:
            cache = broker.metadata_cache
            if len(cache) >= _CACHE_MAX:
                cache.clear()
            cache[key] = (generation, frame)
    outbox.send(request, [with_correlation_id(frame, request.correlation_id)])


def _answer(broker: KafkaBroker, request: KafkaRequest) -> tuple[bytes, bool]:
    """The frame (its correlation id to be set), and whether the same question may get the same answer."""
    parsed = metadata.parse_request(request.body, request.api_version)
    topics = []
    complete = True
    if parsed.topics is None:
        topics = [_topic(broker, info) for info in broker.logs.topics()]
    else:
        for name in parsed.topics:
            topic = _named(broker, name, parsed.allow_auto_topic_creation)
            complete = complete and not topic.error
            topics.append(topic)
    if parsed.include_topic_authorized_operations:
        topics = [topic._replace(authorized_operations=TOPIC_OPERATIONS) for topic in topics]
    asked = parsed.include_cluster_authorized_operations
    host, port = broker.advertised(request.connection.peer)
    frame = metadata.response(
        request.correlation_id,
        request.api_version,
        brokers=[metadata.BrokerInfo(broker.node_id, host, port)],
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        topics=topics,
        cluster_authorized_operations=CLUSTER_OPERATIONS if asked else metadata.OPERATIONS_NOT_ASKED,
    )
    return frame, complete


def _named(broker: KafkaBroker, name: str, create: bool) -> metadata.TopicMetadata:
    info = broker.logs.topic(name)
    if info is None and create and broker.config.auto_create_topics_enable:
        try:
            info = broker.logs.create_topic(name)
            log.info("topic_auto_created", topic=name, partitions=info.partitions)
        except RequestError as error:
            info = broker.logs.topic(name)  # somebody else was faster
            if info is None:
                return _missing(name, error.code)
        except StorageError as error:
            log.error("topic_creation_failed", topic=name, error=str(error))
            return _missing(name, ErrorCode.kafka_storage_error)
    if info is None:
        return _missing(name, ErrorCode.unknown_topic_or_partition)
    return _topic(broker, info)


def _missing(name: str, error: int) -> metadata.TopicMetadata:
    return metadata.TopicMetadata(error, name, False, ())


def _topic(broker: KafkaBroker, info: TopicInfo) -> metadata.TopicMetadata:
    # A partition that is offline is shown with its leader all the same: produce and fetch then tell the client what is wrong
    # with it, where "no leader" would make it ask for metadata until it gives up.
    node = broker.node_id
    partitions = [
        metadata.PartitionMetadata(0, number, node, 0, (node,), (node,), ()) for number in range(info.partitions)
    ]
    return metadata.TopicMetadata(0, info.name, False, partitions)


API = Api(
    key=ApiKey.METADATA,
    min_version=0,
    max_version=9,
    handle_raw=_handle,
    prepare=_prepare,
)
