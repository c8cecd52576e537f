"""The data directory of a stopped broker, for commands that look into it and change nothing."""

from collections.abc import Iterator
from contextlib import contextmanager

from broker.errors import ConfigError
from broker.metadata.catalogue import Catalogue
from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime import copying
from broker.runtime.disk import Disk
from broker.runtime.temporary import TemporaryDirectory
from broker.storage.data_directory import CATALOGUE, LOCK, RESTORING, check_layout


@contextmanager
def locked(disk: Disk, data_dir: str) -> Iterator[None]:
    """No broker uses it meanwhile. Raises ConfigError, OSError."""
    if not disk.exists(f"{data_dir}/{CATALOGUE}"):
        raise ConfigError(f"Name the data directory of a broker: {data_dir} has no {CATALOGUE}.")
    if disk.exists(f"{data_dir}/{RESTORING}"):
        raise ConfigError(f"Name a complete data directory: what was restored into {data_dir} did not finish.")
    check_layout(disk, data_dir)
    try:
        lock = disk.lock(f"{data_dir}/{LOCK}")
    except BlockingIOError:
        raise ConfigError(f"Stop the broker that uses {data_dir} first: its files must not change meanwhile.") from None
    try:
        yield
    finally:
        lock.close()


@contextmanager
def copy_of_catalogue(disk: Disk, data_dir: str) -> Iterator[Catalogue]:
    """A copy, because a catalogue that is opened may be upgraded, and its log written back. Raises ConfigError, OSError."""
    directory = TemporaryDirectory()
    try:
        for name in (CATALOGUE, f"{CATALOGUE}-wal"):
            path = f"{data_dir}/{name}"
            if disk.exists(path):
                copying.copy_file(path, f"{directory.path}/{name}", disk.file_size(path))
        catalogue = SqliteCatalogue(f"{directory.path}/{CATALOGUE}")
        try:
            yield catalogue
        finally:
            catalogue.close()
    finally:
        directory.remove()
