"""LOOKUP: to which broker a client connects for a topic. There is one: this.

The answer has the address of the listener on which the client has come, or of the one that it names, and beside it the address
of the first listener that does the same with TLS, or without.

Tests: tests/pulsar/test_service.py.
"""

from broker.config import Listener
from broker.errors import Refusal, StorageError
from broker.network.service import Peer
from broker.pulsar.command import Call, Command, Type
from broker.pulsar.context import PulsarContext
from broker.pulsar.error_codes import code_of
from broker.pulsar.refusals import ServiceNotReady
from broker.pulsar.rights import require_topic
from broker.pulsar.topic_names import parse_topic
from broker.security.acl import Operation
from protocol.pulsar.pulsar_pb2 import CommandLookupTopicResponse

Response = CommandLookupTopicResponse


def handle(call: Call) -> None:
    context, connection, body = call.context, call.connection, call.body
    name = parse_topic(body.topic)
    context.topics.check_namespace(name)
    require_topic(context, connection, Operation.DESCRIBE, name)
    plain, tls = service_urls(context, connection.peer, body.advertised_listener_name)
    call.reply(
        Type.LOOKUP_RESPONSE,
        Response(
            request_id=body.request_id,
            response=Response.LookupType.Connect,
            authoritative=True,
            brokerServiceUrl=plain,
            brokerServiceUrlTls=tls,
            proxy_through_service_url=False,
        ),
    )


def service_urls(context: PulsarContext, peer: Peer, named: str = "") -> tuple[str | None, str | None]:
    """The URLs without and with TLS that this client is told; None for one that no listener has. ``named``: the name of the
    listener that it asks for. Raises ServiceNotReady."""
    listener = context.listeners.get(named or peer.listener)
    if listener is None and named:
        raise ServiceNotReady(f"the broker do not have {named[:200]} listener")
    if listener is None:  # somebody who has come over another protocol
        listener = next(iter(context.listeners.values()))
    other = next((each for each in context.listeners.values() if each.ssl != listener.ssl), None)
    urls = {each.ssl: _url(context, each, peer) for each in (listener, other) if each is not None}
    return urls.get(False), urls.get(True)


def _url(context: PulsarContext, listener: Listener, peer: Peer) -> str:
    host, port = context.advertised(listener.name, peer)
    host = f"[{host}]" if ":" in host else host
    return f"pulsar{'+ssl' * listener.ssl}://{host}:{port}"


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
