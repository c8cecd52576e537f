"""GET_TOPICS_OF_NAMESPACE: the names of its topics, partitions one by one."""

from broker.network.work import ADMIN
from broker.pulsar.command import Call, Command, Type
from broker.pulsar.rights import may
from broker.pulsar.topic_names import check_namespace, kafka_name
from broker.security.acl import Operation, ResourceType
from protocol.pulsar.pulsar_pb2 import CommandGetTopicsOfNamespaceResponse


def handle(call: Call) -> None:
    context, body = call.context, call.body
    names = context.topics.topics(check_namespace(body.namespace))
    if context.authorizer is not None:
        names = [
            name
            for name in names
            if may(
                context,
                call.connection,
                Operation.DESCRIBE,
                ResourceType.TOPIC,
                kafka_name(name.whole),
                audited=False,
            )
        ]
    call.reply(
        Type.GET_TOPICS_OF_NAMESPACE_RESPONSE,
        CommandGetTopicsOfNamespaceResponse(request_id=body.request_id, topics=map(str, names), filtered=False),
    )


COMMAND = Command(Type.GET_TOPICS_OF_NAMESPACE, handle, inline=False, lane=ADMIN)
