"""The bounded queue between processors and handlers, and the handlers: threads that run requests which may block.

Processors offer requests and never wait, handlers take them. If the channel is full, the processor leaves the request with its
connection, which stays muted, and the channel calls the processor back when there is room. A handler owns the request that it is
handling and nothing else.

A request may name a *lane*. Only a limited number of requests of each lane, and of all lanes, are with handlers at a time. The
others wait in their lane, so that slow kinds of requests leave handlers for the rest. One request of each lane may always be
with a handler, and the lanes take turns with the other handlers.
"""

from collections import deque
from collections.abc import Callable

import attrs

from broker.log import get_logger
from broker.network.service import Outbox, Request, Service
from broker.network.work import LANES, SERIAL
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock, QueueEmpty, SimpleQueue

Item = tuple[Service, Request]
# What a handler takes. It includes the lane, because by the time the handler is done the request may have been offered again,
# through another lane.
Taken = tuple[Service, Request, str | None]


class Leave:
    """Taken by a handler that is to end."""


_LEAVE = Leave()


@attrs.define(eq=False)
class _Lane:
    serial: bool
    running: int = 0  # requests with a handler, or in the queue
    behind: deque[Taken] = attrs.Factory(deque)


class RequestChannel:
    def __init__(self, capacity: int, lane_width: int = 1, lanes_extra: int | None = None) -> None:
        """``capacity``: requests that may wait (Kafka's queued.max.requests). ``lane_width``: the number of requests of a lane
        that may be with handlers at a time; only one of a lane in ``SERIAL``. ``lanes_extra``: the number of all lanes
        together, beside one of each; None: as many as their width allows."""
        self.capacity = capacity
        self.lane_width = lane_width
        self.lanes_extra = lanes_extra
        self._queue: SimpleQueue[Taken | Leave | None] = SimpleQueue()
        self._size = 0  # requests only, not wake-ups of handlers
        self._lock = Lock()
        self._waiting: list[Callable[[], None]] = []
        self._lanes: dict[str, _Lane] = {}

    def __len__(self) -> int:
        return self._size

    def in_lanes(self) -> dict[str, int]:
        """By lane, the requests that are with handlers or wait behind them."""
        with self._lock:
            return {name: lane.running + len(lane.behind) for name, lane in self._lanes.items()}

    def offer(self, item: Item, on_room: Callable[[], None]) -> bool:
        """Queue a request. False if there is no room; then ``on_room`` is called once, on a handler, when there is."""
        service, request = item
        name = request.lane
        queued = service, request, name
        with self._lock:
            lane = None if name is None else self._lane(name)
            # The lanes together may not fill the channel, so that requests without a lane find room.
            if self._size >= self.capacity or (
                lane is not None and len(lane.behind) > self.capacity // (len(LANES) + 1)
            ):
                if on_room not in self._waiting:
                    self._waiting.append(on_room)
                return False
            self._size += 1
            if lane is not None:
                if not self._fits(lane):
                    lane.behind.append(queued)
                    return True
                lane.running += 1
        self._queue.put(queued)
        return True

    def _lane(self, name: str) -> _Lane:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _Lane(name in SERIAL)
        return lane

    def _fits(self, lane: _Lane) -> bool:
        """Whether one more request of this lane may go to a handler."""
        if not lane.running:
            return True
        if lane.serial or lane.running >= self.lane_width:
            return False
        extra = self.lanes_extra
        return extra is None or sum(max(0, each.running - 1) for each in self._lanes.values()) < extra

    def _following(self) -> list[Taken]:
        """The requests that may go to handlers now, from each lane in turn."""
        following: list[Taken] = []
        more = True
        while more:
            more = False
            for lane in self._lanes.values():
                if lane.behind and self._fits(lane):
                    lane.running += 1
                    following.append(lane.behind.popleft())
                    more = True
        return following

    def take(self, timeout: float | None) -> Taken | Leave | None:
        """The oldest request that may be handled now; None after ``timeout`` s or when woken. Call ``done`` afterwards.

        A ``Leave`` means that there is a handler too many."""
        try:
            item = self._queue.get(timeout != 0, timeout)
        except QueueEmpty:
            return None
        if item is None or isinstance(item, Leave):
            return item
        with self._lock:
            self._size -= 1
            waiting = self._waiting
            if waiting:
                self._waiting = []
        for on_room in waiting:
            on_room()
        return item

    def done(self, taken: Taken) -> None:
        """The handler has finished with it: another request of a lane may follow."""
        name = taken[2]
        if name is None:
            return
        with self._lock:
            lane = self._lanes[name] = self._lanes.pop(name)  # the last lane: now it is the turn of the others
            lane.running -= 1
            following = self._following()
        for each in following:
            self._queue.put(each)

    def resize_lanes(self, width: int, extra: int | None = None) -> None:
        """Change the numbers of requests of a lane, and of all, that may be with handlers at a time."""
        with self._lock:
            self.lane_width, self.lanes_extra = width, extra
            following = self._following()
        for each in following:
            self._queue.put(each)

    def dismiss(self, handlers: int) -> None:
        """Have so many handlers end, each after the requests that it would take before."""
        for _ in range(handlers):
            self._queue.put(_LEAVE)

    def wakeup(self) -> None:
        """End the wait of one handler."""
        self._queue.put(None)


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
        """``on_leave`` is called on the handler's thread when it is to end."""
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
        # Taken off the request: parked work refers to its request, and must not wait for the garbage collector.
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
