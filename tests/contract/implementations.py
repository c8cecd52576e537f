"""The subjects of the contract suites: each seam's real implementation and the simulator's, by name.

A disk's factory gets an empty directory of the real file system and returns a disk and the path of an empty directory on it. A
catalogue's gets the same and returns a function that opens the catalogue; called again, after ``close``, it opens it again.
"""

from collections.abc import Callable
from pathlib import Path

from broker.metadata.catalogue import Catalogue
from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime.disk import Disk, SystemDisk
from tests.sim.catalogue import SimCatalogue, Tables
from tests.sim.disk import Medium, SimDisk
from tests.sim.world import World


def _system_disk(directory: Path) -> tuple[Disk, str]:
    return SystemDisk(), str(directory)


def _simulated_disk(directory: Path) -> tuple[Disk, str]:
    world = World(seed=1)
    disk = SimDisk(world.boot(), Medium(world))
    disk.makedirs("/data")
    return disk, "/data"


def _sqlite(directory: Path) -> Callable[[], Catalogue]:
    return lambda: SqliteCatalogue(f"{directory}/catalogue.sqlite")


def _simulated_catalogue(directory: Path) -> Callable[[], Catalogue]:
    tables = Tables()
    return lambda: SimCatalogue(None, tables)


DISKS: dict[str, Callable[[Path], tuple[Disk, str]]] = {"system": _system_disk, "simulated": _simulated_disk}
CATALOGUES: dict[str, Callable[[Path], Callable[[], Catalogue]]] = {
    "sqlite": _sqlite,
    "simulated": _simulated_catalogue,
}
