"""What all result partitions together may use: memory, disk, and each owner's share.

Where each buffer is must be known as well, of those on disk, too: that index is in memory, and what it takes is not there for
payloads. The objects of partitions, subpartitions and readers count in it. When it takes all, writers wait as they do for a full
disk: until a partition is released. New partitions are refused before that (``admit``), and readers have half of the memory at
most.

Writers are promised room with each credit (``promise``). What is promised is ``reserved`` until it is used or given up, and
credit is given for a part of what is left. A buffer that is larger than its writer was promised room for is taken if there is
room for it, and, beside it, for what others were promised, as far as that is a quarter of the memory; otherwise it is not taken
(``NoRoom``), so that ``memory_max`` holds whatever writers do. One payload alone may be larger than that.

Touched by processors and the spiller, under one lock that is held for an addition.
"""

from collections import Counter
from collections.abc import Callable
from math import inf

from broker.runtime.threads import Lock

# What a buffer takes in memory beside its payload: a Python object's head and its place in a list; or, in a file, its offset,
# size and kind (13 bytes) and the room that lists have to grow.
IN_MEMORY_BYTES = 64
IN_FILE_BYTES = 16
# A partition without its subpartitions (2.7 KB, by tracemalloc); a place for each subpartition; and one that something has come
# for, or somebody has asked for, with its reader's cursor (420 bytes and 100).
PARTITION_BYTES = 3072
PLACE_BYTES = 8
SUBPARTITION_BYTES = 544
# A reader, or one that waits for its partition; and its place in each subpartition of a finished partition.
READER_BYTES = 1536
CURSOR_BYTES = 104
# Partitions are refused when the index would take more than 3/4, readers when all of them would take more than 1/2.
_PARTITIONS_SHARE = 3 / 4
_READERS_SHARE = 1 / 2
# A promise is for at most this part of what is left, so that the next writer finds something.
_PROMISE_SHARE = 2
# More than one buffer is promised up to this part of the memory; the rest is for payloads, and for one buffer of each writer,
# however many there are that do not use what they were promised.
_PROMISED_SHARE = 2
# Of what was promised, this part of the memory is kept from those who push more than they were promised.
_KEPT_SHARE = 4


class NoRoom(Exception):
    """There is no memory for it, and none was promised."""


class Budget:
    def __init__(self, memory_max: int, disk_max: int, owner_max: int) -> None:
        """Bytes each. ``disk_max`` and ``owner_max``: -1 for no bound."""
        self.memory_max = memory_max
        self.disk_max = disk_max
        self.owner_max = owner_max
        # Called when somebody who found it full might find room now; from any thread, perhaps with a partition's lock held.
        self.on_room_freed: Callable[[], None] = lambda: None
        self.memory = 0  # of payloads
        self.disk = 0
        self.index = 0
        self.reserved = 0  # promised to writers
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

        Who was told so is called through ``on_room_freed``.
        """
        # Marked, then looked at again: room that came in between was announced to nobody. Only `on_room_freed` takes a mark away,
        # whoever else finds room: the one who set it still waits.
        if self.memory + self.index >= self.memory_max:
            self._memory_wanted = True
            if self.memory + self.index >= self.memory_max:
                return True
        if to_disk and self.disk_full:
            self._disk_wanted = True
            return self.disk_full
        return False

    def admit(self, owner: str, index: int) -> bool:
        """Count a new partition in; False if its owner has as much as it may. Raises NoRoom."""
        with self._lock:
            if self.index + index > self.memory_max * _PARTITIONS_SHARE:
                raise NoRoom(f"the partitions that there are take {self.index} of {self.memory_max} bytes of memory")
            if self.owner_max >= 0:
                if self._owners[owner] + index > self.owner_max:
                    return False
                self._owners[owner] += index
            self.index += index
            return True

    def admit_reader(self, size: int) -> bool:
        """Count a reader in; False if there are too many."""
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
        """Reserve room for up to ``most`` buffers of ``each`` bytes, their index included. How many it is for.

        ``at_least_one``: of what is kept for those who have none. Who gets 0 all the same is called through ``on_room_freed``.
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
        """Promised room that was used, or, ``unused``, will not be: its writer has gone."""
        with self._lock:
            self.reserved -= size
            assert self.reserved >= 0
        if unused and self._memory_wanted:  # perhaps it was this that others had no room beside
            self._memory_wanted = False
            self.on_room_freed()

    def _fits(self, size: int, promised: int = 0) -> bool:
        """Beside all that is held, and promised; one alone may be larger."""
        held = self.memory + self.index
        return held + size + promised <= self.memory_max or (self.memory == 0 and held < self.memory_max)

    def take(self, owner: str, size: int, obliged: bool = False, index: int = 0, unpromised: int | None = None) -> bool:
        """Count a buffer in, in memory; False (and not counted) if its owner has as much as it may. ``obliged``: even then.

        ``index``, here and below: bytes of it that come, or go. ``unpromised``: it is more than was promised to its writer, for
        whom this much is reserved. Raises NoRoom.
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
            self.index += index
            return True

    def spilled(self, size: int, index: int = 0, owner: str = "") -> None:
        """From memory to disk."""
        with self._lock:
            self.memory -= size
            self.index -= index
            self.disk += size
            if self.owner_max >= 0:
                self._owners[owner] -= index
        self._announce_room()

    def loaded(self, owner: str, size: int, index: int = 0) -> None:
        """Found on disk at the start."""
        with self._lock:
            self.disk += size
            self.index += index
            if self.owner_max >= 0:
                self._owners[owner] += size + index

    def charge(self, owner: str, index: int, bounded: bool = False) -> None:
        """Subpartitions that are used for the first time. Raises NoRoom if ``bounded`` and they are too many."""
        with self._lock:
            if bounded and index and self.index + index > self.memory_max * _PARTITIONS_SHARE:
                raise NoRoom(
                    f"{self.index} of {self.memory_max} bytes of memory are taken, and {index} more are needed"
                )
            self.index += index
            if self.owner_max >= 0:
                self._owners[owner] += index

    def read_ahead(self, change: int) -> None:
        """Bytes read from files before they can be sent; it is memory that payloads cannot have."""
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
        # With a distance to the mark, so that writers are not told for each buffer.
        if self._memory_wanted and self.memory * 4 <= (self.memory_max - self.index) * 3:
            self._memory_wanted = False
            self.on_room_freed()
        if self._disk_wanted and not self.disk_full:
            self._disk_wanted = False
            self.on_room_freed()
