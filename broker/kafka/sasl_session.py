"""One connection of a `+sasl` listener: its login, and the requests that it may send meanwhile.

``SaslSession`` belongs to its processor's thread, which alone changes its state. Only ``evaluate`` may run on a handler; the
connection takes no request until it is answered, so nothing else happens to the session meanwhile. ``succeed``, ``fail`` and the
functions below them act on the result of a proof and on the end of a login's time; they run on the connection's processor, unless
they say otherwise.

The states are those of Kafka's SaslServerAuthenticator. ``SaslSession`` takes a request only if its state answers the API;
anything else closes the connection:

| state | answered | reason |
|---|---|---|
| INITIAL_REQUEST | ApiVersions, SaslHandshake | Clients may ask what the broker serves, once. |
| HANDSHAKE_REQUEST | SaslHandshake | ApiVersions was answered. |
| AUTHENTICATE | SaslAuthenticate; ApiVersions with ILLEGAL_SASL_STATE | The mechanism is chosen. |
| AUTHENTICATE_RAW | tokens without a header | The same after version 0 of SaslHandshake. |
| COMPLETE | everything | The client has logged in. SaslHandshake begins to log in again. |
| EXPIRED | nothing | The login was not renewed in time. |
| FAILED | nothing | The refusal is sent after a delay, and then the connection is closed. |

``TABLE`` has the transitions.
"""

import struct
from collections.abc import Mapping
from enum import Enum
from functools import partial
from math import inf
from typing import Final

import attrs

from broker.kafka.api import Api, KafkaRequest
from broker.kafka.context import KafkaContext
from broker.kafka.kafka_session import KafkaSession
from broker.network.service import Connection, Outbox, Request
from broker.runtime.timers import TimerHandle
from broker.security.principal import Principal
from broker.security.sasl.exchange import AuthenticationFailed, Exchange, Identity, LoginResult, NewExchange, Refuse
from broker.transitions import Transitions
from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey


class LoginState(Enum):
    INITIAL_REQUEST = "initial request"
    HANDSHAKE_REQUEST = "handshake request"
    AUTHENTICATE = "authenticate"
    AUTHENTICATE_RAW = "authenticate raw"
    COMPLETE = "complete"
    EXPIRED = "expired"
    FAILED = "failed"


class LoginEvent(Enum):
    VERSIONS_TOLD = "versions told"
    MECHANISM_CHOSEN = "mechanism chosen"
    MECHANISM_CHOSEN_V0 = "mechanism chosen v0"
    PROVED = "proved"
    REFUSED = "refused"
    TIME_OVER = "time over"


_S, _E = LoginState, LoginEvent

TABLE = Transitions(
    LoginState,
    LoginEvent,
    """
    INITIAL_REQUEST    VERSIONS_TOLD        HANDSHAKE_REQUEST
    INITIAL_REQUEST    MECHANISM_CHOSEN     AUTHENTICATE
    INITIAL_REQUEST    MECHANISM_CHOSEN_V0  AUTHENTICATE_RAW
    INITIAL_REQUEST    REFUSED              FAILED
    HANDSHAKE_REQUEST  MECHANISM_CHOSEN     AUTHENTICATE
    HANDSHAKE_REQUEST  MECHANISM_CHOSEN_V0  AUTHENTICATE_RAW
    HANDSHAKE_REQUEST  REFUSED              FAILED
    AUTHENTICATE       PROVED               COMPLETE
    AUTHENTICATE       REFUSED              FAILED
    AUTHENTICATE_RAW   PROVED               COMPLETE
    AUTHENTICATE_RAW   REFUSED              FAILED
    COMPLETE           MECHANISM_CHOSEN     AUTHENTICATE
    COMPLETE           MECHANISM_CHOSEN_V0  AUTHENTICATE_RAW
    COMPLETE           REFUSED              FAILED
    COMPLETE           TIME_OVER            EXPIRED
    """,
)
next_state = TABLE.next

# The APIs whose requests reach a handler. None: all of them.
ANSWERED: Final[dict[LoginState, frozenset[ApiKey] | None]] = {
    _S.INITIAL_REQUEST: frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE}),
    _S.HANDSHAKE_REQUEST: frozenset({ApiKey.SASL_HANDSHAKE}),
    _S.AUTHENTICATE: frozenset({ApiKey.SASL_AUTHENTICATE, ApiKey.API_VERSIONS}),
    _S.AUTHENTICATE_RAW: frozenset(),
    _S.COMPLETE: None,
    _S.EXPIRED: frozenset(),
    _S.FAILED: frozenset(),
}


_LENGTH = struct.Struct(">i").unpack_from
# The smallest request: key, version and correlation id. A token may be empty.
_SMALLEST = 8
_UNLIMITED = 2**31 - 1
# A client that logs in again sooner than this (s) after it has begun the last time is refused (KIP-368).
_REAUTHENTICATION_INTERVAL_S = 1.0


@attrs.frozen
class LoginRules:
    """The rules for all logins of a listener. ``mechanisms``: by name, the function that begins a login."""

    listener: str
    mechanisms: Mapping[str, NewExchange]
    apis: Mapping[LoginState, dict[int, Api]]
    raw_api: Api  # for a token without a header
    max_receive_bytes: int
    timeout_s: float
    max_reauth_ms: int
    failure_delay_s: float


def apis_by_state(apis: dict[int, Api]) -> Mapping[LoginState, dict[int, Api]]:
    """The APIs that are answered in each state."""
    return {
        state: apis if answered is None else {key: api for key, api in apis.items() if key in answered}
        for state, answered in ANSWERED.items()
    }


class SaslSession(KafkaSession):
    # Until when (Clock.monotonic() s) the login must end, or the processor closes the connection.
    deadline: float
    # Of the connection, among those of the listener, in the order in which they were accepted; only where nodes ask each other.
    number: int = -1

    def __init__(self, rules: LoginRules, now: float, context: KafkaContext | None = None) -> None:
        super().__init__(rules.apis[LoginState.INITIAL_REQUEST], context)
        self.rules = rules
        self.state = LoginState.INITIAL_REQUEST
        self.deadline = now + rules.timeout_s
        self.mechanism = ""
        # The previous identity, while the client logs in again.
        self.previous: Principal | None = None
        self.knows_lifetime = (
            False  # the client speaks a version of SaslAuthenticate that tells how long the login is valid
        )
        self.expiry: TimerHandle | None = None
        self._exchange: Exchange | None = None
        self._lifetime_limited = False
        self._reauthentication_allowed_at = 0.0
        self._least, self._most = _SMALLEST, rules.max_receive_bytes
        self.has_logged_in = False

    def frame_size(self, data: memoryview) -> int:
        if len(data) < 4:
            return 0
        (length,) = _LENGTH(data)
        if not self._least <= length <= self._most:
            raise ProtocolError(f"a request of {length} bytes")
        size: int = 4 + length
        if size <= len(data) and not data[5] and self._context is not None and self.state is LoginState.COMPLETE:
            return (self._finder or self._new_finder()).find(data, size)
        return size

    def receive(self, frame: memoryview) -> KafkaRequest:
        if self.state is LoginState.AUTHENTICATE_RAW:
            request = KafkaRequest()
            api = request.api = self.rules.raw_api
            request.kind = api.label
            request.api_version = request.correlation_id = 0
            request.client_id = None
            request.body_offset = 4
            return request
        return super().receive(frame)

    def unserved(self, key: int) -> str:
        if self.state is LoginState.COMPLETE:
            return super().unserved(key)
        return f"API key {key} is not answered in the login's state {self.state.name}"

    def enter(self, event: LoginEvent) -> None:
        """The state's only way to change."""
        self.state = next_state(self.state, event)
        self._apis = self.rules.apis[self.state]
        raw, complete = self.state is LoginState.AUTHENTICATE_RAW, self.state is LoginState.COMPLETE
        self.has_logged_in = complete
        self._least = 0 if raw else _SMALLEST
        self._most = _UNLIMITED if complete else self.rules.max_receive_bytes
        if self.state in (LoginState.COMPLETE, LoginState.EXPIRED):
            self.deadline = inf

    def may_choose(self, now: float) -> bool:
        """Whether the client may log in now. It may not log in again if logins have no end, nor too often, nor too late."""
        if self.state is not LoginState.COMPLETE:
            return self.state is not LoginState.EXPIRED  # while a handler had the request
        return self._lifetime_limited and now >= self._reauthentication_allowed_at

    def choose(self, mechanism: str, version: int, now: float, principal: Principal) -> bool:
        """The client wants to log in by this mechanism. False if the listener does not have it. ``principal``: who it is now."""
        again = self.state is LoginState.COMPLETE
        if again:
            self.previous = principal
            self._reauthentication_allowed_at = now + _REAUTHENTICATION_INTERVAL_S
            self._cancel_expiry()
        new_exchange = self.rules.mechanisms.get(mechanism)
        if new_exchange is None:
            return False
        if again and mechanism != self.mechanism:
            # As in Kafka, the handshake succeeds and the next token fails.
            self._exchange = Refuse("another mechanism than before")
        else:
            self._exchange = new_exchange()
            self.mechanism = mechanism
        self.deadline = now + self.rules.timeout_s
        self.enter(LoginEvent.MECHANISM_CHOSEN if version > 0 else LoginEvent.MECHANISM_CHOSEN_V0)
        return True

    @property
    def logging_in(self) -> bool:
        """Whether the client has chosen a mechanism and has to prove its identity."""
        return self.state in (LoginState.AUTHENTICATE, LoginState.AUTHENTICATE_RAW)

    @property
    def exchange(self) -> Exchange:
        """The exchange of the present login."""
        assert self._exchange is not None, "no mechanism was chosen"
        return self._exchange

    def complete(self, identity: Identity, wall_ms: int) -> int | None:
        """The client is ``identity``. Returns how long (ms) that is valid; None: without an end."""
        lifetimes_ms = [self.rules.max_reauth_ms] if self.rules.max_reauth_ms else []
        if identity.expires_ms is not None:
            lifetimes_ms.append(identity.expires_ms - wall_ms)
        self._exchange = None
        self.previous = None
        self._lifetime_limited = bool(lifetimes_ms)
        self.enter(LoginEvent.PROVED)
        return max(0, min(lifetimes_ms)) if lifetimes_ms else None

    def refuse(self) -> None:
        """The login has failed."""
        self._exchange = None
        self._cancel_expiry()
        self.enter(LoginEvent.REFUSED)

    def closed(self) -> bool:
        """The connection is closed. Returns whether a login was going on; a handler may still be working on it."""
        self._cancel_expiry()
        return self.state not in (LoginState.COMPLETE, LoginState.EXPIRED, LoginState.FAILED)

    def _cancel_expiry(self) -> None:
        expiry, self.expiry = self.expiry, None
        if expiry is not None:
            expiry.cancel()


# While a request is handled when the login's time is over, look again after so long (s).
_LOOK_AGAIN_S = 0.5


def succeed(
    context: KafkaContext, connection: Connection, session: SaslSession, identity: Identity, outbox: Outbox
) -> int:
    """The client has proved its identity. Returns how long (ms) that is valid; 0: without an end. Raises AuthenticationFailed
    if it was somebody else before."""
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
    """The message for the client, which is the same for every failure."""
    action = "authentication" if session.previous is None else "re-authentication"
    return f"Authentication failed during {action} due to invalid credentials with SASL mechanism {session.mechanism}"


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
