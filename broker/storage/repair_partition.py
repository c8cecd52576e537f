"""Diagnosing and mending a partition, in a command. The diagnosis only reads; it follows what recovery accepts and refuses.

| found                                                         | what mending does                                          |
|---------------------------------------------------------------|------------------------------------------------------------|
| bytes that are no batch, good batches or segments behind them | takes these bytes out; good batches before and behind stay |
| a segment is missing, or the log begins too late              | accepts the loss                                           |
| the log ends before its recovery point                        | accepts the loss; takes a damaged end out                  |
| an index of a closed segment is missing or does not fit       | makes it again                                             |
| a torn end, or pages that were never written                  | nothing: the broker cuts them off when it starts           |

Mending moves the bytes that it takes out of a log to a directory of its own in the data directory, which the command has locked.
It goes in this order, so that after an interruption the next attempt finds the same damage or less, and takes no gap of this
attempt for damage: the mark of a clean stop is removed; the checkpoint files say that this log may have gaps and must be verified
from its beginning; the removed bytes are made durable; then the segment is replaced by one without them, which has a name
that recovery removes until it is whole. Logs without damage are not written to.

Tests: tests/storage/repair/test_repair.py.
"""

from collections.abc import Sequence

import attrs

from broker.runtime import copying
from broker.runtime.disk import Disk, File
from broker.runtime.open_files import OpenFiles
from broker.storage import partition_dir
from broker.storage.checkpoints import (
    CLEANER_OFFSETS,
    LEADER_EPOCHS,
    LOG_STARTS,
    RECOVERY_POINTS,
    TXN_INDEX_CHECKPOINT,
    CorruptCheckpoint,
    Offsets,
    read_leader_epochs,
    read_offsets,
    write_offsets,
)
from broker.storage.data_directory import CHECKPOINTS
from broker.storage.recovery.recovery import indexed_end
from broker.storage.recovery.scan import find_batch, never_written, scan
from broker.storage.recovery.startup import CLEAN
from broker.storage.segments.segment import (
    BASE_OFFSET,
    CLEANED,
    LAST_DELTA,
    LENGTH,
    LOG,
    NEVER,
    OFFSET_INDEX,
    TIME_INDEX,
    TXN_INDEX,
    Segment,
    file_name,
    offset_of,
)
from protocol.kafka.records.batch import HEADER, LOG_OVERHEAD


@attrs.frozen
class Damage:
    """The bytes from ``position`` to ``end`` of a segment are no batches. With them the offsets from ``first`` to before
    ``following`` are lost; ``following`` is None if nothing follows them."""

    base_offset: int
    position: int
    end: int
    first: int
    following: int | None


@attrs.frozen
class Gap:
    """No file has the offsets from ``first`` to before ``following``."""

    first: int
    following: int


@attrs.define
class Diagnosis:
    topic: str
    partition: int
    directory: str
    damages: list[Damage] = attrs.field(factory=list)
    gaps: list[Gap] = attrs.field(factory=list)
    begins_late: Gap | None = None
    ends_early: Gap | None = None  # ``following``: the recovery point
    indexes: list[int] = attrs.field(factory=list)  # base offsets of the segments
    torn: list[Damage] = attrs.field(factory=list)  # the broker repairs them
    end_offset: int = 0

    @property
    def name(self) -> str:
        return partition_dir.directory_name(self.topic, self.partition)

    @property
    def has_lost(self) -> bool:
        """Whether a broker would take the partition offline."""
        return bool(self.damages or self.gaps or self.begins_late or self.ends_early)

    @property
    def lost(self) -> list[tuple[int, int | None]]:
        """The ranges of offsets that are lost: (first, the offset after the last, or None if unknown)."""
        ranges: list[tuple[int, int | None]] = [(each.first, each.following) for each in self.damages]
        ranges += [(each.first, each.following) for each in (*self.gaps, self.begins_late, self.ends_early) if each]
        return sorted(set(ranges), key=lambda each: each[0])


@attrs.frozen
class DataDirectoryState:
    """The content of the data directory's files about its logs, and its partitions."""

    directory: str
    offsets: dict[str, Offsets]
    reliable: frozenset[str]  # the checkpoint files that are whole
    partitions: tuple[tuple[str, int], ...]


def read_state(disk: Disk, directory: str) -> DataDirectoryState:
    """Raises OSError."""
    offsets: dict[str, Offsets] = {}
    reliable = set()
    for name in CHECKPOINTS:
        offsets[name] = {}
        try:
            if disk.exists(f"{directory}/{name}"):
                offsets[name] = read_offsets(disk, f"{directory}/{name}")
                reliable.add(name)
        except CorruptCheckpoint:
            pass  # the broker does without it
    partitions = []
    for name in disk.listdir(directory):
        parsed = partition_dir.parse_name(name)
        path = f"{directory}/{name}"
        if parsed is not None and disk.is_dir(path) and partition_dir.read_contents(disk, path).is_partition:
            partitions.append(parsed)
    return DataDirectoryState(directory, offsets, frozenset(reliable), tuple(sorted(partitions)))


def diagnose(files: OpenFiles, state: DataDirectoryState, topic: str, partition: int) -> Diagnosis:
    """Read a whole partition. Raises OSError."""
    key = (topic, partition)
    directory = f"{state.directory}/{partition_dir.directory_name(topic, partition)}"
    diagnosis = Diagnosis(topic, partition, directory)
    names = partition_dir.read_contents(files.disk, directory).own
    bases = sorted(base for name in names if (base := offset_of(name, LOG)) is not None)
    point = state.offsets[RECOVERY_POINTS].get(key, 0)
    start = state.offsets[LOG_STARTS].get(key, 0)
    if not bases:
        if point:
            diagnosis.ends_early = Gap(start, point)
        diagnosis.end_offset = start
        return diagnosis
    gaps_allowed = key in state.offsets[CLEANER_OFFSETS] or CLEANER_OFFSETS not in state.reliable
    dense_from = (point or NEVER) if gaps_allowed else 0
    if LOG_STARTS in state.reliable and bases[0] > start:
        diagnosis.begins_late = Gap(start, bases[0])
    walk = _Walk(diagnosis, point, dense_from, _newest_epoch(files.disk, directory, names))
    for number, base in enumerate(bases):
        following = bases[number + 1] if number + 1 < len(bases) else None
        segment = Segment(files, directory, base, 0, 0)
        segment.size = segment.log.size()
        walk.segment(segment, following)
        indexes = {file_name(base, suffix) for suffix in (OFFSET_INDEX, TIME_INDEX)}
        if following is not None and (not indexes <= names or indexed_end(segment, following) is None):
            diagnosis.indexes.append(base)
        segment.drop_files()
    diagnosis.end_offset = walk.offset
    if walk.offset < point and not diagnosis.torn:
        diagnosis.ends_early = Gap(walk.offset, point)
    return diagnosis


def _newest_epoch(disk: Disk, directory: str, names: frozenset[str]) -> int:
    try:
        epochs = read_leader_epochs(disk, directory) if LEADER_EPOCHS in names else []
    except CorruptCheckpoint:
        epochs = []
    return epochs[-1][0] if epochs else 0


class _Walk:
    """Through the segments of one log."""

    def __init__(self, diagnosis: Diagnosis, point: int, dense_from: int, newest_epoch: int) -> None:
        self._found = diagnosis
        self._point = point
        self._dense_from = dense_from
        self._newest_epoch = newest_epoch
        self._first = True
        self.offset = 0  # that follows what was read

    def segment(self, segment: Segment, following: int | None) -> None:
        base = segment.base_offset
        if not self._first and self.offset < base and self._dense_from < base and not self._explained(base):
            self._found.gaps.append(Gap(self.offset, base))
        self._first = False
        self.offset = max(self.offset, base)
        file = segment.log.get()
        position = 0
        while position < segment.size:
            position, self.offset, bad = scan(
                file,
                position,
                segment.size,
                self.offset,
                base_offset=base,
                dense_from=self._dense_from,
                newest_epoch=self._newest_epoch,
            )
            if bad:
                position = self._bad(segment, file, position, following)

    def _explained(self, base: int) -> bool:
        """Whether the damaged end of the segment before accounts for the offsets missing before ``base``."""
        damages = self._found.damages
        return bool(damages) and damages[-1].following == base

    def _bad(self, segment: Segment, file: File, position: int, following: int | None) -> int:
        """Note the damage at ``position``. Returns where to go on."""
        base, size = segment.base_offset, segment.size
        behind = _next_good(file, position + 1, size, self.offset, following)
        if self.offset >= self._point and self._cut_by_broker(segment, file, position, behind, following, self.offset):
            self._found.torn.append(Damage(base, position, size, self.offset, None))
            return size
        if behind is None:
            self._found.damages.append(Damage(base, position, size, self.offset, following))
            return size
        next_offset = HEADER.unpack(file.pread(HEADER.size, behind))[BASE_OFFSET]
        self._found.damages.append(Damage(base, position, behind, self.offset, next_offset))
        self.offset = next_offset
        return behind

    @staticmethod
    def _cut_by_broker(
        segment: Segment, file: File, position: int, behind: int | None, following: int | None, offset: int
    ) -> bool:
        """As recovery decides it, beyond the recovery point."""
        if behind is None and (following is None or segment.torn_at(position, segment.size)):
            return True
        return never_written(file, position, segment.size if behind is None else behind, offset)


def _next_good(file: File, position: int, size: int, offset: int, following: int | None) -> int | None:
    """The position of the next good batch whose offsets fit those after it.

    The checksum does not cover the base offset. A batch whose own was damaged reaches beyond the next segment, or beyond the
    batch behind it.
    """
    while (start := find_batch(file, position, size, offset)) is not None:
        header = HEADER.unpack(file.pread(HEADER.size, start))
        after = header[BASE_OFFSET] + header[LAST_DELTA] + 1
        end = start + header[LENGTH] + LOG_OVERHEAD
        behind = find_batch(file, end, size, offset)
        overlaps = behind == end and HEADER.unpack(file.pread(HEADER.size, end))[BASE_OFFSET] < after
        if not overlaps and (following is None or after <= following):
            return start
        position = start + 1
    return None


_PIECE_BYTES = 1024 * 1024
_INDEX_INTERVAL_BYTES = 4096  # Kafka's default; the broker reads any


class Mending:
    """``aside`` is the directory for the removed bytes; it is made when there are some."""

    def __init__(self, files: OpenFiles, state: DataDirectoryState, aside: str) -> None:
        self._files = files
        self._disk: Disk = files.disk
        self._state = state
        self._aside = aside

    def mend(self, diagnoses: Sequence[Diagnosis]) -> None:
        """Raises OSError."""
        lost = [diagnosis for diagnosis in diagnoses if diagnosis.has_lost]
        if lost:
            self._accept(lost)
        for diagnosis in diagnoses:
            for base in sorted({damage.base_offset for damage in diagnosis.damages}):
                self._take_out(diagnosis, base, [damage for damage in diagnosis.damages if damage.base_offset == base])
            for base in diagnosis.indexes:
                self._index(diagnosis, base)

    def _accept(self, lost: Sequence[Diagnosis]) -> None:
        """Write down that these logs may have gaps, where they begin, and that they must be verified whole."""
        directory = self._state.directory
        if self._disk.exists(f"{directory}/{CLEAN}"):
            self._disk.remove(f"{directory}/{CLEAN}")
            self._disk.sync_dir(directory)
        offsets = self._state.offsets
        if CLEANER_OFFSETS not in self._state.reliable:
            # Without the file any log may have gaps. If it named only these, sound logs with gaps would be offline.
            offsets[CLEANER_OFFSETS] = dict.fromkeys(self._state.partitions, 0)
        for each in lost:
            key = (each.topic, each.partition)
            offsets[CLEANER_OFFSETS].setdefault(key, 0)
            offsets[RECOVERY_POINTS].pop(key, None)
            if each.begins_late is not None:
                offsets[LOG_STARTS][key] = each.begins_late.following
        # The recovery points last: without them, and with the line for gaps, any gap is accepted.
        for name in (CLEANER_OFFSETS, LOG_STARTS, RECOVERY_POINTS):
            # An illegible file stays as it is, unless it is needed.
            if name in self._state.reliable or offsets[name]:
                write_offsets(self._disk, f"{directory}/{name}", offsets[name])
                copying.give_to_owner_of(directory, f"{directory}/{name}")

    def _take_out(self, diagnosis: Diagnosis, base: int, damages: Sequence[Damage]) -> None:
        disk, directory = self._disk, diagnosis.directory
        aside = f"{self._aside}/{diagnosis.name}"
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
            # An empty segment between others would look like an abandoned segment.
            disk.remove(path)
            disk.sync_dir(directory)
        elif kept:
            self._index(diagnosis, base)

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

    def _index(self, diagnosis: Diagnosis, base: int) -> None:
        """Make the two indexes of a segment again; the broker makes that of aborted transactions."""
        path = f"{diagnosis.directory}/{file_name(base, LOG)}"
        if not self._disk.exists(path):
            return
        segment = Segment(self._files, diagnosis.directory, base, self._disk.file_size(path), 0)
        segment.rebuild_indexes(_INDEX_INTERVAL_BYTES)
        segment.sync_indexes()
        segment.drop_files()
        for suffix in (OFFSET_INDEX, TIME_INDEX):
            index = f"{diagnosis.directory}/{file_name(base, suffix)}"
            if self._disk.exists(index):
                copying.give_to_owner_of(diagnosis.directory, index)
        self._disk.sync_dir(diagnosis.directory)


def _kept(damages: Sequence[Damage], size: int) -> list[tuple[int, int]]:
    """The rest of a segment of ``size`` bytes: the ranges between the damages."""
    ranges = []
    position = 0
    for damage in damages:
        if damage.position > position:
            ranges.append((position, damage.position))
        position = damage.end
    if position < size:
        ranges.append((position, size))
    return ranges
