"""Processors that work one at a time: when one gives up the run token, and when it keeps it."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from broker.network import receiving
from broker.runtime import system_runtime
from broker.runtime.run_token import KEEP_S, LONG_S, RunToken, TokenHolder
from tests.network.echo import EchoService, frame
from tests.network.harness import Bench, Client, serving
from tests.waiting import wait_for

SMALL, LARGE = b"small", bytes(65 * 1024)


class NotesToken(EchoService):
    """Of each request, whether its processor had the token."""

    def __init__(self, token: RunToken) -> None:
        super().__init__()
        self.token = token
        self.had: list[bool] = []

    def handle(self, request: Any, outbox: Any, prepared: Any = None) -> None:
        self.had.append(request.connection.processor._token.held)
        super().handle(request, outbox, prepared)


@pytest.fixture
def bench() -> Iterator[Bench]:
    token = RunToken()
    bench = Bench(NotesToken(token), token=token)
    yield bench
    bench.close()
    assert not token.lock.locked()


def held(bench: Bench) -> bool:
    assert bench.processor._token is not None
    return bench.processor._token.held


def begin_to_wait(bench: Bench) -> Any:
    """As another thread would. Returns the lock that is released when the token is handed over to it."""
    other = TokenHolder(bench.service.token)
    bench.service.token.waiting.append(other)
    return other.bell


def test_token_is_held_for_work_not_waiting(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    client = bench.connect()
    polls: list[tuple[bool, float | None]] = []
    poll = bench.poller.poll

    def noting(timeout: float | None) -> Any:
        polls.append((held(bench), timeout))
        return poll(timeout)

    monkeypatch.setattr(bench.poller, "poll", noting)
    client.send(frame(b"e", SMALL))
    bench.step(timeout=10.0)
    assert bench.service.had == [True]
    bench.step(timeout=0.001)
    waits = [had for had, timeout in polls if timeout]
    assert waits
    assert not any(waits)


def test_long_kernel_copies_run_without_token(bench: Bench) -> None:
    client = bench.connect()
    for payload in (SMALL, LARGE, SMALL):
        client.send(frame(b"e", payload))
        bench.until(lambda: client.frames)
        assert client.take(1) == [(b"e", payload)]
    assert bench.service.had == [True, False, True]
    client.send(frame(b"z", b"1"))  # 1 MiB back
    bench.until(lambda: bench.service.had[3:])
    assert bench.service.had[3:] == [True]
    assert not held(bench)  # sent without
    bench.until(lambda: client.frames)


def test_a_long_frame_is_received_without(bench: Bench) -> None:
    client = bench.connect()
    data = frame(b"e", bytes(1 << 20))
    client.send(data[:1000])
    bench.until(lambda: bench.processor.stats.bytes_in == 1000)
    bench.step(timeout=0.001)  # it waits for the rest
    client.send(data[1000:2000])
    bench.until(lambda: bench.processor.stats.bytes_in == 2000)
    assert not held(bench)
    assert bench.service.had == []
    client.send(data[2000:])
    bench.until(lambda: client.frames)


def test_long_frame_received_whole_is_handled_without_token(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "LARGE_BYTES", 100)
    client = bench.connect()
    client.send(frame(b"e", bytes(200)))
    bench.until(lambda: client.frames)
    assert bench.service.had == [False]


def test_token_is_released_after_its_time_despite_work(bench: Bench) -> None:
    client = bench.connect()
    client.send(frame(b"e", SMALL) * 1000)  # more than one turn
    bench.until(lambda: bench.service.had)
    assert len(bench.service.had) < 1000
    assert held(bench)
    bell = begin_to_wait(bench)
    bench.step()
    assert held(bench)
    bench.clock.now += KEEP_S
    bench.step()
    assert bell.acquire(blocking=False)
    bench.service.token.lock.release()
    bench.until(lambda: len(client.frames) == 1000)


def test_token_is_kept_briefly_while_another_waits(bench: Bench) -> None:
    client = bench.connect()
    client.send(frame(b"e", SMALL))
    bench.step(timeout=10.0)
    bench.until(lambda: held(bench))
    bell = begin_to_wait(bench)
    client.send(frame(b"e", SMALL))
    bench.step(timeout=10.0)  # does not wait
    assert held(bench)
    assert bench.service.had == [True, True]
    bench.clock.now += KEEP_S
    client.send(frame(b"e", SMALL))
    bench.step(timeout=10.0)
    assert bell.acquire(blocking=False)  # it was handed over
    assert bench.service.had == [True, True, False]
    assert not held(bench)
    bench.service.token.lock.release()


def test_without_work_it_gives_it_up_at_once(bench: Bench) -> None:
    client = bench.connect()
    client.send(frame(b"e", SMALL))
    bench.step(timeout=10.0)
    assert held(bench)
    bell = begin_to_wait(bench)
    bench.step(timeout=10.0)  # only looks
    assert bell.acquire(blocking=False)
    assert not held(bench)
    bench.service.token.lock.release()


def test_token_passes_between_connections_in_long_step(bench: Bench) -> None:
    clients = [bench.connect() for _ in range(3)]
    for client in clients:
        client.send(frame(b"e", SMALL))
    handle, token = bench.service.handle, bench.service.token
    others: list[threading.Thread] = []
    had_it = threading.Event()

    def work() -> None:
        other = TokenHolder(token)
        other.take()
        had_it.set()
        other.give()

    def handles(request: Any, outbox: Any, prepared: Any = None) -> None:
        handle(request, outbox, prepared)
        if not others:
            others.append(threading.Thread(target=work, daemon=True))
            others[0].start()
            wait_for(lambda: token.waiting)
        else:
            assert had_it.is_set() == (len(bench.service.had) == 3)
            bench.clock.now += 2 * LONG_S

    token.patience_s = 60.0
    bench.service.handle = handles
    bench.until(lambda: len(bench.service.had) == 3)
    assert bench.service.had == [True] * 3  # it has taken it again


def test_signatures_of_handshakes_are_made_without(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    client = bench.connect()
    client.send(frame(b"e", SMALL))
    bench.until(lambda: client.frames)
    assert held(bench)
    had: list[bool] = []
    monkeypatch.setattr(bench.processor.handshakes, "run", lambda: had.append(held(bench)))
    bench.processor._handshake_turns.append(None)  # type: ignore[arg-type]
    client.send(frame(b"e", SMALL))
    bench.step(timeout=0.01)
    bench.processor._handshake_turns.clear()
    assert had == [False]


def test_token_is_released_after_handing_connections_over(bench: Bench) -> None:
    client = bench.connect()
    client.send(frame(b"e", SMALL))
    bench.until(lambda: client.frames)
    old = bench.processor
    old.leave(lambda: ())
    bench.step(timeout=0.01)
    assert old.departure.over
    assert not held(bench)


def test_stuck_processor_does_not_stop_others() -> None:
    class Stuck(EchoService):
        def __init__(self) -> None:
            super().__init__()
            self.began = threading.Event()

        def handle(self, request: Any, outbox: Any, prepared: Any = None) -> None:
            if request.command == b"e" and not self.began.is_set():
                self.began.set()
                self.gate.wait(60)
            super().handle(request, outbox, prepared)

    service = Stuck()
    with serving(service, network_threads=2) as served:
        clients = [served.connect() for _ in range(2)]
        served.until(lambda: served.connections == 2)
        clients[0].send(frame(b"e", b"stuck"))
        assert service.began.wait(60)
        for _ in range(50):
            assert served.ask(clients[1], frame(b"e", SMALL)) == [(b"e", SMALL)]
        service.gate.set()
        assert served.ask(clients[0], b"") == [(b"e", b"stuck")]


def test_processors_of_a_server_share_a_token() -> None:
    with serving(network_threads=3) as served:
        tokens = {id(each._token._token) for each in served.server.processors if each._token is not None}
        assert len(tokens) == (0 if system_runtime().run_token() is None else 1)
        clients: list[Client] = [served.connect() for _ in range(6)]
        for number in range(100):
            for client in clients:
                client.send(frame(b"e", b"%d" % number))
            for client in clients:
                assert served.ask(client, b"") == [(b"e", b"%d" % number)]
