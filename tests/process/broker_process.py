"""`broker serve` in a process of its own that can be stopped, killed and started again on the same data and the same port."""

import json
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from broker.runtime.net import reserve_port
from tests.ports import free_ports

# Far longer than it ever takes, so that only a broker that hangs runs into it.
PATIENCE_S = 60.0
# `make races`: the threads of the broker change places as often as those of the tests.
_RACES = ["switch_interval_us=1"] if os.environ.get("BROKER_RACES") else []


class BrokerProcess:
    """A broker whose data lies in ``directory/data``; its events are appended to ``directory/events``.

    The port is any free one at first and stays the same from then on, so that clients find a restarted broker again. Nobody else
    is given it meanwhile, on Linux.
    """

    options: Sequence[str] = ()  # of the command, besides these
    processes = 1  # that are started together: a busy machine has less time for each

    def __init__(
        self,
        directory: Path,
        *settings: str,
        data_dir: Path | None = None,
        listener: str = "kafka://127.0.0.1:0",
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        module: str = "broker",
        more_listeners: Sequence[str] = (),
    ) -> None:
        """``settings``: ``key=value`` each. ``prefix``: a command that runs the broker's, such as ``prlimit --fsize=...``.

        ``module``: what is run in the broker's place, with its arguments. ``more_listeners``: on any free port at each start.
        """
        self.directory = directory
        self.data_dir = data_dir if data_dir is not None else directory / "data"
        self.ready_file = directory / "ready.json"
        self.settings = list(settings)
        self.listener = listener
        self.more_listeners = list(more_listeners)
        self._environment = environment
        self._prefix = list(prefix)
        self._module = module
        self._events = directory / "events"
        self._process: subprocess.Popen[bytes] | None = None
        self._has_any_port = listener.endswith(":0")
        self._keeps_port: Callable[[], None] | None = None

    def start(self) -> Self:
        """Start it, wait until it serves. AssertionError with what it said if it does not."""
        self.launch()
        return self.wait_until_ready()

    def wait_until_ready(self) -> Self:
        """After ``launch``: as ``start``."""
        deadline = time.monotonic() + self.processes * PATIENCE_S
        while not self.ready_file.exists():
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.output}"
            assert time.monotonic() < deadline, f"is not ready: {self.output}"
            time.sleep(0.005)
        ready = json.loads(self.ready_file.read_text())
        assert self.process.pid == ready["pid"]
        scheme = self.listener.partition(":")[0]
        self.addresses: dict[str, str] = ready["listeners"]  # by the listeners' names
        self.address: str = self.addresses[scheme]
        self.listener = f"{scheme}://{self.address}"
        return self

    def launch(self) -> None:
        """Start it, wait for nothing."""
        assert self._process is None or self._process.poll() is not None, "it runs already"
        self.ready_file.unlink(missing_ok=True)
        if self.listener.endswith("//127.0.0.1:0") and "--nodes" not in self.options:
            [port] = free_ports(1, self)
            self.listener = f"{self.listener.removesuffix(':0')}:{port}"
            self._has_any_port = False  # it is kept
        command = [*self._prefix, sys.executable, "-m", self._module, "serve", "--data-dir", str(self.data_dir)]
        command += ["--listener", self.listener, "--ready-file", str(self.ready_file)]
        for listener in self.more_listeners:
            command += ["--listener", listener]
        command += self.options
        for setting in [*_RACES, *self.settings]:
            command += ["--set", setting]
        with open(self._events, "ab") as events:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=events,
                stderr=events,
                env={**os.environ, **(self._environment or {})},
            )

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.wait()

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Until it has ended; the exit status."""
        status = self.process.wait(timeout_s)
        if self._has_any_port and self._keeps_port is None and not self.listener.endswith(":0"):
            host, _, ports = self.listener.partition("://")[2].rpartition(":")
            self._keeps_port = reserve_port(host, int(ports.partition("-")[0]))
            if self._keeps_port is not None:
                weakref.finalize(self, self._keeps_port)
        return status

    def suspend(self) -> None:
        """SIGSTOP. Returns when the whole process stands still: the signal alone takes effect a little later."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Not running inside of the ``with``."""
        self.suspend()
        try:
            yield
        finally:
            self.resume()

    def resume(self) -> None:
        """SIGCONT. Does nothing if it was not suspended."""
        self.process.send_signal(signal.SIGCONT)

    @property
    def peak_bytes(self) -> int:
        """The most memory that the process has ever had (VmHWM)."""
        return self._memory("VmHWM")

    @property
    def resident_bytes(self) -> int:
        """The memory that the process has (VmRSS)."""
        return self._memory("VmRSS")

    def _memory(self, name: str) -> int:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "not started"
        return self._process

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def output(self) -> str:
        """All that it has written, over all its lives."""
        return self._events.read_text() if self._events.exists() else ""

    @property
    def events(self) -> list[dict[str, Any]]:
        """What it has logged. A line that is no event stands as ``{"event": line, "level": "error"}``."""
        events = []
        written, _, _ = self.output.rpartition("\n")  # what follows is being written
        for line in written.splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:
                events.append({"event": line, "level": "error"})
        return events

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event["level"] == "error"]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_running:
            self.kill()


def runs(pid: int) -> bool:
    """Whether there is such a process, and it has not ended: whoever should ask for its status may not have done so yet."""
    try:
        return _state(Path(f"/proc/{pid}")) not in ("Z", "X")
    except FileNotFoundError:
        return False


def states(pid: int) -> set[str]:
    """The letters of /proc for the states of its threads."""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            found.add(_state(task))
    return found


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]
