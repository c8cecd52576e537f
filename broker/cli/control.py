"""Requests of the commands for users, ACLs and quotas, by our own Kafka client, so that they work with any Kafka broker.

Tests: tests/cli/test_users.py, tests/cli/test_acls.py, tests/cli/test_quotas.py.
"""

from collections.abc import Mapping
from typing import Any

from broker.cli.broker_options import Target
from broker.cli.client import kafka
from broker.errors import BrokerError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

# What the command needs to say in addition to the broker's own message.
_ADVICE = {
    ErrorCode.security_disabled: "the broker has no authorizer, so everybody may do everything",
    ErrorCode.cluster_authorization_failed: "the user of this command may not do that",
    ErrorCode.resource_not_found: "there is none",
}


def ask(target: Target, key: ApiKey, versions: tuple[int, int], fields: Mapping[str, Any]) -> Any:
    """The answer of any broker of the cluster, which passes on what only the controller can do."""
    with kafka(target, "admin") as cluster:
        routing = cluster.routing

        def attempt() -> Any:
            connection = routing.any_connection()
            return connection.ask(key, connection.version(key, *versions), fields)

        return routing.retrying(attempt)


def check(code: int, message: str | None, what: str) -> None:
    """Raises BrokerError for a refusal."""
    if code:
        raise BrokerError(f"{what}: {refusal(code, message)}.")


def refusal(code: int, message: str | None) -> str:
    """A refusal in words."""
    try:
        name = ErrorCode(code)
    except ValueError:
        return message or f"Kafka's error {code}"
    words = (message or "").strip().rstrip(".")
    advice = _ADVICE.get(name)
    if advice and words:
        return f"{advice} ({words})"
    return advice or words or name.name.replace("_", " ")
