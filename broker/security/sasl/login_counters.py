"""How many logins there were, by listener, mechanism and result. Any thread may count; logins are rare enough for a lock.

Tests: tests/kafka/handlers/test_sasl_authenticate.py.
"""

from enum import Enum

from broker.metrics import Registry, names
from broker.runtime.threads import Lock


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
        """``mechanism``: one of the listener's, or an empty text where none was chosen."""
        key = (listener, mechanism, result.value)
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + 1

    def read(self) -> dict[tuple[str, ...], float]:
        with self._lock:
            return self._counts.copy()

    def register(self, registry: Registry) -> None:
        registry.read_counter(names.SASL_LOGINS, self.read)
