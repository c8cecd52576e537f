"""The callbacks that run when a log grows: those of fetches that wait for records.

Any thread. The lock guards the table and is not held during a callback.
"""

from collections.abc import Callable

from broker.runtime.threads import Lock


class Watchers:
    """Callbacks by token. ``callbacks`` is read without the lock to see whether there are any."""

    __slots__ = ("_lock", "_next_token", "callbacks")

    def __init__(self) -> None:
        self._lock = Lock()
        self._next_token = 0
        self.callbacks: dict[int, Callable[[], None]] = {}

    def watch(self, callback: Callable[[], None]) -> int:
        """Run ``callback()`` after each append, on the appending thread with no lock held, and once when the log goes offline or
        is deleted. It must be quick and must not raise. Returns a token for ``unwatch``."""
        with self._lock:
            self._next_token += 1
            self.callbacks[self._next_token] = callback
            return self._next_token

    def unwatch(self, token: int) -> None:
        """Do not call the callback again; it may still be running on another thread. An unknown token does nothing."""
        with self._lock:
            self.callbacks.pop(token, None)

    def wake(self) -> None:
        """Call the watchers. The caller holds no lock."""
        with self._lock:
            callbacks = list(self.callbacks.values())
        for callback in callbacks:
            callback()
