"""Reading and repairing a data directory when the broker starts, and the mark that it leaves when it stops cleanly.

Runs on the thread that opens or closes the broker, before and after all others. ``recovery.py`` opens a single partition; a
partition that cannot be opened is offline, and the broker starts without it.
"""

from collections.abc import Mapping

import attrs

from broker.cluster.nodes import Nodes
from broker.errors import ConfigError, Refusal, StorageError
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue
from broker.runtime.disk import Disk
from broker.runtime.files import explain_denial
from broker.storage import partition_dir
from broker.storage.checkpoints import (
    CLEANER_OFFSETS,
    LEADER_EPOCHS,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    CorruptCheckpoint,
    Offsets,
    metadata_matches,
    read_leader_epochs,
    read_offsets,
    read_partition_metadata,
    replace_text,
)
from broker.storage.config import StorageConfig, TopicInfo
from broker.storage.data_directory import CHECKPOINTS, write_properties
from broker.storage.log.log import Log, Surroundings
from broker.storage.log.log_config import LogConfig
from broker.storage.log.producer_state import ProducerState
from broker.storage.log.state import LoadedLog
from broker.storage.recovery import recovery
from broker.storage.recovery.adoption import Adoption
from broker.storage.recovery.leftovers import LogOnDisk
from broker.storage.segments.segment import NEVER, new_segment

logger = get_logger("storage")

CLEAN = ".kafka_cleanshutdown"  # Kafka's name and content, so that a Kafka broker takes it as well
CLEAN_TEXT = '{"version":0,"brokerEpoch":-1}'


@attrs.frozen
class Loaded:
    """The log manager's start: every topic with its logs, and the offsets of the trusted checkpoint files."""

    topics: list[tuple[TopicInfo, list[Log]]]
    checkpoints: Mapping[str, Offsets]


@attrs.frozen
class _Checkpoints:
    """The content of the checkpoint files about all logs."""

    offsets: dict[str, Offsets]
    missing: set[str]  # names of the files
    damaged: set[str]


@attrs.frozen
class _Known:
    """The content of the data directory's files about all logs."""

    clean: bool
    checkpoints: _Checkpoints
    adopted: set[str]  # topics about which the checkpoints say nothing reliable


def load(around: Surroundings, config: StorageConfig, catalogue: Catalogue, nodes: Nodes | None = None) -> Loaded:
    """Bring directory and catalogue in step, and open every partition, or those of this node. Raises ConfigError."""
    disk, directory = around.disk, config.data_dir
    try:
        write_properties(disk, config)
        clean = disk.exists(f"{directory}/{CLEAN}")
        if clean:
            # Removed before the first record is written: from now on only the next close says "clean".
            disk.remove(f"{directory}/{CLEAN}")
            disk.sync_dir(directory)
        checkpoints = _read_checkpoints(disk, directory)
        rows = {row.name: row for row in catalogue.topics()}
        expected = {
            partition_dir.directory_name(row.name, n)
            for row in rows.values()
            for n in range(row.partitions)
            if nodes is None or nodes.has_partition(row.name, n)
        }
        others = [name for name in disk.listdir(directory) if name not in expected]
        deleted = [f"{directory}/{name}" for name in others if partition_dir.is_deleted(name)]
        around.delete_later([path for path in deleted if disk.is_dir(path)], 0)
        if nodes is not None and nodes.apart:
            from broker.storage.recovery import own_directories

            own_directories.agree(around, directory, list(rows.values()), nodes, checkpoints.offsets)
            adopted: set[str] = set()
        else:
            adoption = Adoption(disk, directory, catalogue, around.entropy.uuid, around.delete_later, nodes)
            adopted = adoption.take_in(others, rows)
    except OSError as error:
        why = f"{error.filename or directory}: {explain_denial(error, error.filename or directory)}"
        raise ConfigError(f"The data directory {directory} cannot be used: {why}.") from error
    except StorageError as error:
        raise ConfigError(f"The data directory {directory} cannot be used: {error}.") from error
    known = _Known(clean, checkpoints, adopted)
    topics = []
    for row in rows.values():
        info = TopicInfo(row.name, row.topic_id, row.partitions, row.configs)
        settings = log_config(config, info)
        numbers = [n for n in range(row.partitions) if nodes is None or nodes.has_partition(row.name, n)]
        topics.append((info, [_open(around, directory, info, settings, n, known) for n in numbers]))
    unreliable = checkpoints.missing | checkpoints.damaged
    return Loaded(topics, {name: offsets for name, offsets in checkpoints.offsets.items() if name not in unreliable})


def _read_checkpoints(disk: Disk, directory: str) -> _Checkpoints:
    """Raises OSError."""
    offsets: dict[str, Offsets] = {}
    missing, damaged = set(), set()
    for name in CHECKPOINTS:
        path = f"{directory}/{name}"
        offsets[name] = {}
        try:
            if disk.exists(path):
                offsets[name] = read_offsets(disk, path)
            else:
                missing.add(name)
        except CorruptCheckpoint as error:
            logger.warning("checkpoint_ignored", error=str(error))
            damaged.add(name)
    return _Checkpoints(offsets, missing, damaged)


def log_config(config: StorageConfig, info: TopicInfo) -> LogConfig:
    """The settings of the topic's logs: the defaults, if it has any that this version does not know."""
    try:
        return LogConfig.from_overrides(config.defaults, info.configs)
    except Refusal as error:  # a setting that this version does not have
        logger.error("topic_settings_ignored", topic=info.name, error=str(error))
        return config.defaults


def _new_log(around: Surroundings, data_dir: str, info: TopicInfo, config: LogConfig, number: int) -> Log:
    directory = f"{data_dir}/{partition_dir.directory_name(info.name, number)}"
    return Log(around, directory, info.name, number, info.topic_id, config)


def open_new(
    around: Surroundings, config: StorageConfig, info: TopicInfo, number: int, *, made_elsewhere: bool = False
) -> Log:
    """Open a partition whose directory was just made. Raises OSError, StorageError; ``made_elsewhere``: another node has made
    it, so it is there whatever happens here. If that fails it is offline."""
    log = _new_log(around, config.data_dir, info, log_config(config, info), number)
    try:
        segment = new_segment(around.files, log.dir, 0, around.clock.time_ms())
        log.start(LoadedLog([segment], 0, 0, ProducerState(), []), 0)
    except (OSError, StorageError) as error:
        if not made_elsewhere:
            raise
        _take_offline(log, error)
    return log


def _take_offline(log: Log, error: OSError | StorageError) -> None:
    log.mark_unreadable(
        StorageError(str(error) if isinstance(error, StorageError) else f"{log.dir} cannot be read: {error}")
    )
    logger.error("partition_taken_offline", topic=log.topic, partition=log.partition, reason=str(error))


def _open(around: Surroundings, data_dir: str, info: TopicInfo, config: LogConfig, number: int, known: _Known) -> Log:
    """Open one partition. If that fails it is offline."""
    log = _new_log(around, data_dir, info, config, number)
    key = (info.name, number)
    checkpoints, adopted = known.checkpoints, info.name in known.adopted
    saved = checkpoints.offsets
    recovery_point = saved[RECOVERY_POINTS].get(key, 0)
    first_dirty = saved[CLEANER_OFFSETS].get(key, 0)
    # True if compaction may have made gaps.
    gaps = key in saved[CLEANER_OFFSETS] or CLEANER_OFFSETS in checkpoints.damaged
    gaps = gaps or (CLEANER_OFFSETS in checkpoints.missing and log.config.compact)
    # Compaction stays before the recovery point. If that is lost, a gap may be anywhere, and no segment must be truncated
    # because of a gap.
    dense_from = NEVER if adopted or (gaps and not recovery_point) else recovery_point if gaps else 0
    try:
        names = _list(around.disk, log.dir)
        if not metadata_matches(around.disk, log.dir, info.topic_id, info.partitions):
            metadata = read_partition_metadata(around.disk, log.dir)
            if metadata.topic_id not in (None, info.topic_id):
                raise StorageError(
                    f"{log.dir} belongs to a topic with another id ({metadata.topic_id}): bring the right one back"
                )
            _write_metadata(around.disk, log.dir, info)
            names = [name for name in names if not name.startswith(PARTITION_METADATA)]
        if LEADER_EPOCHS in names:
            _read_epochs(around.disk, log)
        loaded = recovery.load(
            LogOnDisk(
                files=around.files,
                directory=log.dir,
                names=names,
                clean=known.clean,
                recovery_point=recovery_point,
                start_offset=saved[LOG_STARTS].get(key, 0),
                start_known=not adopted and LOG_STARTS not in checkpoints.missing | checkpoints.damaged,
                dense_from=dense_from,
                newest_epoch=log.leader_epoch,
                index_interval_bytes=log.config.index_interval_bytes,
                now_ms=around.clock.time_ms(),
                may_lack_indexes=log.config.is_shipped,
            )
        )
        around.opened(loaded.scanned_bytes, loaded.cut_bytes)
        log.start(loaded, recovery_point, first_dirty, dense_from)
    except (OSError, StorageError) as error:
        _take_offline(log, error)
    return log


def _list(disk: Disk, directory: str) -> list[str]:
    """The files of a partition that the catalogue knows. Raises StorageError if the directory is missing or has only other
    files."""
    try:
        names = disk.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        raise StorageError(f"{directory} is missing: bring it back, or delete the topic") from None
    contents = partition_dir.sort_out(names)
    if contents.foreign and not contents.own:
        raise StorageError(f"{directory} has no files of a partition, but others: bring the right directory back")
    return sorted(contents.own)


def _write_metadata(disk: Disk, directory: str, info: TopicInfo) -> None:
    try:
        partition_dir.write_metadata(disk, directory, info.topic_id, info.partitions)
    except OSError as error:  # the catalogue has it, too; the next start tries again
        logger.warning("partition_metadata_not_written", path=directory, error=str(error))


def _read_epochs(disk: Disk, log: Log) -> None:
    try:
        epochs = read_leader_epochs(disk, log.dir)
    except CorruptCheckpoint as error:
        logger.warning("leader_epochs_ignored", error=str(error))
        epochs = []
    if epochs:
        log.set_leader_epochs(epochs)


def mark_clean_stop(disk: Disk, directory: str) -> None:
    """Mark for the next start that every log is whole and durable. Raises StorageError."""
    try:
        replace_text(disk, f"{directory}/{CLEAN}", CLEAN_TEXT)
    except OSError as error:
        raise StorageError(f"The mark of a clean stop could not be written: {error}") from error
