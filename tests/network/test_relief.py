"""Another thread goes on when a disk keeps a processor's. The disk is a gate that the test opens."""

import threading
from collections.abc import Collection, Iterator
from typing import Any

import pytest

from broker.network import relief
from broker.network.service import Handover, Request
from tests.network.echo import EchoRequest, EchoService, EchoSession, frame
from tests.network.harness import Client, Served, serving


class DiskRequest(EchoRequest):
    __slots__ = ()
    may_wait = True


class DiskSession(EchoSession):
    def receive(self, data: memoryview) -> Request:
        if data[4:5] not in (b"d", b"D"):
            return super().receive(data)
        request = DiskRequest()
        request.command = bytes(data[4:5])
        return request


class DiskService(EchoService):
    """``d``, on the processor: is answered when ``gate`` is open. ``D``: the same, and then fails. Once one is held up, handlers
    take them."""

    def __init__(self, in_flight_max: int = 1) -> None:
        super().__init__(in_flight_max)
        self.waiting = threading.Semaphore(0)
        self.threads: list[str] = []

    def connect(self, peer: Any) -> EchoSession:
        return DiskSession(self.in_flight_max)

    def inline(self, request: Any) -> Any:
        return Handover() if request.may_wait and self.held_ups else super().inline(request)

    def handle(self, request: Any, outbox: Any, prepared: Any = None) -> None:
        if request.may_wait:
            self.threads.append(threading.current_thread().name)
            self.waiting.release()
            self.gate.wait(30)
            if request.command == b"D":
                raise RuntimeError("asked for")
        super().handle(request, outbox, prepared)


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relief, "LOOK_S", 0.01)


@pytest.fixture(params=[1, 0], ids=["one at a time", "stream"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with serving(DiskService(request.param), network_threads=1) as served:
        yield served


def stuck(served: Served, data: bytes = b"") -> Client:
    """A client whose request waits for the disk, and the ``data`` behind it."""
    client = served.connect("echo")
    client.send(frame(b"d", b"first") + data)
    service: Any = served.services["echo"]
    assert service.waiting.acquire(timeout=60)
    return client


def opened(served: Served) -> None:
    served.services["echo"].gate.set()


def test_other_connections_are_served_while_a_disk_hangs(served: Served) -> None:
    before = served.connect("echo")
    served.ask(before, frame(b"e", b"before"))
    client = stuck(served)
    assert [(b"e", b"same"), (b"p", b"pool")] == served.ask(before, frame(b"e", b"same") + frame(b"p", b"pool"), 2)
    assert served.serves()
    assert [] == client.frames
    opened(served)
    assert [(b"d", b"first")] == served.ask(client, b"")


def test_requests_behind_the_one_that_waits_are_answered_in_order(served: Served) -> None:
    client = stuck(served, frame(b"e", b"second") + frame(b"e", b"third")[:-2])
    assert served.serves()
    client.send(frame(b"e", b"third")[-2:] + frame(b"e", b"fourth"))
    assert served.serves()
    assert [] == client.frames
    opened(served)
    assert [(b"d", b"first"), (b"e", b"second"), (b"e", b"third"), (b"e", b"fourth")] == served.ask(client, b"", 4)
    assert [(b"e", b"later")] == served.ask(client, frame(b"e", b"later"))


@pytest.mark.parametrize("size", [300 << 10, 2 << 20])
def test_a_large_request_that_waits_keeps_its_bytes(served: Served, size: int) -> None:
    client = served.connect("echo")
    payload = b"x" * size
    client.send(frame(b"d", payload) + frame(b"e", b"behind"))
    service: Any = served.services["echo"]
    served.until(lambda: service.waiting.acquire(blocking=False))
    other = served.connect("echo")
    assert [(b"e", payload[::-1])] == served.ask(other, frame(b"e", payload[::-1]))
    opened(served)
    assert [(b"d", payload), (b"e", b"behind")] == served.ask(client, b"", 2)


def test_a_client_that_leaves_while_its_request_waits_costs_nothing(served: Served) -> None:
    client = stuck(served, frame(b"e", b"never seen"))
    assert served.serves()
    client.abort()
    served.until(lambda: served.connections == 0)
    assert served.serves()
    opened(served)
    assert served.serves()


def test_a_failure_after_the_wait_closes_its_connection_only(served: Served) -> None:
    client = served.connect("echo")
    client.send(frame(b"D"))
    service: Any = served.services["echo"]
    assert service.waiting.acquire(timeout=60)
    assert served.serves()
    opened(served)
    served.until(lambda: client.eof)
    assert served.serves()


def test_the_service_is_told_so_that_handlers_take_the_next_ones(served: Served) -> None:
    service: Any = served.services["echo"]
    stuck(served)
    assert served.serves()
    served.until(lambda: service.held_ups > 0)
    assert ["processor-0"] == service.threads
    client = served.connect("echo")
    client.send(frame(b"d"))
    assert service.waiting.acquire(timeout=60)
    assert ["processor-0", "handler"] == [service.threads[0], service.threads[1].partition("-")[0]]
    opened(served)
    assert [(b"d", b"")] == served.ask(client, b"")


def threads_of_processor(others: Collection[threading.Thread]) -> list[threading.Thread]:
    """Those of the only processor. ``others``: threads that there were before, of brokers of other tests."""
    return [each for each in threading.enumerate() if each.name == "processor-0" and each not in others]


def test_a_thread_that_returns_in_time_keeps_its_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relief, "LOOK_S", 1000.0)
    others = threading.enumerate()
    with serving(DiskService(), network_threads=1) as served:
        client = stuck(served, frame(b"e", b"second"))
        (thread,) = threads_of_processor(others)
        opened(served)
        assert [(b"d", b"first"), (b"e", b"second")] == served.ask(client, b"", 2)
        assert [thread] == threads_of_processor(others)


def test_no_more_threads_are_left_behind_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Untold(DiskService):
        def inline(self, request: Any) -> Any:
            return EchoService.inline(self, request)

    monkeypatch.setattr(relief, "LEFT_MAX", 2)
    others = threading.enumerate()
    with serving(Untold(), network_threads=1) as served:
        clients = [stuck(served) for _ in range(3)]
        assert 3 == len(threads_of_processor(others))
        opened(served)
        for client in clients:
            assert [(b"d", b"first")] == served.ask(client, b"")
        served.until(lambda: 1 == len(threads_of_processor(others)))
        assert served.serves()


def test_a_thread_that_has_not_returned_is_left_behind_at_the_stop() -> None:
    with serving(DiskService(), network_threads=1) as served:
        client = stuck(served)
        assert served.serves()
        served.server.stop_accepting()
        served.server.stop(2.0)
        assert 1 == served.server.left_behind
        served.until(lambda: client.eof)
        opened(served)


def test_a_removed_processor_that_waits_hands_its_connections_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(DiskService(), network_threads=2) as served:
        clients = [served.connect("echo") for _ in range(4)]
        for client in clients:
            served.ask(client, frame(b"e", b"hello"))
        service: Any = served.services["echo"]
        clients[1].send(frame(b"d", b"one"))
        assert service.waiting.acquire(timeout=60)
        assert served.serves()
        served.server.resize_processors(1)
        for client in (clients[0], clients[2], clients[3]):
            assert [(b"e", b"moved")] == served.ask(client, frame(b"e", b"moved"))
        opened(served)
        assert [(b"d", b"one")] == served.ask(clients[1], b"")
        assert [(b"e", b"later")] == served.ask(clients[1], frame(b"e", b"later"))
