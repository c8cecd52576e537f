"""Copies what a broker has pinned to another directory. In the process of `broker backup`, not in the broker's.

Each file is fsynced before the journal says that it is there, and the manifest comes last. A closed segment that an earlier
backup, or an earlier attempt at this one, has already is not copied again: it gets a second name where both are on one disk.

Tests: tests/process/test_backup.py.
"""

from collections.abc import Callable, Iterable

import attrs

from broker.errors import ConfigError
from broker.runtime import copying
from broker.runtime.disk import Disk
from broker.storage.backup.layout import Plan, PlannedFile
from broker.storage.backup.manifest import (
    DATA,
    JOURNAL,
    MANIFEST,
    Manifest,
    StoredFile,
    journal_line,
    read_journal,
    read_manifest,
    write_manifest,
)

# Called with the number of bytes that were copied or looked at since the last call. It may raise.
Tick = Callable[[int], None]


@attrs.define
class Copied:
    """What was done."""

    files: int = 0
    size: int = 0
    reused: int = 0  # files of those that were not copied
    reused_size: int = 0


def check_target(disk: Disk, target: str) -> None:
    """Raises ConfigError unless the directory is missing, empty, or an unfinished backup. OSError."""
    if not disk.exists(target):
        return
    if not disk.is_dir(target):
        raise ConfigError(f"Choose another target: {target} is not a directory.")
    names = set(disk.listdir(target)) - {"lost+found"}
    if MANIFEST in names:
        raise ConfigError(
            f"Choose another target: {target} is a backup already; --since {target} makes the next one smaller."
        )
    if names and JOURNAL not in names:
        raise ConfigError(f"Choose another target: {target} is not empty (it has {min(names)!r}).")


def copy_backup(
    disk: Disk, plan: Plan, staging: str, target: str, since: str | None = None, tick: Tick = lambda _: None
) -> Copied:
    """Copy the files of the plan from the directory ``staging`` to the absolute path ``target``. ``since``: an earlier backup.
    Raises OSError, BadBackup."""
    copying.make_private_directory(f"{target}/{DATA}")
    unfinished = {file.path: file for file in read_journal(disk, target)}
    earlier = {file.path: file for file in read_manifest(disk, since).files} if since is not None else {}
    copying.append_line(f"{target}/{JOURNAL}", "")
    stored: list[StoredFile] = []
    copied = Copied()
    made: set[str] = set()
    for file in plan.files:
        directory = f"{target}/{DATA}/{file.path}".rpartition("/")[0]
        if directory not in made:
            copying.make_private_directory(directory)
            made.add(directory)
        source = copying.identity(f"{staging}/{file.path}") if file.closed else None
        kept = _kept(disk, file, source, unfinished.get(file.path), target, None)
        kept = kept or _kept(disk, file, source, earlier.get(file.path), target, since)
        if kept is None:
            checksum = copying.copy_file(f"{staging}/{file.path}", f"{target}/{DATA}/{file.path}", file.size, tick)
            kept = StoredFile(file.path, file.size, checksum, source)
        else:
            copied.reused += 1
            copied.reused_size += file.size
            tick(0)
        copying.append_line(f"{target}/{JOURNAL}", journal_line(kept))
        stored.append(kept)
        copied.files += 1
        copied.size += file.size
    _remove_others(disk, f"{target}/{DATA}", {file.path for file in stored})
    for directory in sorted({*made, f"{target}/{DATA}"}):
        disk.sync_dir(directory)
    write_manifest(disk, target, Manifest(plan, tuple(stored)))
    disk.sync_dir(target.rpartition("/")[0] or "/")
    return copied


def _kept(
    disk: Disk,
    file: PlannedFile,
    source: copying.Identity | None,
    known: StoredFile | None,
    target: str,
    since: str | None,
) -> StoredFile | None:
    """The file as it is there already, in ``target`` or in the backup ``since``; None if it must be copied."""
    if source is None or known is None or known.source != source or known.size != file.size:
        return None
    path = f"{target}/{DATA}/{file.path}"
    if since is not None and not copying.link_or_none(f"{since}/{DATA}/{file.path}", path):
        return None
    try:
        return known if disk.file_size(path) == file.size else None
    except FileNotFoundError:
        return None


def _remove_others(disk: Disk, data: str, wanted: Iterable[str]) -> None:
    """Remove what an earlier attempt has copied and the broker has deleted since."""
    keep = set(wanted)
    for path in list(copying.files_below(data)):
        if path not in keep:
            disk.remove(f"{data}/{path}")
