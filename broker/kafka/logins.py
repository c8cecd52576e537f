"""What all logins of a broker share: their numbers, the answers that wait, and when failures were last logged. Any thread.

Tests: tests/kafka/test_login.py.
"""

import attrs

from broker.kafka.login_failures import LoginFailures
from broker.log import get_logger
from broker.network.service import Peer
from broker.runtime.clock import Clock
from broker.security.sasl.exchange import AuthenticationFailed, LoginCounters

log = get_logger("kafka")

# Failed logins of one address are logged once in this time (s).
_LOG_EVERY_S = 10.0
_ADDRESSES_MAX = 1000
_USER_MAX = 100


@attrs.define(eq=False)
class Logins:
    clock: Clock
    counters: LoginCounters
    failures: LoginFailures
    # By address: when (Clock.monotonic() s) its failures are logged again. Racing threads log once more than they should.
    _logged: dict[str, float] = attrs.Factory(dict)

    def log_failure(self, peer: Peer, mechanism: str, error: AuthenticationFailed) -> None:
        """Unless one of the same address was logged a short time ago. The client's words are escaped and cut off."""
        now = self.clock.monotonic()
        if now < self._logged.get(peer.host, 0.0):
            return
        if len(self._logged) >= _ADDRESSES_MAX:
            self._logged.clear()
        self._logged[peer.host] = now + _LOG_EVERY_S
        log.warning(
            "authentication_failed",
            peer=peer.host,
            listener=peer.listener,
            mechanism=mechanism,
            user=None if error.user is None else ascii(error.user[:_USER_MAX]),
            reason=error.reason,
        )
