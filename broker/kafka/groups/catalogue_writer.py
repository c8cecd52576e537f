"""Makes offsets and generations durable, on a thread of its own, in the order in which they were handed in.

A SQLite transaction costs an fsync, and consumers commit at the rate at which they poll. So whoever commits leaves its rows
here and goes on, and all that came while the last fsync ran becomes one transaction (group commit). Each is told when it is
durable, or that it could not be made so.
"""

from collections.abc import Callable

import attrs

from broker.errors import StorageError
from broker.kafka.groups.offsets import Offsets
from broker.metadata.catalogue import Catalogue, Change
from broker.runtime.threads import QueueEmpty, SimpleQueue

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
    write: Change
    done: Done


@attrs.frozen(eq=False)
class _Turn:
    then: Callable[[], None]


_Item = _Commit | _Change | _Turn


class CatalogueWriter:
    """The body of the writer thread. ``done`` callbacks and turns run on it and must not block."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()

    def commit(self, group_id: str, offsets: Offsets, done: Done) -> None:
        self._queue.put(_Commit(group_id, offsets, done))

    def change(self, write: Change, done: Done) -> None:
        """Anything else. What was handed in before is durable before, what is handed in after is durable after."""
        self._queue.put(_Change(write, done))

    def turn(self, then: Callable[[], None]) -> None:
        """Call ``then`` on this thread when what was handed in before has been written: what would keep the timer's thread,
        or a processor, for too long."""
        self._queue.put(_Turn(then))

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

    def _waiting(self) -> list[_Item | None]:
        waiting: list[_Item | None] = []
        try:
            while len(waiting) < _BATCH_MOST:
                waiting.append(self._queue.get(False))
        except QueueEmpty:
            pass
        return waiting

    def _write(self, batch: list[_Item | None]) -> None:
        """A turn divides the batch: what comes before it is durable before it."""
        part: list[_Commit | _Change] = []
        for one in batch:
            if isinstance(one, _Turn):
                self._write_part(part)
                part = []
                one.then()
            elif one is not None:
                part.append(one)
        self._write_part(part)

    def _write_part(self, batch: list[_Commit | _Change]) -> None:
        todo: list[tuple[Change, list[Done]]] = []
        commits: dict[str, list[_Commit]] = {}
        for one in [*batch, None]:
            if isinstance(one, _Commit):
                commits.setdefault(one.group_id, []).append(one)
                continue
            todo += [_commit_of(group_id, of_group) for group_id, of_group in commits.items()]
            commits = {}
            if one is not None:
                todo.append((one.write, [one.done]))
        failure = (
            self._try(lambda catalogue: catalogue.together([change for change, _ in todo])) if len(todo) > 1 else None
        )
        for change, done in todo:
            if len(todo) == 1 or failure is not None:  # by itself: perhaps only one of them is to blame
                _tell(done, self._try(change))
            else:
                _tell(done, None)

    def _try(self, change: Change) -> StorageError | None:
        try:
            change(self._catalogue)
        except StorageError as error:
            return error
        return None


def _tell(waiting: list[Done], failure: StorageError | None) -> None:
    for done in waiting:
        done(failure)


def _commit_of(group_id: str, commits: list[_Commit]) -> tuple[Change, list[Done]]:
    """What several commits of one group come to."""
    offsets: Offsets = {}
    for commit in commits:  # oldest first: the last one to name a partition wins
        offsets.update(commit.offsets)
    rows = [
        (topic, partition, committed.offset, committed.leader_epoch, committed.metadata, committed.commit_ms)
        for (topic, partition), committed in offsets.items()
    ]
    return lambda catalogue: catalogue.commit_offsets(group_id, rows), [commit.done for commit in commits]
