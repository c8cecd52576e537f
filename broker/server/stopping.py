"""A broker's resources (directory, catalogue, logs, sockets, services, threads), and how it releases them, in reverse.

``Taken`` belongs to the server, which fills it as it starts. All of it runs on the server's thread. A thread that does not end in
time is left behind: it goes on, and its resources stay open.

Tests: tests/server/test_broker_server.py, tests/process/test_stop.py.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.errors import BrokerError
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue
from broker.metrics.tracing import TraceExporter
from broker.network.socket_server import SocketServer
from broker.part import ServicePart
from broker.runtime import Runtime
from broker.runtime.threads import Body, ThreadHandle
from broker.storage.data_directory import DataDirectory
from broker.storage.log_manager import LogManager
from broker.storage.upkeep.flusher import FLUSHER_THREADS

if TYPE_CHECKING:
    from broker.server.durable import DurableState

log = get_logger("server")

# How long (s) the stopping thread waits, at most and at least, for another thread to end its step.
_PATIENCE_S = 5.0
_LEAST_PATIENCE_S = 0.05
# How long (s) the thread that exports traces may take to end.
_TRACES_PATIENCE_S = 3.0
# How long (s) the last fsyncs and the checkpoint files may take after the logs' time to become durable is over.
_SETTLE_S = 0.5


class Taken:
    """``left_behind``: how many threads did not end in time when the broker stopped. ``parts`` are by scheme."""

    def __init__(self, runtime: Runtime, on_crash: Callable[[BaseException], None]) -> None:
        """``on_crash`` is called with the exception that ended a thread."""
        self.left_behind = 0
        self.directory: DataDirectory | None = None
        self.catalogue: Catalogue | None = None
        self.logs: LogManager | None = None
        self.sockets: SocketServer | None = None
        self.durable: DurableState | None = None
        self.parts: dict[str, ServicePart] = {}
        self.trace_exporter: TraceExporter | None = None
        self._trace_thread: ThreadHandle | None = None
        self.threads: list[ThreadHandle] = []  # the flushers first
        self._runtime = runtime
        self._on_crash = on_crash

    def spawn(self, name: str, body: Body) -> None:
        self.threads.append(self._runtime.threads.spawn(name, body, self._on_crash))

    def spawn_trace_exporter(self) -> None:
        """Start the exporter's thread, if there is any."""
        if self.trace_exporter is not None:
            self._trace_thread = self._runtime.threads.spawn("trace-exporter", self.trace_exporter, self._on_crash)

    def release(self, deadline: float | None = None) -> None:
        """Release everything that was taken, in the reverse order, by ``deadline`` (Clock.monotonic() s), if given."""
        clock = self._runtime.clock

        def patience() -> float:
            """How long (s) to wait for the next thread: a quarter of the time left, as the logs need most of it to be fsynced."""
            if deadline is None:
                return _PATIENCE_S
            return min(_PATIENCE_S, max(_LEAST_PATIENCE_S, (deadline - clock.monotonic()) / 4))

        if self.logs is not None:
            self.logs.make_no_more()
        if self.sockets is not None:
            self.sockets.unbind()
            self.sockets.stop(patience())
            self.left_behind = self.sockets.left_behind
        threads_ended = self._stop_threads(patience)
        self._stop_traces(patience())
        for part in reversed(self.parts.values()):
            part.close()
        durable, self.durable = self.durable, None
        if durable is not None and not durable.stop_keeping(patience()):
            self.left_behind += 1
        logs, self.logs = self.logs, None
        if durable is not None and deadline is not None:
            durable.shipper.wait_until(deadline - _SETTLE_S / 2)
        ended = logs is None or self._close_logs(logs, deadline)
        if durable is not None:
            self.left_behind += durable.close(patience())
        catalogue, self.catalogue = self.catalogue, None
        if catalogue is not None:
            catalogue.close()
        directory, self.directory = self.directory, None
        if directory is not None and logs is not None and not (ended and threads_ended):
            logs.keep(directory)  # the disk hangs, and something may still write there
        elif directory is not None:
            directory.close()

    def _stop_threads(self, patience: Callable[[], float]) -> bool:
        """False if one has not ended, which may still write."""
        ended = True
        for number, thread in reversed(list(enumerate(self.threads))):
            if number == FLUSHER_THREADS - 1:
                # Only the flushers are left. None of them begins another fsync while a begun fsync is waited for.
                for flusher in self.threads[:FLUSHER_THREADS]:
                    flusher.ask_to_stop()
            if not thread.stop(patience()):
                log.warning("thread_left_behind", body=thread.name)
                self.left_behind += 1
                ended = False
        self.threads = []
        return ended

    def _close_logs(self, logs: LogManager, deadline: float | None) -> bool:
        """True unless a thread that closes them did not end in time."""
        ended = True
        try:
            # A thread that was left behind may be in the middle of an append: then the stop is not clean.
            close_by = None if deadline is None else deadline - _SETTLE_S
            ended = logs.close(close_by, self._runtime.threads, clean=not self.left_behind)
            self.left_behind += not ended
        except (OSError, BrokerError) as error:
            log.error("close_failed", error=str(error))
        return ended

    def _stop_traces(self, patience_s: float) -> None:
        """A collector that hangs keeps the broker from stopping for seconds at most. The thread touches no data: if it is left
        behind, the stop is clean all the same."""
        thread, self._trace_thread = self._trace_thread, None
        exporter, self.trace_exporter = self.trace_exporter, None
        if thread is None or exporter is None:
            return
        ended = thread.stop(min(_TRACES_PATIENCE_S, patience_s))
        exporter.close()
        if not ended and not thread.stop(_LEAST_PATIENCE_S):
            log.warning("thread_left_behind", body="trace-exporter")
