"""The spiller: a thread that moves buffers from memory to files, one sequential file a partition, and finishes partitions.

Owns the files. Payloads are written as they are, in pieces of some MB; within a piece those of one subpartition lie together,
because they are read together. A finished BLOCKING partition has an index beside its data (see ``spill_index``), written last
and made durable, so that it survives a restart; files without an index are what a broker that died has left, and are removed
at the start.

A pipelined partition's readers let go of what they have been sent, some sooner than others. When more of its file is unwanted
than wanted, what is wanted is copied to a new file and the old one is let go of. It is not written over nor punched: what
``sendfile`` has sent of it may still lie in a receiver's queue as the file's own pages.

When the disk does not take anything, the data stays in memory (so that writers wait) and it is tried again every second.
"""

import re
from array import array
from collections import deque
from collections.abc import Callable, Iterator

import attrs

from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.runtime.disk import Disk, File
from broker.runtime.open_files import CachedFile, OpenFiles
from broker.runtime.threads import Event, Lock
from broker.shuffle.partition.budget import IN_FILE_BYTES, IN_MEMORY_BYTES, PARTITION_BYTES, PLACE_BYTES, Budget
from broker.shuffle.partition.result_partition import FINISHED, OPEN, ResultPartition
from broker.shuffle.partition.spill_file import NamelessFile
from broker.shuffle.partition.subpartition import Subpartition
from broker.shuffle.spill.released_files import ReleasedFiles
from broker.shuffle.spill.spill_index import SpillIndex
from protocol.shuffle.writer_frames import PartitionType

log = get_logger("shuffle")

# One write: long enough to be cheap, short enough to let go of memory soon.
_PIECE_BYTES = 4 * 1024 * 1024
# Small payloads are put together before they are written: a system call costs as much as copying some KiB.
_JOIN_BYTES = 128 * 1024
# How long to wait (s) before a disk that took nothing is tried again.
_RETRY_S = 1.0
# Files of blocking partitions that are open at a time; others are opened when they are read.
OPEN_FILES = 256

_DATA = ".data"
_INDEX = ".index"
# The files that are made here: a partition's id and a number.
_OWN = re.compile(r"[0-9a-f]+-[0-9]+\.(?:data|index|index\.tmp)")

Done = Callable[[OSError | None], None]
# Of one subpartition: the sequence number of the first buffer, and payloads from there on.
_Run = tuple[Subpartition, int, list[bytes]]


@attrs.define(eq=False)
class _Finishing:
    """A partition on its way to be durable."""

    partition: ResultPartition
    done: Done
    error: OSError | None = None
    gone: bool = False  # released or failed meanwhile
    data: CachedFile | None = None
    index: SpillIndex | None = None
    index_path: str = ""
    index_file: File | None = None


class Spiller:
    """The body of the spiller thread."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        budget: Budget,
        clock: Clock,
        released_bytes: int = 0,
        open_files: int = OPEN_FILES,
    ) -> None:
        """``released_bytes``: of the files of released partitions, how much may wait for others to grow."""
        self._disk = disk
        self._directory = directory
        self._budget = budget
        self._clock = clock
        self._files = OpenFiles(disk, open_files)
        self.released = ReleasedFiles(released_bytes, clock, self._remove_file)
        self._lock = Lock()
        self._partitions: dict[bytes, ResultPartition] = {}
        self._finishing: list[_Finishing] = []
        self._removed: list[ResultPartition] = []
        self._untidy: deque[ResultPartition] = deque()
        self._wanted = Event()
        self._room = False
        self._pressed = False
        self._next_stem = 0
        self._directory_durable = False  # its name, where the data directory keeps it
        # Writers that were held back may go on; called on the spiller's thread.
        self.on_room: Callable[[], None] = lambda: None
        budget.on_room = self._room_came
        self.broken: OSError | None = None  # the disk takes nothing

    # -- from other threads -------------------------------------------------------------------------------------------

    def add(self, partition: ResultPartition) -> None:
        partition.on_garbage = self._tidy_later
        with self._lock:
            self._partitions[partition.id] = partition

    def _tidy_later(self, partition: ResultPartition) -> None:
        """With the partition's lock held."""
        self._untidy.append(partition)
        self._wanted.set()

    def _room_came(self) -> None:
        self._room = True
        self._wanted.set()

    def press(self) -> None:
        """Memory has become scarce, or a partition's time to be written has come."""
        self._pressed = True
        if self.broken is None and not self._wanted.is_set():
            self._wanted.set()

    def finish(self, partition: ResultPartition, done: Done) -> None:
        """Write what is left of it and its index, durably."""
        with self._lock:
            self._finishing.append(_Finishing(partition, done))
        self._wanted.set()

    def remove(self, partition: ResultPartition) -> None:
        """The partition was released: its files go."""
        with self._lock:
            if self._partitions.get(partition.id) is partition:
                del self._partitions[partition.id]
            self._removed.append(partition)
        self._wanted.set()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def step(self, timeout: float | None) -> bool:
        if timeout != 0:
            waits = (timeout, None if self.broken is None else _RETRY_S, self.released.wait_s())
            self._wanted.wait(min((wait for wait in waits if wait is not None), default=None))
        self._wanted.clear()
        worked = False
        with self._lock:
            finishing, self._finishing = self._finishing, []
            removed, self._removed = self._removed, []
        if finishing:
            worked = True
            self._store(finishing)
        for partition in removed:
            worked = True
            self._remove_files(partition)
        while self._untidy:
            worked = True
            self._tidy(self._untidy.popleft())
        # Not at each step: it means to look at all partitions.
        pressed, self._pressed = self._pressed, False
        if pressed or self._budget.memory_scarce:
            worked |= self._make_room()
        else:
            self.broken = None
        # They are on the disk still, and take nobody's place there.
        worked |= self.released.trim(self._budget.disk_left)
        if self._room:
            self._room = False
            self.on_room()
        return worked

    def wakeup(self) -> None:
        self._wanted.set()

    def close(self) -> None:
        """When the thread has ended."""
        self.released.trim(0)
        self._files.close_all()

    def _next(self) -> ResultPartition | None:
        """What to spill now: the partition with the most memory, until half of that is free; else one whose time has come."""
        if self._budget.disk_full:
            return None
        with self._lock:
            candidates = list(self._partitions.values())
        if self._budget.memory_scarce:
            largest = max(candidates, key=lambda partition: partition.memory, default=None)
            return None if largest is None or largest.memory == 0 else largest
        return next((partition for partition in candidates if partition.spill_early), None)

    def _make_room(self) -> bool:
        """Spill as long as there is something to spill now."""
        spilled = False
        while (partition := self._next()) is not None:
            try:
                if not self._spill(partition):
                    break
            except OSError as error:
                if self.broken is None:
                    log.error("spill_failed", error=str(error))
                self.broken = error
                break
            self.broken = None
            spilled = True
        else:
            self.broken = None
        return spilled

    def _spill(self, partition: ResultPartition) -> int:
        """Move one piece of a partition's memory to its file; returns how many buffers. 0: there is nothing to move."""
        try:
            return self._move_piece(partition)
        except OSError:  # perhaps the disk is full
            if not self.released.trim(0):
                raise
        return self._move_piece(partition)

    def _move_piece(self, partition: ResultPartition) -> int:
        with partition.lock:
            if partition.state not in (OPEN, FINISHED):
                return 0
            batch, count, size = _oldest(partition)
            file, offset = partition.file, partition.file_end
        if not count:
            return 0
        self.released.make_way(size)
        if file is None:
            file = self._create(partition)
        system_file = file.get()
        system_file.pwrite(_joined([payload for _, _, payloads in batch for payload in payloads]), offset)
        if not partition.pipelined:
            system_file.begin_sync(offset, size)
        moved = kept = 0
        with partition.lock:
            if partition.state not in (OPEN, FINISHED):
                return count
            partition.file = file
            partition.file_end = offset + size
            for part, start, payloads in batch:
                wanted, wanted_bytes = part.spilled(start, payloads, offset)  # others were sent meanwhile
                kept += wanted
                moved += wanted_bytes
                offset += sum(map(len, payloads))
            partition.in_memory -= kept
            partition.in_file += kept
            partition.memory -= moved
            partition.disk += moved
            partition.wanted += moved
            partition.untidy = False
            if not partition.in_file:
                partition.file, partition.file_end = None, 0
            # Before somebody gives back what was moved.
            self._budget.spilled(moved, kept * (IN_MEMORY_BYTES - IN_FILE_BYTES), partition.owner)
        return count

    def _tidy(self, partition: ResultPartition) -> None:
        """Copy what is wanted of a pipelined partition's file to a new one."""
        with partition.lock:
            old = partition.file
            if old is None or partition.state not in (OPEN, FINISHED):
                return
            runs = []
            for part in partition.subpartitions:
                if part is not None and part.memory_from > part.let_go_before:
                    index = part.let_go_before - part.first
                    runs.append((part, part.let_go_before, part.memory_from, part.offsets[index:], part.sizes[index:]))
            size = partition.wanted
        try:
            self.released.make_way(size)
            new = self._create(partition)
            moved, end = _copied(old.get(), new.get(), [(offsets, sizes) for _, _, _, offsets, sizes in runs])
        except OSError as error:  # the old one is as good as before; with the next piece it is tried again
            log.warning("spill_file_not_tidied", partition=str(partition.id), error=str(error))
            return
        with partition.lock:
            if partition.file is not old:
                return  # nothing of it is wanted any more
            for (part, start, memory_from, _, _), offsets in zip(runs, moved, strict=True):
                if part.memory_from == memory_from and part.offsets:  # else all of these were sent meanwhile
                    first = max(start, part.first)
                    part.offsets[first - part.first :] = offsets[first - start :]
            partition.file, partition.file_end = new, end
            unwanted, partition.disk = partition.disk - end, end
            partition.untidy = False
            self._budget.give_back(partition.owner, 0, unwanted)

    def _create(self, partition: ResultPartition) -> NamelessFile | CachedFile:
        self._disk.makedirs(self._directory)
        named = partition.named_file
        if named is None:
            # Never a name that was used before: an earlier partition of the same id may still be being sent or removed.
            self._next_stem += 1
            path = f"{self._directory}/{partition.id.hex()}-{self._next_stem}{_DATA}"
            if partition.kind is PartitionType.PIPELINED:
                # It will not be read by another broker, nor grow for long: without a name it goes when it is let go of.
                file = self._disk.open(path, create=True)
                self._disk.remove(path)
                return NamelessFile(file)
            named = partition.named_file = self._files.cached(path)
        named.create()
        return named

    def _store(self, finishing: "list[_Finishing]") -> None:
        """Finish partitions together, step by step: the first sync of a step makes most of what the others wait for durable."""
        for step in (self._write_rest, self._sync_data, self._write_index, self._sync_index, self._commit):
            for each in finishing:
                if each.error is None and not each.gone:
                    try:
                        step(each)
                    except OSError as error:
                        each.error = error
        stored = [each for each in finishing if each.error is None and not each.gone]
        if stored:
            try:
                self._sync_names()
            except OSError as error:
                for each in stored:
                    each.error = error
        for each in finishing:
            each.done(each.error)

    def _write_rest(self, each: "_Finishing") -> None:
        partition = each.partition
        following = partition.end_subpartitions()
        while following:
            following = partition.end_subpartitions(following)
        while self._spill(partition):
            pass
        with partition.lock:
            each.gone = partition.state is not OPEN
            if each.gone:
                return
            named = partition.named_file
            assert named is not None, "each subpartition has its end, so there is a file"
            each.data, each.index_path = named, named.path.removesuffix(_DATA) + _INDEX
            each.index = SpillIndex.of(partition, self._clock.time_ms())

    def _sync_data(self, each: "_Finishing") -> None:
        assert each.data is not None
        each.data.get().sync()

    def _write_index(self, each: "_Finishing") -> None:
        each.index_file = self._disk.open(f"{each.index_path}.tmp", create=True)
        assert each.index is not None
        offset = 0
        for piece in each.index.pieces():
            offset += each.index_file.pwrite([piece], offset)

    def _sync_index(self, each: "_Finishing") -> None:
        assert each.index_file is not None
        each.index_file.sync()
        each.index_file.close()

    def _commit(self, each: "_Finishing") -> None:
        self._disk.rename(f"{each.index_path}.tmp", each.index_path)

    # -- the start ----------------------------------------------------------------------------------------------------

    def load(self, budget: Budget, ttl_s: float) -> Iterator[tuple[ResultPartition, float]]:
        """The finished partitions on disk, each with the time (s) that it has left. The files of all others are removed.

        ``ttl_s``: of those whose writer did not say.
        """
        if not self._disk.is_dir(self._directory):
            return
        # The newest first: when there are two of one partition, the older one was released before the newer was written, and
        # the broker died before it was removed. It must not come back, whatever the newer one is like.
        names = sorted(self._disk.listdir(self._directory), key=_stem_number, reverse=True)
        kept = set()
        known = set()
        for name in names:
            stem, dot, kind = name.partition(".")
            number = stem.partition("-")[2]
            if number.isdecimal():
                self._next_stem = max(self._next_stem, int(number))
            if dot + kind != _INDEX or not _OWN.fullmatch(name):
                continue
            key = stem.partition("-")[0]
            if key in known:
                log.info("released_partition_removed", file=name)
                continue
            known.add(key)
            try:
                index = self._read_index(stem)
                named = self._files.cached(f"{self._directory}/{stem}{_DATA}")
                partition = index.partition(named, named.get().size(), budget)
            except (FileNotFoundError, ValueError) as error:
                log.warning("partition_unreadable", file=name, error=str(error))
                continue
            except OSError as error:  # perhaps the disk's mood: not served now, and kept for another start
                log.warning("partition_unreadable", file=name, error=str(error))
                kept |= {stem + _INDEX, stem + _DATA}
                continue
            partition.named_file = named
            subpartitions = partition.structure  # these have been counted
            partition.structure += PARTITION_BYTES + PLACE_BYTES * len(partition.subpartitions)
            budget.loaded(partition.owner, partition.disk, partition.index_bytes - subpartitions)
            kept |= {stem + _INDEX, stem + _DATA}
            self._partitions[partition.id] = partition
            ttl = ttl_s if partition.ttl_ms < 0 else partition.ttl_ms / 1000
            age_s = (self._clock.time_ms() - index.finished_ms) / 1000
            yield partition, min(ttl, max(0.0, ttl - age_s))
        for name in names:
            if name not in kept and _OWN.fullmatch(name):
                self._remove_file(f"{self._directory}/{name}")
        # A broker that was killed may have renamed an index and not come to make that durable, and its writer is told now.
        self._sync_names()

    def _sync_names(self) -> None:
        """Make durable which files there are, and the directory's own name."""
        self._disk.sync_dir(self._directory)
        if not self._directory_durable:
            self._disk.sync_dir(self._directory.rpartition("/")[0] or "/")
            self._directory_durable = True

    def _read_index(self, stem: str) -> SpillIndex:
        file: File = self._disk.open(f"{self._directory}/{stem}{_INDEX}", read_only=True)
        try:
            index = SpillIndex.parse(file.pread(file.size(), 0))
        finally:
            file.close()
        if index.id.hex() != stem.partition("-")[0]:
            raise ValueError("not the index of this partition")
        return index

    def _remove_files(self, partition: ResultPartition) -> None:
        named = partition.named_file
        if named is not None:
            named.drop()  # it is open for those only who are being sent something of it
            index = named.path.removesuffix(_DATA) + _INDEX
            # The index first: without it the data means nothing.
            for path in (index, f"{index}.tmp"):
                self._remove_file(path)
            self.released.add(named.path, partition.file_end)

    def _remove_file(self, path: str) -> None:
        try:
            self._disk.remove(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("file_not_removed", file=path, error=str(error))


def _stem_number(name: str) -> int:
    number = name.partition(".")[0].partition("-")[2]
    return int(number) if number.isdecimal() and number.isascii() else 0


def _copied(old: File, new: File, runs: list[tuple["array[int]", "array[int]"]]) -> tuple[list["array[int]"], int]:
    """Copy buffers (offsets and sizes of each subpartition) one after another; where they are now, and their end. OSError."""
    moved, end = [], 0
    for offsets, sizes in runs:
        there = array("q")
        position = 0
        while position < len(offsets):
            start = stop = offsets[position]
            while position < len(offsets) and offsets[position] == stop and stop - start < _PIECE_BYTES:
                there.append(end + stop - start)
                stop += sizes[position]
                position += 1
            data = old.pread(stop - start, start)
            if len(data) < stop - start:
                raise OSError(f"a spill file ends before byte {stop}")
            if data:
                new.pwrite([data], end)
            end += stop - start
        moved.append(there)
    return moved, end


def _oldest(partition: ResultPartition) -> tuple[list[_Run], int, int]:
    """With the lock held: what to move next, at most a piece; its buffers, its bytes.

    The subpartitions have their turns, and each gives the oldest that it has in memory: they lie together in the file and are
    read together.
    """
    parts, found = partition.subpartitions, []
    count = size = 0
    for turn in range(len(parts)):
        part = parts[(partition.spill_next + turn) % len(parts)]
        if part is None or not part.payloads:
            continue
        start, payloads = part.oldest_in_memory(_PIECE_BYTES - size - 64 * count)
        if payloads:
            found.append((part, start, payloads))
            count += len(payloads)
            size += sum(map(len, payloads))
            if size + 64 * count >= _PIECE_BYTES:
                partition.spill_next = (partition.spill_next + turn + 1) % len(parts)
                break
    return found, count, size


def _joined(payloads: list[bytes]) -> list[bytes]:
    """The same bytes in fewer pieces."""
    joined: list[bytes] = []
    pending: list[bytes] = []
    size = 0
    for payload in payloads:
        pending.append(payload)
        size += len(payload)
        if size >= _JOIN_BYTES:
            joined.append(b"".join(pending))
            pending, size = [], 0
    joined.append(b"".join(pending))
    return joined
