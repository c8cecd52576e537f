"""What all result partitions together may use: memory, disk, and each owner's share.

Payloads share the memory with the index, which says where each buffer is, spilled ones included. The objects of partitions,
subpartitions and readers count as index, too. When the index takes all memory, writers wait until a partition is released, as
they do for a full disk. New partitions are refused before that (``admit``), and readers may take half of the memory.

Writers are promised room with each credit (``promise``). Promised bytes are ``reserved`` until they are used or given up, and
credit is given for a part of what is left. A buffer that is larger than its writer was promised room for is taken if there is
room for it beside what other writers were promised, up to a quarter of the memory; otherwise it is refused (``NoRoom``). So
``memory_max`` holds whatever writers do, except that one payload alone may be larger.

Called by processors and by the spiller, under one lock that is held for an addition.
"""

from collections import Counter
from collections.abc import Callable
from math import inf

from broker.runtime.threads import Lock

# What a buffer takes in memory beside its payload: a Python object's header and its place in a list; or, when it is in a
# file, its offset, size and kind (13 bytes) and the spare room of growing lists.
IN_MEMORY_BYTES = 64
IN_FILE_BYTES = 16
# A partition without its subpartitions (2.7 KB by tracemalloc when this was set, some 800 bytes less since); a place for each
# subpartition; and a subpartition that was pushed to or asked for, with its reader's cursor (420 bytes and 100).
PARTITION_BYTES = 3072
PLACE_BYTES = 8
SUBPARTITION_BYTES = 544
# A reader, whether it reads or waits for its partition; and its place in each subpartition of a finished partition.
READER_BYTES = 1536
CURSOR_BYTES = 104
# Partitions are refused when the index would take more than 3/4, readers when all of them would take more than 1/2.
_PARTITIONS_SHARE = 3 / 4
_READERS_SHARE = 1 / 2
# A promise is for at most half of what is left (1 / this), so that the next writer finds something.
_PROMISE_SHARE = 2
# Promises of more than one buffer may take half of the memory (1 / this). The rest is for payloads, and for one buffer of each
# writer, however many writers do not use what they were promised.
_PROMISED_SHARE = 2
# A writer that pushes more than it was promised cannot take what others were promised, up to a quarter of the memory (1 / this).
_KEPT_SHARE = 4


class NoRoom(Exception):
    """There is no memory left, and none was promised."""


class Budget:
    def __init__(self, memory_max: int, disk_max: int, owner_max: int) -> None:
        """Bytes each. ``disk_max`` and ``owner_max``: -1 for no bound."""
        self.memory_max = memory_max
        self.disk_max = disk_max
        self.owner_max = owner_max
        # Called when a writer or reader that was refused room might get it now; on any thread, perhaps with a partition's
        # lock held.
        self.on_room_freed: Callable[[], None] = lambda: None
        self.memory = 0  # of payloads
        self.disk = 0
        self.index = 0
        self.reserved = 0  # promised to writers
        self.taken_bytes = 0  # of payloads that were pushed, since the start
        self.spilled_bytes = 0  # of payloads that were moved to files, since the start
        self._readers = 0  # bytes of `index`
        self._memory_wanted = False
        self._disk_wanted = False
        self._lock = Lock()
        self._owners: Counter[str] = Counter()  # only with a bound on them

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
        """Writers must wait: memory is used up and the spiller is behind; or, ``to_disk``, the disk is used up.

        After True, ``on_room_freed`` is called when that may have changed.
        """
        # The mark is set before the second look, because room that was freed in between was announced to nobody. Only the call of
        # `on_room_freed` clears it: if another writer finds room, the one that set the mark still waits.
        if self.memory + self.index >= self.memory_max:
            self._memory_wanted = True
            if self.memory + self.index >= self.memory_max:
                return True
        if to_disk and self.disk_full:
            self._disk_wanted = True
            return self.disk_full
        return False

    def admit(self, owner: str, index: int) -> bool:
        """Count a new partition; False if its owner's share is used up. Raises NoRoom."""
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
        """Reserve room for up to ``most`` buffers of ``each`` bytes, their index included; returns for how many.

        ``at_least_one``: the writer has no credit left, and may have one buffer of the memory that is kept for such writers. If
        it gets 0 all the same, ``on_room_freed`` is called later.
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
        """Promised room was used, or, ``unused``, will not be because its writer has left."""
        with self._lock:
            self.reserved -= size
            assert self.reserved >= 0
        if unused and self._memory_wanted:  # a writer that was refused may have room now
            self._memory_wanted = False
            self.on_room_freed()

    def _fits(self, size: int, promised: int = 0) -> bool:
        """There is room for it beside what is held and promised; a payload alone may be larger."""
        held = self.memory + self.index
        return held + size + promised <= self.memory_max or (self.memory == 0 and held < self.memory_max)

    def take(self, owner: str, size: int, obliged: bool = False, index: int = 0, unpromised: int | None = None) -> bool:
        """Count a buffer in memory; False (and not counted) if its owner's share is used up, unless it is ``obliged``.

        ``index``, here and below: bytes of the index that are added or removed. ``unpromised``: the buffer is more than was
        promised to its writer, for whom this many bytes are reserved. Raises NoRoom.
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
        """A partition was found on disk when the broker started."""
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
        """Count bytes that were read from files before they can be sent: payloads cannot have that memory."""
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
        # At three quarters only, so that writers are not told for each buffer.
        if self._memory_wanted and self.memory * 4 <= (self.memory_max - self.index) * 3:
            self._memory_wanted = False
            self.on_room_freed()
        if self._disk_wanted and not self.disk_full:
            self._disk_wanted = False
            self.on_room_freed()
