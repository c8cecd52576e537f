"""Keeps states that change often in the catalogue: share partitions of Kafka, cursors of Pulsar.

A caller reports a change by ``changed``, and it is written within a second; or by ``save``, which calls back when it is durable.
The writer's thread asks for the state when it writes, so all changes that arrive during one fsync become one row, and those of
many states one transaction. A state that could not be written stays changed: it is tried again every second, and with the next
``save``. So is a failed deletion, unless the same key gets a new state.

Any thread. The lock guards the tables; nothing is called under it.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Generic, Protocol, TypeVar

from broker.errors import StorageError
from broker.log import EventLimit
from broker.metadata.catalogue import Catalogue
from broker.metadata.writer import CatalogueWriter, Done
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer

# Maximum time until a change without a waiting caller is written.
INTERVAL_S = 1.0

Key = TypeVar("Key")
KeyOf = TypeVar("KeyOf", covariant=True)


class Stored(Protocol[KeyOf]):
    """An object whose state is stored."""

    @property
    def key(self) -> KeyOf: ...

    def state(self) -> tuple[int, bytes] | None:
        """The version and bytes of the state, or None if there is nothing to write any longer. Raises StorageError for a state
        that cannot be stored."""

    def saved(self, version: int, state: bytes) -> bool:
        """The state of this version is durable. Returns False if it has changed and has to be written again."""

    def settle(self, done: Done) -> None:
        """``state`` was None while ``done`` waited: call it now, or when the last state is durable."""


class StateStore(Generic[Key]):
    """``write`` writes the row of a key. ``remove`` deletes the rows of keys, all or none. ``report`` logs an error, with the
    number of errors left out since the last report."""

    def __init__(
        self,
        writer: CatalogueWriter,
        clock: Clock,
        timer: Timer,
        write: Callable[[Catalogue, Key, bytes], None],
        remove: Callable[[Catalogue, Iterable[Key]], None],
        report: Callable[[Key, StorageError, int], None],
    ) -> None:
        self._writer = writer
        self._clock = clock
        self._timer = timer
        self.write = write
        self.remove = remove
        self._report = report
        self._lock = Lock()
        self._waiting: dict[Stored[Key], list[Done]] = {}  # in the writer's queue, with the callbacks that wait
        self._changed: dict[Stored[Key], None] = {}  # to be written at the next tick
        self._doomed: dict[Key, _Deletion[Key]] = {}  # deleted, but still in the catalogue; with the last deletion
        self._ticking = False
        self._failures = EventLimit()

    # -- states --------------------------------------------------------------------------------------------------------

    def save(self, stored: Stored[Key], done: Done) -> None:
        """Write the state now. Call ``done`` on the writer's thread, without a lock, when the state as of this moment is durable
        or could not be written."""
        with self._lock:
            self._changed.pop(stored, None)
            waiting = self._waiting.get(stored)
            if waiting is not None:
                waiting.append(done)
                return
            self._waiting[stored] = [done]
        self._enqueue(stored)

    def changed(self, stored: Stored[Key]) -> None:
        """Write the state within a second."""
        with self._lock:
            self._changed[stored] = None
            if self._ticking:
                return
        self._tick_later()

    def unchanged(self, stored: Stored[Key]) -> None:
        """Cancel ``changed``. Does not affect ``save``."""
        with self._lock:
            self._changed.pop(stored, None)

    def take_waiting(self, stored: Stored[Key]) -> list[Done]:
        """Take the callbacks of a write that begins now. Later callers wait for the next write."""
        with self._lock:
            return self._waiting.pop(stored, [])

    def failed(self, stored: Stored[Key], error: StorageError) -> None:
        """The state could not be written: try again."""
        self._note(stored.key, error)
        self.changed(stored)

    # -- deletions -----------------------------------------------------------------------------------------------------

    def delete(self, keys: Iterable[Key], done: Done) -> None:
        """Remove these rows; the ``state`` of each is None from now on. Calls ``done`` like ``save``."""
        with self._lock:
            deletion = self._doom(keys)
        self._enqueue_deletion(deletion, done)

    def is_being_deleted(self, key: Key) -> bool:
        """Whether a queued deletion would also delete a row of this key that is written now by someone other than the writer."""
        deletion = self._doomed.get(key)
        return deletion is not None and deletion.is_queued

    def spare(self, key: Key, *, even_queued: bool) -> None:
        """The key has a new state: do not retry an older deletion that has failed. ``even_queued``: a deletion in the writer's
        queue spares the row, too."""
        if self._doomed:
            with self._lock:
                deletion = self._doomed.get(key)
                if deletion is not None and (even_queued or not deletion.is_queued):
                    del self._doomed[key]
                    del deletion.keys[key]

    def _doom(self, keys: Iterable[Key]) -> "_Deletion[Key]":
        """The lock is held."""
        deletion = _Deletion(self.remove, keys)
        self._doomed.update(dict.fromkeys(deletion.keys, deletion))
        return deletion

    def _enqueue_deletion(self, deletion: "_Deletion[Key]", done: Done) -> None:
        self._writer.change(deletion, partial(self._deleted, deletion, done))

    def _deleted(self, deletion: "_Deletion[Key]", done: Done, error: StorageError | None) -> None:
        with self._lock:
            deletion.is_queued = False
            keys = list(deletion.keys)
            for key in keys:
                if error is None and self._doomed.get(key) is deletion:
                    del self._doomed[key]
        if error is not None and keys:
            self._note(keys[0], error)
            self._tick_later()
        done(error)

    # -- the background ------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Hand all pending work to the writer, which then has to be flushed."""
        self._tick()

    def _tick_later(self) -> None:
        with self._lock:
            if self._ticking:
                return
            self._ticking = True
        self._timer.at(self._clock.monotonic() + INTERVAL_S, self._tick)

    def _tick(self) -> None:
        """Runs on the timer's thread."""
        with self._lock:
            self._ticking = False
            # A state that is already in the queue is read when it is written.
            due = [stored for stored in self._changed if stored not in self._waiting]
            self._changed.clear()
            self._waiting.update({stored: [] for stored in due})
            failed = [key for key, deletion in self._doomed.items() if not deletion.is_queued]
            again = self._doom(failed) if failed else None
        if again is not None:
            self._enqueue_deletion(again, _ignore)
        for stored in due:
            self._enqueue(stored)

    def _enqueue(self, stored: Stored[Key]) -> None:
        if stored.key in self._doomed and stored.state() is not None:
            self.spare(stored.key, even_queued=True)
        write = _Write(self, stored)
        self._writer.change(write, write.done)

    def _note(self, key: Key, error: StorageError) -> None:
        left_out = self._failures.take(self._clock.monotonic())
        if left_out is not None:
            self._report(key, error, left_out)


class _Deletion(Generic[Key]):
    """A deletion that has not been written to the catalogue yet."""

    __slots__ = ("_remove", "is_queued", "keys")

    def __init__(self, remove: Callable[[Catalogue, Iterable[Key]], None], keys: Iterable[Key]) -> None:
        self._remove = remove
        self.keys = dict.fromkeys(keys)  # without spared keys
        self.is_queued = True

    def __call__(self, catalogue: Catalogue) -> None:
        if keys := list(self.keys):
            self._remove(catalogue, keys)


class _Write(Generic[Key]):
    """A state on its way into the catalogue. The writer may call it twice: together with others, and then alone."""

    __slots__ = ("_asked", "_state", "_store", "_stored", "_waiting")

    def __init__(self, store: StateStore[Key], stored: Stored[Key]) -> None:
        self._store = store
        self._stored = stored
        self._waiting: list[Done] | None = None
        self._asked = False
        self._state: tuple[int, bytes] | None = None

    def __call__(self, catalogue: Catalogue) -> None:
        if self._waiting is None:
            self._waiting = self._store.take_waiting(self._stored)
        if not self._asked:
            self._state = self._stored.state()  # raises StorageError if it cannot be stored
            self._asked = True
        if self._state is not None:
            self._store.write(catalogue, self._stored.key, self._state[1])

    def done(self, error: StorageError | None) -> None:
        if error is not None:
            self._store.failed(self._stored, error)
        elif self._state is not None and not self._stored.saved(*self._state):
            self._store.changed(self._stored)
        for done in self._waiting or ():
            if error is None and self._state is None:
                self._stored.settle(done)
            else:
                done(error)


def _ignore(_: StorageError | None) -> None:
    """The next tick retries."""
