"""Makes offsets and generations durable, on a thread of its own, in the order in which they were handed in.

A SQLite transaction costs an fsync, and consumers commit at the rate at which they poll. So whoever commits leaves its rows
here and goes on, and all commits of one group that came while the last fsync ran become one transaction (group commit).
Each is told when it is durable, or that it could not be made so.
"""

from collections.abc import Callable

import attrs

from broker.errors import StorageError
from broker.kafka.groups.offsets import Offsets
from broker.runtime.threads import QueueEmpty, SimpleQueue
from broker.storage.catalogue import Catalogue

Done = Callable[[StorageError | None], None]

# Bounds how long the first one of a batch waits for the last one's answer.
_BATCH_MOST = 1000


@attrs.frozen(eq=False)
class _Commit:
    group_id: str
    offsets: Offsets
    done: Done


@attrs.frozen(eq=False)
class _Change:
    write: Callable[[Catalogue], None]
    done: Done


class CatalogueWriter:
    """The body of the writer thread. ``done`` callbacks run on it and must not block."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._queue: SimpleQueue[_Commit | _Change | None] = SimpleQueue()

    def commit(self, group_id: str, offsets: Offsets, done: Done) -> None:
        self._queue.put(_Commit(group_id, offsets, done))

    def change(self, write: Callable[[Catalogue], None], done: Done) -> None:
        """Anything else. What was handed in before is durable before, what is handed in after is durable after."""
        self._queue.put(_Change(write, done))

    def step(self, timeout: float | None) -> bool:
        try:
            first = self._queue.get(timeout != 0, timeout)
        except QueueEmpty:
            return False
        self._write([first, *self._waiting()])
        return first is not None

    def wakeup(self) -> None:
        self._queue.put(None)

    def flush(self) -> None:
        """Write what is left. Only when no thread runs ``step`` any more."""
        while not self._queue.empty():
            self.step(0)

    def _waiting(self) -> list[_Commit | _Change | None]:
        waiting: list[_Commit | _Change | None] = []
        try:
            while len(waiting) < _BATCH_MOST:
                waiting.append(self._queue.get(False))
        except QueueEmpty:
            pass
        return waiting

    def _write(self, batch: list[_Commit | _Change | None]) -> None:
        commits: dict[str, list[_Commit]] = {}
        for one in batch:
            if isinstance(one, _Commit):
                commits.setdefault(one.group_id, []).append(one)
            elif one is not None:
                self._write_commits(commits)
                commits = {}
                self._write_change(one)
        self._write_commits(commits)

    def _write_commits(self, commits: dict[str, list[_Commit]]) -> None:
        for group_id, of_group in commits.items():
            offsets: Offsets = {}
            for commit in of_group:  # oldest first: the last one to name a partition wins
                offsets.update(commit.offsets)
            rows = [
                (topic, partition, committed.offset, committed.leader_epoch, committed.metadata, committed.commit_ms)
                for (topic, partition), committed in offsets.items()
            ]
            failure: StorageError | None = None
            try:
                self._catalogue.commit_offsets(group_id, rows)
            except StorageError as error:
                failure = error
            for commit in of_group:
                commit.done(failure)

    def _write_change(self, change: _Change) -> None:
        failure: StorageError | None = None
        try:
            change.write(self._catalogue)
        except StorageError as error:
            failure = error
        change.done(failure)
