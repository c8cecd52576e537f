"""A Kafka cluster for one client: the client's entrance, with a method for each request.

``Cluster`` keeps no state of its own: ``routing.py`` knows brokers, leaders and coordinators and owns the connections,
and each module beside it speaks a part of the protocol. One thread uses a cluster; every call is bounded by
``default.api.timeout.ms``. A cluster cannot be pickled, because connections cannot be: send its ``ClientConfig``.
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NoReturn, Self

from broker.client.kafka import offsets as group_offsets
from broker.client.kafka import transaction
from broker.client.kafka.config import ClientConfig
from broker.client.kafka.errors import RetriableError, UnknownTopicError
from broker.client.kafka.routing import Routing
from broker.client.kafka.transaction import OpenTransaction
from broker.client.kafka.values import (
    READ_UNCOMMITTED,
    Identity,
    OffsetAndMetadata,
    TopicMetadata,
    TopicPartition,
)
from broker.runtime.clock import Clock, SystemClock
from protocol.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from broker.client.kafka.fetcher import Fetcher
    from broker.client.kafka.producer import Producer


class _TopicNotCreatedError(RetriableError):
    """The broker was asked to create a topic, and the topic does not exist yet."""


class Cluster:
    """``with Cluster(config) as cluster``; connects at the first request.

    If no broker answers, the first request gives up after half of ``socket.connection.setup.timeout.ms``, because the
    address is most likely wrong. With ``patient`` the address is known to be right, and the request waits for a broker
    that is being restarted. ``routing`` is for modules that send requests to the cluster's brokers themselves.
    """

    def __init__(self, config: ClientConfig, clock: Clock | None = None, *, patient: bool = False) -> None:
        self.clock = clock or SystemClock()
        self.routing = Routing(config, self.clock, patient=patient)

    @property
    def config(self) -> ClientConfig:
        return self.routing.config

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. The cluster can still be used: a later request opens them again."""
        self.routing.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("A Cluster has connections and cannot be pickled: send its config.")

    # Topics ---------------------------------------------------------------------------------------------------------

    def topics(self, names: Collection[str] | None = None) -> dict[str, TopicMetadata]:
        """The topics with these names, or all topics except internal ones (None). A topic that does not exist is
        absent."""
        return self.routing.retrying(lambda: self.routing.refresh(names))

    def make_topics(self, names: Collection[str]) -> dict[str, TopicMetadata]:
        """As ``topics``, but the broker creates the missing ones if its settings allow it (as Kafka's producers do)."""

        def refresh() -> dict[str, TopicMetadata]:
            topics = self.routing.refresh(names, create=True)
            missing = set(names) - topics.keys()
            if missing:
                raise _TopicNotCreatedError(
                    f"The topic {min(missing)!r} does not exist and the broker does not make it."
                )
            return topics

        # While Kafka creates a topic, it answers that the topic does not exist. Java's producer waits for a minute.
        retry = self.routing.retry()
        retry.shorten(10 * self.config.retry_backoff_max_ms)
        try:
            return self.routing.retrying(refresh, retry)
        except _TopicNotCreatedError as error:
            raise UnknownTopicError(str(error), ErrorCode.unknown_topic_or_partition) from None

    # Offsets --------------------------------------------------------------------------------------------------------

    def offsets(
        self, times: Mapping[TopicPartition, int], isolation: str = READ_UNCOMMITTED
    ) -> dict[TopicPartition, int | None]:
        """The offset of each partition at EARLIEST, LATEST, MAX_TIMESTAMP, or of the first record at or after a time
        (ms). None if no record is that late. Under read_committed, LATEST is the last stable offset.
        """
        return group_offsets.list_offsets(self.routing, times, isolation)

    def committed(
        self, group: str, partitions: Collection[TopicPartition] | None = None, stable: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The group's committed offsets of these partitions, or of all (None). A partition without a commit is absent.

        ``stable``: wait for transactions that are committing offsets of these partitions (brokers from Kafka 2.5 on).
        """
        return group_offsets.fetch_committed(self.routing, group, partitions, stable)

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> None:
        """Commit for the group without being a member of it. Raises BrokerAnswerError while the group has members."""
        group_offsets.commit(self.routing, group, offsets)

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
        """Reads one partition from ``start`` to ``end`` (exclusive; None: no end). Defaults are those of the
        configuration."""
        # Imported here, as in ``producer``: with checksums and codecs these are half of what an administrator's program
        # loads.
        from broker.client.kafka.fetcher import Fetcher

        config = self.config
        return Fetcher(
            self.routing,
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
        """Writes record batches, in transactions if there is a transactional id. Defaults are those of the
        configuration."""
        from broker.client.kafka.producer import Producer

        return Producer(
            self.routing,
            acks=acks,
            idempotent=idempotent,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
        )

    # Transactions ---------------------------------------------------------------------------------------------------

    def end_together(self, leader: "Producer", members: Collection[Identity], *, committed: bool = True) -> None:
        """End the transactions of ``leader`` and ``members`` by a single durable decision. See
        ``transaction.end_together``."""
        transaction.end_together(self.routing, [leader.hand_over(), *members], committed)

    def list_transactions(self, prefix: str = "", ongoing: bool = True) -> list[OpenTransaction]:
        """The transactional ids that begin with ``prefix``, of all brokers; with ``ongoing`` only those of open transactions."""
        return transaction.list_transactions(self.routing, prefix, ongoing)

    def abort_transaction(self, transactional_id: str) -> None:
        """Fence the producer that uses this id and abort its open transaction."""
        transaction.abort_transaction(self.routing, transactional_id)
