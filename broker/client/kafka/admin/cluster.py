"""Requests about the cluster itself: its brokers and controller, what each broker serves, transactional ids with their
transactions, and the backup of a broker (pin its files, keep them pinned, release them; see
``protocol/kafka/messages/backup.py``).

One thread uses a ``Routing`` or a ``BackupClient``.

Tests: tests/cli/test_cluster.py,
tests/cli/test_transactions.py,
tests/process/test_backup.py,
tests/client/kafka/test_backup.py.
"""

import datetime
from collections.abc import Mapping, Sequence

import attrs

from broker.client.kafka.admin.configs import BROKER, describe_configs
from broker.client.kafka.admin.requests import ask, has, refused
from broker.client.kafka.connection import SOFTWARE_NAME, Connection
from broker.client.kafka.errors import (
    COORDINATOR_MOVED,
    BrokerAnswerError,
    KafkaClientError,
    UnsupportedVersionError,
    code_name,
)
from broker.client.kafka.routing import TRANSACTION, Routing
from broker.client.kafka.values import TopicPartition
from broker.runtime.dial import pause
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import backup
from protocol.kafka.messages.backup import Action, BackupResponse
from protocol.kafka.schema.schema_reader import EPOCH, milliseconds

_LISTENERS = ("advertised.listeners", "listeners")


@attrs.frozen
class Broker:
    """``host`` and ``port`` are those of the listener that answered."""

    id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool


@attrs.frozen
class ClusterInfo:
    """``controller`` is None if there is none. Brokers without ZooKeeper name any broker, which forwards requests."""

    cluster_id: str | None
    controller: int | None
    brokers: tuple[Broker, ...]


@attrs.frozen
class Space:
    """The sizes of the volumes with a broker's data directories, in bytes."""

    total: int
    usable: int


@attrs.frozen
class Feature:
    """``finalized`` is None for a feature that the cluster does not use yet."""

    name: str
    least: int
    most: int
    finalized: int | None


def describe_cluster(routing: Routing) -> ClusterInfo:
    def attempt() -> ClusterInfo:
        connection = routing.any_connection()
        if has(connection, ApiKey.DESCRIBE_CLUSTER):
            answer = ask(
                connection, ApiKey.DESCRIBE_CLUSTER, (0, 2), {"endpoint_type": 1, "include_fenced_brokers": True}
            )
            if answer.error_code:
                refused(answer.error_code, answer.error_message, "The broker does not describe the cluster")
            described = [
                Broker(
                    broker.broker_id, broker.host, broker.port, broker.rack, bool(getattr(broker, "is_fenced", False))
                )
                for broker in answer.brokers
            ]
        else:
            answer = ask(connection, ApiKey.METADATA, (1, 12), {"topics": []})
            described = [
                Broker(broker.node_id, broker.host, broker.port, broker.rack, False) for broker in answer.brokers
            ]
        controller = answer.controller_id if answer.controller_id >= 0 else None
        brokers = tuple(sorted(described, key=lambda broker: broker.id))
        return ClusterInfo(getattr(answer, "cluster_id", None), controller, brokers)

    return routing.retrying(attempt)


def listeners(routing: Routing, broker: Broker) -> tuple[str, ...]:
    """The addresses of a broker for all clients; empty where the broker does not tell them, or not to this user."""
    try:
        answer = describe_configs(routing, [(BROKER, str(broker.id))], _LISTENERS)
    except KafkaClientError:
        return ()
    entries: Mapping[str, str | None] = {
        name: entry.value for config in answer.values() for name, entry in config.entries.items()
    }
    text = next((entries[name] for name in _LISTENERS if entries.get(name)), None)
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def space(routing: Routing, broker: Broker) -> Space | None:
    """None where the broker does not tell it: before Kafka 3.3, or not to this user."""
    try:
        answer = ask(routing.connection((broker.host, broker.port)), ApiKey.DESCRIBE_LOG_DIRS, (4, 4), {"topics": []})
    except KafkaClientError:
        return None
    known = [result for result in answer.results if result.total_bytes >= 0]
    return (
        Space(sum(volume.total_bytes for volume in known), sum(volume.usable_bytes for volume in known))
        if known
        else None
    )


def features(connection: Connection) -> list[Feature]:
    """The cluster's features; empty for brokers before Kafka 2.7."""
    fields = {"client_software_name": SOFTWARE_NAME, "client_software_version": "1"}
    answer = ask(connection, ApiKey.API_VERSIONS, (0, 4), fields)
    finalized = {feature.name: feature.max_version_level for feature in getattr(answer, "finalized_features", ())}
    return [
        Feature(feature.name, feature.min_version, feature.max_version, finalized.get(feature.name))
        for feature in sorted(getattr(answer, "supported_features", ()), key=lambda feature: str(feature.name))
    ]


def apis(connection: Connection) -> list[tuple[int, str | None, int, int]]:
    """Key, name, and lowest and highest version of each API that the broker serves. The name is None for an API that
    this client does not know."""
    return [
        (key, ApiKey(key).name if key in _KNOWN else None, least, most)
        for key, (least, most) in sorted(connection.ranges.items())
    ]


_KNOWN = frozenset(int(key) for key in ApiKey)


_SAID = {ErrorCode.transactional_id_not_found: "not found"}


@attrs.frozen
class ListedTransaction:
    transactional_id: str
    producer_id: int
    state: str


@attrs.frozen
class TransactionDescription:
    """``started_ms`` is -1 without an open transaction."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    started_ms: int
    timeout_ms: int
    partitions: tuple[TopicPartition, ...]


def list_ids(routing: Routing, states: Sequence[str]) -> list[ListedTransaction]:
    """The transactional ids of all brokers, by name; only those in one of ``states``, if any are given."""

    def attempt() -> list[ListedTransaction]:
        transactions = []
        for connection in routing.every_broker():
            answer = ask(
                connection, ApiKey.LIST_TRANSACTIONS, (0, 1), {"state_filters": list(states), "producer_id_filters": []}
            )
            if answer.error_code:
                refused(answer.error_code, None, f"The broker at {connection.where} does not list its transactions")
            transactions += [
                ListedTransaction(transaction.transactional_id, transaction.producer_id, transaction.transaction_state)
                for transaction in answer.transaction_states
            ]
        return sorted(transactions, key=lambda transaction: transaction.transactional_id)

    return routing.retrying(attempt)


def _since_1970(time: datetime.datetime) -> int:
    """Convert to ms since 1970."""
    return milliseconds(time - EPOCH)


def describe_id(routing: Routing, name: str) -> TransactionDescription:
    """Raises BrokerAnswerError for a transactional id that does not exist."""

    def attempt() -> TransactionDescription:
        connection = routing.coordinator(TRANSACTION, name)
        answer = ask(connection, ApiKey.DESCRIBE_TRANSACTIONS, (0, 0), {"transactional_ids": [name]})
        (description,) = answer.transaction_states
        if description.error_code in COORDINATOR_MOVED:
            routing.forget_coordinator(TRANSACTION, name)
        if description.error_code:
            refused(description.error_code, _SAID.get(description.error_code), f"The transactional id {name!r}")
        partitions = tuple((topic.topic, partition) for topic in description.topics for partition in topic.partitions)
        return TransactionDescription(
            name,
            description.transaction_state,
            description.producer_id,
            description.producer_epoch,
            _since_1970(description.transaction_start_time),
            milliseconds(description.transaction_timeout),
            tuple(sorted(partitions)),
        )

    return routing.retrying(attempt)


# Pinning a backup of many thousand partitions takes a few seconds.
_BEGIN_MS = 120_000
_TRIES = 10
_PAUSE_S = 0.5


@attrs.frozen
class Pinned:
    backup_id: str
    directory: str  # on the broker's machine


class BackupClient:
    """Backs up the broker at the configured address."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    def begin(self) -> Pinned:
        """Raises BrokerAnswerError, UnsupportedVersionError, LinkError, TimedOutError."""
        for left in reversed(range(_TRIES)):
            try:
                answer = self._ask(Action.BEGIN, "", _BEGIN_MS)
            except BrokerAnswerError as error:
                if error.code != ErrorCode.throttling_quota_exceeded or not left:
                    raise
                pause(_PAUSE_S)  # another backup was begun a moment ago
            else:
                return Pinned(answer.backup_id, answer.directory)
        raise AssertionError("the last try returns or raises")

    def renew(self, pinned: Pinned) -> None:
        self._ask(Action.RENEW, pinned.backup_id, self._routing.config.request_timeout_ms)

    def end(self, pinned: Pinned) -> None:
        self._ask(Action.END, pinned.backup_id, self._routing.config.request_timeout_ms)

    def _ask(self, action: Action, backup_id: str, timeout_ms: float) -> BackupResponse:
        with self._routing.limit.within(timeout_ms):
            connection = self._routing.any_connection()
            if backup.FEATURE not in connection.features:
                raise UnsupportedVersionError(
                    f"The broker at {connection.where} cannot be backed up in this way (it lacks {backup.FEATURE})."
                )
            client = self._routing.config.client_id
            answer = connection.exchange(
                ApiKey.BACKUP,
                lambda correlation_id: backup.request(correlation_id, client, action, backup_id),
                backup.parse_response,
                timeout_ms,
            )
        if answer.error:
            raise BrokerAnswerError(
                answer.message or f"The broker refuses the backup: {code_name(answer.error)}.", answer.error
            )
        return answer
