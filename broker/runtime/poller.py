"""Readiness. The only module that knows selectors2.

A ``Poller`` belongs to one thread; only ``wakeup`` may be called from others. selectors2 2.0.2 does not import on
Python >= 3.10 as it stands (it wants ``collections.Mapping``); see docs/decisions/0001-selectors2.md. Its ``modify`` to
no events raises after it has already unregistered, so "no interest" is spelled ``unregister`` here.

If the selector uses epoll, ``poll`` asks epoll itself, because selectors2 takes longer for that than the kernel does.
"""

import collections
import collections.abc
import os
import select
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Protocol

from broker.runtime.threads import Lock

READ = 1  # selectors2.EVENT_READ
WRITE = 2  # selectors2.EVENT_WRITE
# Events of one wait. The kernel begins the next wait with the remaining events.
_EVENTS_MAX = 512


class Pollable(Protocol):
    def fileno(self) -> int: ...


class Ready(Protocol):
    """What ``poll`` returns beside the events: the registration."""

    @property
    def data(self) -> Any: ...


class Poller(Protocol):
    def register(self, source: Pollable, events: int, data: Any) -> None: ...

    def modify(self, source: Pollable, events: int, data: Any) -> None:
        """``events`` is not 0."""

    def unregister(self, source: Pollable) -> None: ...

    def arm(self) -> None:
        """Announce ``poll``: from now on ``wakeup`` interrupts it. Check your queues after this call, then poll."""

    def poll(self, timeout: float | None) -> Sequence[tuple[Ready, int]]:
        """Registrations that are ready, each with its events; waits at most ``timeout`` s (None: until something is)."""

    def wakeup(self) -> None:
        """From any thread: end the current ``poll``, or make the next one not wait. A system call only if the owner waits."""

    def close(self) -> None: ...

    def forked(self) -> None:
        """In a forked child: ``close``, whatever another thread of the parent was doing at that moment."""


def _load_selectors2() -> ModuleType:
    missing = not hasattr(collections, "Mapping")
    if missing:
        collections.Mapping = collections.abc.Mapping  # type: ignore[attr-defined]
    try:
        import selectors2
    finally:
        if missing:
            del collections.Mapping  # type: ignore[attr-defined]
    return selectors2  # type: ignore[no-any-return]


_selectors2 = _load_selectors2()
assert (_selectors2.EVENT_READ, _selectors2.EVENT_WRITE) == (READ, WRITE)


class Alarm:
    """A descriptor that can be made readable: an eventfd if the system has it, else a pipe."""

    def __init__(self) -> None:
        # Between `ring` and `close`: a closed descriptor's number is soon reused, and the write would go into another file.
        self._lock = Lock()
        self._closed = False
        if hasattr(os, "eventfd"):
            self._read_fd = self._write_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._read_fd, self._write_fd = os.pipe()
            os.set_blocking(self._read_fd, False)
            os.set_blocking(self._write_fd, False)

    def fileno(self) -> int:
        return self._read_fd

    def ring(self) -> None:
        with self._lock:
            if self._closed:
                return
            try:
                os.write(self._write_fd, b"\1\0\0\0\0\0\0\0")
            except BlockingIOError:
                pass  # full: it rings already

    def silence(self) -> None:
        try:
            os.read(self._read_fd, 4096)
        except BlockingIOError:
            pass

    def forked(self) -> None:
        self._lock = Lock()  # a thread of the parent may have held it

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.close(self._read_fd)
            if self._write_fd != self._read_fd:
                os.close(self._write_fd)


class _EpollSelect:
    """The ``select`` of selectors2's ``EpollSelector``, without its work for old versions of Python."""

    def __init__(self, selector: Any) -> None:
        self._keys: dict[int, Any] = selector._fd_to_key
        self._wait: Callable[[float | None, int], list[tuple[int, int]]] = selector._epoll.poll
        self._in, self._out = select.EPOLLIN, select.EPOLLOUT

    def __call__(self, timeout: float | None) -> list[tuple[Ready, int]]:
        ready = []
        keys, readable = self._keys, self._in
        for fd, mask in self._wait(timeout, _EVENTS_MAX):
            key = keys.get(fd)
            if key is None:  # closed without being unregistered, while a forked process has it, too
                continue
            if mask == readable:
                events = READ
            else:  # errors are found by reading and by writing
                events = (READ if mask & ~self._out else 0) | (WRITE if mask & ~readable else 0)
            ready.append((key, events & key.events))
        return ready


class SelectorPoller:
    """selectors2's best selector for this platform, with a wake-up."""

    def __init__(self) -> None:
        self._selector = _selectors2.DefaultSelector()
        self._select: Callable[[float | None], list[tuple[Ready, int]]] = self._selector.select
        if hasattr(self._selector, "_epoll"):
            self._select = _EpollSelect(self._selector)
        self._alarm = Alarm()
        self._selector.register(self._alarm, READ, None)
        self._armed = False
        self._woken = False
        self.modify = self._selector.modify
        self.unregister = self._selector.unregister

    def register(self, source: Pollable, events: int, data: Any) -> None:
        try:
            self._selector.register(source, events, data)
        except OSError:
            # It noted the descriptor before it asked the system, and would refuse the next descriptor of that number.
            self._selector.unregister(source)
            raise

    def arm(self) -> None:
        self._armed = True

    def poll(self, timeout: float | None) -> Sequence[tuple[Ready, int]]:
        if self._woken:  # it was not armed then, so the alarm was not rung
            timeout = 0.0
        ready = self._select(timeout)
        self._armed = False
        self._woken = False
        for index, (key, _) in enumerate(ready):
            if key.data is None:
                self._alarm.silence()
                del ready[index]
                break
        return ready

    def wakeup(self) -> None:
        # Rings once per wait. A caller that finds the poller disarmed leaves `_woken`, so that the next poll does not wait.
        # `_woken` is written before `_armed` is read here, and read after `_armed` is written in the owner's thread, so one of
        # the two threads sees the other.
        self._woken = True
        if self._armed:
            self._armed = False
            self._alarm.ring()

    def close(self) -> None:
        self._selector.close()
        self._alarm.close()

    def forked(self) -> None:
        self._alarm.forked()
        self.close()
