"""The state that the components of one log share: its fields, failures, watchers, and the checkpoint of aborted transactions.

``Log`` (``log.py``) makes one ``LogState`` and gives it to its components, each of which does one thing to it: append, read, make
durable, trim. A component keeps its own state itself. Any thread may use a log.

Locks, in the order in which one thread may take them:

1. ``files_lock``, while files of closed segments are renamed or made again. Its holder waits for the disk; no append and no
   read takes it. Or ``Durability.sync_lock``, so that one thread at a time fsyncs the data of this log. No thread takes both.
2. ``lock``, for everything that changes the end of the log or the row of its segments. Its holder may write to the page
   cache, make files and flush indexes. It does not fsync, with one exception: a new segment that is begun after a failed write
   was taken back (``cut_unsynced``).
3. The locks of indexes and open files.

What is read without a lock, and why that is safe, with or without the GIL:

- A load or store of one attribute is atomic, and a thread that sees the new value also sees what was written before it. So a
  reader takes values that belong together from one attribute: ``tail`` and ``view`` are tuples that are replaced, never changed.
- ``tail`` is stored last, after the bytes, the index entries and the offsets. The bytes below the size in it never change, and
  an index entry never disagrees with them.
- Each offset only rises, so an offset that was read a moment ago is at worst too low, and a reader sees less than exists. The
  exception is ``recovery_point``, which the scrub puts back.
- ``first_unstable`` is set before the ``tail`` that shows a transaction's first batch, and moves on before the ``tail`` that
  shows its marker; for an ABORT the index of aborted transactions has its entry by then.
- ``offline`` and ``deleted`` are set once. A thread that does not see them yet finishes the one operation it has begun.
- A segment that left ``view`` keeps its bytes while it is open; opened anew it shows as a missing file, and the look-up begins
  again (``LogReader.search``).

``Watchers`` are the callbacks that run when a log grows: those of fetches that wait for records. Their lock guards the table and
is not held during a callback.

``txnindex-checkpoint`` in a partition's directory says how many durable entries each ``.txnindex`` has, and their checksum. Most
segments have no such index, because no ABORT marker is in them, so a missing file says nothing by itself. But if an index is lost
or damaged, the records that it names would be read as committed. So the checkpoint says which entries must exist, and the start
rebuilds from the log an index that lacks them. Later entries were never synced. A power failure may have kept some of them, torn
or with holes of zeros before them, which read like aborted transactions of producer 0. So the start drops them and takes them
from the log (``without_checkpoint`` tells when the log must be read from its beginning). The checkpoint may lack a segment, or
name a missing segment, because compaction and retention change the row of segments before it is written.
"""

import errno
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import attrs

from broker.errors import Refusal, StorageError
from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.runtime.disk import Disk, Unreachable
from broker.runtime.threads import Lock
from broker.storage.checkpoints import TXN_INDEX_CHECKPOINT, CorruptCheckpoint, lines_of, replace_text, text_of
from broker.storage.log.log_config import LogConfig
from broker.storage.log.producer_state import ProducerState
from broker.storage.refusals import UnknownTopic
from broker.storage.segments.segment import Segment

NAME = TXN_INDEX_CHECKPOINT

# Base offset of the segment -> number of entries, CRC-32C of them.
Sums = dict[int, tuple[int, int]]


def read(disk: Disk, directory: str) -> Sums:
    """The checkpoint; empty if it is missing or damaged. Raises OSError."""
    path = f"{directory}/{NAME}"
    try:
        return {int(base): (int(count), int(crc)) for base, count, crc in lines_of(disk, path)}
    except (CorruptCheckpoint, ValueError) as error:
        logger.warning("checkpoint_ignored", path=path, error=str(error))
        return {}


def write(disk: Disk, directory: str, sums: Sums) -> None:
    """Raises OSError."""
    replace_text(disk, f"{directory}/{NAME}", text_of(f"{base} {count} {crc}" for base, (count, crc) in sums.items()))


def counts(segments: Sequence[Segment]) -> dict[Segment, int]:
    """The number of entries that each segment has now, for those that have any."""
    return {segment: len(segment.aborted) for segment in segments if len(segment.aborted)}


def without_checkpoint(segment: Segment, sums: Sums, recovery_point: int) -> bool:
    """Does the file have entries from before the recovery point of which the checkpoint says nothing? Reads them. Raises OSError.

    True if the checkpoint is lost or the files are Kafka's. Entries that this broker has added since its first checkpoint are
    about later markers.
    """
    if segment.base_offset in sums or not len(segment.aborted):
        return False
    return any(entry.last_offset < recovery_point for entry in segment.aborted.entries())


def agrees(segment: Segment, sums: Sums) -> bool:
    """Does the file have the checkpoint's entries? Reads them. Raises OSError."""
    expected = sums.get(segment.base_offset)
    if expected is None:
        return True
    count, crc = expected
    return segment.aborted.read_checksum(count) == crc


class Watchers:
    """Callbacks by token. ``callbacks`` is read without the lock to see whether it is empty."""

    __slots__ = ("_lock", "_next_token", "callbacks")

    def __init__(self) -> None:
        self._lock = Lock()
        self._next_token = 0
        self.callbacks: dict[int, Callable[[], None]] = {}

    def watch(self, callback: Callable[[], None]) -> int:
        """Run ``callback()`` after each append, on the appending thread with no lock held, and once when the log goes offline or
        is deleted. It must be quick and must not raise. Returns a token for ``unwatch``."""
        with self._lock:
            self._next_token += 1
            self.callbacks[self._next_token] = callback
            return self._next_token

    def unwatch(self, token: int) -> None:
        """Do not call the callback again; it may still be running on another thread. An unknown token does nothing."""
        with self._lock:
            self.callbacks.pop(token, None)

    def wake(self) -> None:
        """Call the watchers. The caller holds no lock."""
        with self._lock:
            callbacks = list(self.callbacks.values())
        for callback in callbacks:
            callback()


logger = get_logger("storage")

NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
# Transient errors: no space, too many files. Others (EIO, a read-only file system) take the partition offline.
_TRANSIENT = NO_ROOM | {
    errno.EFBIG,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EAGAIN,
    errno.EINTR,
}


class View(NamedTuple):
    """The row of segments at one moment, with their base offsets."""

    bases: tuple[int, ...]
    segments: tuple[Segment, ...]


@attrs.define
class LoadedLog:
    """The log as recovery loaded it. ``segments`` are in order, at least one; the last is the active one. ``snapshots`` are
    the offsets of snapshot files."""

    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    producers: ProducerState
    snapshots: list[int]
    scanned_bytes: int = 0
    cut_bytes: int = 0
    # The indexes of the active segment were written to their files, which are not durable yet.
    indexes_written: bool = False
    has_entries: bool = False
    # The checkpoint of the indexes of aborted transactions.
    aborted_sums: Sums = attrs.Factory(dict)


@attrs.define(eq=False, kw_only=True)
class LogState:
    """The shared fields of one log, grouped by what guards each group."""

    # -- Never change.
    disk: Disk
    clock: Clock
    dir: str = attrs.field(alias="directory")
    topic: str
    partition: int
    topic_id: uuid.UUID
    wake_soon: Callable[[], None]  # calls the log's watchers from another thread
    observe_fsync: Callable[[float], None]  # gets the seconds that each fsync of data took
    lock: Lock = attrs.field(factory=Lock, init=False)
    files_lock: Lock = attrs.field(factory=Lock, init=False)

    # -- Replaced as a whole by the thread that changes the topic's settings; ``LogManager`` has one at a time.
    config: LogConfig

    # -- Set by the thread that opens the log, before other threads know of it.
    leader_epoch: int = 0
    first_offset: int = 0  # the log end offset at that time: the appends of this process come after it

    # -- Bytes sent to consumers, by thread (its ident): each thread changes its own number only.
    sent_bytes: defaultdict[int, int] = attrs.field(factory=lambda: defaultdict(int))

    # -- Changed under ``lock``; all but ``producers`` and ``cut_unsynced`` are also read without it.
    # The StorageError that every use raises since the machine failed. Set without the lock where a read fails.
    offline: StorageError | None = attrs.field(init=False)
    # The log end offset, and the time (monotonic, s), when the disk last had no room for a write. Any thread.
    full_since: tuple[int, float] | None = None
    deleted: bool = False
    log_start_offset: int = 0  # the first that is served
    log_end_offset: int = 0  # the next to be assigned
    # The end of what consumers see: the log end offset or, with ``visible=durable``, the fsynced part.
    high_watermark: int = 0
    view: View = attrs.field(factory=lambda: View((), ()))
    # The end as readers need it, published as one value: high watermark, active segment, its size.
    tail: tuple[int, Segment | None, int] = (0, None, 0)
    active: Segment | None = None
    producers: ProducerState = attrs.field(factory=ProducerState)
    first_unstable: int | None = None  # where the oldest open transaction begins
    # In the future (monotonic s) while writes are being throttled: appends then belong on a thread that may wait.
    slow_until: float = 0.0
    # Since when (monotonic s) the write lasts that is under way; 0 = none is.
    writing_since: float = 0.0
    has_entries: bool = False  # there may be entries among the batches; durable before the first is appended
    appended_bytes: int = 0  # appended by this process
    cut_unsynced: bool = False  # a failed write was taken back from the active segment, and that is not durable yet
    dir_dirty: bool = False  # a file was made that is not durable in its directory

    # -- Changed under ``Durability.sync_lock``: everything before it is fsynced.
    durable_offset: int = 0

    # -- Changed by the background thread, or by the threads that close the logs after it has ended.
    recovery_point: int = 0  # recovery need not look at anything before it
    first_dirty_offset: int = 0  # compaction has seen the records before it
    dense_from: int = 0  # no gap between offsets reaches beyond here

    # -- Changed by the thread that has just written the checkpoint files: their content.
    saved_point: int = 0  # of the recovery point
    saved_start: int = 0  # of the log start offset

    @offline.default
    def _not_open(self) -> StorageError:
        return StorageError(f"{self.topic}-{self.partition} is not open yet")

    # -- the row of segments and the end -------------------------------------------------------------------------------

    def publish(self, end_offset: int, segment: Segment) -> None:
        """End the log there and show it to readers, unless that waits for an fsync. ``lock`` is held."""
        self.log_end_offset = end_offset
        if not self.config.shows_durable:
            self.high_watermark = end_offset
            self.tail = (end_offset, segment, segment.size)

    def show(self, end: tuple[int, Segment, int]) -> bool:
        """Let readers see the log up to there: offset, segment and its size. False if they do already. ``lock`` is held."""
        if end[0] <= self.high_watermark:
            return False
        self.high_watermark = end[0]
        self.tail = end
        return True

    def set_segments(self, segments: tuple[Segment, ...]) -> None:
        """``lock`` is held."""
        self.view = View(tuple(segment.base_offset for segment in segments), segments)

    def segments_from(self, offset: int) -> tuple[Segment, ...]:
        """The segments that have ``offset`` or later offsets, at least the last. ``lock`` is held."""
        segments = self.view.segments
        first = len(segments) - 1
        while first > 0 and segments[first].base_offset > offset:
            first -= 1
        return segments[first:]

    # -- failures ------------------------------------------------------------------------------------------------------

    def undo_write(self, segment: Segment, position: int, error: OSError) -> StorageError:
        """Cut a batch that was written in part: it must not stay where the next one goes, or at the end of the segment. ``lock``
        is held. Returns the error to raise."""
        try:
            segment.log.get().truncate(position)
            self.cut_unsynced = True
        except OSError as second:
            return self.go_offline(f"a failed write ({error}) could not be undone: {second}")
        return self.failed("records could not be written", error)

    def failed(self, what: str, error: OSError) -> StorageError:
        """The error to raise when the machine failed. Unless it is transient, the partition goes offline."""
        if error.errno in NO_ROOM:
            self.full_since = self.log_end_offset, self.clock.monotonic()
        if error.errno in _TRANSIENT or isinstance(error, Unreachable):
            return StorageError(f"{self.topic}-{self.partition}: {what}: {error}")
        return self.go_offline(f"{what}: {error}")

    def go_offline(self, why: str) -> StorageError:
        """Make every use fail from now on, until the broker is started again and recovery has examined the files. Any thread,
        with any lock. Returns the error to raise."""
        message = f"{self.topic}-{self.partition} is offline: {why}"
        if self.offline is None:
            # Never raised itself: it would gather the frames of all threads that raise it, with their files and buffers.
            self.offline = StorageError(message)
            logger.error("partition_taken_offline", topic=self.topic, partition=self.partition, reason=why)
            self.wake_soon()  # not here: ``lock`` may be held
        return StorageError(message)

    def why_unavailable(self) -> Refusal | StorageError:
        """Why the log cannot be used."""
        if self.deleted:
            return UnknownTopic(f"{self.topic}-{self.partition} was deleted.")
        assert self.offline is not None
        return StorageError(str(self.offline))
