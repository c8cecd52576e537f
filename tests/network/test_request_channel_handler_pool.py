"""A handler's step: handle one request, survive what the service raises."""

from typing import Any

from broker.network.request_channel import Handler, RequestChannel
from broker.network.service import Request
from broker.runtime.clock import SystemClock
from tests.network.harness import Stage


class Boom:
    def handle(self, request: Request, outbox: Any, prepared: Any = None) -> None:
        raise RuntimeError("asked for")


class Calm:
    def __init__(self) -> None:
        self.seen: list[Request] = []

    def handle(self, request: Request, outbox: Any, prepared: Any = None) -> None:
        self.seen.append(request)


class Closes:
    def __init__(self) -> None:
        self.closed: list[Request] = []

    def close(self, request: Request) -> None:
        self.closed.append(request)


class _Connection:
    closed = False

    class peer:
        host = "h"

    class session:
        in_flight_max = 1


def request() -> Any:
    made = Request()
    made.lane = made.prepared = None
    made.taken_at = made.handled_at = 0.0
    made.connection = _Connection()  # type: ignore[assignment]
    return made


def test_a_step_handles_one_request_and_says_so() -> None:
    channel, service, outbox = RequestChannel(10), Calm(), Closes()
    handler: Any = Handler(channel, outbox, SystemClock())  # type: ignore[arg-type]
    assert not handler.step(0)
    first, second = request(), request()
    channel.offer((service, first), lambda: None)  # type: ignore[arg-type]
    channel.offer((service, second), lambda: None)  # type: ignore[arg-type]
    assert handler.step(0)
    assert service.seen == [first]
    assert handler.step(0)
    assert service.seen == [first, second]
    assert not handler.step(0)
    assert handler.handled == 2


def test_raising_service_closes_connection_and_handler_continues() -> None:
    channel, outbox = RequestChannel(10), Closes()
    handler: Any = Handler(channel, outbox, SystemClock())  # type: ignore[arg-type]
    bad, good, calm = request(), request(), Calm()
    channel.offer((Boom(), bad), lambda: None)  # type: ignore[arg-type]
    channel.offer((calm, good), lambda: None)  # type: ignore[arg-type]
    assert handler.step(0)
    assert outbox.closed == [bad]
    assert handler.step(0)
    assert calm.seen == [good]


def test_woken_handler_ends_step_without_request() -> None:
    handler = Stage().handler
    handler.wakeup()
    assert not handler.step(None)
