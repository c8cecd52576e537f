"""Quotas: the number and rate of connections (Kafka's ConnectionQuotas), delivered bytes, and the throttling of connections.

*Connections*, of the broker, of a listener, of an address. Acceptors ask before they accept, processors report closed
connections; one lock. The limits may change at run time (``configure``).

- If the broker or a listener has reached its number or rate of connections, the acceptor accepts no more from that listener for a
  while; they wait in the backlog.
- If an address has reached its number, a further connection is closed at once. If it opens connections too fast, the acceptor
  keeps a new one for a moment and then closes it (``throttle``), so that a client that connects again at once is slowed down.
- The control listener is protected, and so is that of the nodes: it may have its own number whatever the others have. If there
  are too many altogether, the processors close connections of the other listeners (``evict``). If it has its number itself,
  they close those of its own that have not logged in (``crowded``): else it could be kept full by anybody. Limits of addresses
  do not concern the nodes, as clients may have the same address.

While the broker is suspended, its listeners take no connection: a new one is closed at once, so that its client looks for another
broker. Processors close those that there are, also if the broker goes on before they come to it (``outlived``).

A rate is a token bucket of one second: after a pause, as many may come at once as come in a second.

*Delivered bytes.* Messages of Pulsar's consumers and buffers of the shuffle service's readers are delivered unasked and count for
the client's ``consumer_byte_rate``, which is the quota of Kafka's Fetch, too. They count when they are sent. A receiver whose
client is in debt then gets nothing more until the debt is paid; it looks again each second, because the quota may have been
changed. Other receivers of the same client learn of the debt with their next delivery. Any thread; nothing here waits.

*Throttling* mutes the connections of clients that have used up a quota, each for its throttle time. As in Kafka a response is
sent at once, with the throttle time in it if the protocol has one, and the next request of the connection is not taken before
that time is over. So clients that ignore the throttle time are throttled, too. A connection's throttle begins and ends on its
processor, and the table has an entry from the beginning to the end, or until the connection is closed. The throttle ends by the
timer, or before that by ``end_all``, when quotas have changed.

Tests: tests/pulsar/subscriptions/test_consumer.py,
tests/shuffle/test_quotas.py.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

import attrs

from broker.network.service import Connection, Outbox, Peer
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer, TimerHandle
from broker.security.client_quotas import ClientQuotas, Kind

_NO_LIMIT = 2**31 - 1
# Kafka keeps a throttled connection for one window of its rate at most: 1 s.
_THROTTLE_MAX_S = 1.0
# Addresses whose rate is remembered. Beyond this number the oldest address is forgotten: it begins with a full second.
_ADDRESSES_MAX = 10_000


@attrs.frozen
class ListenerLimits:
    """The limits of one listener. ``max_per_second`` 0 = no limit."""

    max_connections: int = _NO_LIMIT
    max_per_second: float = 0.0


_UNLIMITED = ListenerLimits()


class Bucket:
    """New connections that may come now. Pure; guarded by the quotas' lock."""

    def __init__(self, now: float, rate: float) -> None:
        self._tokens = max(1.0, rate)
        self._refilled_at = now

    def wait_s(self, now: float, rate: float) -> float:
        """The time until the next connection may come; 0: now."""
        self._tokens = min(max(1.0, rate), self._tokens + (now - self._refilled_at) * rate)
        self._refilled_at = now
        return 0.0 if self._tokens >= 1.0 else (1.0 - self._tokens) / rate

    def take(self) -> None:
        self._tokens -= 1.0

    def refund(self) -> None:
        self._tokens += 1.0


class ConnectionQuotas:
    def __init__(
        self,
        max_connections: int,
        max_per_address: int,
        per_address_overrides: Mapping[str, int],
        max_per_second: float,
    ) -> None:
        """Counts are inclusive bounds; ``max_per_second`` 0 = no limit."""
        self._lock = Lock()
        self._per_address: Counter[str] = Counter()
        self._per_listener: Counter[str] = Counter()
        self._total = 0
        # New connections per second of an address; None: no limit.
        self.connection_rate: Callable[[str], float | None] = lambda _: None
        # By listener; only go up.
        self.accepted: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()  # the address had as many as it may
        self.throttled: Counter[str] = Counter()  # the address opened them too fast
        self.evicted: Counter[str] = Counter()
        self._protected: dict[str, int] = {}
        self._of_nodes = ""  # the listener at which limits of addresses do not count
        self.suspensions = 0  # only goes up; any thread may read it
        self._suspended: frozenset[str] = frozenset()  # listeners that may have no connections now
        self._suspending: frozenset[str] = frozenset()  # those that could not have any when it was suspended last
        self._broker = Bucket(0.0, max_per_second)
        self._listeners: dict[str, Bucket] = {}
        self._addresses: dict[str, Bucket] = {}
        self.configure(max_connections, max_per_address, per_address_overrides, max_per_second)

    def configure(
        self,
        max_connections: int,
        max_per_address: int,
        per_address_overrides: Mapping[str, int],
        max_per_second: float,
        listeners: Mapping[str, ListenerLimits] | None = None,
    ) -> None:
        """``listeners``: those with limits of their own, by name."""
        with self._lock:
            self.max_connections = max_connections
            self.max_per_address = max_per_address
            self.per_address_overrides = dict(per_address_overrides)
            self.max_per_second = max_per_second
            self.listeners = dict(listeners or {})

    def suspend(self, listeners: frozenset[str]) -> None:
        """From any thread: these listeners may have no connections until ``resume``."""
        with self._lock:
            self._suspended = self._suspending = listeners
            self.suspensions += 1

    def resume(self) -> None:
        with self._lock:
            self._suspended = frozenset()

    def outlived(self, peer: Peer) -> bool:
        """True if the broker was suspended after it accepted this connection, which is to be closed. From any thread."""
        return peer.suspensions != self.suspensions and peer.listener in self._suspending

    def protect(self, listener: str, max_connections: int, *, of_nodes: bool = False) -> None:
        """At the start: this listener may have so many, whatever the others have; ``of_nodes``: from any address."""
        self._protected[listener] = max_connections
        if of_nodes:
            self._of_nodes = listener

    @property
    def crowded(self) -> list[str]:
        """The protected listeners that take no more."""
        return [listener for listener in self._protected if self.full_for(listener)]

    @property
    def total(self) -> int:
        return self._total

    def of_listener(self) -> dict[str, int]:
        """The connections of each listener that has some."""
        with self._lock:
            return dict(self._per_listener)

    @property
    def full(self) -> bool:
        """No further connection may be accepted until one closes."""
        return self._total >= self.max_connections

    def full_for(self, listener: str) -> bool:
        """``full`` for a single listener."""
        limit = self.listeners.get(listener, _UNLIMITED).max_connections
        if listener in self._protected:
            return self._per_listener[listener] >= min(limit, self._protected[listener])
        return self.full or self._per_listener[listener] >= limit

    @property
    def excess(self) -> int:
        """The number of connections above the limit: it was lowered, or the protected listener has got some."""
        return max(0, self._total - self.max_connections)

    def delay(self, now: float, listener: str) -> float:
        """Seconds to wait before the listener may accept the next connection; 0 takes one from this second's allowance."""
        with self._lock:
            buckets = self._buckets(listener, now)
            delay = max((bucket.wait_s(now, rate) for bucket, rate in buckets), default=0.0)
            if not delay:
                for bucket, _ in buckets:
                    bucket.take()
        return delay

    def refund(self, listener: str) -> None:
        """No connection was accepted after ``delay`` allowed one."""
        with self._lock:
            for bucket, _ in self._buckets(listener, None):
                bucket.refund()

    def _buckets(self, listener: str, now: float | None) -> list[tuple[Bucket, float]]:
        buckets = []
        rate = self.listeners.get(listener, _UNLIMITED).max_per_second
        if rate > 0:
            if listener not in self._listeners:
                self._listeners[listener] = Bucket(now or 0.0, rate)
            buckets.append((self._listeners[listener], rate))
        if self.max_per_second > 0 and listener not in self._protected:
            buckets.append((self._broker, self.max_per_second))
        return buckets

    def throttle(self, address: str, now: float, listener: str = "") -> float:
        """How long (s) to keep a new connection of this address before it is closed; 0: it may come in."""
        rate = None if listener and listener == self._of_nodes else self.connection_rate(address)
        if rate is None or rate <= 0:
            return 0.0
        with self._lock:
            bucket = self._addresses.get(address)
            if bucket is None:
                if len(self._addresses) >= _ADDRESSES_MAX:
                    del self._addresses[next(iter(self._addresses))]
                bucket = self._addresses[address] = Bucket(now, rate)
            delay = bucket.wait_s(now, rate)
            if not delay:
                bucket.take()
        return min(delay, _THROTTLE_MAX_S)

    def open(self, address: str, listener: str) -> bool:
        """Count a new connection. False, and not counted, if its address has reached its limit or its listener is suspended."""
        with self._lock:
            if listener in self._suspended:
                return False
            if listener != self._of_nodes:
                limit = self.per_address_overrides.get(address, self.max_per_address)
                if self._per_address[address] >= limit:
                    self.refused[listener] += 1
                    if not self._per_address[address]:
                        del self._per_address[address]
                    return False
                self._per_address[address] += 1
            self._per_listener[listener] += 1
            self._total += 1
            self.accepted[listener] += 1
            return True

    def close(self, address: str, listener: str) -> None:
        """Stop counting a connection."""
        with self._lock:
            self._close(address, listener)

    def evict(self, address: str, listener: str) -> bool:
        """True if there are too many connections: this connection no longer counts, and the caller closes it.

        The check and the count are one step, so that processors that call this at the same time do not close too many.
        """
        with self._lock:
            if self._total <= self.max_connections or listener in self._protected:
                return False
            self._close(address, listener)
            self.evicted[listener] += 1
            return True

    def _close(self, address: str, listener: str) -> None:
        self._total -= 1
        counters = [(self._per_listener, listener)]
        if listener != self._of_nodes:
            counters.append((self._per_address, address))
        for counts, key in counters:
            counts[key] -= 1
            assert counts[key] >= 0
            if not counts[key]:
                del counts[key]


_LOOK_AGAIN_S = 1.0


class DeliveryQuota:
    def __init__(self, quotas: ClientQuotas, clock: Clock, timer: Timer) -> None:
        self._quotas = quotas
        self._clock = clock
        self._timer = timer

    def delivered(self, user: str, size: int) -> bool:
        """Count it. Whether the client is in debt now."""
        quotas = self._quotas
        return quotas.limits(Kind.FETCH) and quotas.take(Kind.FETCH, user, size, self._clock.monotonic()) > 0

    def when_to_look(self, user: str, look: Callable[[], None]) -> bool:
        """Have ``look`` called, on the timer's thread, when the debt of the client may be paid. False: there is no debt."""
        meter = self._quotas.meters(user, "").fetch
        if meter is None:
            return False
        now = self._clock.monotonic()
        throttle_s = meter.throttle_s(now)
        if throttle_s:
            self._timer.at(now + min(throttle_s, _LOOK_AGAIN_S), look)
        return throttle_s > 0


class Throttling:
    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._throttled: dict[Connection, tuple[Outbox, TimerHandle]] = {}

    def count_in(self, quotas: ClientQuotas) -> None:
        """These connections are among those that the quotas count as throttled, and go on when quotas change."""
        others = quotas.throttled
        quotas.throttled = lambda: others() + len(self)
        quotas.on_change.append(self.end_all)

    def __len__(self) -> int:
        """How many connections are throttled."""
        return len(self._throttled)

    def begin(self, connection: Connection, outbox: Outbox, until: float) -> None:
        """Throttle it until this time (Clock.monotonic() s). On its processor; its response has not been sent yet."""
        if connection in self._throttled:
            return
        handle = self._timer.at(until, partial(self._due, connection, outbox))
        self._throttled[connection] = outbox, handle
        outbox.start_throttling(connection)

    def _due(self, connection: Connection, outbox: Outbox) -> None:
        """Any thread."""
        outbox.call(connection, partial(self._end, connection))

    def _end(self, connection: Connection) -> None:
        """On its processor. The timer and ``end_all`` may both have asked for it."""
        entry = self._throttled.pop(connection, None)
        if entry is not None:
            outbox, handle = entry
            handle.cancel()
            outbox.end_throttling(connection)

    def end_all(self) -> None:
        """Let all go on now. Those that are above a quota still are throttled again after their next request. Any thread."""
        for connection, (outbox, _) in list(self._throttled.items()):
            self._due(connection, outbox)

    def forget(self, connection: Connection) -> None:
        """It is closed. On its processor."""
        entry = self._throttled.pop(connection, None)
        if entry is not None:
            entry[1].cancel()
