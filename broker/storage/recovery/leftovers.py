"""The log that recovery is to open: its description, dropping its segments, and finishing interrupted deletions and compactions.

At the start, on the thread that opens the broker. The names of the files tell what to do; only ``finish_swap`` reads headers.

Tests: tests/storage/recovery/test_recovery.py,
tests/storage/recovery/test_missing_segments.py.
"""

from collections.abc import Iterable

import attrs

from broker.errors import StorageError
from broker.runtime.open_files import OpenFiles
from broker.storage.checkpoints import CLEANER_OFFSETS, LOG_STARTS, RECOVERY_POINTS
from broker.storage.log.state import LoadedLog
from broker.storage.partition_dir import sort_out
from broker.storage.segments.segment import (
    BASE_OFFSET,
    CLEANED,
    DELETED,
    LAST_DELTA,
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    Segment,
    file_name,
    offset_of,
)


@attrs.frozen(kw_only=True)
class LogOnDisk:
    """The log to be opened. ``recovery_point`` and ``start_offset`` come from the checkpoints (0 without one)."""

    files: OpenFiles
    directory: str
    names: list[str]  # of the partition's files in it
    clean: bool  # the broker was stopped in order
    recovery_point: int
    start_offset: int
    start_known: bool  # the checkpoint is reliable: the log begins there and not later
    dense_from: int  # compaction has made no gaps from here on
    newest_epoch: int
    index_interval_bytes: int
    now_ms: int
    may_lack_indexes: bool = False  # it comes from a journal, which does not have them

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
        """The error for a log that ends at ``end_offset``, before its recovery point."""
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


_INDEXES = (OFFSET_INDEX, TIME_INDEX, TXN_INDEX)
_PASSING = (DELETED, CLEANED, SWAP, ".tmp")  # ends of temporary names


def tidy(source: LogOnDisk) -> list[str]:
    """Finish deletions and compactions. Returns the names of the remaining files. Raises OSError."""
    disk, directory = source.files.disk, source.directory
    changed = False
    names = source.names
    if not any(name.endswith(_PASSING) for name in names) and not _stray_indexes(names):
        return names
    left_over = [name for name in names if name.endswith(_PASSING) and not name.endswith(SWAP)]
    for name in left_over:
        disk.remove(f"{directory}/{name}")
        changed = True
    if any(name.endswith(SWAP) for name in names):
        for name in names:
            if name.endswith(LOG + SWAP):
                finish_swap(source.files, directory, name)
        names = _own(disk.listdir(directory))
        for name in names:
            if name.endswith(SWAP):
                disk.remove(f"{directory}/{name}")
        changed = True
    names = [name for name in names if not name.endswith(_PASSING)]
    for name in _stray_indexes(names):
        disk.remove(f"{directory}/{name}")
        changed = True
    if changed:
        disk.sync_dir(directory)
        names = _own(disk.listdir(directory))
    return names


def _stray_indexes(names: list[str]) -> list[str]:
    """The index files that have no log file."""
    logs = {name.removesuffix(LOG) for name in names if name.endswith(LOG)}
    return [name for name in names if name.endswith(_INDEXES) and name.rpartition(".")[0] not in logs]


def _own(names: Iterable[str]) -> list[str]:
    return sorted(sort_out(names).own)


def finish_swap(files: OpenFiles, directory: str, name: str) -> None:
    """Finish the replacement of segments by a complete compacted one: remove their files and give its file its final name.

    In two durable steps, because if the new name survived a crash and the removals did not, old and new segments would overlap.
    The index of aborted transactions is renamed before the log: as long as a ``.swap`` log exists, this runs again. The index
    with the final name is then the new index, or an old index to be replaced, or one whose segment has no record left.
    """
    disk = files.disk
    base = offset_of(name, LOG + SWAP)
    if base is None:
        return
    swapped = Segment(files, directory, base, 0, 0)
    swapped.log.path += SWAP
    end_offset = base
    for _, header in swapped.walk(0, swapped.log.get().size()):
        end_offset = header[BASE_OFFSET] + header[LAST_DELTA] + 1
    swapped.drop_files()
    aborted = f"{directory}/{file_name(base, TXN_INDEX)}"
    for other in disk.listdir(directory):
        for suffix in (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX):
            offset = offset_of(other, suffix)
            if offset is None or not base <= offset < max(end_offset, base + 1):
                continue
            if offset > base or suffix not in (LOG, TXN_INDEX):
                disk.remove(f"{directory}/{other}")
    disk.sync_dir(directory)
    if disk.exists(aborted + SWAP):
        disk.rename(aborted + SWAP, aborted)
        disk.sync_dir(directory)
    disk.rename(f"{directory}/{name}", f"{directory}/{file_name(base, LOG)}")
    disk.sync_dir(directory)
