"""The three checkpoint files of the data directory: what they say of every log, and writing them.

``recovery-point-offset-checkpoint`` has the recovery points, ``log-start-offset-checkpoint`` the log start offsets, and
``cleaner-offset-checkpoint`` the first dirty offsets. Any thread may call; one lock makes the writes come one after the other.
The format of the files is in ``checkpoints.py``.
"""

from collections.abc import Callable, Iterator, Mapping

from broker.errors import Refusal, StorageError
from broker.log import get_logger
from broker.runtime.disk import Disk
from broker.runtime.threads import Lock
from broker.storage.checkpoints import CLEANER_OFFSETS, LOG_STARTS, RECOVERY_POINTS, Offsets, write_offsets
from broker.storage.log.log import Log

logger = get_logger("storage")


class LogCheckpoints:
    """``partitions`` maps (topic, partition) to the log. It is the log manager's own, which changes it while this reads."""

    def __init__(self, disk: Disk, directory: str, partitions: Mapping[tuple[str, int], Log]) -> None:
        self._disk = disk
        self._directory = directory
        self._partitions = partitions
        self._lock = Lock()
        self._saved: dict[str, Offsets] = {}  # what each file says; without an entry it says nothing reliable

    def take_over(self, saved: Mapping[str, Offsets]) -> None:
        """What the files said at the start."""
        self._saved.update(saved)

    def move_up_each(self) -> Iterator[None]:
        """Move the recovery points of all logs up, and save where they are: one log a step, because thousands of fsyncs take a
        while. Blocks. Raises StorageError."""
        for log in list(self._partitions.values()):
            try:
                if log.checkpoint():
                    yield
            except (StorageError, Refusal) as error:
                if not log.deleted:  # a topic that was deleted meanwhile is no failure
                    logger.error("checkpoint_failed", topic=log.topic, partition=log.partition, error=str(error))
        self.save_recovery_points()

    def save_recovery_points(self) -> None:
        """Raises StorageError."""
        self._save(RECOVERY_POINTS, lambda log: log.recovery_point)
        for key, log in list(self._partitions.items()):
            log.note_saved_point(self._saved[RECOVERY_POINTS].get(key, 0))

    def save_log_starts(self) -> None:
        """No segment may be removed before this has said so: the next start would miss it. Raises StorageError."""
        self._save(LOG_STARTS, lambda log: log.log_start_offset)
        for key, log in list(self._partitions.items()):
            log.note_saved_start(self._saved[LOG_STARTS].get(key, 0))

    def save_cleaner_offsets(self) -> None:
        """A line, even one that says 0, says that the log may have gaps below its recovery point. Raises StorageError."""
        self._save(CLEANER_OFFSETS, lambda log: log.first_dirty_offset)

    def forget(self, topic: str, numbers: range) -> None:
        """Before partitions are made: they must not inherit what is known of deleted ones of the same name. Raises
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
        """Write a file with a line for each log that has something to say, except ``without``. Raises StorageError."""
        with self._lock:
            before = self._saved.get(name)
            saved = before or {}
            offsets: Offsets = {}
            for key, log in list(self._partitions.items()):
                # A log that could not be opened keeps what the file says of it.
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
