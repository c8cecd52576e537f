"""The rights that clients of the Pulsar service need, by the names of its topics in Kafka.

| to | a client needs |
|---|---|
| produce | WRITE on the TOPIC |
| consume | READ on the TOPIC, and READ on the GROUP of the subscription's name, or on that of the topic and the subscription |
| look a topic up, or ask for its partitions | DESCRIBE on the TOPIC |
| have a topic created | CREATE on the CLUSTER or on the TOPIC |
| see a topic in the list of its namespace | DESCRIBE on the TOPIC |

For these checks a subscription has a second name, which begins with its topic's name in the long form and a slash
(``subscription_name``). So the permission to consume from a topic or a namespace includes the subscriptions there, but neither
those of other topics nor the groups of Kafka's clients. A topic of ``public/default`` has a second name, too, in the long form
(``topic_names.py``), so that ACLs for the prefix ``pulsar.public.default.`` are permissions of that namespace. Second names count
for Pulsar's clients only. An ACL that denies applies by either name.

Administrators of a tenant (its ``adminRoles``) may do everything with its namespaces, topics and subscriptions, by Pulsar's
protocol and its admin API, unless an ACL denies it.

The rights to consume are checked again with the commands of a consumer, and for all consumers when ACLs or the administrators
of a tenant change (``consumer_calls.py``).

Any thread. Without an authorizer a check costs a comparison.

Tests: tests/pulsar/test_rights.py.
"""

from typing import Protocol

from broker.network.service import Connection, Peer
from broker.pulsar.context import PulsarContext
from broker.pulsar.refusals import AuthorizationError
from broker.pulsar.topic_names import TopicName, long_name, subscription_name, tenant_of
from broker.pulsar.topics.topic import AnyTopic
from broker.security.acl import CLUSTER_NAME, Operation, ResourceType
from broker.security.acl_authorizer import AclAuthorizer
from broker.security.principal import USER, Principal

# Looking up a member of an enumeration costs as much as an authorizer's answer.
_WRITE, _TOPIC = Operation.WRITE, ResourceType.TOPIC


class Client(Protocol):
    """A connection, or a call of the admin API."""

    @property
    def principal(self) -> Principal: ...

    @property
    def peer(self) -> Peer: ...


def may(
    context: PulsarContext,
    client: Client,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
    *,
    granted: bool = False,
    audited: bool = True,
) -> bool:
    """Whether the client has the right. A topic is checked by its name in Kafka, and a topic of ``public/default`` also by its
    long name, because permissions of that namespace are ACLs for that prefix. ``granted``: allowed unless an ACL denies it."""
    if context.authorizer is None:
        return True
    alias, tenant = (long_name(name), tenant_of(name)) if resource_type is _TOPIC else (None, None)
    return _decide(context, client, operation, resource_type, name, alias, tenant, granted, audited)


def may_in(context: PulsarContext, client: Client, operation: Operation, tenant: str) -> bool:
    """Whether the client may do this with namespaces of the tenant. It needs a right on the CLUSTER, except as an administrator
    of the tenant."""
    return _decide(context, client, operation, ResourceType.CLUSTER, CLUSTER_NAME, None, tenant, False, True)


def may_subscribe(
    context: PulsarContext, client: Client, topic: str, subscription: str, *, granted: bool = False
) -> bool:
    """Whether the client may use this subscription. ``topic``: the name in Kafka of a topic that the client may read. A right on
    the subscription's name suffices, or on the name that includes the topic's."""
    right, alias = (Operation.READ, ResourceType.GROUP), subscription_name(topic, subscription)
    return _decide(context, client, *right, subscription, alias, tenant_of(topic), granted, True)


def _decide(
    context: PulsarContext,
    client: Client,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
    alias: str | None,
    tenant: str | None,
    granted: bool,
    audited: bool,
) -> bool:
    authorizer = context.authorizer
    if authorizer is None:
        return True
    principal, host = client.principal, client.peer.host
    if tenant is not None and principal.type == USER:
        granted = granted or context.namespaces.administers(principal.name, tenant)
    right = principal, host, operation, resource_type, name
    if isinstance(authorizer, AclAuthorizer):
        return authorizer.allows_by(*right, alias, granted=granted, audited=audited)
    return granted or authorizer.allows(*right, audited=audited)


def require_topic(context: PulsarContext, connection: Connection, operation: Operation, name: TopicName) -> None:
    """Raises AuthorizationError."""
    if context.authorizer is not None and not may(
        context, connection, operation, ResourceType.TOPIC, context.kafka_name(name)
    ):
        raise AuthorizationError(f"Client is not authorized to {operation.name.lower()} {name}")


def may_produce(context: PulsarContext, connection: Connection, topic: AnyTopic) -> bool:
    """Checked for every SEND, because rights can be revoked."""
    return may(context, connection, _WRITE, _TOPIC, topic.kafka_name)


def may_consume(context: PulsarContext, connection: Connection, topic: AnyTopic, subscription: str) -> bool:
    """Checked for a consumer's commands, and for all consumers when rights change, because rights can be revoked."""
    return context.authorizer is None or (
        may(context, connection, Operation.READ, _TOPIC, topic.kafka_name)
        and may_subscribe(context, connection, topic.kafka_name, subscription)
    )


def require_subscription(context: PulsarContext, connection: Connection, topic: TopicName, subscription: str) -> None:
    """Raises AuthorizationError."""
    if context.authorizer is not None and not may_subscribe(
        context, connection, context.kafka_name(topic), subscription
    ):
        raise AuthorizationError(f"Client is not authorized to use the subscription {subscription[:300]!r}")


def require_creation(context: PulsarContext, connection: Connection, name: TopicName) -> None:
    """Raises AuthorizationError if the topic does not exist and the client may not create it."""
    if context.authorizer is None or context.exists(name):
        return
    if may(context, connection, Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME, audited=False):
        return
    if not may(context, connection, Operation.CREATE, _TOPIC, context.kafka_name(name)):
        raise AuthorizationError(f"Client is not authorized to create {name}")
