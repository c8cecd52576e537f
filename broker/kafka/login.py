"""Logins with SASL: what a proof, a failure and the end of a login's time lead to.

The functions run on the connection's processor, unless they say otherwise. ``SaslSession`` has the state.
"""

from functools import partial

from broker.kafka.api import KafkaRequest
from broker.kafka.context import KafkaContext
from broker.kafka.login_state import LoginEvent, LoginState
from broker.kafka.sasl_session import SaslSession
from broker.network.service import Connection, Outbox, Request
from broker.security.sasl.exchange import AuthenticationFailed, Identity, LoginResult

# While a request is handled when the login's time is over, look again after so long (s).
_LOOK_AGAIN_S = 0.5


def succeed(
    context: KafkaContext, connection: Connection, session: SaslSession, identity: Identity, outbox: Outbox
) -> int:
    """The client has proved who it is. How long (ms) that is valid; 0: without an end. Raises AuthenticationFailed if it was
    somebody else before."""
    again = session.previous is not None
    if again and session.previous != identity.principal:
        raise AuthenticationFailed("another principal than before", identity.principal.name)
    lifetime_ms = session.complete(identity, context.clock.time_ms())
    connection.principal = identity.principal
    _count(context, session, LoginResult.REAUTHENTICATED if again else LoginResult.SUCCEEDED)
    if lifetime_ms is None:
        return 0
    _expire_after(context, lifetime_ms / 1000, connection, session, outbox)
    return lifetime_ms


def fail(
    context: KafkaContext,
    request: Request,
    session: SaslSession,
    error: AuthenticationFailed,
    outbox: Outbox,
    answer: bytes,
) -> None:
    """Refuse the login: ``answer``, which may be empty, after a delay, and then the connection is closed."""
    again = session.previous is not None
    _count(context, session, LoginResult.REAUTHENTICATION_FAILED if again else LoginResult.FAILED)
    context.logins.log_failure(request.connection.peer, session.mechanism, error)
    session.refuse()
    context.logins.failures.refuse(request, outbox, [answer] if answer else [], session.rules.failure_delay_s)


def failure_message(session: SaslSession) -> str:
    """What the client is told, which is the same whatever was wrong."""
    what = "authentication" if session.previous is None else "re-authentication"
    return f"Authentication failed during {what} due to invalid credentials with SASL mechanism {session.mechanism}"


def disconnected(context: KafkaContext, session: SaslSession) -> None:
    if session.closed():
        _count(context, session, LoginResult.UNFINISHED)


def _count(context: KafkaContext, session: SaslSession, result: LoginResult) -> None:
    context.logins.counters.count(session.rules.listener, session.mechanism, result)


def _expire_after(
    context: KafkaContext, seconds: float, connection: Connection, session: SaslSession, outbox: Outbox
) -> None:
    expire = partial(_expire, context, connection, session, outbox)
    session.expiry = context.timer.at(context.clock.monotonic() + seconds, partial(outbox.call, connection, expire))


def _expire(context: KafkaContext, connection: Connection, session: SaslSession, outbox: Outbox) -> None:
    """The login's time is over: close the connection, after the answer to the request that is being handled."""
    expiry = session.expiry
    if expiry is None or expiry.deadline > context.clock.monotonic():
        return  # the client has logged in again, or does so now
    if session.state is LoginState.COMPLETE:
        session.enter(LoginEvent.TIME_OVER)
        _count(context, session, LoginResult.EXPIRED)
    if connection.busy:
        _expire_after(context, _LOOK_AGAIN_S, connection, session, outbox)
        return
    session.expiry = None
    parting = KafkaRequest()  # the outbox closes the connection of a request
    parting.connection = connection
    outbox.close(parting)
