"""A disk that ships to a journal in memory, and the same after the machine was lost."""

from collections.abc import Iterable
from pathlib import Path

import attrs

from broker.runtime.clock import SystemClock
from broker.runtime.disk import Buffer, Disk, SystemDisk
from broker.runtime.objects import MemoryObjects, ObjectError
from broker.storage.journal.restoring import restore
from broker.storage.journal.shipped_disk import ShippedDisk
from broker.storage.journal.shipper import Shipper, ShippingLimits
from tests.sim.journal import JournalTable

# Small, so that flushes have objects and several pieces, and rows become too many.
SMALL = ShippingLimits(inline_max=64, flush_max=256, linger_s=0.01, rows=8, bytes=2_000)


@attrs.define
class Machines:
    """One after the other over the same journal and objects; each has an empty directory below ``root``."""

    root: Path
    table: JournalTable = attrs.field(factory=JournalTable)
    objects: MemoryObjects = attrs.field(factory=MemoryObjects)
    limits: ShippingLimits = SMALL
    count: int = 0

    def next(self) -> "Machine":
        self.count += 1
        directory = f"{self.root}/{self.count}"
        inner = SystemDisk()
        inner.makedirs(directory)
        journal = self.table.take_over()
        prefix = f"journal/{journal.epoch:08d}/"
        shipper = Shipper(journal, self.objects, SystemClock(), prefix=prefix, last=journal.last(), limits=self.limits)
        restore(inner, directory, journal, self.objects, shipper)
        return Machine(inner, directory, shipper, ShippedDisk(inner, directory, shipper))


@attrs.define
class Machine:
    inner: Disk
    directory: str
    shipper: Shipper
    disk: ShippedDisk

    def files(self) -> dict[str, bytes]:
        """The content of every file that is shipped."""
        root = Path(self.directory)
        return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


class FailingObjects(MemoryObjects):
    """The next ``failures`` puts fail."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    def put(self, key: str, parts: Iterable[Buffer], size: int, *, create: bool = False) -> None:
        if self.failures:
            self.failures -= 1
            raise ObjectError("put", key, self.name, "503")
        super().put(key, parts, size, create=create)
