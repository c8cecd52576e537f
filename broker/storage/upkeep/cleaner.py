"""Compaction: only the last record of each key is kept. Kafka's rules (LogCleaner, Cleaner), on the housekeeper thread.

A log is cleaned from its start up to a closed segment that is durable. First the cleaner reads the keys of the part that was not
cleaned yet, each with its last offset, as many as the memory allows. Then it writes every segment up to there again, without the
records that a later record replaces, and several small segments as one. Offsets do not change, so a cleaned log has gaps.

- A record without a value (a tombstone) is kept ``delete.retention.ms`` longer. The first time that its batch is cleaned, the
time
  when it may be removed replaces the batch's base timestamp (bit 6 of the attributes).
- Records of aborted transactions are removed, and replace nothing. A marker is kept until nothing of its transaction is left, and
  then ``delete.retention.ms`` longer, like a tombstone. Nothing is cleaned from the first unstable offset on.
- The last batch of an idempotent producer is kept, without records if necessary, because it has the sequence number. So is a
marker
  if nothing else of its producer is left, because it has the epoch that fences older instances.
- An entry, which a Pulsar producer has written, becomes a plain batch when some of its messages go. An encrypted entry, or a
  part of a message in several chunks, stays whole.
- A batch that keeps all its records is copied unchanged. So is a batch that matches its checksum and cannot be read, or that is
  larger inside than ``inspection.py`` allows: its keys are unknown. A batch that does not match its checksum takes the
  partition offline.

A new segment takes the place of the old ones in durable steps (``_swap``). After a crash recovery removes ``.cleaned`` files, and
finishes the replacement for a ``.swap`` file, which is complete.

Everything here is a generator, so that the thread can stop between two pieces of about a MiB.
"""

from collections.abc import Iterator

import attrs

from broker.config.setting import LONG_MAX
from broker.errors import Refusal, StorageError
from broker.log import get_logger
from broker.storage.log.log import Log
from broker.storage.segments.segment import (
    CLEANED,
    DELETED,
    LOG,
    MAX_RELATIVE,
    SNAPSHOT,
    SWAP,
    CorruptSegment,
    Segment,
    file_name,
)
from broker.storage.upkeep.kept_records import CleanedTransactions, KeptRecords
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import LOG_OVERHEAD, BatchHeader, check_crc, read_header

logger = get_logger("storage")

PIECE_BYTES = 1024 * 1024


@attrs.frozen
class Cleanable:
    """The part of a log that can be cleaned: ``segments``, of which those from number ``dirty`` on have not been cleaned."""

    log: Log
    segments: tuple[Segment, ...]
    dirty: int
    dirty_ratio: float
    overdue: bool  # max.compaction.lag.ms has passed


def cleanable(log: Log, now_ms: int, durable: int | None = None) -> Cleanable | None:
    """None if there is nothing to clean. ``durable`` replaces the saved recovery point."""
    config = log.config
    if not config.compact or log.offline is not None:
        return None
    view = log.view
    end = 0
    for segment, next_base in zip(view.segments, view.bases[1:], strict=False):
        lag_ms = config.min_compaction_lag_ms
        too_young = lag_ms > 0 and segment.largest()[0] > now_ms - lag_ms
        # Beyond the saved recovery point there must be no gaps: after a crash, recovery takes a gap there for damage.
        point = log.saved_point if durable is None else durable
        if too_young or next_base > min(point, log.last_stable_offset):
            break
        end += 1
    segments = view.segments[:end]
    dirty = sum(segment.base_offset < log.first_dirty_offset for segment in segments)
    if dirty and segments[dirty - 1 : dirty] and _ends_after(view.bases, dirty, log.first_dirty_offset):
        dirty -= 1  # it was cleaned in part, because not all keys fitted the memory
    dirty_bytes = sum(segment.size for segment in segments[dirty:])
    if dirty_bytes == 0:
        return None
    oldest_ms = segments[dirty].largest()[0]
    overdue = config.max_compaction_lag_ms < LONG_MAX and 0 <= oldest_ms < now_ms - config.max_compaction_lag_ms
    return Cleanable(log, segments, dirty, dirty_bytes / sum(segment.size for segment in segments), overdue)


def _ends_after(bases: tuple[int, ...], number: int, offset: int) -> bool:
    return number >= len(bases) or bases[number] > offset


def choose(logs: list[Log], now_ms: int) -> Cleanable | None:
    """The log that needs cleaning most, if any needs it."""
    best: Cleanable | None = None
    for log in logs:
        candidate = _worth_cleaning(log, now_ms)
        if candidate is None:
            continue
        if best is None or (candidate.overdue, candidate.dirty_ratio) > (best.overdue, best.dirty_ratio):
            best = candidate
    return best


def waiting(logs: list[Log], now_ms: int) -> list[Log]:
    """The logs that need cleaning and cannot be cleaned before a checkpoint, because the part to be cleaned lies beyond their
    saved recovery points."""
    beyond = []
    for log in logs:
        bases = log.view.bases
        if not log.config.compact or len(bases) < 2 or log.saved_point >= bases[-1]:
            continue
        if _worth_cleaning(log, now_ms) is None and _worth_cleaning(log, now_ms, bases[-1]) is not None:
            beyond.append(log)
    return beyond


def _worth_cleaning(log: Log, now_ms: int, durable: int | None = None) -> Cleanable | None:
    try:
        candidate = cleanable(log, now_ms, durable)
    except OSError as error:
        log.state.failed("an index could not be read", error)
        return None
    if candidate is not None and (candidate.overdue or candidate.dirty_ratio >= log.config.min_cleanable_dirty_ratio):
        return candidate
    return None


class Cleaning:
    """One cleaning of one log."""

    def __init__(self, plan: Cleanable, key_bytes: int, now_ms: int) -> None:
        self.log = plan.log
        self._plan = plan
        self._key_bytes = key_bytes
        self._config = plan.log.config
        self._kept = KeptRecords(plan.log.config, now_ms)

    def run(self) -> Iterator[None]:
        """Clean; yields between two pieces of work. Raises StorageError; unless the machine failed, nothing has changed then."""
        log, kept = self.log, self._kept
        try:
            aborted = [entry for segment in log.view.segments for entry in segment.aborted.entries()]
            kept.transactions = CleanedTransactions(aborted)
            yield from self._read_keys()
            segments = [segment for segment in self._plan.segments if segment.base_offset < kept.end_offset]
            # Before the first gap: neither the scrub nor, after a crash, recovery must take it for damage.
            log.trimming.expect_gaps_before(kept.end_offset)
            log.around.save_cleaner_offset(log)
            for group in self._groups(segments):
                with log.lock:
                    producers = log.producers.freeze()
                kept.last_of_producers = set(producers.last_offsets().values())
                kept.last_epochs = producers.epochs_of_markers()
                yield from self._clean(group)
            if kept.unread:
                logger.warning(
                    "unreadable_batches_kept",
                    topic=log.topic,
                    partition=log.partition,
                    batches=len(kept.unread),
                    first_offset=min(kept.unread),
                )
        except CorruptSegment as error:
            raise log.state.go_offline(str(error)) from error
        except OSError as error:
            if log.deleted:
                return
            raise log.state.failed("compaction could not read or write", error) from error
        log.trimming.mark_cleaned(kept.end_offset)

    def _read_keys(self) -> Iterator[None]:
        """Learn the keys of the part not cleaned yet, as many as the memory allows."""
        kept, room = self._kept, self._key_bytes
        kept.end_offset = self.log.first_dirty_offset
        for segment in self._plan.segments[self._plan.dirty :]:
            for batch, header in self._batches(segment):
                if batch is None:
                    yield
                    continue
                room -= kept.learn(batch, header)
                if room <= 0:
                    return
        following = [base for base in self.log.view.bases if base >= kept.end_offset]
        if following:  # over the gap that an earlier cleaning left
            kept.end_offset = following[0]

    def _batches(self, segment: Segment) -> Iterator[tuple[memoryview | None, BatchHeader]]:
        """Each batch with its header, verified; (None, the last header) after each piece, so that the thread can do something
        else."""
        position, end = 0, segment.size
        want = PIECE_BYTES
        while position < end:
            data = memoryview(segment.log.get().pread(min(want, end - position), position))
            want = PIECE_BYTES
            at = 0
            header: BatchHeader | None = None
            try:
                while len(data) - at > LOG_OVERHEAD:
                    size = int.from_bytes(data[at + 8 : at + LOG_OVERHEAD], "big", signed=True) + LOG_OVERHEAD
                    if at + size > len(data) and position + size <= end:
                        if at == 0:
                            want = size  # larger than a piece: read it again, whole
                        break
                    header = read_header(data, at)
                    check_crc(data, at, header)
                    yield data[at : at + size], header
                    at += size
                    position += size
            except ProtocolError as error:
                raise CorruptSegment(f"{segment.log.path} is damaged at position {position}: {error}") from error
            if header is not None:
                yield None, header
            elif want == PIECE_BYTES:
                raise CorruptSegment(f"{segment.log.path} is damaged at position {position}: it ends within a batch")

    def _groups(self, segments: list[Segment]) -> Iterator[list[Segment]]:
        """Successive segments that become one, which is not larger than a segment may be."""
        group: list[Segment] = []
        size = 0
        bases = self.log.view.bases
        for segment in segments:
            following = [base for base in bases if base > segment.base_offset]
            last_offset = following[0] - 1 if following else segment.base_offset
            if group and (
                size + segment.size > self._config.segment_bytes or last_offset - group[0].base_offset > MAX_RELATIVE
            ):
                yield group
                group, size = [], 0
            group.append(segment)
            size += segment.size
        if group:
            yield group

    def _clean(self, group: list[Segment]) -> Iterator[None]:
        """Write the kept records of these segments into a new segment, and put it in their place."""
        log, first = self.log, group[0]
        cleaned = Segment(first.files, log.dir, first.base_offset, 0, first.created_ms, CLEANED)
        cleaned.largest_timestamp = -1
        self._remove(cleaned)
        try:
            file = cleaned.log.create()
            for segment in group:
                pending: list[memoryview | bytearray] = []
                written = cleaned.size
                for batch, header in self._batches(segment):
                    if batch is None:
                        file.pwrite(pending, written)
                        pending, written = [], cleaned.size
                        yield
                        continue
                    left = self._kept.what_stays(batch, header)
                    if left is not None:
                        new = header if left is batch else read_header(left)
                        cleaned.appended(
                            cleaned.size,
                            new.size,
                            new.last_offset,
                            new.max_timestamp,
                            self._config.index_interval_bytes,
                        )
                        pending.append(left)
                if pending:
                    file.pwrite(pending, written)
                for entry in segment.aborted.entries():
                    if self._kept.has_entry(entry):
                        cleaned.aborted.add(entry)
            cleaned.finish_indexes()
            file.sync()
            cleaned.sync_indexes()
            self._swap(group, cleaned)
        except OSError:
            self._remove(cleaned)
            raise

    def _remove(self, cleaned: Segment) -> None:
        for cached in (cleaned.log, cleaned.offsets.cached, cleaned.times.cached, cleaned.aborted.cached):
            cached.drop()
            if self.log.around.disk.exists(cached.path) and cached.path.endswith(CLEANED):
                self.log.around.disk.remove(cached.path)

    def _swap(self, group: list[Segment], cleaned: Segment) -> None:
        """Put ``cleaned`` in the place of ``group``, unless a segment of the group was deleted meanwhile."""
        log = self.log
        disk = log.around.disk
        final = f"{log.dir}/{file_name(cleaned.base_offset, LOG)}"
        with log.files_lock:
            present = log.view.segments
            if log.deleted or any(segment not in present for segment in group):
                self._remove(cleaned)
                return
            caches = [cleaned.log, cleaned.offsets.cached, cleaned.times.cached]
            if len(cleaned.aborted):
                caches.insert(0, cleaned.aborted.cached)  # before the log, durably: see finish_swap
            for cached in caches:
                cached.get()
                cached.pinned = True  # they cannot be opened while their names change
            try:
                if len(cleaned.aborted):  # unlike the others, this index could not be rebuilt from the log
                    swapped = cleaned.aborted.cached.path.removesuffix(CLEANED) + SWAP
                    disk.rename(cleaned.aborted.cached.path, swapped)
                    cleaned.aborted.cached.path = swapped
                    disk.sync_dir(log.dir)
                disk.rename(cleaned.log.path, final + SWAP)
                cleaned.log.path = final + SWAP
                disk.sync_dir(log.dir)
                # From here on the new segment is the valid one, after a crash too.
                log.trimming.replace_segments(group, cleaned)
                old = [path for segment in group for path in segment.paths() if path != final]
                log.trimming.discard([path for path in old if not path.endswith(SNAPSHOT)])
                # A thread that still reads the old segment must not find the new file under its name.
                group[0].log.path = final + DELETED
                for cached in caches:
                    path = cached.path.removesuffix(SWAP).removesuffix(CLEANED)
                    disk.rename(cached.path, path)
                    cached.path = path
                    if cached is cleaned.aborted.cached:
                        disk.sync_dir(log.dir)
                disk.sync_dir(log.dir)
            except OSError as error:
                raise log.state.go_offline(f"a compacted segment could not be put in its place: {error}") from error
            finally:
                for cached in caches:
                    cached.pinned = False
            for segment in group:
                segment.drop_files()
            # The whole index of the cleaned segment is durable; of the others, as much as was durable before.
            known = {
                segment: log.durability.aborted_sums.get(segment.base_offset, (0, 0))[0]
                for segment in log.view.segments
            }
            known[cleaned] = len(cleaned.aborted)
            log.durability.save_aborted({segment: count for segment, count in known.items() if count})


def clean(plan: Cleanable, key_bytes: int, now_ms: int) -> Iterator[bool]:
    """Clean a log, with at most about ``key_bytes`` of keys in memory. An error is logged and ends the cleaning.

    Yields False between two pieces of work, and True at the end if it succeeded.
    """
    log = plan.log
    try:
        for _ in Cleaning(plan, key_bytes, now_ms).run():
            yield False
        yield True
    except (StorageError, Refusal) as error:
        logger.error("compaction_failed", topic=log.topic, partition=log.partition, error=str(error))
