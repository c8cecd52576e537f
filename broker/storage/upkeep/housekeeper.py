"""The housekeeper thread: retention, compaction, checkpoints, removal of files, expiry of producers, scrub.

``step`` does the work that is due and waits for the next. Long work (a compaction, checkpoints and retention of thousands of
logs, the removal of as many directories) is done one piece a step, so that stopping never waits long. An error of one log is
reported and does not keep the others from their turn.

``LogCheckpoints`` writes the three checkpoint files of the data directory: ``recovery-point-offset-checkpoint`` has the recovery
points, ``log-start-offset-checkpoint`` the log start offsets, and ``cleaner-offset-checkpoint`` the first dirty offsets. Any
thread may call; a lock makes the writes follow each other. The format of the files is in ``checkpoints.py``.

``advance_start`` decides which old segments are removed, by age and by size. Kafka's rules. It only moves the log start offset;
when that is durable, ``Trimming.drop_old_segments`` removes the files. A service whose consumers keep their positions elsewhere
may give a log a ``Rule``: nothing is removed that they still need, and the service may have an age and a size of its own.

Tests: tests/storage/test_log_checkpoints.py.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from typing import NamedTuple

import attrs

from broker.errors import Refusal, StorageError
from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.runtime.disk import Disk
from broker.runtime.threads import Event, Lock
from broker.storage.checkpoints import CLEANER_OFFSETS, LOG_STARTS, RECOVERY_POINTS, Offsets, write_offsets
from broker.storage.config import StorageConfig
from broker.storage.log.log import Log
from broker.storage.partition_dir import dispose
from broker.storage.segments.segment import Segment
from broker.storage.upkeep import cleaner
from broker.storage.upkeep.scrub import Scrub


class LogCheckpoints:
    """``partitions`` maps (topic, partition) to the log. It belongs to the log manager, which changes it while this reads."""

    def __init__(self, disk: Disk, directory: str, partitions: Mapping[tuple[str, int], Log]) -> None:
        self._disk = disk
        self._directory = directory
        self._partitions = partitions
        self._lock = Lock()
        self._saved: dict[str, Offsets] = {}  # the content of each file; a file without an entry is not reliable

    def take_over(self, saved: Mapping[str, Offsets]) -> None:
        """Begin with the content of the files at the start."""
        self._saved.update(saved)

    def move_up_each(self) -> Iterator[None]:
        """Move the recovery points of all logs up, and save them: one log a step, because thousands of fsyncs take a
        while. Blocks. Raises StorageError."""
        for log in list(self._partitions.values()):
            try:
                if log.durability.checkpoint():
                    yield
            except (StorageError, Refusal) as error:
                if not log.deleted:  # a topic that was deleted meanwhile is no failure
                    logger.error("checkpoint_failed", topic=log.topic, partition=log.partition, error=str(error))
        self.save_recovery_points()

    def save_recovery_points(self) -> None:
        """Raises StorageError."""
        self._save(RECOVERY_POINTS, lambda log: log.recovery_point)
        for key, log in list(self._partitions.items()):
            log.durability.note_saved_point(self._saved[RECOVERY_POINTS].get(key, 0))

    def save_log_starts(self) -> None:
        """Must return before any segment is removed: otherwise the next start would miss it. Raises StorageError."""
        self._save(LOG_STARTS, lambda log: log.log_start_offset)
        for key, log in list(self._partitions.items()):
            log.durability.note_saved_start(self._saved[LOG_STARTS].get(key, 0))

    def save_cleaner_offsets(self) -> None:
        """A line, even with 0, says that the log may have gaps below its recovery point. Raises StorageError."""
        self._save(CLEANER_OFFSETS, lambda log: log.first_dirty_offset)

    def forget(self, topic: str, numbers: range) -> None:
        """Call before partitions are made: they must not inherit the offsets of deleted partitions of the same name. Raises
        StorageError."""
        keys = frozenset((topic, number) for number in numbers)
        values: dict[str, Callable[[Log], int]] = {
            RECOVERY_POINTS: lambda log: log.recovery_point,
            LOG_STARTS: lambda log: log.log_start_offset,
            CLEANER_OFFSETS: lambda log: log.first_dirty_offset,
        }
        for file, value in values.items():
            if keys & self._saved.get(file, {}).keys():
                self._save(file, value, keys)

    def _save(self, name: str, value: Callable[[Log], int], without: frozenset[tuple[str, int]] = frozenset()) -> None:
        """Write a file with a line for each log with an offset, except ``without``. Raises StorageError."""
        with self._lock:
            before = self._saved.get(name)
            saved = before or {}
            offsets: Offsets = {}
            for key, log in list(self._partitions.items()):
                # A log that could not be opened keeps its line of the file.
                unknown = log.offline is not None and not log.view.segments
                offset = saved.get(key, 0) if unknown else value(log)
                has_gaps = name == CLEANER_OFFSETS and (key in saved if unknown else log.dense_from > 0)
                if (offset > 0 or has_gaps) and key not in without:
                    offsets[key] = offset
            if offsets == before:
                return
            try:
                write_offsets(self._disk, f"{self._directory}/{name}", offsets, spare=True)
            except OSError as error:
                raise StorageError(f"{name} could not be written: {error}") from error
            self._saved[name] = offsets


class Rule(NamedTuple):
    needed_from: int | None = None  # offset; None: nothing is needed
    retention_ms: int | None = None  # None: the topic's setting
    retention_bytes: int | None = None


_SETTINGS_ONLY = Rule()


def advance_start(log: Log, now_ms: int, rule: Rule | None = None) -> bool:
    """Move the log start offset past the segments that are not kept. True if it moved. Raises StorageError."""
    config = log.config
    if not config.delete:
        return False
    needed_from, retention_ms, retention_bytes = rule or _SETTINGS_ONLY
    if retention_ms is None:
        retention_ms = config.retention_ms
    if retention_bytes is None:
        retention_bytes = config.retention_bytes
    segments = log.view.segments
    count = max(
        _too_old(log, segments, now_ms, retention_ms) if retention_ms >= 0 else 0,
        _too_many(segments, retention_bytes) if retention_bytes >= 0 else 0,
    )
    if needed_from is not None:
        count = min(count, _not_needed(log, segments, needed_from))
    if count == 0:
        return False
    log.make_visible()  # the log must not begin after what consumers see
    if count == len(segments):
        # Even the newest record is too old: close the active segment, so that it can be removed too.
        with log.lock:
            if log.offline is not None:
                raise log.state.why_unavailable()
            if log.view.segments[-1] is not segments[-1] or _latest(segments[-1]) >= now_ms - retention_ms:
                count -= 1  # a record was appended meanwhile
            else:
                log.rolling.roll(now_ms)
    start = segments[count].base_offset if count < len(segments) else log.view.bases[-1]
    return log.trimming.advance_start(start)


def _latest(segment: Segment) -> int:
    """The timestamp of the newest record of the segment, in ms; if records have none, the time when the segment was created."""
    timestamp, _ = segment.largest()
    return timestamp if timestamp >= 0 else segment.created_ms


def _not_needed(log: Log, segments: tuple[Segment, ...], needed_from: int) -> int:
    """The number of segments, from the first, that end before this offset."""
    ends = [segment.base_offset for segment in segments[1:]] + [log.log_end_offset]
    return sum(end <= needed_from for end in ends)


def _too_old(log: Log, segments: tuple[Segment, ...], now_ms: int, retention_ms: int) -> int:
    """The number of segments, from the first, that have only records older than ``retention_ms``."""
    oldest_ms = now_ms - retention_ms
    count = 0
    for segment in segments:
        if segment.size == 0 and segment is segments[-1]:
            break
        if log.reader.search(lambda: _latest(segment)) >= oldest_ms:  # noqa: B023 (called here)
            break
        # Records deleted by mistake are lost, so the time index is checked first.
        log.reader.search(segment.check_largest)
        if _latest(segment) >= oldest_ms:
            break
        count += 1
    return count


def _too_many(segments: tuple[Segment, ...], retention_bytes: int) -> int:
    """The number of segments that can be removed so that at least ``retention_bytes`` remain."""
    excess = sum(segment.size for segment in segments) - retention_bytes
    count = 0
    for segment in segments[:-1]:
        if excess < segment.size:
            break
        excess -= segment.size
        count += 1
    return count


logger = get_logger("storage")

IDLE_FILES_S = 60.0
SCRUB_S = 1.0
SHORTEST_CLEAN_S = 1.0
DELETIONS_A_STEP = 32


@attrs.define(eq=False)
class Duty:
    """Work that is repeated; ``due`` is in s of the monotonic clock."""

    setting_s: Callable[[StorageConfig], float]  # the interval of these settings; inf: never
    run: Callable[[], Iterator[None] | None]  # of an iterator, each step takes one item
    interval_s: float
    due: float


class Housekeeper:
    """``Body`` of the housekeeper thread. Other threads call only ``delete_later``, ``run_soon``, ``trim_soon``,
    ``without_new_cleanings``, ``reconfigure``, ``hurry`` and ``wakeup``."""

    def __init__(
        self,
        clock: Clock,
        disk: Disk,
        config: StorageConfig,
        partitions: Mapping[tuple[str, int], Log],
        checkpoints: LogCheckpoints,
        close_idle_files: Callable[[], None],
    ) -> None:
        """``partitions`` is the log manager's dict, which changes while this thread reads it."""
        self._clock = clock
        self._disk = disk
        self._config = config
        self._partitions = partitions
        self._checkpoints = checkpoints
        self._event = Event()
        self._mutex = Lock()
        self._deletions: list[tuple[float, str]] = []
        self._errands: deque[Callable[[], object]] = deque()
        # Held while the next log to be cleaned is chosen.
        self._choosing = Lock()
        self._cleanings_held = 0
        self._cleaning: Iterator[bool] | None = None
        self._cleaned = False  # whether the cleaning has succeeded; valid at its end
        self._running: dict[str, Iterator[None]] = {}
        self.scrub = Scrub(clock)
        # A service's rule for a log, if it has one; set before the thread starts.
        self.retention_rule: Callable[[Log], Rule | None] | None = None
        self._duties: list[Duty] = []
        self._add(lambda config: config.log_retention_check_interval_ms / 1000, self.apply_retention)
        self._add(lambda config: config.log_flush_offset_checkpoint_interval_ms / 1000, self.checkpoint)
        self._add(lambda config: config.producer_id_expiration_check_interval_ms / 1000, self.expire_producers)
        self._add(lambda config: IDLE_FILES_S, close_idle_files)
        self._clean_duty = self._add(
            lambda config: config.log_cleaner_backoff_ms / 1000 if config.log_cleaner_enable else inf,
            self._choose_cleaning,
        )
        self._add(lambda config: SCRUB_S if config.scrub_bytes_per_second > 0 else inf, self.scrub_some)

    def _add(self, interval_s: Callable[[StorageConfig], float], run: Callable[[], Iterator[None] | None]) -> Duty:
        duty = Duty(interval_s, run, interval_s(self._config), self._clock.monotonic() + interval_s(self._config))
        self._duties.append(duty)
        return duty

    def reconfigure(self, config: StorageConfig) -> None:
        """Go by these settings from now on."""
        before, self._config = self._config, config
        now = self._clock.monotonic()
        for duty in self._duties:
            if duty.setting_s(config) != duty.setting_s(before):
                duty.interval_s = duty.setting_s(config)
                duty.due = now + duty.interval_s
        self._event.set()

    def step(self, timeout: float | None) -> bool:
        now = self._clock.monotonic()
        did = self._delete(now)
        while self._errands:
            self._guarded("run_soon", self._errands.popleft())
            did = True
        for duty in self._duties:
            if duty.due <= now:
                duty.due = now + duty.interval_s
                self._guarded(duty.run.__name__, self._begin, duty)
                did = True
        for name in list(self._running):
            self._guarded(name, self._go_on, name)
            did = True
        if self._cleaning is not None:
            done = next(self._cleaning, None)
            if done is None:
                self._cleaning = None
                self._guarded("save_cleaner_offsets", self._checkpoints.save_cleaner_offsets)
                if self._cleaned:
                    self._choose_cleaning()  # the next cleaning at once; after a failure at the usual time
            else:
                self._cleaned = done
            did = True
        if did or timeout == 0:
            return did
        wait = self._next_due() - self._clock.monotonic()
        if wait > 0:
            self._event.wait(wait if timeout is None else min(wait, timeout))
        self._event.clear()
        return False

    def _begin(self, duty: Duty) -> None:
        name = duty.run.__name__
        if name not in self._running:
            pieces = duty.run()
            if pieces is not None:
                self._running[name] = pieces

    def _go_on(self, name: str) -> None:
        pieces = self._running.pop(name)
        try:
            next(pieces)
        except StopIteration:
            return
        self._running[name] = pieces

    def wakeup(self) -> None:
        self._event.set()

    def hurry(self) -> None:
        """Run every duty that is not switched off at the next step, whatever the clock says."""
        for duty in self._duties:
            if duty.interval_s < inf:
                duty.due = 0.0
        self._event.set()

    def delete_later(self, paths: list[str], delay_ms: int) -> None:
        """Remove files, or directories of deleted partitions, after ``delay_ms``. Files left at the stop are removed
        at the next start."""
        when = self._clock.monotonic() + delay_ms / 1000
        with self._mutex:
            for path in paths:
                heapq.heappush(self._deletions, (when, path))
        self._event.set()

    def run_soon(self, errand: Callable[[], object]) -> None:
        """Call ``errand`` on this thread, which may wait for the disk."""
        self._errands.append(errand)
        self._event.set()

    def trim_soon(self, log: Log, done: Callable[[StorageError | None], None]) -> None:
        """Apply retention to one log on this thread, as ``apply_retention`` does from time to time to all; then ``done``."""

        def trim() -> None:
            rule = self.retention_rule
            try:
                advance_start(log, self._clock.time_ms(), rule(log) if rule else None)
                self._checkpoints.save_log_starts()
                log.trimming.drop_old_segments()
            except StorageError as error:
                done(error)
            else:
                done(None)

        self.run_soon(trim)

    @contextmanager
    def without_new_cleanings(self) -> Iterator[None]:
        """No compaction begins while this lasts. A compaction that began before goes on, with the records that it has chosen."""
        with self._choosing:
            self._cleanings_held += 1
        try:
            yield
        finally:
            with self._choosing:
                self._cleanings_held -= 1

    def _next_due(self) -> float:
        due = min(duty.due for duty in self._duties)
        with self._mutex:
            return min(due, self._deletions[0][0]) if self._deletions else due

    def _guarded(self, duty: str, run: Callable[..., object], *arguments: object) -> None:
        try:
            run(*arguments)
        except (OSError, StorageError, Refusal) as error:
            logger.error("housekeeping_failed", duty=duty, error=str(error))

    def _each(self, duty: str, run: Callable[[Log], object]) -> None:
        for log in list(self._partitions.values()):
            if log.offline is None:
                self._guarded(duty, run, log)

    # -- duties --------------------------------------------------------------------------------------------------------

    def _delete(self, now: float) -> bool:
        for number in range(DELETIONS_A_STEP):
            with self._mutex:
                if not self._deletions or self._deletions[0][0] > now:
                    return number > 0
                _, path = heapq.heappop(self._deletions)
            self._guarded("delete", dispose, self._disk, path)
        return True

    def apply_retention(self) -> Iterator[None]:
        """In three steps for all logs together: move their starts, make the starts durable, remove the files."""
        now_ms = self._clock.time_ms()
        rule = self.retention_rule
        self._each("apply_retention", lambda log: advance_start(log, now_ms, rule(log) if rule else None))
        # Even if none has moved: if an earlier attempt could not save a start, it must be saved before the files are removed.
        self._checkpoints.save_log_starts()
        # Of all logs: a delete_records may have been interrupted before it removed the files.
        for log in list(self._partitions.values()):
            dropped: list[int] = []
            if log.offline is None:
                self._guarded("drop_old_segments", lambda: dropped.append(log.trimming.drop_old_segments()))  # noqa: B023 (called here)
            if any(dropped):
                yield

    def checkpoint(self) -> Iterator[None]:
        return self._checkpoints.move_up_each()

    def expire_producers(self) -> None:
        now_ms, age_ms = self._clock.time_ms(), self._config.producer_id_expiration_ms

        def expire(log: Log) -> None:
            with log.lock:
                log.producers.expire(now_ms, age_ms)

        self._each("expire_producers", expire)

    def scrub_some(self) -> None:
        damaged = self.scrub.step(self._partitions, self._config.scrub_bytes_per_second)
        if damaged:
            self._checkpoints.save_recovery_points()

    def _choose_cleaning(self) -> None:
        if self._cleaning is not None or self._clean_duty.interval_s == inf:
            return
        now_ms = self._clock.time_ms()
        logs = list(self._partitions.values())
        waiting = cleaner.waiting(logs, now_ms)
        for log in waiting:
            self._guarded("checkpoint", log.durability.checkpoint)
        if waiting:
            self._guarded("save_recovery_points", self._checkpoints.save_recovery_points)
        with self._choosing:
            plan = None if self._cleanings_held else cleaner.choose(logs, now_ms)
            if plan is not None:
                self._cleaned = False
                self._cleaning = cleaner.clean(plan, self._config.log_cleaner_dedupe_buffer_size, now_ms)
        # If a topic asks to be compacted sooner than every log.cleaner.backoff.ms, look more often.
        lags = [log.config.max_compaction_lag_ms / 1000 for log in logs if log.config.compact]
        soonest = max(SHORTEST_CLEAN_S, min(lags, default=self._clean_duty.interval_s))
        self._clean_duty.due = self._clock.monotonic() + min(self._clean_duty.interval_s, soonest)
