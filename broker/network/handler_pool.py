"""Handlers: threads that run requests which may block, so that processors never do.

A handler owns the request that it is handling and nothing else.
"""

from collections.abc import Callable

from broker.log import get_logger
from broker.network.request_channel import Leave, RequestChannel
from broker.network.service import Outbox

log = get_logger("network")


class Handler:
    """The body of one handler thread."""

    def __init__(
        self, channel: RequestChannel, outbox: Outbox, on_leave: Callable[["Handler"], None] = lambda _: None
    ) -> None:
        """``on_leave`` is called on the handler's thread when it is to end: there are to be fewer."""
        self._on_leave = on_leave
        self._channel = channel
        self._outbox = outbox
        self.handled = 0

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
        try:
            service.handle(request, self._outbox, prepared)
        except Exception as error:  # the seam: one request's failure is one connection's, never the pool's
            log.error("request_failed", exc_info=error, peer=request.connection.peer.host)
            self._outbox.close(request)
        finally:
            request.done = True
            connection = request.connection
            if connection.closed or not connection.session.in_flight_max:
                connection.processor.submit(connection.processor.give_back, request, None)
            self._channel.done(item)
        self.handled += 1
        return True

    def wakeup(self) -> None:
        self._channel.wakeup()
