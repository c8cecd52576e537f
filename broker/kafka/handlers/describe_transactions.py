"""DescribeTransactions (65): state, producer and partitions of transactional ids.

Tests: tests/kafka/handlers/test_transactions.py.
"""

from collections.abc import Mapping
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.context import KafkaContext
from broker.network.work import ADMIN, once
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    """An id that is named twice is described once."""
    return {"transaction_states": call.array(once(call.body.transactional_ids), lambda one: _describe(context, one))}


def _describe(context: KafkaContext, transactional_id: str) -> dict[str, Any]:
    error, state = context.transactions.describe(transactional_id)
    if state is None:
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
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(state.partitions):
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
