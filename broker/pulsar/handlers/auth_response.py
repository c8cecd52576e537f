"""AUTH_RESPONSE: a client renews its proof, when it was asked to or before. There is no answer unless that fails.

Tests: tests/pulsar/test_logins.py.
"""

from broker.network.work import LOGIN
from broker.pulsar import logins
from broker.pulsar.command import Call, Command, PulsarRequest, Type
from broker.pulsar.context import PulsarContext
from broker.security.principal import ANONYMOUS
from broker.security.sasl.exchange import AuthenticationFailed


def handle(call: Call) -> None:
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


def inline(context: PulsarContext, request: PulsarRequest) -> bool:
    """A proof takes up to milliseconds."""
    return not context.authentications[request.connection.peer.listener].asks


COMMAND = Command(Type.AUTH_RESPONSE, handle, inline=inline, lane=LOGIN)
