"""What recovery is given to open, how it takes segments out of it, and how it says that records are missing."""

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
    start_known: bool  # the checkpoint is to be believed: the log begins there and not later
    dense_from: int  # compaction has made no gaps from here on
    newest_epoch: int
    index_interval_bytes: int
    now_ms: int

    def missing(self, first: int, following: int) -> StorageError:
        """A segment is missing: there is nothing from offset ``first`` to ``following``, where the next one begins."""
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
        """The log ends here, before its recovery point."""
        return StorageError(
            f"{self.directory} ends at offset {end_offset}, but was durable up to {self.recovery_point}: records are lost. "
            "Bring the missing files back, or accept the loss by taking the partition's line out of "
            f"{RECOVERY_POINTS} while the broker is stopped"
        )


def drop(source: LogOnDisk, loaded: LoadedLog, first: int, end: int | None = None) -> None:
    """Take segments out of the log. Their files wait, renamed, for the next start."""
    disk = source.files.disk
    for segment in loaded.segments[first:end]:
        segment.drop_files()
        for path in segment.paths():
            if disk.exists(path) and not path.endswith(SNAPSHOT):
                disk.rename(path, path + DELETED)
    del loaded.segments[first:end]
    disk.sync_dir(source.directory)
