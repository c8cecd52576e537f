"""A broker, or a helper of a scenario, in a process of its own, and its cost as measured by the kernel.

``BROKER_BENCH_TREE``, an environment variable that ``check`` sets: the directory with the packages ``broker`` and ``protocol``
that are measured, if they are not those of this tree.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]
TREE = os.environ.get("BROKER_BENCH_TREE")


def _cpu_ns(pid: int) -> int:
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total_ns += int((task / "schedstat").read_text().split()[0])
            total_ns += sum(_cpu_ns(int(child)) for child in (task / "children").read_text().split())
        except OSError:
            pass  # it has just ended
    return total_ns


class OwnProcess:
    """The resources that the process of this id has used."""

    pid: int
    address: str

    def cpu_s(self) -> float:
        """CPU of its threads, and of those of its children, so far, without what has ended. The kernel counts ns."""
        return _cpu_ns(self.pid) / 1e9

    def rss_mb(self) -> float:
        """Resident memory."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        return 0.0

    @property
    def port(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self.address.rsplit(":", 1)
        return host.strip("[]"), int(port)


class BrokerProcess(OwnProcess):
    """``broker serve`` on a free port, with a data directory that goes when it ends."""

    def __init__(
        self,
        *settings: str,
        listener: str = "kafka",
        directory: str | None = None,
        tree: str | None = None,
        nodes: int = 1,
    ) -> None:
        """``settings``: ``key=value`` each. ``listener``: the protocol, or several with commas, of which the first has
        ``address``. ``directory``: where the temporary data directory is made. ``tree``: as ``BROKER_BENCH_TREE``, for a
        scenario that compares trees itself."""
        self.settings = settings
        self._protocols = listener.split(",")
        self._tree = tree or TREE
        self._nodes = nodes
        self._directory = tempfile.TemporaryDirectory(dir=directory, prefix="broker-bench-")
        self.data_dir = Path(self._directory.name) / "data"
        self._ready = Path(self._directory.name) / "ready.json"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(20)
        self._directory.cleanup()

    def start(self) -> None:
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Returns at once: one that stands by is not ready."""
        command = [sys.executable, "-m", "broker", "serve", "--data-dir", str(self.data_dir)]
        command += ["--ready-file", str(self._ready)]
        for protocol in self._protocols:
            command += ["--listener", f"{protocol}://127.0.0.1:0"]
        if self._nodes > 1:
            command += ["--nodes", str(self._nodes)]
        for setting in ("logging_level=warning", *self.settings):
            command += ["--set", setting]
        self._began = time.perf_counter()
        self._process = subprocess.Popen(command, cwd=self._tree)
        self.pid = self._process.pid

    def wait_until_ready(self, patience_s: float = 30.0) -> None:
        while not self._ready.exists():
            assert self._process.poll() is None, "the broker did not start"
            assert time.perf_counter() - self._began < patience_s, "the broker is not ready"
            time.sleep(0.001)
        self.ready_s = time.perf_counter() - self._began
        self.listeners: dict[str, str] = json.loads(self._ready.read_text())["listeners"]
        self.address = self.listeners[self._protocols[0]]

    def end(self, signal: int) -> float:
        """Seconds until it has ended. It can be started again."""
        began = time.perf_counter()
        self._process.send_signal(signal)
        self._process.wait(120)
        self._ready.unlink(missing_ok=True)
        return time.perf_counter() - began


class Helper(OwnProcess):
    """``python -m tests.bench.MODULE ARGUMENTS``, whose first line is its address."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._command = [sys.executable, "-m", f"tests.bench.{module}", *arguments]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.pid = self._process.pid
        self.address = self.line()
        return self

    def line(self) -> str:
        """The next that it prints."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
