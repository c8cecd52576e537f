"""A broker in a process of its own, and what the kernel says it costs.

Two environment variables are for ``check.py``. ``BROKER_BENCH_TREE``: the directory with the packages ``broker`` and
``protocol`` that are measured, if they are not those of this tree. ``BROKER_BENCH_FIGURES``: a file to which ``figure`` appends.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

TREE = os.environ.get("BROKER_BENCH_TREE")
_FIGURES = os.environ.get("BROKER_BENCH_FIGURES")


def figure(name: str, cpu_us: float) -> None:
    """Note what one request, buffer or message of this kind costs the broker (us of CPU), for whoever compares."""
    if _FIGURES:
        with open(_FIGURES, "a", encoding="utf-8") as file:
            file.write(json.dumps([name, cpu_us]) + "\n")


def show(name: str, results: dict[str, dict[str, float]], width: int) -> None:
    """Print what was measured: a line for each case."""
    print(name)
    for case, figures in results.items():
        print(f"  {case:{width}} " + "  ".join(f"{key} {value:,.4g}" for key, value in figures.items()), flush=True)


def cpu_s(pid: int) -> float:
    """What a process's threads have used so far, those that have ended not counted. The kernel counts ns."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total_ns += int((task / "schedstat").read_text().split()[0])
        except OSError:
            pass  # it has just ended
    return total_ns / 1e9


class BrokerProcess:
    """``broker serve`` on a free port, with a data directory that goes when it ends."""

    listener = "kafka://127.0.0.1:0"

    def __init__(self, *settings: str, directory: str | None = None, tree: str | None = None) -> None:
        """``settings``: ``key=value`` each. ``directory``: where the temporary data directory is made. ``tree``: as
        ``BROKER_BENCH_TREE``, for a benchmark that compares trees itself."""
        self._settings = settings
        self._tree = tree or TREE
        self._directory = tempfile.TemporaryDirectory(dir=directory, prefix="broker-bench-")

    def __enter__(self) -> "BrokerProcess":
        ready = Path(self._directory.name) / "ready.json"
        self.data_dir = f"{self._directory.name}/data"
        command = [sys.executable, "-m", "broker", "serve", "--listener", self.listener]
        command += ["--data-dir", self.data_dir, "--ready-file", str(ready)]
        for setting in ("logging_level=warning", *self._settings):
            command += ["--set", setting]
        began = time.perf_counter()
        self._process = subprocess.Popen(command, cwd=self._tree)
        while not ready.exists():
            assert self._process.poll() is None, "the broker did not start"
            assert time.perf_counter() - began < 30, "the broker is not ready"
            time.sleep(0.001)
        self.ready_s = time.perf_counter() - began
        self.address: str = json.loads(ready.read_text())["listeners"][self.listener.partition(":")[0]]
        self.pid = self._process.pid
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(20)
        self._directory.cleanup()

    def cpu_s(self) -> float:
        return cpu_s(self.pid)

    def rss_mb(self) -> float:
        """Resident memory."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        return 0.0
