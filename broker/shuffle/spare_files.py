"""Data files whose partitions are gone, kept to be written again.

A new file costs the kernel a page for each 4 KiB and a place on the disk for each block. One that is written over has both:
where memory is not backed by the host yet, that is thirty times as fast, and still twice as fast where it is. What stands in
it belongs to nobody, so nobody is shown it.

Only the spiller's thread comes here.
"""

from attrs import frozen

from broker.runtime.disk import Disk
from broker.shuffle.stored import DataFile

# How long (s) one is kept for somebody who wants it.
SPARE_S = 60.0


@frozen
class _Spare:
    file: DataFile
    size: int
    since: float


class SpareFiles:
    """``most``: bytes of them together."""

    def __init__(self, disk: Disk, most: int) -> None:
        self._disk = disk
        self._most = most
        self._spares: list[_Spare] = []  # the last one kept is the last
        self.bytes = 0
        # A name of what they were before may come back until the directory is made durable, so until then none is written.
        self._names_durable = True

    @property
    def paths(self) -> list[str]:
        return [spare.file.path for spare in self._spares]

    def keep(self, file: DataFile, size: int, now: float) -> bool:
        """Take over a file that was retired, of which there is no index any more. False if there is no room for it."""
        if not 0 < size <= self._most - self.bytes:
            return False
        self._spares.append(_Spare(file, size, now))
        self.bytes += size
        self._names_durable = False
        return True

    def take(self, path: str) -> int:
        """Give one the name ``path``: its size. 0 if there is none that nobody uses. OSError, and it is a spare still."""
        for index in reversed(range(len(self._spares))):
            spare = self._spares[index]
            if spare.file.in_use:
                continue
            if not self._names_durable:
                self._disk.sync_dir(path.rpartition("/")[0])
                self._names_durable = True
            self._disk.rename(spare.file.path, path)
            del self._spares[index]
            self.bytes -= spare.size
            return spare.size
        return 0

    def surplus(self, now: float, most: int) -> list[str]:
        """Those to be removed: that nobody has wanted for long, or that are more than ``most`` bytes. The oldest first."""
        gone = []
        while self._spares and (self.bytes > most or now - self._spares[0].since >= SPARE_S):
            spare = self._spares.pop(0)
            self.bytes -= spare.size
            gone.append(spare.file.path)
        return gone

    def next_s(self, now: float) -> float | None:
        """When to look for some that nobody has wanted for long."""
        return max(0.0, self._spares[0].since + SPARE_S - now) if self._spares else None
