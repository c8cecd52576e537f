"""Forked processes, whose locks and connections are reset in the child; and calls from coroutines to blocking functions.

A forked child has copies of everything but threads: of locks that another thread may have held, and of descriptors that are the
parent's connections. Their owners are told in the child before anything else runs there. They replace the locks and close
the descriptors without sending anything. Nothing happens in the parent.

The only module that knows asyncio, whose import takes 50 ms.
"""

import contextlib
import os
from collections.abc import Callable
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from broker.runtime.threads import Lock


class Forkable(Protocol):
    def forked(self) -> None:
        """In the child: take new locks, close copies of descriptors. No other thread runs yet. Must not raise or block."""


class _Forks:
    def __init__(self) -> None:
        self.count = 0
        self.lock = Lock()
        self.known: WeakSet[Any] = WeakSet()
        self.functions: list[Callable[[], None]] = []

    def in_child(self) -> None:
        self.count += 1
        self.lock = Lock()  # another thread of the parent may have held it
        for function in self.functions:
            function()
        known = list(self.known)
        self.known = WeakSet()  # they were the parent's; a child of this process is not told of them
        for owner in known:
            owner.forked()


_forks = _Forks()
if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_forks.in_child)


def tell(owner: Forkable) -> None:
    """Have ``owner.forked`` called in a child, if ``owner`` is still referred to when the process is forked."""
    with _forks.lock:
        _forks.known.add(owner)


def call_in_child(function: Callable[[], None]) -> None:
    """Have a module's function called in a child, before the owners. Call this once, when the module is imported."""
    _forks.functions.append(function)


def count() -> int:
    """The number of forks between the first process and this one. A number noted in a parent is smaller."""
    return _forks.count


T = TypeVar("T")


async def in_thread(function: Callable[[], T], undo: Callable[[], object] | None = None) -> T:
    """Call ``function`` on a thread of asyncio's pool. If the task is cancelled meanwhile, the call still goes on to its end, and
    then ``undo`` is called, before the cancellation goes on."""
    import asyncio

    call = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            await call
            if undo is not None:
                await asyncio.to_thread(undo)
        raise
