"""``/api/v1/connections``: the reactor from acceptor to handlers, and its connections with the reasons for their holds.

Read without a lock from the processors' own fields, so the figures of one answer may be some microseconds apart.

Tests: tests/http/api/test_connections.py.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from broker.network.connection import ProcessorConnection
from broker.network.mute import Hold
from broker.network.plane import Plane
from broker.network.socket_server import SocketServer
from broker.runtime.clock import Clock
from broker.security.acl import Operation, ResourceType
from broker.web.callers import Callers
from broker.web.routes import Answer, Call, Route, json_answer, page_of

_REASONS = {int(hold): hold.name.lower() for hold in Hold if hold.name is not None}


class Connections:
    def __init__(self, sockets: SocketServer, callers: Callers, clock: Clock) -> None:
        self._sockets = sockets
        self._callers = callers
        self._clock = clock
        # The last two samples: the time (monotonic, s), and how long (s) each thread has spent altogether: a processor
        # waiting, a handler working.
        self._before: tuple[float, Mapping[object, float]] = (0.0, {})
        self._last: tuple[float, Mapping[object, float]] = (0.0, {})

    def routes(self) -> list[Route]:
        return [Route("GET", "/api/v1/connections", self.page)]

    def page(self, call: Call) -> Answer:
        self._callers.require(call, Operation.DESCRIBE, ResourceType.CLUSTER)
        entries = dict(self._all())
        page, following = page_of(call, entries)
        now, now_ms = self._clock.monotonic(), self._clock.time_ms()
        connections = []
        for name in call.work.each(page):
            processor, connection = entries[name]
            opened_ms = now_ms - int((now - connection.opened_at) * 1000)
            connections.append(_connection(name, processor, connection, opened_ms))
        return json_answer({**self.reactor(), "connections": connections, "next": following})

    def sampled(self) -> None:
        """Every 5 s, on the sampler's thread."""
        now = self._clock.monotonic()
        spent: dict[object, float] = {}
        for plane in self._sockets.planes:
            spent |= {processor: processor.idle_s for processor in plane.processors}
            spent |= {handler: handler.busy_until(now) for handler in plane.handlers.copy()}
        self._before, self._last = self._last, (now, spent)

    def _share(self, thread: object) -> float | None:
        """The share of the last 5 s that the thread has spent as `sampled` measures it; None before that is known."""
        (then, before), (now, last) = self._before, self._last
        if thread not in before or thread not in last or now <= then:
            return None
        return min(1.0, max(0.0, (last[thread] - before[thread]) / (now - then)))

    def reactor(self) -> dict[str, Any]:
        """The data plane, and the control listener's plane if there is one."""
        data, *control = [self._plane(plane) for plane in self._sockets.planes]
        return {"reactor": data, "control": control[0] if control else None}

    def _plane(self, plane: Plane) -> dict[str, Any]:
        acceptor = plane.acceptor
        processors = []
        for processor in plane.processors:
            connections = processor.connections.copy()
            muted: Counter[str] = Counter()
            for connection in connections:
                if connection.holds:
                    muted.update(reasons(connection.holds))
            processors.append(
                {
                    "id": f"{plane.name}processor-{processor.number}",
                    "connections": len(connections),
                    "idle": _rounded(self._share(processor)),
                    "muted": dict(muted),
                }
            )
        handlers = plane.handlers.copy()
        busy = [share for handler in handlers if (share := self._share(handler)) is not None]
        return {
            "acceptor": {
                "accepted": 0 if acceptor is None else acceptor.accepted,
                "refused": 0 if acceptor is None else acceptor.refused,
            },
            "processors": processors,
            "channel": {"depth": len(plane.channel), "capacity": plane.channel.capacity},
            "handlers": {
                "threads": len(handlers),
                "busy": sum(1 for handler in handlers if handler.busy_since),
                "idle": _rounded(1.0 - sum(busy) / len(busy)) if busy else None,
            },
            "memory": {"used": plane.memory.in_use, "capacity": plane.memory.capacity},
        }

    def _all(self) -> Iterator[tuple[str, tuple[str, ProcessorConnection]]]:
        for plane in self._sockets.planes:
            for processor in plane.processors:
                name = f"{plane.name}processor-{processor.number}"
                for connection in processor.connections.copy():
                    peer = connection.peer
                    yield f"{peer.host}:{peer.port}-{peer.local[1]}", (name, connection)


def reasons(holds: int) -> list[str]:
    """Why a connection takes no request at the moment, as named in `broker/network/mute.py`."""
    return [name for bit, name in _REASONS.items() if holds & bit]


def _connection(name: str, processor: str, connection: ProcessorConnection, opened_ms: int) -> dict[str, Any]:
    session = connection.session
    words: Mapping[str, str] = getattr(session, "client_words", {})
    return {
        "id": name,
        "processor": processor,
        "listener": connection.peer.listener,
        "peer": f"{connection.peer.host}:{connection.peer.port}",
        "principal": str(connection.principal),
        "client_id": words.get("client_id"),
        "software": words.get("software"),
        "version": words.get("version"),
        "since_ms": opened_ms,
        "bytes_in": connection.bytes_in,
        "bytes_out": connection.bytes_out,
        "mute": reasons(connection.holds),
        "requests": connection.requests,
    }


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)
