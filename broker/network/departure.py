"""How a removed processor hands its connections over to the others, whatever their state. Kafka closes them.

A connection moves as it is, between two steps of the processor: with its session, its holds, its received and unsent bytes, its
request in flight, and the socket. Nobody but its processor works on a connection, so the only other concern is that threads may
be about to leave work for it in the inbox of the leaving processor. None of that work may be lost, and two pieces of work from
one thread must stay in their order. Therefore:

- A thread that leaves work in an inbox looks at ``begun`` afterwards, and if it is set calls ``forward`` before it goes on.
- The leaving processor first sets ``begun``. Then, under its lock and for some connections at a time, it leaves each of them in
  the inbox of its heir (``adopt``), then passes on all work for them from its own inbox, and only then writes the heir
  into ``connection.processor``. So before any thread can read the new address, the earlier work is in the heir's
  inbox; and work that arrives meanwhile is passed on by its sender, who waits for the lock, before the sender can leave more.
- The heir waits for the same lock when it takes a connection over. So it never works on a connection with the old address.

An heir may leave itself, at any time. It then first takes over the connections that it has adopted. Locks are taken in the
order in which processors leave, because an heir is never a processor that has left before.

``Departure`` moves the work, and other threads call some of it. ``Moving`` is the part of a processor's own thread, for its own
connections before, and for those that it takes over.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import attrs

from broker.log import get_logger
from broker.network.connection import ProcessorConnection
from broker.network.connections import ConnectionTable, Turns
from broker.network.expiry import Expiry
from broker.network.handshakes import Handshake
from broker.network.mute import CHANNEL_FULL, DRAINING, HANDSHAKING, MEMORY_SHORT
from broker.network.receiving import Receiving
from broker.network.sending import Sending
from broker.network.service import Mailbox, Request, Verb
from broker.runtime.threads import Lock

log = get_logger("network")

# Connections that a processor hands over in one piece, while their heirs and senders wait: about 1 ms.
_MOVED_AT_ONCE = 64

# An entry of an inbox: a verb and its two arguments.
Work = tuple[Verb, Any, Any]


@attrs.frozen(eq=False)
class Moved:
    """A connection on its way, and its processor's other state of it."""

    connection: ProcessorConnection
    interest: int  # events to register
    lent: Mapping[Request, bytearray]  # memory of frames that handlers are still reading
    origin: "Departure"  # of the leaving processor
    handshake: Handshake | None = None  # of TLS, that has not ended


class Heir(Mailbox, Protocol):
    """Another processor, as a leaving processor sees it."""

    @property
    def departure(self) -> "Departure": ...

    @property
    def take_over(self) -> Verb:
        """(the moved connection, None): register the connection."""

    def wakeup(self) -> None: ...


class Departure:
    """Of one processor, over its whole life: the others look at ``begun``, and they may leave connections here before it goes."""

    def __init__(self, processor: Heir, inbox: deque[Work]) -> None:
        self.begun = False
        self.over = False  # every connection has an heir or is closed
        self._lock = Lock()
        self._processor = processor
        self._inbox = inbox
        self._coming: set[ProcessorConnection] = set()  # adopted and not taken over yet

    # -- on the thread of the processor ---------------------------------------------------------------------------------

    def begin(self) -> list[Moved]:
        """No further connection is adopted. Returns those that were and that have not been taken over yet."""
        with self._lock:
            self.begun = True
            work = [self._inbox.popleft() for _ in range(len(self._inbox))]
            adopted = [target for _, target, _ in work if isinstance(target, Moved)]
            self._inbox.extendleft(each for each in reversed(work) if not isinstance(each[1], Moved))
        return adopted

    def move(self, moving: Collection[tuple[Moved, Heir]]) -> list[Moved]:
        """Give these connections, which no poller knows, to their heirs. Returns those whose heir leaves as well."""
        refused = []
        with self._lock:
            heirs: dict[ProcessorConnection, Heir] = {}
            for moved, heir in moving:
                if heir.departure.adopt(moved):
                    heirs[moved.connection] = heir
                else:
                    refused.append(moved)
            for work in self._take_out(heirs.__contains__):
                heir = heirs[_connection(work[1])]  # type: ignore[index]
                heir.departure.append(work)
            for connection, heir in heirs.items():
                connection.processor = heir
            self._forward()  # work that has arrived since
        return refused

    def end(self) -> list[Work]:
        """All connections have moved or are closed. Returns the remaining work. From now on only the senders look into the
        inbox."""
        with self._lock:
            self._forward()
            self.over = True
            return self._take_out(lambda connection: not self._has_moved(connection))

    def taken_over(self, moved: Moved) -> None:
        """Wait until the processor that had the connection has passed on everything about it."""
        with moved.origin._lock:
            pass
        self._coming.discard(moved.connection)

    # -- from any thread ------------------------------------------------------------------------------------------------

    def adopt(self, moved: Moved) -> bool:
        """Have the processor take the connection over. False if it leaves, too."""
        with self._lock:
            if self.begun:
                return False
            self._coming.add(moved.connection)
            self._inbox.append((self._processor.take_over, moved, None))
        self._processor.wakeup()
        return True

    def append(self, work: Work) -> None:
        """Work about a connection that was adopted: the address that it was left at is that of another processor."""
        verb, target, argument = work
        self._inbox.append((getattr(self._processor, verb.__name__), target, argument))
        self._processor.wakeup()

    def forward(self) -> None:
        """Pass on the work for connections that have moved."""
        with self._lock:
            self._forward()

    def _forward(self) -> None:
        for work in self._take_out(self._has_moved):
            heir: Heir = _connection(work[1]).processor  # type: ignore[union-attr,assignment]
            heir.departure.append(work)
            if heir.departure.begun:
                heir.departure.forward()
        if self.over:  # the rest is about closed connections
            self._take_out(lambda connection: not self._has_moved(connection))

    def _has_moved(self, connection: ProcessorConnection | None) -> bool:
        return connection is not None and connection not in self._coming and connection.processor is not self._processor

    def _take_out(self, chosen: Callable[[Any], bool]) -> list[Work]:
        """Remove the work for these connections from the inbox. The rest stays, before what others add meanwhile."""
        taken: list[Work] = []
        rest: list[Work] = []
        for _ in range(len(self._inbox)):
            work = self._inbox.popleft()
            (taken if chosen(_connection(work[1])) else rest).append(work)
        self._inbox.extendleft(reversed(rest))
        return taken


class Moving:
    """The moves of one processor, on its thread."""

    def __init__(
        self,
        departure: Departure,
        table: ConnectionTable,
        turns: Turns,
        sending: Sending,
        receiving: Receiving,
        expiry: Expiry,
    ) -> None:
        self._departure = departure
        self._table = table
        self._turns = turns
        self._sending = sending
        self._receiving = receiving
        self._expiry = expiry

    def take_over_adopted(self) -> None:
        """Adopt no further connection, and take over those that were adopted before."""
        for moved in self._departure.begin():
            self.take_over(moved)

    def take_over(self, moved: Moved, _: None = None) -> None:
        """Continue a connection of a leaving processor."""
        self._departure.taken_over(moved)
        connection, table = moved.connection, self._table
        table.lent.update(moved.lent)
        table.all[connection] = None
        if table.draining:
            connection.holds |= DRAINING
        try:
            table.set_interest(connection, moved.interest)
        except Exception as error:  # the seam: the system has a bound on these
            log.error("connection_failed", exc_info=error, peer=connection.peer.host, listener=connection.peer.listener)
            table.disconnect(connection)
            return
        if table.has_outlived(connection):  # while it was on its way
            table.disconnect(connection)
            return
        if connection.outgoing:
            self._expiry.note_unread(connection)
        if moved.handshake is not None:
            table.handshakes.take_over(connection, moved.handshake)
        dirty, connection.dirty = connection.dirty, False
        runnable, connection.runnable = connection.runnable, False
        if dirty:
            self._sending.mark_dirty(connection)
        if runnable:
            self._turns.run_later(connection)
        if connection.holds & (CHANNEL_FULL | MEMORY_SHORT):
            self._receiving.wait_again(connection)

    def hand_over_all(self, heirs: Callable[[], Sequence[Heir]]) -> list[Work]:
        """Divide the connections among the heirs. A connection without an heir is closed. Returns the remaining work, which is
        about closed connections or the processor."""
        table, departure = self._table, self._departure
        lent: dict[Any, dict[Request, bytearray]] = {}
        for request, buffer in table.lent.items():
            lent.setdefault(request.connection, {})[request] = buffer
        while table.all:
            moving = []
            others = heirs()
            for connection in list(islice(table.all, _MOVED_AT_ONCE)):
                # Where it was in this processor's lists, its flags and holds tell the heir.
                moved = Moved(
                    connection,
                    connection.interest,
                    lent.get(connection, {}),
                    departure,
                    table.handshakes.forget(connection) if connection.holds & HANDSHAKING else None,
                )
                table.set_interest(connection, 0)
                del table.all[connection]
                moving.append(moved)
            if others:
                moving = departure.move([(moved, others[n % len(others)]) for n, moved in enumerate(moving)])
            for heir in others:  # some of them may be going as well
                moving = departure.move([(moved, heir) for moved in moving])
            for moved in moving:
                table.disconnect(moved.connection)
        table.keep_lent_of_own()
        self._sending.forget_all()
        self._turns.runnable.clear()
        return departure.end()


def _connection(target: Any) -> ProcessorConnection | None:
    """The connection that a piece of work is about; None: it is about the processor."""
    if target is None or isinstance(target, ProcessorConnection):
        return target
    if isinstance(target, Moved):
        return None
    connection: ProcessorConnection = target.connection
    return connection
