"""Two processors, some connections and everything that can happen to them, in any order hypothesis thinks of. A processor may go
and be replaced by a new one, in the middle of anything: the other one gets its connections.

Whatever the order: each client gets the answers to its requests, whole and in its own order, even if it has closed its sending
side meanwhile; no connection has two requests out; and once readers read, throttles end and parked requests are answered,
everything that was asked is answered and no memory is held. Memory, the request channel and the water marks are so small that
all of them run out all the time.
"""

from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.network.mute import Hold
from broker.network.service import Connection, Mailbox, Outbox
from tests.network.echo import EchoService, frame
from tests.network.harness import Bench, Client, Stage, tiny_buffers
from tests.network.tls_client import TlsClient, listener

CONNECTIONS = 4


class Watched(EchoService):
    """Notices a connection that has two requests out at once, and bytes that changed under a handler."""

    def __init__(self) -> None:
        super().__init__()
        self.out: set[Connection] = set()
        self.violations: list[str] = []

    def handle(self, request: Any, outbox: Outbox, prepared: Any = None) -> None:
        if request.connection in self.out:
            self.violations.append(f"{request.command!r} while another is out")
        payload = bytes(request.frame[5:])
        if payload and payload != payload[:1] * len(payload):
            self.violations.append(f"the bytes of {request.command!r} are not what was sent")
        if request.command in b"hH":
            self.out.add(request.connection)
        super().handle(request, outbox)

    def inline(self, request: Any) -> Any:
        if request.connection in self.out:
            self.violations.append(f"{request.command!r} routed while another is out")
        return super().inline(request)


class ReactorMachine(RuleBasedStateMachine):
    secured: ClassVar[dict[str, Any]] = {}  # how its benches and clients have TLS

    def __init__(self) -> None:
        super().__init__()
        self.tiny = tiny_buffers()
        self.tiny.__enter__()
        self.service = Watched()
        self.stage = Stage(memory=6 * 1024, queue=1)
        self.benches = [Bench(self.service, stage=self.stage, high=4096, low=1024, **self.secured) for _ in range(2)]
        self.clients: list[tuple[Bench, Client]] = []
        self.expected: list[bytes] = []
        self.unsent: list[bytes] = []
        self.number = 0
        # Threads that have looked up where to leave an answer and have not left it yet.
        self.about_to_answer: list[tuple[Any, Mailbox]] = []
        self.finished: set[int] = set()  # clients that send nothing more

    @initialize()
    def connect(self) -> None:
        for n in range(CONNECTIONS):
            bench = self.benches[n % 2]
            self.clients.append((bench, bench.connect(receive_buffer=4096)))
            self.expected.append(b"")
            self.unsent.append(b"")

    # -- what clients do ----------------------------------------------------------------------------------------------

    @rule(
        which=st.integers(0, CONNECTIONS - 1),
        command=st.sampled_from([b"e", b"e", b"p", b"p", b"h", b"H", b"n", b"N", b"t"]),
        size=st.one_of(st.integers(0, 30), st.sampled_from([250, 1014, 1019, 1020, 4300]), st.integers(0, 12_000)),
        times=st.sampled_from([1, 1, 1, 3, 200]),
    )
    def ask(self, which: int, command: bytes, size: int, times: int) -> None:
        if which in self.finished:
            return
        if times > 3:
            size %= 20
        for _ in range(times):
            self.number += 1
            request = frame(command, bytes([self.number % 250 + 1]) * size)
            self.unsent[which] += request
            if command not in b"nN":
                self.expected[which] += request

    @rule(which=st.integers(0, CONNECTIONS - 1), size=st.one_of(st.integers(1, 10), st.just(1 << 20)))
    def send(self, which: int, size: int) -> None:
        self.clients[which][1].send(self.unsent[which][:size])
        self.unsent[which] = self.unsent[which][size:]

    @rule(which=st.integers(0, CONNECTIONS - 1))
    def finish(self, which: int) -> None:
        if which not in self.finished:
            self.finished.add(which)
            self.clients[which][1].leaving = True
            self.send(which, 1 << 20)

    @rule(which=st.integers(0, CONNECTIONS - 1), reads=st.booleans())
    def read(self, which: int, reads: bool) -> None:
        self.clients[which][1].reads = reads

    # -- what the broker's threads do ---------------------------------------------------------------------------------

    @rule(which=st.integers(0, 1), times=st.integers(1, 4))
    def step(self, which: int, times: int) -> None:
        self.benches[which].step(times)

    @rule()
    def handle(self) -> None:
        self.stage.handler.step(0)

    @rule(which=st.integers(0, 1))
    def look_at_the_queues_only(self, which: int) -> None:
        bench = self.benches[which]
        bench.on_processor(bench.processor.process_new_responses)

    @rule(which=st.integers(0, 1))
    def go(self, which: int) -> None:
        self.benches[which].replace(self.benches[1 - which].processor)

    # -- what the service does ----------------------------------------------------------------------------------------

    @precondition(lambda self: self.service.parked)
    @rule(data=st.data(), on_processor=st.sampled_from([None, 0, 1]))
    def answer(self, data: st.DataObject, on_processor: int | None) -> None:
        index = data.draw(st.integers(0, len(self.service.parked) - 1))
        if on_processor is None:
            self._answer(index)
        else:  # on one of the two processors' threads: the connection's own or the other
            self.benches[on_processor].on_processor(lambda: self._answer(index))

    def _answer(self, index: int) -> None:
        request, outbox = self.service.parked.pop(index)
        self.service.out.discard(request.connection)
        outbox.send(request, [request.copy])  # type: ignore[attr-defined]

    @precondition(lambda self: self.service.parked)
    @rule(data=st.data())
    def begin_to_answer(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.service.parked) - 1))
        request, _ = self.service.parked.pop(index)
        self.about_to_answer.append((request, request.connection.processor))

    @precondition(lambda self: self.about_to_answer)
    @rule()
    def go_on_to_answer(self) -> None:
        request, processor = self.about_to_answer.pop(0)
        self.service.out.discard(request.connection)
        processor.submit(processor.send, request, [request.copy])

    @precondition(lambda self: self.service.throttled)
    @rule()
    def end_throttle(self) -> None:
        connection, outbox = self.service.throttled.pop(0)
        outbox.end_throttling(connection)

    # -- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def answers_are_a_beginning_of_what_is_due(self) -> None:
        for (_, client), expected in zip(self.clients, self.expected, strict=True):
            assert expected.startswith(client.received)

    @invariant()
    def nothing_is_out_twice(self) -> None:
        assert self.service.violations == []

    @invariant()
    def bounds_hold(self) -> None:
        assert len(self.stage.channel) <= 1
        # The pool, a first buffer of each connection that was read from when there was a little left, and one that grew.
        assert self.stage.memory.in_use <= 6 * 1024 + 2 * 4352 + 2 * 12_288 + 1024

    @invariant()
    def holds_say_what_the_connections_wait_for(self) -> None:
        for bench in self.benches:
            for connection in bench.processor.connections:
                holds = Hold(connection.holds)
                assert bool(holds & Hold.RESPONSE_PENDING) == (connection.in_flight is not None)
                assert bool(holds & Hold.CHANNEL_FULL) == (connection.held is not None)
                assert not holds & Hold.RESPONSE_UNSENT or holds & Hold.RESPONSE_PENDING
                assert bool(holds & Hold.MEMORY_SHORT) == (
                    connection in bench.processor._receiving.memory_waiters.connections
                )
                assert connection.writable == (not holds & Hold.UNWRITABLE)
                assert connection.processor is bench.processor

    def teardown(self) -> None:
        try:
            self._finish()
        finally:
            for bench in self.benches:
                bench.close()
            self.tiny.__exit__(None, None, None)
        assert self.stage.memory.in_use == 0
        assert self.stage.quotas.total == 0

    def _finish(self) -> None:
        for (_, client), unsent in zip(self.clients, self.unsent, strict=True):
            client.reads = True
            client.send(unsent)

        def all_answered() -> bool:
            self.benches[1].step()
            while self.service.parked:
                self._answer(0)
            while self.about_to_answer:
                self.go_on_to_answer()
            while self.service.throttled:
                self.end_throttle()
            return all(
                client.received == expected and not client.unsent and client.eof == (which in self.finished)
                for which, ((_, client), expected) in enumerate(zip(self.clients, self.expected, strict=True))
            )

        if self.clients:
            self.benches[0].until(all_answered, what="something is muted for ever")
        assert self.service.violations == []
        for bench in self.benches:
            bench.settle()
            assert not any(c.in_flight for c in bench.processor.connections)


TestAnyOrder = ReactorMachine.TestCase
TestAnyOrder.settings = settings(max_examples=120, stateful_step_count=40)


class TlsReactorMachine(ReactorMachine):
    """With TLS there are bytes that the poller knows nothing of: a record does not fit in the receive buffer."""

    secured: ClassVar[dict[str, Any]] = {"tls": listener(), "client": TlsClient}

    @invariant()
    def what_is_buffered_is_not_waited_for(self) -> None:
        for bench in self.benches:
            for connection in bench.processor.connections:
                if connection.socket.buffered and not connection.holds:
                    assert connection.runnable


TestAnyOrderWithTls = TlsReactorMachine.TestCase
TestAnyOrderWithTls.settings = TestAnyOrder.settings


class SuspendedReactorMachine(ReactorMachine):
    """The broker is suspended in the middle of anything, and perhaps goes on. Nothing is left of its connections."""

    def __init__(self) -> None:
        super().__init__()
        self.was_suspended = False

    @rule()
    def suspend(self) -> None:
        self.was_suspended = self.was_suspended or bool(self.clients)
        self.stage.quotas.suspend(frozenset({"echo"}))
        for bench in self.benches:
            bench.processor.close_outlived()

    @rule()
    def resume(self) -> None:
        self.stage.quotas.resume()

    def _finish(self) -> None:
        if not self.was_suspended:
            super()._finish()
            return
        for _, client in self.clients:
            client.reads = True

        def all_closed() -> bool:
            self.benches[1].step()
            while self.service.parked:
                self._answer(0)
            while self.about_to_answer:
                self.go_on_to_answer()
            while self.service.throttled:
                self.end_throttle()
            return all(client.eof for _, client in self.clients)

        self.benches[0].until(all_closed, what="a connection is open")
        for bench in self.benches:
            bench.settle()
            assert [] == list(bench.processor.connections)
        assert set(self.service.connections) <= set(self.service.gone)


TestAnyOrderAndSuspended = SuspendedReactorMachine.TestCase
TestAnyOrderAndSuspended.settings = TestAnyOrder.settings
