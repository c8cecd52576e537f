"""The commands of a connection: CONNECT, AUTH_RESPONSE, PING, PONG; and those of transactions, which are refused.

- CONNECT: the first command of every connection. The answer has the version that both sides speak and the maximum message size.
- AUTH_RESPONSE: a client renews its credentials, when asked or before. Only a failure is answered.
- PING: answered at once.
- PONG: shows that the client is alive.
- Transactions: all commands are refused with NotAllowedError, because this broker has no transactions for Pulsar's clients.

Tests: tests/pulsar/test_service.py,
tests/pulsar/test_logins.py.
"""

from functools import partial

from broker import expressions
from broker.network.work import LOGIN
from broker.pulsar import logins
from broker.pulsar.command import Call, Command, PulsarRequest, Type
from broker.pulsar.context import PulsarContext
from broker.security.principal import ANONYMOUS
from broker.security.sasl.exchange import AuthenticationFailed
from protocol.errors import ProtocolError
from protocol.pulsar.deliveries import PONG
from protocol.pulsar.pulsar_pb2 import (
    CommandConnected,
    CommandTcClientConnectResponse,
    FeatureFlags,
    ServerError,
    TxnResponse,
)

# The newest version of the protocol that Pulsar's brokers have. Clients are told the smaller of their version and this.
PROTOCOL_VERSION = 21
SERVER_VERSION = "Pulsar Server"
_VERSION_MAX = 200


def handle_connect(call: Call) -> None:
    context, state, body = call.context, call.state, call.body
    if state.connected:
        raise ProtocolError("a second CONNECT")
    flags = body.feature_flags
    state.protocol_version = min(PROTOCOL_VERSION, max(body.protocol_version, 0))
    state.client_version = body.client_version[:_VERSION_MAX]
    name, _, number = state.client_version.rpartition("-")  # Pulsar-CPP-v3.7.0
    call.session.client_words = {"software": name, "version": number}
    state.broker_entry_metadata = flags.supports_broker_entry_metadata
    state.auth_refresh = flags.supports_auth_refresh
    method = body.auth_method_name
    authentication = context.authentications[call.connection.peer.listener]
    try:
        if body.original_principal and context.authorizer is not None:
            # A proxy that acts for other clients would need a right to do so, which does not exist here.
            raise AuthenticationFailed("a client that speaks for another one")
        identity = authentication.authenticate(method, body.auth_data, call.connection.principal)
    except AuthenticationFailed as error:
        logins.fail(call, method, error)
        return
    logins.succeed(context, state, method, identity)
    state.connected = True
    call.session.connected()
    context.keep_alive.watch(state)
    call.reply(
        Type.CONNECTED,
        CommandConnected(
            server_version=SERVER_VERSION,
            protocol_version=state.protocol_version,
            max_message_size=context.config.pulsar_max_message_bytes,
            feature_flags=FeatureFlags(
                supports_topic_watchers=expressions.available(),
                supports_get_partitioned_metadata_without_auto_creation=True,
            ),
        ),
    )


def inline_connect(context: PulsarContext, request: PulsarRequest) -> bool:
    """Not inline with authentication: checking a proof may take milliseconds."""
    return not context.authentications[request.connection.peer.listener].asks


CONNECT = Command(Type.CONNECT, handle_connect, inline=inline_connect, lane=LOGIN, before_connect=True)


def handle_auth_response(call: Call) -> None:
    context, proof = call.context, call.body.response
    authentication = context.authentications[call.connection.peer.listener]
    if not authentication.asks:
        call.done()
        return
    try:
        identity = authentication.authenticate(proof.auth_method_name, proof.auth_data, ANONYMOUS)
        if identity.principal != call.connection.principal:
            raise AuthenticationFailed("another principal than before", identity.principal.name)
    except AuthenticationFailed as error:
        logins.fail(call, proof.auth_method_name, error)
        return
    logins.succeed(context, call.state, proof.auth_method_name, identity)
    call.done()


def inline_auth_response(context: PulsarContext, request: PulsarRequest) -> bool:
    """Not inline with authentication: checking a proof may take milliseconds."""
    return not context.authentications[request.connection.peer.listener].asks


AUTH_RESPONSE = Command(Type.AUTH_RESPONSE, handle_auth_response, inline=inline_auth_response, lane=LOGIN)


def handle_ping(call: Call) -> None:
    call.send([PONG])


PING_COMMAND = Command(Type.PING, handle_ping)


def handle_pong(call: Call) -> None:
    call.context.liveness.heard(call.state)
    call.done()


PONG_COMMAND = Command(Type.PONG, handle_pong)


_MESSAGE = "This broker has no transactions for Pulsar's clients."


def _refuse(response: int, call: Call) -> None:
    call.reply(
        response,
        TxnResponse(request_id=call.body.request_id, error=ServerError.NotAllowedError, message=_MESSAGE),
    )


def _refuse_coordinator(call: Call) -> None:
    call.reply(
        Type.TC_CLIENT_CONNECT_RESPONSE,
        CommandTcClientConnectResponse(
            request_id=call.body.request_id, error=ServerError.NotAllowedError, message=_MESSAGE
        ),
    )


TRANSACTIONS = (
    Command(Type.TC_CLIENT_CONNECT_REQUEST, _refuse_coordinator),
    *(
        Command(request, partial(_refuse, response))
        for request, response in (
            (Type.NEW_TXN, Type.NEW_TXN_RESPONSE),
            (Type.ADD_PARTITION_TO_TXN, Type.ADD_PARTITION_TO_TXN_RESPONSE),
            (Type.ADD_SUBSCRIPTION_TO_TXN, Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE),
            (Type.END_TXN, Type.END_TXN_RESPONSE),
            (Type.END_TXN_ON_PARTITION, Type.END_TXN_ON_PARTITION_RESPONSE),
            (Type.END_TXN_ON_SUBSCRIPTION, Type.END_TXN_ON_SUBSCRIPTION_RESPONSE),
        )
    ),
)
