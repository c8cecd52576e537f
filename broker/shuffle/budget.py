"""What all result partitions together may use: memory, disk, and each owner's share.

Where each buffer is must be known as well, of those on disk, too: that index is in memory, and what it takes is not there for
payloads. When it takes all, writers wait as they do for a full disk: until a partition is released.

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


class Budget:
    def __init__(self, memory_max: int, disk_max: int, owner_max: int) -> None:
        """Bytes each. ``disk_max`` and ``owner_max``: -1 for no bound."""
        self.memory_max = memory_max
        self.disk_max = disk_max
        self.owner_max = owner_max
        # Called when somebody who found it full might find room now; from any thread, perhaps with a partition's lock held.
        self.on_room: Callable[[], None] = lambda: None
        self.memory = 0  # of payloads
        self.disk = 0
        self.index = 0
        self._memory_wanted = False
        self._disk_wanted = False
        self._lock = Lock()
        self._owners: Counter[str] = Counter()  # only with a bound on them

    def owned(self, owner: str) -> int:
        return self._owners[owner]

    @property
    def memory_scarce(self) -> bool:
        """The spiller should make room."""
        return self.memory * 2 > self.memory_max - self.index

    @property
    def disk_left(self) -> float:
        """Infinite without a bound."""
        return inf if self.disk_max < 0 else max(0, self.disk_max - self.disk)

    @property
    def disk_full(self) -> bool:
        return self.disk_left == 0

    def full(self, to_disk: bool) -> bool:
        """Writers must wait: memory is used up and the spiller is behind; or, ``to_disk``, the disk is used up.

        Who was told so is called through ``on_room``.
        """
        # Marked, then looked at again: room that came in between was announced to nobody. Only `on_room` takes a mark away,
        # whoever else finds room: the one who set it still waits.
        if self.memory + self.index >= self.memory_max:
            self._memory_wanted = True
            if self.memory + self.index >= self.memory_max:
                return True
        if to_disk and self.disk_full:
            self._disk_wanted = True
            return self.disk_full
        return False

    def take(self, owner: str, size: int, obliged: bool = False, index: int = 0) -> bool:
        """Count a buffer in, in memory; False (and not counted) if its owner has as much as it may. ``obliged``: even then.

        ``index``, here and below: bytes of it that come, or go.
        """
        with self._lock:
            if self.owner_max >= 0:
                owned = self._owners[owner] + size
                if owned > self.owner_max and not obliged:
                    return False
                self._owners[owner] = owned
            self.memory += size
            self.index += index
            return True

    def spilled(self, size: int, index: int = 0) -> None:
        """From memory to disk."""
        with self._lock:
            self.memory -= size
            self.index -= index
            self.disk += size
        self._look_for_room()

    def loaded(self, owner: str, size: int, index: int = 0) -> None:
        """Found on disk at the start."""
        with self._lock:
            self.disk += size
            self.index += index
            if self.owner_max >= 0:
                self._owners[owner] += size

    def read_ahead(self, change: int) -> None:
        """Bytes read from files before they can be sent; it is memory that payloads cannot have."""
        with self._lock:
            self.index += change
        if change < 0:
            self._look_for_room()

    def give_back(self, owner: str, memory: int, disk: int, index: int = 0) -> None:
        with self._lock:
            self.memory -= memory
            self.disk -= disk
            self.index -= index
            assert self.memory >= 0 <= self.disk
            assert self.index >= 0
            if self.owner_max >= 0:
                self._owners[owner] -= memory + disk
                if self._owners[owner] <= 0:
                    del self._owners[owner]
        self._look_for_room()

    def _look_for_room(self) -> None:
        # With a distance to the mark, so that writers are not told for each buffer.
        if self._memory_wanted and self.memory * 4 <= (self.memory_max - self.index) * 3:
            self._memory_wanted = False
            self.on_room()
        if self._disk_wanted and not self.disk_full:
            self._disk_wanted = False
            self.on_room()
