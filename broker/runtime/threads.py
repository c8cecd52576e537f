"""Threads, locks and queues. The only module that imports ``threading`` and ``queue``.

Every thread of the broker is a body with a ``step()``: the real runtime calls it in a loop on a thread of its own, the
simulator calls it whenever its seed says so. Locks are real in both: in a simulation nobody ever waits for a lock, because
a step runs to its end before the next starts.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

Lock = threading.Lock
RLock = threading.RLock
Condition = threading.Condition
SimpleQueue = queue.SimpleQueue
QueueEmpty = queue.Empty
Event = threading.Event
Local = threading.local
get_ident = threading.get_ident
get_native_id = threading.get_native_id

__all__ = [
    "Body",
    "Condition",
    "Event",
    "Local",
    "Lock",
    "QueueEmpty",
    "RLock",
    "SimpleQueue",
    "SystemThreads",
    "ThreadHandle",
    "Threads",
    "get_ident",
    "get_native_id",
    "run_aside",
]


class Body(Protocol):
    """The work of a thread."""

    def step(self, timeout: float | None) -> bool:
        """Do the due work, waiting at most ``timeout`` s for it (None: without limit).

        Returns True if there was work. A body is woken from its wait by ``wakeup``.
        """

    def wakeup(self) -> None:
        """From any thread: end the wait of the step that runs now, or make the next step not wait."""


class ThreadHandle(Protocol):
    name: str

    def ask_to_stop(self) -> None:
        """Have the body end after its current step, and wake it. Does not wait."""

    def stop(self, timeout: float | None = None) -> bool:
        """``ask_to_stop`` and wait. True if it has ended."""

    def alive(self) -> bool: ...


class Threads(Protocol):
    def spawn(self, name: str, body: Body, on_crash: Callable[[BaseException], None]) -> ThreadHandle:
        """Run ``body.step`` over and over. An exception that leaves ``step`` ends the thread and goes to ``on_crash``."""

    def get_ident(self) -> int:
        """Identity of the running thread."""

    def pause(self, seconds: float) -> None:
        """Sleep. Only for the thread that starts and stops the broker, while it shuts down."""


class _Thread:
    def __init__(self, name: str, body: Body, on_crash: Callable[[BaseException], None]) -> None:
        self.name = name
        self._body = body
        self._stopping = False
        self._on_crash = on_crash
        # Daemon: a forgotten close() must not keep a user's script from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        step = self._body.step
        try:
            while not self._stopping:
                step(None)
        except BaseException as error:  # reported, never swallowed
            self._on_crash(error)

    def ask_to_stop(self) -> None:
        self._stopping = True
        self._body.wakeup()

    def stop(self, timeout: float | None = None) -> bool:
        self.ask_to_stop()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def alive(self) -> bool:
        return self._thread.is_alive()


def run_aside(name: str, work: Callable[[], object]) -> None:
    """Call it on a thread of its own, which does not keep the program from ending."""
    threading.Thread(target=work, name=name, daemon=True).start()


class SystemThreads:
    """Threads of the operating system."""

    def spawn(self, name: str, body: Body, on_crash: Callable[[BaseException], None]) -> ThreadHandle:
        return _Thread(name, body, on_crash)

    get_ident: Any = staticmethod(threading.get_ident)

    @staticmethod
    def pause(seconds: float) -> None:
        threading.Event().wait(seconds)
