"""Which connections of a processor may go on, and for how long: turns, and what ends a mute.

``Turns`` belongs to one processor, and only the processor's thread uses it. ``mute.py`` has the reasons for which a connection is
muted. A connection goes on in one of two ways: if its request is answered while it has its turn, `Receiving.dispatch` takes the
next request by itself; otherwise it becomes *runnable*, and the processor resumes it in its next step.

Tests: tests/network/test_processor.py, tests/network/test_throttled.py.
"""

from collections import deque
from typing import Final

from broker.metrics.request_times import Measuring
from broker.network.connection import ProcessorConnection
from broker.network.connections import ProcessorStats
from broker.network.mute import RESPONSE_PENDING, RESPONSE_UNSENT, THROTTLED, MuteEvent, next_holds
from broker.runtime.poller import READ

# Requests of one connection that are handled before other connections get their turn: 1-2 ms of the cheapest ones. If many
# connections have requests, a turn is shorter, so that a connection with one request waits for a few ms only.
_TURN_REQUESTS = 128
_STEP_REQUESTS = 1024
_LEAST_TURN_REQUESTS = 4
# So many connections get whole turns in one step.
WHOLE_TURNS: Final = _STEP_REQUESTS // _TURN_REQUESTS
WHOLE_TURN: Final = range(_TURN_REQUESTS)

# A request was answered: what remains of a connection's holds.
AFTER_RESPONSE: Final = ~(RESPONSE_PENDING | RESPONSE_UNSENT)
_MUTED = RESPONSE_PENDING | THROTTLED


class Turns:
    """``now`` is when the poller has reported last (Clock.monotonic() s); the processor sets it.

    ``dispatching`` is the connection whose turn it is, and None between turns; `Receiving.dispatch` sets it.
    """

    def __init__(self, measuring: Measuring, stats: ProcessorStats, now: float) -> None:
        self.now = now
        self.dispatching: ProcessorConnection | None = None
        self.length = WHOLE_TURN  # how many requests a connection may have handled in its turn
        # Connections that may have a complete frame and are not muted any more, in the order of their turns.
        self.runnable: Final[deque[ProcessorConnection]] = deque()
        self._measuring = measuring
        self._stats = stats

    def shorten(self, waiting: int) -> None:
        """So many connections have something to be handled: more than could all have whole turns in one step."""
        self.length = range(max(_LEAST_TURN_REQUESTS, _STEP_REQUESTS // waiting))

    def run_later(self, connection: ProcessorConnection) -> None:
        """Resume it in the next step."""
        if not connection.runnable:
            connection.runnable = True
            self.runnable.append(connection)

    def run_if_unmuted(self, connection: ProcessorConnection) -> None:
        """Resume it if nothing mutes it any more, and there may be something to be done for it."""
        if (
            connection is not self.dispatching
            and not connection.holds & _MUTED
            and (connection.received.held or not connection.interest & READ)
        ):
            self.run_later(connection)

    def answered(self, connection: ProcessorConnection) -> None:
        """Its request has its answer, which is certain to leave in order: unmute it."""
        request, connection.in_flight = connection.in_flight, None
        unsent = connection.holds & RESPONSE_UNSENT
        connection.holds &= AFTER_RESPONSE
        if connection is not self.dispatching:
            if not unsent:
                self._measuring.answered(connection, request)
            self.run_if_unmuted(connection)

    def throttle(self, connection: ProcessorConnection, event: MuteEvent) -> None:
        """A quota begins or ends to mute the connection. A verb of `Mailbox`."""
        if connection.closed:
            return
        connection.holds = next_holds(connection.holds, event)
        if event is MuteEvent.THROTTLE_STARTED:
            self._stats.mutes[THROTTLED] += 1
            self._measuring.throttle_started(connection)
        else:
            self._measuring.throttle_ended(connection)
        self.run_if_unmuted(connection)
