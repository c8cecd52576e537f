"""Whether the clients of connections are still there.

A broker learns late that a client is gone which has lost its network. Two questions are answered here. *Keep-alive*: a client
that says nothing for a while gets a PING, and its connection is closed if it says nothing after that either. *check*: somebody wants
the place of another client (the name of its producer, an exclusive subscription), and is told whether that one still answers.

Any thread. ``PulsarConnection.lock`` guards what is asked about a connection.

Tests: tests/pulsar/test_liveness.py.
"""

from collections.abc import Callable
from functools import partial

from broker.network.service import Request
from broker.pulsar.connection import PulsarConnection
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer
from protocol.pulsar.receipts import PING

# How long (s) a client has to answer the PING of a check. Pulsar's connectionLivenessCheckTimeoutMillis.
_CHECK_S = 5.0


class Liveness:
    """``interval_s``: a client that has been silent for so long gets a PING. Pulsar's keepAliveIntervalSeconds. 0: none does."""

    def __init__(self, clock: Clock, timer: Timer, interval_s: float) -> None:
        self._clock = clock
        self._timer = timer
        self._interval_s = interval_s
        # In the order in which they connected: what a sweep does must not depend on addresses.
        self._connections: dict[PulsarConnection, float] = {}  # when the last PING left; 0: it has been answered
        self._lock = Lock()
        self._sweeping = False

    # -- keep-alive -------------------------------------------------------------------------------------------------------

    def watch(self, state: PulsarConnection) -> None:
        """The client has connected."""
        if self._interval_s <= 0:
            return
        with self._lock:
            self._connections[state] = 0.0
            if self._sweeping:
                return
            self._sweeping = True
        self._timer.at(self._clock.monotonic() + self._interval_s / 2, self._sweep)

    def forget(self, state: PulsarConnection) -> None:
        """The connection is closed."""
        with self._lock:
            self._connections.pop(state, None)

    def _sweep(self) -> None:
        """On the timer's thread: a microsecond for each connection."""
        now = self._clock.monotonic()
        with self._lock:
            connections = list(self._connections.items())
            self._sweeping = bool(connections)
        for state, pinged_at in connections:
            if now - state.heard_at < self._interval_s or state.parked is not None:
                continue
            if pinged_at > state.heard_at:
                if now - pinged_at >= self._interval_s:
                    close(state)
                continue
            with self._lock:
                if state in self._connections:
                    self._connections[state] = now
            state.push(PING)
        if connections:
            self._timer.at(now + self._interval_s / 2, self._sweep)

    # -- checks -----------------------------------------------------------------------------------------------------------

    def check(self, state: PulsarConnection, done: Callable[[bool], None]) -> None:
        """Call ``done(True)`` when the client of this connection has said something, or ``done(False)`` when the connection is
        closed; it is closed if the client stays silent. ``done`` may be called at once, and on any thread; it must not block."""
        first = False
        with state.lock:
            # One that waits for the disk cannot be heard.
            closed, alive = state.closed, state.parked is not None
            if not (closed or alive):
                state.awaited.append(done)
                first = len(state.awaited) == 1
        if closed or alive:
            done(not closed)
        elif first:
            state.push(PING)
            self._timer.at(self._clock.monotonic() + _CHECK_S, partial(self._expire, state, state.heard_at))

    def _expire(self, state: PulsarConnection, heard_at: float) -> None:
        if state.awaited and state.heard_at == heard_at:
            close(state)


def close(state: PulsarConnection) -> None:
    """Close a connection without a request."""
    request = Request()
    request.connection = state.connection
    state.outbox.close(request)
