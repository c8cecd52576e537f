"""A figure that takes long to find is kept for a while, so that many who ask cost no more than one.

Any thread may ask. One of them finds the figure out; those who ask meanwhile get the last one, or wait if there is none yet.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from broker.runtime.threads import Lock

T = TypeVar("T")


class Cached(Generic[T]):
    def __init__(self, find: Callable[[], T], monotonic: Callable[[], float], age_s: float) -> None:
        """``age_s``: how old it may be, from when it was found."""
        self._find = find
        self._monotonic = monotonic
        self._age_s = age_s
        self._lock = Lock()
        self._found: tuple[float, T] | None = None

    def get(self) -> T:
        found = self._found
        if found is not None and self._monotonic() - found[0] < self._age_s:
            return found[1]
        if not self._lock.acquire(blocking=found is None):
            assert found is not None
            return found[1]
        try:
            latest = self._found
            if latest is None or latest is found:
                value = self._find()
                latest = self._found = (self._monotonic(), value)
            return latest[1]
        finally:
            self._lock.release()
