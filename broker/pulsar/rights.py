"""What a client of the Pulsar service may do, on the names that its topics have in Kafka.

| it wants to | it needs |
|---|---|
| produce | WRITE on the TOPIC |
| consume | READ on the TOPIC, and READ on the GROUP of the subscription's name, or on that of the topic and the subscription |
| look a topic up, or ask for its partitions | DESCRIBE on the TOPIC |
| have a topic created | CREATE on the CLUSTER or on the TOPIC |
| see a topic in the list of its namespace | DESCRIBE on the TOPIC |

A subscription has a second name for this question, which begins with its topic's name in the long form and a slash
(``subscription_name``). So the permission to consume from a topic or a namespace opens the subscriptions there, and neither those
of other topics nor the groups of Kafka's clients. A topic of ``public/default`` has a second name, too, in the long form
(``topic_names.py``), so that ACLs for the prefix ``pulsar.public.default.`` are permissions of that namespace. Both count for
Pulsar's clients only.

The rights to consume are asked for again with the commands of a consumer, and for all consumers when ACLs change
(``consumer_calls.py``).

Any thread. Without an authorizer a question costs one comparison.

Tests: tests/pulsar/test_rights.py.
"""

from broker.network.service import Connection
from broker.pulsar.context import PulsarContext
from broker.pulsar.refusals import AuthorizationError
from broker.pulsar.topic_names import TopicName, long_name, subscription_name
from broker.pulsar.topics.topic import AnyTopic
from broker.security.acl import CLUSTER_NAME, Operation, ResourceType
from broker.security.acl_authorizer import AclAuthorizer
from broker.security.authorizer import Authorizer
from broker.security.principal import Principal

# Looking up a member of an enumeration costs as much as an authorizer's answer.
_WRITE, _TOPIC = Operation.WRITE, ResourceType.TOPIC


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
    return authorizer is None or allowed(
        authorizer, connection.principal, connection.peer.host, operation, resource_type, name, audited=audited
    )


def allowed(
    authorizer: Authorizer,
    principal: Principal,
    host: str,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
    *,
    audited: bool,
) -> bool:
    """Whether it may, by the name that the resource has in Kafka, or, for a topic of ``public/default``, by the one that it has
    in the long form: permissions of that namespace are ACLs for the prefix of such names."""
    if authorizer.allows(principal, host, operation, resource_type, name, audited=False):
        return True
    if resource_type is _TOPIC and isinstance(authorizer, AclAuthorizer):
        long = long_name(name)
        if long is not None and authorizer.allows_by(principal, host, operation, resource_type, name, long):
            return True
    return audited and authorizer.allows(principal, host, operation, resource_type, name)


def require_topic(context: PulsarContext, connection: Connection, operation: Operation, name: TopicName) -> None:
    """Raises AuthorizationError."""
    if context.authorizer is not None and not may(
        context, connection, operation, ResourceType.TOPIC, context.kafka_name(name)
    ):
        raise AuthorizationError(f"Client is not authorized to {operation.name.lower()} {name}")


def may_produce(context: PulsarContext, connection: Connection, topic: AnyTopic) -> bool:
    """Asked for every SEND: rights can be taken away."""
    return may(context, connection, _WRITE, _TOPIC, topic.kafka_name)


def may_consume(context: PulsarContext, connection: Connection, topic: AnyTopic, subscription: str) -> bool:
    """Asked for what a consumer does, and of all of them when ACLs change: rights can be taken away."""
    authorizer = context.authorizer
    return authorizer is None or (
        may(context, connection, Operation.READ, _TOPIC, topic.kafka_name)
        and may_subscribe(authorizer, connection.principal, connection.peer.host, topic.kafka_name, subscription)
    )


def may_subscribe(authorizer: Authorizer, principal: Principal, host: str, topic: str, subscription: str) -> bool:
    """Whether it may use this subscription of a topic, by its name in Kafka, that it may read: by the name of the subscription,
    or by the one that also names the topic."""
    right = Operation.READ, ResourceType.GROUP
    if authorizer.allows(principal, host, *right, subscription, audited=False):
        return True
    if isinstance(authorizer, AclAuthorizer):
        alias = subscription_name(topic, subscription)
        if authorizer.allows_by(principal, host, *right, subscription, alias):
            return True
    return authorizer.allows(principal, host, *right, subscription)


def require_subscription(context: PulsarContext, connection: Connection, topic: TopicName, subscription: str) -> None:
    """Raises AuthorizationError."""
    authorizer = context.authorizer
    if authorizer is not None and not may_subscribe(
        authorizer, connection.principal, connection.peer.host, context.kafka_name(topic), subscription
    ):
        raise AuthorizationError(f"Client is not authorized to use the subscription {subscription[:300]!r}")


def require_creation(context: PulsarContext, connection: Connection, name: TopicName) -> None:
    """Raises AuthorizationError where the topic does not exist and the client may not have it made."""
    if context.authorizer is None or context.exists(name):
        return
    if may(context, connection, Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME, audited=False):
        return
    if not may(context, connection, Operation.CREATE, _TOPIC, context.kafka_name(name)):
        raise AuthorizationError(f"Client is not authorized to create {name}")
