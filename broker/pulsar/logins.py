"""The consequences of a login: the client is accepted or refused, and later its credentials expire.

A failure is answered after a delay, so that guessing is slow. Credentials with an end (a token's ``exp``) have to be renewed: a
client that supports this is asked for new credentials (AUTH_CHALLENGE) some time before, and disconnected if the old ones expire
first. All other clients are disconnected when their credentials expire.

On the connection's processor or on a handler; the timer only puts work into a processor's inbox.

Tests: tests/pulsar/test_logins.py.
"""

from functools import partial

from broker.log import EventLimit, get_logger
from broker.network.service import Request
from broker.pulsar.command import Call, Type
from broker.pulsar.connection import PulsarConnection
from broker.pulsar.context import PulsarContext
from broker.runtime.limits import Allowance
from broker.security.proofs import Authentication
from broker.security.sasl.exchange import AuthenticationFailed, Identity, LoginResult
from protocol.pulsar.frames import UNASKED, write_command
from protocol.pulsar.pulsar_pb2 import AuthData, CommandAuthChallenge, CommandError, ServerError

log = get_logger("pulsar")

# The challenge by which Pulsar's brokers ask for a new proof.
_REFRESH = b"PulsarAuthRefresh"
# A new proof is requested so long (s) before the end of the present proof, but at most this share of its validity before.
_ASK_BEFORE_S = 30.0
_ASK_SHARE = 0.25
_USER_MAX = 100
# Delayed answers to failed logins. Beyond this number connections are closed at once.
_waiting = Allowance(1000)
_failures = EventLimit()


def fail(call: Call, method: str, error: AuthenticationFailed) -> None:
    """Refuse the client, after a delay."""
    context, connection = call.context, call.connection
    listener = connection.peer.listener
    known = method if method in ("token", "basic", "tls", "none") else "other"
    result = LoginResult.REAUTHENTICATION_FAILED if call.state.connected else LoginResult.FAILED
    context.login_counters.count(listener, known, result)
    unlogged = _failures.take(call.received_at)
    if unlogged is not None:
        log.warning(
            "authentication_failed",
            peer=connection.peer.host,
            listener=listener,
            mechanism=known,
            user=None if error.user is None else ascii(error.user[:_USER_MAX]),
            reason=error.reason,
            unlogged_before=unlogged,
        )
    delay_s = context.authentications[listener].delay_s
    if context.stopping or not delay_s or not _waiting.take(1):
        _refuse(call)
        return
    context.timer.at(context.clock.monotonic() + delay_s, partial(_refuse_later, call))


def _refuse_later(call: Call) -> None:
    _waiting.give_back(1)
    _refuse(call)


def _refuse(call: Call) -> None:
    """As in Pulsar's broker: send an ERROR that answers no request, and close the connection."""
    error = CommandError(request_id=UNASKED, error=ServerError.AuthenticationError, message="Unable to authenticate")
    call.reply_and_close(Type.ERROR, error)


def succeed(context: PulsarContext, state: PulsarConnection, method: str, identity: Identity) -> None:
    """The client has proved its identity, for the first time or again."""
    connection = state.connection
    connection.principal = identity.principal
    listener = connection.peer.listener
    authentication = context.authentications[listener]
    if authentication.asks:
        result = LoginResult.REAUTHENTICATED if state.connected else LoginResult.SUCCEEDED
        context.login_counters.count(listener, method if method in ("token", "basic", "tls") else "none", result)
    valid_ms = authentication.valid_for_ms(identity, context.clock.time_ms())
    if state.expiry is not None:
        state.expiry.cancel()
        state.expiry = None
    state.proof += 1
    if valid_ms is not None:
        _watch(context, state, authentication, method, valid_ms / 1000)


def _watch(
    context: PulsarContext, state: PulsarConnection, authentication: Authentication, method: str, valid_s: float
) -> None:
    now = context.clock.monotonic()
    if state.auth_refresh:
        ask_at = now + valid_s - min(_ASK_BEFORE_S, valid_s * _ASK_SHARE)
        state.expiry = context.timer.at(ask_at, partial(_ask, context, state, method, state.proof, now + valid_s))
    else:
        state.expiry = context.timer.at(now + valid_s, partial(_expire, context, state, state.proof))


def _ask(context: PulsarContext, state: PulsarConnection, method: str, proof: int, ends: float) -> None:
    """On the timer's thread: the proof is about to end."""
    if state.proof != proof or state.closed:
        return
    challenge = CommandAuthChallenge(
        server_version="",
        challenge=AuthData(auth_method_name=method, auth_data=_REFRESH),
        protocol_version=state.protocol_version,
    )
    state.push(write_command(Type.AUTH_CHALLENGE, challenge))
    state.expiry = context.timer.at(ends, partial(_expire, context, state, proof))


def _expire(context: PulsarContext, state: PulsarConnection, proof: int) -> None:
    """On the timer's thread: the proof has expired without a new one."""
    if state.proof != proof or state.closed:
        return
    context.login_counters.count(state.connection.peer.listener, "token", LoginResult.EXPIRED)
    request = Request()
    request.connection = state.connection
    state.outbox.close(request)
