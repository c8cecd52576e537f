"""A processor that goes hands its connections over, whatever each of them is doing.

`test_any_order.py` lets processors go in every order of events, and `test_socket_server.py` does it with real threads.
"""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from broker.network.departure import Work
from broker.network.mute import DRAINING, MuteEvent
from tests.network.echo import EchoService, frame
from tests.network.harness import Bench, Stage

MakeBench = Callable[..., Bench]
Pair = tuple[Bench, Bench]


@pytest.fixture
def pair(bench: MakeBench) -> Iterator[Callable[..., Pair]]:
    """Two benches with one service and one stage."""

    def make(service: Any = None, **settings: Any) -> Pair:
        service = service or EchoService()
        stage = Stage(**settings)
        return bench(service, stage=stage, high=4096, low=1024), bench(service, stage=stage, high=4096, low=1024)

    return make


def step(*benches: Bench, times: int = 5) -> None:
    for _ in range(times):
        for bench in benches:
            bench.step()


def test_idle_connection_moves_with_its_session(pair: Callable[..., Pair]) -> None:
    one, other = pair()
    client = one.connect()
    client.send(frame(b"e", b"1"))
    step(one)
    connection = one.connection_of(client)
    session = connection.session
    gone = one.replace(other.processor)
    client.send(frame(b"e", b"2"))
    step(other, one)
    assert client.frames == [(b"e", b"1"), (b"e", b"2")]
    assert list(other.processor.connections) == [connection]
    assert connection.session is session
    assert list(gone.connections) == []
    assert one.service.gone == []
    assert one.quotas.total == 1


@pytest.mark.parametrize("moved_before", ["it is answered", "the answer is passed on"])
def test_request_in_flight_is_answered_on_new_processor(pair: Callable[..., Pair], moved_before: str) -> None:
    one, other = pair()
    client = one.connect()
    client.send(frame(b"H", b"1") + frame(b"e", b"2"))
    one.until(lambda: one.service.parked)
    request, outbox = one.service.parked.pop()
    if moved_before == "it is answered":
        one.replace(other.processor)
        outbox.send(request, [request.copy])
    else:
        outbox.send(request, [request.copy])
        one.replace(other.processor)
    step(other, one)
    assert client.frames == [(b"H", b"1"), (b"e", b"2")]


def test_answer_to_old_address_arrives_after_lookup(
    pair: Callable[..., Pair],
) -> None:
    one, other = pair()
    client = one.connect()
    client.send(frame(b"H", b"1"))
    one.until(lambda: one.service.parked)
    request, _ = one.service.parked.pop()
    address = request.connection.processor
    third = one.replace(other.processor)  # to the other one, and back to the new one
    step(other)
    other.replace(one.processor)
    assert address is third
    address.submit(address.send, request, [request.copy])
    step(one, other)
    assert client.frames == [(b"H", b"1")]


@pytest.mark.parametrize("late", ["before the end", "after the end"])
def test_ended_processor_never_answers_at_old_address(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    one, other = pair()
    client = one.connect()
    client.send(frame(b"H", b"1"))
    one.until(lambda: one.service.parked)
    request, _ = one.service.parked.pop()
    gone, end = one.processor, one.processor.departure.end

    def leave() -> None:
        """The first half of ``submit``. The thread that answers is at its second half, ``forward``."""
        gone._inbox.append((gone.send, request, [request.copy]))

    def ends() -> list[Work]:
        if late == "before the end":
            leave()
        return end()

    monkeypatch.setattr(gone.departure, "end", ends)
    gone.leave(lambda: [other.processor])
    one.step()
    if late == "after the end":
        leave()
    one.step()
    gone.departure.forward()
    step(other, one)
    assert client.frames == [(b"H", b"1")]


def test_work_at_old_address_is_always_passed_on(pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = pair(EchoService(in_flight_max=0))
    client = one.connect()
    client.send(frame(b"e", b"1"))
    step(one)
    connection = one.connection_of(client)
    gone = one.replace(other.processor)
    done: list[int] = []
    gone._inbox.append((gone.call, connection, partial(done.append, 1)))
    append = other.processor.departure.append

    def meanwhile(work: Work) -> None:
        if len(gone._inbox) == 0 and not done:
            gone._inbox.append((gone.call, connection, partial(done.append, 2)))
        monkeypatch.setattr(other.processor.departure, "append", append)
        append(work)

    monkeypatch.setattr(other.processor.departure, "append", meanwhile)
    gone.departure.forward()
    gone.departure.forward()
    step(other)
    assert done == [1, 2]


def test_half_frame_and_unread_bytes_move_too(pair: Callable[..., Pair]) -> None:
    one, other = pair()
    client = one.connect(receive_buffer=4096)
    client.reads = False
    client.send(frame(b"z", b"x" * 8) + frame(b"e", b"y" * 100_000)[:60_000])
    step(one, times=50)
    connection = one.connection_of(client)
    assert connection.outgoing_bytes > 1 << 20
    one.replace(other.processor)
    step(one)
    other.clock.now += 2
    step(other)
    assert other.stage.unsent.total > 1 << 20  # the heir counts them
    client.reads = True
    client.send(frame(b"e", b"y" * 100_000)[60_000:])
    other.until(lambda: one.step() or len(client.frames) == 2)  # type: ignore[func-returns-value]
    assert client.frames == [(b"z", b"\0" * (8 << 20)), (b"e", b"y" * 100_000)]


def test_throttle_that_spans_the_move_ends_at_heir(
    pair: Callable[..., Pair],
) -> None:
    one, other = pair()
    client = one.connect()
    client.send(frame(b"t", b"1") + frame(b"e", b"2"))
    step(one)
    connection, outbox = one.service.throttled.pop()
    one.replace(other.processor)
    step(other)
    assert client.frames == [(b"t", b"1")]
    outbox.end_throttling(connection)
    outbox.start_throttling(connection)
    outbox.end_throttling(connection)
    other.replace(one.processor)  # all three lie in the inbox of the one that goes
    step(one)
    assert client.frames == [(b"t", b"1"), (b"e", b"2")]
    assert connection.holds == 0


def test_request_waiting_for_channel_arrives_from_heir(
    pair: Callable[..., Pair],
) -> None:
    one, other = pair(queue=1)
    clients = [one.connect() for _ in range(3)]
    for n, client in enumerate(clients):
        client.send(frame(b"p", b"%d" % n))
    step(one)
    assert sum(c.held is not None for c in one.processor.connections) == 2
    one.replace(other.processor)
    other.until(lambda: one.step() or all(client.frames for client in clients))  # type: ignore[func-returns-value]
    assert [client.frames for client in clients] == [[(b"p", b"%d" % n)] for n in range(3)]


def test_heir_returns_stream_frames_that_handlers_read(pair: Callable[..., Pair]) -> None:
    one, other = pair(EchoService(in_flight_max=0))
    client = one.connect()
    client.send(frame(b"p", b"x" * 1000) * 3)
    step(one)
    assert one.memory.in_use > 0
    one.replace(other.processor)
    other.until(lambda: one.step() or len(client.frames) == 3)  # type: ignore[func-returns-value]
    other.until(lambda: one.memory.in_use == 0)


def test_work_of_one_thread_stays_ordered_across_moves(bench: MakeBench) -> None:
    service, stage = EchoService(in_flight_max=0), Stage()
    stage.roles.get_ident = threading.get_ident  # type: ignore[method-assign]
    benches = [bench(service, stage=stage) for _ in range(2)]
    client = benches[0].connect()
    client.send(frame(b"e"))
    step(*benches)
    (connection,) = service.connections
    done: list[list[int]] = [[], [], []]
    left = [0, 0, 0]
    moved = threading.Event()

    def leave(who: int) -> None:
        while not moved.is_set():
            if left[who] - len(done[who]) > 20:
                moved.wait(0.0002)  # else there is no end to what lies in the inbox
                continue
            stage.outbox.call(connection, partial(done[who].append, left[who]))
            left[who] += 1

    # Only these threads are real. Those of the processors are this one, which lets them go all the time.
    threads = [threading.Thread(target=leave, args=(who,)) for who in range(3)]
    for thread in threads:
        thread.start()
    for move in range(100):
        benches[move % 2].replace(benches[1 - move % 2].processor)
        benches[1 - move % 2].step()
    moved.set()
    for thread in threads:
        thread.join()
    step(*benches)
    assert done == [list(range(count)) for count in left]


def test_queued_new_connections_are_handed_over_as_well(pair: Callable[..., Pair]) -> None:
    one, other = pair()
    client = one.dial()
    assert one.processor.offer(one.new_connection())
    client.send(frame(b"e", b"1"))
    gone = one.replace(other.processor)
    assert not gone.offer(None)  # type: ignore[arg-type]
    step(other, one)
    assert client.frames == [(b"e", b"1")]


def test_heir_that_ends_early_passes_connection_on(bench: MakeBench) -> None:
    service, stage = EchoService(), Stage()
    one, two, three = (bench(service, stage=stage) for _ in range(3))
    client = one.connect()
    client.send(frame(b"H", b"1"))
    one.until(lambda: service.parked)
    request, outbox = service.parked.pop()
    one.replace(two.processor)
    outbox.send(request, [request.copy])
    two.replace(three.processor)
    step(three, one, two)
    assert client.frames == [(b"H", b"1")]
    assert len(three.processor.connections) == 1


def test_what_nobody_takes_is_closed(bench: MakeBench) -> None:
    stage = Stage()
    one, two, three = (bench(stage=stage) for _ in range(3))
    clients = [one.connect() for _ in range(3)]
    two.processor.close()
    one.replace(two.processor, three.processor)  # the first of them goes as well
    step(three)
    assert len(three.processor.connections) == 3
    three.replace()
    step(three)
    for client in clients:
        client.pump()
        assert client.eof
    assert stage.quotas.total == 0


def test_connection_adopted_by_closed_processor_is_closed(pair: Callable[..., Pair]) -> None:
    one, other = pair()
    client = one.connect()
    one.replace(other.processor)
    other.processor.close()
    client.pump()
    assert client.eof
    assert one.quotas.total == 0


def test_draining_processor_takes_no_request_of_arriving_connection(pair: Callable[..., Pair]) -> None:
    one, other = pair()
    client = one.connect()
    other.processor.drain()
    one.replace(other.processor)
    step(other)
    client.send(frame(b"e"))
    step(other)
    assert client.frames == []
    assert next(iter(other.processor.connections)).holds == DRAINING


def test_peer_that_closed_its_side_gets_answer_first(pair: Callable[..., Pair]) -> None:
    one, other = pair()
    client = one.connect()
    client.send(frame(b"H", b"1"))
    one.until(lambda: one.service.parked)
    client.finish()
    step(one)
    one.replace(other.processor)
    request, outbox = one.service.parked.pop()
    outbox.send(request, [request.copy])
    step(other, one)
    assert client.eof
    assert client.frames == [(b"H", b"1")]
    assert one.quotas.total == 0


def test_bug_in_left_work_costs_only_its_connection(pair: Callable[..., Pair]) -> None:
    one, other = pair()
    clients = [one.connect() for _ in range(2)]
    connection = one.connection_of(clients[0])
    # On the way to the heir; it raises there, because nothing was throttled.
    one.processor.submit(one.processor.throttle, connection, MuteEvent.THROTTLE_ENDED)
    one.replace(other.processor)
    clients[1].send(frame(b"e"))
    step(other, one)
    assert clients[0].eof
    assert clients[1].frames == [(b"e", b"")]


def test_connection_that_moves_while_the_broker_is_suspended_is_closed(pair: Callable[..., Pair]) -> None:
    one, other = pair()
    client = one.connect()
    one.quotas.suspend(frozenset({"echo"}))
    other.processor.close_outlived()  # the one that goes is not among the processors any more
    step(other)
    one.replace(other.processor)
    step(other, one)
    assert client.eof
    assert ([], 0) == (list(other.processor.connections), one.quotas.total)
    assert 1 == len(one.service.gone)
