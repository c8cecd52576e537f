"""A throttle in every order with everything else that can happen to a connection.

A client has sent two requests. The first is out with the service, which throttles the connection, answers and ends the throttle,
in any order; meanwhile the peer may close its sending side or hang up, the service may close the connection instead of
answering, and the processor may begin to drain. Each thing happens on another thread, and the processor looks either after each
or only when all have happened.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from broker.network.mute import RESPONSE_PENDING, THROTTLED, Hold
from broker.network.service import Outbox
from tests.loops import loop_over
from tests.network.echo import EchoService, frame
from tests.network.harness import Bench

FIRST, SECOND = frame(b"h", b"1"), frame(b"e", b"2")
THROTTLE = ("throttle", "answer", "end")
OTHERS = ("finish", "reset", "close", "drain")


class Watching(EchoService):
    """Notices a request that is taken from a connection that is throttled."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[bytes] = []

    def handle(self, request: Any, outbox: Outbox, prepared: Any = None) -> None:
        assert request.connection.holds & (THROTTLED | RESPONSE_PENDING) == RESPONSE_PENDING
        self.taken.append(bytes(request.frame))
        super().handle(request, outbox, prepared)


SOME_OTHERS = [others for count in (0, 1, 2) for others in itertools.combinations(OTHERS, count)]


def orders(others: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for order in itertools.permutations(THROTTLE + others):
        if order.index("throttle") < order.index("end"):
            yield order


class Scene:
    def __init__(self) -> None:
        self.service = Watching()
        self.bench = Bench(self.service)
        self.client = self.bench.connect()
        self.client.send(FIRST + SECOND)
        self.bench.until(lambda: self.service.parked)
        self.connection = self.bench.connection_of(self.client)
        ((self.request, self.outbox),) = self.service.parked

    def happen(self, event: str) -> None:
        if event == "throttle":
            self.outbox.start_throttling(self.connection)
        elif event == "end":
            self.outbox.end_throttling(self.connection)
        elif event in ("answer", "close"):
            if self.service.parked:  # once for each request
                self.service.parked.clear()
                if event == "answer":
                    self.outbox.send(self.request, [FIRST])
                else:
                    self.outbox.close(self.request)
        elif event == "finish":
            if not self.client.eof:
                self.client.finish()
        elif event == "reset":
            self.client.abort()
            self.client.eof = True
        else:
            self.bench.processor.drain()


@loop_over("at_once", [False, True])
@loop_over("others", SOME_OTHERS)
def test_throttled_connections_lose_and_yield_nothing(others: tuple[str, ...], at_once: bool) -> None:
    for order in orders(others):
        check(order, at_once)


def check(order: tuple[str, ...], at_once: bool) -> None:
    scene = Scene()
    client, bench, connection, service = scene.client, scene.bench, scene.connection, scene.service
    happened: set[str] = set()
    try:
        for event in order:
            scene.happen(event)
            happened.add(event)
            if at_once:
                continue
            bench.settle()
            throttled = "throttle" in happened and "end" not in happened
            if not connection.closed:
                assert bool(connection.holds & Hold.THROTTLED) == throttled
                assert bool(connection.holds & Hold.RESPONSE_PENDING) == ("answer" not in happened)
        bench.settle()
        if "reset" in order:
            assert connection.closed
            assert bench.processor.connections == {}
        else:
            closes = "close" in order and order.index("close") < order.index("answer")
            received = client.frames
            assert received[:1] == ([] if closes else [(b"h", b"1")])
            if not closes and "drain" not in order:
                assert received == [(b"h", b"1"), (b"e", b"2")]
                assert client.eof == ("finish" in order)
                assert connection.holds == 0 or connection.closed
            elif closes:
                assert client.eof
        if "drain" in order:
            assert bench.processor.drained
        assert len(service.taken) <= 2
        assert bench.memory.in_use == 0 or not connection.closed
    finally:
        bench.close()
    assert bench.memory.in_use == 0


def test_throttled_connection_ends_like_idle_one() -> None:
    """As in Kafka: neither a throttle nor what the peer has sent meanwhile keeps a connection."""
    service = EchoService()
    bench = Bench(service, idle=10.0)
    try:
        client = bench.connect()
        client.send(frame(b"t"))
        bench.until(lambda: client.frames)
        client.send(frame(b"e"))
        bench.settle()
        bench.clock.now += 9.0
        bench.settle()
        assert not client.eof
        bench.clock.now += 2.0
        bench.settle()
        assert client.eof
        ((connection, outbox),) = service.throttled
        outbox.end_throttling(connection)  # too late
        bench.settle()
        assert client.frames == [(b"t", b"")]
    finally:
        bench.close()


def test_throttled_connection_holds_no_wanted_memory() -> None:
    bench = Bench(memory=64 * 1024)
    try:
        throttled = bench.connect()
        throttled.send(frame(b"t") + frame(b"e", bytes(1 << 20))[:60_000])
        bench.until(lambda: throttled.frames)
        bench.settle()
        assert bench.memory.in_use > 32 * 1024
        waiting = bench.connect()
        waiting.send(frame(b"e", bytes(40_000))[:39_000])
        bench.until(lambda: bench.memory.short)
        for _ in range(20):
            bench.clock.now += 1.0
            waiting.send(bytes(20))
            bench.settle()
        assert throttled.eof
    finally:
        bench.close()


def test_request_that_came_with_throttled_one_waits() -> None:
    service = EchoService()
    bench = Bench(service)
    try:
        client = bench.connect()
        client.send(frame(b"t", b"1") + frame(b"e", b"2") + frame(b"e", b"3"))
        bench.settle()
        assert client.frames == [(b"t", b"1")]
        ((connection, outbox),) = service.throttled
        outbox.end_throttling(connection)
        bench.settle()
        assert client.frames == [(b"t", b"1"), (b"e", b"2"), (b"e", b"3")]
    finally:
        bench.close()
