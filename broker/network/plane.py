"""One plane of the reactor: an acceptor, its processors, their request channel and its handlers, with bounds of their own.

A plane never waits for another plane. Its methods are for the thread that starts and stops the broker; ``resize`` and
``resize_handlers`` are for any thread but its processors and its acceptor.

Tests: tests/network/test_socket_server.py.
"""

from collections.abc import Callable, Sequence

from broker.log import get_logger
from broker.metrics.request_times import RequestTimes
from broker.network.acceptor import Acceptor, Endpoint
from broker.network.expiry import Unsent
from broker.network.memory_pool import MemoryPool
from broker.network.new_connection import Attachment
from broker.network.processor import Processor, ProcessorSettings
from broker.network.quota import ConnectionQuotas
from broker.network.relief import Relievable, Watch
from broker.network.request_channel import Handler, RequestChannel
from broker.network.service import Outbox, Request
from broker.network.work import LANES
from broker.runtime import Runtime
from broker.runtime.run_token import TokenHolder
from broker.runtime.threads import Body, Lock, ThreadHandle

log = get_logger("network")

# How long (s) to wait at most for a thread to end its step when everything stops.
PATIENCE_S = 2.0
# The least time (s) for each of several threads that are waited for one after the other.
LEAST_PATIENCE_S = 0.05
# How long (s) to wait for a removed processor to end its step and hand its connections over, which takes it some ms.
_LEAVE_S = 5.0


class Plane:
    def __init__(
        self,
        name: str,
        runtime: Runtime,
        outbox: Outbox,
        on_crash: Callable[[BaseException], None],
        *,
        settings: ProcessorSettings,
        queue: int,
        processors: int,
        handlers: int,
        memory: MemoryPool,
        quotas: ConnectionQuotas,
        attach: Callable[[], Attachment | None] = lambda: None,
    ) -> None:
        """``name`` begins the names of its threads. ``queue``: requests that may wait for a handler.

        ``attach`` makes the attachment of each processor.
        """
        self.name = name
        self._runtime = runtime
        self._outbox = outbox
        self._on_crash = on_crash
        self._settings = settings
        self._memory = memory
        self._unsent = Unsent(memory.capacity)  # as much for answers as for requests
        self._quotas = quotas
        self._attach = attach
        self._token = runtime.run_token()
        self.channel = RequestChannel(queue, _lane_width(handlers), _lanes_extra(handlers))
        self.acceptor: Acceptor | None = None
        self.processors: list[Processor] = []
        self.handlers: list[Handler] = []
        # The request times of all processors, ended processors included. A new processor continues the table of one that is
        # gone.
        self.times: list[RequestTimes] = []
        self._free_times: list[RequestTimes] = []
        self._handled_before = 0  # by handlers that are gone
        self.watch = Watch(lambda: self.processors, self._relieve)
        self._relieved: list[ThreadHandle] = []  # threads that others have taken the place of
        self.left_behind = 0  # threads that did not end when they were asked to: their resources are still in use
        self._threads: dict[int, ThreadHandle] = {}  # by id(body)
        self._processors_started = 0
        self._handlers_started = 0
        # The wanted numbers. Dismissed threads may still be at work.
        self._wanted_processors = processors
        self._wanted_handlers = handlers
        self._resizing = Lock()
        self._stopping = False

    @property
    def handled(self) -> int:
        """Requests that its handlers have handled."""
        return self._handled_before + sum(each.handled for each in self.handlers.copy())

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that wait for their peers, about a second old."""
        return self._unsent.total

    @property
    def memory(self) -> MemoryPool:
        return self._memory

    def start(self, endpoints: Sequence[Endpoint]) -> None:
        self._spawn_handlers(self._wanted_handlers)
        self.acceptor = Acceptor(endpoints, self._quotas, self._runtime.new_poller(), self._runtime.clock)
        self.resize(self._wanted_processors)
        self._spawn(f"{self.name}acceptor", self.acceptor)
        if self._runtime.disk_may_hang:
            self._spawn(f"{self.name}watch", self.watch)

    def resize(self, processors: int) -> None:
        """Change the number of processors. A removed processor hands its connections over to the others."""
        with self._resizing:
            self._wanted_processors = processors
            acceptor = self.acceptor
            if acceptor is None or self._stopping:
                return
            while len(self.processors) < processors:
                processor = self._new_processor(acceptor.wakeup)
                self._spawn(f"{self.name}processor-{self._processors_started}", processor)
                self._processors_started += 1
                self.processors.append(processor)
            removed = self.processors[processors:]
            del self.processors[processors:]
            acceptor.deal_to(self.processors)
            for processor in removed:
                processor.leave(lambda: tuple(self.processors))
            for processor in removed:
                self._wait_until(lambda p=processor: p.departure.over or self._stopping, _LEAVE_S)  # type: ignore[misc]
                if self._end(processor):
                    processor.close()
                    self._free_times.append(processor.times)

    def resize_handlers(self, handlers: int) -> None:
        """Change the number of handlers. A removed handler finishes its request, and leaves after the waiting requests."""
        with self._resizing:
            more = handlers - self._wanted_handlers
            self._wanted_handlers = handlers
            self.channel.resize_lanes(_lane_width(handlers), _lanes_extra(handlers))
            if self.acceptor is not None and not self._stopping:
                self._spawn_handlers(more)
                self.channel.dismiss(-more)

    def _spawn_handlers(self, count: int) -> None:
        for _ in range(count):
            handler = Handler(self.channel, self._outbox, self._runtime.clock, self._handler_leaves)
            self._spawn(f"{self.name}handler-{self._handlers_started}", handler)
            self._handlers_started += 1
            self.handlers.append(handler)

    def _handler_leaves(self, handler: Handler) -> None:
        """On the handler's thread."""
        self._handled_before += handler.handled
        self.handlers.remove(handler)
        thread = self._threads.pop(id(handler), None)
        if thread is not None:
            thread.ask_to_stop()

    def stop_accepting(self, patience_s: float) -> None:
        acceptor, self.acceptor = self.acceptor, None
        if acceptor is not None and self._end(acceptor, patience_s):
            acceptor.close()

    def stop(self, deadline: float) -> None:
        """End its handlers, then its processors, by ``deadline`` (Clock.monotonic() s)."""
        # They share the time: a hanging disk holds up all of them. The processors come after the handlers, so
        # that the handlers' answers are still sent.
        clock = self._runtime.clock
        self._stopping = True
        with self._resizing:  # a concurrent resize, or relief, sees that
            pass
        self._end(self.watch)
        for bodies in (self.handlers.copy(), self.processors):
            threads = [self._threads[id(body)] for body in bodies if id(body) in self._threads]
            # Twice: a wake-up reaches any one of the handlers, whether or not it has been asked to stop.
            for thread in [*threads, *threads]:
                thread.ask_to_stop()
            left_s = max(LEAST_PATIENCE_S, deadline - clock.monotonic())
            self._wait_until(lambda running=threads: not any(each.alive() for each in running), left_s)  # type: ignore[misc]
            for body in bodies:
                if self._end(body, LEAST_PATIENCE_S) and isinstance(body, Processor):
                    body.close()
        self.processors = []
        for thread in self._relieved:  # they have been asked to stop
            if not self._wait_until(lambda relieved=thread: not relieved.alive(), LEAST_PATIENCE_S):  # type: ignore[misc]
                log.warning("thread_left_behind", body=thread.name)
                self.left_behind += 1
        self._relieved = []

    def _relieve(self, processor: Relievable, request: Request) -> bool:
        """On the watch's thread: have another thread step the processor."""
        assert isinstance(processor, Processor)
        with self._resizing:
            if self._stopping or processor not in self.processors:
                return False
            return processor.relieve(request, lambda: self._replace_thread(processor))

    def _replace_thread(self, processor: Processor) -> None:
        old = self._threads.pop(id(processor))
        old.ask_to_stop()
        self._relieved = [*(each for each in self._relieved if each.alive()), old]
        self._spawn(old.name, processor)

    def _new_processor(self, on_room: Callable[[], None]) -> Processor:
        times = self._free_times.pop() if self._free_times else RequestTimes()
        if not any(each is times for each in self.times):
            self.times.append(times)
        processor = Processor(
            self._processors_started,
            times=times,
            settings=self._settings,
            poller=self._runtime.new_poller(),
            clock=self._runtime.clock,
            threads=self._runtime.threads,
            channel=self.channel,
            memory=self._memory,
            unsent=self._unsent,
            quotas=self._quotas,
            outbox=self._outbox,
            on_room=on_room,
            token=None if self._token is None else TokenHolder(self._token),
            attachment=self._attach(),
        )
        if self._runtime.disk_may_hang:
            processor.watch()
        return processor

    def _spawn(self, name: str, body: Body) -> None:
        self._threads[id(body)] = self._runtime.threads.spawn(name, body, self._on_crash)

    def _wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        return wait_until(self._runtime, condition, timeout)

    def _end(self, body: Body, timeout: float = PATIENCE_S) -> bool:
        """Stop its thread. False if the thread does not end: then its resources are still in use and must be left alone."""
        # A handler may sit in a blocking call that does not end (a dead disk): leave it behind, it is a daemon.
        thread = self._threads.pop(id(body), None)
        if thread is None or thread.stop(timeout):
            return True
        log.warning("thread_left_behind", body=type(body).__name__)
        self.left_behind += 1
        return False


def _lane_width(handlers: int) -> int:
    """A quarter of the handlers to each lane: most are left for requests that are in none."""
    return max(1, handlers // 4)


def _lanes_extra(handlers: int) -> int:
    """Requests of all lanes, beside one of each: when all lanes are full, one handler is left for requests without a lane."""
    return max(0, handlers - len(LANES) - 1)


def wait_until(runtime: Runtime, condition: Callable[[], bool], timeout: float) -> bool:
    """Look every few ms, for at most ``timeout`` s. False if the condition did not come to hold."""
    deadline = runtime.clock.monotonic() + timeout
    while not condition():
        if runtime.clock.monotonic() >= deadline:
            return False
        runtime.threads.pause(0.005)
    return True
