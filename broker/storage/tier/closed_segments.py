"""The closed segments of a stopped broker's partition that can go to the object store as they are, found without a change of the
directory: for ``broker migrate``.

A segment qualifies as it does for the uploader (``uploads.py``): it ends before the recovery point, so everything in it is
durable, and before the first open transaction; every batch matches its checksum, which is verified here; and its indexes fit,
because the start of a broker trusts those of a segment in the store. Whatever else there is goes elsewhere as a file, and the
next start recovers it: those that a crash has left in doubt, those whose indexes have to be made again. After a clean stop the
active segment qualifies, too, if it is large: whoever moves it makes an empty one after it, as if the log had been rolled.

On the thread of the command. Raises StorageError for damage that ``broker inspect --repair`` mends, OSError.
"""

from collections.abc import Callable, Sequence
from typing import cast

import attrs

from broker.errors import StorageError
from broker.runtime.disk import Disk, File
from broker.runtime.open_files import OpenFiles
from broker.storage.log import state
from broker.storage.recovery.recovery import indexed_end
from broker.storage.recovery.scan import scan
from broker.storage.segments.segment import (
    ATTRIBUTES,
    BASE_OFFSET,
    LAST_DELTA,
    LOG,
    MAX_TIMESTAMP,
    NEVER,
    OFFSET_INDEX,
    PRODUCER_ID,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    Header,
    Segment,
    file_name,
    offset_of,
)
from protocol.kafka.records.batch import CONTROL, TRANSACTIONAL

# Bytes that are verified in one step.
_VERIFIED_BYTES = 16 * 1024 * 1024
_OPEN_FILES = 64


class Verifier:
    """Verifies every batch of a segment, a piece at a time: what goes to the store is trusted from then on. ``end``: the offset
    after the batches so far; ``largest_timestamp`` (ms; -1: none) is that of the batch that ends with ``timestamp_offset``."""

    def __init__(
        self,
        segment: Segment,
        file: File,
        dense_from: int,
        newest_epoch: int,
        on_batch: Callable[[Header], object] = lambda _header: None,
    ) -> None:
        """``file``: the segment's log, opened by the caller. ``dense_from``, ``newest_epoch``: see ``scan``."""
        self.position = 0
        self.end = segment.base_offset
        self.is_bad = False
        self.largest_timestamp = -1
        self.timestamp_offset = segment.base_offset
        self._segment = segment
        self._file = file
        self._dense_from = dense_from
        self._newest_epoch = newest_epoch
        self._on_batch = on_batch

    @property
    def is_going_on(self) -> bool:
        return not self.is_bad and self.position < self._segment.size

    def step(self) -> int:
        """Verify the next piece, up to the first bad batch. Returns its bytes. Raises OSError."""
        before = self.position
        self.position, self.end, self.is_bad = scan(
            self._file,
            self.position,
            self._segment.size,
            self.end,
            base_offset=self._segment.base_offset,
            dense_from=self._dense_from,
            newest_epoch=self._newest_epoch,
            on_batch=self._note,
            stop_after=_VERIFIED_BYTES,
        )
        return self.position - before

    def _note(self, _: int, header: Header) -> None:
        self._on_batch(header)
        if header[MAX_TIMESTAMP] > self.largest_timestamp:
            self.largest_timestamp = header[MAX_TIMESTAMP]
            self.timestamp_offset = header[BASE_OFFSET] + header[LAST_DELTA]


@attrs.frozen(kw_only=True)
class Partition:
    """A partition's directory, the names of its own files, and what the checkpoints say about it (``recovery/leftovers.py`` has
    the meanings). ``elsewhere``: the base offsets of segments that are in the object store already. ``roll_from``: from which
    size on (bytes) the active segment is taken for closed."""

    directory: str
    names: frozenset[str]
    recovery_point: int
    dense_from: int
    newest_epoch: int
    elsewhere: frozenset[int] = frozenset()
    roll_from: int = NEVER


@attrs.frozen
class ClosedSegment:
    """``end`` follows the last offset. ``largest_timestamp`` (ms; -1: none) is that of the batch that ends with
    ``timestamp_offset``. ``names``: of the files, the log first."""

    base: int
    end: int
    largest_timestamp: int
    timestamp_offset: int
    names: tuple[str, ...]


class ReadOnlyDisk:
    """What ``OpenFiles`` needs of a disk, to read files of which none must change."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.when_exhausted = disk.when_exhausted
        self.file_size = disk.file_size

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        assert not create, f"{path} would be made"
        return self._disk.open(path, read_only=True)


def closed_segments(disk: Disk, partition: Partition, tick: Callable[[int], None]) -> list[ClosedSegment]:
    """Those that qualify. Reads the whole log; ``tick`` gets the bytes that were read since its last call."""
    if any(name.endswith(SWAP) for name in partition.names):
        return []  # a compaction was interrupted: recovery finishes it first
    bases = sorted(base for name in partition.names if (base := offset_of(name, LOG)) is not None)
    files = OpenFiles(cast(Disk, ReadOnlyDisk(disk)), _OPEN_FILES)
    transactions = _Transactions()
    found = []
    for base, following in zip(bases, [*bases[1:], NEVER], strict=True):
        if base in partition.elsewhere:
            continue
        segment = Segment(files, partition.directory, base, 0, 0)
        segment.size = segment.log.size()
        closed = _scanned(partition, segment, following, transactions, tick)
        if closed is not None and following == NEVER:
            following = closed.end  # where the next one is made
        if closed is not None and segment.size and _is_indexed(disk, partition, segment, following):
            found.append((closed, following))
        segment.drop_files()
    files.close_all()
    return [closed for closed, following in found if following <= transactions.first_open()]


class _Transactions:
    """The open transactions, by producer id."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}

    def note(self, header: Header) -> None:
        if not header[ATTRIBUTES] & TRANSACTIONAL or header[PRODUCER_ID] < 0:
            return
        if header[ATTRIBUTES] & CONTROL:
            self._open.pop(header[PRODUCER_ID], None)
        else:
            self._open.setdefault(header[PRODUCER_ID], header[BASE_OFFSET])

    def first_open(self) -> int:
        return min(self._open.values(), default=NEVER)


def _scanned(
    partition: Partition,
    segment: Segment,
    following: int,
    transactions: _Transactions,
    tick: Callable[[int], None],
) -> ClosedSegment | None:
    """None for a segment that is not closed and durable. Raises StorageError for a damaged one that is."""
    durable = following <= partition.recovery_point
    verifier = Verifier(segment, segment.log.get(), partition.dense_from, partition.newest_epoch, transactions.note)
    while verifier.is_going_on:
        tick(verifier.step())
        if verifier.is_bad and durable:
            raise StorageError(
                f"{segment.log.path} is damaged at position {verifier.position}: see what is lost with `broker inspect "
                "--repair`"
            )
        if verifier.is_bad:  # recovery cuts it, or finds the damage
            tick(segment.size - verifier.position)
            return None
    offset = verifier.end
    is_last_and_whole = (
        following == NEVER and offset == partition.recovery_point and segment.size >= partition.roll_from
    )
    if not durable and not is_last_and_whole:
        return None
    names = _names(partition.names, segment.base_offset)
    return ClosedSegment(segment.base_offset, offset, verifier.largest_timestamp, verifier.timestamp_offset, names)


def _names(names: frozenset[str], base: int) -> tuple[str, ...]:
    there = (file_name(base, suffix) for suffix in (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX))
    return tuple(name for name in there if name in names)


def _is_indexed(disk: Disk, partition: Partition, segment: Segment, following: int) -> bool:
    """Whether the indexes fit the segment, and the checkpoint of those of aborted transactions."""
    base = segment.base_offset
    if not {file_name(base, OFFSET_INDEX), file_name(base, TIME_INDEX)} <= partition.names:
        return False
    if file_name(base, TXN_INDEX) not in partition.names:
        segment.aborted.is_missing()
    sums = state.read(disk, partition.directory) if state.NAME in partition.names else {}
    # Entries beyond those of the checkpoint may be torn: recovery makes them again.
    if len(segment.aborted) != sums.get(base, (0, 0))[0] or not state.agrees(segment, sums):
        return False
    return indexed_end(segment, following) is not None


def files_to_ship(names: frozenset[str], closed: Sequence[ClosedSegment], passing: Sequence[str]) -> list[str]:
    """The names of the other files, without those that the next start would remove or make again."""
    apart = {name for segment in closed for name in segment.names}
    return sorted(name for name in names - apart if not name.endswith((*passing, OFFSET_INDEX, TIME_INDEX)))
