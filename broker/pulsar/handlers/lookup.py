"""LOOKUP: to which broker a client connects for a topic. There is one: this."""

from broker.errors import Refusal, StorageError
from broker.pulsar.command import Call, Command, Type
from broker.pulsar.error_codes import code_of
from broker.pulsar.rights import require_topic
from broker.pulsar.topic_names import parse_topic
from broker.security.acl import Operation
from protocol.pulsar.pulsar_pb2 import CommandLookupTopicResponse

Response = CommandLookupTopicResponse


def handle(call: Call) -> None:
    context, connection, body = call.context, call.connection, call.body
    require_topic(context, connection, Operation.DESCRIBE, parse_topic(body.topic))
    listener = context.listeners[connection.peer.listener]
    host, port = context.advertised(listener.name, connection.peer)
    host = f"[{host}]" if ":" in host else host
    response = Response(request_id=body.request_id, response=Response.LookupType.Connect, authoritative=True)
    if listener.ssl:
        response.brokerServiceUrlTls = f"pulsar+ssl://{host}:{port}"
    else:
        response.brokerServiceUrl = f"pulsar://{host}:{port}"
    call.reply(Type.LOOKUP_RESPONSE, response)


def on_error(call: Call, error: Refusal | StorageError) -> None:
    call.reply(
        Type.LOOKUP_RESPONSE,
        Response(
            request_id=call.body.request_id,
            response=Response.LookupType.Failed,
            error=code_of(error),
            message=str(error),
        ),
    )


COMMAND = Command(Type.LOOKUP, handle, on_error=on_error)
