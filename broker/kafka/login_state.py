"""Where a connection of a `+sasl` listener stands with its login, as two tables. Kafka's SaslServerAuthenticator has the same.

What is answered in each state; anything else closes the connection. ``SaslSession`` takes a request only if its API is here:

| state | answered | reason |
|---|---|---|
| INITIAL_REQUEST | ApiVersions, SaslHandshake | Clients may ask what the broker serves, once. |
| HANDSHAKE_REQUEST | SaslHandshake | ApiVersions was answered. |
| AUTHENTICATE | SaslAuthenticate; ApiVersions with ILLEGAL_SASL_STATE | The mechanism is chosen. |
| AUTHENTICATE_RAW | tokens without a header | The same after version 0 of SaslHandshake. |
| COMPLETE | everything | The client has logged in. SaslHandshake begins to log in again. |
| EXPIRED | nothing | The login was not renewed in time. |
| FAILED | nothing | The refusal is sent after a delay, and then the connection is closed. |

What leads from one state to another:

| state | event | next state |
|---|---|---|
| INITIAL_REQUEST | VERSIONS_TOLD | HANDSHAKE_REQUEST |
| INITIAL_REQUEST | MECHANISM_CHOSEN | AUTHENTICATE |
| INITIAL_REQUEST | MECHANISM_CHOSEN_V0 | AUTHENTICATE_RAW |
| INITIAL_REQUEST | REFUSED | FAILED |
| HANDSHAKE_REQUEST | MECHANISM_CHOSEN | AUTHENTICATE |
| HANDSHAKE_REQUEST | MECHANISM_CHOSEN_V0 | AUTHENTICATE_RAW |
| HANDSHAKE_REQUEST | REFUSED | FAILED |
| AUTHENTICATE | PROVED | COMPLETE |
| AUTHENTICATE | REFUSED | FAILED |
| AUTHENTICATE_RAW | PROVED | COMPLETE |
| AUTHENTICATE_RAW | REFUSED | FAILED |
| COMPLETE | MECHANISM_CHOSEN | AUTHENTICATE |
| COMPLETE | MECHANISM_CHOSEN_V0 | AUTHENTICATE_RAW |
| COMPLETE | REFUSED | FAILED |
| COMPLETE | TIME_OVER | EXPIRED |

Pure. The state is ``SaslSession``'s and is changed on its processor's thread only.
"""

from enum import Enum
from typing import Final

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

_TABLE: Final[dict[tuple[LoginState, LoginEvent], LoginState]] = {
    (_S.INITIAL_REQUEST, _E.VERSIONS_TOLD): _S.HANDSHAKE_REQUEST,
    (_S.AUTHENTICATE, _E.PROVED): _S.COMPLETE,
    (_S.AUTHENTICATE_RAW, _E.PROVED): _S.COMPLETE,
    (_S.COMPLETE, _E.TIME_OVER): _S.EXPIRED,
}
for _state in (_S.INITIAL_REQUEST, _S.HANDSHAKE_REQUEST, _S.COMPLETE):
    _TABLE[_state, _E.MECHANISM_CHOSEN] = _S.AUTHENTICATE
    _TABLE[_state, _E.MECHANISM_CHOSEN_V0] = _S.AUTHENTICATE_RAW
for _state in (_S.INITIAL_REQUEST, _S.HANDSHAKE_REQUEST, _S.AUTHENTICATE, _S.AUTHENTICATE_RAW, _S.COMPLETE):
    _TABLE[_state, _E.REFUSED] = _S.FAILED

TABLE: Final = _TABLE

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


def next_state(state: LoginState, event: LoginEvent) -> LoginState:
    """The second table. AssertionError for an event that cannot happen in this state."""
    after = _TABLE.get((state, event))
    if after is None:
        raise AssertionError(f"{event.name} in state {state.name}")
    return after
