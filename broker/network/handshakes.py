"""The TLS handshakes of one processor: their turns, the work done at a time, and their time limit.

On the processor's thread. A handshake takes 0.3 ms of the processor with a P-256 key and 0.7 ms with an RSA key, in one piece. So
that a crowd of new connections does not keep the others waiting, each step of the processor has a budget for handshakes, and
ready handshakes take turns. While its handshake lasts, a connection has the hold HANDSHAKING and nothing else to do.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import attrs

from broker.log import EventLimit, get_logger
from broker.network.connection import ProcessorConnection
from broker.network.mute import HANDSHAKING, MuteEvent, next_holds
from broker.runtime.clock import Clock
from broker.runtime.poller import READ
from broker.security.principal import NoRuleMatches
from broker.security.tls_listener import TlsListener

if TYPE_CHECKING:
    from broker.runtime.tls import TlsSocket

log = get_logger("network")

# How long (s) the handshakes of one step of a processor may take. The first is always done.
_STEP_S = 0.002
# Failed handshakes are logged at most once in so long (s).
_LOG_EVERY_S = 1.0


@attrs.define
class HandshakeStats:
    """Only the processor's thread writes them; any thread may read them."""

    completed: int = 0
    failed: int = 0
    late: int = 0


@attrs.frozen(eq=False)
class Handshake:
    """One that has not ended."""

    socket: "TlsSocket"
    tls: TlsListener
    deadline: float  # Clock.monotonic() s


class Handshakes:
    def __init__(
        self,
        clock: Clock,
        timeout_s: float,
        *,
        set_interest: Callable[[ProcessorConnection, int], None],
        established: Callable[[ProcessorConnection], None],
        disconnect: Callable[[ProcessorConnection], None],
    ) -> None:
        """``established``: called when the connection has no hold HANDSHAKING any more."""
        self.stats = HandshakeStats()
        self._clock = clock
        self._timeout_s = timeout_s
        self._set_interest = set_interest
        self._established = established
        self._disconnect = disconnect
        self._running: dict[ProcessorConnection, Handshake] = {}
        self.turns: Final[deque[ProcessorConnection]] = deque()  # those that could go on now
        self._ready: set[ProcessorConnection] = set()  # the same
        self._failures = EventLimit(burst=1, every_s=_LOG_EVERY_S)

    def __len__(self) -> int:
        return len(self._running)

    def start(self, connection: ProcessorConnection, socket: "TlsSocket", tls: TlsListener) -> None:
        """``connection`` is about to be registered for READ."""
        connection.holds = next_holds(connection.holds, MuteEvent.HANDSHAKE_STARTED)
        self._running[connection] = Handshake(socket, tls, self._clock.monotonic() + self._timeout_s)

    def ready(self, connection: ProcessorConnection) -> None:
        """Its socket is readable or writable: it gets its turn in ``run``."""
        if connection not in self._ready:
            self._ready.add(connection)
            self.turns.append(connection)

    def run(self) -> None:
        """Continue ready handshakes, within the budget of one step."""
        ends = self._clock.monotonic() + _STEP_S
        for _ in range(len(self.turns)):
            connection = self.turns.popleft()
            self._ready.discard(connection)
            handshake = self._running.get(connection)
            if handshake is not None:
                self._continue(connection, handshake)
                if self._clock.monotonic() >= ends:
                    break

    def forget(self, connection: ProcessorConnection) -> Handshake | None:
        """Forget a connection that is closed or moves to another processor."""
        return self._running.pop(connection, None)

    def take_over(self, connection: ProcessorConnection, handshake: Handshake) -> None:
        """Continue a handshake that another processor has begun."""
        self._running[connection] = handshake
        self.ready(connection)

    def close_late(self, now: float) -> None:
        """Close connections whose handshakes take too long."""
        for connection in [each for each, handshake in self._running.items() if handshake.deadline <= now]:
            self.stats.late += 1
            self._log(connection, f"not finished after {self._timeout_s:g} s")
            self._disconnect(connection)

    def _continue(self, connection: ProcessorConnection, handshake: Handshake) -> None:
        try:
            wait = handshake.socket.handshake()
            if not wait:
                connection.principal = handshake.tls.principal(handshake.socket.facts().certificate)
        except (OSError, NoRuleMatches, ValueError) as error:
            self.stats.failed += 1
            self._log(connection, getattr(error, "reason", None) or str(error))
            self._disconnect(connection)
            return
        except Exception as error:  # the seam: a client's certificate never ends the processor
            self.stats.failed += 1
            log.error("handshake_failed", exc_info=error, peer=connection.peer.host, listener=connection.peer.listener)
            self._disconnect(connection)
            return
        if wait:
            self._set_interest(connection, wait)
            if wait == READ and handshake.socket.buffered:
                self.ready(connection)
            return
        del self._running[connection]
        self.stats.completed += 1
        connection.last_active = self._clock.monotonic()
        connection.holds = next_holds(connection.holds, MuteEvent.HANDSHAKE_ENDED)
        assert not connection.holds & HANDSHAKING
        self._set_interest(connection, READ)
        self._established(connection)

    def _log(self, connection: ProcessorConnection, reason: str) -> None:
        unlogged = self._failures.take(self._clock.monotonic())
        if unlogged is not None:
            log.info(
                "handshake_failed",
                peer=connection.peer.host,
                listener=connection.peer.listener,
                reason=reason,
                unlogged_before=unlogged,
            )
