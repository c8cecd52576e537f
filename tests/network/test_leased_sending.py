from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

from broker.cluster.lease import Lease
from broker.network.leased_sending import Gate
from tests.network.echo import EchoService, frame
from tests.network.harness import Bench, Stage, serving
from tests.waiting import wait_for


def new_lease() -> Lease:
    return Lease(duration_s=10.0, margin_s=0.5, answers_s=2.0)


@contextmanager
def bench(stage: Stage | None = None, **settings: Any) -> Iterator[tuple[Bench, Lease]]:
    """With a lease that is renewed now."""
    lease = new_lease()
    made = Bench(stage=stage, gate=Gate(lease, lambda listener: listener == "echo"), **settings)
    lease.renewed(made.clock.now, made.clock.now)
    lease.caught_up(inf, made.clock.now)
    try:
        yield made, lease
    finally:
        made.close()


def test_answers_leave_while_the_lease_is_fresh() -> None:
    with bench() as (made, _):
        client = made.connect()
        made.clock.now += 1.8
        client.send(frame(b"e", b"in time"))
        made.settle()
        assert [(b"e", b"in time")] == client.frames


def test_nothing_leaves_once_answers_have_to_wait_although_nobody_has_noticed() -> None:
    with bench() as (made, _):
        client = made.connect()
        client.send(frame(b"e", b"inline") + frame(b"p", b"by a handler"))
        made.clock.now += 2.0
        made.settle()
        assert (b"", False) == (bytes(client.received), client.eof)


def test_what_was_held_leaves_in_order_when_the_lease_is_renewed() -> None:
    with bench() as (made, lease):
        clients = [made.connect() for _ in range(3)]
        made.clock.now += 5.0
        for client in clients:
            client.send(frame(b"e", b"one") + frame(b"p", b"two") + frame(b"e", b"three"))
        made.settle()
        lease.renewed(made.clock.now, made.clock.now)
        made.settle()
        expected = [(b"e", b"one"), (b"p", b"two"), (b"e", b"three")]
        assert [expected] * 3 == [client.frames for client in clients]
        clients[0].send(frame(b"e", b"four"))
        made.settle()
        assert (b"e", b"four") == clients[0].frames[-1]


def test_a_renewal_that_is_too_old_when_it_comes_lets_nothing_leave() -> None:
    with bench() as (made, lease):
        client = made.connect()
        made.clock.now += 5.0
        client.send(frame(b"e", b"held"))
        made.settle()
        lease.renewed(made.clock.now - 3.0, made.clock.now)
        made.settle()
        assert [] == client.frames
        lease.renewed(made.clock.now, made.clock.now)
        made.settle()
        assert [(b"e", b"held")] == client.frames


def test_answers_are_held_again_and_again() -> None:
    with bench() as (made, lease):
        client = made.connect()
        for number in range(5):
            made.clock.now += 5.0
            client.send(frame(b"e", b"%d" % number))
            made.settle()
            assert number == len(client.frames)
            lease.renewed(made.clock.now, made.clock.now)
            made.settle()
            assert number + 1 == len(client.frames)


def test_what_was_made_without_the_lease_does_not_leave_when_it_comes_back() -> None:
    """The processor is still to close the connection."""
    with bench() as (made, lease):
        client = made.connect()
        made.clock.now += 10.0
        client.send(frame(b"e", b"held"))
        made.settle()
        made.quotas.suspend(frozenset({"echo"}))
        lease.renewed(made.clock.now, made.clock.now)
        lease.caught_up(inf, made.clock.now)
        client.send(frame(b"e", b"later"))
        made.settle()
        assert (b"", False) == (bytes(client.received), client.eof)
        made.processor.close_outlived()
        made.until(lambda: not made.processor.connections)


def test_nothing_leaves_after_the_lease_was_lost() -> None:
    with bench() as (made, lease):
        client = made.connect()
        lease.lost()
        client.send(frame(b"e", b"too late"))
        made.settle()
        lease.renewed(made.clock.now, made.clock.now)
        made.settle()
        assert [] == client.frames


def test_the_rest_of_an_answer_that_has_begun_is_held_as_well() -> None:
    with bench(send_buffer=4096) as (made, lease):
        client = made.connect(receive_buffer=4096)
        client.reads = False
        client.send(frame(b"e", b"x" * 500_000))
        made.settle()
        connection = made.connection_of(client)
        left = connection.outgoing_bytes
        assert 0 < left < 500_000
        made.clock.now += 5.0
        client.reads = True
        made.settle()
        assert left == connection.outgoing_bytes
        lease.renewed(made.clock.now, made.clock.now)
        made.settle()
        assert [(b"e", b"x" * 500_000)] == client.frames


def test_a_processor_with_held_answers_sleeps() -> None:
    with bench(send_buffer=4096) as (made, _):
        client = made.connect(receive_buffer=4096)
        client.reads = False
        client.send(frame(b"e", b"x" * 500_000))
        made.settle()
        client.reads = True
        made.clock.now += 5.0
        made.settle()
        connection = made.connection_of(client)
        assert 0 < connection.outgoing_bytes
        assert not made.processor.step(0.0)


def test_what_is_held_has_the_bounds_of_a_peer_that_does_not_read() -> None:
    with bench(high=10_000, low=2_000) as (made, lease):
        client = made.connect()
        made.clock.now += 5.0
        client.send(frame(b"e", b"x" * 1_000) * 100)
        made.settle()
        held = made.connection_of(client).outgoing_bytes
        assert 10_000 < held < 13_000
        lease.renewed(made.clock.now, made.clock.now)
        made.settle()
        assert 100 == len(client.frames)


def test_listeners_that_need_no_lease_are_answered() -> None:
    lease = new_lease()
    made = Bench(gate=Gate(lease, lambda listener: listener != "echo"))
    client = made.connect()
    client.send(frame(b"e", b"answered"))
    made.settle()
    assert [(b"e", b"answered")] == client.frames
    made.close()


def test_a_held_connection_moves_to_another_processor_and_is_answered_there() -> None:
    stage = Stage()
    with bench(stage) as (made, lease), bench(stage) as (heir, heirs_lease):
        client = made.connect()
        stage.clock.now += 5.0
        client.send(frame(b"e", b"held"))
        made.settle()
        made.replace(heir.processor)
        lease.renewed(stage.clock.now, stage.clock.now)
        made.settle()
        heir.settle()
        client.pump()
        assert [] == client.frames
        heirs_lease.renewed(stage.clock.now, stage.clock.now)
        heir.settle()
        client.pump()
        assert [(b"e", b"held")] == client.frames


def test_a_held_connection_may_be_closed() -> None:
    with bench() as (made, lease):
        client = made.connect()
        made.clock.now += 5.0
        client.send(frame(b"e", b"held"))
        made.settle()
        client.abort()
        made.until(lambda: not made.processor.connections)
        lease.renewed(made.clock.now, made.clock.now)
        made.settle()


def test_a_server_asks_the_lease_for_listeners_that_suspend() -> None:
    """The clock is the system's: the lease is too old, whatever it says."""
    lease = new_lease()
    with serving(control=EchoService(), lease=lease) as served:
        held = served.connect().send(frame(b"e", b"held"))
        assert served.serves("control")
        wait_for(lambda: served.server.processors[0].stats.requests + served.server.processors[1].stats.requests)
        held.pump()
        assert [] == held.frames
        now = served.server.runtime.clock.monotonic()
        lease.renewed(now + 1000.0, now)
        lease.caught_up(inf, now)
        served.until(lambda: held.frames, "it stays held")
        served.server.suspend()
        served.until(lambda: held.eof, "it is not closed")
