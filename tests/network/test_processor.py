"""A processor stepped by the test over real loopback sockets: order, muting, bounds, and what ends a connection.

Memory has a file of its own (test_request_memory.py), random mixes of everything too (test_any_order.py).
"""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker import log
from broker.network import connections, expiry
from broker.network.connection import ProcessorConnection
from broker.network.mute import MuteState, mute_state
from broker.network.quota import ConnectionQuotas
from broker.network.service import Handover, Outbox, Peer, Request
from broker.network.work import LANES
from broker.runtime.disk import SystemDisk
from broker.runtime.poller import READ, WRITE
from tests.network.echo import EchoService, EchoSession, Waking, frame
from tests.network.harness import Bench, Stage

MIB = 1 << 20
MakeBench = Callable[..., Bench]


def answer_parked(bench: Bench, index: int = 0) -> None:
    request, outbox = bench.service.parked.pop(index)
    outbox.send(request, [request.copy])


def answer_all_parked(b: Bench) -> None:
    while b.service.parked:
        answer_parked(b)


# -- order and muting -------------------------------------------------------------------------------------------------


def test_inline_requests_are_answered_within_reading_step(bench: MakeBench) -> None:
    b = bench()
    client = b.connect()
    client.send(frame(b"e", b"1") + frame(b"e", b"2"))
    b.step()
    assert client.frames == [(b"e", b"1"), (b"e", b"2")]
    assert b.processor.stats.inline == 2


def test_pooled_request_mutes_until_its_answer(bench: MakeBench) -> None:
    b = bench()
    client = b.connect()
    client.send(frame(b"p", b"1") + frame(b"e", b"2") + frame(b"p", b"3") + frame(b"e", b"4"))
    b.settle(handling=False)
    assert b.service.handled == []
    assert len(b.channel) == 1
    assert mute_state(b.connection_of(client).holds) is MuteState.MUTED_AND_RESPONSE_PENDING
    assert b.handle()
    b.settle(handling=False)
    assert client.frames == [(b"p", b"1"), (b"e", b"2")]
    assert len(b.channel) == 1
    assert b.handle()
    b.settle(handling=False)
    assert client.frames == [(b"p", b"1"), (b"e", b"2"), (b"p", b"3"), (b"e", b"4")]
    assert mute_state(b.connection_of(client).holds) is MuteState.NOT_MUTED


@pytest.mark.parametrize("park", [b"h", b"H"])
@pytest.mark.parametrize("on_processor", [False, True])
def test_parked_request_holds_back_later_requests(bench: MakeBench, park: bytes, on_processor: bool) -> None:
    b = bench()
    client = b.connect()
    client.send(frame(park, b"1") + frame(b"e", b"2"))
    b.settle()
    client.send(frame(b"e", b"3"))  # arrives while muted
    b.settle()
    assert client.frames == []
    assert b.service.handled == [park]
    if on_processor:
        b.on_processor(lambda: answer_parked(b))
    else:
        answer_parked(b)
    b.until(lambda: len(client.frames) == 3)
    assert client.frames == [(park, b"1"), (b"e", b"2"), (b"e", b"3")]


def test_answer_of_another_thread_wakes_waiting_processor(bench: MakeBench) -> None:
    b = bench()
    client = b.connect()
    client.send(frame(b"h", b"1"))
    b.settle()
    b.processor.process_new_responses()
    b.poller.arm()
    answer_parked(b)
    assert b.poller.poll(20.0) == []  # ended by the bell: there is nothing ready
    b.step()
    assert client.frames == [(b"h", b"1")]


def test_inline_request_may_answer_parked_one_elsewhere(bench: MakeBench) -> None:
    # A produce, inline, wakes a long poll: both connections of the same processor.
    b = bench(Waking())
    waits, wakes = b.connect(), b.connect()
    waits.send(frame(b"h", b"poll") + frame(b"p", b"next"))
    b.settle()
    wakes.send(frame(b"e", b"data"))
    b.until(lambda: len(waits.frames) == 2)
    assert waits.frames == [(b"h", b"poll"), (b"p", b"next")]
    assert wakes.frames == [(b"e", b"data")]


def test_a_request_that_wants_no_answer_unmutes(bench: MakeBench) -> None:
    b = bench()
    client = b.connect()
    client.send(frame(b"n") + frame(b"e", b"1") + frame(b"N") + frame(b"e", b"2"))
    b.until(lambda: len(client.frames) == 2)
    assert client.frames == [(b"e", b"1"), (b"e", b"2")]
    assert b.service.handled == [b"n", b"e", b"N", b"e"]


def test_muted_connection_stays_registered_until_it_is_readable(bench: MakeBench) -> None:
    b = bench()
    client = b.connect()
    client.send(frame(b"h", b"1"))
    b.settle()
    connection = b.connection_of(client)
    assert connection.interest == READ
    client.send(frame(b"e", b"2"))
    b.settle()
    assert connection.interest == 0
    answer_parked(b)
    b.until(lambda: len(client.frames) == 2)
    assert connection.interest == READ


def test_second_answer_to_request_costs_only_its_connection(bench: MakeBench) -> None:
    b = bench()
    twice, other = b.connect(), b.connect()
    twice.send(frame(b"h", b"1"))
    b.settle()
    request, outbox = b.service.parked.pop()
    outbox.send(request, [frame(b"h", b"1")])
    outbox.send(request, [frame(b"h", b"1")])
    b.until(lambda: twice.eof)
    other.send(frame(b"e"))
    b.until(lambda: other.frames)


# -- many connections -------------------------------------------------------------------------------------------------


def test_flood_of_small_requests_leaves_others_their_turn(bench: MakeBench) -> None:
    class Noting(EchoService):
        def __init__(self) -> None:
            super().__init__()
            self.order: list[int] = []

        def handle(self, request: Any, outbox: Outbox, prepared: Any = None) -> None:
            self.order.append(request.connection.peer.port)
            super().handle(request, outbox)

    b = bench(Noting(), receive_buffer=MIB)
    flood, other = b.connect(), b.connect()
    flood.send(frame(b"n") * 40_000)
    mine = other.socket.getsockname()[1]
    for turn in range(3):  # at the beginning of the flood, and in the middle of it
        before = len(b.service.order)
        other.send(frame(b"e", b"me too"))
        b.until(lambda turn=turn: len(other.frames) == turn + 1)  # type: ignore[misc]
        waited = b.service.order.index(mine, before) - before
        assert waited < 2000, f"{waited} requests of one connection before another had its turn"
    b.until(lambda: len(b.service.order) == 40_003)


def test_expensive_requests_end_the_turn_by_time(bench: MakeBench) -> None:
    class Slow(EchoService):
        def handle(self, request: Any, outbox: Outbox, prepared: Any = None) -> None:
            super().handle(request, outbox)
            b.clock.now += 0.001

    b = bench(Slow())
    greedy, modest = b.connect(), b.connect()
    greedy.send(b"".join(frame(b"e", bytes([number])) for number in range(20)))
    modest.send(frame(b"e", b"mine"))
    b.step(timeout=0.1)
    assert len(greedy.frames) <= 4
    b.settle()
    assert modest.frames == [(b"e", b"mine")]
    assert greedy.frames == [(b"e", bytes([number])) for number in range(20)]


def test_reader_that_never_reads_is_expired_without_stalls(bench: MakeBench) -> None:
    b = bench(high=64 * 1024, low=16 * 1024, idle=60.0)
    deaf, other = b.connect(receive_buffer=4096), b.connect()
    deaf.reads = False
    deaf.send(frame(b"z", b"x" * 16))  # 16 MiB back
    b.settle()
    deaf.send(frame(b"e") * 10)
    b.settle()
    connection = b.connection_of(deaf)
    assert connection.outgoing_bytes > MIB
    assert b.service.handled == [b"z"]  # no further request is taken
    for _ in range(3):
        b.clock.now += 30
        other.send(frame(b"e"))
        b.step(2)
        other.take(1)
    assert b.service.gone == [connection]
    assert b.processor.stats.idle_closed == 1
    assert b.quotas.total == 1


def test_a_reader_that_reads_slowly_is_not_expired(bench: MakeBench) -> None:
    b = bench(high=64 * 1024, low=16 * 1024, idle=60.0)
    slow = b.connect(receive_buffer=4096)
    slow.reads = False
    slow.send(frame(b"z", b"x" * 16))
    b.settle()
    total = 0

    def reads_until_more_can_be_sent() -> bool:
        nonlocal total
        total += len(slow.trickle(1 << 16))
        return b.processor.stats.bytes_out > before

    for _ in range(5):
        b.clock.now += 50
        before = b.processor.stats.bytes_out
        b.until(reads_until_more_can_be_sent)
    assert len(b.processor.connections) == 1
    slow.received += bytes(total)
    slow.reads = True
    b.until(lambda: len(slow.received) == 16 * MIB + 5)


def test_large_answer_unmutes_only_when_it_has_left(bench: MakeBench) -> None:
    b = bench(high=64 * 1024, low=16 * 1024)
    client = b.connect(receive_buffer=4096)
    client.reads = False
    client.send(frame(b"z", b"x" * 8) + frame(b"e", b"next"))
    b.settle()
    assert b.service.handled == [b"z"]
    assert b.connection_of(client).interest & WRITE
    client.reads = True
    b.until(lambda: len(client.frames) == 2)
    assert client.frames[1] == (b"e", b"next")
    assert b.connection_of(client).interest == READ


def test_a_hundred_connections_at_once_are_all_answered(bench: MakeBench) -> None:
    b = bench()
    clients = []
    for _ in range(100):
        clients.append(b.connect())
    for n, client in enumerate(clients):
        client.send(frame(b"e" if n % 2 else b"p", bytes([n])) * 5)
    b.until(lambda: all(len(client.frames) == 5 for client in clients))
    for n, client in enumerate(clients):
        assert client.frames == [(b"e" if n % 2 else b"p", bytes([n]))] * 5


# -- the request channel ----------------------------------------------------------------------------------------------


def test_full_request_channel_mutes_and_recovers(bench: MakeBench) -> None:
    b = bench(queue=2)
    clients = [b.connect() for _ in range(6)]
    payload = b"x" * 50_000
    for client in clients:
        client.send(frame(b"p", payload) * 100)
    b.settle(handling=False)
    assert len(b.channel) == 2
    held = [c for c in b.processor.connections if c.held is not None]
    assert len(held) == 4
    assert all(client.unsent for client in clients)  # TCP pushes back: 5 MB do not fit in socket buffers
    assert b.processor.stats.requests == 6
    b.until(lambda: all(len(client.frames) == 100 for client in clients))
    assert len(b.channel) == 0
    assert not any(c.held for c in b.processor.connections)


def test_requests_held_by_full_channel_keep_order(bench: MakeBench) -> None:
    b = bench(queue=1)
    clients = [b.connect() for _ in range(4)]
    for n, client in enumerate(clients):
        client.send(frame(b"H", bytes([n])))
        b.settle(handling=False)
    for _ in clients:
        assert b.handle()
        b.step()
    assert [request.copy for request, _ in b.service.parked] == [frame(b"H", bytes([n])) for n in range(4)]


def test_waiter_for_full_lane_delays_nobody_else(bench: MakeBench) -> None:
    queue = len(LANES) + 1  # of which a lane may fill one place, behind one that runs and one that follows
    b = bench(queue=queue)
    slow, usual = [b.connect() for _ in range(5)], [b.connect() for _ in range(queue - 2)]
    for client in slow[:3]:
        client.send(frame(b"s"))
        b.settle(handling=False)
    for client in usual[:-1]:
        client.send(frame(b"p"))
        b.settle(handling=False)
    for client in slow[3:]:
        client.send(frame(b"s"))
        b.settle(handling=False)
    usual[-1].send(frame(b"p"))
    b.settle(handling=False)
    assert [b.connection_of(client).held is not None for client in slow + usual] == [
        *[False] * 3,
        *[True] * 2,
        *[False] * (queue - 3),
        True,
    ]
    for _ in range(2):  # one of the lane, for which the next one comes, and one of none
        assert b.handle()
        b.step()
    assert b.service.handled == [b"s", b"p"]
    assert [b.connection_of(client).held is not None for client in slow + usual] == [
        *[False] * 4,
        True,
        *[False] * (queue - 2),
    ]
    b.until(lambda: all(client.frames for client in slow + usual))


def test_connection_that_leaves_while_held_is_forgotten(bench: MakeBench) -> None:
    b = bench(queue=1)
    first, goes, last = b.connect(), b.connect(), b.connect()
    for client in (first, goes, last):
        client.send(frame(b"p", b"1"))
        b.settle(handling=False)
    goes.abort()
    b.until(lambda: len(b.processor.connections) == 2, handling=False)
    b.until(lambda: last.frames)
    assert b.service.handled == [b"p", b"p"]


# -- streams: sessions that are never muted for requests --------------------------------------------------------------


def test_parked_request_may_wait_for_handler_like_others(bench: MakeBench) -> None:
    b = bench(queue=1)
    first, second, third = b.connect(), b.connect(), b.connect()
    first.send(frame(b"h", b"1") + frame(b"e", b"2"))
    b.settle(handling=False)
    ((request, outbox),) = b.service.parked
    parts = [request.copy]
    second.send(frame(b"p"))
    b.settle(handling=False)
    outbox.hand_over(request, Handover())  # the channel is full
    third.send(frame(b"p"))
    b.settle(handling=False)
    assert len(b.service.parked) == 1
    b.settle()
    assert len(b.service.parked) == 2  # handled again, by the handler
    assert first.frames == []
    outbox.send(request, parts)
    b.settle()
    assert first.frames == [(b"h", b"1"), (b"e", b"2")]
    assert (len(second.frames), len(third.frames)) == (1, 1)


def test_parked_request_of_closed_connection_reaches_no_handler(bench: MakeBench) -> None:
    b = bench()
    client = b.connect()
    client.send(frame(b"h"))
    b.settle(handling=False)
    ((request, outbox),) = b.service.parked
    client.abort()
    b.settle(handling=False)
    outbox.hand_over(request, Handover())
    b.settle(handling=False)
    assert len(b.channel) == 0


def test_unmuted_session_may_have_many_requests_in_flight(bench: MakeBench) -> None:
    b = bench(EchoService(in_flight_max=0))
    client = b.connect()
    client.send(b"".join(frame(b"H", bytes([n])) for n in range(10)))
    b.settle()
    assert len(b.service.parked) == 10
    while b.service.parked:
        answer_parked(b, -1)
    b.until(lambda: len(client.frames) == 10)
    assert [payload[0] for _, payload in client.frames] == list(range(9, -1, -1))


def test_unmuted_session_is_held_by_full_channel(bench: MakeBench) -> None:
    b = bench(EchoService(in_flight_max=0), queue=3)
    client = b.connect()
    client.send(b"".join(frame(b"p", bytes([n])) for n in range(100)))
    b.settle(handling=False)
    assert len(b.channel) == 3
    b.until(lambda: len(client.frames) == 100)
    assert [payload[0] for _, payload in client.frames] == list(range(100))


def test_stream_requests_keep_their_bytes_during_further_reads(bench: MakeBench) -> None:
    b = bench(EchoService(in_flight_max=0))
    client = b.connect()
    sent = [frame(b"p", bytes([n]) * 300_000) for n in range(5)]
    for data in sent:
        client.send(data)
        b.settle(handling=False)
    assert len(b.channel) == 5
    b.until(lambda: len(client.frames) == 5)
    assert client.received == b"".join(sent)


def test_what_is_pushed_comes_in_the_order_pushed(bench: MakeBench) -> None:
    b = bench(EchoService(in_flight_max=0))
    client = b.connect()
    connection = b.connection_of(client)
    for n in range(50):
        b.outbox.push(connection, [frame(b"P", bytes([n])), b""])
    b.until(lambda: len(client.frames) == 50)
    assert [payload[0] for _, payload in client.frames] == list(range(50))


def test_writable_changes_at_high_and_low_water_marks(bench: MakeBench) -> None:
    # Small socket buffers: else the kernel takes so much at a time that the marks are jumped over.
    b = bench(EchoService(in_flight_max=0), high=256 * 1024, low=64 * 1024, send_buffer=8192)
    client = b.connect(receive_buffer=4096)
    client.reads = False
    connection = b.connection_of(client)
    pushed = 0
    while connection.writable:
        b.outbox.push(connection, [frame(b"P", b"x" * 99_995)])
        pushed += 1
        b.step()
        assert pushed < 1000
    assert connection.outgoing_bytes > 256 * 1024
    assert b.service.writable_calls == 0
    client.send(frame(b"e", b"held"))
    b.settle()
    assert b.service.handled == []  # nor is it read from: its answers would only add to the pile
    while connection.outgoing_bytes > 64 * 1024:
        assert not connection.writable
        assert b.service.writable_calls == 0
        client.received += client.trickle(16_384)
        b.step(timeout=0.001)
    assert connection.writable
    assert b.service.writable_calls == 1
    client.reads = True
    b.until(lambda: len(client.frames) == pushed + 1)
    assert client.frames[-1] == (b"e", b"held")


def test_eager_pushing_service_sends_everything_and_starves_nobody(bench: MakeBench) -> None:
    class Stream(EchoService):
        left = 400

        def more(self, connection: ProcessorConnection, outbox: Outbox) -> None:
            while self.left and connection.writable:
                self.left -= 1
                outbox.push(connection, [frame(b"P", b"x" * 50_000)])
                if self.left % 4 == 0:
                    break  # the next time it is told

        def writable(self, connection: ProcessorConnection) -> None:
            super().writable(connection)
            self.more(connection, b.outbox)

    service = Stream(in_flight_max=0)
    b = bench(service, high=128 * 1024, low=32 * 1024)
    client, other = b.connect(), b.connect()
    connection = b.connection_of(client)
    asked = 0

    def all_there() -> bool:
        nonlocal asked
        service.more(connection, b.outbox)
        if asked < 20 and len(other.frames) == asked:
            asked += 1
            other.send(frame(b"e"))
        return len(client.received) == 400 * 50_005 and len(other.frames) == 20

    b.until(all_there)


@pytest.mark.parametrize("bench", ["plaintext"], indirect=True)  # with TLS, bytes that were given out cannot change
def test_push_from_writable_is_sent_at_once(bench: MakeBench) -> None:
    class Stream(EchoService):
        def writable(self, connection: ProcessorConnection) -> None:
            super().writable(connection)
            b.outbox.push(connection, [frame(b"P", b"more")])

    b = bench(Stream(in_flight_max=0), high=64 * 1024, low=16 * 1024)
    client = b.connect(receive_buffer=4096)
    client.reads = False
    connection = b.connection_of(client)
    b.outbox.push(connection, [bytes(8 * MIB)])
    b.settle()
    assert not connection.writable
    # All that is left leaves at once, with what is pushed now: in the same breath the service is told and pushes more.
    connection.outgoing[0] = b"last"
    connection.outgoing_bytes = 4
    client.reads = True
    in_the_kernel = b.processor.stats.bytes_out
    while len(client.received) < in_the_kernel:
        client.pump()
    b.outbox.push(connection, [b"!"])
    b.step()
    assert b.service.writable_calls == 1
    b.until(lambda: client.received.endswith(b"last!" + frame(b"P", b"more")))


def test_raising_writable_costs_only_its_connection(bench: MakeBench) -> None:
    class Broken(EchoService):
        def writable(self, connection: ProcessorConnection) -> None:
            raise RuntimeError("asked for")

    b = bench(Broken(in_flight_max=0), high=64 * 1024, low=32 * 1024)
    client, other = b.connect(receive_buffer=4096), b.connect()
    client.reads = False
    connection = b.connection_of(client)
    b.outbox.push(connection, [b"x" * 8 * MIB])
    b.settle()
    assert not connection.writable
    client.reads = True
    b.until(lambda: connection.closed)
    other.send(frame(b"e"))
    b.until(lambda: other.frames)


def test_stream_requests_before_close_are_handled_despite_errors(
    bench: MakeBench,
) -> None:
    """It closes while more is on its way to it, which resets the connection, and the broker is about to send still more."""
    b = bench(EchoService(in_flight_max=0))
    client = b.connect()
    client.reads = False
    connection = b.connection_of(client)
    b.outbox.push(connection, [frame(b"P", b"on its way")])
    b.step()
    client.send(frame(b"e") + frame(b"n") * 300 + frame(b"n", b"goodbye")[:-1])
    client.close()
    b.outbox.push(connection, [frame(b"P", b"more")])
    b.step()
    assert b.service.handled == [b"e"] + [b"n"] * 300
    assert b.service.gone == [connection]
    b.settle()
    assert b.service.handled == [b"e"] + [b"n"] * 300


def test_failed_stream_send_still_reads_all_earlier_requests(
    bench: MakeBench,
) -> None:
    class Stream(EchoService):
        def handle(self, request: Any, outbox: Outbox, prepared: Any = None) -> None:
            super().handle(request, outbox)
            if request.command == b"n":
                outbox.push(request.connection, [bytes(100_000)])
                request.connection.writable = False

    b = bench(Stream(in_flight_max=0), high=64 * 1024, low=16 * 1024)
    client = b.connect()
    client.reads = False
    connection = b.connection_of(client)
    b.outbox.push(connection, [frame(b"P", b"on its way")])
    b.step()
    client.send(frame(b"n") * 3 + frame(b"e", b"goodbye"))
    client.close()
    b.until(lambda: connection.closed)
    b.settle()
    assert b.service.handled == [b"n"] * 3 + [b"e"]
    assert b.service.gone == [connection]


def test_stalled_stream_peer_has_earlier_requests_handled(bench: MakeBench) -> None:
    b = bench(EchoService(in_flight_max=0), high=64 * 1024, low=16 * 1024)
    client = b.connect(receive_buffer=4096)
    client.reads = False
    connection = b.connection_of(client)
    b.outbox.push(connection, [bytes(8 * MIB)])
    client.send(frame(b"n"))
    b.settle()
    assert b.service.handled == []
    client.close()
    b.until(lambda: connection.closed)
    assert b.service.handled == [b"n"]
    assert b.service.gone == [connection]


def test_request_of_closed_peer_is_not_handled(bench: MakeBench) -> None:
    """Its answer could not be sent."""
    b = bench()
    client = b.connect()
    client.reads = False
    connection = b.connection_of(client)
    b.outbox.push(connection, [frame(b"P", b"on its way")])
    b.step()
    client.send(frame(b"e"))
    client.close()
    b.outbox.push(connection, [frame(b"P", b"more")])
    b.step()
    assert (b.service.handled, b.service.gone) == ([], [connection])


# -- throttling -------------------------------------------------------------------------------------------------------


def test_throttled_connection_is_answered_but_not_read(bench: MakeBench) -> None:
    b = bench()
    client = b.connect()
    client.send(frame(b"t", b"1") + frame(b"e", b"2"))
    b.settle()
    assert client.frames == [(b"t", b"1")]
    client.send(frame(b"e", b"3"))
    b.settle()
    assert client.frames == [(b"t", b"1")]
    assert mute_state(b.connection_of(client).holds) is MuteState.MUTED_AND_THROTTLED
    connection, outbox = b.service.throttled.pop()
    outbox.end_throttling(connection)
    b.until(lambda: len(client.frames) == 3)
    assert client.frames == [(b"t", b"1"), (b"e", b"2"), (b"e", b"3")]


def test_throttle_ending_before_answer_leaves_connection_muted(bench: MakeBench) -> None:
    b = bench()
    client = b.connect()
    connection = b.connection_of(client)
    client.send(frame(b"h", b"1") + frame(b"e", b"2"))
    b.settle()
    b.outbox.start_throttling(connection)
    b.settle()
    assert mute_state(connection.holds) is MuteState.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING
    b.outbox.end_throttling(connection)
    b.settle()
    assert mute_state(connection.holds) is MuteState.MUTED_AND_RESPONSE_PENDING
    assert client.frames == []
    answer_parked(b)
    b.until(lambda: len(client.frames) == 2)


def test_throttle_on_idle_connection_holds_next_request(bench: MakeBench) -> None:
    b = bench()
    client = b.connect()
    connection = b.connection_of(client)
    b.outbox.start_throttling(connection)
    b.settle()
    client.send(frame(b"e"))
    b.settle()
    assert client.frames == []
    b.outbox.end_throttling(connection)
    b.until(lambda: client.frames)


# -- how connections end ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [b"c", b"C"])
def test_close_comes_after_what_was_queued_before(bench: MakeBench, command: bytes) -> None:
    b = bench()
    client = b.connect(receive_buffer=4096)
    client.reads = False
    client.send(frame(b"z", b"x" * 2) + frame(b"e", b"2") + frame(command) + frame(b"e", b"never"))
    b.settle()
    client.reads = True
    b.until(lambda: client.eof)
    assert [name for name, _ in client.frames] == [b"z", b"e"]
    assert not b.processor.connections
    b.step(2)
    assert len(b.service.gone) == 1
    assert b.quotas.total == 0


@pytest.mark.parametrize("nonsense", [frame(b"!"), b"\0\0\0\0", b"\xff\xff\xff\xff" + b"x" * 100])
def test_nonsense_closes_after_good_requests_are_answered(bench: MakeBench, nonsense: bytes) -> None:
    b = bench()
    client = b.connect()
    client.send(frame(b"e", b"1") + frame(b"p", b"2") + frame(b"e", b"3") + nonsense)
    b.until(lambda: client.eof)
    assert client.frames == [(b"e", b"1"), (b"p", b"2"), (b"e", b"3")]
    assert b.processor.stats.protocol_errors == 1


def test_crowd_of_nonsense_does_not_fill_the_log(
    bench: MakeBench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "_level", log.LEVELS["info"])
    b = bench()
    clients = [b.connect() for _ in range(30)]
    for client in clients:
        client.send(frame(b"!"))
    b.until(lambda: all(client.eof for client in clients))
    assert b.processor.stats.protocol_errors == 30
    assert capsys.readouterr().err.count("protocol_violated") == 10


@pytest.mark.parametrize("command", [b"x", b"X"])
def test_raising_handler_closes_after_earlier_answers(bench: MakeBench, command: bytes) -> None:
    b = bench()
    client, other = b.connect(), b.connect()
    client.send(frame(b"e", b"1") + frame(b"e", b"2") + frame(command) + frame(b"e", b"never"))
    b.until(lambda: client.eof)
    assert client.frames == [(b"e", b"1"), (b"e", b"2")]
    assert b.service.handled == [b"e", b"e", command]
    other.send(frame(b"e", b"fine"))
    b.until(lambda: other.frames)
    b.step()
    assert b.quotas.total == 1
    assert b.memory.in_use == 0


@pytest.mark.parametrize("payload", [95, 100, 300_000])
def test_oversized_frame_closes_however_it_arrives(bench: MakeBench, payload: int) -> None:
    b = bench(frame_max=99)
    client = b.connect()
    client.send(frame(b"e", b"1") + frame(b"e", b"x" * payload))
    b.until(lambda: client.eof)
    assert client.frames == [(b"e", b"1")]


def test_frame_of_exactly_largest_size_is_served(bench: MakeBench) -> None:
    b = bench(frame_max=99)
    client = b.connect()
    client.send(frame(b"e", b"x" * 94))
    b.until(lambda: client.frames)


def test_late_answer_to_peer_that_left_is_dropped(
    bench: MakeBench,
) -> None:
    b = bench()
    client = b.connect()
    client.send(frame(b"h", b"1"))
    b.settle()
    client.abort()
    b.until(lambda: b.service.gone)
    assert not b.processor.connections
    answer_parked(b)
    b.step(2)
    assert b.quotas.total == 0


def test_half_closed_peer_gets_every_due_answer(bench: MakeBench) -> None:
    b = bench()
    client = b.connect(receive_buffer=4096)
    client.send(frame(b"e", b"1") + frame(b"z", b"x" * 4))
    client.finish()
    b.until(lambda: client.eof)
    assert [name for name, _ in client.frames] == [b"e", b"z"]
    assert not client.reset


@pytest.mark.parametrize("behind", [b"", frame(b"p", b"2") + frame(b"e", b"3") + frame(b"h", b"4")])
@pytest.mark.parametrize("command", [b"h", b"p", b"H"])
def test_half_closed_peer_gets_all_responses_in_order(bench: MakeBench, command: bytes, behind: bytes) -> None:
    b = bench()
    client = b.connect()
    client.send(frame(command, b"1") + behind + frame(b"e", b"cut off")[:-1])
    b.step(3)
    client.finish()

    b.until(lambda: answer_all_parked(b) or client.eof)
    expected = [b"1", b"2", b"3", b"4"] if behind else [b"1"]
    assert [payload for _, payload in client.frames] == expected
    assert not client.reset
    b.step()
    assert b.quotas.total == 0
    assert b.memory.in_use == 0


def test_half_closed_peer_gets_answers_to_large_requests(bench: MakeBench) -> None:
    b = bench()
    client = b.connect()
    client.send(frame(b"H", b"1" * 300_000) + frame(b"p", b"2" * 300_000) + frame(b"e", b"3"))
    b.until(lambda: b.service.parked)
    client.finish()

    b.until(lambda: answer_all_parked(b) or client.eof)
    assert [payload for _, payload in client.frames] == [b"1" * 300_000, b"2" * 300_000, b"3"]


def test_waiting_request_is_told_of_half_close(bench: MakeBench) -> None:
    class GivesUp(EchoService):
        def stopping(self, connection: ProcessorConnection) -> None:
            request, outbox = self.parked.pop()
            outbox.send(request, [frame(b"h", b"nothing yet")])

    b = bench(GivesUp())
    client = b.connect()
    client.send(frame(b"h") + frame(b"e", b"behind"))
    b.settle()
    client.finish()
    b.until(lambda: client.eof)
    assert client.frames == [(b"h", b"nothing yet"), (b"e", b"behind")]


def test_half_closed_peer_is_dropped_after_a_while(bench: MakeBench) -> None:
    b = bench()
    client = b.connect()
    client.send(frame(b"h"))
    b.settle()
    client.finish()
    b.settle()
    connection = b.connection_of(client)
    assert connection.finished
    assert not connection.closed
    b.clock.now += expiry._LINGER_S - 1
    b.step(2)
    assert not connection.closed
    b.clock.now += 2
    b.step(2)
    assert connection.closed
    assert b.service.gone == [connection]


def test_throttled_half_closed_peer_ends_after_throttle(bench: MakeBench) -> None:
    b = bench()
    client = b.connect()
    client.send(frame(b"t", b"1") + frame(b"e", b"2"))
    b.settle()
    client.finish()
    b.settle()
    connection, outbox = b.service.throttled.pop()
    outbox.end_throttling(connection)
    b.until(lambda: client.eof)
    assert client.frames == [(b"t", b"1"), (b"e", b"2")]


def test_reset_behind_unread_request_is_noticed_in_flight(bench: MakeBench) -> None:
    b = bench()
    client = b.connect()
    client.send(frame(b"h"))
    b.settle()
    client.send(frame(b"e"))
    b.settle()
    connection = b.connection_of(client)
    assert not connection.interest
    client.abort()
    b.clock.now += 2
    b.until(lambda: connection.closed)


def test_many_busy_connections_each_get_short_turn(bench: MakeBench) -> None:
    b = bench()
    clients = [b.connect() for _ in range(64)]
    for client in clients:
        client.send(frame(b"e", b"x") * 500)
    while not b.processor.stats.requests:
        b.step()
    # One step: of those that were readable in it, none had a turn as long as if it were alone.
    assert b.processor.stats.requests <= connections._STEP_REQUESTS + 64 * connections._LEAST_TURN_REQUESTS
    b.until(lambda: all(len(client.frames) == 500 for client in clients))


def test_unread_answers_are_bounded_over_all_connections(bench: MakeBench) -> None:
    b = bench(stage=Stage(unsent=2 << 20), high=1 << 20, low=1 << 18, send_buffer=8192)
    clients = [b.connect(receive_buffer=4096) for _ in range(10)]
    reads = b.connect()
    for client in clients:
        client.reads = False
    for _ in range(20):
        for client in clients:
            client.send(frame(b"e", b"x" * 50_000))
        b.clock.now += 1
        b.step(3)
    # Two megabytes, and what came in the second before that was noticed.
    assert b.stage.unsent.total <= 4 << 20
    reads.send(frame(b"e", b"still served"))
    b.until(lambda: reads.frames)
    for _ in range(20):
        b.clock.now += 1
        b.step()
    assert b.stage.unsent.total <= 2 << 20
    gone = sum(client.reads is False and client.socket.fileno() > 0 for client in clients) - (
        len(b.processor.connections) - 1
    )
    assert 0 < gone < 10
    assert not reads.eof
    for client in clients:
        client.reads = True
    b.until(lambda: len(b.processor.connections) == 1 or not any(c.outgoing for c in b.processor.connections))


def test_files_that_nobody_reads_take_no_memory(bench: MakeBench, tmp_path: Path) -> None:
    b = bench(EchoService(), stage=Stage(unsent=1 << 20), send_buffer=8192)
    (tmp_path / "file").write_bytes(b"x" * (8 << 20))
    b.service.file = SystemDisk().open(f"{tmp_path}/file", read_only=True)
    client = b.connect(receive_buffer=4096)
    client.reads = False
    client.send(frame(b"f", b"0 %d" % (8 << 20)))
    b.settle()
    b.clock.now += 2
    b.step(2)
    assert b.connection_of(client).outgoing_bytes > 4 << 20
    # With TLS, what is encrypted and not sent does: a few records.
    assert b.stage.unsent.total == b.connection_of(client).socket.held_bytes <= (70_000 if b.tls else 0)
    client.reads = True
    b.until(lambda: client.frames)


def test_a_reset_connection_is_gone_at_once(bench: MakeBench) -> None:
    b = bench()
    client, other = b.connect(), b.connect()
    client.send(frame(b"e"))
    b.settle()
    client.abort()
    b.until(lambda: len(b.processor.connections) == 1)
    other.send(frame(b"e"))
    b.until(lambda: other.frames)


def test_idle_connections_are_closed_and_busy_stay(bench: MakeBench) -> None:
    b = bench(idle=10.0)
    idle, busy, parked = b.connect(), b.connect(), b.connect()
    parked.send(frame(b"h"))
    b.settle()
    for _ in range(4):
        b.clock.now += 5
        busy.send(frame(b"e"))
        b.step(3)
    assert idle.eof
    assert not busy.eof
    assert not parked.eof  # its request is out: it is the broker that takes so long
    assert b.processor.stats.idle_closed == 1
    b.clock.now += 11
    b.step(3)
    assert busy.eof


def test_expiry_examines_a_part_each_second(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "_LOOKED_AT", 3)
    b = bench(idle=10.0)
    clients = [b.connect() for _ in range(10)]
    b.settle()
    for second in range(4):
        b.clock.now += 20 if second == 0 else 3
        b.step(3)
        assert min(10, 3 * (second + 1)) == sum(client.eof for client in clients)
    assert len(b.processor.connections) == 0


def test_new_connection_is_examined_in_next_round(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "_LOOKED_AT", 1)
    b = bench(idle=10.0)
    for _ in range(3):
        b.connect()
    b.settle()
    b.clock.now += 2
    b.step(3)
    late = b.connect()
    b.settle()
    b.clock.now += 20
    for _ in range(6):
        b.clock.now += 3
        b.step(3)
    assert late.eof
    assert 4 == b.processor.stats.idle_closed


def test_connection_kept_by_its_service_may_be_silent(bench: MakeBench) -> None:
    b = bench(idle=10.0)
    kept = b.connect()
    kept.send(frame(b"e"))
    b.until(lambda: kept.frames)
    (connection,) = b.processor.connections
    connection.keep = True
    b.clock.now += 60
    b.step(3)
    assert not kept.eof
    connection.keep = False
    b.clock.now += 11
    b.step(3)
    assert kept.eof


def test_file_shorter_than_promised_costs_only_its_connection(bench: MakeBench, tmp_path: Path) -> None:
    service = EchoService()
    service.file = SystemDisk().open(str(tmp_path / "log"), create=True)
    service.file.pwrite([bytes(100)], 0)
    b = bench(service)
    client, other = b.connect(), b.connect()
    client.send(frame(b"f", b"10 90") + frame(b"f", b"50 100"))
    b.until(lambda: client.eof)
    assert client.frames == [(b"f", bytes(90))]
    other.send(frame(b"f", b"0 100"))
    b.until(lambda: other.frames)


def test_large_files_and_memory_stay_ordered_when_slow(bench: MakeBench, tmp_path: Path) -> None:
    service = EchoService()
    content = b"".join(n.to_bytes(4, "big") for n in range(2 * MIB))
    service.file = SystemDisk().open(str(tmp_path / "log"), create=True)
    service.file.pwrite([content], 0)
    b = bench(service)
    client = b.connect(receive_buffer=8192)
    client.send(
        frame(b"f", b"0 8388608") + frame(b"e", b"between") + frame(b"f", b"4 0") + frame(b"f", b"1000000 5000000")
    )
    b.until(lambda: len(client.frames) == 4)
    assert client.frames == [
        (b"f", content),
        (b"e", b"between"),
        (b"f", b""),
        (b"f", content[1_000_000:6_000_000]),
    ]


def test_unsendable_bytes_cost_only_their_connection(bench: MakeBench) -> None:
    b = bench()
    client, other = b.connect(), b.connect()
    client.send(frame(b"h"))
    b.settle()
    request, outbox = b.service.parked.pop()
    view = memoryview(b"abc")
    b.on_processor(lambda: outbox.send(request, [view]))
    view.release()
    b.until(lambda: client.eof)
    other.send(frame(b"e"))
    b.until(lambda: other.frames)


def test_failing_connect_of_service_costs_only_that_connection(bench: MakeBench) -> None:
    class Picky(EchoService):
        refuse = True

        def connect(self, peer: Peer) -> EchoSession:
            if self.refuse:
                raise RuntimeError("asked for")
            return super().connect(peer)

    b = bench(Picky())
    refused = b.dial()
    assert b.processor.offer(b.new_connection())
    b.step()
    b.until(lambda: refused.eof)
    assert b.quotas.total == 0
    b.service.refuse = False
    client = b.connect()
    client.send(frame(b"e"))
    b.until(lambda: client.frames)


def test_raising_disconnected_does_no_further_harm(bench: MakeBench) -> None:
    class Sore(EchoService):
        def disconnected(self, connection: ProcessorConnection) -> None:
            super().disconnected(connection)
            raise RuntimeError("asked for")

    b = bench(Sore())
    one, two = b.connect(), b.connect()
    one.close()
    two.close()
    b.until(lambda: len(b.service.gone) == 2)
    b.step()
    assert b.quotas.total == 0


# -- taking connections -----------------------------------------------------------------------------------------------


def test_acceptor_hears_of_room_among_twenty_new_connections(bench: MakeBench) -> None:
    b = bench()
    waiting = []
    for _ in range(21):
        b.dial()
        waiting.append(b.new_connection())
    assert [b.processor.offer(new) for new in waiting] == [True] * 20 + [False]
    assert b.rooms == 0
    b.step()
    assert b.rooms == 1
    assert len(b.processor.connections) == 20
    assert b.processor.offer(waiting[20])
    b.step()
    assert len(b.processor.connections) == 21


def test_acceptor_hears_of_room_after_refusal_midway(bench: MakeBench) -> None:
    b = bench()
    offered = []

    class Crowded(EchoService):
        def connect(self, peer: Peer) -> EchoSession:
            while waiting and not offered:  # as the acceptor's thread may, just now
                if b.processor.offer(waiting[-1]):
                    waiting.pop()
                else:
                    offered.append(False)
            return super().connect(peer)

    b.service = Crowded()
    waiting: list[Any] = []
    for _ in range(23):
        b.dial()
        waiting.append(b.new_connection())
    assert b.processor.offer(waiting.pop())
    b.step()
    assert offered == [False]
    assert b.rooms == 1
    for new in waiting:
        b.processor.offer(new)
    b.step()


def test_counting_survives_last_close_on_another_processor(bench: MakeBench) -> None:
    class Closing(ConnectionQuotas):
        @property
        def excess(self) -> int:
            return 1  # as it was a moment ago

    b = bench(stage=Stage(quotas=Closing(0, 1, {}, 0)))
    assert b.quotas.total == 0
    b.stage.clock.now += 5
    b.step()


def test_processors_together_close_exactly_the_quietest_excess(bench: MakeBench) -> None:
    stage = Stage(quotas=ConnectionQuotas(20, 20, {}, 0))
    first, second = bench(stage=stage), bench(stage=stage)
    clients = []
    for n in range(10):
        b = (first, second)[n % 2]
        stage.clock.now += 1
        clients.append((b, b.connect()))
    stage.quotas.configure(7, 20, {}, 0)
    stage.clock.now += 5
    # Both look before either has told its service that they are gone.
    first.on_processor(first.processor.process_new_responses)
    for b in (first, second):
        b.step()
    for b in (first, second, first, second):
        b.step()
    assert stage.quotas.total == 7
    closed = [client for _, client in clients if client.eof]
    assert closed == [client for _, client in clients][:3]  # of each processor its share


# -- draining and closing ---------------------------------------------------------------------------------------------


def test_draining_processor_answers_requests_in_flight_only(bench: MakeBench) -> None:
    b = bench()
    busy, idle = b.connect(), b.connect()
    busy.send(frame(b"p", b"1") + frame(b"e", b"too late"))
    b.settle(handling=False)
    b.processor.drain()
    b.step()
    assert not b.processor.drained
    idle.send(frame(b"e", b"too late as well"))
    b.settle()
    assert busy.frames == [(b"p", b"1")]
    assert idle.frames == []
    assert b.processor.drained
    b.dial()
    late = b.new_connection()
    assert not b.processor.offer(late)
    late.socket.close()
    b.quotas.close(late.peer.host, late.peer.listener)


@pytest.mark.parametrize("high", [MIB, 16 * MIB])
def test_processor_is_undrained_while_answer_is_leaving(bench: MakeBench, high: int) -> None:
    b = bench(high=high)
    client = b.connect(receive_buffer=4096)
    client.reads = False
    client.send(frame(b"z", b"x" * 8))
    b.settle()
    b.processor.drain()
    b.settle()
    assert not b.processor.drained
    client.reads = True
    b.until(lambda: b.processor.drained)
    b.until(lambda: len(client.frames) == 1)


def test_draining_does_not_wait_for_pushes(bench: MakeBench) -> None:
    b = bench(EchoService(in_flight_max=0))
    client = b.connect(receive_buffer=4096)
    client.reads = False
    b.outbox.push(b.connection_of(client), [bytes(8 * MIB)])
    b.settle()
    assert b.connection_of(client).outgoing
    b.processor.drain()
    b.step()
    assert b.processor.drained


def test_drained_only_after_own_thread_knows(bench: MakeBench) -> None:
    # Until then it may still be about to take a request.
    b = bench()
    b.connect()
    assert not b.processor.drained
    b.processor.drain()
    assert not b.processor.drained
    b.step()
    assert b.processor.drained


def test_closing_releases_offered_connections_once(bench: MakeBench) -> None:
    b = bench()
    client = b.connect()
    waiting = b.dial()
    assert b.processor.offer(b.new_connection())
    b.dial()
    late = b.new_connection()
    b.processor.close()
    assert not b.processor.offer(late)
    late.socket.close()
    b.quotas.close(late.peer.host, late.peer.listener)
    for each in (client, waiting):
        each.socket.setblocking(True)
        while each.socket.recv(100):  # TLS says that it is the end
            pass
    assert b.quotas.total == 0
    assert len(b.service.gone) == 1


def test_stats_count_what_passed(bench: MakeBench) -> None:
    b = bench()
    client = b.connect()
    sent = frame(b"e", b"abc") + frame(b"p", b"abc") + frame(b"n")
    client.send(sent)
    b.until(lambda: len(client.frames) == 2)
    b.settle()
    stats = b.processor.stats
    assert (stats.requests, stats.inline, stats.bytes_in, stats.bytes_out) == (3, 2, len(sent), len(sent) - 5)


def test_frame_stays_unchanged_while_handler_reads_it(bench: MakeBench) -> None:
    b = bench()
    seen: list[bytes] = []

    class Reading(EchoService):
        def handle(self, request: Any, outbox: Outbox, prepared: Any = None) -> None:
            seen.append(bytes(request.frame))
            super().handle(request, outbox)

    b = bench(Reading())
    clients = [b.connect() for _ in range(4)]
    sent = [frame(b"p", bytes([n]) * size) for n, size in enumerate((10, 70_000, 300_000, 2_000_000))]
    for client, data in zip(clients, sent, strict=True):
        client.send(data + frame(b"e", b"more") * 100)
    b.settle(handling=False)
    noise = b.connect()
    noise.send(frame(b"e", b"\xee" * 900_000))
    b.settle(handling=False)
    while b.handle():
        pass
    assert sorted(seen[-4:], key=len) == sent
    b.until(lambda: all(len(client.frames) == 101 for client in clients))


def test_closed_connection_is_freed_without_the_garbage_collector(bench: MakeBench) -> None:
    class Forgetful(EchoService):
        def handle(self, request: Any, outbox: Outbox, prepared: Any = None) -> None:
            super().handle(request, outbox)
            self.connections.clear()

        def disconnected(self, connection: ProcessorConnection) -> None: ...

    b = bench(Forgetful())
    client = b.connect()
    gc.disable()
    try:
        gone = weakref.ref(b.connection_of(client))
        client.send(frame(b"H", b"x" * 300_000))
        b.until(lambda: b.service.parked)
        client.abort()
        b.until(lambda: not b.processor.connections)
        assert gone() is not None
        answer_parked(b)
        b.step(2)
        assert gone() is None
    finally:
        gc.enable()


def test_closed_connection_memory_waits_for_its_handler(bench: MakeBench) -> None:
    b = bench()
    client = b.connect()
    data = frame(b"H", b"\x01" * 300_000)
    client.send(data)
    b.until(lambda: len(b.channel) == 1, handling=False)
    connection = b.connection_of(client)
    request: Request | None = connection.in_flight
    assert request is not None
    client.abort()
    b.until(lambda: not b.processor.connections, handling=False)
    assert b.memory.in_use >= len(data)
    other = b.connect()
    other.send(frame(b"e", b"\xee" * 300_000))
    b.until(lambda: other.frames, handling=False)
    assert bytes(request.frame) == data


def test_handler_parked_request_keeps_its_frame_when_repeated(bench: MakeBench) -> None:
    b = bench()
    client = b.connect()
    data = frame(b"H", b"\x01" * 300_000)
    client.send(data)
    b.until(lambda: len(b.service.parked) == 1)
    ((request, outbox),) = b.service.parked
    assert bytes(request.frame) == data
    outbox.hand_over(request, Handover())
    b.until(lambda: len(b.channel) == 1, handling=False)
    client.abort()
    b.until(lambda: not b.processor.connections, handling=False)
    assert b.memory.in_use >= len(data)
    other = b.connect()
    other.send(frame(b"e", b"\xee" * 300_000))
    b.until(lambda: other.frames, handling=False)
    assert bytes(request.frame) == data


def test_a_service_may_ask_how_long_sending_takes() -> None:
    bench = Bench()
    try:
        client = bench.connect()
        times: list[tuple[float, float]] = []
        bench.connection_of(client).on_flushed = lambda seconds, now: times.append((seconds, now))
        client.send(frame(b"e", b"x"))
        bench.until(lambda: client.frames)
        assert times == [(0.0, bench.clock.now)]
    finally:
        bench.close()
