"""Keeps track of which version of a subscription's cursor is in the catalogue (``cursor_store.py``).

The subscription's lock guards this and the cursor; methods take it unless they say that it is held. The thread
``cursor-writer`` asks for the state and reports when it is durable.

Tests: tests/pulsar/subscriptions/test_cursor_store.py.
"""

from collections.abc import Callable
from functools import partial

from broker.metadata.writer import Done
from broker.pulsar.subscriptions.cursor import Cursor
from broker.pulsar.subscriptions.cursor_store import CursorStore, Key, LastState
from broker.runtime.threads import Lock


class Saving:
    """``durable``: whether the cursor is stored at all."""

    __slots__ = ("_cursor", "_durable", "_last", "_lock", "_saved_version", "_store", "gone", "key")

    def __init__(self, store: CursorStore, key: Key, cursor: Cursor, lock: Lock, *, durable: bool) -> None:
        self._store = store
        self._cursor = cursor
        self._lock = lock
        self._durable = durable
        self._saved_version = -1
        self._last: LastState | None = None  # once its topic is unloaded
        self.key = key
        self.gone = False  # its state must not be written any more

    def changed(self) -> None:
        """The cursor has changed and is written within a second. The lock is held."""
        if self._durable and self._cursor.version != self._saved_version:
            self._store.rows.changed(self)

    def save(self, done: Done) -> None:
        """Call ``done`` when the present cursor is durable or could not be written; at once if it is durable already."""
        if self._durable:
            with self._lock:
                gone, saved = self.gone, self._cursor.version == self._saved_version
            if gone:
                self.settle(done)
                return
            if not saved:
                self._store.rows.save(self, done)
                return
        done(None)

    def settle(self, done: Done) -> None:
        """If ``gone``: call ``done`` when the last state is durable; at once if the subscription is deleted."""
        if self._last is None:
            done(None)
        else:
            self._last.wait(done)

    @property
    def never_saved(self) -> bool:
        """The subscription is new, and the catalogue does not have it yet."""
        return self._durable and self._saved_version < 0

    def state(self) -> tuple[int, bytes] | None:
        with self._lock:
            if self.gone:
                return None
            version, snapshot = self._cursor.version, self._cursor.snapshot()
        return version, snapshot.encode()

    def saved(self, version: int, state: bytes) -> bool:
        with self._lock:
            self._saved_version = version
            return self.gone or self._cursor.version == version

    def loaded(self, saved: bool) -> None:
        """The cursor has been loaded; ``saved``: the catalogue has this state."""
        if saved:
            self._saved_version = self._cursor.version
        else:
            self.changed()

    # -- the end -------------------------------------------------------------------------------------------------------------

    def leave(self) -> Callable[[], None]:
        """The topic is unloaded. The lock is held. Returns a function that hands the last state to the store, to be called
        after the lock is released."""
        if not self._durable:
            return _nothing
        snapshot, is_saved = self._cursor.snapshot(), self._cursor.version == self._saved_version
        self._last = last = LastState()  # before it is gone: later calls of ``save`` wait for this
        self.gone = True
        return partial(self._store.leave, self, snapshot, is_saved, last)

    def delete(self, done: Done) -> None:
        """Remove the cursor, which is ``gone``, from the catalogue."""
        if self._durable:
            self._store.delete(self, done)
        else:
            done(None)


def _nothing() -> None:
    """There is no last state."""
