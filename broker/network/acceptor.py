"""The acceptor: one thread that owns the listening sockets and hands connections to the processors, round robin.

A processor's queue of new connections is bounded. The acceptor tries each processor once. If all queues are full, it keeps the
connection and accepts no other until a processor has taken it; further clients wait in the kernel's backlog.

A listener that has reached a limit of its own, or the broker's, waits alone. A connection of an address that connects too fast is
kept for a moment and closed then (``close_throttled_connections``), so that the client is slowed down.
"""

import heapq
from collections.abc import Sequence

import attrs

from broker.log import get_logger
from broker.network.new_connection import NewConnection, Receiver
from broker.network.quota import ConnectionQuotas
from broker.network.service import Peer, Service
from broker.runtime.clock import Clock
from broker.runtime.net import Exhausted, Listener, Socket
from broker.runtime.poller import READ, Poller
from broker.security.tls_listener import TlsListener

log = get_logger("network")

# Connections accepted from one listener before the next listener gets its turn.
_TURN = 64
# Without free descriptors a listener stays readable: wait so long (s) before the next attempt instead of spinning.
_REST_S = 0.1
# Throttled connections that are kept, and the share of the connections that there may be. Beyond it they are closed at once.
_THROTTLED_MAX = 1000
_THROTTLED_SHARE = 10
# Attempts fail ten times a second; they are logged at most once in so long (s).
_LOG_EVERY_S = 60.0


@attrs.define(eq=False)
class Endpoint:
    """A listening socket and the service for its connections."""

    name: str
    listener: Listener
    service: Service
    frame_max: int  # bytes of the largest request
    tls: TlsListener | None = None  # None: no TLS
    rest_until: float = 0.0  # Clock.monotonic() s: it has got as many new connections as it may
    listening: bool = False  # registered with the poller


class Acceptor:
    """The body of the acceptor thread."""

    def __init__(self, endpoints: Sequence[Endpoint], quotas: ConnectionQuotas, poller: Poller, clock: Clock) -> None:
        self.endpoints = list(endpoints)
        self._quotas = quotas
        self._poller = poller
        self._clock = clock
        self._processors: Sequence[Receiver] = ()
        self._next = 0
        self._held: NewConnection | None = None
        self._rest_until = 0.0
        self._log_from = 0.0
        # When to close it, a number that makes each entry different, and the socket.
        self._throttled: list[tuple[float, int, Socket]] = []
        self._throttled_number = 0
        self.accepted = 0
        self.refused = 0

    def deal_to(self, processors: Sequence[Receiver]) -> None:
        """From any thread: use these processors from now on. The acceptor reads the sequence once per connection."""
        self._processors = tuple(processors)
        self._poller.wakeup()

    def step(self, timeout: float | None) -> bool:
        now = self._clock.monotonic()
        if self._held is not None:
            self._held.handed_at = now
            if self._assign(self._held):
                self._held = None
        self.close_throttled_connections(now)
        everybody = self._held is None and now >= self._rest_until
        waiting = bool(self._throttled)
        for endpoint in self.endpoints:
            open_for_more = everybody and now >= endpoint.rest_until and not self._quotas.full_for(endpoint.name)
            self._listen(endpoint, open_for_more)
            waiting |= not open_for_more
        if waiting:
            # A processor wakes the acceptor when it has room or has closed a connection. The timeout covers the other cases.
            timeout = _REST_S if timeout is None else min(timeout, _REST_S)
        self._poller.arm()
        accepted_any = False
        for key, _ in self._poller.poll(timeout):
            accepted_any |= self._accept(key.data)
        return accepted_any

    def close_throttled_connections(self, now: float) -> None:
        """Close the throttled connections whose time has come."""
        while self._throttled and self._throttled[0][0] <= now:
            heapq.heappop(self._throttled)[2].close()

    @property
    def throttled(self) -> int:
        """Connections that are kept and will be closed. For any thread."""
        return len(self._throttled)

    def wakeup(self) -> None:
        self._poller.wakeup()

    def close(self) -> None:
        """Stop listening. Called on the acceptor's thread, or after that thread has ended."""
        for endpoint in self.endpoints:
            self._listen(endpoint, False)
            endpoint.listener.close()
        for _, _, socket in self._throttled:
            socket.close()
        self._throttled = []
        if self._held is not None:
            self._refuse(self._held)
            self._held = None
        self._poller.close()

    def _listen(self, endpoint: Endpoint, listening: bool) -> None:
        if listening == endpoint.listening:
            return
        endpoint.listening = listening
        if listening:
            self._poller.register(endpoint.listener, READ, endpoint)
        else:
            self._poller.unregister(endpoint.listener)

    def _accept(self, endpoint: Endpoint) -> bool:
        accepted_any = False
        for _ in range(_TURN):
            if self._held is not None or self._quotas.full_for(endpoint.name):
                break
            now = self._clock.monotonic()
            delay = self._quotas.delay(now, endpoint.name)
            if delay > 0:
                endpoint.rest_until = now + delay
                break
            try:
                accepted = endpoint.listener.accept()
            except Exhausted as error:
                self._quotas.refund(endpoint.name)
                if now >= self._log_from:
                    self._log_from = now + _LOG_EVERY_S
                    log.warning("descriptors_exhausted", listener=endpoint.name, error=str(error))
                self._rest_until = now + _REST_S
                break
            if accepted is None:
                self._quotas.refund(endpoint.name)
                break
            accepted_any = True
            socket, (host, port), local = accepted
            throttle_s = self._quotas.throttle(host, now, endpoint.name)
            if throttle_s > 0:
                self._quotas.refund(endpoint.name)
                self._throttle(socket, endpoint, now + throttle_s)
                continue
            suspensions = self._quotas.suspensions  # before it is counted: a suspension from here on closes it
            if not self._quotas.open(host, endpoint.name):
                self.refused += 1
                socket.close()
                continue
            self.accepted += 1
            peer = Peer(host, port, endpoint.name, local, suspensions)
            new = NewConnection(socket, peer, endpoint.service, endpoint.frame_max, endpoint.tls, now, now)
            if not self._assign(new):
                self._held = new
        return accepted_any

    def _throttle(self, socket: Socket, endpoint: Endpoint, until: float) -> None:
        self._quotas.throttled[endpoint.name] += 1
        # They have descriptors, and those are counted by the number of connections.
        most = min(_THROTTLED_MAX, self._quotas.max_connections // _THROTTLED_SHARE)
        if len(self._throttled) >= most or len(self._throttled) + self._quotas.total >= self._quotas.max_connections:
            socket.close()
            return
        self._throttled_number += 1
        heapq.heappush(self._throttled, (until, self._throttled_number, socket))

    def _assign(self, new: NewConnection) -> bool:
        processors = self._processors
        for _ in processors:
            self._next = (self._next + 1) % len(processors)
            if processors[self._next].offer(new):
                return True
        return False

    def _refuse(self, new: NewConnection) -> None:
        self._quotas.close(new.peer.host, new.peer.listener)
        new.socket.close()
