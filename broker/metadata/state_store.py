"""Keeps states that change often in the catalogue: share partitions of Kafka, cursors of Pulsar.

Whoever has changed something calls ``changed``, and it is written within a second; or ``save``, and is told when it is durable.
The writer's thread asks for the state when it writes, so that all changes that arrive during one fsync become one row, and those
of many states one transaction. A state that could not be written stays changed: it is tried again every second, and with the next
``save``. A deletion that has failed is tried again every second as well, unless there is a new state of the same key.

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

# A change that nobody waits for is durable after this time.
INTERVAL_S = 1.0

Key = TypeVar("Key")
KeyOf = TypeVar("KeyOf", covariant=True)


class Stored(Protocol[KeyOf]):
    """Something whose state is kept."""

    @property
    def key(self) -> KeyOf: ...

    def state(self) -> tuple[int, bytes] | None:
        """The version of the state and its bytes; None: there is nothing to write any more. Raises StorageError for a state that
        cannot be stored."""

    def saved(self, version: int, state: bytes) -> bool:
        """The state of this version is durable. False: it has changed and has to be written again."""

    def settle(self, done: Done) -> None:
        """``state`` was None, and ``done`` waits: call it now, or when the last state is durable."""


class StateStore(Generic[Key]):
    """``write``: writes the row of a key. ``remove``: deletes the rows of keys, all or none. ``report``: logs an error, with the
    number of errors that were left out since the last one."""

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
        self._waiting: dict[Stored[Key], list[Done]] = {}  # in the writer's queue, and who waits for that
        self._changed: dict[Stored[Key], None] = {}  # to be written at the next tick
        self._doomed: dict[Key, _Deletion[Key]] = {}  # deleted, and still in the catalogue; with the last deletion
        self._ticking = False
        self._failures = EventLimit()

    # -- states --------------------------------------------------------------------------------------------------------

    def save(self, stored: Stored[Key], done: Done) -> None:
        """Write it now, and call ``done`` on the writer's thread, with no lock held, when what it has at this moment is durable,
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
        """Write it within a second."""
        with self._lock:
            self._changed[stored] = None
            if self._ticking:
                return
        self._tick_later()

    def unchanged(self, stored: Stored[Key]) -> None:
        """It is not to be written after all, unless somebody waits for that."""
        with self._lock:
            self._changed.pop(stored, None)

    def take_waiting(self, stored: Stored[Key]) -> list[Done]:
        """Who waits for a write that has not begun. Whoever comes later waits for the next one."""
        with self._lock:
            return self._waiting.pop(stored, [])

    def failed(self, stored: Stored[Key], error: StorageError) -> None:
        """It could not be written: it is tried again."""
        self._note(stored.key, error)
        self.changed(stored)

    # -- deletions -----------------------------------------------------------------------------------------------------

    def delete(self, keys: Iterable[Key], done: Done) -> None:
        """Remove these rows; the ``state`` of each is None from now on. Then ``done``, as for ``save``."""
        with self._lock:
            deletion = self._doom(keys)
        self._enqueue_deletion(deletion, done)

    def is_being_deleted(self, key: Key) -> bool:
        """A row of this key that is written now, not by the writer, would be deleted as well."""
        deletion = self._doomed.get(key)
        return deletion is not None and deletion.is_queued

    def spare(self, key: Key, *, even_queued: bool) -> None:
        """There is a new state of this key: an older deletion that has failed is not tried again. ``even_queued``: one that is in
        the writer's queue leaves the row alone, too."""
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
            keys = [key for key in deletion.keys if self._doomed.get(key) is deletion]
            if error is None:
                for key in keys:
                    del self._doomed[key]
        if error is not None and deletion.keys:
            self._note(next(iter(deletion.keys)), error)
            self._tick_later()
        done(error)

    # -- the background ------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Hand everything that is left to the writer, which then has to be flushed."""
        self._tick()

    def _tick_later(self) -> None:
        with self._lock:
            if self._ticking:
                return
            self._ticking = True
        self._timer.at(self._clock.monotonic() + INTERVAL_S, self._tick)

    def _tick(self) -> None:
        """On the timer's thread."""
        with self._lock:
            self._ticking = False
            # What is in the queue already is asked for its state only then.
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
    """A deletion that is not in the catalogue yet."""

    __slots__ = ("_remove", "is_queued", "keys")

    def __init__(self, remove: Callable[[Catalogue, Iterable[Key]], None], keys: Iterable[Key]) -> None:
        self._remove = remove
        self.keys = dict.fromkeys(keys)  # without those that were spared
        self.is_queued = True

    def __call__(self, catalogue: Catalogue) -> None:
        if keys := list(self.keys):
            self._remove(catalogue, keys)


class _Write(Generic[Key]):
    """One state on its way into the catalogue. The writer may call it twice: together with others, and then by itself."""

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
            self._state = self._stored.state()  # raises StorageError for one that cannot be stored
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
    """The next tick finds out."""
