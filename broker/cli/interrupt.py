"""Ctrl-C in a command that has something to finish first: the first one is a request, the second an exception.

Tests: tests/cli/test_produce_consume.py.
"""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any


class Interrupts:
    """``with Interrupts() as interrupts``; then ``interrupts.requested`` says whether there was one.

    A step that may wait for a long time goes into ``with interrupts.allowed()``, where the first Ctrl-C raises
    KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.requested = False
        self._allowed = False
        self._before: Any = None

    def __enter__(self) -> "Interrupts":
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_error: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        self._allowed = True
        try:
            if self.requested:
                raise KeyboardInterrupt
            yield
        finally:
            self._allowed = False

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        again, self.requested = self.requested, True
        if again or self._allowed:
            raise KeyboardInterrupt
