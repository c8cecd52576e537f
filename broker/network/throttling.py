"""Mutes the connections of clients that have used up a quota, each for its throttle time.

As in Kafka a response is sent at once, with the throttle time in it where the protocol has one, and the next request of the
connection is not taken before that time is over. So clients that do not look at the throttle time are throttled, too.

A connection's throttle begins and ends on its processor, and the table has an entry from the one to the other, or until the
connection is closed. It ends by the timer, or before that by ``end_all``, when quotas have changed.
"""

from functools import partial

from broker.network.service import Connection, Outbox
from broker.runtime.timers import Timer, TimerHandle
from broker.security.quotas.client_quotas import ClientQuotas


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
