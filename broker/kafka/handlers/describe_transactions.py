"""DescribeTransactions (65): state, producer and partitions of transactional ids.

Tests: tests/kafka/handlers/test_transactions.py.
"""

from collections.abc import Mapping
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.authorization import denied
from broker.kafka.context import KafkaContext
from broker.network.work import ADMIN, once
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    """A repeated id is described once."""
    ids = once(call.body.transactional_ids)
    forbidden = denied(context, call.connection, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, ids)

    def describe(transactional_id: str) -> dict[str, Any]:
        if transactional_id in forbidden:
            return _failed(transactional_id, ErrorCode.transactional_id_authorization_failed)
        return _describe(context, call, transactional_id)

    return {"transaction_states": call.array(ids, describe)}


def _failed(transactional_id: str, error: ErrorCode) -> dict[str, Any]:
    return {
        "error_code": error,
        "transactional_id": transactional_id,
        "transaction_state": "",
        "transaction_timeout": 0,
        "transaction_start_time": 0,
        "producer_id": 0,
        "producer_epoch": 0,
        "topics": [],
    }


def _describe(context: KafkaContext, call: Call, transactional_id: str) -> dict[str, Any]:
    """As in Kafka, without the topics that the client may not describe."""
    error, state = context.transactions.describe(transactional_id)
    if state is None:
        return _failed(transactional_id, error)
    names = (topic for topic, _ in state.partitions)
    hidden = denied(context, call.connection, Operation.DESCRIBE, ResourceType.TOPIC, names, audited=False)
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(key for key in state.partitions if key[0] not in hidden):
        topics.setdefault(topic, []).append(partition)
    return {
        "error_code": ErrorCode.none,
        "transactional_id": transactional_id,
        "transaction_state": state.phase.value,
        "transaction_timeout": state.timeout_ms,
        "transaction_start_time": state.started_ms,
        "producer_id": state.producer_id,
        "producer_epoch": state.epoch,
        "topics": [{"topic": topic, "partitions": partitions} for topic, partitions in topics.items()],
    }


API = Api(key=ApiKey.DESCRIBE_TRANSACTIONS, min_version=0, max_version=0, handle=handle, lane=ADMIN)
