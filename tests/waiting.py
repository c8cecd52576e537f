"""Waiting for what another thread, or another process, does."""

import time
from collections.abc import Callable
from typing import Any

# Generous: only a hang gets there.
DEADLINE_S = 60.0


def wait_for(condition: Callable[[], Any], what: str = "it never came") -> None:
    """Poll until ``condition`` holds; AssertionError, with ``what``, after a minute."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)
