"""What a client of the Pulsar service may do, on the names that its topics have in Kafka.

| it wants to | it needs |
|---|---|
| produce | WRITE on the TOPIC |
| consume | READ on the TOPIC, and READ on the GROUP of the subscription's name |
| look a topic up, or ask for its partitions | DESCRIBE on the TOPIC |
| have a topic created | CREATE on the CLUSTER or on the TOPIC |
| see a topic in the list of its namespace | DESCRIBE on the TOPIC |

Any thread. Without an authorizer a question costs one comparison.

Tests: tests/pulsar/test_rights.py.
"""

from broker.network.service import Connection
from broker.pulsar.context import PulsarContext
from broker.pulsar.refusals import AuthorizationError
from broker.pulsar.topic_names import TopicName, kafka_name
from broker.security.acl import CLUSTER_NAME, Operation, ResourceType


def may(
    context: PulsarContext,
    connection: Connection,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
    *,
    audited: bool = True,
) -> bool:
    authorizer = context.authorizer
    return authorizer is None or authorizer.allows(
        connection.principal, connection.peer.host, operation, resource_type, name, audited=audited
    )


def require_topic(context: PulsarContext, connection: Connection, operation: Operation, name: TopicName) -> None:
    """Raises AuthorizationError."""
    if context.authorizer is not None and not may(
        context, connection, operation, ResourceType.TOPIC, kafka_name(name.whole)
    ):
        raise AuthorizationError(f"Client is not authorized to {operation.name.lower()} {name}")


def require_subscription(context: PulsarContext, connection: Connection, subscription: str) -> None:
    """Raises AuthorizationError."""
    if not may(context, connection, Operation.READ, ResourceType.GROUP, subscription):
        raise AuthorizationError(f"Client is not authorized to use the subscription {subscription[:300]!r}")


def may_create(context: PulsarContext, connection: Connection, name: TopicName) -> bool:
    if may(context, connection, Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME, audited=False):
        return True
    return may(context, connection, Operation.CREATE, ResourceType.TOPIC, kafka_name(name.whole))
