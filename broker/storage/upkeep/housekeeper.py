"""The housekeeper thread: retention, compaction, checkpoints, removal of files, expiry of producers, scrub.

``step`` does what is due and waits for what is due next. What takes long (a compaction, checkpoints and retention of thousands of
logs, the removal of as many directories) is done one piece a step, so that stopping never waits long. An error of one log is
reported and does not keep the others from their turn.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf

import attrs

from broker.errors import Refusal, StorageError
from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.runtime.disk import Disk
from broker.runtime.threads import Event, Lock
from broker.storage.config import StorageConfig
from broker.storage.log.log import Log
from broker.storage.log_checkpoints import LogCheckpoints
from broker.storage.partition_dir import dispose
from broker.storage.upkeep import cleaner, retention
from broker.storage.upkeep.scrub import Scrub

logger = get_logger("storage")

IDLE_FILES_S = 60.0
SCRUB_S = 1.0
SHORTEST_CLEAN_S = 1.0
DELETIONS_A_STEP = 32


@attrs.define(eq=False)
class Duty:
    """Work that is repeated; ``due`` is in s of the monotonic clock."""

    setting_s: Callable[[StorageConfig], float]  # what the settings say of the interval; inf: never
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
        # Held while it is decided what is cleaned next.
        self._choosing = Lock()
        self._cleanings_held = 0
        self._cleaning: Iterator[bool] | None = None
        self._cleaned = False  # whether the cleaning has succeeded; valid at its end
        self._running: dict[str, Iterator[None]] = {}
        self.scrub = Scrub(clock)
        # What a service needs of a log, if it has a say in that; set before the thread starts.
        self.retention_rule: Callable[[Log], retention.Rule | None] | None = None
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
                    self._choose_cleaning()  # the next one at once; after a failure at the usual time
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
        """Do everything that is to be done at all at the next step, whatever the clock says."""
        for duty in self._duties:
            if duty.interval_s < inf:
                duty.due = 0.0
        self._event.set()

    def delete_later(self, paths: list[str], delay_ms: int) -> None:
        """Remove files, or directories of deleted partitions, after ``delay_ms``. What is left when the broker stops is removed
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
                retention.advance_start(log, self._clock.time_ms(), rule(log) if rule else None)
                self._checkpoints.save_log_starts()
                log.drop_old_segments()
            except StorageError as error:
                done(error)
            else:
                done(None)

        self.run_soon(trim)

    @contextmanager
    def without_new_cleanings(self) -> Iterator[None]:
        """No compaction begins while this lasts. One that has begun before goes on, with the records that it has chosen then."""
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
        self._each("apply_retention", lambda log: retention.advance_start(log, now_ms, rule(log) if rule else None))
        # Even if none has moved: where an earlier attempt could not save a start, it must be saved before the files are removed.
        self._checkpoints.save_log_starts()
        # Of all logs: a delete_records may have been interrupted before it removed the files.
        for log in list(self._partitions.values()):
            dropped: list[int] = []
            if log.offline is None:
                self._guarded("drop_old_segments", lambda: dropped.append(log.drop_old_segments()))  # noqa: B023 (called here)
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
            self._guarded("checkpoint", log.checkpoint)
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
