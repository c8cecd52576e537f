"""State that all logins of a broker share: their counts, the answers to failed logins, and when failures were last logged.

An answer to a failed login is sent after a delay, and then its connection is closed. Meanwhile the connection takes no request,
and no thread waits. The delay makes guessing slower, so a client that closes its sending side is not answered earlier. The number
of waiting answers is bounded, for each address and in all; beyond that a connection is closed at once, without an answer.

``refuse`` and the end of each delay run on the connection's processor; the rest may run on any thread. The counts are those of
all processors.

``CODES`` has Kafka's numbers of the SCRAM mechanisms (ScramMechanism.type), which requests about credentials use.

Tests: tests/kafka/test_sasl_session_login.py,
tests/kafka/handlers/test_sasl_handshake.py,
tests/kafka/handlers/test_alter_user_scram_credentials.py.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import attrs

from broker.log import get_logger
from broker.network.service import Outbox, Part, Peer, Request
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer, TimerHandle
from broker.security.sasl.exchange import AuthenticationFailed, LoginCounters

# A waiting answer takes about 1 KiB, besides the memory of its connection.
WAITING_MAX = 10_000
WAITING_OF_ADDRESS_MAX = 1_000


class LoginFailures:
    def __init__(self, clock: Clock, timer: Timer) -> None:
        self.stopping = False  # the broker stops: answer at once
        self._clock = clock
        self._timer = timer
        self._lock = Lock()
        self._waiting: dict[str, int] = {}  # by address
        self._total = 0

    @property
    def waiting(self) -> int:
        return self._total

    def refuse(self, request: Request, outbox: Outbox, parts: Sequence[Part], delay_s: float) -> None:
        """Send ``parts``, which may be nothing, after ``delay_s``, and close the connection."""
        connection = request.connection
        if self.stopping or not delay_s:
            _answer(request, outbox, parts)
        elif not self._take(connection.peer.host):
            outbox.close(request)
        else:
            waiting = _Waiting(self, request, outbox, parts)
            connection.data = waiting
            waiting.timer = self._timer.at(
                self._clock.monotonic() + delay_s, partial(outbox.call, connection, waiting.end)
            )

    def _take(self, host: str) -> bool:
        with self._lock:
            waiting = self._waiting.get(host, 0)
            if waiting >= WAITING_OF_ADDRESS_MAX or self._total >= WAITING_MAX:
                return False
            self._waiting[host] = waiting + 1
            self._total += 1
            return True

    def give_back(self, host: str) -> None:
        with self._lock:
            self._total -= 1
            self._waiting[host] -= 1
            if not self._waiting[host]:
                del self._waiting[host]


class _Waiting:
    """A waiting answer: the ``data`` of its connection. ``KafkaService`` calls ``give_up`` and ``abandon``."""

    timer: TimerHandle | None = None

    def __init__(self, failures: LoginFailures, request: Request, outbox: Outbox, parts: Sequence[Part]) -> None:
        self._failures = failures
        self._request = request
        self._outbox = outbox
        self._parts = parts

    def end(self) -> None:
        """The delay is over."""
        connection = self._request.connection
        if connection.data is self:
            connection.data = None
            self.abandon()
            _answer(self._request, self._outbox, self._parts)

    def give_up(self) -> None:
        """The broker stops, or the peer sends nothing more."""
        if self._failures.stopping:
            self.end()

    def abandon(self) -> None:
        """The connection is closed, or the answer is sent."""
        self._failures.give_back(self._request.connection.peer.host)
        if self.timer is not None:
            self.timer.cancel()


def _answer(request: Request, outbox: Outbox, parts: Sequence[Part]) -> None:
    if parts:
        outbox.send(request, parts)
    outbox.close(request)


log = get_logger("kafka")

# Failed logins of an address are logged once in this time (s).
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
        """Log a failed login, unless the address had one logged a short time ago. The client's words are escaped and cut off."""
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


CODES: Final[Mapping[str, int]] = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
NAMES: Final[Mapping[int, str]] = {code: name for name, code in CODES.items()}
