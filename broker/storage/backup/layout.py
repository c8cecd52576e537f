"""Names and values that the broker, which pins the files of a backup, and the command that copies them have in common.

The broker makes the directory ``STAGING`` in its data directory: hard links to the files of the logs, a copy of the catalogue,
checkpoint files for the moment of the backup, and ``PLAN``, which lists them. It is laid out like a data directory.

Tests: tests/storage/backup/test_manifest.py, tests/storage/backup/test_backups.py.
"""

from collections.abc import Mapping
from typing import Any

import attrs

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
    """What belongs to a backup, as the broker says it."""

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
    """The path of a file below the directory of a plan or a backup. Raises ValueError for one that leads elsewhere.

    Commands that root runs copy to these paths, and those who have written the plan or the backup may be somebody else.
    """
    path = str(text)
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"{path[:100]!r} is no path in a backup")
    return path


def plan_from_json(fields: Mapping[str, Any]) -> Plan:
    """Raises KeyError, TypeError or ValueError for something else."""
    return Plan(
        backup_id=str(fields["backup_id"]),
        taken_ms=int(fields["taken_ms"]),
        cluster_id=str(fields["cluster_id"]),
        version=str(fields["version"]),
        partitions=tuple(PlannedPartition(*each) for each in fields["partitions"]),
        files=tuple(PlannedFile(inner_path(path), *rest) for path, *rest in fields["files"]),
    )
