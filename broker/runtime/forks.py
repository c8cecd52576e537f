"""What a process does with what it had when it was forked.

A forked child has copies of everything but the threads: of locks that somebody held, and of descriptors that still mean the
parent's connections. Whoever owns such things is told in the child, before anything else runs there, and lets go of its copies
without a word to the other side. Nothing happens in the parent.
"""

import os
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet

from broker.runtime.threads import Lock


class Forkable(Protocol):
    def forked(self) -> None:
        """In the child: take new locks, close copies of descriptors. Nobody else runs yet. Must not raise or wait."""


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
        self.known = WeakSet()  # they are the parent's: a child of this process need not hear of them again
        for one in known:
            one.forked()


_forks = _Forks()
if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_forks.in_child)


def tell(one: Forkable) -> None:
    """Have ``one.forked`` called in a child, if it is still in use when the process is forked."""
    with _forks.lock:
        _forks.known.add(one)


def call_in_child(function: Callable[[], None]) -> None:
    """The same for a module, before what ``tell`` knows. Once for each function, at its import."""
    _forks.functions.append(function)


def count() -> int:
    """How many forks this process is away from the first one: what was noted in a parent is less."""
    return _forks.count
