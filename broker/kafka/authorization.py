"""The questions of Kafka's handlers to the authorizer: what a connection's client may do, and the error code if it may not.

Any thread. Without an authorizer a question costs one comparison.

Tests: tests/kafka/test_service.py.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from broker.errors import RequestError
from broker.kafka.context import KafkaContext
from broker.network.service import Connection
from broker.security.acl import CLUSTER_NAME, SUPPORTED, Operation, ResourceType
from protocol.kafka.errors import ErrorCode

DENIED: Final[Mapping[ResourceType, ErrorCode]] = {
    ResourceType.TOPIC: ErrorCode.topic_authorization_failed,
    ResourceType.GROUP: ErrorCode.group_authorization_failed,
    ResourceType.CLUSTER: ErrorCode.cluster_authorization_failed,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
    ResourceType.DELEGATION_TOKEN: ErrorCode.delegation_token_authorization_failed,
}

# The operations that make sense for each type of resource, as the bits of ``authorized_operations``.
SUPPORTED_BITS: Final[Mapping[ResourceType, int]] = {
    resource_type: sum(1 << operation for operation in operations) for resource_type, operations in SUPPORTED.items()
}

# The denied names if everything is allowed.
NO_NAMES: Final[frozenset[str]] = frozenset()


def may(
    context: KafkaContext,
    connection: Connection,
    operation: Operation,
    resource_type: ResourceType,
    name: str = CLUSTER_NAME,
    *,
    audited: bool = True,
) -> bool:
    """Whether the client of this connection may do this."""
    authorizer = context.authorizer
    return authorizer is None or authorizer.allows(
        connection.principal, connection.peer.host, operation, resource_type, name, audited=audited
    )


def authorized_operations(
    context: KafkaContext, connection: Connection, resource_type: ResourceType, name: str = CLUSTER_NAME
) -> int:
    """The operations that the client may carry out on a resource, as the bits of Kafka's fields of that name: 1 << Operation."""
    supported = SUPPORTED_BITS[resource_type]
    if context.authorizer is None:
        return supported
    return sum(
        1 << operation
        for operation in Operation
        if supported >> operation & 1 and may(context, connection, operation, resource_type, name, audited=False)
    )


def cluster_operations(context: KafkaContext, connection: Connection) -> int:
    """``authorized_operations`` of the cluster. As in Kafka, none for a client that may not describe it."""
    if not may(context, connection, Operation.DESCRIBE, ResourceType.CLUSTER):
        return 0
    return authorized_operations(context, connection, ResourceType.CLUSTER)


def require(
    context: KafkaContext,
    connection: Connection,
    operation: Operation,
    resource_type: ResourceType,
    name: str = CLUSTER_NAME,
) -> None:
    """Raises RequestError with the code of the resource's type if the client may not do this."""
    if not may(context, connection, operation, resource_type, name):
        raise refusal(resource_type)


def refusal(resource_type: ResourceType) -> RequestError:
    """The error of a client that may not do something with a resource of this type."""
    return RequestError(DENIED[resource_type], "Not authorized.")


def denied(
    context: KafkaContext,
    connection: Connection,
    operation: Operation,
    resource_type: ResourceType,
    names: Iterable[str],
    *,
    audited: bool = True,
) -> frozenset[str]:
    """The names with which the client may not do this. The authorizer is asked once for each distinct name."""
    authorizer = context.authorizer
    if authorizer is None:
        return NO_NAMES
    principal, host = connection.principal, connection.peer.host
    refused = [
        name
        for name in dict.fromkeys(names)
        if not authorizer.allows(principal, host, operation, resource_type, name, audited=audited)
    ]
    return frozenset(refused) if refused else NO_NAMES


def visible_topics(context: KafkaContext, asker: object, names: frozenset[str]) -> frozenset[str] | None:
    """The topics that ``asker``, the principal and host of a client, may describe; None if ``asker`` names nobody."""
    authorizer = context.authorizer
    if authorizer is None:
        return names
    if not isinstance(asker, tuple):
        return None
    principal, host = asker
    return frozenset(
        name
        for name in names
        if authorizer.allows(principal, host, Operation.DESCRIBE, ResourceType.TOPIC, name, audited=False)
    )


def denied_ids(
    context: KafkaContext, connection: Connection, operation: Operation, topic_ids: Iterable[bytes]
) -> frozenset[bytes]:
    """The ids of topics with which the client may not do this. An id without a topic is never among them: as in Kafka, it is no
    secret that there is no such topic."""
    known = context.logs.topics_by_id
    names = {topic_id: info.name for topic_id in dict.fromkeys(topic_ids) if (info := known.get(topic_id)) is not None}
    refused = denied(context, connection, operation, ResourceType.TOPIC, names.values())
    return frozenset([topic_id for topic_id, name in names.items() if name in refused]) if refused else frozenset()


def uncreatable(context: KafkaContext, connection: Connection, names: Iterable[str]) -> frozenset[str]:
    """The topics that the client may not create: as in Kafka, CREATE on the cluster or on the topic allows it."""
    if may(context, connection, Operation.CREATE, ResourceType.CLUSTER, audited=False):
        return NO_NAMES
    return denied(context, connection, Operation.CREATE, ResourceType.TOPIC, names)


def may_with_any(
    context: KafkaContext, connection: Connection, operation: Operation, resource_type: ResourceType
) -> bool:
    """Whether there is any resource of this type with which the client may do this."""
    authorizer = context.authorizer
    return authorizer is None or authorizer.allows_any(
        connection.principal, connection.peer.host, operation, resource_type
    )
