"""The spiller: a thread that moves buffers from memory to files, one sequential file a partition, and finishes partitions.

Other threads leave notes for it. The table in ``spill.py`` has the states of a partition; ``directory.py`` has the files.
Payloads are written unchanged, in pieces of some MB; within a piece the payloads of a subpartition are adjacent, because they
are read together.

Sent buffers of a pipelined partition are dropped, at different times for different readers. When more of its file is dropped than
kept, the kept buffers are copied to a new file and the old file is closed. It is neither overwritten nor punched: regions that
``sendfile`` has sent may still be in a receiver's queue as the file's own pages.

While writes to the disk fail, the data stays in memory (so that writers wait), and writing is tried again every second.
"""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

import attrs

from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.runtime.disk import Disk
from broker.runtime.threads import Event, Lock
from broker.shuffle.partition.budget import Budget
from broker.shuffle.partition.holdings import FileRun
from broker.shuffle.partition.result_partition import ResultPartition
from broker.shuffle.spill.directory import SpillDirectory, SpillIndex, Storing
from broker.shuffle.spill.spill import Spill, SpillEvent, SpillState, copied, joined, oldest

log = get_logger("shuffle")

# The wait (s) before a failed disk is tried again.
_RETRY_S = 1.0
# The most open files of blocking partitions; others are opened when they are read.
OPEN_FILES = 256

Done = Callable[[OSError | None], None]


@attrs.define(eq=False)
class _Finish:
    """A request to make a partition durable. ``storing``: None until all of it is written, or if it was released before."""

    spill: Spill
    done: Done
    storing: Storing | None = None
    error: OSError | None = None


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
        """``released_bytes``: the limit of released partitions' files that wait for others to grow."""
        self.directory = SpillDirectory(disk, directory, clock, released_bytes, open_files)
        self.released = self.directory.released
        self._budget = budget
        self._clock = clock
        self._lock = Lock()
        self._spills: dict[ResultPartition, Spill] = {}  # of partitions not released
        self._finishes: list[_Finish] = []
        self._released: list[Spill] = []
        self._untidy: deque[Spill] = deque()
        self._wake = Event()
        self._room_freed = False
        self._pressed = False
        # Called on the spiller's thread when waiting writers may continue.
        self.on_room_freed: Callable[[], None] = lambda: None
        budget.on_room_freed = self._note_room
        self.broken: OSError | None = None  # the error of a disk that takes no writes

    # -- from other threads -------------------------------------------------------------------------------------------

    def add(self, partition: ResultPartition) -> None:
        self._add(Spill(partition))

    def _add(self, spill: Spill) -> None:
        spill.partition.holdings.on_garbage = partial(self._note_garbage, spill)
        with self._lock:
            self._spills[spill.partition] = spill

    def _note_garbage(self, spill: Spill) -> None:
        """With the partition's lock held."""
        if spill.state is SpillState.IDLE:
            spill.note(SpillEvent.GARBAGE_FOUND)
            self._untidy.append(spill)
            self._wake.set()

    def _note_room(self) -> None:
        self._room_freed = True
        self._wake.set()

    def press(self) -> None:
        """Memory has become scarce, or a partition has so much in memory that some should be written."""
        self._pressed = True
        if self.broken is None and not self._wake.is_set():
            self._wake.set()

    def finish(self, partition: ResultPartition, done: Done) -> None:
        """Write the rest of it and its index, durably; ``done`` is called on the spiller's thread.

        Also ``done(None)`` if it was released meanwhile, which the caller sees when it finishes the partition.
        """
        with self._lock:
            spill = self._spills.get(partition) or Spill(partition)
        with partition.lock:
            if spill.state is SpillState.IDLE:
                spill.note(SpillEvent.FINISH_ASKED)
        with self._lock:
            self._finishes.append(_Finish(spill, done))
        self._wake.set()

    def remove(self, partition: ResultPartition) -> None:
        """The partition's buffers were dropped: remove its files. Does nothing the second time."""
        with self._lock:
            spill = self._spills.pop(partition, None)
        if spill is None:
            return
        with partition.lock:
            spill.note(SpillEvent.REMOVE_ASKED)
        with self._lock:
            self._released.append(spill)
        self._wake.set()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def step(self, timeout: float | None) -> bool:
        if timeout != 0:
            waits = (timeout, None if self.broken is None else _RETRY_S, self.released.wait_s())
            self._wake.wait(min((wait for wait in waits if wait is not None), default=None))
        self._wake.clear()
        worked = False
        with self._lock:
            finishes, self._finishes = self._finishes, []
            released, self._released = self._released, []
        if finishes:
            worked = True
            self._store(finishes)
        for spill in released:
            worked = True
            self.directory.remove(spill)
            with spill.partition.lock:
                spill.note(SpillEvent.FILES_REMOVED)
        while self._untidy:
            worked = True
            self._tidy(self._untidy.popleft())
        # Not at each step, because it visits all partitions.
        pressed, self._pressed = self._pressed, False
        if pressed or self._budget.memory_scarce:
            worked |= self._make_room()
        else:
            self.broken = None
        # Released files are still on the disk, and must not take the space of others.
        worked |= self.released.trim(self._budget.disk_left)
        if self._room_freed:
            self._room_freed = False
            self.on_room_freed()
        return worked

    def wakeup(self) -> None:
        self._wake.set()

    def close(self) -> None:
        """To be called after the thread has ended."""
        self.directory.close()

    def load(self, budget: Budget, ttl_s: float) -> Iterator[tuple[ResultPartition, float]]:
        """At the broker's start; see ``SpillDirectory.load``."""
        for spill, left_s in self.directory.load(budget, ttl_s):
            self._add(spill)
            yield spill.partition, left_s

    # -- moving buffers to files --------------------------------------------------------------------------------------

    def _next(self) -> Spill | None:
        """The partition to spill now: the one with the most memory, until half of it is free; else one with much in memory."""
        if self._budget.disk_full:
            return None
        with self._lock:
            candidates = list(self._spills.values())
        if self._budget.memory_scarce:
            largest = max(candidates, key=lambda spill: spill.partition.holdings.memory, default=None)
            return None if largest is None or largest.partition.holdings.memory == 0 else largest
        return next((spill for spill in candidates if spill.partition.spill_early), None)

    def _make_room(self) -> bool:
        """Spill as long as a partition is to be spilled."""
        spilled = False
        while (spill := self._next()) is not None:
            try:
                if not self.spill_piece(spill):
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

    def spill_piece(self, spill: Spill) -> int:
        """Move a piece of a partition's memory to its file; returns the number of buffers, perhaps 0. Raises OSError."""
        try:
            return self._move_piece(spill)
        except OSError:  # perhaps the disk is full
            if not self.released.trim(0):
                raise
        return self._move_piece(spill)

    def _move_piece(self, spill: Spill) -> int:
        partition, holdings = spill.partition, spill.partition.holdings
        with partition.lock:
            if not partition.has_data:
                return 0
            runs, count, size = oldest(spill)
            file, offset = holdings.file, holdings.file_end
        if not count:
            return 0
        self.released.make_way(size)
        if file is None:
            file = self.directory.create(spill)
        system_file = file.get()
        system_file.pwrite(joined(runs), offset)
        if not partition.pipelined:
            system_file.begin_sync(offset, size)
        with partition.lock:
            if partition.has_data:
                holdings.piece_written(file, offset, runs)
                if spill.state is SpillState.LEFT_UNTIDY:
                    spill.note(SpillEvent.PIECE_WRITTEN)
        return count

    def _tidy(self, spill: Spill) -> None:
        """Copy the kept buffers of a pipelined partition's file to a new file."""
        partition, holdings = spill.partition, spill.partition.holdings
        runs: list[FileRun] = []
        with partition.lock:
            if spill.state is not SpillState.UNTIDY:
                return  # released
            old = holdings.file
            if old is None:  # it has no kept buffers any more
                spill.note(SpillEvent.FILE_REWRITTEN)
                return
            for part in partition.subpartitions:
                if part is not None and (kept := part.kept_in_file()) is not None:
                    runs.append((part, *kept))
            size = holdings.live_bytes
        try:
            self.released.make_way(size)
            new = self.directory.create(spill)
            moved, end = copied(old.get(), new.get(), runs)
        except OSError as error:  # the old file is still valid
            log.warning("spill_rewrite_failed", partition=str(partition.id), error=str(error))
            with partition.lock:
                if spill.state is SpillState.UNTIDY:
                    spill.note(SpillEvent.REWRITE_FAILED)
            return
        with partition.lock:
            if spill.state is SpillState.UNTIDY:
                spill.note(SpillEvent.FILE_REWRITTEN)
            if holdings.file is old:  # otherwise all of it was dropped meanwhile
                holdings.file_rewritten(new, end, runs, moved)

    # -- finishing partitions -----------------------------------------------------------------------------------------

    def _store(self, finishes: list[_Finish]) -> None:
        """Make partitions durable together, and report the outcome of each."""
        for each in finishes:
            try:
                each.storing = self._write_rest(each.spill)
            except OSError as error:
                each.error = error
        self.directory.store([each.storing for each in finishes if each.storing is not None])
        for each in finishes:
            if each.storing is not None:
                each.error = each.storing.error
            with each.spill.partition.lock:
                if each.spill.state is SpillState.FINISHING:
                    each.spill.note(SpillEvent.STORE_DONE if each.error is None else SpillEvent.STORE_FAILED)
        for each in finishes:
            each.done(each.error)

    def _write_rest(self, spill: Spill) -> Storing | None:
        """Write everything in memory. None if the partition failed or was released. Raises OSError."""
        partition = spill.partition
        following = partition.end_subpartitions()
        while following:
            following = partition.end_subpartitions(following)
        while self.spill_piece(spill):
            pass
        with partition.lock:
            if not partition.unfinished:
                return None
            named = spill.named_file
            assert named is not None, "each subpartition has its end, so there is a file"
            return Storing(named, SpillIndex.of(partition, self._clock.time_ms()))
