"""The staging directory of a backup: the ends of all logs at one moment, and hard links to the files up to there.

The files of logs are hard links, so they remain when retention, compaction or the deletion of a topic removes them from the log,
and take no extra room until then. Nothing here is fsynced: after a crash of the broker the directory is worthless and is removed
at the next start.

If a record of one log is in the backup, so must be every record that was acknowledged before it in another log. So the locks of
all logs are held together while their ends are read, for at most ``_HELD_S``. A log whose lock is not free within that time is
being written to by a thread that waits for the disk. Its end changes when that thread is done; it is read until two reads in a
row agree, while all other logs stand still, and then belongs to the same moment. Nothing else takes the locks of two logs, and
every lock here is waited for with a limit.

Runs on a handler or on the thread that opens the broker; both may wait for the disk.

Tests: tests/storage/backup/test_backups.py.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from broker.runtime.clock import Clock
from broker.runtime.disk import Disk
from broker.storage import partition_dir
from broker.storage.backup.layout import PLAN, Plan, PlannedFile, PlannedPartition
from broker.storage.checkpoints import (
    CLEANER_OFFSETS,
    LEADER_EPOCHS,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    TXN_INDEX_CHECKPOINT,
    CorruptCheckpoint,
    Offsets,
    read_offsets,
    write_offsets,
)
from broker.storage.data_directory import CATALOGUE, CHECKPOINTS, PROPERTIES
from broker.storage.log.log import Log
from broker.storage.segments.segment import (
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    Segment,
    file_name,
    offset_of,
)

# The longest time (s) for which appends may have to wait.
_HELD_S = 0.1
_READS = 100


@attrs.frozen
class LogCut:
    """A log at the moment of the cut, which ended in ``segment``, at the size ``size`` of it; None for a log that could not be
    opened."""

    log: Log
    end_offset: int
    segment: Segment | None
    size: int


def cut(logs: Sequence[Log], clock: Clock, together: Callable[[], bool] | None = None) -> list[LogCut] | None:
    """The ends of the logs at one moment during this call. ``together``: waits until other nodes hold theirs, too, and says
    whether they do; the moment is when it returns. Then None: there was no such moment."""
    taken = []
    busy = []
    until = clock.monotonic() + _HELD_S
    try:
        for log in logs:
            if log.lock.acquire(timeout=max(0.0, until - clock.monotonic())):
                taken.append(log.lock)
            else:
                busy.append(log)
        tails = [log.written_end for log in busy]
        if together is not None and (not together() or tails != [log.written_end for log in busy]):
            return None
        for _ in range(_READS):
            before, tails = tails, [log.written_end for log in busy]
            if before == tails:
                break
        known = dict(zip(busy, tails, strict=True))
        return [LogCut(log, *known.get(log, log.written_end)) for log in logs]
    finally:
        for lock in taken:
            lock.release()


_SMALL_FILES = (PARTITION_METADATA, LEADER_EPOCHS, TXN_INDEX_CHECKPOINT, partition_dir.ENTRIES)


def read_saved(disk: Disk, data_dir: str) -> dict[str, Offsets]:
    """The offsets of the checkpoint files, by their names. Raises OSError."""
    saved = {}
    for name in CHECKPOINTS:
        try:
            saved[name] = read_offsets(disk, f"{data_dir}/{name}")
        except CorruptCheckpoint:  # the broker writes it anew
            saved[name] = {}
    return saved


class Staging:
    """``saved`` has the checkpoint files' offsets of the logs that could not be opened."""

    def __init__(self, disk: Disk, data_dir: str, directory: str, saved: dict[str, Offsets]) -> None:
        self._disk = disk
        self._data_dir = data_dir
        self.directory = directory
        self._saved = saved
        self._files: list[PlannedFile] = []
        self._partitions: list[PlannedPartition] = []
        self._offsets: dict[str, Offsets] = {RECOVERY_POINTS: {}, LOG_STARTS: {}, CLEANER_OFFSETS: {}}
        self.deleted: set[str] = set()  # topics that were deleted after the moment of the backup

    def add(self, cut: LogCut) -> None:
        """Pin the files of one log. Raises OSError."""
        log = cut.log
        name = partition_dir.directory_name(log.topic, log.partition)
        target = f"{self.directory}/{name}"
        if self._disk.exists(target):
            # A topic of the same name was deleted and made again, and this is the turn of either of them.
            remove_tree(self._disk, target)
        self._disk.makedirs(target)
        readable = log.offline is None and cut.segment is not None
        files: list[PlannedFile] = []
        start = log.log_start_offset
        try:
            with log.files_lock:  # no segment is renamed meanwhile
                if readable:
                    start = min(log.log_start_offset, cut.end_offset)
                    files = self._link_log(cut, name, start)
                elif self._disk.exists(log.dir):
                    files = [self._link(log.dir, name, own) for own in sorted(self._own(log.dir))]
        except FileNotFoundError:
            if not log.deleted:
                raise
        if log.deleted:
            remove_tree(self._disk, target)
            self.deleted.add(log.topic)
            return
        self._files += files
        self._note(cut, start, readable)

    def _own(self, directory: str) -> frozenset[str]:
        return partition_dir.read_contents(self._disk, directory).own

    def _link_log(self, cut: LogCut, name: str, start: int) -> list[PlannedFile]:
        log, last = cut.log, cut.segment
        assert last is not None
        own = self._own(log.dir)
        segments = [segment for segment in log.view.segments if segment.base_offset <= last.base_offset]
        files = []
        for segment in segments:
            files += self._link_segment(log.dir, name, segment, own, cut.size if segment is last else None)
        if not segments:  # everything was deleted meanwhile
            empty = file_name(start, LOG)
            self._disk.open(f"{self.directory}/{name}/{empty}", create=True).close()
            files.append(PlannedFile(f"{name}/{empty}", 0, closed=False))
        for other in sorted(own):
            snapshot = offset_of(other, SNAPSHOT)
            if other in _SMALL_FILES or (snapshot is not None and snapshot <= cut.end_offset):
                try:
                    files.append(self._link(log.dir, name, other))
                except FileNotFoundError:
                    pass  # replaced by a newer snapshot
        return files

    def _link_segment(
        self, directory: str, name: str, segment: Segment, own: frozenset[str], size: int | None
    ) -> list[PlannedFile]:
        """``size``: of the segment in which the backup ends. Its indexes are still being written; recovery rebuilds them."""
        base = segment.base_offset
        closed = size is None
        files = [
            self._link(directory, name, file_name(base, LOG), segment.size if size is None else size, closed=closed)
        ]
        indexes = (OFFSET_INDEX, TIME_INDEX, TXN_INDEX) if closed else (TXN_INDEX,)
        for suffix in indexes:
            if file_name(base, suffix) in own:
                files.append(self._link(directory, name, file_name(base, suffix), closed=closed))
        return files

    def _link(
        self, directory: str, name: str, file: str, size: int | None = None, *, closed: bool = False
    ) -> PlannedFile:
        target = f"{self.directory}/{name}/{file}"
        self._disk.link(f"{directory}/{file}", target)
        return PlannedFile(f"{name}/{file}", self._disk.file_size(target) if size is None else size, closed)

    def _note(self, cut: LogCut, start: int, readable: bool) -> None:
        log, end = cut.log, cut.end_offset
        key = (log.topic, log.partition)
        self._partitions.append(PlannedPartition(*key, start, end, not readable))
        if not readable:
            for file, offsets in self._saved.items():
                if key in offsets:
                    self._offsets[file][key] = offsets[key]
            return
        # Everything up to the end is durable once the backup is, so recovery notices if it is missing.
        if end:
            self._offsets[RECOVERY_POINTS][key] = end
        if start:
            self._offsets[LOG_STARTS][key] = start
        if log.first_dirty_offset > 0 or log.dense_from > 0:
            self._offsets[CLEANER_OFFSETS][key] = min(log.first_dirty_offset, end)

    def part(self) -> dict[str, Any]:
        """What was added, for ``add_part`` of another node's staging of the same directory."""
        return {
            "partitions": [attrs.astuple(each) for each in self._partitions],
            "files": [attrs.astuple(file) for file in self._files],
            "offsets": {
                name: [(*key, offset) for key, offset in offsets.items()] for name, offsets in self._offsets.items()
            },
            "deleted": sorted(self.deleted),
        }

    def add_part(self, part: Mapping[str, Any]) -> None:
        self._partitions += [PlannedPartition(*each) for each in part["partitions"]]
        self._files += [PlannedFile(*file) for file in part["files"]]
        for name, rows in part["offsets"].items():
            self._offsets[name].update({(topic, partition): offset for topic, partition, offset in rows})
        self.deleted.update(part["deleted"])

    def finish(self, backup_id: str, taken_ms: int, cluster_id: str, version: str) -> Plan:
        """Write the checkpoint files and the plan. The catalogue must be there. Raises OSError."""
        for name, offsets in self._offsets.items():
            write_offsets(self._disk, f"{self.directory}/{name}", offsets)
            self._files.append(self._whole(name))
        self._disk.link(f"{self._data_dir}/{PROPERTIES}", f"{self.directory}/{PROPERTIES}")
        self._files += [self._whole(PROPERTIES), self._whole(CATALOGUE)]
        partitions = tuple(each for each in self._partitions if each.topic not in self.deleted)
        gone = tuple(
            f"{partition_dir.directory_name(each.topic, each.partition)}/"
            for each in self._partitions
            if each.topic in self.deleted
        )
        files = tuple(file for file in self._files if not gone or not file.path.startswith(gone))
        plan = Plan(backup_id, taken_ms, cluster_id, version, partitions, files)
        file = self._disk.open(f"{self.directory}/{PLAN}", create=True)
        try:
            file.pwrite([json.dumps(plan.to_json(), separators=(",", ":")).encode()], 0)
        finally:
            file.close()
        return plan

    def _whole(self, name: str) -> PlannedFile:
        return PlannedFile(name, self._disk.file_size(f"{self.directory}/{name}"), closed=False)


def remove_tree(disk: Disk, path: str) -> None:
    """Remove a staging directory, or a part of one. Links are removed and not followed. Raises OSError."""
    try:
        names = disk.listdir(path)
    except FileNotFoundError:
        return
    for name in names:
        inside = f"{path}/{name}"
        if disk.is_dir(inside) and not disk.is_link(inside):
            remove_tree(disk, inside)
        else:
            disk.remove(inside)
    disk.rmdir(path)
