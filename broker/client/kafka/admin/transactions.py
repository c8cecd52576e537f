"""Transactional ids: which there are, and what each of them does.

Tests: tests/cli/test_transactions.py.
"""

import datetime
from collections.abc import Sequence

import attrs

from broker.client.kafka.admin.requests import ask, refused
from broker.client.kafka.errors import COORDINATOR_MOVED
from broker.client.kafka.routing import TRANSACTION, Routing
from broker.client.kafka.values import TopicPartition
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.schema.fields import EPOCH, milliseconds

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
    """Of all brokers, by name; those in one of ``states``, or all."""

    def attempt() -> list[ListedTransaction]:
        found = []
        for connection in routing.every_broker():
            answer = ask(
                connection, ApiKey.LIST_TRANSACTIONS, (0, 1), {"state_filters": list(states), "producer_id_filters": []}
            )
            if answer.error_code:
                refused(answer.error_code, None, f"The broker at {connection.where} does not list its transactions")
            found += [
                ListedTransaction(one.transactional_id, one.producer_id, one.transaction_state)
                for one in answer.transaction_states
            ]
        return sorted(found, key=lambda one: one.transactional_id)

    return routing.retrying(attempt)


def _since_1970(time: datetime.datetime) -> int:
    """In ms."""
    return milliseconds(time - EPOCH)


def describe_id(routing: Routing, name: str) -> TransactionDescription:
    """Raises BrokerAnswerError for one that does not exist."""

    def attempt() -> TransactionDescription:
        connection = routing.coordinator(TRANSACTION, name)
        answer = ask(connection, ApiKey.DESCRIBE_TRANSACTIONS, (0, 0), {"transactional_ids": [name]})
        (one,) = answer.transaction_states
        if one.error_code in COORDINATOR_MOVED:
            routing.forget_coordinator(TRANSACTION, name)
        if one.error_code:
            refused(one.error_code, _SAID.get(one.error_code), f"The transactional id {name!r}")
        partitions = tuple((topic.topic, partition) for topic in one.topics for partition in topic.partitions)
        return TransactionDescription(
            name,
            one.transaction_state,
            one.producer_id,
            one.producer_epoch,
            _since_1970(one.transaction_start_time),
            milliseconds(one.transaction_timeout),
            tuple(sorted(partitions)),
        )

    return routing.retrying(attempt)
