"""A Kafka cluster as one client sees it: which brokers, topics and leaders there are, and what can be asked of them.

Owns the connections for control requests, one to each broker that is needed, made at first use. Fetchers and producers have
connections of their own. One thread; every call is bounded by ``default.api.timeout.ms``. Connections cannot be pickled, so a
``Cluster`` refuses to be: send its ``ClientConfig``.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar
from uuid import UUID

import attrs

from broker.client.kafka.config import Address, ClientConfig
from broker.client.kafka.connection import Connection
from broker.client.kafka.errors import (
    COORDINATOR_MOVED,
    RETRIABLE,
    BrokerAnswerError,
    KafkaClientError,
    LinkError,
    TimedOutError,
    UnknownTopicError,
    UnreachableError,
    code_name,
)
from broker.client.kafka.retry import Limit, Retry
from broker.client.kafka.values import (
    READ_UNCOMMITTED,
    Identity,
    OffsetAndMetadata,
    TopicMetadata,
    TopicPartition,
)
from broker.errors import ConfigError
from broker.runtime.clock import Clock, SystemClock
from broker.runtime.dial import TlsContext, tls_context
from protocol.frames import DEFAULT_MAX_FRAME
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from broker.client.kafka.fetcher import Fetcher
    from broker.client.kafka.producer import Producer
    from broker.client.kafka.transaction import OpenTransaction

T = TypeVar("T")

GROUP, TRANSACTION = 0, 1  # what a coordinator is for

# Kafka's own most in one answer of DescribeTopicPartitions.
_PARTITIONS_A_PAGE = 2000

# A topic that was there and is not any more is looked for this often before it counts as deleted: brokers hear of new topics
# and leaders one after the other.
_LOOKS_FOR_A_TOPIC = 5


class RetriableError(KafkaClientError):
    """What the broker answered may be over at the next try."""


class NotMadeError(RetriableError):
    """A topic is not there yet."""


class Cluster:
    """``with Cluster(config) as cluster``; connects at the first question.

    Where nobody answers, the first question gives up after half of ``socket.connection.setup.timeout.ms``: it is a wrong address,
    most likely. ``patient``: the address is known to be right, and a broker that is being restarted is waited for.
    """

    def __init__(self, config: ClientConfig, clock: Clock | None = None, *, patient: bool = False) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        self.limit = Limit(self.clock)
        self._context: TlsContext | None = None
        self._connections: dict[Address, Connection] = {}
        self._brokers: dict[int, Address] = {}
        self._topics: dict[str, TopicMetadata] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}
        self._reached = patient  # a broker has answered at least once

    # Life -----------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. It can still be used: they are made again."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("A Cluster has connections and cannot be pickled: send its config.")

    # Topics ---------------------------------------------------------------------------------------------------------

    def topics(self, names: Collection[str] | None = None) -> dict[str, TopicMetadata]:
        """The topics of these names (None: all that there are, without the internal ones). One that is not there is absent."""
        return self.retrying(lambda: self.refresh(names))

    def make_topics(self, names: Collection[str]) -> dict[str, TopicMetadata]:
        """As ``topics``, but has the broker make those that are missing, if its settings allow (as Kafka's producers do)."""

        def look() -> dict[str, TopicMetadata]:
            found = self.refresh(names, create=True)
            missing = set(names) - found.keys()
            if missing:
                raise NotMadeError(f"The topic {min(missing)!r} does not exist and the broker does not make it.")
            return found

        # Kafka answers that the topic is not there for as long as it is making it. Java's producer waits for a minute.
        retry = self.retry()
        retry.shorten(10 * self.config.retry_backoff_max_ms)
        try:
            return self.retrying(look, retry)
        except NotMadeError as error:
            raise UnknownTopicError(str(error), ErrorCode.unknown_topic_or_partition) from None

    def refresh(self, names: Collection[str] | None, create: bool = False) -> dict[str, TopicMetadata]:
        """Ask once for metadata. Raises what a new try may cure as LinkError or RetriableError."""
        connection = self.any_connection()
        version = connection.version(ApiKey.METADATA, 4 if create else 1, 12)
        wanted = None if names is None else [{"name": name} for name in sorted(names)]
        fields: dict[str, Any] = {"topics": wanted}
        if version >= 4:
            fields["allow_auto_topic_creation"] = create
        answer = connection.ask(ApiKey.METADATA, version, fields)
        self._brokers = {one.node_id: (one.host, one.port) for one in answer.brokers}
        found: dict[str, TopicMetadata] = {}
        again: RetriableError | None = None
        for topic in answer.topics:
            name, code = topic.name, topic.error_code
            if code in (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id):
                self._forget(name)
            elif code in RETRIABLE:
                again = RetriableError(f"The topic {name!r} is not ready: {code_name(code)}.", code)
            elif code:
                raise BrokerAnswerError(f"The broker does not tell about the topic {name!r}: {code_name(code)}.", code)
            elif names is not None or not topic.is_internal:
                found[name] = self._learn(topic)
        if again is not None:
            raise again
        for name, topic_id in self._ids(connection, [one.name for one in found.values() if not one.topic_id]).items():
            found[name] = self._topics[name] = attrs.evolve(found[name], topic_id=topic_id)
        return found

    def _ids(self, connection: Connection, names: list[str]) -> dict[str, UUID]:
        """Of topics that Metadata gave no id, from brokers that tell it elsewhere. What they do not tell is absent."""
        found: dict[str, UUID] = {}
        at: tuple[str, int] | None = None
        while names and ApiKey.DESCRIBE_TOPIC_PARTITIONS in connection.ranges:
            fields = {
                "topics": [{"name": name} for name in sorted(names)],
                "response_partition_limit": _PARTITIONS_A_PAGE,
                "cursor": at and {"topic_name": at[0], "partition_index": at[1]},
            }
            answer = connection.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, fields)
            found |= {topic.name: topic.topic_id for topic in answer.topics if topic.topic_id and topic.topic_id.int}
            following = answer.next_cursor and (answer.next_cursor.topic_name, answer.next_cursor.partition_index)
            if following is None or (at is not None and following <= at):
                break
            at = following
        return {name: topic_id for name, topic_id in found.items() if name in names}

    def _learn(self, topic: Any) -> TopicMetadata:
        partitions = tuple(sorted(one.partition_index for one in topic.partitions))
        known = TopicMetadata(topic.name, getattr(topic, "topic_id", None), partitions)
        self._forget(topic.name)
        self._topics[topic.name] = known
        for one in topic.partitions:
            if one.leader_id >= 0:
                self._leaders[topic.name, one.partition_index] = one.leader_id
        return known

    def _forget(self, name: str) -> None:
        known = self._topics.pop(name, None)
        if known is not None:
            for partition in known.partitions:
                self._leaders.pop((name, partition), None)

    def known(self, name: str) -> TopicMetadata | None:
        """As of the last metadata."""
        return self._topics.get(name)

    # Leaders --------------------------------------------------------------------------------------------------------

    def leader(self, topic: str, partition: int) -> Address:
        """Where the partition's leader is, as last heard. Raises RetriableError if there is none just now."""
        node = self._leaders.get((topic, partition))
        if node is None:
            self._look_for(topic, partition)
            node = self._leaders.get((topic, partition))
        address = None if node is None else self._brokers.get(node)
        if address is None:
            self._leaders.pop((topic, partition), None)
            raise RetriableError(f"{topic}-{partition} has no leader at the moment.", ErrorCode.leader_not_available)
        return address

    def learn_leaders(self, partitions: Iterable[TopicPartition]) -> None:
        """Ask for all that are not known, at once."""
        unknown = {topic for topic, partition in partitions if (topic, partition) not in self._leaders}
        if unknown:
            self.refresh(unknown)

    def _look_for(self, topic: str, partition: int) -> None:
        found = self.refresh([topic]).get(topic)
        if found is None:
            raise RetriableError(f"There is no topic {topic!r}.", ErrorCode.unknown_topic_or_partition)
        if partition not in found.partitions:
            raise RetriableError(
                f"The topic {topic!r} has {len(found.partitions)} partitions, and no partition {partition}.",
                ErrorCode.unknown_topic_or_partition,
            )

    def leader_moved(self, topic: str, partition: int) -> None:
        """What we know of the leader is wrong, or it does not answer."""
        self._leaders.pop((topic, partition), None)

    # Offsets --------------------------------------------------------------------------------------------------------

    def offsets(
        self, wanted: Mapping[TopicPartition, int], isolation: str = READ_UNCOMMITTED
    ) -> dict[TopicPartition, int | None]:
        """The offset of each partition at EARLIEST, LATEST, MAX_TIMESTAMP, or of the first record at or after a time (ms).

        None where no record is that late. Under read_committed, LATEST is the last stable offset.
        """
        from broker.client.kafka.offsets import list_offsets

        return list_offsets(self, wanted, isolation)

    def committed(
        self, group: str, partitions: Collection[TopicPartition] | None = None, stable: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed, of these partitions or (None) of all. A partition without a commit is absent.

        ``stable``: waits for transactions that are committing offsets of them (on brokers that know: Kafka 2.5 and later).
        """
        from broker.client.kafka.offsets import fetch_committed

        return fetch_committed(self, group, partitions, stable)

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> None:
        """Commit for the group, as a consumer that is no member of it. Raises BrokerAnswerError while it has members."""
        from broker.client.kafka.offsets import commit

        commit(self, group, offsets)

    # Reading and writing --------------------------------------------------------------------------------------------

    def fetcher(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int | None = None,
        *,
        isolation: str | None = None,
        max_bytes: int | None = None,
        max_wait_ms: int | None = None,
        min_bytes: int | None = None,
    ) -> "Fetcher":
        """Reads one partition from ``start`` to ``end`` (exclusive; None: on and on). Defaults are the configuration's."""
        from broker.client.kafka.fetcher import Fetcher

        config = self.config
        return Fetcher(
            self,
            topic,
            partition,
            start,
            end,
            isolation=isolation or config.isolation_level,
            max_bytes=max_bytes or config.max_partition_fetch_bytes,
            max_wait_ms=config.fetch_max_wait_ms if max_wait_ms is None else max_wait_ms,
            min_bytes=config.fetch_min_bytes if min_bytes is None else min_bytes,
        )

    def producer(
        self,
        *,
        acks: str | None = None,
        idempotent: bool | None = None,
        transactional_id: str | None = None,
        transaction_timeout_ms: int | None = None,
    ) -> "Producer":
        """Writes record batches. Defaults are the configuration's; with a transactional id, in transactions."""
        from broker.client.kafka.producer import Producer

        return Producer(
            self,
            acks=acks,
            idempotent=idempotent,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
        )

    def end_together(self, leader: "Producer", members: Collection[Identity], *, committed: bool = True) -> None:
        """End the transactions of ``leader`` and ``members`` by one durable decision. See ``transaction.end_together``."""
        from broker.client.kafka.transaction import end_together

        end_together(self, [leader.hand_over(), *members], committed)

    def list_transactions(self, prefix: str = "", ongoing: bool = True) -> "list[OpenTransaction]":
        """The transactional ids that begin with ``prefix``, of all brokers; only those with an open transaction."""
        from broker.client.kafka.transaction import list_transactions

        return list_transactions(self, prefix, ongoing)

    def abort_transaction(self, transactional_id: str) -> None:
        """Fence whoever writes under this id and abort what they have open."""
        from broker.client.kafka.transaction import abort_transaction

        abort_transaction(self, transactional_id)

    # Connections ----------------------------------------------------------------------------------------------------

    def retry(self, total_ms: float | None = None) -> Retry:
        return Retry(self.config, self.clock, self.config.api_timeout_ms if total_ms is None else total_ms, self.limit)

    def retrying(self, attempt: Callable[[], T], retry: Retry | None = None) -> T:
        """``attempt`` until it succeeds, or time is up, or it fails in a way that another try does not cure. An attempt that
        waits when the time is up fails then."""
        retry = retry or self.retry()
        while True:
            try:
                with self.limit.until(retry.deadline):
                    return attempt()
            except (RetriableError, LinkError, TimedOutError) as error:
                self.after_failure(error, retry)

    def after_failure(self, failure: KafkaClientError, retry: Retry) -> None:
        """Pause before another try, or raise ``failure`` if there shall be none."""
        if isinstance(failure, UnreachableError) and not self._reached:
            retry.shorten(self.config.connect_timeout_ms / 2)  # a wrong address is found soon
        if failure.code == ErrorCode.unknown_topic_or_partition:
            retry.missing += 1
            if retry.missing >= _LOOKS_FOR_A_TOPIC:
                raise UnknownTopicError(str(failure), failure.code) from None
        retry.again(failure)

    def dial(self, address: Address, max_frame: int = DEFAULT_MAX_FRAME) -> Connection:
        """A new connection that is the caller's own."""
        if self.config.tls is not None and self._context is None:
            try:
                self._context = tls_context(self.config.tls)
            except (OSError, ValueError) as error:
                raise ConfigError(f"The certificates of the client cannot be used: {error}.") from None
        connection = Connection(address, self.config, self._context, self.clock, max_frame, self.limit)
        connection.open()
        self._reached = True
        return connection

    def connection(self, address: Address) -> Connection:
        """The one for control requests."""
        connection = self._connections.get(address)
        if connection is None or not connection.is_open:
            connection = self._connections[address] = self.dial(address)
        return connection

    def any_connection(self) -> Connection:
        """To whichever broker answers. Raises UnreachableError, which names all that do not."""
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
        """To each broker of the cluster."""
        if not self._brokers:
            self.refresh([])
        return [self.connection(address) for address in self._brokers.values()]

    def coordinator(self, kind: int, key: str) -> Connection:
        """To the broker that coordinates a group or a transactional id."""
        address = self._coordinators.get((kind, key))
        if address is None:
            connection = self.any_connection()
            version = connection.version(ApiKey.FIND_COORDINATOR, 1 if kind else 0, 3)
            fields: dict[str, Any] = {"key": key}
            if version >= 1:
                fields["key_type"] = kind
            answer = connection.ask(ApiKey.FIND_COORDINATOR, version, fields)
            self.check(answer.error_code, f"the coordinator of {key!r}", kind, key)
            address = self._coordinators[kind, key] = (answer.host, answer.port)
        try:
            return self.connection(address)
        except LinkError:
            self._coordinators.pop((kind, key), None)
            raise

    def forget_coordinator(self, kind: int, key: str) -> None:
        """It is another one now."""
        self._coordinators.pop((kind, key), None)

    def check(self, code: int, what: str, kind: int, key: str) -> None:
        """Raise if a coordinator answered with an error."""
        if code in COORDINATOR_MOVED:
            self.forget_coordinator(kind, key)
        if code in RETRIABLE:
            raise RetriableError(f"No answer for {what}: {code_name(code)}.", code)
        if code:
            raise BrokerAnswerError(f"The broker refuses {what}: {code_name(code)}.", code)
