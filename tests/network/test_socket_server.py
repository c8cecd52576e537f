"""The reactor put together: real threads, real sockets, the echo protocol."""

import queue
import random
import socket
import struct
import threading
from collections.abc import Callable, Set
from typing import Any

import attrs
import pytest

from broker.errors import ConfigError
from broker.network import processor as processor_module
from broker.network.connection import ProcessorConnection
from broker.network.mute import MEMORY_SHORT
from broker.network.quota import ConnectionQuotas
from broker.network.service import Outbox
from broker.network.socket_server import Binding, SocketServer
from broker.runtime import system_runtime
from tests.clocks import ManualClock
from tests.network.echo import EchoService, frame
from tests.network.harness import Bench, Client, descriptors, serving, settings
from tests.waiting import wait_for

MIB = 1 << 20


@pytest.fixture
def no_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processors sleep for an hour when there is nothing to do: a wake-up that is lost is a hang and not a delay."""
    monkeypatch.setattr(processor_module, "_NAP_S", 3600.0)


class Handed(list[Any]):
    """Parked requests go to whoever waits for them."""

    def __init__(self, to: queue.SimpleQueue[Any]) -> None:
        super().__init__()
        self._to = to

    def append(self, item: Any) -> None:
        self._to.put(item)


def threads_beside(others: Set[threading.Thread]) -> Set[threading.Thread]:
    """Those that run, without ``others``: of brokers of other tests, which may end meanwhile."""
    return set(threading.enumerate()) - others


def unlimited() -> ConnectionQuotas:
    return ConnectionQuotas(1 << 30, 1 << 30, {}, 0)


# -- binding ----------------------------------------------------------------------------------------------------------


def make(*bindings: Binding) -> SocketServer:
    server = SocketServer(system_runtime(), settings(), unlimited(), lambda _: None)
    server.bind(bindings)
    return server


def binding(port: int, port_max: int = 0, host: str = "127.0.0.1") -> Binding:
    return Binding("echo", "echo", host, port, port_max, MIB)


def test_port_range_is_tried_in_order_past_taken() -> None:
    first = make(binding(0))
    port = first.address("echo")[1]
    with pytest.raises(ConfigError, match=f"port {port} is in use"):
        make(binding(port))
    second = make(binding(port, port + 20))
    assert port < second.address("echo")[1] <= port + 20
    first.unbind()
    second.unbind()
    again = make(binding(port))
    assert again.address("echo")[1] == port
    again.unbind()


def test_foreign_address_is_one_sentence_without_further_tries() -> None:
    with pytest.raises(ConfigError, match=r"listener echo: cannot listen on 192\.0\.2\.1:0"):
        make(binding(0, 0, host="192.0.2.1"))


def test_failed_bind_releases_the_other_listeners() -> None:
    before = descriptors()
    with pytest.raises(ConfigError):
        make(binding(0), Binding("other", "echo", "192.0.2.1", 0, 0, MIB))
    assert descriptors() <= before  # fewer: what an earlier test has left is gone by now


def test_bound_server_that_never_started_can_stop() -> None:
    before, others = descriptors(), set(threading.enumerate())
    server = make(binding(0))
    server.unbind()
    server.stop()
    assert descriptors() <= before  # fewer: what an earlier test has left is gone by now
    assert set() == threads_beside(others)


def test_stop_is_complete_without_accept_stop_and_repeatable() -> None:
    before, others = descriptors(), set(threading.enumerate())
    server = make(binding(0))
    server.start({"echo": EchoService()})
    client = Client(server.address("echo"))
    client.send(frame(b"e"))
    server.stop()
    server.stop()
    client.close()
    assert descriptors() <= before  # fewer: what an earlier test has left is gone by now
    assert set() == threads_beside(others)


# -- order ------------------------------------------------------------------------------------------------------------


def test_many_clients_with_mixed_requests_are_answered_correctly() -> None:
    rng = random.Random(7)
    with serving(network_threads=3, io_threads=4, queued_max_requests=4, queued_max_request_bytes=4 * MIB) as served:
        stop = threading.Event()

        def answer() -> None:  # a thread that belongs to nobody, answering what is parked
            while not stop.is_set() or served.service.parked:
                try:
                    request, outbox = served.service.parked.pop(0)
                except IndexError:
                    stop.wait(0.0005)
                    continue
                outbox.send(request, [request.copy])

        answering = threading.Thread(target=answer)
        answering.start()
        streams: list[bytes] = []
        expected: list[bytes] = []
        for n in range(24):
            stream = due = b""
            for _ in range(rng.choice([5, 60])):
                command = rng.choice([b"e", b"e", b"p", b"p", b"h", b"H", b"n", b"N"])
                size = rng.choice([0, 10, 100, 2_000, 70_000, rng.randrange(400_000)])
                request = frame(command, bytes([n + 1]) * size)
                stream += request
                if command not in b"nN":
                    due += request
            streams.append(stream)
            expected.append(due)
        clients = [served.connect() for _ in streams]
        position = [0] * len(clients)
        while any(position[n] < len(stream) for n, stream in enumerate(streams)):
            for n, client in enumerate(clients):
                piece = rng.choice([1, 3, 1000, 100_000, 10 * MIB])
                client.send(streams[n][position[n] : position[n] + piece])
                position[n] += piece
        served.until(lambda: all(len(c.received) >= len(due) for c, due in zip(clients, expected, strict=True)))
        for client, due in zip(clients, expected, strict=True):
            assert client.received == due
        stop.set()
        answering.join()


@pytest.mark.usefixtures("no_naps")
@pytest.mark.parametrize("command", [b"p", b"H"])
def test_no_wakeup_is_lost_between_threads(command: bytes) -> None:
    with serving(network_threads=1, io_threads=2) as served:
        parked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        served.service.parked = Handed(parked)

        def answer() -> None:
            while (item := parked.get()) is not None:
                request, outbox = item
                outbox.send(request, [request.copy])

        answering = threading.Thread(target=answer)
        answering.start()
        clients = [served.connect() for _ in range(3)]
        for n in range(700):
            data = frame(command, n.to_bytes(2, "big"))
            for client in clients:
                client.send(data)
            served.until(lambda: all(client.frames for client in clients), "an answer that nobody was woken for")
            for client in clients:
                assert client.take(1) == [(command, n.to_bytes(2, "big"))]
        parked.put(None)
        answering.join()


@pytest.mark.usefixtures("no_naps")
def test_concurrent_pushes_arrive_whole_in_thread_order() -> None:
    with serving(EchoService(in_flight_max=0), high_water_bytes=64 * 1024, low_water_bytes=16 * 1024) as served:
        client = served.connect()
        served.ask(client, frame(b"e"))
        (connection,) = served.service.connections
        outbox = served.server.outbox

        def push(who: int) -> None:
            for n in range(300):
                outbox.push(connection, [frame(b"P", bytes([who]) + n.to_bytes(2, "big") + b"x" * (n * 7 % 3000))])

        threads = [threading.Thread(target=push, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        served.until(lambda: len(client.frames) == 1200)
        for thread in threads:
            thread.join()
        for who in range(4):
            numbers = [int.from_bytes(p[1:3], "big") for _, p in client.frames if p[0] == who]
            assert numbers == list(range(300))


@pytest.mark.usefixtures("no_naps")
def test_connection_continues_after_its_turn_without_other_events() -> None:
    with serving(network_threads=1) as served:
        assert len(served.ask(served.connect(), frame(b"e") * 1000, 1000)) == 1000


@pytest.mark.usefixtures("no_naps")
def test_returned_memory_wakes_another_processor() -> None:
    with serving(network_threads=2, queued_max_request_bytes=300_000) as served:
        holder, waits = served.connect(), served.connect()  # one on each processor
        for client in (holder, waits):
            served.ask(client, frame(b"e"))
        holder.send(frame(b"e", b"x" * MIB)[: MIB // 2])
        served.until(lambda: served.server.memory.in_use > 300_000)  # it has grown beyond the end: nobody else may
        waits.send(frame(b"e", b"at last" * 20_000))
        served.until(
            lambda: any(c.holds & MEMORY_SHORT for p in served.server.processors for c in p.connections.copy())
        )
        assert waits.frames == []
        holder.abort()
        served.until(lambda: waits.frames, "nobody was woken for the memory")


@pytest.mark.usefixtures("no_naps")
def test_room_in_request_channel_wakes_another_processor() -> None:
    with serving(network_threads=2, io_threads=1, queued_max_requests=1) as served:
        clients = [served.connect() for _ in range(4)]
        for client in clients:
            served.ask(client, frame(b"e"))
        working, queued, held = clients[0], clients[2], clients[1]  # `held` is on the other processor
        working.send(frame(b"w"))
        served.until(lambda: b"w" in served.service.handled)
        channel = served.server.planes[0].channel
        queued.send(frame(b"H"))
        served.until(lambda: len(channel) == 1)
        held.send(frame(b"H"))
        served.until(lambda: any(c.held is not None for p in served.server.processors for c in p.connections.copy()))
        served.service.gate.set()
        served.until(lambda: len(served.service.parked) == 2, "nobody was woken for the room")


# -- nobody stalls anybody --------------------------------------------------------------------------------------------


def test_bad_clients_stall_nobody() -> None:
    with serving(network_threads=1, io_threads=1, high_water_bytes=64 * 1024, low_water_bytes=16 * 1024) as served:
        deaf = [served.connect(receive_buffer=4096) for _ in range(5)]
        for client in deaf:
            client.reads = False
            client.send(frame(b"z", b"x" * 20))
        loris = [served.connect() for _ in range(5)]
        for client in loris:
            client.send(frame(b"e", b"x" * 200_000)[:7])
        silent = [served.connect() for _ in range(5)]
        for _ in range(20):
            for client in loris:
                client.send(b"x")
            assert served.serves()
        assert not any(client.eof for client in [*deaf, *loris, *silent])


def test_full_request_channel_pushes_back_and_recovers() -> None:
    with serving(network_threads=2, io_threads=2, queued_max_requests=3) as served:
        clients = [served.connect() for _ in range(12)]
        for client in clients:
            client.send(frame(b"w", b"1") + frame(b"p", b"x" * 100_000) * 80)
        channel = served.server.planes[0].channel
        served.until(lambda: len(channel) == 3 and len(served.service.handled) == 2)
        served.until(
            lambda: sum(c.held is not None for p in served.server.processors for c in p.connections.copy()) == 7
        )
        assert all(client.unsent for client in clients)
        inline = served.connect()  # needs no handler
        assert served.ask(inline, frame(b"e", b"ok")) == [(b"e", b"ok")]
        served.service.gate.set()
        served.until(lambda: all(len(client.frames) == 81 for client in clients))
        assert len(channel) == 0


def test_control_plane_works_while_data_plane_is_full() -> None:
    quotas = ConnectionQuotas(6, 100, {}, 0)
    with serving(
        control=EchoService(),
        quotas=quotas,
        network_threads=1,
        io_threads=1,
        queued_max_requests=1,
        queued_max_request_bytes=300_000,
    ) as served:
        stuck = [served.connect() for _ in range(6)]
        for client in stuck[:3]:
            client.send(frame(b"w"))
        served.until(lambda: len(served.server.planes[0].channel) == 1)
        stuck[3].send(frame(b"e", b"x" * MIB)[: MIB // 2])
        served.until(lambda: served.server.memory.exhausted)
        served.until(lambda: quotas.full)
        late = served.connect()
        late.send(frame(b"e"))
        for _ in range(3):
            assert served.serves("control")
            client = served.connect("control")
            assert served.ask(client, frame(b"p", b"x" * 400_000)) == [(b"p", b"x" * 400_000)]
        assert late.frames == []


# -- limits -----------------------------------------------------------------------------------------------------------


def test_connections_beyond_the_most_wait_until_one_closes() -> None:
    with serving(quotas=ConnectionQuotas(2, 100, {}, 0)) as served:
        first, second = served.connect(), served.connect()
        for client in (first, second):
            served.ask(client, frame(b"e"))
        third = served.connect().send(frame(b"e", b"at last"))
        served.ask(first, frame(b"e"))
        assert third.frames == []
        second.close()
        served.until(lambda: third.frames == [(b"e", b"at last")])


def test_connections_beyond_address_limit_are_closed_at_once() -> None:
    with serving(quotas=ConnectionQuotas(100, 2, {}, 0)) as served:
        kept = [served.connect() for _ in range(2)]
        for client in kept:
            served.ask(client, frame(b"e"))
        refused = served.connect()
        served.until(lambda: refused.eof)
        for client in kept:
            served.ask(client, frame(b"e"))


def test_control_connection_replaces_quietest_other_at_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processor_module, "_NAP_S", 0.05)
    quotas = ConnectionQuotas(3, 100, {}, 0)
    with serving(control=EchoService(), quotas=quotas, network_threads=1) as served:
        quiet, *others = [served.connect() for _ in range(3)]
        for client in (quiet, *others, *others):
            served.ask(client, frame(b"e"))
        control = served.connect("control")
        served.ask(control, frame(b"e"))
        served.until(lambda: quiet.eof)
        for client in (*others, control):
            served.ask(client, frame(b"e"))
        assert quotas.of_listener() == {"echo": 2, "control": 1}
        assert dict(quotas.evicted) == {"echo": 1}


def test_connection_storm_of_address_is_slowed_down() -> None:
    with serving() as served:
        served.server.quotas.connection_rate = lambda _: 5.0
        clients = [served.connect() for _ in range(8)]
        served.until(lambda: sum(client.eof for client in clients) == 3)
        for client in clients:
            if not client.eof:
                served.ask(client, frame(b"e"))
        assert served.server.quotas.throttled["echo"] == 3
        served.until(lambda: served.server.planes[0].acceptor.throttled == 0)  # type: ignore[union-attr]


def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor_module, "_NAP_S", 0.05)
    with serving(idle_max_s=0.05) as served:
        client = served.connect()
        served.ask(client, frame(b"e"))
        served.until(lambda: client.eof)


# -- comings and goings -----------------------------------------------------------------------------------------------


def test_two_thousand_connections_opened_and_dropped_leave_nothing() -> None:
    linger = struct.pack("ii", 1, 0)
    with serving() as served:
        address = served.server.address("echo")
        for batch in range(20):
            sockets = []
            for n in range(100):
                sock = socket.create_connection(address)
                kind = (batch + n) % 4
                if kind == 1:
                    sock.sendall(frame(b"e")[:3])
                elif kind == 2:
                    sock.sendall(frame(b"p", b"x" * 1000) * 3)
                elif kind == 3:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                sockets.append(sock)
            for sock in sockets:
                sock.close()
        served.until(lambda: served.server.planes[0].acceptor.accepted == 2000)  # type: ignore[union-attr]
        served.until(lambda: served.server.quotas.total == 0)
        served.until(lambda: served.connections == 0)
        assert served.serves()


@pytest.mark.parametrize("in_flight_max", [1, 0])
def test_processors_change_while_clients_work_unaware(in_flight_max: int) -> None:
    service, others = EchoService(in_flight_max), set(threading.enumerate())
    with serving(service, network_threads=1, io_threads=2, queued_max_request_bytes=4 * MIB) as served:
        before = len(threads_beside(others))
        clients = [served.connect() for _ in range(20)]
        sent = [b""] * len(clients)
        rng = random.Random(3)
        for count in (3, 1, 4, 2, 1, 3, 1, 2, 1) * 2:
            for n, client in enumerate(clients):
                for _ in range(10):
                    command = b"e" if in_flight_max == 0 else rng.choice([b"e", b"p"])  # a stream's order is its own
                    request = frame(command, bytes([n]) * rng.choice([10, 3_000, 100_000]))
                    sent[n] += request
                    client.send(request)
            served.server.resize_processors(count)
            assert len(served.server.processors) == count
            assert served.serves()
        served.until(lambda: all(len(c.received) >= len(data) or c.eof for c, data in zip(clients, sent, strict=True)))
        for client, data in zip(clients, sent, strict=True):
            assert client.received == data
        wait_for(lambda: len(threads_beside(others)) == before)
        for client in clients:
            client.close()
        served.until(lambda: served.server.quotas.total == 0)


def test_handlers_change_and_finish_their_requests() -> None:
    others = set(threading.enumerate())
    with serving(network_threads=1, io_threads=2) as served:
        before = len(threads_beside(others))
        plane = served.server.planes[0]
        busy = [served.connect().send(frame(b"w", b"x")) for _ in range(4)]
        served.until(lambda: len(served.service.handled) == 2)
        served.server.resize_handlers(4)
        served.until(lambda: len(served.service.handled) == 4)
        assert len(threads_beside(others)) == before + 2
        late = served.connect().send(frame(b"p", b"waits"))
        served.until(lambda: len(plane.channel) == 1)
        served.server.resize_handlers(1)
        served.service.gate.set()
        served.until(lambda: all(client.frames for client in [*busy, late]))
        wait_for(lambda: len(threads_beside(others)) == before - 1)
        assert len(plane.handlers) == 1
        assert served.serves()
        assert plane.channel.lane_width == 1
        served.server.resize_handlers(8)
        assert plane.channel.lane_width == 2
        wait_for(lambda: len(threads_beside(others)) == before + 6)
        assert served.serves()


def test_new_connections_are_dealt_out_to_all_processors() -> None:
    with serving(network_threads=3) as served:
        for _ in range(9):
            served.ask(served.connect(), frame(b"e"))
        assert [len(processor.connections) for processor in served.server.processors] == [3, 3, 3]


# -- the end ----------------------------------------------------------------------------------------------------------


def test_graceful_end_answers_requests_in_flight_only() -> None:
    with serving(io_threads=2) as served:
        busy, parked, idle = served.connect(), served.connect(), served.connect()
        served.ask(idle, frame(b"e"))
        busy.send(frame(b"w", b"1") + frame(b"e", b"too late"))
        parked.send(frame(b"H", b"2"))
        served.until(lambda: len(served.service.handled) == 3 and served.service.parked)
        address = served.server.address("echo")
        served.server.stop_accepting()
        with pytest.raises(OSError):
            socket.create_connection(address)
        assert not served.server.drain(0.02)
        served.service.gate.set()
        request, outbox = served.service.parked.pop()
        outbox.send(request, [request.copy])
        assert served.server.drain(20.0)
        served.until(lambda: busy.frames and parked.frames)
        idle.send(frame(b"e", b"too late"))
        served.server.stop()
        served.until(lambda: all(client.eof for client in (busy, parked, idle)))
        assert busy.frames == [(b"w", b"1")]
        assert parked.frames == [(b"H", b"2")]
        assert idle.frames == []


def test_hanging_handler_does_not_prevent_server_end() -> None:
    others = set(threading.enumerate())
    service = EchoService()
    server = make(binding(0))
    server.start({"echo": service})
    client = Client(server.address("echo"))
    client.send(frame(b"w"))
    wait_for(lambda: service.handled)
    server.stop()
    client.socket.setblocking(True)
    assert client.socket.recv(10) == b""
    client.close()
    service.gate.set()  # now it ends, and answers a connection that is long gone
    wait_for(lambda: not any(thread.name.startswith("handler") for thread in threads_beside(others)))


def test_hanging_threads_are_waited_for_together() -> None:
    clock = ManualClock()
    handlers: list[str] = []
    asked: dict[str, float] = {}

    class Hanging:
        """Handlers that never end; waiting for them takes the clock's time."""

        get_ident = staticmethod(threading.get_ident)

        def pause(self, seconds: float) -> None:
            clock.now += seconds

        def spawn(self, name: str, body: Any, on_crash: Any) -> Any:
            class Handle:
                def ask_to_stop(self) -> None:
                    asked.setdefault(name, clock.now)

                def stop(self, timeout: float | None = None) -> bool:
                    assert timeout is not None
                    self.ask_to_stop()
                    if self.alive():
                        handlers.append(name)
                        clock.now += timeout
                    return not self.alive()

                def alive(self) -> bool:
                    return name.startswith("handler")

            return Handle()

    runtime: Any = attrs.evolve(system_runtime(), clock=clock, threads=Hanging())
    server = SocketServer(runtime, settings(io_threads=8), unlimited(), lambda _: None)
    server.bind([binding(0)])
    server.start({"echo": EchoService()})
    before = clock.now
    server.stop()
    assert len(handlers) == 8
    assert server.left_behind == 8
    assert 2.0 <= clock.now - before < 2.5
    assert asked["timer"] == before, "it has the time that the others take"


def test_stopping_server_tells_services_on_own_threads() -> None:
    class Told(EchoService):
        def stopping(self, connection: ProcessorConnection) -> None:
            for n, (request, outbox) in enumerate(self.parked):
                if request.connection is connection:
                    outbox.send(request, [frame(b"H", threading.current_thread().name.encode())])
                    del self.parked[n]
                    break

    with serving(Told(), network_threads=2) as served:
        clients = [served.connect() for _ in range(4)]
        for client in clients:
            client.send(frame(b"H"))
        served.until(lambda: len(served.service.parked) == 4)
        served.server.stop_accepting()
        assert served.server.drain(20.0)
        served.until(lambda: all(client.frames for client in clients))
        assert {payload.split(b"-")[0] for client in clients for _, payload in client.frames} == {b"processor"}


def test_late_answers_to_stopped_server_are_dropped() -> None:
    parked: list[tuple[Any, Outbox]]
    with serving() as served:
        client = served.connect()
        client.send(frame(b"H") + frame(b"e"))
        served.until(lambda: served.service.parked)
        parked = served.service.parked
    for request, outbox in parked:
        outbox.send(request, [request.copy])
        outbox.close(request)
        outbox.push(request.connection, [b"x"])
        outbox.start_throttling(request.connection)
        outbox.call(request.connection, lambda: 1 / 0)  # type: ignore[arg-type, return-value]


def test_thread_ending_by_exception_is_reported() -> None:
    class Fatal(EchoService):
        def handle(self, request: Any, outbox: Outbox, prepared: Any = None) -> None:
            raise SystemExit("no seam takes this")

    crashes: list[BaseException] = []
    server = SocketServer(system_runtime(), settings(), unlimited(), crashes.append)
    server.bind([binding(0)])
    server.start({"echo": Fatal()})
    client = Client(server.address("echo"))
    client.send(frame(b"p"))
    wait_for(lambda: crashes)
    assert isinstance(crashes[0], SystemExit)
    client.close()
    server.stop()


# -- suspension -------------------------------------------------------------------------------------------------------


def test_suspended_server_closes_connections_and_each_new_one_until_it_resumes() -> None:
    with serving() as served:
        clients = [served.connect() for _ in range(5)]
        for client in clients:
            served.ask(client, frame(b"e", b"before"))
        served.server.suspend()
        served.until(lambda: all(client.eof for client in clients))
        late = [served.connect() for _ in range(5)]
        served.until(lambda: all(client.eof for client in late))
        served.server.suspend()  # twice is no error
        served.server.resume()
        assert served.serves()
        served.until(lambda: len(served.service.gone) == 6)


def test_listener_that_does_not_suspend_serves_meanwhile() -> None:
    with serving(control=EchoService()) as served:
        open_before = served.connect("control")
        served.ask(open_before, frame(b"e", b"1"))
        served.server.suspend()
        assert [(b"e", b"2")] == served.ask(open_before, frame(b"e", b"2"))
        assert served.serves("control")


def test_requests_in_flight_go_on_without_an_answer() -> None:
    with serving() as served:
        handled, parked = served.connect(), served.connect()
        handled.send(frame(b"w", b"x" * 100_000))
        parked.send(frame(b"h", b"parked"))
        served.until(lambda: b"w" in served.service.handled and served.service.parked)
        served.server.suspend()
        served.until(lambda: handled.eof and parked.eof)
        served.service.gate.set()
        request, outbox = served.service.parked.pop()
        outbox.send(request, [request.copy])
        served.server.resume()
        assert served.serves()
        assert (b"", b"") == (bytes(handled.received), bytes(parked.received))


def test_connection_on_its_way_to_a_processor_when_the_server_is_suspended_is_closed(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    client = b.dial()
    assert b.processor.offer(b.new_connection())
    b.quotas.suspend(frozenset({"echo"}))
    b.quotas.resume()  # before the processor has looked
    b.until(lambda: client.eof)
    assert ([], 0) == (list(b.processor.connections), b.quotas.total)


def test_processors_that_come_and_go_while_it_is_suspended_have_no_connections() -> None:
    with serving(network_threads=1) as served:
        clients = [served.connect() for _ in range(20)]
        for client in clients:
            served.ask(client, frame(b"e"))
        served.server.suspend()
        served.server.resize_processors(3)
        served.server.resize_processors(1)
        served.until(lambda: all(client.eof for client in clients))
        served.server.resume()
        assert served.serves()
