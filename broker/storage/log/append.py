"""Appending record batches: they are checked, stamped with offsets, written to the page cache and published to readers.

Any thread. The batches are checked before ``lock`` is taken, and the watchers are called after it is released.

Tests: tests/storage/log/test_log.py, tests/storage/log/test_log_model.py.
"""

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from broker.errors import Refusal, StorageError
from broker.runtime.disk import File
from broker.runtime.threads import Lock
from broker.storage.log import append_rules
from broker.storage.log.append_rules import LARGEST_CODEC
from broker.storage.log.log_config import LogConfig
from broker.storage.log.producer_state import SeenBatch
from broker.storage.log.state import LogState, Watchers
from broker.storage.log.transactions import Transactions
from broker.storage.log.trimming import Rolling
from broker.storage.refusals import BatchesTooLarge, LogEnded
from broker.storage.segments.segment import (
    ATTRIBUTES,
    LAST_DELTA,
    LENGTH,
    MAX_RELATIVE,
    MAX_TIMESTAMP,
    PRODUCER_ID,
    RECORD_COUNT,
    Header,
    Segment,
)
from protocol.errors import ProtocolError
from protocol.frames import crc32c
from protocol.kafka.records.batch import (
    COMPRESSION_MASK,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    SEQUENCES,
    TRANSACTIONAL,
)
from protocol.kafka.records.record_scan import check_shape
from protocol.kafka.records.records import SMALLEST_RECORD
from protocol.kafka.runs import Taken, usual_in_c

# A write to the page cache takes microseconds. If two in a row took this long, or a single write took ten times as long, writes
# are being throttled, and the next ones will be, too. A single slow write may have waited for a CPU: so did 2 of 1,000 writes
# while nine threads competed for two CPUs, for 7 ms at most.
SLOW_WRITE_S = 0.005
SLOW_FOR_S = 0.5

# The attributes of batches that have at most a codec and a transaction.
_USUAL = frozenset(codec | bit for codec in range(LARGEST_CODEC + 1) for bit in (0, TRANSACTIONAL))
# After this many bytes the operating system is asked to begin to write them (``Flusher.begin_soon``).
_BEGIN_BYTES = 4 * 1024 * 1024

_STAMP = struct.Struct(">qii")  # base offset, batch length, leader epoch: the first 16 bytes of a batch
_unpack = HEADER.unpack_from
_new_info = tuple.__new__


def usual_python(run: Sequence[memoryview], earliest: int, latest: int, max_batch: int) -> Taken:
    """The first batches of ``run`` that need no more than these checks to be stored as they are. Their timestamps are from
    ``earliest`` to ``latest``, and none has more than ``max_batch`` bytes."""
    taken: list[tuple[int, Header]] = []
    total, newest = 0, -1
    is_numbered = False
    try:
        for records in run:
            header: Header = _unpack(records)
            _, length, _, magic, crc, attributes, last_delta, base_ts, max_ts, producer, epoch, sequence, count = header
            size = len(records)
            if not (
                length + LOG_OVERHEAD == size <= max_batch
                and magic == MAGIC
                and attributes in _USUAL
                and last_delta == count - 1
                # As many records as fit without compression. A batch that claims more is examined.
                and 0 < count * SMALLEST_RECORD <= size - HEADER_SIZE
                and earliest <= base_ts <= latest
                and earliest <= max_ts <= latest
                and ((sequence >= 0 and epoch >= 0) if producer >= 0 else not attributes & TRANSACTIONAL)
                and crc32c(records[CRC_START:]) == crc
            ):
                break
            check_shape(records[HEADER_SIZE:], attributes & COMPRESSION_MASK, count)
            taken.append((total, header))
            total += size
            if max_ts > newest:
                newest = max_ts
            if producer >= 0:
                is_numbered = True
    except (struct.error, ProtocolError):  # no header, or records of another shape
        pass
    return taken, total, newest, is_numbered


usual = usual_python if usual_in_c is None else usual_in_c


class AppendInfo(NamedTuple):
    """``log_append_time_ms`` is -1 unless the topic has LogAppendTime."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool


class Appender:
    __slots__ = (
        "_after_max_ms",
        "_allow_entries",
        "_before_max_ms",
        "_begin_at",
        "_begin_soon",
        "_config",
        "_ended",
        "_flush_appended",
        "_flush_messages",
        "_flush_soon",
        "_index_interval",
        "_large",
        "_max_batch",
        "_opaque",
        "_rolling",
        "_segment_bytes",
        "_shows_at_once",
        "_state",
        "_transactions",
        "_was_slow",
        "_watchers",
    )

    def __init__(
        self,
        state: LogState,
        rolling: Rolling,
        transactions: Transactions,
        watchers: Watchers,
        flush_appended: Callable[[int], None],
        large: Lock,
        allow_entries: Callable[[], None],
        begin_soon: Callable[[], None],
        flush_soon: Callable[[], None],
    ) -> None:
        """``large`` is held while a batch is decompressed that is large inside (``inspection.py``). ``allow_entries`` is called
        before the log gets its first entry. ``begin_soon`` has another thread begin to write to the disk; ``flush_soon`` has it
        make durable what was appended."""
        self._state = state
        self._rolling = rolling
        self._transactions = transactions
        self._watchers = watchers
        self._flush_appended = flush_appended
        self._large = large
        self._allow_entries = allow_entries
        self._begin_soon = begin_soon
        self._flush_soon = flush_soon
        self._begin_at = _BEGIN_BYTES  # appended by this process
        self._ended = False
        self._was_slow = False  # the last write
        self.configure(state.config)

    def configure(self, config: LogConfig) -> None:
        """Keep those of the topic's settings that every append needs, in the form in which it needs them."""
        self._config = config
        self._opaque = not (config.decompresses or config.log_append_time)
        self._max_batch = config.max_message_bytes
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._before_max_ms = config.message_timestamp_before_max_ms
        with self._state.lock:
            # No batch fits the segment of a log that has ended, so every append reaches the code that refuses it.
            self._segment_bytes = -1 if self._ended else config.segment_bytes
        self._index_interval = config.index_interval_bytes
        self._flush_messages = config.flush_messages
        self._shows_at_once = not config.shows_durable

    def end(self) -> None:
        """Refuse every append from now on with LogEnded. The markers of transactions are still written."""
        with self._state.lock:
            self._ended = True
            self._segment_bytes = -1

    def append(self, records: memoryview, *, now_ms: int, entries: bool = False) -> AppendInfo:
        """Store the record batches in ``records`` (writable: offsets are written into it) in the page cache.

        With ``entries``, this broker has built them itself (``protocol/kafka/records/entry.py``): they are stored unexamined.

        Raises a Refusal that says what is wrong with the batches, or StorageError if they could not be written. In both
        cases the log has none of them. A batch that an idempotent producer sends again is not stored again: the result has
        ``duplicate`` set and the offsets that the batch has in the log.
        """
        run = () if entries or not self._opaque else (records,)
        earliest, latest = now_ms - self._before_max_ms, now_ms + self._after_max_ms
        batches, size, newest, is_numbered = usual(run, earliest, latest, self._max_batch)
        appended_ms = -1
        if not batches:
            if entries:
                if not self._state.has_entries:
                    self._allow_entries()
                batches = append_rules.entries(records, self._config, now_ms)
            else:
                records, batches = append_rules.examine(records, self._config, now_ms, self._large)
            size = len(records)
            newest = max([header[MAX_TIMESTAMP] for _, header in batches])
            is_numbered = batches[0][1][PRODUCER_ID] >= 0  # then there is only one batch
            if self._config.log_append_time:
                appended_ms = now_ms
        state = self._state
        with state.lock:
            if state.offline is not None:
                raise state.why_unavailable()
            if is_numbered:
                seen = self._check_producer(batches[0][1])
                if seen is not None:
                    if self._config.log_append_time:
                        appended_ms = seen.timestamp
                    return AppendInfo(seen.base_offset, seen.last_offset, appended_ms, state.log_start_offset, True)
            base_offset = offset = state.log_end_offset
            for at, header in batches:
                _STAMP.pack_into(records, at, offset, header[LENGTH], state.leader_epoch)
                offset += header[LAST_DELTA] + 1
            self._write((records,), batches, size, newest, is_numbered, offset, now_ms, True)
        self._tell(offset)
        return _new_info(AppendInfo, (base_offset, offset - 1, appended_ms, state.log_start_offset, False))

    def append_run(self, run: Sequence[memoryview], *, now_ms: int) -> tuple[list[int], int]:
        """Store batches that were sent one after the other, with one write. Each of ``run`` is as ``append`` takes it.

        Returns the base offsets of the stored batches, which are the first of the run, and the log start offset. Stops before
        the first batch that is not the usual case (``append`` can take that batch next) for any reason; a batch that cannot be
        written is not stored either, and ``append`` says why. Raises StorageError if the fsync for ``flush.messages`` fails.
        """
        earliest, latest = now_ms - self._before_max_ms, now_ms + self._after_max_ms
        batches, size, newest, is_numbered = usual(run if self._opaque else (), earliest, latest, self._max_batch)
        state = self._state
        with state.lock:
            if is_numbered:
                batches = batches[: self._continued(batches)]
            if not batches or state.offline is not None:
                return [], state.log_start_offset
            if len(batches) < len(run):
                run = run[: len(batches)]
                size = batches[-1][0] + len(run[-1])
            offset = state.log_end_offset
            bases = []
            for (_, header), records in zip(batches, run, strict=False):
                _STAMP.pack_into(records, 0, offset, header[LENGTH], state.leader_epoch)
                bases.append(offset)
                offset += header[RECORD_COUNT]
            try:
                # Each batch decides for itself whether it begins a segment, so only ``append`` does that.
                written = self._write(run, batches, size, newest, is_numbered, offset, now_ms, False)
            except StorageError:
                written = False
            if not written:
                return [], state.log_start_offset
        self._tell(offset)
        return bases, state.log_start_offset

    def _check_producer(self, header: Header) -> SeenBatch | None:
        """The batch, if it is in the log already. ``lock`` is held. Raises a Refusal if it must not be appended."""
        state = self._state
        producer_id, epoch, sequence = header[PRODUCER_ID:RECORD_COUNT]
        seen = state.producers.check(producer_id, epoch, sequence, header[LAST_DELTA])
        transactional = bool(header[ATTRIBUTES] & TRANSACTIONAL)
        if seen is None and (transactional or state.first_unstable is not None):
            self._transactions.check(producer_id, epoch, transactional)
        return seen

    def _continued(self, taken: Sequence[tuple[int, Header]]) -> int:
        """How many of the first batches of a run continue the sequences of their producers. ``lock`` is held."""
        state = self._state
        # By producer id: the epoch, and the sequence number that must come next.
        next_of: dict[int, tuple[int, int]] = {}
        for number, (_, header) in enumerate(taken):
            producer_id, epoch, sequence = header[PRODUCER_ID:RECORD_COUNT]
            last_delta = header[LAST_DELTA]
            if producer_id < 0:
                continue
            if header[ATTRIBUTES] & TRANSACTIONAL or state.first_unstable is not None:
                return number
            expected = next_of.get(producer_id)
            if expected is None:
                try:
                    if state.producers.check(producer_id, epoch, sequence, last_delta) is not None:
                        return number
                except Refusal:
                    return number
            elif expected != (epoch, sequence):
                return number
            next_of[producer_id] = (epoch, (sequence + last_delta + 1) % SEQUENCES)
        return len(taken)

    def _write(
        self,
        buffers: Sequence[memoryview],
        batches: Sequence[tuple[int, Header]],
        size: int,
        newest: int,
        is_numbered: bool,
        end: int,
        now_ms: int,
        begins: bool,
    ) -> bool:
        """Write ``buffers``, whose batches have their offsets, up to ``end``, and publish them. ``lock`` is held.

        If they begin a segment: False without ``begins``. Raises Refusal, StorageError. In all these cases nothing is written.
        """
        state = self._state
        segment = state.active
        assert segment is not None
        position = segment.size
        if (
            position + size > self._segment_bytes
            or newest > segment.roll_at_timestamp
            or now_ms > segment.roll_at_ms
            or end - 1 - segment.base_offset > MAX_RELATIVE
            or not position
        ):
            if not begins:
                return False
            state.writing_since = state.clock.monotonic()
            segment = self._begin_segment(size, end - 1 - state.log_end_offset, now_ms)
            position = segment.size
        file = segment.log.file or self._reopen(segment)
        monotonic = state.clock.monotonic
        state.writing_since = started = monotonic()
        try:
            file.pwrite(buffers, position)
        except OSError as error:
            state.writing_since = 0.0
            raise state.undo_write(segment, position, error) from error
        took = monotonic() - started
        state.writing_since = 0.0
        if took > SLOW_WRITE_S or self._was_slow:
            self._note_write(took, started)
        if position == 0:
            segment.first_timestamp = newest
            self._rolling.set_roll_time(segment)
        segment.appended_all(position, state.log_end_offset, batches, self._index_interval)
        if is_numbered:
            self._count_producers(batches, now_ms)
        state.appended_bytes += size
        state.log_end_offset = end
        if self._shows_at_once:
            state.high_watermark = end
            state.tail = (end, segment, segment.size)
        return True

    def _count_producers(self, batches: Sequence[tuple[int, Header]], now_ms: int) -> None:
        """Update the producer state for batches that were written at the end of the log. ``lock`` is held."""
        state = self._state
        producers = state.producers
        offset = state.log_end_offset
        for _, header in batches:
            producer_id, epoch, sequence = header[PRODUCER_ID:RECORD_COUNT]
            last_delta, timestamp = header[LAST_DELTA], header[MAX_TIMESTAMP]
            if producer_id >= 0:
                producers.appended(producer_id, epoch, sequence, last_delta, offset + last_delta, timestamp, now_ms)
                if header[ATTRIBUTES] & TRANSACTIONAL:
                    producers.began(producer_id, offset)
                    state.first_unstable = producers.first_unstable()
            offset += last_delta + 1

    def _tell(self, end: int) -> None:
        """Tell those who wait for it that the log has grown to ``end``. No lock is held. Raises StorageError if the fsync for
        ``flush.messages`` fails."""
        state = self._state
        if state.appended_bytes >= self._begin_at:
            # Two threads may come here at once; the second hint finds little or nothing to do.
            self._begin_at = state.appended_bytes + _BEGIN_BYTES
            self._begin_soon()
        if end - state.durable_offset >= self._flush_messages:
            self._flush_appended(end)
        if state.high_watermark < end:
            self._flush_soon()
        elif self._watchers.callbacks:
            self._watchers.wake()

    def _note_write(self, took: float, started: float) -> None:
        """Note that a write to the page cache took ``took`` s."""
        if took > SLOW_WRITE_S:
            if self._was_slow or took > 10 * SLOW_WRITE_S:
                self._state.slow_until = started + took + SLOW_FOR_S
            self._was_slow = True
        elif self._was_slow:
            self._was_slow = False

    def _begin_segment(self, size: int, last_delta: int, now_ms: int) -> Segment:
        """A new segment for ``size`` bytes. ``lock`` is held. Raises Refusal if no segment can hold them, StorageError."""
        if self._ended:
            raise LogEnded("Nothing more is written to this topic: it has been terminated.")
        if size > self._segment_bytes or last_delta > MAX_RELATIVE:
            raise BatchesTooLarge(
                f"{size} bytes of records do not fit a segment of {self._segment_bytes}.",
            )
        return self._rolling.roll(now_ms)

    def _reopen(self, segment: Segment) -> File:
        try:
            return segment.log.get()
        except OSError as error:
            raise self._state.failed("the active segment could not be opened", error) from error
