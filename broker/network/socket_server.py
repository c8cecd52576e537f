"""The reactor put together: acceptors, processors, request channels, handlers, timer. Kafka's SocketServer.

Two planes of the same parts: the data plane, and an optional control plane with an acceptor, one processor, a small channel
and one handler of its own, so that health and admin calls work while the data plane is full.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs

from broker.errors import ConfigError
from broker.log import get_logger
from broker.network.acceptor import Acceptor, Endpoint
from broker.network.handler_pool import Handler
from broker.network.memory_pool import MemoryPool
from broker.network.outbox import ProcessorOutbox
from broker.network.processor import Processor, ProcessorSettings
from broker.network.quota import ConnectionQuotas
from broker.network.request_channel import RequestChannel
from broker.network.service import Service
from broker.network.unsent import Unsent
from broker.runtime import Runtime
from broker.runtime.net import Listener, address_in_use
from broker.runtime.threads import Body, ThreadHandle
from broker.runtime.timers import Timer

log = get_logger("network")

# Kafka's queue size of the control plane's request channel.
_CONTROL_QUEUE = 20
# Bytes of requests, and connections: far more than people and health checks need, and bounded.
_CONTROL_MEMORY = 16 * 1024 * 1024
CONTROL_CONNECTIONS = 100
# How long (s) to wait at most for a thread to end its step when everything stops.
_PATIENCE_S = 2.0
# Where several are waited for one after the other, none of the later ones is left without any time (s).
_LEAST_PATIENCE_S = 0.05


@attrs.frozen
class Binding:
    """A listener as configured: ports ``port`` to ``port_max`` are tried in order; 0 = any free one."""

    name: str
    service: str  # which of the services it is for
    host: str
    port: int
    port_max: int
    frame_max: int
    control: bool = False


@attrs.frozen
class SocketServerSettings:
    network_threads: int
    io_threads: int
    queued_max_requests: int
    queued_max_request_bytes: int
    backlog: int
    send_buffer: int
    receive_buffer: int
    idle_max_s: float
    high_water_bytes: int
    low_water_bytes: int


class _Plane:
    """One acceptor with its processors, channel and handlers, and bounds of its own: it never waits for another plane."""

    def __init__(
        self,
        server: "SocketServer",
        name: str,
        *,
        queue: int,
        processors: int,
        handlers: int,
        memory: MemoryPool,
        quotas: ConnectionQuotas,
    ) -> None:
        self._server = server
        self._name = name
        self._memory = memory
        self._unsent = Unsent(memory.capacity)  # as much for answers as for requests
        self._quotas = quotas
        # A quarter of the handlers to each lane: most are left for requests that are in none.
        self.channel = RequestChannel(queue, lane_width=max(1, handlers // 4))
        self.acceptor: Acceptor | None = None
        self.processors: list[Processor] = []
        self.handlers = [Handler(self.channel, server.outbox) for _ in range(handlers)]
        self._threads: dict[int, ThreadHandle] = {}  # by id(body)
        self._numbers = 0
        self._wanted = processors

    def start(self, endpoints: Sequence[Endpoint]) -> None:
        for number, handler in enumerate(self.handlers):
            self._spawn(f"{self._name}handler-{number}", handler)
        self.acceptor = Acceptor(endpoints, self._quotas, self._server.runtime.new_poller(), self._server.runtime.clock)
        self.resize(self._wanted)
        self._spawn(f"{self._name}acceptor", self.acceptor)

    def resize(self, processors: int) -> None:
        """Change the number of processors. The connections of one that goes are closed."""
        assert self.acceptor is not None
        while len(self.processors) < processors:
            processor = self._new_processor(self.acceptor.wakeup)
            self._spawn(f"{self._name}processor-{self._numbers}", processor)
            self._numbers += 1
            self.processors.append(processor)
        going = self.processors[processors:]
        del self.processors[processors:]
        self.acceptor.deal_to(self.processors)
        for processor in going:
            processor.drain()
            self._server.wait_until(lambda p=processor: p.drained, 1.0)  # type: ignore[misc]
            if self._end(processor):
                processor.close()

    def stop_accepting(self, patience_s: float) -> None:
        acceptor, self.acceptor = self.acceptor, None
        if acceptor is not None and self._end(acceptor, patience_s):
            acceptor.close()

    def stop(self, deadline: float) -> None:
        # They share the time: the disk that one of them hangs on is the others' too. The processors come after the handlers, so
        # that what these answer leaves.
        clock = self._server.runtime.clock
        for bodies in (self.handlers, self.processors):
            threads = [self._threads[id(body)] for body in bodies if id(body) in self._threads]
            for thread in [
                *threads,
                *threads,
            ]:  # twice: a wake-up reaches whichever handler takes it, asked to stop or not
                thread.ask_to_stop()
            left = max(_LEAST_PATIENCE_S, deadline - clock.monotonic())
            self._server.wait_until(lambda running=threads: not any(each.alive() for each in running), left)  # type: ignore[misc]
            for body in bodies:
                if self._end(body, _LEAST_PATIENCE_S) and isinstance(body, Processor):
                    body.close()
        self.processors = []

    def _new_processor(self, on_room: Callable[[], None]) -> Processor:
        server = self._server
        settings = server.settings
        return Processor(
            self._numbers,
            settings=ProcessorSettings(settings.idle_max_s, settings.high_water_bytes, settings.low_water_bytes),
            poller=server.runtime.new_poller(),
            clock=server.runtime.clock,
            threads=server.runtime.threads,
            channel=self.channel,
            memory=self._memory,
            unsent=self._unsent,
            quotas=self._quotas,
            outbox=server.outbox,
            on_room=on_room,
        )

    def _spawn(self, name: str, body: Body) -> None:
        self._threads[id(body)] = self._server.runtime.threads.spawn(name, body, self._server.crashed)

    def _end(self, body: Body, timeout: float = _PATIENCE_S) -> bool:
        """Stop its thread. False if that does not end: then what it owns is still in use and must be left alone."""
        # A handler may sit in a blocking call that does not end (a dead disk): leave it behind, it is a daemon.
        thread = self._threads.pop(id(body), None)
        if thread is None or thread.stop(timeout):
            return True
        log.warning("thread_left_behind", body=type(body).__name__)
        self._server.left_behind += 1
        return False


class SocketServer:
    def __init__(
        self,
        runtime: Runtime,
        settings: SocketServerSettings,
        quotas: ConnectionQuotas,
        on_crash: Callable[[BaseException], None],
    ) -> None:
        """``on_crash``: told when a thread ends by an exception, which is a bug; the broker should stop."""
        self.runtime = runtime
        self.settings = settings
        self.quotas = quotas
        self.crashed = on_crash
        self.outbox = ProcessorOutbox()
        self.memory = MemoryPool(settings.queued_max_request_bytes)
        self.timer = Timer(runtime.clock)
        self._data = _Plane(
            self,
            "",
            queue=settings.queued_max_requests,
            processors=settings.network_threads,
            handlers=settings.io_threads,
            memory=self.memory,
            quotas=quotas,
        )
        self._control: _Plane | None = None
        self._timer_thread: ThreadHandle | None = None
        self.left_behind = 0  # threads that did not end when they were asked to: what they use is still in use
        self._addresses: dict[str, tuple[str, int]] = {}
        self._bound: list[tuple[Binding, Listener]] = []

    def bind(self, bindings: Sequence[Binding]) -> None:
        """Bind every listener, before anything is served. ConfigError where one can't be."""
        try:
            for binding in bindings:
                listener = self._bind(binding)
                self._bound.append((binding, listener))
                self._addresses[binding.name] = listener.address
        except ConfigError:
            self.unbind()
            raise

    def unbind(self) -> None:
        """Close listeners that were bound and not started."""
        for _, listener in self._bound:
            listener.close()
        self._bound = []

    def start(self, services: Mapping[str, Service]) -> None:
        """Begin to accept; ``services`` by what the bindings call them."""
        self._timer_thread = self.runtime.threads.spawn("timer", self.timer, self.crashed)
        bound, self._bound = self._bound, []
        ends = [
            (binding.control, Endpoint(binding.name, listener, services[binding.service], binding.frame_max))
            for binding, listener in bound
        ]
        control = [endpoint for is_control, endpoint in ends if is_control]
        if control:
            self._control = _Plane(
                self,
                "control-",
                queue=_CONTROL_QUEUE,
                processors=1,
                handlers=1,
                memory=MemoryPool(_CONTROL_MEMORY),
                quotas=ConnectionQuotas(CONTROL_CONNECTIONS, CONTROL_CONNECTIONS, {}, 0),
            )
            self._control.start(control)
        self._data.start([endpoint for is_control, endpoint in ends if not is_control])

    def address(self, name: str) -> tuple[str, int]:
        """Where the listener of that name is bound."""
        return self._addresses[name]

    @property
    def planes(self) -> list[_Plane]:
        return [self._data] if self._control is None else [self._data, self._control]

    @property
    def processors(self) -> list[Processor]:
        return [processor for plane in self.planes for processor in plane.processors]

    def resize_processors(self, count: int) -> None:
        """Change the data plane's number of processors while running."""
        self._data.resize(count)

    def stop_accepting(self, patience_s: float = _PATIENCE_S) -> None:
        for plane in self.planes:
            plane.stop_accepting(min(patience_s, _PATIENCE_S))

    def drain(self, timeout: float) -> bool:
        """Finish what is in flight, start nothing new. True if all was finished in time."""
        for processor in self.processors:
            # First of all, or whoever is told below, and thereby answered, asks again at once.
            processor.drain()
            for connection in processor.connections.copy():
                self.outbox.call(connection, partial(connection.service.stopping, connection))
        return self.wait_until(lambda: all(p.drained for p in self.processors), timeout)

    def stop(self, patience_s: float = _PATIENCE_S) -> None:
        """End all threads and close all connections, in about ``patience_s``. Stopping twice is no error."""
        self.stop_accepting(patience_s)
        deadline = self.runtime.clock.monotonic() + min(patience_s, _PATIENCE_S)
        for plane in self.planes:
            plane.stop(deadline)
        timer, self._timer_thread = self._timer_thread, None
        if timer is not None and not timer.stop(max(_LEAST_PATIENCE_S, deadline - self.runtime.clock.monotonic())):
            log.warning("thread_left_behind", body=type(self.timer).__name__)
            self.left_behind += 1

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Look every few ms, for at most ``timeout`` s."""
        deadline = self.runtime.clock.monotonic() + timeout
        while not condition():
            if self.runtime.clock.monotonic() >= deadline:
                return False
            self.runtime.threads.pause(0.005)
        return True

    def _bind(self, binding: Binding) -> Listener:
        settings = self.settings
        for port in range(binding.port, max(binding.port, binding.port_max) + 1):
            try:
                return self.runtime.network.listen(
                    binding.host, port, settings.backlog, settings.send_buffer, settings.receive_buffer
                )
            except OSError as error:
                if not address_in_use(error):
                    raise ConfigError(
                        f"listener {binding.name}: cannot listen on {binding.host}:{port} ({error.strerror or error}); "
                        "choose another address or port"
                    ) from None
        ports = (
            f"port {binding.port} is"
            if binding.port_max <= binding.port
            else f"ports {binding.port}-{binding.port_max} are"
        )
        raise ConfigError(
            f"listener {binding.name}: {ports} in use on {binding.host}; stop what listens there or choose another port "
            "(0 takes any free one)"
        )
