"""Which connections of a processor are closed without their client having asked: idle, abandoned, slow or excess connections.

On the processor's thread, about once a second (`Processor.close_excess_connections`). Closing itself is the processor's.

Thousands of idle connections must cost the busy ones nothing. So only a part of them is examined every second, and all within
about ten seconds; and waiting answers are counted only if there are any.

A peer is slow if it holds memory and moves too little of it, in either direction. That costs it its connection only while
memory for requests is short, or while too many answers wait in memory over all processors of the plane.

Each processor reports the bytes of its answers that wait for peers about once a second, and asks whether the sum over the plane
is too large. The bound of a single connection (``outgoing_high_water_bytes``) is exact and checked before each request. The
bound of the plane limits many such connections together, and is up to a second old.

Tests: tests/network/test_processor.py,
tests/network/test_request_memory.py,
tests/network/test_socket_server.py.
"""

from collections.abc import Callable, Collection
from math import inf

from broker.log import EventLimit, get_logger
from broker.network.connection import ProcessorConnection
from broker.network.memory_pool import MemoryPool
from broker.network.mute import CLOSING, MEMORY_SHORT, RESPONSE_PENDING, RESPONSE_UNSENT, THROTTLED
from broker.network.quota import ConnectionQuotas


class Unsent:
    """For any thread. Each processor writes its own entry only."""

    def __init__(self, limit: int) -> None:
        """``limit``: bytes, for all processors together."""
        self.limit = limit
        self._sizes: dict[int, int] = {}

    def report(self, processor: int, size: int) -> None:
        """Set how many bytes wait in the connections of this processor."""
        self._sizes[processor] = size

    @property
    def total(self) -> int:
        return sum(self._sizes.copy().values())

    @property
    def too_much(self) -> bool:
        return self.total > self.limit


log = get_logger("network")

# So many connections are looked at in a second, which takes about 1 ms; more, if looking at all of them would otherwise take
# longer than so many seconds.
_LOOKED_AT = 1000
_ROUND_S = 10
# A connection that has been quiet for so long (s) does not keep memory for its next frame.
_KEEP_MEMORY_S = 1.0
# While answers in memory are too many over all connections, each connection may have so many bytes of them.
_UNSENT_BYTES = 16 * 1024
# While memory is short, a peer that holds some must move this many bytes a second, and fill its memory within 30 s (the
# request.timeout.ms of Kafka's clients: a slower client has given up by then).
_SLOWEST_BYTES_S = 16 * 1024
_FILL_WITHIN_S = 30.0
# The speed is measured over so long (s): a client's hiccup, such as a garbage collection, must not cost it its connection.
_MEASURED_S = 5.0
# A peer that has closed its sending side may be waiting for an answer or may have gone: the two look the same. After so long
# (s) without anything to send to it, it counts as gone.
_LINGER_S = 10.0


class Expiry:
    """``high_water_bytes``: queued bytes of a connection past which its next request is put off. Read by the processor."""

    def __init__(
        self,
        number: int,
        connections: Collection[ProcessorConnection],
        disconnect: Callable[[ProcessorConnection], None],
        *,
        idle_max_s: float,
        high_water_bytes: int,
        memory: MemoryPool,
        unsent: Unsent,
        quotas: ConnectionQuotas,
    ) -> None:
        """``connections``: the processor's own, which ``disconnect`` removes from. ``number``: the processor's."""
        self.high_water_bytes = high_water_bytes
        self._usual_high_water_bytes = high_water_bytes
        self._number = number
        self._connections = connections
        self._disconnect = disconnect
        self._idle_max_s = idle_max_s
        self._memory = memory
        self._unsent = unsent
        self._quotas = quotas
        self._missed = EventLimit()
        self._slow = EventLimit()
        # Of the peers that hold memory: how far each had come, in bytes, and when.
        self._progress: dict[ProcessorConnection, tuple[int, float]] = {}
        # Those with bytes that the peer has not taken; also some that had. In a dict because its order can be repeated.
        self._unread: dict[ProcessorConnection, None] = {}
        self._unseen: list[ProcessorConnection] = []  # not looked at in this round

    def note_unread(self, connection: ProcessorConnection) -> None:
        """Note that the socket did not take everything."""
        self._unread[connection] = None

    def close_quiet(self, now: float) -> int:
        """Close connections that are idle, abandoned, or past their session's deadline, and take back memory that quiet ones
        keep. Returns how many were idle."""
        idle = 0
        for connection in self._next_part():
            quiet_s = now - connection.last_active
            holds = connection.holds
            kept = connection.keep and not holds & CLOSING
            if now >= getattr(connection.session, "deadline", inf):
                self._note_missed_deadline(connection, now)
                self._disconnect(connection)
            elif quiet_s > self._idle_max_s and not _is_working(holds) and not kept:
                idle += 1
                self._disconnect(connection)
            elif _is_abandoned(connection, quiet_s):
                self._disconnect(connection)
            elif _keeps_memory(connection, quiet_s):
                connection.received.release()
            if connection.socket.held_bytes:  # a TLS peer may be owed bytes that are no answer
                self._unread[connection] = None
        return idle

    def _next_part(self) -> list[ProcessorConnection]:
        """The connections whose turn it is. A round begins with all present connections; its last part may be small."""
        if not self._unseen:
            self._unseen = list(self._connections)
        count = max(_LOOKED_AT, -(-len(self._connections) // _ROUND_S))
        part, self._unseen = self._unseen[:count], self._unseen[count:]
        return [connection for connection in part if not connection.closed]

    def _note_missed_deadline(self, connection: ProcessorConnection, now: float) -> None:
        unlogged = self._missed.take(now)
        if unlogged is not None:
            peer = connection.peer
            log.info("deadline_missed", peer=peer.host, listener=peer.listener, unlogged_before=unlogged)

    def close_slow(self, now: float) -> None:
        """Measure the answers that wait in memory, set ``high_water_bytes``, and close slow peers while memory is short."""
        self._measure_unsent()
        too_much_unsent = self.high_water_bytes != self._usual_high_water_bytes
        if self._memory.short or too_much_unsent:  # the waiters for memory may be on another processor
            self._close_slow(now, too_much_unsent)
        elif self._progress:
            self._progress = {}

    def close_excess(self) -> None:
        """Close the connections that have been quiet longest while there are more than allowed: the limit was lowered, or the
        protected listener has got one. Each processor closes its share of them, so that a quiet connection goes before a busy one
        on any processor. Of a protected listener that is full, close those that have not logged in."""
        crowded = self._quotas.crowded
        if crowded:
            self._close_strangers(crowded)
        excess = self._quotas.excess
        if not excess:
            return
        # Rounded up. Others close connections meanwhile, so there may be none left.
        share = -(-excess * len(self._connections) // max(1, self._quotas.total))
        for connection in sorted((c for c in self._connections if c.in_flight is None), key=_last_active)[:share]:
            if not self._quotas.evict(connection.peer.host, connection.peer.listener):
                break
            connection.counted = False
            self._disconnect(connection)

    def _close_strangers(self, listeners: Collection[str]) -> None:
        """Half of those that have not logged in, whose session has a deadline: the oldest, so that one that has just come has the
        time for it."""
        waiting = [
            (deadline, connection)
            for connection in self._connections
            if connection.peer.listener in listeners
            and (deadline := getattr(connection.session, "deadline", inf)) < inf
        ]
        waiting.sort(key=_first)
        for _, connection in waiting[: -(-len(waiting) // 2)]:
            self._disconnect(connection)

    def _measure_unsent(self) -> None:
        self._unread = {each: None for each in self._unread if not each.closed and _is_owed(each)}
        self._unsent.report(self._number, sum(map(_unsent_bytes, self._unread)))
        usual = self._usual_high_water_bytes
        self.high_water_bytes = min(usual, _UNSENT_BYTES) if self._unsent.too_much else usual

    def _close_slow(self, now: float, too_much_unsent: bool) -> None:
        """The largest and slowest first, until memory is no longer short."""
        before, self._progress = self._progress, {}
        slow: list[tuple[float, ProcessorConnection]] = []
        for connection in self._connections:
            # Others wait for this memory, so it goes back before the connection is examined in its turn.
            if _keeps_memory(connection, now - connection.last_active):
                connection.received.release()
            held_bytes = connection.received.size if _holds_memory_idly(connection) else 0
            if too_much_unsent:
                held_bytes += _unsent_bytes(connection)
            if not held_bytes:
                continue
            # Grows with every byte that passes, in either direction.
            progress = connection.received.pending - connection.outgoing_bytes
            mark, since = before.get(connection, (progress, now))
            elapsed_s = now - since
            if progress < mark:  # another frame or response
                mark, since = progress, now
            elif elapsed_s >= _MEASURED_S:
                bytes_s = (progress - mark) / elapsed_s
                if bytes_s < max(_SLOWEST_BYTES_S, held_bytes / _FILL_WITHIN_S):
                    slow.append((held_bytes / (bytes_s + 1), connection))
                else:
                    mark, since = progress, now
            self._progress[connection] = mark, since
        slow.sort(key=_first, reverse=True)
        for _, connection in slow:
            if not self._memory.short and not self._unsent.too_much:
                break
            unlogged = self._slow.take(now)
            if unlogged is not None:
                log.info("slow_peer_closed", peer=connection.peer.host, unlogged_before=unlogged)
            self._disconnect(connection)
            if too_much_unsent:
                self._measure_unsent()


def _last_active(connection: ProcessorConnection) -> float:
    return connection.last_active


def _first(pair: tuple[float, ProcessorConnection]) -> float:
    return pair[0]


def _is_working(holds: int) -> bool:
    """A request is being handled. An answer that the peer does not read is no reason to keep a connection."""
    return holds & (RESPONSE_PENDING | RESPONSE_UNSENT | CLOSING) == RESPONSE_PENDING


def _keeps_memory(connection: ProcessorConnection, quiet_s: float) -> bool:
    """It holds memory for nothing but its next frame, and has been quiet for a while."""
    received = connection.received
    return quiet_s > _KEEP_MEMORY_S and received.held and not received.pending and not _is_working(connection.holds)


def _is_abandoned(connection: ProcessorConnection, quiet_s: float) -> bool:
    """Whether the peer has gone, as far as that can be told while the poller does not watch the connection."""
    if connection.finished and quiet_s > _LINGER_S and not connection.outgoing:
        return True
    return not connection.interest and connection.socket.broken()


def _is_owed(connection: ProcessorConnection) -> bool:
    return connection.outgoing_bytes > 0 or connection.socket.held_bytes > 0


def _unsent_bytes(connection: ProcessorConnection) -> int:
    """Bytes of answers in memory. What a service pushes is not counted: the service bounds it itself."""
    if not connection.session.in_flight_max:
        return 0
    return connection.outgoing_bytes - connection.outgoing_files + connection.socket.held_bytes


def _holds_memory_idly(connection: ProcessorConnection) -> bool:
    """It holds request memory, and its peer has to act: read a response, or send the rest of a request."""
    holds = connection.holds
    if not connection.received.held or holds & MEMORY_SHORT:
        return False
    if connection.outgoing:
        return holds & (RESPONSE_PENDING | RESPONSE_UNSENT) != RESPONSE_PENDING
    # A throttled peer may not act, but it keeps memory from peers that may.
    return connection.received.pending > 0 and not holds & ~THROTTLED
