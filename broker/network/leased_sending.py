"""Answers of a broker that leads by a lease: none leaves when another broker may have taken over.

Everything that a client gets leaves by ``flush``, whatever the protocol, so the lease is asked there, by the clock and after the
answer was made. An answer that leaves was true after its request was sent. If the process stood still between the look and the
system call, that holds as well: the request is older than the look.

Otherwise the bytes are *held*: the connection stays, and what it gets is queued within the bounds of a peer that does not read.
When the lease is renewed they leave, as nobody has come in between; if it runs out or is lost, the connections are closed
(``SocketServer.suspend``). They get nothing more until their processor closes them, even if the lease is renewed before: what was
made meanwhile is perhaps not true any more.

A broker without a lease has ``Sending``, and no question of this. On the processor's thread.

Tests: tests/network/test_leased_sending.py.
"""

from collections.abc import Callable
from typing import Any, Protocol

import attrs

from broker.network.connection import ProcessorConnection
from broker.network.mute import UNWRITABLE
from broker.network.sending import Sending
from broker.network.service import Verb
from broker.runtime.poller import WRITE


class AnswersLease(Protocol):
    """``broker.cluster.lease.Lease``, as far as answers are concerned."""

    answers_until: float  # Clock.monotonic() s

    def when_renewed(self, now: float, then: Callable[[], None]) -> bool: ...


@attrs.frozen
class Gate:
    """``concerns`` says of a listener, by its name, whether its answers need the lease."""

    lease: AnswersLease
    concerns: Callable[[str], bool]


class LeasedSending(Sending):
    def __init__(self, gate: Gate, submit: Callable[[Verb, Any, Any], None], *args: Any, **settings: Any) -> None:
        """``submit`` is the processor's."""
        super().__init__(*args, **settings)
        self._lease = gate.lease
        self._concerns = gate.concerns
        self._submit = submit
        # Their flag `dirty` is set. A dict, because the order of a set depends on addresses.
        self._held: dict[ProcessorConnection, None] = {}
        self._waits = False  # the lease will call `_renewed`

    def flush(self, connection: ProcessorConnection) -> None:
        now = self._monotonic()
        if now < self._lease.answers_until or not self._concerns(connection.peer.listener) or not self._hold(now):
            if not self._table.has_outlived(connection):  # asked last: the lease ran out before it was renewed
                super().flush(connection)
            return
        if not connection.dirty:
            connection.dirty = True
        self._held[connection] = None
        if connection.interest & WRITE:  # it may well be writable, and nobody writes
            self._table.set_interest(connection, connection.interest & ~WRITE)
        high_water = self.high_water_bytes if connection.session.in_flight_max else self._usual_high_water_bytes
        if not connection.holds & UNWRITABLE and connection.outgoing_bytes > high_water:
            connection.holds |= UNWRITABLE
            self._stats.mutes[UNWRITABLE] += 1

    def _hold(self, now: float) -> bool:
        """False: the lease has just been renewed."""
        if not self._waits:
            self._waits = self._lease.when_renewed(now, self._renewed)
        return self._waits

    def _renewed(self) -> None:
        """On the thread that has renewed the lease."""
        self._submit(self._release, None, None)

    def _release(self, _: None, __: None) -> None:
        held, self._held, self._waits = self._held, {}, False
        for connection in held:
            connection.dirty = False
            if not connection.closed:
                self.flush(connection)

    def forget_all(self) -> None:
        super().forget_all()
        self._held.clear()
