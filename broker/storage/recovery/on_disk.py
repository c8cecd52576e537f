"""What recovery is given to open, how it drops segments, and how it reports that records are missing.

Tests: tests/storage/recovery/test_missing_segments.py, tests/storage/recovery/test_recovery.py.
"""

import attrs

from broker.errors import StorageError
from broker.runtime.open_files import OpenFiles
from broker.storage.checkpoints import CLEANER_OFFSETS, LOG_STARTS, RECOVERY_POINTS
from broker.storage.log.state import LoadedLog
from broker.storage.segments.file_names import DELETED, LOG, SNAPSHOT, file_name


@attrs.frozen(kw_only=True)
class LogOnDisk:
    """What is to be opened. ``recovery_point`` and ``start_offset`` come from the checkpoints (0 without one)."""

    files: OpenFiles
    directory: str
    names: list[str]  # of the files in it that are a partition's
    clean: bool  # the broker was stopped in order
    recovery_point: int
    start_offset: int
    start_known: bool  # the checkpoint is reliable: the log begins there and not later
    dense_from: int  # compaction has made no gaps from here on
    newest_epoch: int
    index_interval_bytes: int
    now_ms: int

    def missing(self, first: int, following: int) -> StorageError:
        """The error for a missing segment: there are no records from ``first`` to ``following``, where the next one begins."""
        directory, _, name = self.directory.rpartition("/")
        topic, _, partition = name.rpartition("-")
        if first == self.start_offset:
            way_out = f"setting the line of the partition in {LOG_STARTS} to '{topic} {partition} {following}'"
        else:
            way_out = (
                f"adding the line '{topic} {partition} 0' to {CLEANER_OFFSETS} (its second line is the number of lines)"
            )
        return StorageError(
            f"{self.directory} has no records from offset {first} to {following - 1}: {file_name(first, LOG)}, or what followed "
            f"it, is missing. Nothing was changed. Bring the missing files back, or accept the loss by {way_out} in {directory} "
            "while the broker is stopped"
        )

    def lost(self, end_offset: int) -> StorageError:
        """The error for a log that ends here, before its recovery point."""
        return StorageError(
            f"{self.directory} ends at offset {end_offset}, but was durable up to {self.recovery_point}: records are lost. "
            "Bring the missing files back, or accept the loss by taking the partition's line out of "
            f"{RECOVERY_POINTS} while the broker is stopped"
        )


def drop(source: LogOnDisk, loaded: LoadedLog, first: int, end: int | None = None) -> None:
    """Drop segments from the log. Their files are renamed, and removed at the next start. Raises OSError."""
    disk = source.files.disk
    for segment in loaded.segments[first:end]:
        segment.drop_files()
        for path in segment.paths():
            if disk.exists(path) and not path.endswith(SNAPSHOT):
                disk.rename(path, path + DELETED)
    del loaded.segments[first:end]
    disk.sync_dir(source.directory)
