"""The data directory as a whole: whether a directory may be used as one, and the lock on it.

Runs on the thread that opens the broker, before anything in the directory, the catalogue included, is read or written. The lock
is released last. ``recovery/startup.py`` reads the rest of the directory.
"""

from broker.errors import ConfigError
from broker.runtime.disk import Disk, File
from broker.runtime.files import explain_denial
from broker.storage import partition_dir
from broker.storage.checkpoints import (
    CLEANER_OFFSETS,
    LOG_STARTS,
    RECOVERY_POINTS,
    CorruptCheckpoint,
    read_text,
    replace_text,
)
from broker.storage.config import StorageConfig

LOCK = ".lock"
PROPERTIES = "meta.properties"
CATALOGUE = "catalogue.sqlite"
CHECKPOINTS = (RECOVERY_POINTS, LOG_STARTS, CLEANER_OFFSETS)
# Exists while a backup or a catalogue in PostgreSQL is being restored into the directory.
RESTORING = ".restore-unfinished"
# Says that everything in the directory is a copy of what is in a journal elsewhere (``journal/cache_directory.py``).
CACHE = ".cache-of-a-journal"
# Increased when an older broker would misread the directory.
LAYOUT = 1

_SHARED = frozenset({PROPERTIES, *CHECKPOINTS})
_OF_THE_FILE_SYSTEM = "lost+found"


class DataDirectory:
    """A data directory that this broker has locked until ``close``."""

    def __init__(self, lock: File) -> None:
        self._lock = lock

    def close(self) -> None:
        self._lock.close()


def take(disk: Disk, config: StorageConfig) -> DataDirectory:
    """Make the directory if it is missing, and lock it. Raises ConfigError, before anything in it is changed, if it must not be
    used."""
    directory = config.data_dir
    try:
        disk.makedirs(directory)
    except OSError as error:
        raise ConfigError(
            f"Choose another data_dir: {directory} cannot be made ({explain_denial(error, directory)})."
        ) from error
    try:
        is_cache = _check_cache(disk, config)
        if not config.data_dir_accept_foreign_files and not is_cache:
            _refuse_foreign(disk, directory)
        lock = _lock(disk, directory)
    except OSError as error:
        raise ConfigError(
            f"Choose another data_dir, or make {directory} writable: {explain_denial(error, directory)}."
        ) from error
    try:
        if not is_cache:
            _check_restored(disk, directory)
            check_layout(disk, directory)
    except OSError as error:
        lock.close()
        why = explain_denial(error, f"{directory}/{PROPERTIES}")
        raise ConfigError(f"The data directory {directory} cannot be used: {why}.") from error
    except BaseException:
        lock.close()
        raise
    return DataDirectory(lock)


def _lock(disk: Disk, directory: str) -> File:
    path = f"{directory}/{LOCK}"
    try:
        return disk.lock(path)
    except BlockingIOError:
        raise ConfigError(
            f"Another broker ({_holder(disk, path)}) uses {directory}: stop it, or choose another data_dir."
        ) from None


def _holder(disk: Disk, path: str) -> str:
    try:
        return (read_text(disk, path) or "").strip() or "another process"
    except (OSError, CorruptCheckpoint):
        return "another process"


def _check_cache(disk: Disk, config: StorageConfig) -> bool:
    """Whether the directory is a cache, which the start empties, so it does not matter what a power cut has left of it.

    Raises ConfigError if it is, and this broker would take the copies for its own data.
    """
    is_cache = disk.exists(f"{config.data_dir}/{CACHE}")
    if is_cache and not config.defaults.is_shipped:
        raise ConfigError(
            f"Set catalogue, or choose another data_dir: {config.data_dir} is the cache of a broker whose data is in a catalogue "
            "and an object store, and has copies of a part of it only."
        )
    return is_cache


def _refuse_foreign(disk: Disk, directory: str) -> None:
    """Raises ConfigError if the directory has files that are not a broker's and nothing shows that a broker has used it."""
    names = disk.listdir(directory)
    if CATALOGUE in names or "version" in (_properties(disk, directory) or {}):
        return
    foreign = [name for name in names if not _may_be_there(disk, directory, name)]
    if foreign:
        others = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise ConfigError(
            f"Choose another data_dir: {directory} is not empty and no broker has used it yet (it has "
            f"{foreign[0][:100]!r}{others}); or set data_dir_accept_foreign_files to true to use it all the same."
        )


def _may_be_there(disk: Disk, directory: str, name: str) -> bool:
    """True for what file systems, desktops and version control put into an empty directory, and for files of a broker."""
    if name.startswith(".") or name == _OF_THE_FILE_SYSTEM or name.removesuffix(".tmp") in _SHARED:
        return True
    path = f"{directory}/{name}"
    if partition_dir.parse_name(name) is None and not partition_dir.is_deleted(name):
        return False
    return disk.is_dir(path) and not disk.is_link(path) and partition_dir.read_contents(disk, path).is_partition


def _properties(disk: Disk, directory: str) -> dict[str, str] | None:
    """The content of meta.properties; None without the file."""
    try:
        text = read_text(disk, f"{directory}/{PROPERTIES}")
    except CorruptCheckpoint:
        return {}
    if text is None:
        return None
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def _check_restored(disk: Disk, directory: str) -> None:
    if disk.exists(f"{directory}/{RESTORING}"):
        raise ConfigError(
            f"Run `broker restore` or `broker migrate --back`, whichever it was, into {directory} again: the last one did not "
            "finish, so the directory is not complete."
        )


def check_layout(disk: Disk, directory: str) -> None:
    """Raises ConfigError if a newer broker has written the directory, OSError."""
    layout = (_properties(disk, directory) or {}).get("layout", "1")
    if not layout.isdecimal() or int(layout) > LAYOUT:
        raise ConfigError(
            f"{directory} was written by a newer broker (layout {layout}, this one knows {LAYOUT}): "
            "start that one, or choose another data_dir."
        )


def write_properties(disk: Disk, config: StorageConfig) -> None:
    """Write meta.properties, which marks the directory as a broker's, unless it exists. Raises OSError."""
    if _properties(disk, config.data_dir) is None:
        _sync_parents(disk, config.data_dir)
        text = f"version=1\nnode.id={config.node_id}\nlayout={LAYOUT}\n"
        replace_text(disk, f"{config.data_dir}/{PROPERTIES}", text)


def _sync_parents(disk: Disk, path: str) -> None:
    """Make a new data directory's own name durable, and the names of all directories above it, which may be new as well."""
    root = "/" if path.startswith("/") else "."
    while "/" in path.strip("/"):
        path = path.rstrip("/").rpartition("/")[0] or "/"
        try:
            disk.sync_dir(path)
        except PermissionError:  # so the broker has made neither it nor anything above it
            return
    disk.sync_dir(root)
