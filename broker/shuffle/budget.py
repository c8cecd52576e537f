"""What all result partitions together may use: memory, disk, and each owner's share.

Touched by processors and the spiller, under one lock that is held for an addition.
"""

from collections import Counter
from collections.abc import Callable

from broker.runtime.threads import Lock


class Budget:
    def __init__(self, memory_max: int, disk_max: int, owner_max: int) -> None:
        """Bytes each. ``disk_max`` and ``owner_max``: -1 for no bound."""
        self.memory_max = memory_max
        self.disk_max = disk_max
        self.owner_max = owner_max
        # Called when somebody who found it full might find room now; from any thread, perhaps with a partition's lock held.
        self.on_room: Callable[[], None] = lambda: None
        self._starved = False
        self._lock = Lock()
        self._memory = 0
        self._disk = 0
        self._owners: Counter[str] = Counter()

    @property
    def memory(self) -> int:
        return self._memory

    @property
    def disk(self) -> int:
        return self._disk

    def owned(self, owner: str) -> int:
        return self._owners[owner]

    @property
    def memory_scarce(self) -> bool:
        """The spiller should make room."""
        return self._memory > self.memory_max // 2

    @property
    def full(self) -> bool:
        """Writers must wait: memory is used up and the spiller is behind, or the disk is. Who is told so is called later."""
        self._starved = True  # before looking: room that comes in between is noticed
        if self._memory >= self.memory_max or self.disk_full:
            return True
        self._starved = False
        return False

    @property
    def disk_full(self) -> bool:
        return 0 <= self.disk_max <= self._disk

    def take(self, owner: str, size: int) -> bool:
        """Count a buffer in, in memory; False (and not counted) if its owner has as much as it may."""
        with self._lock:
            if 0 <= self.owner_max < self._owners[owner] + size:
                return False
            self._owners[owner] += size
            self._memory += size
            return True

    def spilled(self, size: int) -> None:
        """From memory to disk."""
        with self._lock:
            self._memory -= size
            self._disk += size
        self._look_for_room()

    def loaded(self, owner: str, size: int) -> None:
        """Found on disk at the start."""
        with self._lock:
            self._owners[owner] += size
            self._disk += size

    def give_back(self, owner: str, memory: int, disk: int) -> None:
        with self._lock:
            self._memory -= memory
            self._disk -= disk
            self._owners[owner] -= memory + disk
            assert self._memory >= 0 <= self._disk
            if self._owners[owner] <= 0:
                del self._owners[owner]
        self._look_for_room()

    def _look_for_room(self) -> None:
        # With a distance to the mark, so that writers are not told for each buffer.
        if self._starved and self._memory * 4 <= self.memory_max * 3 and not self.disk_full:
            self._starved = False
            self.on_room()
