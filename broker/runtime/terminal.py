"""The terminal: whether a stream is one, its colours, single keys, and lines that are read without waiting.

``TextInput`` reads a stream of lines, such as standard input, as far as it goes without waiting, so that a program can use them
before it waits for more. The only module that asks the system whether a descriptor is readable outside the reactor.
"""

import os
import select
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Any, Self


def is_terminal(stream: Any) -> bool:
    """False also for a stream that is missing or closed."""
    try:
        return stream is not None and bool(stream.isatty())
    except (ValueError, AttributeError):
        return False


def wants_colours(stream: Any) -> bool:
    """A terminal that can show them, unless NO_COLOR is set (no-color.org). FORCE_COLOR is for a log that shows them."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


class Keyboard:
    """``with Keyboard() as keyboard``: keys come without Enter and are not shown. If standard input is no terminal there are
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


class TextInput:
    """``descriptor``: a file, a pipe or a terminal, which stays the caller's."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # A poll, because `select` has no descriptors above 1024. Regular files are always ready.
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def read(self, most: int, wait_s: float | None) -> bytes | None:
        """At most ``most`` bytes; b"" at the end; None where nothing came within ``wait_s`` s (None: waits as long as it takes).

        An exception of a signal handler ends the wait. Raises OSError.
        """
        if wait_s is not None and not self._poll.poll(wait_s * 1000):
            return None
        return os.read(self._descriptor, most)
