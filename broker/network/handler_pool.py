"""Handlers: threads that run requests which may block, so that processors never do.

A handler owns the request that it is handling and nothing else.
"""

from collections.abc import Callable

from broker.log import get_logger
from broker.network.request_channel import Leave, RequestChannel
from broker.network.service import Outbox
from broker.runtime.clock import Clock

log = get_logger("network")


class Handler:
    """The body of one handler thread."""

    def __init__(
        self,
        channel: RequestChannel,
        outbox: Outbox,
        clock: Clock,
        on_leave: Callable[["Handler"], None] = lambda _: None,
    ) -> None:
        """``on_leave`` is called on the handler's thread when it is to end: there are to be fewer."""
        self._on_leave = on_leave
        self._channel = channel
        self._outbox = outbox
        self._clock = clock
        self.handled = 0
        self.busy_s = 0.0
        self.busy_since = 0.0  # Clock.monotonic() s; 0 = idle

    def step(self, timeout: float | None) -> bool:
        item = self._channel.take(timeout)
        if item is None:
            return False
        if isinstance(item, Leave):
            self._on_leave(self)
            return True
        service, request, _ = item
        # Taken off the request: what was parked refers to its request, and is not to wait for the garbage collector.
        prepared, request.prepared = request.prepared, None
        began = self.busy_since = self._clock.monotonic()
        if not request.taken_at:  # else it was parked before
            request.taken_at = began
        try:
            service.handle(request, self._outbox, prepared)
        except Exception as error:  # the seam: one request's failure is one connection's, never the pool's
            log.error("request_failed", exc_info=error, peer=request.connection.peer.host)
            self._outbox.close(request)
        finally:
            ended = self._clock.monotonic()
            if not request.handled_at:
                request.handled_at = ended
            self.busy_since = 0.0
            self.busy_s += ended - began
            request.done = True
            connection = request.connection
            if connection.closed or not connection.session.in_flight_max:
                connection.processor.submit(connection.processor.give_back, request, None)
            self._channel.done(item)
        self.handled += 1
        return True

    def busy_until(self, now: float) -> float:
        """How long (s) it has been busy, up to ``now`` (Clock.monotonic() s). For any thread."""
        since = self.busy_since
        return self.busy_s + (max(0.0, now - since) if since else 0.0)

    def wakeup(self) -> None:
        self._channel.wakeup()
