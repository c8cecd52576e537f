"""Keep-alive: a client that is silent for an interval gets a PING, and is disconnected if it stays silent for another.

So the producers and consumers of a client that has lost its network do not stay for ever, and firewalls do not cut off quiet
connections. A single timer checks all connections.

Any thread.

Tests: tests/pulsar/test_keep_alive.py.
"""

from broker.log import EventLimit, get_logger
from broker.network.service import Request
from broker.pulsar.connection import PulsarConnection
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer
from protocol.pulsar.deliveries import PING

log = get_logger("pulsar")


class KeepAlive:
    def __init__(self, clock: Clock, timer: Timer, interval_s: float) -> None:
        """``interval_s``: how long a client may be silent before it gets a PING, and again after it. 0: no limit."""
        self._clock = clock
        self._timer = timer
        self._interval_s = interval_s
        # The time of the last PING (Clock.monotonic() s), in the order in which the clients connected: the order of a sweep must
        # not depend on addresses.
        self._connections: dict[PulsarConnection, float] = {}
        self._lock = Lock()
        self._sweeping = False
        self._silent = EventLimit()

    def watch(self, state: PulsarConnection) -> None:
        """The client has connected."""
        if self._interval_s <= 0:
            return
        with self._lock:
            self._connections[state] = 0.0
            if self._sweeping:
                return
            self._sweeping = True
        self._again()

    def forget(self, state: PulsarConnection) -> None:
        """The connection is closed."""
        with self._lock:
            self._connections.pop(state, None)

    def _again(self) -> None:
        self._timer.at(self._clock.monotonic() + self._interval_s / 2, self._sweep)

    def _sweep(self) -> None:
        """On the timer's thread: about a microsecond for each connection."""
        now = self._clock.monotonic()
        with self._lock:
            connections = list(self._connections.items())
            self._sweeping = bool(connections)
        if connections:  # first, so that the sweeps continue even if a connection fails
            self._again()
        for state, pinged_at in connections:
            # A connection whose SENDs wait for the disk is not read.
            if now - state.heard_at < self._interval_s or state.parked is not None:
                continue
            if pinged_at <= state.heard_at:
                with self._lock:
                    if state in self._connections:
                        self._connections[state] = now
                state.push(PING)
            elif now - pinged_at >= self._interval_s:
                left_out = self._silent.take(now)
                if left_out is not None:
                    log.info("client_silent", peer=state.connection.peer.host, unlogged_before=left_out)
                request = Request()
                request.connection = state.connection
                state.outbox.close(request)
