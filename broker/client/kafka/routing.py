"""Where in a Kafka cluster a request goes: brokers, topics, leaders and coordinators as last heard, and when to ask
again.

A ``Routing`` owns the connections for control requests, at most one to each broker, opened at first use. Fetchers and
producers open connections of their own with ``dial``. One thread uses a routing; every call is bounded by
``default.api.timeout.ms``.

Tests: tests/client/kafka/test_routing.py, tests/client/kafka/test_faults.py, tests/client/kafka/test_silent_broker.py.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar
from uuid import UUID

import attrs

from broker.client.kafka.config import Address, ClientConfig
from broker.client.kafka.connection import Connection, Limit, Retry
from broker.client.kafka.errors import (
    COORDINATOR_MOVED,
    RETRIABLE,
    BrokerAnswerError,
    ConnectionLostError,
    KafkaClientError,
    LinkError,
    RetriableError,
    TimedOutError,
    UnknownTopicError,
    UnreachableError,
    code_name,
)
from broker.client.kafka.values import TopicMetadata, TopicPartition
from broker.errors import ConfigError
from broker.runtime.client_tls import TlsContext, TlsSettings, tls_context
from broker.runtime.clock import Clock
from protocol.frames import DEFAULT_MAX_FRAME
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

T = TypeVar("T")

GROUP, TRANSACTION = 0, 1  # key types of FindCoordinator

# The most partitions that Kafka puts into one answer of DescribeTopicPartitions.
_PARTITIONS_PER_PAGE = 2000

# A topic counts as deleted after this many answers in a row that it does not exist: brokers learn of new topics and
# leaders one after the other.
_UNKNOWN_TOPIC_ANSWERS = 5


def client_context(settings: TlsSettings) -> TlsContext:
    """Raises ConfigError for unusable files."""
    try:
        return tls_context(settings)
    except (OSError, ValueError) as error:
        raise ConfigError(f"The certificates of the client cannot be used: {error}.") from None


class Routing:
    """``patient``: the configured address is known to be right, so wait for a broker that has never answered."""

    def __init__(self, config: ClientConfig, clock: Clock, *, patient: bool = False) -> None:
        self.config = config
        self.clock = clock
        self.limit = Limit(clock)
        self._tls_context: TlsContext | None = None
        self._connections: dict[Address, Connection] = {}
        self._brokers: dict[int, Address] = {}
        self._topics: dict[str, TopicMetadata] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}
        self._has_reached_broker = self._has_been_answered = patient

    def close(self) -> None:
        """Close the connections. A later request opens them again."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()

    # Topics ---------------------------------------------------------------------------------------------------------

    def refresh(self, names: Collection[str] | None, create: bool = False) -> dict[str, TopicMetadata]:
        """Ask for metadata once; None asks for all topics. Raises LinkError or RetriableError if another try may
        help."""
        connection = self.any_connection()
        version = connection.version(ApiKey.METADATA, 4 if create else 1, 12)
        requested = None if names is None else [{"name": name} for name in sorted(names)]
        fields: dict[str, Any] = {"topics": requested}
        if version >= 4:
            fields["allow_auto_topic_creation"] = create
        answer = connection.ask(ApiKey.METADATA, version, fields)
        self._has_been_answered = True
        self._brokers = {node.node_id: (node.host, node.port) for node in answer.brokers}
        topics: dict[str, TopicMetadata] = {}
        not_ready: RetriableError | None = None
        for topic in answer.topics:
            name, code = topic.name, topic.error_code
            if code in (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id):
                self._forget_topic(name)
            elif code in RETRIABLE:
                not_ready = RetriableError(f"The topic {name!r} is not ready: {code_name(code)}.", code)
            elif code:
                raise BrokerAnswerError(f"The broker does not describe the topic {name!r}: {code_name(code)}.", code)
            elif names is not None or not topic.is_internal:
                topics[name] = self._learn_topic(topic)
        if not_ready is not None:
            raise not_ready
        without_id = [topic.name for topic in topics.values() if not topic.topic_id]
        for name, topic_id in self._describe_ids(connection, without_id).items():
            topics[name] = self._topics[name] = attrs.evolve(topics[name], topic_id=topic_id)
        return topics

    def _describe_ids(self, connection: Connection, names: list[str]) -> dict[str, UUID]:
        """The ids of topics for which Metadata sent none, from DescribeTopicPartitions. A topic without an id is
        absent."""
        ids: dict[str, UUID] = {}
        cursor: tuple[str, int] | None = None
        while names and ApiKey.DESCRIBE_TOPIC_PARTITIONS in connection.ranges:
            fields = {
                "topics": [{"name": name} for name in sorted(names)],
                "response_partition_limit": _PARTITIONS_PER_PAGE,
                "cursor": cursor and {"topic_name": cursor[0], "partition_index": cursor[1]},
            }
            answer = connection.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, fields)
            ids |= {topic.name: topic.topic_id for topic in answer.topics if topic.topic_id and topic.topic_id.int}
            following = answer.next_cursor and (answer.next_cursor.topic_name, answer.next_cursor.partition_index)
            if following is None or (cursor is not None and following <= cursor):
                break
            cursor = following
        return {name: topic_id for name, topic_id in ids.items() if name in names}

    def _learn_topic(self, topic: Any) -> TopicMetadata:
        partitions = tuple(sorted(partition.partition_index for partition in topic.partitions))
        metadata = TopicMetadata(topic.name, getattr(topic, "topic_id", None), partitions)
        self._forget_topic(topic.name)
        self._topics[topic.name] = metadata
        for partition in topic.partitions:
            if partition.leader_id >= 0:
                self._leaders[topic.name, partition.partition_index] = partition.leader_id
        return metadata

    def _forget_topic(self, name: str) -> None:
        metadata = self._topics.pop(name, None)
        if metadata is not None:
            for partition in metadata.partitions:
                self._leaders.pop((name, partition), None)

    def known_topic(self, name: str) -> TopicMetadata | None:
        """The topic as the last metadata described it."""
        return self._topics.get(name)

    # Leaders --------------------------------------------------------------------------------------------------------

    def leader(self, topic: str, partition: int) -> Address:
        """The address of the partition's leader. Raises RetriableError if the partition has no leader now."""
        node = self._leaders.get((topic, partition))
        if node is None:
            self._refresh_partition(topic, partition)
            node = self._leaders.get((topic, partition))
        address = None if node is None else self._brokers.get(node)
        if address is None:
            self._leaders.pop((topic, partition), None)
            raise RetriableError(f"{topic}-{partition} has no leader at the moment.", ErrorCode.leader_not_available)
        return address

    def learn_leaders(self, partitions: Iterable[TopicPartition]) -> None:
        """Ask for all unknown leaders in one request."""
        unknown = {topic for topic, partition in partitions if (topic, partition) not in self._leaders}
        if unknown:
            self.refresh(unknown)

    def _refresh_partition(self, topic: str, partition: int) -> None:
        metadata = self.refresh([topic]).get(topic)
        if metadata is None:
            raise RetriableError(f"There is no topic {topic!r}.", ErrorCode.unknown_topic_or_partition)
        if partition not in metadata.partitions:
            raise RetriableError(
                f"The topic {topic!r} has {len(metadata.partitions)} partitions, and no partition {partition}.",
                ErrorCode.unknown_topic_or_partition,
            )

    def forget_leader(self, topic: str, partition: int) -> None:
        """The leader has moved or does not answer: ask for it again before the next request."""
        self._leaders.pop((topic, partition), None)

    # Coordinators ---------------------------------------------------------------------------------------------------

    def coordinator(self, kind: int, key: str) -> Connection:
        """The connection to the broker that coordinates a group or a transactional id."""
        address = self._coordinators.get((kind, key))
        if address is None:
            connection = self.any_connection()
            version = connection.version(ApiKey.FIND_COORDINATOR, 1 if kind else 0, 3)
            fields: dict[str, Any] = {"key": key}
            if version >= 1:
                fields["key_type"] = kind
            answer = connection.ask(ApiKey.FIND_COORDINATOR, version, fields)
            self.check_coordinator_answer(answer.error_code, f"the coordinator of {key!r}", kind, key)
            address = self._coordinators[kind, key] = (answer.host, answer.port)
        try:
            return self.connection(address)
        except LinkError:
            self._coordinators.pop((kind, key), None)
            raise

    def forget_coordinator(self, kind: int, key: str) -> None:
        """The coordinator has moved: ask for it again before the next request."""
        self._coordinators.pop((kind, key), None)

    def check_coordinator_answer(self, code: int, what: str, kind: int, key: str) -> None:
        """Raise RetriableError or BrokerAnswerError if a coordinator answered with an error."""
        if code in COORDINATOR_MOVED:
            self.forget_coordinator(kind, key)
        if code in RETRIABLE:
            raise RetriableError(f"No answer for {what}: {code_name(code)}.", code)
        if code:
            raise BrokerAnswerError(f"The broker refuses {what}: {code_name(code)}.", code)

    # Connections ----------------------------------------------------------------------------------------------------

    def dial(self, address: Address, max_frame: int = DEFAULT_MAX_FRAME) -> Connection:
        """Open a new connection, which the caller owns and closes."""
        if self.config.tls is not None and self._tls_context is None:
            self._tls_context = client_context(self.config.tls)
        connection = Connection(address, self.config, self._tls_context, self.clock, max_frame, self.limit)
        connection.open()
        self._has_reached_broker = True
        return connection

    def connection(self, address: Address) -> Connection:
        """The connection for control requests to one broker."""
        connection = self._connections.get(address)
        if connection is None or not connection.is_open:
            connection = self._connections[address] = self.dial(address)
        return connection

    def any_connection(self) -> Connection:
        """A connection to any broker that answers. Raises UnreachableError, which names all brokers that do not
        answer."""
        for connection in self._connections.values():
            if connection.is_open:
                return connection
        failures: list[UnreachableError] = []
        for address in dict.fromkeys([*self._brokers.values(), *self.config.bootstrap]):
            try:
                return self.connection(address)
            except UnreachableError as error:
                failures.append(error)
        if len(failures) == 1:
            raise failures[0]
        raise UnreachableError(" ".join(str(failure) for failure in failures))

    def every_broker(self) -> list[Connection]:
        """A connection to each broker of the cluster."""
        if not self._brokers:
            self.refresh([])
        return [self.connection(address) for address in self._brokers.values()]

    # Retries --------------------------------------------------------------------------------------------------------

    def retry(self, total_ms: float | None = None) -> Retry:
        return Retry(self.config, self.clock, self.config.api_timeout_ms if total_ms is None else total_ms, self.limit)

    def retrying(self, attempt: Callable[[], T], retry: Retry | None = None) -> T:
        """Call ``attempt`` until it succeeds, the time is up, or it fails in a way that another try does not cure.

        An attempt still waiting when the time is up fails.
        """
        retry = retry or self.retry()
        while True:
            try:
                with self.limit.until(retry.deadline):
                    return attempt()
            except (RetriableError, LinkError, TimedOutError) as error:
                self.after_failure(error, retry)

    def after_failure(self, failure: KafkaClientError, retry: Retry) -> None:
        """Pause before another try, or raise ``failure`` if no time is left."""
        is_wrong_address = isinstance(failure, UnreachableError) and not self._has_reached_broker
        is_refused = isinstance(failure, ConnectionLostError) and not self._has_been_answered
        if is_wrong_address or is_refused:  # most likely; a listener that expects a login closes the connection
            retry.shorten(self.config.connect_timeout_ms / 2)  # report it soon
        if failure.code == ErrorCode.unknown_topic_or_partition:
            retry.unknown_topic_answers += 1
            if retry.unknown_topic_answers >= _UNKNOWN_TOPIC_ANSWERS:
                raise UnknownTopicError(str(failure), failure.code) from None
        retry.again(failure)
