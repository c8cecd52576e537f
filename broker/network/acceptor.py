"""The acceptor: one thread that owns listening sockets and deals connections out to the processors.

Round robin. A processor's queue of new connections is bounded: each is tried once, and when all are full the acceptor keeps
that one connection and waits for the last one tried - it takes no other from the kernel's backlog meanwhile.
"""

from collections.abc import Sequence

import attrs

from broker.log import get_logger
from broker.network.new_connection import NewConnection, Receiver
from broker.network.quota import ConnectionQuotas
from broker.network.service import Peer, Service
from broker.runtime.clock import Clock
from broker.runtime.net import Exhausted, Listener
from broker.runtime.poller import READ, Poller

log = get_logger("network")

# Connections taken from one listener before the next one gets its turn.
_TURN = 64
# Out of descriptors: rest this long (s) instead of spinning on a listener that stays readable.
_REST_S = 0.1
# It is tried ten times a second, and logged once in this time (s).
_COMPLAIN_EVERY_S = 60.0


@attrs.define(eq=False)
class Endpoint:
    """A listening socket and what is served on it."""

    name: str
    listener: Listener
    service: Service
    frame_max: int  # bytes of the largest request


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
        self._listening = False
        self._rest_until = 0.0
        self._complain_from = 0.0
        self.accepted = 0
        self.refused = 0

    def deal_to(self, processors: Sequence[Receiver]) -> None:
        """From any thread: use these processors from now on (one assignment: the acceptor reads it once per connection)."""
        self._processors = tuple(processors)
        self._poller.wakeup()

    def step(self, timeout: float | None) -> bool:
        if self._held is not None and not self._assign(self._held):
            self._listen(False)
        else:
            self._held = None
        now = self._clock.monotonic()
        open_for_more = self._held is None and not self._quotas.full and now >= self._rest_until
        self._listen(open_for_more)
        if not open_for_more:
            # Woken by a processor that has room or has closed something; the time-out covers the rest.
            timeout = _REST_S if timeout is None else min(timeout, _REST_S)
        self._poller.arm()
        took = False
        for key, _ in self._poller.poll(timeout):
            took |= self._accept(key.data)
        return took

    def wakeup(self) -> None:
        self._poller.wakeup()

    def close(self) -> None:
        """Stop listening. On the acceptor's thread, or when it has ended."""
        self._listen(False)
        for endpoint in self.endpoints:
            endpoint.listener.close()
        if self._held is not None:
            self._refuse(self._held)
            self._held = None
        self._poller.close()

    def _listen(self, wanted: bool) -> None:
        if wanted == self._listening:
            return
        self._listening = wanted
        for endpoint in self.endpoints:
            if wanted:
                self._poller.register(endpoint.listener, READ, endpoint)
            else:
                self._poller.unregister(endpoint.listener)

    def _accept(self, endpoint: Endpoint) -> bool:
        took = False
        for _ in range(_TURN):
            if self._held is not None or self._quotas.full:
                break
            now = self._clock.monotonic()
            delay = self._quotas.delay(now)
            if delay > 0:
                self._rest_until = now + delay
                break
            try:
                accepted = endpoint.listener.accept()
            except Exhausted as error:
                self._quotas.refund()
                if now >= self._complain_from:
                    self._complain_from = now + _COMPLAIN_EVERY_S
                    log.warning("accept_exhausted", listener=endpoint.name, error=str(error))
                self._rest_until = now + _REST_S
                break
            if accepted is None:
                self._quotas.refund()
                break
            took = True
            socket, (host, port), local = accepted
            if not self._quotas.open(host):
                self.refused += 1
                socket.close()
                continue
            self.accepted += 1
            new = NewConnection(socket, Peer(host, port, endpoint.name, local), endpoint.service, endpoint.frame_max)
            if not self._assign(new):
                self._held = new
        return took

    def _assign(self, new: NewConnection) -> bool:
        processors = self._processors
        for _ in processors:
            self._next = (self._next + 1) % len(processors)
            if processors[self._next].offer(new):
                return True
        return False

    def _refuse(self, new: NewConnection) -> None:
        self._quotas.close(new.peer.host)
        new.socket.close()
