"""All topics of the broker and their logs: the catalogue's rows and the directories on disk, kept in step.

Any thread may call. Topics change under one lock, which is held during the fsyncs that a change needs, on threads that may wait.
Looking up (``get``, ``partitions``, ``topic``, ``topics``, and by topic id) takes no lock. Single logs are in ``log/log.py``,
the schedule of background work in ``upkeep/housekeeper.py``, reading and repairing at the start in ``recovery/startup.py``.

After a crash a topic exists whole or not at all. When it is made, its directories come first and its row in the catalogue second;
the next start removes directories without a row and without records. When it is deleted, one transaction turns the row into a
note that the topic was deleted; then the directories get other names, and then the note is removed.

``Fsyncs`` and ``Recovery`` measure the logs together: fsyncs, and the work of the recovery at the start.

Tests: tests/storage/test_metrics.py.
"""

import gc
import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import attrs

from broker.cluster.nodes import Nodes
from broker.config.setting import LONG_MAX, InvalidSetting
from broker.config.topic_settings import BY_NAME
from broker.errors import StorageError, UnknownOutcome
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue, Change, TopicRow
from broker.metrics import Labels, names
from broker.metrics.registry import Ranges
from broker.runtime.clock import Clock
from broker.runtime.disk import Disk
from broker.runtime.entropy import Entropy
from broker.runtime.open_files import OpenFiles
from broker.runtime.threads import Lock, Threads, get_ident
from broker.storage import config as topics
from broker.storage import data_directory, partition_dir
from broker.storage.checkpoints import read_partition_metadata
from broker.storage.config import MOST_PARTITIONS, StorageConfig, TopicInfo
from broker.storage.data_directory import DataDirectory
from broker.storage.log.log import Log, Surroundings, Tiers
from broker.storage.log.log_config import LogConfig
from broker.storage.recovery import adoption, startup
from broker.storage.refusals import InvalidPartitionCount, InvalidTopicName, TopicExists, UnknownTopic
from broker.storage.upkeep.closing import close_logs, is_dirty
from broker.storage.upkeep.flusher import Flusher
from broker.storage.upkeep.housekeeper import Housekeeper, LogCheckpoints


class Fsyncs:
    """How long fsyncs take. Any thread may observe: a thread that has just waited for a disk can wait for this lock."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts = [0] * (len(names.FSYNC_SECONDS.bounds) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        with self._lock:
            self._counts[bisect_left(names.FSYNC_SECONDS.bounds, seconds)] += 1
            self._sum_s += seconds

    def ranges(self) -> dict[Labels, Ranges]:
        with self._lock:
            return {(): (list(self._counts), self._sum_s)}


@attrs.define
class Recovery:
    """Written by the thread that opens the storage."""

    seconds: float = 0.0
    scanned_logs: int = 0
    scanned_bytes: int = 0
    cut_bytes: int = 0

    def add(self, scanned_bytes: int, cut_bytes: int) -> None:
        """Note that a log was opened. Without a scan, ``scanned_bytes`` is 0."""
        self.scanned_logs += scanned_bytes > 0
        self.scanned_bytes += scanned_bytes
        self.cut_bytes += cut_bytes


logger = get_logger("storage")


class LogManager:
    """``partitions`` maps (topic, partition) to the log; ``generation`` rises with each change of any topic.

    ``topics_by_id`` and ``partitions_by_id`` have the 16 bytes of the topic's id in the place of its name. A topic that is made
    again under its old name has another id, so a look-up by id never gets the new topic instead of the old.

    ``housekeeper`` and each of ``flusher.threads`` is the body of a thread that the assembly runs between ``open`` and ``close``.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        entropy: Entropy,
        config: StorageConfig,
        catalogue: Catalogue,
        get_ident: Callable[[], int] = get_ident,
        tier: Tiers | None = None,
        nodes: Nodes | None = None,
        leader_epoch: int = 0,
    ) -> None:
        """``get_ident`` tells threads apart. ``tier``: what ``disk`` has in an object store, if it has anything there.
        ``nodes``: set if other nodes have a part of the partitions. ``leader_epoch``: of all partitions, unless a log has brought
        a later one from elsewhere."""
        self.nodes = nodes
        self.leader_epoch = leader_epoch
        self.disk = disk
        self.clock = clock
        self.entropy = entropy
        self.config = config
        self.catalogue = catalogue
        self.data_dir = config.data_dir
        self.partitions: dict[tuple[str, int], Log] = {}
        self.partitions_by_id: dict[tuple[bytes, int], Log] = {}
        self.topics_by_id: dict[bytes, TopicInfo] = {}
        self.generation = 0
        self.files = OpenFiles(disk, config.max_open_files)
        self.checkpoints = LogCheckpoints(disk, config.data_dir, self.partitions)
        self.flusher = Flusher(clock, disk, self._with_flush_ms, get_ident)
        self.housekeeper = Housekeeper(clock, disk, config, self.partitions, self.checkpoints, self.files.close_idle)
        # Called with the name after a topic was made or has got more partitions, on that thread and with no lock held.
        self.on_topic_changed: list[Callable[[str], None]] = []
        # Called with the name after a topic was deleted, on the deleting thread and with no lock held.
        self.on_topic_deleted: list[Callable[[str], None]] = []
        # The same, with the topic's last value: a topic of the same name may have been made meanwhile.
        self.on_topic_gone: list[Callable[[TopicInfo], None]] = []
        # Called before topics that other nodes have made are seen, once for all of them; in the catalogue they are there.
        self.on_bringing_in: list[Callable[[], None]] = []
        self.fsyncs = Fsyncs()
        self.recovery = Recovery()
        self.around = Surroundings(
            disk=disk,
            clock=clock,
            entropy=entropy,
            files=self.files,
            flush_soon=self.flusher.flush_soon,
            begin_soon=self.flusher.begin_soon,
            wake_soon=self.flusher.wake_soon,
            save_log_start=lambda log: self.checkpoints.save_log_starts(),
            save_cleaner_offset=lambda log: self.checkpoints.save_cleaner_offsets(),
            observe_fsync=self.fsyncs.observe,
            opened=self.recovery.add,
            delete_later=self.housekeeper.delete_later,
            tier=tier,
        )
        self._topics: dict[str, TopicInfo] = {}
        # The flusher's: the logs with flush.ms, and their generation. It asks every second, and few logs have it.
        self._flushed_by_time: tuple[int, list[Log]] = (-1, [])
        self._names: dict[str, str] = {}  # by the key that two topics must not share (``collision_key``)
        self._lock = Lock()
        self._get_ident = get_ident
        # The thread that changes several topics together, and the topics that it has deleted, with their logs.
        self._together: int | None = None
        self._deleted: list[tuple[TopicInfo, Mapping[int, Log]]] = []
        self._directory: DataDirectory | None = None
        self._opened = False
        self._seen = -1  # the number of the catalogue's last change when its topics were read; guarded by ``_lock``
        self.makes_no_more = False

    def open(self, taken: DataDirectory | None = None) -> None:
        """Recover the topics of the data directory. Raises ConfigError.

        With ``taken`` the caller has locked the directory, and releases it itself. Otherwise it is locked here, and released by
        ``close``.
        """
        if taken is None:
            self._directory = data_directory.take(self.disk, self.config)
        try:
            # Nothing made here is garbage: with 10,000 partitions, the collector took a third of the CPU time to find none.
            collecting = gc.isenabled()
            gc.disable()
            began = self.clock.monotonic()
            try:
                self._take_over(startup.load(self.around, self.config, self.catalogue, self.nodes))
                self.recovery.seconds = self.clock.monotonic() - began
            finally:
                if collecting:
                    gc.enable()
            self._opened = True
            try:
                # The next start trusts them, even if this process is killed before it writes them in its own time.
                self.checkpoints.save_log_starts()
                self.checkpoints.save_cleaner_offsets()
                adoption.settle(self.catalogue, self.partitions, self.checkpoints.save_recovery_points)
            except StorageError as error:
                logger.warning("checkpoint_not_written", error=str(error))
        except BaseException:
            self.files.close_all()
            self._release_directory()
            raise

    def _take_over(self, loaded: startup.Loaded) -> None:
        self.checkpoints.take_over(loaded.checkpoints)
        for info, logs in loaded.topics:
            self._names[topics.collision_key(info.name)] = info.name
            self._show(info, logs)

    def _show(self, info: TopicInfo, logs: Sequence[Log]) -> None:
        """Publish a topic and these of its logs. A caller that gets a log by the id also gets the topic, whose name decides who
        may use it."""
        topic_id = info.topic_id.bytes
        for log in logs if self.leader_epoch else ():
            log.leader_epoch = max(log.leader_epoch, self.leader_epoch)
        self.topics_by_id[topic_id] = info
        self.partitions_by_id.update({(topic_id, log.partition): log for log in logs})
        self.partitions.update({(log.topic, log.partition): log for log in logs})
        self._topics[info.name] = info

    def _release_directory(self) -> None:
        directory, self._directory = self._directory, None
        if directory is not None:
            directory.close()

    def close(self, deadline: float | None = None, threads: Threads | None = None, *, clean: bool = True) -> bool:
        """Make everything durable and leave the mark of a clean stop. The threads of flusher and housekeeper have ended.

        ``threads`` do it until ``deadline`` (monotonic s); the rest is left to recovery. In that case, and without ``clean`` (a
        thread may still be writing), there is no mark, and the next start scans the ends of the logs. False if the disk hangs: a
        thread still writes, so the directory stays locked. Raises StorageError.
        """
        if not self._opened:
            return True
        self._opened = False
        ended = True
        try:
            ended = self._close_logs(deadline, threads, clean)
        finally:
            self.files.close_all()
            if ended:
                self._release_directory()
        return ended

    def _close_logs(self, deadline: float | None, threads: Threads | None, clean: bool) -> bool:
        logs = list(self.partitions.values())
        ended = close_logs(logs, self.clock, deadline, threads)
        clean = clean and not any(is_dirty(log) or log.offline is not None for log in logs)
        self.checkpoints.save_recovery_points()
        self.checkpoints.save_log_starts()
        self.checkpoints.save_cleaner_offsets()
        if clean and ended:
            startup.mark_clean_stop(self.disk, self.data_dir)
        return ended

    def keep(self, taken: DataDirectory) -> None:
        """Keep the directory locked for as long as this object exists: threads that still use its logs hold it."""
        self._directory = taken

    def make_no_more(self) -> None:
        """Give up the partitions that are being made (thousands take seconds), because the broker is about to close. Any thread.

        ``create_topic`` and ``add_partitions`` raise StorageError from now on. The next start removes what they leave.
        """
        self.makes_no_more = True

    # -- looking up ----------------------------------------------------------------------------------------------------

    def get(self, topic: str, partition: int) -> Log | None:
        return self.partitions.get((topic, partition))

    def topic(self, name: str) -> TopicInfo | None:
        return self._topics.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> TopicInfo | None:
        return self.topics_by_id.get(topic_id.bytes)

    def topics(self) -> list[TopicInfo]:
        return list(self._topics.values())

    def topic_config(self, name: str) -> LogConfig:
        """The settings in force for a topic. Raises UnknownTopic."""
        return LogConfig.from_overrides(self.config.defaults, self.require_topic(name).configs)

    def require_topic(self, name: str) -> TopicInfo:
        """Raises UnknownTopic."""
        info = self._topics.get(name)
        if info is None:
            raise UnknownTopic(f"There is no topic {name!r}.")
        return info

    def require(self, topic: str, partition: int) -> Log:
        """Raises UnknownTopic."""
        log = self.get(topic, partition)
        if log is None:
            raise UnknownTopic(f"There is no partition {topic}-{partition}.")
        return log

    def _with_flush_ms(self) -> list[Log]:
        """On the flusher's thread."""
        generation, logs = self._flushed_by_time
        if generation != self.generation:
            # Read before the logs are: a change that is under way raises it once more at its end.
            generation = self.generation
            logs = [log for log in list(self.partitions.values()) if log.config.flush_ms < LONG_MAX]
            self._flushed_by_time = generation, logs
        return [log for log in logs if log.offline is None]

    def freeze(self, moment: Callable[[list[Log]], None]) -> Callable[[str], None]:
        """Call ``moment`` with all logs, while no topic and nothing in the catalogue changes. Returns a writer of the catalogue
        as it was then to a path (``Catalogue.copy``). Raises StorageError."""
        with self._lock:
            logs = list(self.partitions.values())
            return self.catalogue.copy(lambda: moment(logs))

    # -- changing topics -----------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        configs: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
        also: Callable[[TopicInfo], Change] | None = None,
    ) -> TopicInfo:
        """Make a topic, durably. ``also`` gives a change of the catalogue that is made with it: both of them or neither. Raises
        InvalidTopicName, TopicExists, InvalidPartitionCount, InvalidSetting, StorageError; then nothing has happened."""
        with self._changing():
            self.check_name(name)
            total = self.config.num_partitions if partitions is None else partitions
            if not 1 <= total <= MOST_PARTITIONS:
                raise InvalidPartitionCount(f"A topic has 1 to {MOST_PARTITIONS} partitions, not {total}.")
            LogConfig.from_overrides(self.config.defaults, configs or {})
            info = TopicInfo(name, self.entropy.uuid(), total, dict(configs or {}))
            if validate_only:
                return info
            self._add_logs(info, range(total), None if also is None else also(info))
            self._names[topics.collision_key(name)] = name
        logger.info("topic_created", topic=name, partitions=total)
        for listener in self.on_topic_changed:
            listener(name)
        return info

    def check_name(self, name: str) -> None:
        """Raises InvalidTopicName or TopicExists if no topic of this name can be made. Takes no lock: to make a topic, ask while
        holding it."""
        topics.check_name(name)
        if name in self._topics:
            raise TopicExists(f"Topic {name!r} already exists.")
        other = self._names.get(topics.collision_key(name))
        if other is not None:
            raise InvalidTopicName(f"Topic {name!r} collides with the existing topic {other!r}.")

    def add_partitions(self, name: str, total: int) -> TopicInfo:
        """Give a topic more partitions, ``total`` altogether. Raises UnknownTopic, InvalidPartitionCount, StorageError."""
        with self._changing():
            info = self.require_topic(name)
            if not info.partitions < total <= MOST_PARTITIONS:
                raise InvalidPartitionCount(
                    f"The topic {name} currently has {info.partitions} partition(s); {total} would not be an increase."
                )
            changed = attrs.evolve(info, partitions=total, version=info.version + 1)
            self._add_logs(changed, range(info.partitions, total))
            # The new directories have had the new number since before the row got it. The old ones get it too, in case some of
            # the new directories are lost.
            for number in self._here(name, range(info.partitions)):
                directory = self._path_of(name, number)
                try:
                    partition_dir.write_metadata(self.disk, directory, info.topic_id, total)
                except OSError as error:  # the next start writes it
                    logger.warning("partition_count_not_written", path=directory, error=str(error))
        for listener in self.on_topic_changed:
            listener(name)
        return changed

    def _add_logs(self, info: TopicInfo, numbers: range, also: Change | None = None) -> None:
        """Make the directories, then write the row, then let everybody see the logs. ``_lock`` is held."""
        made: list[str] = []
        logs: list[Log] = []
        try:
            self.checkpoints.forget(info.name, numbers)
            for number in self._here(info.name, numbers):
                self._check_may_make(info)
                directory = self._path_of(info.name, number)
                partition_dir.make_way(self.disk, directory)
                made.append(directory)
                partition_dir.make(self.disk, directory, info.topic_id, info.partitions)
            for parent in sorted({path.rpartition("/")[0] for path in made}):
                self.disk.sync_dir(parent)
            for number in self._own(info.name, numbers):
                self._check_may_make(info)
                logs.append(startup.open_new(self.around, self.config, info, number))
            if also is None:
                self.catalogue.put_topic(info.row())
            else:
                self.catalogue.together([lambda catalogue: catalogue.put_topic(info.row()), also])
        except (OSError, StorageError) as error:
            # If it is unknown whether the row was written, the next start decides.
            if not isinstance(error, UnknownOutcome) and not self.makes_no_more:
                self._remove_directories(made)
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"Topic {info.name!r} could not be made: {error}") from error
        self._show(info, logs)
        self.generation += 1

    def _check_may_make(self, info: TopicInfo) -> None:
        if self.makes_no_more:
            raise StorageError(f"Topic {info.name!r} could not be made: the broker is stopping")

    def _remove_directories(self, directories: list[str]) -> None:
        for directory in directories:
            try:
                partition_dir.remove(self.disk, directory)
            except OSError as error:  # it has no row, so the next start removes it
                logger.warning("directory_not_removed", path=directory, error=str(error))

    def delete_topic(self, name: str) -> None:
        """Delete a topic; then its name is free. Raises UnknownTopic, StorageError."""
        with self._changing():
            info = self.require_topic(name)
            try:
                self.catalogue.delete_topic(name)
            except UnknownOutcome as error:
                # Later writes to the topic might be deleted with it at the next start.
                for number in self._own(name, range(info.partitions)):
                    self.partitions[name, number].state.go_offline(f"it is not known whether it was deleted: {error}")
                raise
            deleted = info, {log.partition: log for log in self._hide(info)}
            if self._is_together:
                self._deleted.append(deleted)
            else:
                self._clean_up([deleted])
        logger.info("topic_deleted", topic=name)
        for listener in self.on_topic_deleted:
            listener(name)
        for on_gone in self.on_topic_gone:
            on_gone(info)

    def _clean_up(self, deleted: Sequence[tuple[TopicInfo, Mapping[int, Log]]]) -> None:
        """Remove what deleted topics have left, when no node uses it any more."""
        # The topics are deleted whatever happens here: the catalogue says so, and the next start removes the files.
        try:
            settled = self.nodes is None or self.nodes.settle()
        except StorageError as error:
            for info, _ in deleted:
                logger.error("topic_files_not_removed", topic=info.name, error=str(error))
            return
        for info, logs in deleted:
            try:
                self._remove_files(info, logs)
                if settled:
                    self.catalogue.forget_deleted_topics([info.topic_id])
            except (OSError, StorageError) as error:
                logger.error("topic_files_not_removed", topic=info.name, error=str(error))

    def _remove_files(self, info: TopicInfo, logs: Mapping[int, Log]) -> None:
        """Have the directories of a deleted topic removed in a while. ``_lock`` is held. Raises OSError, StorageError."""
        name = info.name
        numbers = self._here(name, range(info.partitions))
        if self.nodes is not None and self.nodes.apart:
            # Where another node may make the topic anew, a line without a directory has to mean that records are lost.
            self.checkpoints.forget(name, range(info.partitions))
        renamed = []
        for number in numbers:
            path = partition_dir.rename_deleted(
                self.disk, self._path_of(name, number), name, number, self.entropy.uuid()
            )
            if path is not None:
                renamed.append(path)
                if number in logs:
                    logs[number].moved_to(path)
        for parent in sorted({self._path_of(name, number).rpartition("/")[0] for number in numbers}):
            self.disk.sync_dir(parent)
        delay_ms = startup.log_config(self.config, info).file_delete_delay_ms
        self.housekeeper.delete_later(renamed, delay_ms)

    def alter_topic_configs(
        self, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> TopicInfo:
        """Set, or with None remove, settings of a topic; durable and in force when this returns.

        Raises UnknownTopic, InvalidSetting, StorageError.
        """
        with self._changing(validate_only):
            info = self.require_topic(name)
            configs = {key: value for key, value in {**info.configs, **changes}.items() if value is not None}
            for key in changes:
                if key not in BY_NAME and key not in info.configs:
                    raise InvalidSetting(f"Unknown topic config name: {key}")
            config = LogConfig.from_overrides(self.config.defaults, configs)
            _check_switched_off(startup.log_config(self.config, info), config)
            changed = attrs.evolve(info, configs=configs, version=info.version + 1)
            if validate_only:
                return changed
            self.catalogue.put_topic(changed.row())
            self._show(changed, ())
            for number in self._own(name, range(info.partitions)):
                self.partitions[name, number].config = config
            self.generation += 1
        return changed

    # -- with other nodes ----------------------------------------------------------------------------------------------

    @contextmanager
    def _changing(self, validate_only: bool = False) -> Iterator[None]:
        """Topics are as in the catalogue, and nobody else changes them, on no node; then other nodes have the change."""
        if self.nodes is None or self._is_together:
            with self._lock:
                yield
            return
        with self.nodes.changing_topics():
            self.catch_up()
            with self._lock:
                yield
            if not validate_only:
                self.nodes.settle()

    @property
    def _is_together(self) -> bool:
        return self._together is not None and self._together == self._get_ident()

    @contextmanager
    def together(self) -> Iterator[None]:
        """This thread changes several topics: other nodes have them all when it ends, and not one by one. Nobody else changes
        topics meanwhile, so not for long. Raises StorageError."""
        if self.nodes is None:
            yield
            return
        with self.nodes.changing_topics():
            self.catch_up()
            self._together = self._get_ident()
            try:
                yield
            finally:
                self._together = None
                deleted, self._deleted = self._deleted, []
                if deleted:
                    with self._lock:
                        self._clean_up(deleted)
                else:
                    self.nodes.settle()

    def catch_up(self) -> None:
        """Bring the topics up to what other nodes have made of them in the catalogue. Any thread that may wait. Raises
        StorageError."""
        with self._lock:
            version, names = (0, None) if self.nodes is None else self.nodes.changed_topics(self._seen)
            rows = {row.topic_id: row for row in self.catalogue.topics(names)}
            known_before = self._topics.values() if names is None else filter(None, map(self._topics.get, names))
            gone = [info for info in known_before if info.topic_id not in rows]
            for info in gone:
                self._gone_elsewhere(info)
            if any(topic_id.bytes not in self.topics_by_id for topic_id in rows):
                for prepare in self.on_bringing_in:
                    prepare()
            changed = []
            for row in rows.values():
                known = self.topics_by_id.get(row.topic_id.bytes)
                if known is None or (known.partitions, known.configs) != (row.partitions, row.configs):
                    changed.append(self._bring_in(row, known))
            self._seen = version
        for info in gone:
            for listener in self.on_topic_deleted:
                listener(info.name)
            for on_gone in self.on_topic_gone:
                on_gone(info)
        for name in changed:
            for listener in self.on_topic_changed:
                listener(name)

    def _gone_elsewhere(self, info: TopicInfo) -> None:
        """A topic that another node has deleted, and so its directories, unless that is left to each node. ``_lock`` is
        held."""
        logs = {log.partition: log for log in self._hide(info)}
        try:
            if self.nodes is not None and self.nodes.apart:
                self._remove_files(info, logs)
            elif self.around.tier is not None:
                for log in logs.values():
                    self.around.tier.forget_log(log)
        except (OSError, StorageError) as error:  # the next start removes them, or a new topic of this name
            logger.error("topic_files_not_removed", topic=info.name, error=str(error))

    def _make_own_directories(self, info: TopicInfo, numbers: list[int]) -> None:
        """Of a topic that a node elsewhere has made. Raises StorageError; then it can be tried again."""
        try:
            for number in numbers:
                directory = self._path_of(info.name, number)
                self._move_earlier(info, number, directory)
                partition_dir.make_way(self.disk, directory)
                partition_dir.make(self.disk, directory, info.topic_id, info.partitions)
            self.disk.sync_dir(self.data_dir)
        except OSError as error:
            raise StorageError(f"The partitions of {info.name!r} could not be made: {error}") from error

    def _move_earlier(self, info: TopicInfo, number: int, directory: str) -> None:
        """The directory of an earlier topic of this name, which could not be removed. Raises OSError."""
        if self.disk.exists(directory) and read_partition_metadata(self.disk, directory).topic_id not in (
            None,
            info.topic_id,
        ):
            path = partition_dir.rename_deleted(self.disk, directory, info.name, number, self.entropy.uuid())
            if path is not None:
                self.housekeeper.delete_later([path], 0)

    def _bring_in(self, row: TopicRow, known: TopicInfo | None) -> str:
        """A topic that another node has made or changed. Its directories are there, or are this node's to make. ``_lock`` is
        held."""
        version = 0 if known is None else known.version + 1
        info = TopicInfo(row.name, row.topic_id, row.partitions, dict(row.configs), version)
        config = startup.log_config(self.config, info)
        before = range(0 if known is None else known.partitions)
        for number in self._own(row.name, before):
            self.partitions[row.name, number].config = config
        numbers = range(len(before), row.partitions)
        self.checkpoints.forget(info.name, numbers)
        if self.nodes is not None and self.nodes.apart and numbers:
            self._make_own_directories(info, self._own(row.name, numbers))
        logs = [
            startup.open_new(self.around, self.config, info, number, made_elsewhere=True)
            for number in self._own(row.name, numbers)
        ]
        self._names[topics.collision_key(row.name)] = row.name
        self._show(info, logs)
        self.generation += 1
        return row.name

    def _hide(self, info: TopicInfo) -> list[Log]:
        """A topic that was deleted. Returns its logs. ``_lock`` is held."""
        name, topic_id = info.name, info.topic_id.bytes
        del self._topics[name]
        self._names.pop(topics.collision_key(name), None)
        numbers = self._own(name, range(info.partitions))
        logs = [self.partitions.pop((name, number)) for number in numbers]
        for number in numbers:
            del self.partitions_by_id[topic_id, number]
        del self.topics_by_id[topic_id]  # last, see `_show`
        self.generation += 1
        for log in logs:
            log.mark_deleted()
        return logs

    def _own(self, topic: str, numbers: range) -> list[int]:
        return [number for number in numbers if self.nodes is None or self.nodes.has_partition(topic, number)]

    def _here(self, topic: str, numbers: range) -> list[int]:
        """Those whose directories this node makes and removes: of all nodes on this machine, or its own."""
        return self._own(topic, numbers) if self.nodes is not None and self.nodes.apart else list(numbers)

    def _path_of(self, topic: str, number: int) -> str:
        directory = self.data_dir if self.nodes is None else self.nodes.directory_of(topic, number)
        return f"{directory}/{partition_dir.directory_name(topic, number)}"

    def check_defaults(self, defaults: LogConfig) -> None:
        """Raises InvalidSetting where these defaults contradict the settings of a topic."""
        for info in self.topics():
            self._with_defaults(info, defaults)

    def reconfigure(self, config: StorageConfig) -> None:
        """Put these settings in force for all logs and for the housekeeper. Raises InvalidSetting; then nothing has changed.

        ``data_dir``, ``node_id`` and ``max_open_files`` are those of the start."""
        with self._lock:
            in_force = [(info, self._with_defaults(info, config.defaults)) for info in self.topics()]
            self.config = config
            for info, log_config in in_force:
                for number in self._own(info.name, range(info.partitions)):
                    self.partitions[info.name, number].config = log_config
            self.generation += 1
        self.housekeeper.reconfigure(config)

    def _with_defaults(self, info: TopicInfo, defaults: LogConfig) -> LogConfig:
        try:
            return LogConfig.from_overrides(defaults, info.configs)
        except InvalidSetting as error:
            raise InvalidSetting(f"Change the settings of topic {info.name!r} first: {error}") from error

    def checkpoint(self) -> None:
        """Move the recovery points of all logs up, and save them. Blocks. Raises StorageError."""
        for _ in self.checkpoints.move_up_each():
            pass


def _check_switched_off(before: LogConfig, after: LogConfig) -> None:
    """As in Kafka, nobody may lose old records by chance, or have a topic of which a part is read and never removed. Raises
    InvalidSetting."""
    if before.remote_storage_enable and not after.remote_storage_enable and not after.remote_log_delete_on_disable:
        raise InvalidSetting(
            "It is invalid to disable remote storage without deleting remote data. If you want to keep the remote data and turn "
            "to read only, please set `remote.storage.enable=true,remote.log.copy.disable=true`. If you want to disable remote "
            "storage and delete all remote data, please set `remote.storage.enable=false,remote.log.delete.on.disable=true`."
        )
