"""Writes changes to the catalogue in batches, on a thread of its own, in the order of their arrival.

A change of the catalogue costs an fsync, and consumers commit offsets at the rate at which they poll. So callers put their
changes into a queue and go on. Everything that arrives while the last fsync runs becomes one transaction (group commit). The
writer then tells each caller that its change is durable, or that it could not be made.
"""

from collections.abc import Callable, Sequence

import attrs

from broker.errors import StorageError
from broker.metadata.catalogue import Catalogue, Change, OffsetRow
from broker.runtime.worker import Inbox

# Called with None when the change is durable, or with the reason why it could not be made.
Done = Callable[[StorageError | None], None]

# Bounds how long the first change of a batch waits for the others.
_BATCH_MAX = 1000


@attrs.frozen(eq=False)
class _Commit:
    group_id: str
    offsets: Sequence[OffsetRow]
    done: Done


@attrs.frozen(eq=False)
class _Change:
    write: Change
    done: Done


@attrs.frozen(eq=False)
class _Call:
    function: Callable[[], None]


_Item = _Commit | _Change | _Call


class CatalogueWriter:
    """The body of the ``catalogue-writer`` thread, which calls ``done`` and ``function``. These must not block.

    Any thread may call ``commit``, ``change`` and ``call_soon``.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._inbox: Inbox[_Item] = Inbox()

    @property
    def waiting(self) -> int:
        """Number of changes that are still in the queue. For any thread."""
        return len(self._inbox)

    def commit(self, group_id: str, offsets: Sequence[OffsetRow], done: Done) -> None:
        """Commit offsets of a group. Queued commits of the same group are written together."""
        self._inbox.put(_Commit(group_id, offsets, done))

    def change(self, write: Change, done: Done) -> None:
        """Make any other change. It is durable after everything handed in before it and before everything after it."""
        self._inbox.put(_Change(write, done))

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call ``function`` on this thread once everything handed in before has been written.

        For work that would occupy the timer's thread or a processor for too long.
        """
        self._inbox.put(_Call(function))

    def step(self, timeout: float | None) -> bool:
        batch = self._inbox.take_all(timeout, _BATCH_MAX)
        self._write(batch)
        return bool(batch)

    def wakeup(self) -> None:
        self._inbox.wakeup()

    def flush(self) -> None:
        """Write everything in the queue. Only after the thread has ended."""
        while self._inbox:
            self.step(0)

    def _write(self, batch: list[_Item]) -> None:
        """Write a batch. A call divides it: changes handed in before the call are durable before it."""
        part: list[_Commit | _Change] = []
        for item in batch:
            if isinstance(item, _Call):
                self._write_part(part)
                part = []
                item.function()
            else:
                part.append(item)
        self._write_part(part)

    def _write_part(self, items: list[_Commit | _Change]) -> None:
        """Write these in one transaction; if that fails, write each alone, since perhaps only one change is to blame."""
        changes = _merge_commits(items)
        failure = None
        if len(changes) > 1:
            failure = self._try(lambda catalogue: catalogue.together([change for change, _ in changes]))
        for change, waiting in changes:
            outcome = self._try(change) if len(changes) == 1 or failure is not None else None
            for done in waiting:
                done(outcome)

    def _try(self, change: Change) -> StorageError | None:
        try:
            change(self._catalogue)
        except StorageError as error:
            return error
        return None


def _merge_commits(items: list[_Commit | _Change]) -> list[tuple[Change, list[Done]]]:
    """The changes to make, each with the callbacks that wait for it.

    Consecutive commits of a group are merged. They are not moved past another change, which may delete the same offsets.
    """
    changes: list[tuple[Change, list[Done]]] = []
    commits: dict[str, list[_Commit]] = {}
    for item in [*items, None]:
        if isinstance(item, _Commit):
            commits.setdefault(item.group_id, []).append(item)
            continue
        changes += [_merged(group_id, of_group) for group_id, of_group in commits.items()]
        commits = {}
        if item is not None:
            changes.append((item.write, [item.done]))
    return changes


def _merged(group_id: str, commits: list[_Commit]) -> tuple[Change, list[Done]]:
    """Merge commits of a group, oldest first: the last commit of a partition counts."""
    waiting = [commit.done for commit in commits]
    if len(commits) == 1:
        rows = commits[0].offsets
    else:
        rows = list({row[:2]: row for commit in commits for row in commit.offsets}.values())
    return lambda catalogue: catalogue.commit_offsets(group_id, rows), waiting
