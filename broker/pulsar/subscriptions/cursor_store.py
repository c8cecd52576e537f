"""The cursors of durable subscriptions in the catalogue. ``rows`` writes them (``broker/metadata/state_store.py``), on the thread
``cursor-writer``.

For topics that are not in use, this keeps the states of their subscriptions, as loaded or as left by the topic.

Any thread. The lock guards the tables of topics; it is taken below a subscription's, and nothing is called under it.
"""

import uuid
from collections.abc import Callable, Container, Iterable
from typing import NamedTuple

from broker.errors import StorageError
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue, CursorRow
from broker.metadata.state_store import StateStore, Stored
from broker.metadata.writer import CatalogueWriter, Done
from broker.pulsar.subscriptions.cursor import CursorSnapshot
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer

log = get_logger("pulsar")

Key = tuple[uuid.UUID, int, str]  # topic id, partition, subscription


class LastState:
    """The last state of a subscription of an unloaded topic, on its way into the catalogue. Any thread."""

    __slots__ = ("_error", "_lock", "_waiting")

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: list[Done] | None = []  # None: it has been written, or could not be
        self._error: StorageError | None = None

    def wait(self, done: Done) -> None:
        """Call ``done`` when the state is durable or could not be written."""
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
    def __init__(self, catalogue: Catalogue, clock: Clock, timer: Timer) -> None:
        self._catalogue = catalogue
        self.writer = CatalogueWriter(catalogue)  # the body of `cursor-writer`
        self.rows: StateStore[Key] = StateStore(self.writer, clock, timer, _write, _delete, _report)
        self._lock = Lock()
        self._unused: dict[tuple[uuid.UUID, int], dict[str, _Unused]] = {}
        self._topics: set[uuid.UUID] = set()  # topics that may have cursors

    def open(
        self,
        topic_ids: Container[uuid.UUID],
        is_here: Callable[[uuid.UUID, int], bool] = lambda topic_id, partition: True,
    ) -> None:
        """Load all cursors, but not those of partitions that another node has. Cursors of topics that no longer exist are
        deleted: the broker died between the deletions."""
        gone = set()
        for row in self._catalogue.load_cursors():
            if row.topic_id in topic_ids:
                if not is_here(row.topic_id, row.partition):
                    continue
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
        """The names of the subscriptions of a topic that is not in use."""
        with self._lock:
            return list(self._unused.get((topic_id, partition), ()))

    def states(self, topic_id: uuid.UUID, partition: int) -> list[bytes]:
        """The encoded cursors of a topic that is not in use."""
        with self._lock:
            entries = list(self._unused.get((topic_id, partition), {}).values())
        return [unused.encoded for unused in entries]

    def take(self, topic_id: uuid.UUID, partition: int) -> dict[str, TakenState]:
        """Remove and return the states of a topic that comes into use, by subscription. The caller reports unsaved states as
        changed."""
        with self._lock:
            self._topics.add(topic_id)
            entries = self._unused.pop((topic_id, partition), {})
            for unused in entries.values():
                unused.taken = True
        for unused in entries.values():
            self.rows.unchanged(unused)
        return {name: TakenState(unused.encoded, unused.is_saved) for name, unused in entries.items()}

    def leave(self, stored: Stored[Key], state: CursorSnapshot, is_saved: bool, last: LastState) -> None:
        """The topic is unloaded: ``stored.state()`` is None from now on, and ``state`` is the last state. It is written before
        everything saved later, so before the states of a subscription that is loaded again, and then ``last`` is told. It is
        encoded when it is written or asked for, because locks may be held here."""
        unused = _Unused(stored.key, state, is_saved)
        topic_id, partition, name = stored.key
        with self._lock:
            self._unused.setdefault((topic_id, partition), {})[name] = unused
        self.rows.unchanged(stored)
        for done in self.rows.take_waiting(stored):
            last.wait(done)
        if is_saved:
            last.written(None)
        else:
            self.rows.spare(stored.key, even_queued=True)
            write = _LastWrite(self.rows, unused, last)
            self.writer.change(write, write.done)

    def topics_deleted(self, topic_ids: Iterable[uuid.UUID]) -> None:
        """Delete the cursors of these topics. If that fails, the next start does it."""
        topic_ids = set(topic_ids)
        with self._lock:
            self._topics -= topic_ids
            for key in [key for key in self._unused if key[0] in topic_ids]:
                for unused in self._unused.pop(key).values():
                    unused.taken = True
        self.writer.change(lambda catalogue: catalogue.delete_topic_cursors(topic_ids), _ignore)

    def delete(self, stored: Stored[Key], done: Done) -> None:
        """The subscription is deleted: ``stored.state()`` is None from now on. ``done`` is called on the writer's thread, with no
        lock held, when the deletion is durable or could not be stored; then it is tried again every second."""
        self.rows.unchanged(stored)
        self.rows.delete([stored.key], done)

    def flush(self) -> None:
        """Write all remaining changes. Only after the writer's thread has ended."""
        self.rows.flush()
        self.writer.flush()


def _write(catalogue: Catalogue, key: Key, state: bytes) -> None:
    catalogue.save_cursors([CursorRow(*key, state)])


def _delete(catalogue: Catalogue, keys: Iterable[Key]) -> None:
    catalogue.delete_cursors(keys)


def _report(key: Key, error: StorageError, unlogged_before: int) -> None:
    log.error("cursor_not_saved", subscription=key[2], error=str(error), unlogged_before=unlogged_before)


class _Unused:
    """The state of a subscription of a topic that is not in use."""

    __slots__ = ("_state", "is_saved", "key", "taken")

    def __init__(self, key: Key, state: bytes | CursorSnapshot, is_saved: bool) -> None:
        self.key = key
        self._state = state
        self.is_saved = is_saved
        self.taken = False

    @property
    def encoded(self) -> bytes:
        """Raises StorageError if the state cannot be encoded."""
        state = self._state
        if isinstance(state, CursorSnapshot):
            self._state = state = state.encode()
        return state

    def state(self) -> tuple[int, bytes] | None:
        return None if self.taken else (0, self.encoded)

    def saved(self, version: int, state: bytes) -> bool:
        self.is_saved = True
        return True

    def settle(self, done: Done) -> None:
        done(None)  # callers that wait for a save wait for ``LastState``


class _LastWrite:
    """Writes a last state, even if the topic is in use again, because ``last`` waits for it."""

    __slots__ = ("_last", "_rows", "_unused")

    def __init__(self, rows: StateStore[Key], unused: _Unused, last: LastState) -> None:
        self._rows = rows
        self._unused = unused
        self._last = last

    def __call__(self, catalogue: Catalogue) -> None:
        _write(catalogue, self._unused.key, self._unused.encoded)

    def done(self, error: StorageError | None) -> None:
        if error is None:
            self._unused.is_saved = True
        else:
            self._rows.failed(self._unused, error)
        self._last.written(error)


def _ignore(_: StorageError | None) -> None:
    """If deleting failed, the next start does it."""
