"""The limits that all result partitions share: memory, disk, and each owner's quota.

Payloads share the memory with the index, which has the place of each buffer, spilled buffers included. The objects of partitions,
subpartitions and readers count as index, too. When the index takes all memory, writers wait until a partition is released, as
they do for a full disk. New partitions are refused before that (``admit``), and readers may take half of the memory.

Each credit promises a writer room (``promise``). Promised bytes are ``reserved`` until they are used or given up, and credit is
given for a part of the rest. A buffer larger than its writer was promised room for is taken if there is room for it beside the
promises to other writers, up to a quarter of the memory; otherwise it is refused (``NoRoom``). So ``memory_max`` holds whatever
writers do, except that a single payload may be larger.

Processors and the spiller call it; one lock guards it, held for a few additions.
"""

from collections import Counter
from collections.abc import Callable
from math import inf

from broker.runtime.threads import Lock

# A buffer's memory beside its payload: a Python object's header and its place in a list; or, for a buffer in a file, its offset,
# size and kind (13 bytes) and the spare room of growing lists.
IN_MEMORY_BYTES = 64
IN_FILE_BYTES = 16
# A partition without its subpartitions (2.7 KB by tracemalloc when this was set, some 800 bytes less since); a place for each
# subpartition; and a subpartition with a push or a request, with its reader's cursor (420 bytes and 100).
PARTITION_BYTES = 3072
PLACE_BYTES = 8
SUBPARTITION_BYTES = 544
# A reader, whether it reads or waits for its partition; and its place in each subpartition of a finished partition.
READER_BYTES = 1536
CURSOR_BYTES = 104
# Partitions are refused when the index would take more than 3/4, readers when all of them would take more than 1/2.
_PARTITIONS_SHARE = 3 / 4
_READERS_SHARE = 1 / 2
# A promise is for at most half of the rest (1 / this), so that some remains for the next writer.
_PROMISE_SHARE = 2
# Promises of more than one buffer may take half of the memory (1 / this). The rest is for payloads, and for one buffer of each
# writer, however many writers do not use their promised room.
_PROMISED_SHARE = 2
# A writer that pushes more than promised cannot take the room promised to others, up to a quarter of the memory (1 / this).
_KEPT_SHARE = 4


class NoRoom(Exception):
    """There is no memory left beside promised room."""


class Budget:
    def __init__(self, memory_max: int, disk_max: int, owner_max: int) -> None:
        """Bytes each. ``disk_max`` and ``owner_max``: -1 for no bound."""
        self.memory_max = memory_max
        self.disk_max = disk_max
        self.owner_max = owner_max
        # Called when a writer or reader that was refused room might get it now; on any thread, possibly with a partition's
        # lock held.
        self.on_room_freed: Callable[[], None] = lambda: None
        self.memory = 0  # of payloads
        self.disk = 0
        self.index = 0
        self.reserved = 0  # promised to writers
        self.taken_bytes = 0  # of pushed payloads, since the start
        self.spilled_bytes = 0  # of payloads moved to files, since the start
        self._readers = 0  # bytes of `index`
        self._memory_wanted = False
        self._disk_wanted = False
        self._lock = Lock()
        self._owners: Counter[str] = Counter()  # empty without a bound

    def owned(self, owner: str) -> int:
        return self._owners[owner]

    @property
    def memory_scarce(self) -> bool:
        """The spiller should make room."""
        return self.memory * 2 > self.memory_max - self.index or (self._memory_wanted and self.memory > 0)

    @property
    def disk_left(self) -> float:
        """Infinite without a bound."""
        return inf if self.disk_max < 0 else max(0, self.disk_max - self.disk)

    @property
    def disk_full(self) -> bool:
        return self.disk_left == 0

    def full(self, to_disk: bool) -> bool:
        """Writers must wait: memory is used up and the spiller is behind; or, if ``to_disk``, the disk is used up.

        After True, ``on_room_freed`` is called when that may have changed.
        """
        # The mark is set before the second check, because nobody was told of room freed before the mark. Only the call of
        # `on_room_freed` clears it: even if another writer finds room, the writer that set the mark still waits.
        if self.memory + self.index >= self.memory_max:
            self._memory_wanted = True
            if self.memory + self.index >= self.memory_max:
                return True
        if to_disk and self.disk_full:
            self._disk_wanted = True
            return self.disk_full
        return False

    def admit(self, owner: str, index: int) -> bool:
        """Count a new partition; False if its owner's quota is used up. Raises NoRoom."""
        with self._lock:
            if self.index + index > self.memory_max * _PARTITIONS_SHARE:
                raise NoRoom(f"existing partitions take {self.index} of {self.memory_max} bytes of memory")
            if self.owner_max >= 0:
                if self._owners[owner] + index > self.owner_max:
                    return False
                self._owners[owner] += index
            self.index += index
            return True

    def admit_reader(self, size: int) -> bool:
        """Count a reader; False if there are too many."""
        with self._lock:
            if self._readers + size > self.memory_max * _READERS_SHARE:
                return False
            self._readers += size
            self.index += size
            return True

    def reader_left(self, size: int) -> None:
        with self._lock:
            self._readers -= size
            self.index -= size
        self._announce_room()

    def promise(self, most: int, each: int, at_least_one: bool) -> int:
        """Reserve room for up to ``most`` buffers of ``each`` bytes, index included; returns the number of buffers.

        ``at_least_one``: the writer has no credit left, and may have one buffer of the memory kept for such writers. If it gets
        none, ``on_room_freed`` is called later.
        """
        with self._lock:
            room = self.memory_max - self.index
            left = min((room - self.memory - self.reserved) // _PROMISE_SHARE, room // _PROMISED_SHARE - self.reserved)
            granted = min(most, max(0, left) // each)
            if not granted and at_least_one and self._fits(each, self.reserved):
                granted = 1
            if not granted and at_least_one:
                self._memory_wanted = True
            self.reserved += granted * each
            return granted

    def unreserve(self, size: int, unused: bool = False) -> None:
        """Promised room was used, or, if ``unused``, will not be because its writer has left."""
        with self._lock:
            self.reserved -= size
            assert self.reserved >= 0
        if unused and self._memory_wanted:  # a writer that was refused may have room now
            self._memory_wanted = False
            self.on_room_freed()

    def _fits(self, size: int, promised: int = 0) -> bool:
        """There is room for it beside held and promised bytes; a single payload may be larger."""
        held = self.memory + self.index
        return held + size + promised <= self.memory_max or (self.memory == 0 and held < self.memory_max)

    def take(self, owner: str, size: int, obliged: bool = False, index: int = 0, unpromised: int | None = None) -> bool:
        """Count a buffer in memory; False (and not counted) if its owner's quota is used up, unless ``obliged``.

        ``index``, here and below: bytes of the index that are added or removed. ``unpromised``: the buffer exceeds its
        writer's promised room, of which this many bytes are reserved. Raises NoRoom.
        """
        with self._lock:
            others = 0 if unpromised is None else min(self.reserved - unpromised, self.memory_max // _KEPT_SHARE)
            if not obliged and not self._fits(size + index, others):
                raise NoRoom(
                    f"{self.memory + self.index} of {self.memory_max} bytes of memory are used, {others} promised"
                )
            if self.owner_max >= 0:
                owned = self._owners[owner] + size + index
                if owned > self.owner_max and not obliged:
                    return False
                self._owners[owner] = owned
            self.memory += size
            self.taken_bytes += size
            self.index += index
            return True

    def spilled(self, size: int, index: int = 0, owner: str = "") -> None:
        """Payloads were moved from memory to disk."""
        with self._lock:
            self.memory -= size
            self.index -= index
            self.disk += size
            self.spilled_bytes += size
            if self.owner_max >= 0:
                self._owners[owner] -= index
        self._announce_room()

    def loaded(self, owner: str, size: int, index: int = 0) -> None:
        """A partition was loaded from disk at the broker's start."""
        with self._lock:
            self.disk += size
            self.index += index
            if self.owner_max >= 0:
                self._owners[owner] += size + index

    def charge(self, owner: str, index: int, bounded: bool = False) -> None:
        """Count subpartitions that are used for the first time. Raises NoRoom if ``bounded`` and they are too many."""
        with self._lock:
            if bounded and index and self.index + index > self.memory_max * _PARTITIONS_SHARE:
                raise NoRoom(
                    f"{self.index} of {self.memory_max} bytes of memory are taken, and {index} more are needed"
                )
            self.index += index
            if self.owner_max >= 0:
                self._owners[owner] += index

    def read_ahead(self, change: int) -> None:
        """Count bytes read from files before they can be sent: payloads cannot use that memory."""
        with self._lock:
            self.index += change
        if change < 0:
            self._announce_room()

    def give_back(self, owner: str, memory: int, disk: int, index: int = 0) -> None:
        with self._lock:
            self.memory -= memory
            self.disk -= disk
            self.index -= index
            assert self.memory >= 0 <= self.disk
            assert self.index >= 0
            if self.owner_max >= 0:
                self._owners[owner] -= memory + disk + index
                if self._owners[owner] <= 0:
                    del self._owners[owner]
        self._announce_room()

    def _announce_room(self) -> None:
        # Only at three quarters, so that writers are not told for each buffer.
        if self._memory_wanted and self.memory * 4 <= (self.memory_max - self.index) * 3:
            self._memory_wanted = False
            self.on_room_freed()
        if self._disk_wanted and not self.disk_full:
            self._disk_wanted = False
            self.on_room_freed()
