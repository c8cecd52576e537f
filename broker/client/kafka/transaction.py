"""Transactions of a producer: its identity, the state of its open transaction, and the requests to the coordinator.

Each request is a function that repeats it until it is answered; every request can be repeated if its answer is lost.
They use Kafka's classic protocol, which every broker serves: partitions are added before they are written to, and
epochs do not change from transaction to transaction. The exception is ``end_together``, which sends EndTxns, an API of
this project's own broker.

The coordinator learns of a transaction with the first partition or group added to it; only such a transaction has to be
ended by a request. ``TABLE`` has the states (pure). Every other pair is a bug of the caller (AssertionError). Failure of
the producer is not a state here: it may fail in every state, and it keeps its error when the transaction ends.

``TransactionManager``, named as in Java's client, keeps the producer id and epoch, the sequence numbers and the open
transaction. Sequence numbers make writes idempotent: a broker recognizes a batch that it already has. One thread uses a
manager.

Tests: tests/client/kafka/test_producer.py,
tests/client/kafka/test_faults.py,
tests/client/kafka/test_other_brokers.py.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum
from typing import Any

import attrs

from broker.client.kafka.errors import (
    COORDINATOR_MOVED,
    RETRIABLE,
    BrokerAnswerError,
    JointCommitUnsupportedError,
    ProducerFencedError,
    RetriableError,
    TransactionError,
    UnsupportedVersionError,
    code_name,
)
from broker.client.kafka.offsets import commit_fields
from broker.client.kafka.routing import GROUP, TRANSACTION, Routing
from broker.client.kafka.values import Identity, OffsetAndMetadata, TopicPartition
from broker.errors import ConfigError
from broker.runtime.entropy import SystemEntropy
from broker.transitions import Transitions
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import own_apis
from protocol.kafka.records.batch import SEQUENCES, set_producer


class TransactionState(IntEnum):
    NO_TRANSACTION = 0
    OPEN = 1
    OPEN_AT_COORDINATOR = 2


class TransactionEvent(IntEnum):
    BEGUN = 0
    ADDED = 1
    ENDED = 2


TABLE = Transitions(
    TransactionState,
    TransactionEvent,
    """
    NO_TRANSACTION       BEGUN  OPEN
    OPEN                 ADDED  OPEN_AT_COORDINATOR
    OPEN                 ENDED  NO_TRANSACTION
    OPEN_AT_COORDINATOR  ADDED  OPEN_AT_COORDINATOR
    OPEN_AT_COORDINATOR  ENDED  NO_TRANSACTION
    """,
)
next_state = TABLE.next


FENCED = frozenset({ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch, ErrorCode.invalid_producer_id_mapping})
_NOT_ALLOWED = frozenset({ErrorCode.invalid_txn_state, ErrorCode.transaction_abortable})

# 15 min: Kafka's default transaction.max.timeout.ms. A broker refuses a longer time.
LONGEST_TRANSACTION_MS = 900_000


@attrs.frozen
class OpenTransaction:
    """``state`` is Kafka's name: Ongoing, PrepareCommit, CompleteAbort ..."""

    transactional_id: str
    producer_id: int
    state: str


def init_producer_id(routing: Routing, transactional_id: str | None, timeout_ms: int) -> tuple[int, int]:
    """Producer id and epoch. With a transactional id, its previous producer is fenced and its open transaction
    aborted."""

    def ask() -> tuple[int, int]:
        if transactional_id is None:
            connection = routing.any_connection()
        else:
            connection = routing.coordinator(TRANSACTION, transactional_id)
        version = connection.version(ApiKey.INIT_PRODUCER_ID, 0, 5)
        fields: dict[str, Any] = {"transactional_id": transactional_id, "transaction_timeout": timeout_ms}
        if version >= 3:
            fields |= {"producer_id": -1, "producer_epoch": -1}
        answer = connection.ask(ApiKey.INIT_PRODUCER_ID, version, fields)
        if answer.error_code == ErrorCode.invalid_transaction_timeout:
            raise ConfigError(
                f"transaction.timeout.ms is {timeout_ms}, which is more than the broker's transaction.max.timeout.ms."
            )
        _check(routing, answer.error_code, transactional_id or "", "a producer id")
        return answer.producer_id, answer.producer_epoch

    return routing.retrying(ask)


def add_partitions(routing: Routing, identity: Identity, partitions: Iterable[TopicPartition]) -> None:
    """Make the partitions part of the producer's transaction, which begins if none is open."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)

    def ask() -> None:
        connection = routing.coordinator(TRANSACTION, identity.transactional_id)
        version = connection.version(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 3)
        fields = {
            "v3_and_below_transactional_id": identity.transactional_id,
            "v3_and_below_producer_id": identity.producer_id,
            "v3_and_below_producer_epoch": identity.epoch,
            "v3_and_below_topics": [{"name": topic, "partitions": indexes} for topic, indexes in topics.items()],
        }
        answer = connection.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, fields)
        codes = {
            (topic.name, result.partition_index): result.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        }
        # If a partition is refused, the others are not attempted: report the refused partition.
        for (topic, partition), code in sorted(codes.items(), key=lambda item: item[1] == _NOT_ATTEMPTED):
            _check(routing, code, identity.transactional_id, f"{topic}-{partition} in the transaction")

    routing.retrying(ask)


_NOT_ATTEMPTED = ErrorCode.operation_not_attempted


def commit_offsets(
    routing: Routing, identity: Identity, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]
) -> None:
    """Make the group's offsets part of the transaction: they are committed with it, or not at all."""

    def add() -> None:
        connection = routing.coordinator(TRANSACTION, identity.transactional_id)
        version = connection.version(ApiKey.ADD_OFFSETS_TO_TXN, 0, 3)
        answer = connection.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, _fields(identity) | {"group_id": group})
        _check(routing, answer.error_code, identity.transactional_id, f"the group {group!r} in the transaction")

    def commit() -> None:
        connection = routing.coordinator(GROUP, group)
        version = connection.version(ApiKey.TXN_OFFSET_COMMIT, 0, 3)
        fields = _fields(identity) | {"group_id": group, "topics": commit_fields(offsets, version >= 2)}
        if version >= 3:
            fields |= {"generation_id": -1, "member_id": ""}
        answer = connection.ask(ApiKey.TXN_OFFSET_COMMIT, version, fields)
        for topic in answer.topics:
            for partition in topic.partitions:
                if partition.error_code in COORDINATOR_MOVED:
                    routing.check_coordinator_answer(partition.error_code, "offsets", GROUP, group)
                what = f"the offsets of the group {group!r} in the transaction"
                _check(routing, partition.error_code, identity.transactional_id, what)

    with routing.limit.within(routing.config.api_timeout_ms):
        routing.retrying(add)
        routing.retrying(commit)


def end(routing: Routing, identity: Identity, committed: bool) -> None:
    """Commit or abort. Repeating the request for a transaction that has already ended in the same way is not an
    error."""

    def ask() -> None:
        connection = routing.coordinator(TRANSACTION, identity.transactional_id)
        version = connection.version(ApiKey.END_TXN, 0, 3)
        answer = connection.ask(ApiKey.END_TXN, version, _fields(identity) | {"committed": committed})
        _check(routing, answer.error_code, identity.transactional_id, "the commit" if committed else "the abort")

    routing.retrying(ask)


def can_end_together(routing: Routing, transactional_id: str) -> bool:
    """Whether the broker serves EndTxns."""

    def ask() -> bool:
        least, most = routing.coordinator(TRANSACTION, transactional_id).features.get(own_apis.FEATURE, (1, 0))
        return least <= own_apis.FEATURE_LEVEL <= most

    return routing.retrying(ask)


def end_together(routing: Routing, members: Collection[Identity], committed: bool = True) -> None:
    """End the transactions of all ``members`` by a single durable decision. If a member's cannot end, none does.

    A member may have written nothing. Raises JointCommitUnsupportedError, ProducerFencedError, TransactionError. After
    a TimedOutError or LinkError the outcome is unknown; repeat the call to learn it.
    """
    listed = [own_apis.Member(member.transactional_id, member.producer_id, member.epoch) for member in members]
    if not listed:
        return
    first = listed[0].transactional_id

    def ask() -> None:
        connection = routing.coordinator(TRANSACTION, first)
        if own_apis.FEATURE not in connection.features:
            raise JointCommitUnsupportedError(
                f"The broker at {connection.where} cannot commit transactions of several producers as one"
                f" (it lacks {own_apis.FEATURE})."
            )
        answer = connection.exchange(
            ApiKey.END_TXNS,
            lambda correlation_id: own_apis.request(correlation_id, routing.config.client_id, listed, committed),
            own_apis.parse_response,
            routing.config.request_timeout_ms,
        )
        named = listed[answer.error_index].transactional_id if 0 <= answer.error_index < len(listed) else first
        _check(routing, answer.error, named, "the commit" if committed else "the abort", coordinator_of=first)

    routing.retrying(ask)


def list_transactions(routing: Routing, prefix: str, ongoing: bool) -> list[OpenTransaction]:
    """The transactions of all brokers of the cluster. Raises UnsupportedVersionError for brokers before Kafka 3.0."""

    def ask() -> list[OpenTransaction]:
        transactions: list[OpenTransaction] = []
        for connection in routing.every_broker():
            version = connection.version(ApiKey.LIST_TRANSACTIONS, 0, 1)
            fields: dict[str, Any] = {"state_filters": ["Ongoing"] if ongoing else [], "producer_id_filters": []}
            if version >= 1:
                fields["duration_filter"] = -1
            answer = connection.ask(ApiKey.LIST_TRANSACTIONS, version, fields)
            _check(routing, answer.error_code, prefix, "the list of transactions")
            transactions += [
                OpenTransaction(state.transactional_id, state.producer_id, state.transaction_state)
                for state in answer.transaction_states
                if state.transactional_id.startswith(prefix)
            ]
        return sorted(transactions, key=lambda transaction: transaction.transactional_id)

    return routing.retrying(ask)


def abort_transaction(routing: Routing, transactional_id: str) -> None:
    """Take over the id: the coordinator fences its producer and aborts the producer's open transaction."""
    init_producer_id(routing, transactional_id, 1000)


def new_name() -> str:
    """A unique part for a transactional id."""
    return SystemEntropy.uuid().hex


def _fields(identity: Identity) -> dict[str, Any]:
    return {
        "transactional_id": identity.transactional_id,
        "producer_id": identity.producer_id,
        "producer_epoch": identity.epoch,
    }


def _check(routing: Routing, code: int, transactional_id: str, what: str, coordinator_of: str | None = None) -> None:
    if not code:
        return
    if code in COORDINATOR_MOVED:
        routing.forget_coordinator(TRANSACTION, coordinator_of or transactional_id)
    if code in RETRIABLE:
        raise RetriableError(f"The broker refuses {what} of {transactional_id!r}: {code_name(code)}.", code)
    if code in FENCED:
        raise ProducerFencedError(
            f"The broker refuses {what} of {transactional_id!r}: a newer producer has this id, or the"
            f" transaction has taken longer than transaction.timeout.ms ({code_name(code)}).",
            code,
        )
    if code in _NOT_ALLOWED:
        raise TransactionError(
            f"The broker refuses {what} of {transactional_id!r}: the transaction is in another state"
            f" ({code_name(code)}).",
            code,
        )
    if code == ErrorCode.unsupported_version:
        raise UnsupportedVersionError(f"The broker refuses {what} of {transactional_id!r}: {code_name(code)}.", code)
    raise BrokerAnswerError(f"The broker refuses {what} of {transactional_id!r}: {code_name(code)}.", code)


class TransactionManager:
    def __init__(self, routing: Routing, transactional_id: str | None, idempotent: bool, timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self.idempotent = idempotent or transactional_id is not None
        # Partitions that have acknowledged a batch of this producer, so that their broker checks the next sequence number.
        self.acknowledged: set[TopicPartition] = set()
        self._routing = routing
        self._timeout_ms = timeout_ms
        self._producer: tuple[int, int] | None = None  # producer id and epoch
        self._sequences: dict[TopicPartition, int] = {}  # of each partition's next batch
        self._state = TransactionState.NO_TRANSACTION
        self._added: set[TopicPartition] = set()  # partitions of the open transaction

    @property
    def identity(self) -> Identity:
        """Asks the coordinator for a producer id if there is none yet, which fences earlier users of the transactional id."""
        assert self.transactional_id is not None
        producer_id, epoch = self._producer_id_and_epoch()
        return Identity(self.transactional_id, producer_id, epoch)

    def _producer_id_and_epoch(self) -> tuple[int, int]:
        if self._producer is None:
            self._producer = init_producer_id(self._routing, self.transactional_id, self._timeout_ms)
        return self._producer

    def stamp(self, partition: TopicPartition, data: bytearray, count: int) -> None:
        """Write producer id, epoch and the partition's next sequence number into the header of a batch of ``count`` records."""
        if not self.idempotent:
            return
        producer_id, epoch = self._producer_id_and_epoch()
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = (sequence + count) % SEQUENCES
        set_producer(data, producer_id, epoch, sequence, self.transactional_id is not None)

    def reset(self) -> None:
        """Ask for a new epoch, in which sequence numbers begin at 0, before the next batch."""
        self._producer = None
        self._sequences.clear()
        self.acknowledged.clear()

    # The transaction ------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._state is not TransactionState.NO_TRANSACTION

    def require_open(self) -> None:
        if not self.is_open:
            raise TransactionError("There is no open transaction.")

    def begin(self) -> None:
        self._producer_id_and_epoch()
        self._state = next_state(self._state, TransactionEvent.BEGUN)

    def add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Make the partitions part of the open transaction. Does nothing for a producer without a transactional id."""
        new = set(partitions) - self._added
        if self.transactional_id is not None and new:
            self._state = next_state(self._state, TransactionEvent.ADDED)
            add_partitions(self._routing, self.identity, sorted(new))
            self._added |= new

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> None:
        self._state = next_state(self._state, TransactionEvent.ADDED)
        commit_offsets(self._routing, self.identity, group, offsets)

    def end(self, committed: bool) -> None:
        """Have the coordinator commit or abort the transaction, if it knows of it. The caller calls ``forget``."""
        if self._state is TransactionState.OPEN_AT_COORDINATOR:
            end(self._routing, self.identity, committed)

    def forget(self) -> None:
        """The transaction has ended, or another client will end it."""
        self._state = next_state(self._state, TransactionEvent.ENDED)
        self._added.clear()
