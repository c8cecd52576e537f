"""What is known of every file under the data directory: what of it is in the journal, and what is not yet.

``FileTable`` is told of every change that the broker makes to a file or a name, and says what the next flush has to ship.
Its caller holds a lock; nothing here waits or touches a disk.

A file is in the journal up to ``FileState.size``. ``dirty`` is the one range that covers everything written since; ``cut`` is the
smallest size to which it was truncated since. Name changes are shipped all together and in their order, before the bytes, so a
flush never refers to a name that the journal does not know.

``first_row`` is the oldest row that the file needs. Rows below the smallest ``first_row`` of all files say nothing that still
holds, so they can be removed. A file is *carried over* by shipping it once more as a whole: then it needs no older row.

Tests: tests/storage/journal/test_file_table.py.
"""

from collections.abc import Iterable, Iterator

import attrs

from broker.storage.journal.operations import Create, Operation, Remove, Rename, Truncate, Write


@attrs.define(eq=False)
class FileState:
    """One file. ``path`` is None once it has no name any more: it is not shipped then."""

    path: str | None
    size: int = 0
    dirty: tuple[int, int] | None = None
    cut: int | None = None
    first_row: int = 0
    # It is being carried over: the row that has its beginning, 0 until then. None: it is not.
    carried: int | None = None
    # How many flushes that are under way read it: its descriptor must not be closed.
    reading: int = 0

    def wrote(self, start: int, end: int) -> None:
        if start < end:
            dirty = self.dirty
            known = self.size if self.cut is None else min(self.size, self.cut)
            start = min(start, known if dirty is None else max(known, dirty[1]))  # a hole before it is zeros
            self.dirty = (start, end) if dirty is None else (min(start, dirty[0]), max(end, dirty[1]))

    def truncated(self, before: int, size: int) -> None:
        """The file was ``before`` bytes long."""
        if size > before:
            self.wrote(before, size)
            return
        self.cut = size if self.cut is None else min(self.cut, size)
        if self.dirty is not None:
            start, end = self.dirty[0], min(self.dirty[1], size)
            self.dirty = (start, end) if start < end else None

    def is_shipped(self, upto: int) -> bool:
        """Whether nothing before ``upto`` waits for a flush (which may be under way)."""
        return self.cut is None and (self.dirty is None or self.dirty[0] >= upto)

    def take(self, number: int, most: int) -> tuple[list[Operation], int, int]:
        """What row ``number`` does to the file, with at most ``most`` bytes: the operations, and the range to be written."""
        operations: list[Operation] = []
        if self.path is None:
            self.dirty = self.cut = None
            return operations, 0, 0
        if self.cut is not None:
            if self.cut < self.size:
                operations.append(Truncate(self.path, self.cut))
                self.size = self.cut
            self.cut = None
        start = end = 0
        if self.dirty is not None:
            start, end = self.dirty[0], min(self.dirty[1], self.dirty[0] + most)
            self.dirty = (end, self.dirty[1]) if end < self.dirty[1] else None
            self.size = max(self.size, end)
            self.needs(number)
        return operations, start, end

    def needs(self, number: int) -> None:
        """Row ``number`` has something of it. A file that is carried over needs its older rows until nothing is left to ship."""
        self.first_row = self.first_row or number
        if self.carried is not None:
            self.carried = self.carried or number
            if self.dirty is None:
                self.first_row, self.carried = self.carried, None


class FileTable:
    def __init__(self) -> None:
        self._by_directory: dict[str, dict[str, FileState]] = {}
        # Name changes that no flush has taken.
        self.names: list[Operation] = []
        # The oldest row of files whose names are gone, as long as the journal does not know that.
        self.dropped: int | None = None

    def get(self, path: str) -> FileState | None:
        directory, _, name = path.rpartition("/")
        return self._by_directory.get(directory, {}).get(name)

    def __iter__(self) -> Iterator[FileState]:
        for files in self._by_directory.values():
            yield from files.values()

    # -- what the broker does ------------------------------------------------------------------------------------------

    def created(self, path: str) -> FileState:
        """A file that is known already stays what it is."""
        state = self.get(path)
        if state is None:
            state = self._put(FileState(path))
            self.names.append(Create(path))
        return state

    def removed(self, path: str) -> None:
        if self._drop(path) is not None:
            self.names.append(Remove(path))

    def renamed(self, old: str, new: str) -> None:
        """A file, or a directory with the files in it."""
        state = self.get(old)
        if state is not None:
            self._drop(new)
            self._take_out(old)
            state.path = new
            self._put(state)
            self.names.append(Rename(old, new))
            return
        files = self._by_directory.pop(old, None)
        if files:
            for name, each in files.items():
                each.path = f"{new}/{name}"
            self._by_directory.setdefault(new, {}).update(files)
            self.names.append(Rename(old, new))
        else:
            self.removed(new)  # what has no row replaces what has one

    def _put(self, state: FileState) -> FileState:
        assert state.path is not None
        directory, _, name = state.path.rpartition("/")
        self._by_directory.setdefault(directory, {})[name] = state
        return state

    def _drop(self, path: str) -> FileState | None:
        state = self._take_out(path)
        if state is not None:
            state.path = None
            if state.first_row:
                self.dropped = min(self.dropped or state.first_row, state.first_row)
        return state

    def _take_out(self, path: str) -> FileState | None:
        directory, _, name = path.rpartition("/")
        files = self._by_directory.get(directory)
        state = None if files is None else files.pop(name, None)
        if not files:
            self._by_directory.pop(directory, None)
        return state

    # -- for flushes ---------------------------------------------------------------------------------------------------

    def take_names(self, number: int) -> list[Operation]:
        """The name changes that row ``number`` has to ship."""
        names, self.names = self.names, []
        self.dropped = None
        for operation in names:
            if isinstance(operation, Create):
                self._needs(operation.path, number)
            elif isinstance(operation, Rename):
                self._needs(operation.new, number)
        return names

    def _needs(self, path: str, number: int) -> None:
        state = self.get(path)
        if state is not None:
            state.needs(number)
        for each in self._by_directory.get(path, {}).values():
            each.first_row = each.first_row or number

    def carry(self, state: FileState) -> None:
        """Ship it as a whole once more, with the next flush that takes it."""
        assert state.path is not None
        state.carried = 0
        if state.size:
            state.wrote(0, state.size)
        else:
            self.names.append(Create(state.path))

    # -- at the start --------------------------------------------------------------------------------------------------

    def replay(self, number: int, operation: Operation) -> None:
        """Note what a row did, which is on the local disk now."""
        match operation:
            case Create(path):
                self.created(path)
            case Write(path, position, size):
                state = self.created(path)
                state.size = max(state.size, position + size)
            case Truncate(path, size):
                found = self.get(path)
                if found is not None:
                    found.size = min(found.size, size)
            case Rename(old, new):
                self.renamed(old, new)
            case Remove(path):
                self.removed(path)
        if isinstance(operation, (Create, Write)):
            self._needs(operation.path, number)
        self.names, self.dropped = [], None


def oldest_row(states: Iterable[FileState], dropped: int | None, last: int) -> int:
    """The oldest row that any of these files needs, or one whose name is gone (``FileTable.dropped``); ``last`` + 1 if none needs
    any."""
    oldest = min((row for state in states if (row := state.first_row)), default=last + 1)
    return min(oldest, dropped or oldest)
