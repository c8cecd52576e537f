"""One topic partition: a row of segments, of which the last one grows.

Any thread may call. ``append`` and everything that changes the row of segments hold ``lock``, for as long as one write to
the page cache takes; reading takes no lock (``reading.py``): it works on what ``append`` has published, which never changes
afterwards. fsync holds ``_sync_lock`` only. Lock order: ``files_lock``
or ``_sync_lock``, ``lock``, then those of indexes and open files.

What it promises: a record that ``append`` has returned for survives the death of the process; one below ``durable_offset``
survives the machine's. What retention, compaction, recovery and the background threads do stands in modules of their own.
"""

import errno
import struct
import uuid
from collections.abc import Callable
from typing import NamedTuple

import attrs

from broker.errors import Refusal, StorageError
from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.runtime.disk import Disk, File
from broker.runtime.entropy import Entropy
from broker.runtime.open_files import OpenFiles
from broker.runtime.threads import Lock
from broker.storage.log import append_rules, durability, reading, times, transactions, trimming
from broker.storage.log.aborted_checkpoint import Sums
from broker.storage.log.append_rules import LARGEST_CODEC, SPECIAL
from broker.storage.log.log_config import LogConfig
from broker.storage.log.producer_state import ProducerState
from broker.storage.recovery.recovery import LoadedLog
from broker.storage.refusals import BatchesTooLarge, UnknownTopic
from broker.storage.segments.segment import (
    LAST_DELTA,
    LENGTH,
    MAX_RELATIVE,
    MAX_TIMESTAMP,
    NEVER,
    Header,
    Segment,
    new_segment,
)
from protocol.checksum import crc32c
from protocol.kafka.records.batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, MAGIC, TRANSACTIONAL
from protocol.kafka.records.records import SMALLEST_RECORD

logger = get_logger("storage")

AppendInfo = reading.AppendInfo
ReadResult = reading.ReadResult

# A write to the page cache takes microseconds; one that took this long was throttled, and the next ones will be.
SLOW_WRITE_S = 0.005
SLOW_FOR_S = 0.5

# Errors that go away: no room, or too many files. Others (EIO, a read-only file system) take the partition offline.
_PASSING = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EAGAIN,
    errno.EINTR,
}

_STAMP = struct.Struct(">qii")  # base offset, batch length, leader epoch: the first 16 bytes of a batch
_unpack = HEADER.unpack_from
_new_info = tuple.__new__


class View(NamedTuple):
    """The row of segments at one moment."""

    bases: tuple[int, ...]
    segments: tuple[Segment, ...]


def _nothing(log: "Log") -> None:
    pass


def _start_is_saved(log: "Log") -> None:
    log.saved_start = log.log_start_offset


@attrs.frozen(kw_only=True)
class Surroundings:
    """What a log needs of the storage around it."""

    disk: Disk
    clock: Clock
    entropy: Entropy
    files: OpenFiles
    # fsync this log soon, on another thread.
    flush_soon: Callable[["Log"], None] = _nothing
    # Wake the log's watchers soon, on another thread.
    wake_soon: Callable[["Log"], None] = _nothing
    # Make the log start offset durable before this returns.
    save_log_start: Callable[["Log"], None] = _start_is_saved
    # Make durable that compaction is about to make gaps in this log.
    save_cleaner_offset: Callable[["Log"], None] = _nothing
    # Held while a batch is open that is large inside (``inspection.py``).
    large: Lock = attrs.field(factory=Lock)
    # Remove these files (already renamed) after so many ms.
    delete_later: Callable[[list[str], int], None] = lambda paths, delay_ms: None


class Log:
    """Offsets: ``log_start_offset`` is the first that is served, ``log_end_offset`` the next to be given. ``high_watermark``
    is the end of what consumers see; without replicas it is the log end offset. Everything below ``durable_offset`` is
    fsynced, and below ``recovery_point`` so durably that recovery need not look at it.

    ``offline`` is the StorageError that every use raises since the machine failed, or None. ``slow_until`` (monotonic s) is in
    the future while writes are being throttled: appends then belong on a thread that may wait.
    """

    def __init__(
        self, around: Surroundings, directory: str, topic: str, partition: int, topic_id: uuid.UUID, config: LogConfig
    ) -> None:
        self.around = around
        self.dir = directory
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.leader_epochs: list[tuple[int, int]] = [(0, 0)]  # (epoch, start offset), the last one is the present
        self.leader_epoch = 0
        self.offline: StorageError | None = StorageError(f"{topic}-{partition} is not open yet")
        self.deleted = False
        self.slow_until = 0.0
        self.log_start_offset = self.log_end_offset = self.high_watermark = 0
        self.durable_offset = self.recovery_point = 0
        self.first_dirty_offset = 0  # compaction has seen what is before
        self.dense_from = 0  # no gap between offsets reaches beyond here
        self.saved_point = 0  # the recovery point as the checkpoint file says
        self.saved_start = 0  # and the log start offset
        self.last_flush_ms = 0
        self.lock = Lock()
        self.view = View((), ())
        # What a reader needs of the end, published as one: high watermark, active segment, its size.
        self.tail: tuple[int, Segment | None, int] = (0, None, 0)
        self.read_ends: dict[int, tuple[Segment, int]] = {}
        self.latest: dict[int, times.Latest] = {}  # see there; by the segment's base offset
        self.producers = ProducerState()
        # Where the oldest open transaction begins, None where none is open. Set before `tail` and cleared before it, too.
        self.first_unstable: int | None = None
        # Producer id -> epoch: who may append to a transaction here. The coordinator says so; it is not durable.
        self.writers: dict[int, int] = {}
        self.active: Segment | None = None
        self.sync_lock = Lock()
        self.files_lock = Lock()  # held while files of closed segments are replaced or taken away
        self.cut = False  # a failed write was taken back from the active segment, and that is not durable yet
        self.dir_dirty = False  # a file was made that is not durable in its directory
        self.snapshots: set[int] = set()
        # Background thread: which entries of the indexes of aborted transactions are durable, and what the checkpoint file says.
        self.aborted_sums: Sums = {}
        self.aborted_saved: Sums = {}
        self._watchers: dict[int, Callable[[], None]] = {}
        self._watch_lock = Lock()
        self._next_token = 0
        self.config = config

    read = reading.read
    offset_for_timestamp = times.offset_for_timestamp
    max_timestamp_offset = times.max_timestamp_offset
    flush_to = durability.flush_to
    checkpoint = durability.checkpoint
    write_snapshot = durability.write_snapshot
    delete_records = trimming.delete_records
    advance_start = trimming.advance_start
    drop_old_segments = trimming.drop_old_segments
    discard = trimming.discard
    allow_transaction = transactions.allow
    append_marker = transactions.append_marker
    aborted_transactions = transactions.aborted
    describe_producers = transactions.describe_producers
    repair_index = trimming.repair_index

    def __repr__(self) -> str:
        return f"Log({self.topic}-{self.partition}, {self.log_start_offset}..{self.log_end_offset})"

    @property
    def config(self) -> LogConfig:
        """The topic's settings in force. Set it to change them."""
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        # What every append needs, in the shape it needs it.
        self._opaque = not (config.compact or config.log_append_time or config.compression_codec is not None)
        self._max_batch = config.max_message_bytes
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._before_max_ms = config.message_timestamp_before_max_ms
        self._segment_bytes = config.segment_bytes
        self._index_interval = config.index_interval_bytes
        self._flush_messages = config.flush_messages
        self._roll_jitter_ms = 0
        if config.segment_jitter_ms:
            random = int.from_bytes(self.around.entropy.bytes(8), "big")
            self._roll_jitter_ms = random % min(config.segment_jitter_ms, config.segment_ms)
        with self.lock:
            if self.active is not None and self.active.size:
                self.set_roll_time(self.active)

    @property
    def last_stable_offset(self) -> int:
        """The end of what a reader that wants only committed transactions sees."""
        end = self.high_watermark  # first: a transaction that begins now begins here or later
        first = self.first_unstable
        return end if first is None else min(end, max(first, self.log_start_offset))

    def start(self, loaded: LoadedLog, recovery_point: int, first_dirty_offset: int = 0, dense_from: int = 0) -> None:
        """Begin to serve what recovery has found. ``recovery_point`` is what the checkpoint said: no more is known durable."""
        with self.lock:
            self.first_dirty_offset = min(first_dirty_offset, loaded.log_end_offset)
            self.dense_from = min(dense_from, loaded.log_end_offset)
            self.active = loaded.segments[-1]
            self.set_segments(tuple(loaded.segments))
            self.log_start_offset = loaded.log_start_offset
            self.producers = loaded.producers
            self.first_unstable = self.producers.first_unstable()
            self.snapshots = set(loaded.snapshots)
            self.aborted_sums = self.aborted_saved = loaded.aborted_sums
            self.publish(loaded.log_end_offset, self.active)
            self.durable_offset = self.recovery_point = self.saved_point = min(recovery_point, loaded.log_end_offset)
            if self.active.size:
                first = self.active.header(0, self.active.size)
                self.active.first_timestamp = first[MAX_TIMESTAMP] if first else -1
                self.set_roll_time(self.active)
            self.dir_dirty = True  # nobody knows what an earlier process left unsynced
            self.last_flush_ms = self.around.clock.time_ms()
            self.offline = None

    # -- append --------------------------------------------------------------------------------------------------------

    def append(self, records: memoryview, *, now_ms: int) -> AppendInfo:
        """Store the record batches in ``records`` (writable: offsets are written into it); they are then in the page cache.

        Raises Refusal with Kafka's code for what is wrong with them, StorageError where they could not be written: then
        nothing of them is in the log. A batch that an idempotent producer sends again is not stored again: ``duplicate``
        is set and the offsets are the ones it has.
        """
        size = len(records)
        try:
            header: Header = _unpack(records)
        except struct.error:
            header = _NO_HEADER
        _, length, _, magic, crc, attributes, last_delta, base_ts, max_ts, producer_id, epoch, sequence, count = header
        found: list[tuple[int, Header]] = [(0, header)]
        appended_ms = -1
        if not (  # one batch, with nothing to be said about it
            self._opaque
            and length + LOG_OVERHEAD == size <= self._max_batch
            and magic == MAGIC
            and not attributes & SPECIAL
            and last_delta == count - 1
            and count > 0
            and attributes & 7 <= LARGEST_CODEC
            # As many as would fit without a codec. A batch that claims more than that is looked at more closely.
            and count * SMALLEST_RECORD <= size - HEADER_SIZE
            and -self._before_max_ms <= base_ts - now_ms <= self._after_max_ms
            and -self._before_max_ms <= max_ts - now_ms <= self._after_max_ms
            and ((sequence >= 0 and epoch >= 0) if producer_id >= 0 else not attributes & TRANSACTIONAL)
            and crc32c(records[21:]) == crc
        ):
            records, found = append_rules.examine(records, self._config, now_ms, self.around.large)
            size = len(records)
            last_delta = sum(header[LAST_DELTA] + 1 for _, header in found) - 1
            max_ts = max(header[MAX_TIMESTAMP] for _, header in found)
            _, header = found[0]  # only a lone batch may have a producer id
            attributes, producer_id, epoch, sequence = header[5], header[9], header[10], header[11]
            if self._config.log_append_time:
                appended_ms = now_ms
        with self.lock:
            if self.offline is not None:
                raise self.gone()
            if producer_id >= 0:
                seen = self.producers.check(producer_id, epoch, sequence, last_delta)
                if seen is not None:
                    if self._config.log_append_time:
                        appended_ms = seen.timestamp
                    return AppendInfo(seen.base_offset, seen.last_offset, appended_ms, self.log_start_offset, True)
                if attributes & TRANSACTIONAL or self.first_unstable is not None:
                    transactions.check(self, producer_id, epoch, bool(attributes & TRANSACTIONAL))
            base_offset = self.log_end_offset
            last_offset = base_offset + last_delta
            segment = self.active
            assert segment is not None
            position = segment.size
            if (
                position + size > self._segment_bytes
                or max_ts > segment.roll_at_timestamp
                or now_ms > segment.roll_at_ms
                or last_offset - segment.base_offset > MAX_RELATIVE
            ):
                segment = self._make_room(size, last_delta, now_ms)
                position = segment.size
            offset = base_offset
            for at, header in found:
                _STAMP.pack_into(records, at, offset, header[LENGTH], self.leader_epoch)
                offset += header[LAST_DELTA] + 1
            file = segment.log.file or self._reopen(segment)
            monotonic = self.around.clock.monotonic
            started = monotonic()
            try:
                file.pwrite((records,), position)
            except OSError as error:
                raise self.not_written(segment, position, error) from error
            took = monotonic() - started
            if took > SLOW_WRITE_S:
                self.slow_until = started + took + SLOW_FOR_S
            if position == 0:
                segment.first_timestamp = max_ts
                self.set_roll_time(segment)
            offset = base_offset
            for at, header in found:
                offset += header[LAST_DELTA] + 1
                segment.appended(
                    position + at,
                    header[LENGTH] + LOG_OVERHEAD,
                    offset - 1,
                    header[MAX_TIMESTAMP],
                    self._index_interval,
                )
            if producer_id >= 0:
                self.producers.appended(producer_id, epoch, sequence, last_delta, last_offset, max_ts, now_ms)
                if attributes & TRANSACTIONAL:
                    self.producers.began(producer_id, base_offset)
                    self.first_unstable = self.producers.first_unstable()
            self.log_end_offset = self.high_watermark = offset
            self.tail = (offset, segment, segment.size)
        if offset - self.durable_offset >= self._flush_messages:
            self.flush_to(offset)
        if self._watchers:
            self.wake()
        return _new_info(AppendInfo, (base_offset, last_offset, appended_ms, self.log_start_offset, False))

    def publish(self, end_offset: int, segment: Segment) -> None:
        self.log_end_offset = self.high_watermark = end_offset
        self.tail = (end_offset, segment, segment.size)

    def set_roll_time(self, segment: Segment) -> None:
        """Kafka's rule: by the time of the segment's first batch, or by the clock where it has none."""
        config = self._config
        after = config.segment_ms - self._roll_jitter_ms
        if config.compact:  # only closed segments are compacted
            after = min(after, config.max_compaction_lag_ms)
        index_full = segment.roll_at_ms < 0
        if segment.first_timestamp >= 0:
            segment.roll_at_timestamp, segment.roll_at_ms = segment.first_timestamp + after, NEVER
        else:
            segment.roll_at_timestamp, segment.roll_at_ms = NEVER, segment.created_ms + after
        segment.max_entries = config.segment_index_bytes // segment.offsets.ENTRY.size
        if index_full:
            segment.roll_at_ms = -1

    def _make_room(self, size: int, last_delta: int, now_ms: int) -> Segment:
        """The segment to which ``size`` bytes go, a new one; ``lock`` is held."""
        if size > self._segment_bytes or last_delta > MAX_RELATIVE:
            raise BatchesTooLarge(
                f"{size} bytes of records do not fit a segment of {self._segment_bytes}.",
            )
        return self.roll(now_ms)

    def roll(self, now_ms: int) -> Segment:
        """Begin a new segment, unless the present one is empty; ``lock`` is held. Returns the active one."""
        old = self.active
        assert old is not None
        if old.size == 0:
            return old
        offset = self.log_end_offset
        try:
            if self.cut:  # recovery looks for a torn write only at the end of the last segment
                old.log.get().sync()
                self.cut = False
            old.finish_indexes()
            segment = new_segment(self.around.files, self.dir, offset, now_ms)
        except OSError as error:
            raise self.failed("a new segment could not be made", error) from error
        segment.max_entries = self._config.segment_index_bytes // segment.offsets.ENTRY.size
        self.dir_dirty = True
        self.active = segment
        self.set_segments((*self.view.segments, segment))
        self.tail = (offset, segment, 0)
        # In the background, so that recovery never has much to scan and the next wait_durable little to write.
        self.around.flush_soon(self)
        return segment

    def set_segments(self, segments: tuple[Segment, ...]) -> None:
        """``lock`` is held."""
        self.view = View(tuple(segment.base_offset for segment in segments), segments)

    def _reopen(self, segment: Segment) -> File:
        try:
            return segment.log.get()
        except OSError as error:
            raise self.failed("the active segment could not be opened", error) from error

    # -- failures ------------------------------------------------------------------------------------------------------

    def not_written(self, segment: Segment, position: int, error: OSError) -> StorageError:
        """Part of a batch may be in the file: it must not stay where the next one goes, or at the end of the segment."""
        try:
            segment.log.get().truncate(position)
            self.cut = True
        except OSError as second:
            return self.go_offline(f"a failed write ({error}) could not be undone: {second}")
        return self.failed("records could not be written", error)

    def failed(self, what: str, error: OSError) -> StorageError:
        """What to raise for an error of the machine. Unless it is one that passes, the partition goes offline."""
        if error.errno in _PASSING:
            return StorageError(f"{self.topic}-{self.partition}: {what}: {error}")
        return self.go_offline(f"{what}: {error}")

    def go_offline(self, why: str) -> StorageError:
        """From now on every use fails, until the broker is started again and recovery has looked at the files."""
        message = f"{self.topic}-{self.partition} is offline: {why}"
        if self.offline is None:
            # Never raised itself: it would gather the frames of all who raise it, with their files and buffers.
            self.offline = StorageError(message)
            logger.error("partition offline", topic=self.topic, partition=self.partition, reason=why)
            self.around.wake_soon(self)  # not here: the lock may be held
        return StorageError(message)

    def gone(self) -> Refusal | StorageError:
        """Why the log cannot be used."""
        if self.deleted:
            return UnknownTopic(f"{self.topic}-{self.partition} was deleted.")
        assert self.offline is not None
        return StorageError(str(self.offline))

    def mark_deleted(self) -> None:
        """The topic is being deleted: nothing more is read or written, and whoever waits is told."""
        with self.lock:
            self.deleted = True
            self.offline = StorageError(f"{self.topic}-{self.partition} was deleted")
        self.wake()

    # -- watching ------------------------------------------------------------------------------------------------------

    def watch(self, callback: Callable[[], None]) -> int:
        """``callback()`` runs after each append, on the appending thread with no lock held; and once when the log goes offline
        or is deleted. It must be quick and must not raise. Returns a token for ``unwatch``."""
        with self._watch_lock:
            self._next_token += 1
            self._watchers[self._next_token] = callback
            return self._next_token

    def unwatch(self, token: int) -> None:
        """The callback may still be running on another thread, and run no more afterwards. Unknown tokens do nothing."""
        with self._watch_lock:
            self._watchers.pop(token, None)

    def wake(self) -> None:
        """Call the watchers. No lock is held."""
        with self._watch_lock:
            callbacks = list(self._watchers.values())
        for callback in callbacks:
            callback()

    # -- the rest ------------------------------------------------------------------------------------------------------

    def segments_from(self, offset: int) -> tuple[Segment, ...]:
        """Those that have ``offset`` or later ones in them; ``lock`` is held."""
        segments = self.view.segments
        first = len(segments) - 1
        while first > 0 and segments[first].base_offset > offset:
            first -= 1
        return segments[first:]

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(the largest leader epoch that is at most ``epoch``, the offset at which it ended); (-1, -1) where that is unknown."""
        if epoch == self.leader_epoch:
            return epoch, self.log_end_offset
        if epoch > self.leader_epoch:
            return -1, -1
        found = -1
        for known, start in self.leader_epochs:
            if known > epoch:
                return (found, start) if found >= 0 else (epoch, start)
            found = known
        return -1, -1

    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.view.segments)


_NO_HEADER: Header = (0,) * 13
