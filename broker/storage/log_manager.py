"""All topics of the broker and their logs: the catalogue's rows and the directories on disk, kept in step.

Any thread may call. Topics change under one lock, for as long as the fsyncs of that take, on threads that may wait; looking up
(``get``, ``partitions``, ``topic``, ``topics``) takes none. What a log does is ``log.py``'s, when background work is due
``housekeeper.py``'s; opening and closing everything is ``startup.py``'s.

A crash leaves a topic whole or not there: its directories are made first and its row in the catalogue then, and what has no
row and no records is removed at the next start. It is deleted the other way round: the row becomes a note that the topic was
deleted, in one transaction, then the directories get out of the way, and the note goes when they have.
"""

import gc
import re
import uuid
from collections.abc import Callable, Iterator, Mapping

import attrs

from broker.errors import RequestError, StorageError, UnknownOutcome
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue, TopicRow
from broker.runtime.clock import Clock
from broker.runtime.disk import Disk
from broker.runtime.entropy import Entropy
from broker.runtime.threads import Lock, Threads
from broker.storage import data_directory, partition_dir
from broker.storage.checkpoints import CLEANER_OFFSETS, LOG_STARTS, RECOVERY_POINTS, Offsets, write_offsets
from broker.storage.config import StorageConfig
from broker.storage.data_directory import DataDirectory
from broker.storage.log.log import Log, Surroundings
from broker.storage.log.log_config import BY_NAME, LONG_MAX, LogConfig
from broker.storage.partition_dir import MOST_PARTITIONS
from broker.storage.recovery import adoption, startup
from broker.storage.segments.file_names import OpenFiles
from broker.storage.upkeep.flusher import Flusher
from broker.storage.upkeep.housekeeper import Housekeeper
from protocol.kafka.errors import ErrorCode

logger = get_logger("storage")

LONGEST_NAME = 249  # Kafka's Topic.MAX_NAME_LENGTH: with "-" and a partition's number it is a file name


@attrs.frozen
class TopicInfo:
    """A topic as it is now. ``configs`` holds only what it sets itself. ``version`` rises with each change."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str]
    version: int = 0

    def row(self) -> TopicRow:
        return TopicRow(self.name, self.topic_id, self.partitions, self.configs)


class LogManager:
    """``partitions`` maps (topic, partition) to the log; ``generation`` rises with each change of any topic.

    ``flusher`` and ``housekeeper`` are the bodies of two threads that the assembly runs between ``open`` and ``close``.
    """

    def __init__(self, disk: Disk, clock: Clock, entropy: Entropy, config: StorageConfig, catalogue: Catalogue) -> None:
        self.disk = disk
        self.clock = clock
        self.entropy = entropy
        self.config = config
        self.catalogue = catalogue
        self.data_dir = config.data_dir
        self.partitions: dict[tuple[str, int], Log] = {}
        self.generation = 0
        self.files = OpenFiles(disk, config.max_open_files)
        self.flusher = Flusher(clock, self._with_flush_ms)
        self.housekeeper = Housekeeper(self)
        # Called with the name after a topic was deleted, on the deleting thread and with no lock held.
        self.on_topic_deleted: list[Callable[[str], None]] = []
        self.around = Surroundings(
            disk=disk,
            clock=clock,
            entropy=entropy,
            files=self.files,
            flush_soon=self.flusher.flush_soon,
            wake_soon=self.flusher.wake_soon,
            save_log_start=lambda log: self.save_log_starts(),
            save_cleaner_offset=lambda log: self.save_cleaner_offsets(),
            delete_later=self.housekeeper.delete_later,
        )
        self._topics: dict[str, TopicInfo] = {}
        # Names with "." and "_" taken for the same, as Kafka does: metrics would not tell them apart.
        self._alike: dict[str, str] = {}
        self._lock = Lock()
        self._checkpoint_lock = Lock()
        self.saved: dict[str, Offsets] = {}  # what each checkpoint file says; not there: nothing reliable
        self._directory: DataDirectory | None = None
        self._opened = False

    def open(self, taken: DataDirectory | None = None) -> None:
        """Recover what is in the data directory. Raises ConfigError.

        ``taken``: it was taken already, and whoever did so lets go of it; otherwise that is done here, and in ``close``.
        """
        if taken is None:
            self._directory = data_directory.take(self.disk, self.config)
        try:
            # Nothing that is made here is garbage: looking for some took a third of the CPU with 10,000 partitions.
            collecting = gc.isenabled()
            gc.disable()
            try:
                for info, logs in startup.load(self):
                    self._topics[info.name] = info
                    self._alike[_alike(info.name)] = info.name
                    self.partitions.update({(log.topic, log.partition): log for log in logs})
            finally:
                if collecting:
                    gc.enable()
            self._opened = True
            try:
                # The next start believes them, even if this process is killed before it would write them anyhow.
                self.save_log_starts()
                self.save_cleaner_offsets()
                adoption.settle(self)
            except StorageError as error:
                logger.warning("checkpoint not written", error=str(error))
        except BaseException:
            self.files.close_all()
            self._let_go()
            raise

    def _let_go(self) -> None:
        directory, self._directory = self._directory, None
        if directory is not None:
            directory.close()

    def close(self, deadline: float | None = None, threads: Threads | None = None, *, clean: bool = True) -> bool:
        """Make everything durable and leave the mark of a clean stop. The threads of flusher and housekeeper have ended.

        By ``deadline`` (monotonic s), on some of ``threads``; what is not durable by then is left to recovery. Then, and without
        ``clean`` (somebody may still be writing), there is no mark, and the next start looks at the ends of the logs.
        False if the disk hangs: something still writes, so the directory must stay locked. Raises StorageError.
        """
        if not self._opened:
            return True
        self._opened = False
        ended = True
        try:
            ended = startup.close(self, deadline, threads, clean)
        finally:
            self.files.close_all()
            if ended:
                self._let_go()
        return ended

    # -- looking up ----------------------------------------------------------------------------------------------------

    def get(self, topic: str, partition: int) -> Log | None:
        return self.partitions.get((topic, partition))

    def topic(self, name: str) -> TopicInfo | None:
        return self._topics.get(name)

    def topics(self) -> list[TopicInfo]:
        return list(self._topics.values())

    def topic_config(self, name: str) -> LogConfig:
        """The settings in force for a topic. Raises RequestError (unknown_topic_or_partition)."""
        return LogConfig.from_overrides(self.config.defaults, self._require(name).configs)

    def _require(self, name: str) -> TopicInfo:
        info = self._topics.get(name)
        if info is None:
            raise RequestError(ErrorCode.unknown_topic_or_partition, f"There is no topic {name!r}.")
        return info

    def _with_flush_ms(self) -> list[Log]:
        return [log for log in list(self.partitions.values()) if log.config.flush_ms < LONG_MAX and log.offline is None]

    # -- changing topics -----------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        configs: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> TopicInfo:
        """Make a topic, durably. Raises RequestError (invalid_topic_exception, topic_already_exists, invalid_partitions,
        invalid_config), StorageError; then nothing has happened."""
        with self._lock:
            self.check_name(name)
            total = self.config.num_partitions if partitions is None else partitions
            if not 1 <= total <= MOST_PARTITIONS:
                raise RequestError(
                    ErrorCode.invalid_partitions, f"A topic has 1 to {MOST_PARTITIONS} partitions, not {total}."
                )
            LogConfig.from_overrides(self.config.defaults, configs or {})
            info = TopicInfo(name, self.entropy.uuid(), total, dict(configs or {}))
            if validate_only:
                return info
            self._add_logs(info, range(total))
            self._alike[_alike(name)] = name
        logger.info("topic created", topic=name, partitions=total)
        return info

    def check_name(self, name: str) -> None:
        """Raises RequestError (invalid_topic_exception, topic_already_exists) if no topic of this name can be made. Takes no
        lock: who wants to make one asks under it."""
        if not re.fullmatch(r"[a-zA-Z0-9._-]+", name) or name in (".", "..") or len(name) > LONGEST_NAME:
            raise RequestError(
                ErrorCode.invalid_topic_exception,
                f"Topic name {name[:300]!r} is not allowed: it has 1 to {LONGEST_NAME} of the characters a-z A-Z 0-9 . _ -",
            )
        if name in self._topics:
            raise RequestError(ErrorCode.topic_already_exists, f"Topic {name!r} already exists.")
        other = self._alike.get(_alike(name))
        if other is not None:
            raise RequestError(
                ErrorCode.invalid_topic_exception, f"Topic {name!r} collides with the existing topic {other!r}."
            )

    def add_partitions(self, name: str, total: int) -> TopicInfo:
        """Raises RequestError (unknown_topic_or_partition, invalid_partitions), StorageError."""
        with self._lock:
            info = self._require(name)
            if not info.partitions < total <= MOST_PARTITIONS:
                raise RequestError(
                    ErrorCode.invalid_partitions,
                    f"The topic {name} currently has {info.partitions} partition(s); {total} would not be an increase.",
                )
            changed = attrs.evolve(info, partitions=total, version=info.version + 1)
            self._add_logs(changed, range(info.partitions, total))
            # The new directories have said so since before the row did; these only help where some get lost.
            for number in range(info.partitions):
                directory = self.partitions[name, number].dir
                try:
                    partition_dir.write_metadata(self.disk, directory, info.topic_id, total)
                except OSError as error:  # the next start writes it
                    logger.warning("number of partitions not written", path=directory, error=str(error))
        return changed

    def _add_logs(self, info: TopicInfo, numbers: range) -> None:
        """Directories, then the row, then everybody may see it. ``_lock`` is held."""
        made: list[str] = []
        logs: list[Log] = []
        try:
            self._forget_checkpoints(info.name, numbers)
            for number in numbers:
                directory = f"{self.data_dir}/{partition_dir.directory_name(info.name, number)}"
                self._make_way(directory)
                made.append(directory)
                partition_dir.make(self.disk, directory, info.topic_id, info.partitions)
            self.disk.sync_dir(self.data_dir)
            logs = [startup.open_new(self, info, number) for number in numbers]
            self.catalogue.put_topic(info.row())
        except (OSError, StorageError) as error:
            if not isinstance(
                error, UnknownOutcome
            ):  # else the next start keeps the directories if there is a row for them
                self._undo(made)
            raise (
                error
                if isinstance(error, StorageError)
                else StorageError(f"Topic {info.name!r} could not be made: {error}")
            ) from error
        self.partitions.update({(log.topic, log.partition): log for log in logs})
        self._topics[info.name] = info
        self.generation += 1

    def _make_way(self, directory: str) -> None:
        """What an earlier attempt has left where a partition is to be goes. Raises StorageError where it is something else."""
        disk = self.disk
        if disk.is_link(directory):
            raise StorageError(f"{directory} is there and is a link: move it away")
        if not disk.exists(directory):
            return
        found = partition_dir.look(disk, directory)
        if not found.is_empty and not partition_dir.is_unfinished(disk, directory, found):
            raise StorageError(f"{directory} is there and is not empty: move it away")
        partition_dir.remove(disk, directory)

    def _undo(self, directories: list[str]) -> None:
        for directory in directories:
            try:
                partition_dir.remove(self.disk, directory)
            except OSError as error:  # has no row: the next start removes it
                logger.warning("directory left behind", path=directory, error=str(error))

    def delete_topic(self, name: str) -> None:
        """Raises RequestError (unknown_topic_or_partition), StorageError. Afterwards the name is free."""
        with self._lock:
            info = self._require(name)
            try:
                self.catalogue.delete_topic(name)
            except UnknownOutcome as error:
                # What is written to the topic now might be deleted with it at the next start.
                for number in range(info.partitions):
                    self.partitions[name, number].go_offline(f"it is not known whether it was deleted: {error}")
                raise
            del self._topics[name]
            self._alike.pop(_alike(name), None)
            logs = [self.partitions.pop((name, number)) for number in range(info.partitions)]
            self.generation += 1
            for log in logs:
                log.mark_deleted()
            try:
                paths = [self._rename_deleted(log) for log in logs]
                self.disk.sync_dir(self.data_dir)
                self.catalogue.forget_deleted_topics([info.topic_id])
                delay_ms = LogConfig.from_overrides(self.config.defaults, info.configs).file_delete_delay_ms
                self.housekeeper.delete_later([path for path in paths if path], delay_ms)
            except (OSError, StorageError) as error:
                # It is deleted all the same: the catalogue says so, and the next start finishes it.
                logger.error("files of a deleted topic are left", topic=name, error=str(error))
        logger.info("topic deleted", topic=name)
        for listener in self.on_topic_deleted:
            listener(name)

    def _rename_deleted(self, log: Log) -> str:
        path = f"{self.data_dir}/{partition_dir.deleted_name(log.topic, log.partition, self.entropy.uuid())}"
        if not self.disk.exists(log.dir):
            return ""
        if not partition_dir.look(self.disk, log.dir).is_partition:
            logger.warning(
                "directory left alone", path=log.dir, reason="it is in a partition's place and not a partition's"
            )
            return ""
        self.disk.rename(log.dir, path)
        return path

    def alter_topic_configs(
        self, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> TopicInfo:
        """Set, or with None take back, settings of a topic; durable and in force when this returns.

        Raises RequestError (unknown_topic_or_partition, invalid_config), StorageError.
        """
        with self._lock:
            info = self._require(name)
            configs = {key: value for key, value in {**info.configs, **changes}.items() if value is not None}
            for key in changes:
                if key not in BY_NAME and key not in info.configs:
                    raise RequestError(ErrorCode.invalid_config, f"Unknown topic config name: {key}")
            config = LogConfig.from_overrides(self.config.defaults, configs)
            changed = attrs.evolve(info, configs=configs, version=info.version + 1)
            if validate_only:
                return changed
            self.catalogue.put_topic(changed.row())
            self._topics[name] = changed
            for number in range(info.partitions):
                self.partitions[name, number].config = config
            self.generation += 1
        return changed

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Move the recovery points of all logs up, and save where they are. Blocks."""
        for _ in self.checkpoint_each():
            pass

    def checkpoint_each(self) -> Iterator[None]:
        """The same in steps of one log, for the background thread: thousands of fsyncs take a while. Raises StorageError."""
        for log in list(self.partitions.values()):
            try:
                if log.checkpoint():
                    yield
            except (StorageError, RequestError) as error:
                if not log.deleted:  # meanwhile: nothing is wrong
                    logger.error("checkpoint failed", topic=log.topic, partition=log.partition, error=str(error))
        self.save_recovery_points()

    def save_recovery_points(self) -> None:
        self._save(RECOVERY_POINTS, lambda log: log.recovery_point)
        for key, log in list(self.partitions.items()):
            log.saved_point = self.saved[RECOVERY_POINTS].get(key, 0)

    def save_log_starts(self) -> None:
        """A segment must not go before this says so: at the start one that is missing would be missed."""
        self._save(LOG_STARTS, lambda log: log.log_start_offset)
        for key, log in list(self.partitions.items()):
            log.saved_start = self.saved[LOG_STARTS].get(key, 0)

    def save_cleaner_offsets(self) -> None:
        """A line, even one that says 0, says that the log may have gaps below its recovery point."""
        self._save(CLEANER_OFFSETS, lambda log: log.first_dirty_offset)

    def _save(self, name: str, value: Callable[[Log], int], without: frozenset[tuple[str, int]] = frozenset()) -> None:
        """Write a checkpoint of what every log says, without those that have nothing to say. Raises StorageError."""
        with self._checkpoint_lock:
            known = self.saved.get(name)
            saved = known or {}
            offsets: Offsets = {}
            for key, log in list(self.partitions.items()):
                # A log that could not be opened keeps what is known of it.
                unknown = log.offline is not None and not log.view.segments
                offset = saved.get(key, 0) if unknown else value(log)
                has_gaps = name == CLEANER_OFFSETS and (key in saved if unknown else log.dense_from > 0)
                if (offset > 0 or has_gaps) and key not in without:
                    offsets[key] = offset
            if offsets == known:
                return
            try:
                write_offsets(self.disk, f"{self.data_dir}/{name}", offsets)
            except OSError as error:
                raise StorageError(f"{name} could not be written: {error}") from error
            self.saved[name] = offsets

    def _forget_checkpoints(self, name: str, numbers: range) -> None:
        """A new partition must not inherit what is known of a deleted one with its name."""
        keys = frozenset((name, number) for number in numbers)
        values = {
            RECOVERY_POINTS: lambda log: log.recovery_point,
            LOG_STARTS: lambda log: log.log_start_offset,
            CLEANER_OFFSETS: lambda log: log.first_dirty_offset,
        }
        for file, value in values.items():
            if keys & self.saved.get(file, {}).keys():
                self._save(file, value, keys)


def _alike(name: str) -> str:
    return name.replace(".", "_")
