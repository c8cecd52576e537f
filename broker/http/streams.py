"""Server-sent events: answers that go on until the client leaves, does not read, or the broker stops.

A source, on any thread, gives an event to a `Stream`, which never makes it wait. Events wait in the stream's own queue,
and the connection's processor takes as many as fit into the connection's unsent bytes:

| the client | what happens |
|---|---|
| reads | events leave at once |
| reads slowly | the queue fills; events that do not fit are skipped, and the client is told how many |
| has not emptied the queue for 30 s | its connection is closed |
| ends its side of the connection | the stream ends |

A stream takes at most 96 KiB of memory, and a broker has at most 64: the next stream is refused with 503. One user may
have a quarter of them, and a quarter is reserved for streams of the cluster, which only operators may open. A comment
is sent every 15 s without an event, so that a disconnected client is noticed. A stream ends after an hour, so that its
client has to authenticate again; browsers reconnect by themselves.

Tests: tests/http/test_streams.py.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final

import h11

from broker.network.service import Connection, Outbox, Request
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.security.principal import ANONYMOUS, Principal

STREAMS_MAX: Final = 64
# How much of one stream may wait in its queue, and how much of that its connection takes at a time.
QUEUE_MAX_BYTES: Final = 64 * 1024
OUTGOING_MAX_BYTES: Final = 32 * 1024
STUCK_S: Final = 30.0
HEARTBEAT_S: Final = 15.0
LIFETIME_S: Final = 3600.0
_HEARTBEAT = b":\n\n"


def encode(event: str, data: str) -> bytes:
    """An event. ``data`` is JSON and so has no line breaks."""
    assert "\n" not in data
    return f"event: {event}\ndata: {data}\n\n".encode()


class Stream:
    """``send`` and ``closed`` are for any thread; the rest runs on the connection's processor."""

    def __init__(
        self,
        request: Request,
        outbox: Outbox,
        parser: h11.Connection,
        clock: Clock,
        on_end: Callable[["Stream"], None],
        watcher: Principal = ANONYMOUS,
        of_cluster: bool = False,
    ) -> None:
        self.closed = False
        self.watcher = watcher
        self.of_cluster = of_cluster
        self._request = request
        self._connection: Connection = request.connection
        self._outbox = outbox
        self._parser = parser
        self._clock = clock
        self._on_end = on_end
        self._lock = Lock()
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._skipped = 0
        self._is_scheduled = False
        now = clock.monotonic()
        self._ends_at = now + LIFETIME_S
        self._last_sent = now
        self._stuck_since = inf  # when the queue was last empty

    # -- for any thread -----------------------------------------------------------------------------------------------

    def send(self, event: str, data: str) -> bool:
        """Give an event to the client. False if it was skipped, because the client does not read."""
        return self._offer(encode(event, data))

    def tick(self, now: float) -> None:
        """Called every few seconds: sends a heartbeat, or ends a stream that is too old or stuck."""
        if now >= self._ends_at:
            self.close()
        elif now - self._stuck_since >= STUCK_S:
            self._outbox.call(self._connection, self._drop)
        elif now - self._last_sent >= HEARTBEAT_S and not self._queue:
            self._offer(_HEARTBEAT)

    def close(self) -> None:
        """End the stream in order."""
        self._outbox.call(self._connection, self.end)

    def _offer(self, data: bytes) -> bool:
        with self._lock:
            if self.closed:
                return False
            if self._queued_bytes + len(data) > QUEUE_MAX_BYTES:
                self._skipped += 1
                return False
            if self._skipped:
                notice = encode("skipped", f'{{"events":{self._skipped}}}')
                self._skipped = 0
                self._put(notice)
            self._put(data)
            if self._is_scheduled:
                return True
            self._is_scheduled = True
        self._outbox.call(self._connection, self._run)
        return True

    def _put(self, data: bytes) -> None:
        if not self._queue:
            self._stuck_since = self._clock.monotonic()
        self._queue.append(data)
        self._queued_bytes += len(data)

    # -- on the processor ---------------------------------------------------------------------------------------------

    def begin(self, head: bytes) -> None:
        self._outbox.push(self._connection, [head])

    def _run(self) -> None:
        with self._lock:
            self._is_scheduled = False
        self.drain()

    def drain(self) -> None:
        """Move events to the connection, as far as it has room."""
        if self.closed:
            return
        connection, parts, room = self._connection, [], OUTGOING_MAX_BYTES - self._connection.outgoing_bytes
        with self._lock:
            while self._queue and room > 0:
                data = self._queue.popleft()
                self._queued_bytes -= len(data)
                room -= len(data)
                parts.append(data)
            if not self._queue:
                self._stuck_since = inf
            elif connection.writable:
                connection.writable = False  # `Service.writable` calls again
        if parts:
            self._last_sent = self._clock.monotonic()
            framed = self._parser.send(h11.Data(data=b"".join(parts)))
            assert framed is not None
            self._outbox.push(connection, [framed])

    def end(self) -> None:
        """The broker stops, the client has closed its side, or the stream's lifetime is over. Queued events are
        dropped."""
        if self._forget():
            self._outbox.send(self._request, [self._parser.send(h11.EndOfMessage()) or b""])
            self._outbox.close(self._request)

    def _drop(self) -> None:
        """The client does not read: close the connection without waiting for it."""
        if self._forget():
            self._connection.session.deadline = self._clock.monotonic()  # type: ignore[attr-defined]

    def disconnected(self) -> None:
        self._forget()

    def _forget(self) -> bool:
        with self._lock:
            if self.closed:
                return False
            self.closed = True
            self._queue.clear()
            self._queued_bytes = 0
        self._on_end(self)
        return True


class Streams:
    """The streams of the whole broker."""

    def __init__(self, clock: Clock, most: int = STREAMS_MAX) -> None:
        self._clock = clock
        self._most = most
        self._lock = Lock()
        self._open: dict[Stream, None] = {}
        self.refused = 0

    def __len__(self) -> int:
        return len(self._open)

    def open(
        self, request: Request, outbox: Outbox, parser: h11.Connection, watcher: Principal, *, of_cluster: bool
    ) -> Stream | None:
        """None if there are too many. On the connection's processor."""
        stream = Stream(request, outbox, parser, self._clock, self._forget, watcher, of_cluster)
        with self._lock:
            if self._is_full(stream):
                self.refused += 1
                return None
            self._open[stream] = None
        return stream

    def _is_full(self, wanted: Stream) -> bool:
        part = self._most // 4
        if not wanted.of_cluster and sum(not stream.of_cluster for stream in self._open) >= self._most - part:
            return True
        # Anonymous users cannot be told apart.
        known = wanted.watcher != ANONYMOUS
        if known and sum(stream.watcher == wanted.watcher for stream in self._open) >= part:
            return True
        return len(self._open) >= self._most

    def tick(self) -> None:
        """Call every few seconds, on any thread."""
        with self._lock:
            present = list(self._open)
        now = self._clock.monotonic()
        for stream in present:
            stream.tick(now)

    def _forget(self, stream: Stream) -> None:
        with self._lock:
            self._open.pop(stream, None)
