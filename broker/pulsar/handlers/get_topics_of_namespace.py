"""GET_TOPICS_OF_NAMESPACE: the names of its topics, partitions one by one.

Clients that look for the topics of a regular expression ask this again and again. They do the filtering themselves
(``filtered`` is false), because matching an expression of somebody else's can take for ever. One that names the hash of what it
has got before is told whether that has changed.

Tests: tests/pulsar/test_service.py.
"""

from broker.network.work import ADMIN
from broker.pulsar.command import Call, Command, Type
from broker.pulsar.rights import may
from broker.pulsar.topic_names import TopicName, check_namespace, topics_hash
from broker.security.acl import Operation, ResourceType
from protocol.pulsar.pulsar_pb2 import CommandGetTopicsOfNamespace, CommandGetTopicsOfNamespaceResponse


def handle(call: Call) -> None:
    context, body = call.context, call.body
    namespace = check_namespace(body.namespace)
    names: list[TopicName] = []
    if body.mode != CommandGetTopicsOfNamespace.Mode.NON_PERSISTENT:
        names += context.topics.topics(namespace)
    if body.mode != CommandGetTopicsOfNamespace.Mode.PERSISTENT:
        names += context.nonpersistent.topics(namespace)
    if context.authorizer is not None:
        names = [name for name in names if _may_see(call, name)]
    texts = [str(name) for name in names]
    response = CommandGetTopicsOfNamespaceResponse(request_id=body.request_id, filtered=False)
    if body.topics_hash:
        response.topics_hash = topics_hash(texts)
        response.changed = response.topics_hash != body.topics_hash
    if not body.topics_hash or response.changed:
        response.topics.extend(texts)
    call.reply(Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, response)


def _may_see(call: Call, name: TopicName) -> bool:
    return may(
        call.context,
        call.connection,
        Operation.DESCRIBE,
        ResourceType.TOPIC,
        call.context.kafka_name(name),
        audited=False,
    )


COMMAND = Command(Type.GET_TOPICS_OF_NAMESPACE, handle, inline=False, lane=ADMIN)
