"""One connection of a `+sasl` listener: its login, and what it may ask meanwhile.

``SaslSession`` belongs to its processor's thread. Only ``evaluate`` may run on a handler; the connection takes no request until
it is answered, so nothing else happens to the session meanwhile. What an expired login and a failed one lead to is in
``login.py``.
"""

import struct
from collections.abc import Mapping
from math import inf

import attrs

from broker.kafka.api import Api, KafkaRequest
from broker.kafka.kafka_session import KafkaSession, Runs
from broker.kafka.login_state import ANSWERED, LoginEvent, LoginState, next_state
from broker.runtime.timers import TimerHandle
from broker.security.principal import Principal
from broker.security.sasl.exchange import Exchange, Identity, NewExchange, Refuse
from protocol.errors import ProtocolError

_LENGTH = struct.Struct(">i").unpack_from
# The smallest request: key, version and correlation id. A token may be empty.
_SMALLEST = 8
_UNLIMITED = 2**31 - 1
# A client that logs in again sooner than this (s) after it has begun the last time is refused (KIP-368).
_REAUTHENTICATION_INTERVAL_S = 1.0


@attrs.frozen
class LoginRules:
    """What holds for all logins of one listener. ``mechanisms``: by name, what begins a login."""

    listener: str
    mechanisms: Mapping[str, NewExchange]
    apis: Mapping[LoginState, dict[int, Api]]
    raw_api: Api  # of a token without a header
    max_receive_bytes: int
    timeout_s: float
    max_reauth_ms: int
    failure_delay_s: float


def apis_by_state(apis: dict[int, Api]) -> Mapping[LoginState, dict[int, Api]]:
    """Those that are answered in each state."""
    return {
        state: apis if answered is None else {key: api for key, api in apis.items() if key in answered}
        for state, answered in ANSWERED.items()
    }


class SaslSession(KafkaSession):
    # Until when (Clock.monotonic() s) the login must end, or the processor closes the connection.
    deadline: float

    def __init__(self, rules: LoginRules, now: float, runs: Runs | None = None) -> None:
        super().__init__(rules.apis[LoginState.INITIAL_REQUEST], runs)
        self.rules = rules
        self.state = LoginState.INITIAL_REQUEST
        self.deadline = now + rules.timeout_s
        self.mechanism = ""
        # Who has logged in before, while the client logs in again.
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
        if size <= len(data) and not data[5] and self._runs is not None and self.state is LoginState.COMPLETE:
            return self._run_size(data, size)
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
        """Whether the client may log in now. It may not log in again where logins have no end, nor too often, nor too late."""
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
        """Whether the client has chosen a mechanism and has to prove who it is."""
        return self.state in (LoginState.AUTHENTICATE, LoginState.AUTHENTICATE_RAW)

    @property
    def exchange(self) -> Exchange:
        """Of the login that goes on now."""
        assert self._exchange is not None, "no mechanism was chosen"
        return self._exchange

    def complete(self, identity: Identity, wall_ms: int) -> int | None:
        """The client is ``identity``. How long (ms) that is valid; None: without an end."""
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
        """The connection is closed. Whether a login was going on, which a handler may still be working on."""
        self._cancel_expiry()
        return self.state not in (LoginState.COMPLETE, LoginState.EXPIRED, LoginState.FAILED)

    def _cancel_expiry(self) -> None:
        expiry, self.expiry = self.expiry, None
        if expiry is not None:
            expiry.cancel()
