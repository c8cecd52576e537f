"""The layout of backups: files, plan, manifest and journal, for the broker that pins files and the command that copies them.

The broker makes the directory ``STAGING`` in its data directory: hard links to the files of the logs, a copy of the catalogue,
checkpoint files for the moment of the backup, and ``PLAN``, which lists them. It is laid out like a data directory.

A backup is a directory with ``data``, laid out like a data directory, and ``backup.json``, the *manifest*, which has the size
and checksum of each file in it. The manifest is written last, so a directory without it is no backup. Until then there is
``backup-unfinished.jsonl``, the *journal*: a line for each whole and durable file, so that another attempt need not copy it
again.

Pure functions over a ``Disk``.

Tests: tests/storage/backup/test_backups.py.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from broker.errors import BrokerError
from broker.runtime.copying import Identity
from broker.runtime.disk import Disk
from broker.storage.checkpoints import CorruptCheckpoint, read_text, replace_text

# In the data directory. Its name is not that of a partition.
STAGING = ".backup"
PLAN = "plan.json"


@attrs.frozen
class PlannedFile:
    """``size`` bytes of the file at ``path`` (relative) belong to the backup. The content of a file that is ``closed`` does not
    change any more."""

    path: str
    size: int
    closed: bool


@attrs.frozen
class PlannedPartition:
    topic: str
    partition: int
    start_offset: int
    end_offset: int
    offline: bool  # its files are copied as they are


@attrs.frozen
class Plan:
    """The content of a backup, written by the broker."""

    backup_id: str
    taken_ms: int  # the moment of the backup
    cluster_id: str
    version: str  # of the broker
    partitions: tuple[PlannedPartition, ...]
    files: tuple[PlannedFile, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "backup_id": self.backup_id,
            "taken_ms": self.taken_ms,
            "cluster_id": self.cluster_id,
            "version": self.version,
            "partitions": [list(attrs.astuple(each)) for each in self.partitions],
            "files": [list(attrs.astuple(each)) for each in self.files],
        }


def inner_path(text: object) -> str:
    """The path of a file below the directory of a plan or a backup. Raises ValueError for a path that leads elsewhere.

    Commands that root runs copy to these paths, and somebody else may have written the plan or the backup.
    """
    path = str(text)
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"{path[:100]!r} is no path in a backup")
    return path


def plan_from_json(fields: Mapping[str, Any]) -> Plan:
    """Raises KeyError, TypeError or ValueError for anything else."""
    return Plan(
        backup_id=str(fields["backup_id"]),
        taken_ms=int(fields["taken_ms"]),
        cluster_id=str(fields["cluster_id"]),
        version=str(fields["version"]),
        partitions=tuple(PlannedPartition(*each) for each in fields["partitions"]),
        files=tuple(PlannedFile(inner_path(path), *rest) for path, *rest in fields["files"]),
    )


MANIFEST = "backup.json"
JOURNAL = "backup-unfinished.jsonl"
DATA = "data"
FORMAT = 1


class BadBackup(BrokerError):
    """A directory that is no backup, or an incomplete or damaged backup."""


@attrs.frozen
class StoredFile:
    """A file of a backup. ``source`` identifies the broker's file, so that a change shows; None if it may change."""

    path: str
    size: int
    checksum: int  # CRC-32C
    source: Identity | None

    def to_json(self) -> list[Any]:
        return [self.path, self.size, self.checksum, None if self.source is None else list(self.source)]


def _stored(fields: list[Any]) -> StoredFile:
    path, size, checksum, source = fields
    return StoredFile(
        inner_path(path), int(size), int(checksum), None if source is None else Identity(*map(int, source))
    )


@attrs.frozen
class Manifest:
    plan: Plan
    files: tuple[StoredFile, ...]


def manifest_text(manifest: Manifest) -> str:
    plan = manifest.plan.to_json()
    del plan["files"]
    files = [file.to_json() for file in manifest.files]
    return json.dumps({"format": FORMAT, **plan, "stored": files}, separators=(",", ":"))


def write_manifest(disk: Disk, directory: str, manifest: Manifest) -> None:
    """Complete the backup, durably. Raises OSError."""
    replace_text(disk, f"{directory}/{MANIFEST}", manifest_text(manifest))
    disk.remove(f"{directory}/{JOURNAL}")
    disk.sync_dir(directory)


def read_manifest(disk: Disk, directory: str) -> Manifest:
    """Raises BadBackup, OSError."""
    try:
        text = read_text(disk, f"{directory}/{MANIFEST}")
    except CorruptCheckpoint as error:
        raise BadBackup(f"{directory}/{MANIFEST} cannot be read: {error}.") from error
    if text is None:
        if disk.exists(f"{directory}/{JOURNAL}"):
            raise BadBackup(f"{directory} is a backup that was not finished: run `broker backup {directory}` again.")
        raise BadBackup(f"{directory} is not a backup: it has no {MANIFEST}.")
    return manifest_from_text(text, directory)


def manifest_from_text(text: str, place: str) -> Manifest:
    """``place`` is where the backup is. Raises BadBackup."""
    try:
        fields = json.loads(text)
        if fields["format"] != FORMAT:
            raise BadBackup(
                f"{place} has format {fields['format']}, and this version of the broker reads {FORMAT} only."
            )
        stored = tuple(_stored(each) for each in fields["stored"])
        return Manifest(plan_from_json({**fields, "files": []}), stored)
    except (ValueError, KeyError, TypeError) as error:
        raise BadBackup(f"{place}/{MANIFEST} is damaged: {error}.") from error


def journal_line(file: StoredFile) -> str:
    return json.dumps(file.to_json(), separators=(",", ":"))


def read_journal(disk: Disk, directory: str) -> Iterator[StoredFile]:
    """The files of an unfinished backup; incomplete lines are left out. Raises OSError."""
    try:
        text = read_text(disk, f"{directory}/{JOURNAL}") or ""
    except CorruptCheckpoint:
        return
    for line in text.splitlines():
        try:
            yield _stored(json.loads(line))
        except (ValueError, TypeError):
            continue
