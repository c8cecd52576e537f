"""The simulated disk itself: files and directories, each with its content in the page cache and on the platter.

``Medium`` outlives the broker; ``disk.py`` is one life's view of it. Between a file's two contents stand its unsynced writes, in
order; between a directory's, its unsynced changes. kill -9 loses nothing. A power loss keeps, of each file's unsynced writes,
any subset, the last of them torn, and of each directory's unsynced changes, some first ones: files and directories are
independent of each other.
"""

from collections.abc import Callable, Iterator
from random import Random

import attrs

from tests.sim.world import Process, World

_SECTOR = 512


@attrs.define
class DiskFaults:
    """Probabilities per operation."""

    write_error: float = 0.0
    read_error: float = 0.0
    sync_error: float = 0.0
    open_error: float = 0.0  # of open, listdir, rename, remove, makedirs, sync_dir
    full: bool = False  # every write that makes a file longer fails
    slow: float = 0.0
    slow_most_s: float = 0.0
    cold: float = 0.0  # a range is not in the page cache


@attrs.define
class Change:
    """One change of a file that is not on the platter yet: bytes at an offset, or (None) a new size."""

    offset: int
    data: bytes | None


class Inode:
    """A file."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.content = bytearray()
        self.durable = bytearray()
        self.unsynced: list[Change] = []
        self.synced = 0  # changes that are not in `unsynced` any more
        self.locked_by: Process | None = None

    def change(self, change: Change) -> None:
        _apply(self.content, change)
        self.unsynced.append(change)

    @property
    def position(self) -> int:
        """Changes so far."""
        return self.synced + len(self.unsynced)

    def sync(self, position: int, *, lost: bool = False) -> None:
        """The changes up to ``position`` are on the platter now (or, ``lost``, count as if they were)."""
        count = max(0, position - self.synced)
        if not lost:
            for change in self.unsynced[:count]:
                _apply(self.durable, change)
        del self.unsynced[:count]
        self.synced += count

    def lose_power(self, rng: Random) -> None:
        unsynced, self.unsynced = self.unsynced, []
        self.synced += len(unsynced)
        fate = rng.random()
        if fate < 0.25:  # nothing of it
            unsynced = []
        elif fate < 0.4:  # all of it
            pass
        else:
            unsynced = list(_survivors(unsynced, rng))
        for change in unsynced:
            _apply(self.durable, change)
        self.content = bytearray(self.durable)
        self.locked_by = None


def _apply(content: bytearray, change: Change) -> None:
    if change.data is None:
        if change.offset <= len(content):
            del content[change.offset :]
        else:
            content += bytes(change.offset - len(content))
        return
    if change.offset > len(content):
        content += bytes(change.offset - len(content))
    content[change.offset : change.offset + len(change.data)] = change.data


def _survivors(unsynced: list[Change], rng: Random) -> Iterator[Change]:
    """Some of the changes up to one of them, or, as pages reach the platter in any order, some sectors of all of them."""
    keep_each = rng.choice((0.3, 0.7, 0.95))
    if rng.random() < 0.3:
        yield from _sectors(unsynced, rng, keep_each)
        return
    last = rng.randrange(len(unsynced) + 1)
    for index, change in enumerate(unsynced):
        if index == last:  # the interrupted write
            if change.data is not None:
                size = rng.randrange(len(change.data) + 1)
                if rng.random() < 0.5:
                    size -= size % _SECTOR
                if size:
                    yield Change(change.offset, change.data[:size])
            return
        if rng.random() < keep_each:
            yield change
        elif change.data is None:
            return  # sizes are journalled in order: without this size there are no later ones


def _sectors(unsynced: list[Change], rng: Random, keep_each: float) -> Iterator[Change]:
    """What is kept of a sector has all changes of it, as the page cache had; a lost sector has none."""
    kept: dict[int, bool] = {}
    for change in unsynced:
        if change.data is None:
            yield change
            continue
        end = change.offset + len(change.data)
        for sector in range(change.offset // _SECTOR, -(-end // _SECTOR)):
            if sector not in kept:
                kept[sector] = rng.random() < keep_each
            if kept[sector]:
                start = max(change.offset, sector * _SECTOR)
                yield Change(start, change.data[start - change.offset : (sector + 1) * _SECTOR - change.offset])


class Directory:
    """Entries are files and directories by name; ``unsynced`` are the changes since the last ``sync_dir``."""

    def __init__(self) -> None:
        self.entries: dict[str, Inode | Directory] = {}
        self.durable: dict[str, Inode | Directory] = {}
        self.unsynced: list[
            tuple[str, Inode | Directory | None, str | None]
        ] = []  # name, what (None: gone), moved from
        self.synced = 0

    def put(self, name: str, what: "Inode | Directory | None", moved_from: str | None = None) -> None:
        self.unsynced.append((name, what, moved_from))
        _enter(self.entries, self.unsynced[-1])

    @property
    def position(self) -> int:
        return self.synced + len(self.unsynced)

    def sync(self, position: int) -> None:
        count = max(0, position - self.synced)
        for change in self.unsynced[:count]:
            _enter(self.durable, change)
        del self.unsynced[:count]
        self.synced += count

    def lose_power(self, rng: Random) -> None:
        fate = rng.random()
        count = 0 if fate < 0.3 else len(self.unsynced) if fate < 0.5 else rng.randrange(len(self.unsynced) + 1)
        self.sync(self.synced + count)
        self.synced += len(self.unsynced)
        self.unsynced = []
        self.entries = dict(self.durable)


def _enter(entries: "dict[str, Inode | Directory]", change: "tuple[str, Inode | Directory | None, str | None]") -> None:
    name, what, moved_from = change
    if moved_from is not None:  # a rename within one directory is one change
        entries.pop(moved_from, None)
    if what is None:
        entries.pop(name, None)
    else:
        entries[name] = what


class Medium:
    """The disk. Paths are absolute."""

    def __init__(self, world: World, capacity: int = 1 << 30) -> None:
        self.world = world
        self.rng = world.rng("disk")
        self.faults = DiskFaults()
        self.capacity = capacity
        self.root = Directory()
        self.flipped: list[str] = []  # paths of files with a flipped bit
        self._numbers = 0

    def new_inode(self) -> Inode:
        self._numbers += 1
        return Inode(self._numbers)

    def walk(self) -> Iterator[tuple[str, Inode]]:
        """Every file, by path."""
        yield from _walk("", self.root)

    def would_survive(self, directory: str, data: bytes) -> bool:
        """Were the power lost now: would these bytes be in some file of that directory?"""
        entry: Inode | Directory | None = self.root
        for part in directory.strip("/").split("/"):
            entry = entry.durable.get(part) if isinstance(entry, Directory) else None
        if not isinstance(entry, Directory):
            return False
        return any(data in what.durable for what in entry.durable.values() if isinstance(what, Inode))

    def unsynced(self, suffix: str | tuple[str, ...]) -> bool:
        """Is there anything in such a file that a power loss may take?"""
        return any(inode.unsynced for path, inode in self.walk() if path.endswith(suffix))

    def used(self) -> int:
        return sum(len(inode.content) for _, inode in self.walk())

    def process_died(self, process: Process, *, power: bool) -> None:
        process.files.clear()
        if power:
            self.lose_power()

    def lose_power(self) -> None:
        self._lose_power(self.root, set())

    def _lose_power(self, directory: Directory, seen: set[int]) -> None:
        # Files that only an unsynced removal has made unreachable come back: look at both states.
        before = [*directory.durable.values(), *(what for _, what, _ in directory.unsynced if what is not None)]
        for what in before:
            if isinstance(what, Directory):
                if id(what) not in seen:
                    seen.add(id(what))
                    self._lose_power(what, seen)
            elif what.number not in seen:
                seen.add(what.number)
                what.lose_power(self.rng)
        directory.lose_power(self.rng)

    def flip_bit(self, rng: Random, wanted: Callable[[str], bool]) -> str | None:
        """Flip a durable bit in a file with a wanted path. Returns the path."""
        files = [(path, inode) for path, inode in self.walk() if wanted(path) and len(inode.durable)]
        if not files:
            return None
        path, inode = rng.choice(files)
        position = rng.randrange(len(inode.durable))
        bit = 1 << rng.randrange(8)
        inode.durable[position] ^= bit
        if position < len(inode.content):
            inode.content[position] ^= bit
        self.flipped.append(path)
        self.world.note(f"  bit {bit} flipped in {path} at {position}")
        return path


def _walk(path: str, directory: Directory) -> Iterator[tuple[str, Inode]]:
    for name, what in sorted(directory.entries.items()):
        if isinstance(what, Directory):
            yield from _walk(f"{path}/{name}", what)
        else:
            yield f"{path}/{name}", what
