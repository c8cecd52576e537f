"""Keeps the cursors of durable subscriptions in the catalogue.

Whoever has changed a cursor calls ``changed``, and it is written within a second; or ``save``, and is told when it is durable.
The writer's thread (``cursor-writer``) asks the subscription for its state when it writes, so that all acknowledgements that
arrive during one fsync become one row, and those of many subscriptions one transaction. A state that could not be written stays
changed: it is tried again every second, and with the next ``save``.

The states of topics that nobody uses lie here as bytes, as they were loaded or as the topic has left them.

Any thread. The lock guards the tables; it is taken below a subscription's, and nothing is called under it.
"""

import uuid
from collections.abc import Callable, Container, Iterable
from typing import NamedTuple, Protocol

from broker.errors import StorageError
from broker.log import EventLimit, get_logger
from broker.metadata.catalogue import Catalogue, CursorRow
from broker.metadata.writer import CatalogueWriter
from broker.pulsar.subscriptions.cursor import CursorSnapshot
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer

log = get_logger("pulsar")

# Acknowledgements whose clients do not wait for an answer are durable after this time.
_INTERVAL_S = 1.0

Key = tuple[uuid.UUID, int, str]  # topic id, partition, subscription
Done = Callable[[StorageError | None], None]


class Stored(Protocol):
    """A durable subscription as it is stored."""

    @property
    def key(self) -> Key: ...

    def state(self) -> tuple[int, bytes] | None:
        """The version of its cursor and the bytes; None: it has been deleted, or has left."""

    def saved(self, version: int) -> bool:
        """The state of this version is durable. Whether it is the present one."""

    def settle(self, done: Done) -> None:
        """Its state is None: call ``done`` when the last one that it had is durable; at once if it has been deleted."""


class LastState:
    """The last state of a subscription whose topic is not used any more, on its way into the catalogue. Any thread."""

    __slots__ = ("_error", "_lock", "_waiting")

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: list[Done] | None = []  # None: it has been written, or could not be
        self._error: StorageError | None = None

    def wait(self, done: Done) -> None:
        """Call ``done`` when it is durable, or could not be written."""
        with self._lock:
            if self._waiting is not None:
                self._waiting.append(done)
                return
        done(self._error)

    def written(self, error: StorageError | None) -> None:
        with self._lock:
            waiting, self._waiting, self._error = self._waiting, None, error
        for done in waiting or ():
            done(error)


class TakenState(NamedTuple):
    state: bytes
    saved: bool  # the catalogue has it


class CursorStore:
    def __init__(self, catalogue: Catalogue, clock: Clock, timer: Timer, interval_s: float = _INTERVAL_S) -> None:
        self._catalogue = catalogue
        self._clock = clock
        self._timer = timer
        self._interval_s = interval_s
        self.writer = CatalogueWriter(catalogue)  # the body of `cursor-writer`
        self._lock = Lock()
        self._changed: dict[Stored, None] = {}  # to be written at the next tick
        self._waiting: dict[Stored, list[Done]] = {}  # in the writer's queue, and who waits for that
        self._ticking = False
        self._doomed: dict[Key, _Doomed] = {}  # deleted, and still in the catalogue
        self._unused: dict[tuple[uuid.UUID, int], dict[str, _Unused]] = {}
        self._topics: set[uuid.UUID] = set()  # those that have cursors, or may have
        self._failures = EventLimit()

    # -- topics --------------------------------------------------------------------------------------------------------

    def open(self, topic_ids: Container[uuid.UUID]) -> None:
        """Load all cursors. Those of other topics than these are deleted: the broker died between the two deletions."""
        gone = set()
        for row in self._catalogue.load_cursors():
            if row.topic_id in topic_ids:
                self._topics.add(row.topic_id)
                unused = _Unused((row.topic_id, row.partition, row.subscription), row.state, is_saved=True)
                self._unused.setdefault((row.topic_id, row.partition), {})[row.subscription] = unused
            else:
                gone.add(row.topic_id)
        if gone:
            self._catalogue.delete_topic_cursors(gone)

    def topics(self) -> set[uuid.UUID]:
        """The topics that may have cursors."""
        with self._lock:
            return set(self._topics)

    def names(self, topic_id: uuid.UUID, partition: int) -> list[str]:
        """The subscriptions of a topic that is not in use."""
        with self._lock:
            return list(self._unused.get((topic_id, partition), ()))

    def states(self, topic_id: uuid.UUID, partition: int) -> list[bytes]:
        """Those of a topic that is not in use."""
        with self._lock:
            found = list(self._unused.get((topic_id, partition), {}).values())
        return [unused.encoded for unused in found]

    def take(self, topic_id: uuid.UUID, partition: int) -> dict[str, TakenState]:
        """The states of a topic that comes into use, by subscription. Those that are not saved have to be reported as changed."""
        with self._lock:
            self._topics.add(topic_id)
            found = self._unused.pop((topic_id, partition), {})
            for unused in found.values():
                unused.taken = True
                self._changed.pop(unused, None)
        return {name: TakenState(unused.encoded, unused.is_saved) for name, unused in found.items()}

    def leave(self, stored: Stored, state: CursorSnapshot, is_saved: bool, last: LastState) -> None:
        """Its topic is not used any more. Its ``state`` is None from now on; this is the last one, which is written before
        anything that is saved from now on, so before the states of whoever takes it over. ``last`` is told. It is encoded
        when it is written, or asked for: locks may be held here."""
        unused = _Unused(stored.key, state, is_saved)
        topic_id, partition, name = stored.key
        with self._lock:
            self._unused.setdefault((topic_id, partition), {})[name] = unused
            self._changed.pop(stored, None)
            waiting = self._waiting.pop(stored, ())
        for done in waiting:
            last.wait(done)
        if is_saved:
            last.written(None)
        else:
            self._spare(stored.key)
            write = _LastWrite(self, unused, last)
            self.writer.change(write, write.done)

    def topics_deleted(self, topic_ids: Iterable[uuid.UUID]) -> None:
        """Their cursors go as well. The next start does it if this fails."""
        topic_ids = set(topic_ids)
        with self._lock:
            self._topics -= topic_ids
            for key in [key for key in self._unused if key[0] in topic_ids]:
                for unused in self._unused.pop(key).values():
                    unused.taken = True
        self.writer.change(lambda catalogue: catalogue.delete_topic_cursors(topic_ids), _ignore)

    # -- cursors -------------------------------------------------------------------------------------------------------

    def changed(self, stored: Stored) -> None:
        """Write it within a second."""
        with self._lock:
            self._changed[stored] = None
            if self._ticking:
                return
        self._tick_later()

    def _tick_later(self) -> None:
        with self._lock:
            if self._ticking:
                return
            self._ticking = True
        self._timer.at(self._clock.monotonic() + self._interval_s, self._tick)

    def save(self, stored: Stored, done: Done) -> None:
        """Write it now, and call ``done`` on the writer's thread, with no lock held, when what the cursor has at this moment is
        durable, or could not be written."""
        with self._lock:
            self._changed.pop(stored, None)
            waiting = self._waiting.get(stored)
            if waiting is not None:
                waiting.append(done)
                return
            self._waiting[stored] = [done]
        self._enqueue(stored)

    def delete(self, stored: Stored, done: Done) -> None:
        """The subscription is deleted: its ``state`` is None from now on. Then ``done``, as for ``save``. A deletion that has
        failed is tried again every second as well."""
        doomed = _Doomed(stored.key)
        with self._lock:
            self._changed.pop(stored, None)
            self._doomed[stored.key] = doomed
        self._enqueue_deletion(doomed, done)

    def _enqueue_deletion(self, doomed: "_Doomed", done: Done) -> None:
        doomed.queued = True

        def delete(catalogue: Catalogue) -> None:
            if not doomed.spared:
                catalogue.delete_cursors([doomed.key])

        def deleted(error: StorageError | None) -> None:
            with self._lock:
                doomed.queued = False
                if error is None and self._doomed.get(doomed.key) is doomed:
                    del self._doomed[doomed.key]
            if error is not None:
                self._note(doomed.key, error)
                self._tick_later()
            done(error)

        self.writer.change(delete, deleted)

    def flush(self) -> None:
        """Write what is left. Only after the writer's thread has ended."""
        self._tick()
        self.writer.flush()

    def _tick(self) -> None:
        """On the timer's thread."""
        with self._lock:
            self._ticking = False
            due, self._changed = self._changed, {}
            for stored in due.keys() & self._waiting.keys():
                del due[stored]  # it is in the queue already, and is asked for its state only then
            for stored in due:
                self._waiting[stored] = []
            doomed = [one for one in self._doomed.values() if not one.queued]
        for one in doomed:
            self._enqueue_deletion(one, _ignore)
        for stored in due:
            self._enqueue(stored)

    def _enqueue(self, stored: Stored) -> None:
        if stored.key in self._doomed and stored.state() is not None:
            self._spare(stored.key)
        write = _Write(self, stored)
        self.writer.change(write, write.done)

    def _spare(self, key: Key) -> None:
        """There is a new subscription of the same name as one that was to be deleted."""
        with self._lock:
            doomed = self._doomed.pop(key, None)
        if doomed is not None:
            doomed.spared = True

    def _take_waiting(self, stored: Stored) -> list[Done]:
        """The state is about to be asked for: who comes later waits for the next time."""
        with self._lock:
            return self._waiting.pop(stored, [])

    def _failed(self, stored: Stored, error: StorageError) -> None:
        self._note(stored.key, error)
        self.changed(stored)

    def _note(self, key: Key, error: StorageError) -> None:
        left_out = self._failures.take(self._clock.monotonic())
        if left_out is not None:
            log.error("cursor_not_saved", subscription=key[2], error=str(error), unlogged_before=left_out)


class _Doomed:
    """A deletion that is not in the catalogue yet."""

    __slots__ = ("key", "queued", "spared")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.queued = False
        self.spared = False


class _Unused:
    """The state of a subscription whose topic nobody uses."""

    __slots__ = ("_state", "is_saved", "key", "taken")

    def __init__(self, key: Key, state: bytes | CursorSnapshot, is_saved: bool) -> None:
        self.key = key
        self._state = state
        self.is_saved = is_saved
        self.taken = False

    @property
    def encoded(self) -> bytes:
        """Raises StorageError for what cannot be stored."""
        state = self._state
        if isinstance(state, CursorSnapshot):
            self._state = state = state.encode()
        return state

    def state(self) -> tuple[int, bytes] | None:
        return None if self.taken else (0, self.encoded)

    def saved(self, version: int) -> bool:
        self.is_saved = True
        return True

    def settle(self, done: Done) -> None:
        done(None)  # whoever waited was told of the last state


class _LastWrite:
    """A last state on its way into the catalogue."""

    __slots__ = ("_last", "_store", "_unused")

    def __init__(self, store: CursorStore, unused: _Unused, last: LastState) -> None:
        self._store = store
        self._unused = unused
        self._last = last

    def __call__(self, catalogue: Catalogue) -> None:
        topic_id, partition, subscription = self._unused.key
        catalogue.save_cursors([CursorRow(topic_id, partition, subscription, self._unused.encoded)])

    def done(self, error: StorageError | None) -> None:
        if error is None:
            self._unused.is_saved = True
        else:
            self._store._failed(self._unused, error)
        self._last.written(error)


class _Write:
    """One state on its way into the catalogue. The writer may call it twice: together with others, and then by itself."""

    __slots__ = ("_asked", "_state", "_store", "_stored", "_waiting")

    def __init__(self, store: CursorStore, stored: Stored) -> None:
        self._store = store
        self._stored = stored
        self._waiting: list[Done] | None = None
        self._asked = False
        self._state: tuple[int, bytes] | None = None

    def __call__(self, catalogue: Catalogue) -> None:
        if self._waiting is None:
            self._waiting = self._store._take_waiting(self._stored)
        if not self._asked:
            self._state = self._stored.state()  # raises StorageError for one that cannot be stored
            self._asked = True
        if self._state is not None:
            topic_id, partition, subscription = self._stored.key
            catalogue.save_cursors([CursorRow(topic_id, partition, subscription, self._state[1])])

    def done(self, error: StorageError | None) -> None:
        if error is not None:
            self._store._failed(self._stored, error)
        elif self._state is not None and not self._stored.saved(self._state[0]):
            self._store.changed(self._stored)
        for done in self._waiting or ():
            if error is None and self._state is None:
                self._stored.settle(done)
            else:
                done(error)


def _ignore(_: StorageError | None) -> None:
    """The next start finds out."""
