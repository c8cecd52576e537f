"""Who calls the admin API.

Where a ``pulsar+sasl`` listener asks clients who they are, so do the admin calls, and the first such listener says what counts: a
certificate of the http:// listener, a token (``Authorization: Bearer``), or a user with a password (``Authorization: Basic``).
Otherwise the client is who its certificate says, or ANONYMOUS. Health checks ask nobody.

Every request is proved anew. A failure is answered after a delay, as logins of the protocol are.

Tests: tests/pulsar/admin/test_rights.py.
"""

import base64
import binascii
from collections.abc import Callable

import attrs

from broker.log import EventLimit, get_logger
from broker.network.routes import UNAUTHORIZED, Answer, Call, json_answer
from broker.pulsar.authentication import BASIC, TOKEN
from broker.pulsar.context import PulsarContext
from broker.security.sasl.exchange import AuthenticationFailed
from broker.security.sasl.login_counters import LoginResult

log = get_logger("pulsar")

_failures = EventLimit()
_SCHEMES = (("www-authenticate", 'Bearer realm="pulsar"'), ("www-authenticate", 'Basic realm="pulsar"'))


def authenticated(context: PulsarContext, handler: Callable[[Call], Answer]) -> Callable[[Call], Answer]:
    """The handler of a route, called with the principal that the client has proved to be."""
    authentication = next((each for each in context.authentications.values() if each.asks), None)
    if authentication is None:
        return handler

    def handle(call: Call) -> Answer:
        try:
            method, proof = _proof(call.headers.get("authorization", ""))
            identity = authentication.authenticate(method, proof, call.principal)
        except AuthenticationFailed as error:
            _note(context, call, error)
            answer = json_answer({"reason": "The client has not proved who it is."}, UNAUTHORIZED)
            return attrs.evolve(answer, headers=_SCHEMES, delay_s=authentication.delay_s)
        return handler(attrs.evolve(call, principal=identity.principal))

    return handle


def _proof(header: str) -> tuple[str, bytes]:
    """The method, by its name in the protocol, and the proof. Raises AuthenticationFailed; nothing of the header is in it."""
    scheme, _, rest = header.strip().partition(" ")
    if scheme.lower() == "bearer":
        return TOKEN, rest.strip().encode("latin-1")
    if scheme.lower() == "basic":
        try:
            return BASIC, base64.b64decode(rest.strip().encode("latin-1"), validate=True)
        except (binascii.Error, ValueError):
            raise AuthenticationFailed("a header Authorization that is not in base64") from None
    return "none", b""


def _note(context: PulsarContext, call: Call, error: AuthenticationFailed) -> None:
    context.login_counters.count(call.peer.listener, "http", LoginResult.FAILED)
    unlogged = _failures.take(call.received_at)
    if unlogged is not None:
        log.warning(
            "authentication_failed",
            peer=call.peer.host,
            listener=call.peer.listener,
            mechanism="http",
            user=None if error.user is None else ascii(error.user[:100]),
            reason=error.reason,
            unlogged_before=unlogged,
        )
