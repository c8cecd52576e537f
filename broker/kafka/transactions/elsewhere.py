"""Partitions of this node in transactions that other nodes coordinate.

A batch of a producer that the log does not ``allow`` waits while the coordinator is asked whether its partition takes part in the
transaction, or is asked to add it (``FIRST_VERSION``). The request is parked, as a first batch of transactions version 2 is on a
broker alone. A guard in the log makes sure that the answer counts only if no marker has come meanwhile.

Which producer has which transactional id never changes. What the coordinator has confirmed is kept here, because a client
may have the right to its own transactional id only, and must not write with somebody else's producer id.

``missing`` runs on a processor, ``ask`` on a handler; the answer comes on a neighbour's thread. Any thread may call the rest.

Tests: tests/kafka/transactions/test_elsewhere.py, tests/process/test_nodes_transactions.py.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from broker.cluster.nodes import Nodes, transaction_key
from broker.errors import Refusal, StorageError
from broker.kafka.transactions.neighbours import Answer, Question
from broker.kafka.transactions.transaction import Claim
from broker.kafka.transactions.version_2 import FIRST_VERSION, FirstBatches, missing
from broker.storage.log.log import Log
from protocol.kafka.errors import ErrorCode

K = TypeVar("K")

# Producers of other nodes' transactional ids that are remembered; some 150 bytes each. Those beyond are asked for again.
KNOWN_MAX = 50_000
# From here on clients know TRANSACTION_ABORTABLE: the producer can abort and go on.
_ABORTABLE_SINCE = 11

# Produce's error codes by those of the coordinator. NOT_ENOUGH_REPLICAS has every client send the batch again, without
# asking for the metadata first, as it is not a matter of leaders; Kafka's brokers have chosen it for the same cases.
_TRANSLATED = {
    ErrorCode.producer_fenced: ErrorCode.invalid_producer_epoch,
    ErrorCode.invalid_txn_state: ErrorCode.transaction_abortable,
    ErrorCode.not_coordinator: ErrorCode.not_enough_replicas,
    ErrorCode.coordinator_not_available: ErrorCode.not_enough_replicas,
    ErrorCode.coordinator_load_in_progress: ErrorCode.not_enough_replicas,
    ErrorCode.unknown_topic_or_partition: ErrorCode.not_enough_replicas,  # the coordinator has not heard of it yet
    ErrorCode.operation_not_attempted: ErrorCode.not_enough_replicas,
}


class TransactionsElsewhere:
    def __init__(self, nodes: Nodes, ask: Callable[[Question], None]) -> None:
        """``ask``: the coordinator of the question's transactional id."""
        self._nodes = nodes
        self._ask = ask
        self._known: dict[int, str] = {}  # by producer id

    def has(self, transactional_id: str) -> bool:
        """Whether another node coordinates it."""
        return not self._nodes.coordinates(transaction_key(transactional_id))

    def knows(self, transactional_id: str, producer_id: int) -> bool:
        """Whether its coordinator has said that this is its producer."""
        return self._known.get(producer_id) == transactional_id

    def holder(self, producer_id: int) -> str | None:
        """The transactional id of this producer, as far as a coordinator has said so."""
        return self._known.get(producer_id)

    def missing(
        self, transactional_id: str, batches: Iterable[tuple[K, Log | None, memoryview | None]]
    ) -> dict[K, tuple[Claim, Log]]:
        """The batches that must not be appended before the coordinator is asked."""
        return missing(batches, lambda producer_id: self.knows(transactional_id, producer_id))

    def ask(
        self,
        transactional_id: str,
        version: int,
        wanted: Mapping[Any, tuple[Claim, Log]],
        first: FirstBatches,
        done: Callable[[], None],
    ) -> None:
        """``wanted``: the result of ``missing``, of a Produce request of this version. ``first`` gets the errors before
        ``done`` is called."""
        claim = next(iter(wanted.values()))[0]
        logs = {key: log for key, (of_batch, log) in wanted.items() if of_batch == claim}
        # A request has one transactional id, which has one producer.
        first.errors = dict.fromkeys(wanted.keys() - logs.keys(), ErrorCode.invalid_producer_id_mapping)
        guards = {key: log.transactions.begin_question(claim.producer_id) for key, log in logs.items()}

        def answered(answer: Answer) -> None:
            for key, log in logs.items():
                error = ErrorCode.not_enough_replicas
                if answer is not None:
                    error = answer.get((log.topic, log.partition), error)
                if not error:
                    self._remember(claim.producer_id, transactional_id)
                try:
                    is_present = log.transactions.end_question(
                        claim.producer_id, guards[key], None if error else claim.epoch
                    )
                except (Refusal, StorageError):
                    continue  # the append fails, too, and says why
                if not error and not is_present:
                    error = ErrorCode.not_enough_replicas  # a marker has come meanwhile: the client asks again
                if error:
                    first.errors[key] = _translated(error, version)
            done()

        participants = sorted({(log.topic, log.partition) for log in logs.values()})
        self._ask(Question(transactional_id, claim, participants, version >= FIRST_VERSION, answered))

    def _remember(self, producer_id: int, transactional_id: str) -> None:
        if len(self._known) >= KNOWN_MAX:
            self._known = {}
        self._known[producer_id] = transactional_id


def _translated(error: ErrorCode, version: int) -> ErrorCode:
    error = _TRANSLATED.get(error, error)
    if error == ErrorCode.concurrent_transactions and version < FIRST_VERSION:
        return ErrorCode.not_enough_replicas  # only producers of version 2 expect the former
    if error == ErrorCode.transaction_abortable and version < _ABORTABLE_SINCE:
        return ErrorCode.invalid_txn_state
    return error
