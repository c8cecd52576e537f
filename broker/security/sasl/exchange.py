"""The interface of a SASL mechanism: an `Exchange` is one login of one client.

`LoginCounters` counts logins by listener, mechanism and result. Any thread may count; logins are rare enough for a
lock.

Tests: tests/kafka/handlers/test_sasl_authenticate.py.
"""

from collections.abc import Callable
from enum import Enum
from typing import Protocol

import attrs

from broker.metrics import Registry, names
from broker.runtime.threads import Lock
from broker.security.principal import USER, Principal
from protocol.sasl.scram import USER_MAX_BYTES


class LoginResult(Enum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REAUTHENTICATED = "reauthenticated"
    REAUTHENTICATION_FAILED = "reauthentication_failed"
    EXPIRED = "expired"  # the login was no longer valid and was not renewed, so the connection was closed
    UNFINISHED = "unfinished"  # the connection was closed before the login ended


class LoginCounters:
    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[tuple[str, ...], float] = {}

    def count(self, listener: str, mechanism: str, result: LoginResult) -> None:
        """``mechanism``: a mechanism of the listener, or an empty text if the client chose none."""
        key = (listener, mechanism, result.value)
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + 1

    def read(self) -> dict[tuple[str, ...], float]:
        with self._lock:
            return self._counts.copy()

    def register(self, registry: Registry) -> None:
        registry.read_counter(names.SASL_LOGINS, self.read)


class AuthenticationFailed(Exception):
    """The client has not proved its identity. ``reason`` is for the broker's log; the client is not told.

    ``user``: the name that the client gave, if any.
    """

    def __init__(self, reason: str, user: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.user = user


@attrs.frozen(slots=True)
class Identity:
    """The result of a login. ``expires_ms``: when the proof expires, wall clock in ms since the epoch; None: never."""

    principal: Principal
    expires_ms: int | None = None


@attrs.frozen(slots=True)
class Step:
    """The broker's token, and, at the end of the exchange, the client's identity."""

    token: bytes
    identity: Identity | None = None


class Exchange(Protocol):
    """One login. Used by one thread at a time; its state between two tokens is bounded."""

    # Whether the next `evaluate` may take longer than 0.2 ms, so that a processor must not call it.
    slow: bool

    def evaluate(self, token: bytes) -> Step:
        """The answer to the client's token. Raises AuthenticationFailed; then the exchange is over."""


NewExchange = Callable[[], Exchange]


class Refuse:
    """An exchange that fails whatever the client sends."""

    slow = False

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def evaluate(self, token: bytes) -> Step:
        raise AuthenticationFailed(self._reason)


def subject_of(value: object) -> Principal:
    """The principal of a token's subject. Raises AuthenticationFailed."""
    if isinstance(value, str):
        try:
            # JSON can escape half of a character, and neither an ACL nor a quota could name such a user.
            size = len(value.encode())
        except UnicodeEncodeError:
            size = 0
        if 0 < size <= USER_MAX_BYTES:
            return Principal(USER, value)
    raise AuthenticationFailed("a token without a subject")
