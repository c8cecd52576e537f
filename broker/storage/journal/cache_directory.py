"""The data directory of a broker whose disk is a cache: it is emptied at each start, before the journal is replayed into it.

A mark says that everything in the directory is a copy. Without the mark, only an empty directory is taken: what is in another
one may be the only copy. The data directory is locked before.

Tests: tests/storage/journal/test_cache_directory.py.
"""

from broker.errors import ConfigError
from broker.runtime.disk import Disk
from broker.storage.data_directory import CACHE, CATALOGUE, LOCK

# What stays: the lock, and what a file system has in its top directory.
_LEFT = (LOCK, "lost+found")


def empty(disk: Disk, data_dir: str) -> None:
    """Remove all files but the lock. Raises ConfigError if they may be no copies, OSError."""
    names = disk.listdir(data_dir)
    if CACHE not in names:
        if CATALOGUE in names:
            raise ConfigError(
                f"Choose another data_dir, or bring its data along with `broker migrate`: {data_dir} is that of a broker "
                "without catalogue, and this one would empty it."
            )
        foreign = [name for name in names if name not in _LEFT]
        if foreign:
            raise ConfigError(
                f"Choose an empty data_dir: with catalogue it is a cache and is emptied, and {data_dir} has {foreign[0]!r}."
            )
        disk.open(f"{data_dir}/{CACHE}", create=True).close()
        disk.sync_dir(data_dir)
    for name in names:
        if name != CACHE and name not in _LEFT:
            _remove(disk, f"{data_dir}/{name}")


def _remove(disk: Disk, path: str) -> None:
    """A link is removed, and what it leads to is not."""
    if disk.is_link(path) or not disk.is_dir(path):
        disk.remove(path)
        return
    for name in disk.listdir(path):
        _remove(disk, f"{path}/{name}")
    disk.rmdir(path)
