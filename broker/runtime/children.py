"""Processes that this one starts and ends: nodes of a broker.

Tests: tests/process/test_nodes.py.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

# The variable with this process's id, for a child that should end with it (``process.end_with``).
PARENT = "BROKER_NODE_PARENT"


class Child:
    """A process that runs ``broker`` with these arguments, and with these variables besides this process's own."""

    def __init__(self, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "broker", *arguments],
            stdin=subprocess.DEVNULL,
            env={**os.environ, PARENT: str(os.getpid()), **variables},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def status(self) -> int | None:
        """Its exit status; None: it runs."""
        return self._process.poll()

    def terminate(self) -> None:
        self._process.terminate()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True
