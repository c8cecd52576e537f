"""Common parts of administrators' requests: where a request goes, and the error for a refusal.

Tests: tests/cli/test_topics.py, tests/cli/test_groups.py.
"""

from collections.abc import Mapping
from typing import Any, NoReturn

from broker.client.kafka.connection import Connection
from broker.client.kafka.errors import RETRIABLE, BrokerAnswerError, RetriableError, code_name
from broker.client.kafka.routing import Routing
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

Versions = tuple[int, int]


def ask(connection: Connection, key: ApiKey, versions: Versions, fields: Mapping[str, Any]) -> Any:
    """Send a request with the highest version that both sides have."""
    return connection.ask(key, connection.version(key, *versions), fields)


def ask_any(routing: Routing, key: ApiKey, versions: Versions, fields: Mapping[str, Any]) -> Any:
    """The answer of any broker of the cluster."""
    return routing.retrying(lambda: ask(routing.any_connection(), key, versions, fields))


def ask_controller(routing: Routing, key: ApiKey, versions: Versions, fields: Mapping[str, Any]) -> Any:
    """The answer of the broker that the metadata names as controller. Brokers without ZooKeeper name any broker, which
    forwards the request."""
    return routing.retrying(lambda: ask(controller(routing), key, versions, fields))


def controller(routing: Routing) -> Connection:
    connection = routing.any_connection()
    answer = ask(connection, ApiKey.METADATA, (1, 12), {"topics": []})
    for broker in answer.brokers:
        if broker.node_id == answer.controller_id:
            return routing.connection((broker.host, broker.port))
    return connection


def ask_node(routing: Routing, node_id: int, key: ApiKey, versions: Versions, fields: Mapping[str, Any]) -> Any:
    """The answer of this broker of the cluster."""

    def attempt() -> Any:
        answer = ask(routing.any_connection(), ApiKey.METADATA, (1, 12), {"topics": []})
        for broker in answer.brokers:
            if broker.node_id == node_id:
                return ask(routing.connection((broker.host, broker.port)), key, versions, fields)
        known = ", ".join(str(broker.node_id) for broker in answer.brokers)
        raise BrokerAnswerError(f"The cluster has no broker {node_id}; it has {known}.")

    return routing.retrying(attempt)


def has(connection: Connection, key: ApiKey, lowest: int = 0) -> bool:
    """Whether the broker serves this API in version ``lowest`` or later."""
    return connection.ranges.get(key, (0, -1))[1] >= lowest


def refused(code: int, message: str | None, what: str) -> NoReturn:
    """Raise for an error code, with the broker's own message if there is any."""
    reason = (message or "").strip().rstrip(".") or code_name(code)
    error = RetriableError if code in RETRIABLE and code != ErrorCode.unknown_topic_or_partition else BrokerAnswerError
    raise error(f"{what}: {reason}.", code)
