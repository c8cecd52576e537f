"""A broker in a process of its own, and what the kernel says it costs."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

_TICK = os.sysconf("SC_CLK_TCK")


class BrokerProcess:
    """``broker serve`` on a free port, with a data directory that goes when it ends."""

    listener = "kafka://127.0.0.1:0"

    def __init__(self, *settings: str, directory: str | None = None) -> None:
        """``settings``: ``key=value`` each. ``directory``: where the temporary data directory is made."""
        self._settings = settings
        self._directory = tempfile.TemporaryDirectory(dir=directory, prefix="broker-bench-")

    def __enter__(self) -> "BrokerProcess":
        ready = Path(self._directory.name) / "ready.json"
        self.data_dir = f"{self._directory.name}/data"
        command = [sys.executable, "-m", "broker", "serve", "--listener", self.listener]
        command += ["--data-dir", self.data_dir, "--ready-file", str(ready)]
        for setting in ("logging_level=warning", *self._settings):
            command += ["--set", setting]
        began = time.perf_counter()
        self._process = subprocess.Popen(command)
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
        """User and system time so far; the kernel counts in ticks of 10 ms."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _TICK

    def rss_mb(self) -> float:
        """Resident memory."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        return 0.0
