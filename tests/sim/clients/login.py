"""The logins of a simulated client on a connection: the first, and the renewal before its session ends.

Tests: tests/sim/test_simulation.py.
"""

from typing import Any

import attrs

from protocol.kafka.api_keys import ApiKey
from tests.scram import ScramClient
from tests.sim.world import Violation

REFUSED = 58  # SASL_AUTHENTICATION_FAILED


@attrs.frozen
class Account:
    user: str
    password: str
    mechanism: str = "SCRAM-SHA-256"


class Login:
    """One exchange. ``request()``, then ``answered(body)``, until it is ``done`` or ``refused``."""

    def __init__(self, name: str, account: Account, rng: Any) -> None:
        self._name = name
        self._account = account
        self._scram = ScramClient(account.mechanism, account.user, account.password, f"{rng.getrandbits(64):x}")
        self._step = 0
        self._server_first = b""
        self.refused = False
        self.lifetime_s = 0.0  # 0: the session does not end

    @property
    def done(self) -> bool:
        return self._step == 3

    def request(self) -> tuple[ApiKey, dict[str, Any]]:
        if self._step == 0:
            return ApiKey.SASL_HANDSHAKE, {"mechanism": self._account.mechanism}
        token = self._scram.first() if self._step == 1 else self._scram.final(self._server_first)
        return ApiKey.SASL_AUTHENTICATE, {"auth_bytes": token}

    def answered(self, body: Any) -> None:
        if body.error_code:
            if body.error_code != REFUSED:
                raise Violation(f"{self._name}: a login is answered with {body.error_code!r}")
            self.refused = True
            return
        if self._step == 1:
            self._server_first = body.auth_bytes
        elif self._step == 2:
            if not self._scram.is_genuine(body.auth_bytes):
                raise Violation(f"{self._name}: the broker does not prove that it knows the password")
            lifetime = getattr(body, "session_lifetime", None)
            self.lifetime_s = 0.0 if lifetime is None else _seconds(lifetime)
        self._step += 1


def _seconds(lifetime: Any) -> float:
    return float(lifetime.total_seconds() if hasattr(lifetime, "total_seconds") else lifetime / 1000)
