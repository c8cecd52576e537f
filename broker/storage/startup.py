"""Opening and closing a data directory: what is locked, read, put right and written at the start, and at the end.

Runs on the thread that opens or closes the broker, before and after all others. A single partition is opened by
``recovery.py``; one that cannot be opened is offline and the broker starts without it.
"""

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.errors import ConfigError, RequestError, StorageError
from broker.log import get_logger
from broker.runtime.disk import File
from broker.storage import partition_dir, recovery
from broker.storage.catalogue import TopicRow
from broker.storage.checkpoints import (
    CLEANER_OFFSETS,
    LOG_STARTS,
    RECOVERY_POINTS,
    CorruptCheckpoint,
    Offsets,
    read_leader_epochs,
    read_offsets,
    read_text,
    read_topic_id,
    replace_text,
)
from broker.storage.log import Log
from broker.storage.log_config import LogConfig
from broker.storage.producer_state import ProducerState
from broker.storage.segment import NEVER

if TYPE_CHECKING:
    from broker.storage.log_manager import LogManager, TopicInfo

logger = get_logger("storage")

LOCK = ".lock"
CLEAN = ".kafka_cleanshutdown"  # Kafka's name and content, so that a Kafka broker takes it as well
CLEAN_TEXT = '{"version":0,"brokerEpoch":-1}'
PROPERTIES = "meta.properties"
# Rises when an older broker would misread the directory.
LAYOUT = 1

CHECKPOINTS = (RECOVERY_POINTS, LOG_STARTS, CLEANER_OFFSETS)


def lock(manager: "LogManager") -> File:
    """Take the data directory. Raises ConfigError."""
    directory = manager.data_dir
    path = f"{directory}/{LOCK}"
    try:
        manager.disk.makedirs(directory)
        return manager.disk.lock(path)
    except BlockingIOError:
        raise ConfigError(
            f"Another broker ({_holder(manager, path)}) uses {directory}: stop it, or choose another data_dir."
        ) from None
    except OSError as error:
        raise ConfigError(
            f"Choose another data_dir, or make {directory} writable: {error.strerror or error}."
        ) from error


def _holder(manager: "LogManager", path: str) -> str:
    try:
        return (read_text(manager.disk, path) or "").strip() or "another process"
    except (OSError, CorruptCheckpoint):
        return "another process"


def load(manager: "LogManager", saved: dict[str, Offsets]) -> Iterator[tuple["TopicInfo", list[Log]]]:
    """Every topic with its logs. ``saved`` gets what the checkpoint files say. Raises ConfigError."""
    from broker.storage.log_manager import TopicInfo

    disk, directory = manager.disk, manager.data_dir
    try:
        _check_layout(manager)
        clean = disk.exists(f"{directory}/{CLEAN}")
        if clean:
            # Gone before the first record is written: from now on only the next close says "clean".
            disk.remove(f"{directory}/{CLEAN}")
            disk.sync_dir(directory)
        unknown = set()
        for name in CHECKPOINTS:
            try:
                saved[name] = read_offsets(disk, f"{directory}/{name}")
            except CorruptCheckpoint as error:
                logger.warning("checkpoint ignored", error=str(error))
                saved[name] = {}
                unknown.add(name)
        names = {name for name in disk.listdir(directory) if disk.is_dir(f"{directory}/{name}")}
        manager.housekeeper.delete_later([f"{directory}/{name}" for name in names if partition_dir.is_deleted(name)], 0)
        rows = {row.name: row for row in manager.catalogue.topics()}
        adopted = _orphans(manager, names, rows)
    except (OSError, StorageError) as error:
        raise ConfigError(f"The data directory {directory} cannot be used: {error}.") from error
    unsure = CLEANER_OFFSETS in unknown
    for row in rows.values():
        info = TopicInfo(row.name, row.topic_id, row.partitions, row.configs)
        taken_in = row.name in adopted
        yield info, [_open(manager, info, n, clean, saved, taken_in, unsure) for n in range(row.partitions)]


def _check_layout(manager: "LogManager") -> None:
    path = f"{manager.data_dir}/{PROPERTIES}"
    try:
        text = read_text(manager.disk, path)
    except CorruptCheckpoint:
        text = ""
    if text is None:
        _sync_parents(manager)
        replace_text(manager.disk, path, f"version=1\nnode.id={manager.config.node_id}\nlayout={LAYOUT}\n")
        return
    layout = dict(line.split("=", 1) for line in text.splitlines() if "=" in line).get("layout", "1")
    if not layout.isdigit() or int(layout) > LAYOUT:
        raise ConfigError(
            f"{manager.data_dir} was written by a newer broker (layout {layout}, this one knows {LAYOUT}): "
            "start that one, or choose another data_dir."
        )


def _sync_parents(manager: "LogManager") -> None:
    """A new data directory must not be lost itself; nobody knows how many of those above it are new too."""
    path = manager.data_dir
    while "/" in path.strip("/"):
        path = path.rstrip("/").rpartition("/")[0] or "/"
        try:
            manager.disk.sync_dir(path)
        except PermissionError:  # then it is not ours, and nothing in it is new
            return
    manager.disk.sync_dir("/" if path.startswith("/") else ".")


def _orphans(manager: "LogManager", names: set[str], rows: dict[str, TopicRow]) -> set[str]:
    """Directories without a row in the catalogue: what is left of a deletion or an unfinished creation goes, and topics that
    were put there by hand, or whose catalogue was lost, get a row. Returns the names of those."""
    disk, directory = manager.disk, manager.data_dir
    deleted_ids = manager.catalogue.deleted_topic_ids()
    found: dict[str, dict[int, uuid.UUID | None]] = {}
    changed = False
    for name in sorted(names):
        parsed = partition_dir.parse_name(name)
        if parsed is None:
            continue
        topic, number = parsed
        path = f"{directory}/{name}"
        row = rows.get(topic)
        if row is not None and number < row.partitions:
            continue
        topic_id = read_topic_id(disk, path)
        if topic_id is not None and topic_id in deleted_ids:
            gone = f"{directory}/{partition_dir.deleted_name(topic, number, manager.entropy.uuid())}"
            disk.rename(path, gone)
            manager.housekeeper.delete_later([gone], 0)
            changed = True
        elif not partition_dir.has_records(disk, path):
            partition_dir.remove_tree(disk, path)
            changed = True
        elif row is None:
            found.setdefault(topic, {})[number] = topic_id
        else:
            logger.warning("directory ignored", path=path, reason=f"topic {topic} has {row.partitions} partitions")
    for topic, partitions in found.items():
        known = [topic_id for topic_id in partitions.values() if topic_id is not None]
        row = TopicRow(topic, known[0] if known else manager.entropy.uuid(), max(partitions) + 1)
        for number in range(row.partitions):
            if number not in partitions:
                partition_dir.make(disk, f"{directory}/{partition_dir.directory_name(topic, number)}", row.topic_id)
        manager.catalogue.put_topic(row)
        rows[topic] = row
        logger.warning("topic taken in", topic=topic, partitions=row.partitions, reason="it was not in the catalogue")
    if changed or found:
        disk.sync_dir(directory)
    if deleted_ids:
        manager.catalogue.forget_deleted_topics(deleted_ids)
    return set(found)


def _new_log(manager: "LogManager", info: "TopicInfo", number: int) -> Log:
    directory = f"{manager.data_dir}/{partition_dir.directory_name(info.name, number)}"
    try:
        config = LogConfig.from_overrides(manager.config.defaults, info.configs)
    except RequestError as error:  # a setting that this version does not have
        logger.error("topic settings ignored", topic=info.name, error=str(error))
        config = manager.config.defaults
    return Log(manager.around, directory, info.name, number, info.topic_id, config)


def open_new(manager: "LogManager", info: "TopicInfo", number: int) -> Log:
    """A log whose directory was just made."""
    log = _new_log(manager, info, number)
    segment = recovery.new_segment(manager.files, log.dir, 0, manager.clock.time_ms())
    log.start(recovery.LoadedLog([segment], 0, 0, ProducerState(), []), 0)
    return log


def _open(
    manager: "LogManager",
    info: "TopicInfo",
    number: int,
    clean: bool,
    saved: dict[str, Offsets],
    gaps_anywhere: bool,
    gaps_below_recovery_point: bool,
) -> Log:
    """Open one partition; it is offline if that fails. ``gaps_...``: where compaction may have been, if that is not known."""
    log = _new_log(manager, info, number)
    key = (info.name, number)
    recovery_point = saved[RECOVERY_POINTS].get(key, 0)
    first_dirty = saved[CLEANER_OFFSETS].get(key, 0)
    gaps = gaps_below_recovery_point or key in saved[CLEANER_OFFSETS]
    dense_from = NEVER if gaps_anywhere else recovery_point if gaps else 0
    try:
        if not manager.disk.is_dir(log.dir):
            raise StorageError(f"{log.dir} is missing: bring it back, or delete the topic")
        topic_id = read_topic_id(manager.disk, log.dir)
        if topic_id is None:
            partition_dir.write_metadata(manager.disk, log.dir, info.topic_id)
        elif topic_id != info.topic_id:
            raise StorageError(f"{log.dir} belongs to a topic with another id ({topic_id}): bring the right one back")
        _read_epochs(manager, log)
        loaded = recovery.load(
            recovery.LogOnDisk(
                files=manager.files,
                directory=log.dir,
                clean=clean,
                recovery_point=recovery_point,
                start_offset=saved[LOG_STARTS].get(key, 0),
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


def _read_epochs(manager: "LogManager", log: Log) -> None:
    try:
        epochs = read_leader_epochs(manager.disk, log.dir)
    except CorruptCheckpoint as error:
        logger.warning("leader epochs ignored", error=str(error))
        epochs = []
    if epochs:
        log.leader_epochs = epochs
        log.leader_epoch = epochs[-1][0]


def close(manager: "LogManager") -> None:
    """Make everything durable; where nothing is wrong with any log, say so for the next start. Raises StorageError."""
    clean = True
    for log in list(manager.partitions.values()):
        try:
            log.checkpoint(closing=True)
        except (StorageError, RequestError) as error:
            logger.error("partition not closed", topic=log.topic, partition=log.partition, error=str(error))
        clean = clean and log.offline is None and log.recovery_point == log.log_end_offset
    manager.save_recovery_points()
    manager.save_log_starts()
    manager.save_cleaner_offsets()
    if clean:
        try:
            replace_text(manager.disk, f"{manager.data_dir}/{CLEAN}", CLEAN_TEXT)
        except OSError as error:
            raise StorageError(f"The mark of a clean stop could not be written: {error}") from error
