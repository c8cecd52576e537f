"""Opening and closing what is in a data directory: what is read, put right and written at the start, and at the end.

Runs on the thread that opens or closes the broker, before and after all others. A single partition is opened by
``recovery.py``; one that cannot be opened is offline and the broker starts without it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

from broker.errors import ConfigError, RequestError, StorageError
from broker.log import get_logger
from broker.runtime.threads import Threads
from broker.storage import partition_dir
from broker.storage.checkpoints import (
    CLEANER_OFFSETS,
    LEADER_EPOCHS,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    CorruptCheckpoint,
    Offsets,
    read_leader_epochs,
    read_offsets,
    read_partition_metadata,
    replace_text,
    says,
)
from broker.storage.data_directory import CHECKPOINTS, write_properties
from broker.storage.log.log import Log
from broker.storage.log.log_config import LogConfig
from broker.storage.log.producer_state import ProducerState
from broker.storage.recovery import recovery
from broker.storage.recovery.adoption import take_in
from broker.storage.segments.segment import NEVER
from broker.storage.upkeep.closing import close_logs, is_dirty

if TYPE_CHECKING:
    from broker.storage.log_manager import LogManager, TopicInfo

logger = get_logger("storage")

CLEAN = ".kafka_cleanshutdown"  # Kafka's name and content, so that a Kafka broker takes it as well
CLEAN_TEXT = '{"version":0,"brokerEpoch":-1}'


@attrs.frozen
class _Known:
    """What the files of the data directory say of all logs."""

    clean: bool
    saved: dict[str, Offsets]
    missing: set[str]  # of the checkpoint files
    damaged: set[str]
    adopted: set[str]  # topics of which the checkpoints say nothing reliable


def load(manager: "LogManager") -> Iterator[tuple["TopicInfo", list[Log]]]:
    """Every topic with its logs. ``manager.saved`` gets what the checkpoint files say, if they do. Raises ConfigError."""
    from broker.storage.log_manager import TopicInfo

    disk, directory = manager.disk, manager.data_dir
    try:
        write_properties(disk, manager.config)
        clean = disk.exists(f"{directory}/{CLEAN}")
        if clean:
            # Gone before the first record is written: from now on only the next close says "clean".
            disk.remove(f"{directory}/{CLEAN}")
            disk.sync_dir(directory)
        known = _Known(clean, *_read_checkpoints(manager), set())
        rows = {row.name: row for row in manager.catalogue.topics()}
        expected = {partition_dir.directory_name(row.name, n) for row in rows.values() for n in range(row.partitions)}
        others = [name for name in disk.listdir(directory) if name not in expected]
        deleted = [f"{directory}/{name}" for name in others if partition_dir.is_deleted(name)]
        manager.housekeeper.delete_later([path for path in deleted if disk.is_dir(path)], 0)
        known.adopted.update(take_in(manager, others, rows))
    except (OSError, StorageError) as error:
        raise ConfigError(f"The data directory {directory} cannot be used: {error}.") from error
    for name, offsets in known.saved.items():
        if name not in known.missing | known.damaged:
            manager.saved[name] = offsets
    for row in rows.values():
        info = TopicInfo(row.name, row.topic_id, row.partitions, row.configs)
        config = _config(manager, info)
        yield info, [_open(manager, info, config, n, known) for n in range(row.partitions)]


def _read_checkpoints(manager: "LogManager") -> tuple[dict[str, Offsets], set[str], set[str]]:
    """What they say, and which of them are missing, and damaged. Raises OSError."""
    saved: dict[str, Offsets] = {}
    missing, damaged = set(), set()
    for name in CHECKPOINTS:
        path = f"{manager.data_dir}/{name}"
        saved[name] = {}
        try:
            if manager.disk.exists(path):
                saved[name] = read_offsets(manager.disk, path)
            else:
                missing.add(name)
        except CorruptCheckpoint as error:
            logger.warning("checkpoint ignored", error=str(error))
            damaged.add(name)
    return saved, missing, damaged


def _config(manager: "LogManager", info: "TopicInfo") -> LogConfig:
    try:
        return LogConfig.from_overrides(manager.config.defaults, info.configs)
    except RequestError as error:  # a setting that this version does not have
        logger.error("topic settings ignored", topic=info.name, error=str(error))
        return manager.config.defaults


def _new_log(manager: "LogManager", info: "TopicInfo", config: LogConfig, number: int) -> Log:
    directory = f"{manager.data_dir}/{partition_dir.directory_name(info.name, number)}"
    return Log(manager.around, directory, info.name, number, info.topic_id, config)


def open_new(manager: "LogManager", info: "TopicInfo", number: int) -> Log:
    """A log whose directory was just made."""
    log = _new_log(manager, info, _config(manager, info), number)
    segment = recovery.new_segment(manager.files, log.dir, 0, manager.clock.time_ms())
    log.start(recovery.LoadedLog([segment], 0, 0, ProducerState(), []), 0)
    return log


def _open(manager: "LogManager", info: "TopicInfo", config: LogConfig, number: int, known: _Known) -> Log:
    """Open one partition; it is offline if that fails."""
    log = _new_log(manager, info, config, number)
    key = (info.name, number)
    saved, adopted = known.saved, info.name in known.adopted
    recovery_point = saved[RECOVERY_POINTS].get(key, 0)
    first_dirty = saved[CLEANER_OFFSETS].get(key, 0)
    # Where compaction may have been.
    gaps = key in saved[CLEANER_OFFSETS] or CLEANER_OFFSETS in known.damaged
    gaps = gaps or (CLEANER_OFFSETS in known.missing and log.config.compact)
    # Compaction stays before the recovery point, so if that is lost a gap may be anywhere: no segment must be cut for one.
    dense_from = NEVER if adopted or (gaps and not recovery_point) else recovery_point if gaps else 0
    try:
        names = _list(manager, log.dir)
        if not says(manager.disk, log.dir, info.topic_id, info.partitions):
            metadata = read_partition_metadata(manager.disk, log.dir)
            if metadata.topic_id not in (None, info.topic_id):
                raise StorageError(
                    f"{log.dir} belongs to a topic with another id ({metadata.topic_id}): bring the right one back"
                )
            _write_metadata(manager, log.dir, info)
            names = [name for name in names if not name.startswith(PARTITION_METADATA)]
        if LEADER_EPOCHS in names:
            _read_epochs(manager, log)
        loaded = recovery.load(
            recovery.LogOnDisk(
                files=manager.files,
                directory=log.dir,
                names=names,
                clean=known.clean,
                recovery_point=recovery_point,
                start_offset=saved[LOG_STARTS].get(key, 0),
                start_known=not adopted and LOG_STARTS not in known.missing | known.damaged,
                dense_from=dense_from,
                newest_epoch=log.leader_epoch,
                index_interval_bytes=log.config.index_interval_bytes,
                now_ms=manager.clock.time_ms(),
            )
        )
        log.start(loaded, recovery_point, first_dirty, dense_from)
    except (OSError, StorageError) as error:
        log.offline = StorageError(
            str(error) if isinstance(error, StorageError) else f"{log.dir} cannot be read: {error}"
        )
        logger.error("partition offline", topic=info.name, partition=number, reason=str(error))
    return log


def _list(manager: "LogManager", directory: str) -> list[str]:
    """The files of a partition that the catalogue knows. Raises StorageError where they are somebody else's."""
    try:
        names = manager.disk.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        raise StorageError(f"{directory} is missing: bring it back, or delete the topic") from None
    contents = partition_dir.sort_out(names)
    if contents.foreign and not contents.own:
        raise StorageError(f"{directory} has no files of a partition, but others: bring the right directory back")
    return sorted(contents.own)


def _write_metadata(manager: "LogManager", directory: str, info: "TopicInfo") -> None:
    try:
        partition_dir.write_metadata(manager.disk, directory, info.topic_id, info.partitions)
    except OSError as error:  # nothing needs it while there is the catalogue: the next start tries again
        logger.warning("partition.metadata not written", path=directory, error=str(error))


def _read_epochs(manager: "LogManager", log: Log) -> None:
    try:
        epochs = read_leader_epochs(manager.disk, log.dir)
    except CorruptCheckpoint as error:
        logger.warning("leader epochs ignored", error=str(error))
        epochs = []
    if epochs:
        log.leader_epochs = epochs
        log.leader_epoch = epochs[-1][0]


def close(manager: "LogManager", deadline: float | None, threads: Threads | None, clean: bool) -> bool:
    """Make everything durable; where nothing is wrong with any log, and ``clean``, say so for the next start.

    Raises StorageError.
    ``deadline`` (monotonic s): what is not durable by then is left to recovery. False if something still writes.
    """
    logs = list(manager.partitions.values())
    ended = close_logs(logs, manager.clock, deadline, threads)
    clean = clean and not any(is_dirty(log) or log.offline is not None for log in logs)
    manager.save_recovery_points()
    manager.save_log_starts()
    manager.save_cleaner_offsets()
    if clean and ended:
        try:
            replace_text(manager.disk, f"{manager.data_dir}/{CLEAN}", CLEAN_TEXT)
        except OSError as error:
            raise StorageError(f"The mark of a clean stop could not be written: {error}") from error
    return ended
