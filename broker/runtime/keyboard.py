"""Single keys from a terminal, for commands that show something until a key is pressed.

Tests: tests/runtime/test_keyboard.py.
"""

import os
import select
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Any, Self


class Keyboard:
    """``with Keyboard() as keyboard``: keys come without Enter and are not shown. Where standard input is no terminal there are
    no keys, and ``wait`` only waits."""

    def __init__(self) -> None:
        self._file: int | None = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._before: Any = None

    def __enter__(self) -> Self:
        if self._file is not None:
            self._before = termios.tcgetattr(self._file)
            tty.setcbreak(self._file)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None and self._before is not None:
            termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)

    def wait(self, timeout_s: float) -> str:
        """The keys that were pressed, at the latest after ``timeout_s``; nothing then."""
        if self._file is None:
            time.sleep(max(0.0, timeout_s))
            return ""
        ready, _, _ = select.select([self._file], [], [], max(0.0, timeout_s))
        if not ready:
            return ""
        pressed = os.read(self._file, 64)
        if not pressed:  # the terminal has gone
            self._file = None
        return pressed.decode("utf-8", "replace")
