"""Mends what ``diagnosis.py`` has found. What it takes out of a log it keeps in a directory of its own in the data directory.

It goes in this order, so that after an interruption the next attempt finds the same damage or less, and takes no gap of this one
for damage: the mark of a clean stop is removed; the checkpoint files say that this log may have gaps and must be verified from
its beginning; the bytes that are taken out are made durable; then the segment is replaced by one without them, which has a name
that recovery removes until it is whole. Logs without damage are not written to.

Runs in a command that has locked the data directory.

Tests: tests/storage/repair/test_repair.py.
"""

from collections.abc import Sequence

from broker.runtime import copying
from broker.runtime.disk import Disk
from broker.runtime.open_files import OpenFiles
from broker.storage.checkpoints import (
    CLEANER_OFFSETS,
    LOG_STARTS,
    RECOVERY_POINTS,
    TXN_INDEX_CHECKPOINT,
    write_offsets,
)
from broker.storage.recovery.startup import CLEAN
from broker.storage.repair.diagnosis import Damage, DataDirectoryState, Diagnosis
from broker.storage.segments.file_names import (
    CLEANED,
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
)
from broker.storage.segments.segment import Segment

_PIECE_BYTES = 1024 * 1024
_INDEX_INTERVAL_BYTES = 4096  # Kafka's default; the broker reads any


class Mending:
    """``aside`` is the directory for what is taken out; it is made when there is something."""

    def __init__(self, files: OpenFiles, state: DataDirectoryState, aside: str) -> None:
        self._files = files
        self._disk: Disk = files.disk
        self._state = state
        self._aside = aside

    def mend(self, found: Sequence[Diagnosis]) -> None:
        """Raises OSError."""
        lost = [each for each in found if each.has_lost]
        if lost:
            self._accept(lost)
        for each in found:
            for base in sorted({damage.base_offset for damage in each.damages}):
                self._take_out(each, base, [damage for damage in each.damages if damage.base_offset == base])
            for base in each.indexes:
                self._index(each, base)

    def _accept(self, lost: Sequence[Diagnosis]) -> None:
        """Write down that these logs may have gaps, where they begin, and that they must be verified whole."""
        directory = self._state.directory
        if self._disk.exists(f"{directory}/{CLEAN}"):
            self._disk.remove(f"{directory}/{CLEAN}")
            self._disk.sync_dir(directory)
        offsets = self._state.offsets
        if CLEANER_OFFSETS not in self._state.reliable:
            # Without the file any log may have gaps. With one that named only these, sound logs with gaps would be offline.
            offsets[CLEANER_OFFSETS] = dict.fromkeys(self._state.partitions, 0)
        for each in lost:
            key = (each.topic, each.partition)
            offsets[CLEANER_OFFSETS].setdefault(key, 0)
            offsets[RECOVERY_POINTS].pop(key, None)
            if each.begins_late is not None:
                offsets[LOG_STARTS][key] = each.begins_late.following
        # The recovery points last: without them, and with the line for gaps, any gap is accepted.
        for name in (CLEANER_OFFSETS, LOG_STARTS, RECOVERY_POINTS):
            # One that could not be read stays as it is, unless it is needed.
            if name in self._state.reliable or offsets[name]:
                write_offsets(self._disk, f"{directory}/{name}", offsets[name])
                copying.give_to_owner_of(directory, f"{directory}/{name}")

    def _take_out(self, found: Diagnosis, base: int, damages: Sequence[Damage]) -> None:
        disk, directory = self._disk, found.directory
        aside = f"{self._aside}/{found.name}"
        copying.make_directory_for_owner_of(self._state.directory, aside)
        path = f"{directory}/{file_name(base, LOG)}"
        new = path + CLEANED
        file = disk.open(path, read_only=True)
        try:
            size = file.size()
            for damage in damages:
                damaged = f"{aside}/{base:020d}.{damage.position}.damaged"
                self._copy(path, damaged, [(damage.position, damage.end)])
                copying.give_to_owner_of(self._state.directory, damaged)
            kept = _kept(damages, size)
            self._copy(path, new, kept)
        finally:
            file.close()
        disk.sync_dir(aside)
        disk.sync_dir(self._aside)
        disk.sync_dir(self._state.directory)
        for name in (
            *(file_name(base, suffix) for suffix in (OFFSET_INDEX, TIME_INDEX, TXN_INDEX)),
            TXN_INDEX_CHECKPOINT,
        ):
            if disk.exists(f"{directory}/{name}"):
                disk.remove(f"{directory}/{name}")  # made again from the log
        disk.sync_dir(directory)
        copying.give_to_owner_of(directory, new)
        disk.rename(new, path)
        disk.sync_dir(directory)
        if not kept and base != self._last_base(directory):
            # An empty segment between others would look like one that was given up.
            disk.remove(path)
            disk.sync_dir(directory)
        elif kept:
            self._index(found, base)

    def _last_base(self, directory: str) -> int:
        names = [name for name in self._disk.listdir(directory) if name.endswith(LOG)]
        return int(max(names)[:20])

    def _copy(self, source: str, target: str, ranges: Sequence[tuple[int, int]]) -> None:
        """Make the durable content of ``target`` these pieces of ``source``."""
        reading = self._disk.open(source, read_only=True)
        writing = self._disk.open(target, create=True)
        try:
            writing.truncate(0)
            at = 0
            for position, end in ranges:
                while position < end:
                    data = reading.pread(min(_PIECE_BYTES, end - position), position)
                    if not data:
                        break
                    at += writing.pwrite([data], at)
                    position += len(data)
            writing.sync()
        finally:
            reading.close()
            writing.close()

    def _index(self, found: Diagnosis, base: int) -> None:
        """Make the two indexes of a segment again; that of aborted transactions is made by the broker."""
        path = f"{found.directory}/{file_name(base, LOG)}"
        if not self._disk.exists(path):
            return
        segment = Segment(self._files, found.directory, base, self._disk.file_size(path), 0)
        segment.rebuild_indexes(_INDEX_INTERVAL_BYTES)
        segment.sync_indexes()
        segment.drop_files()
        for suffix in (OFFSET_INDEX, TIME_INDEX):
            index = f"{found.directory}/{file_name(base, suffix)}"
            if self._disk.exists(index):
                copying.give_to_owner_of(found.directory, index)
        self._disk.sync_dir(found.directory)


def _kept(damages: Sequence[Damage], size: int) -> list[tuple[int, int]]:
    """What is left of a segment of ``size`` bytes: the ranges between the damages."""
    ranges = []
    position = 0
    for damage in damages:
        if damage.position > position:
            ranges.append((position, damage.position))
        position = damage.end
    if position < size:
        ranges.append((position, size))
    return ranges
