"""Directories of partitions that the catalogue does not know: topics that were copied into the data directory or whose catalogue
was lost, and what an interrupted creation or deletion has left.

Runs on the thread that opens the broker. Directories that are not a partition's are left alone, whatever they are called.
"""

import json
from typing import TYPE_CHECKING

import attrs

from broker.errors import RequestError, StorageError
from broker.log import get_logger
from broker.metadata.catalogue import TopicRow
from broker.storage import partition_dir
from broker.storage.checkpoints import PARTITION_METADATA, PartitionMetadata, read_partition_metadata

if TYPE_CHECKING:
    from broker.storage.log_manager import LogManager

logger = get_logger("storage")

# In the catalogue, since it was first brought in step with the directories. Without it the catalogue is a new one.
TAKEN_IN = "directories_taken_in"
# In the catalogue: the topics that were taken in and of which the checkpoint files do not say everything yet (JSON).
UNSETTLED = "topics_not_settled"


@attrs.define
class _Orphan:
    """The directory of a partition that the catalogue does not know."""

    number: int
    path: str
    metadata: PartitionMetadata
    has_metadata: bool  # the file is there, legible or not
    has_records: bool
    is_unfinished: bool  # or made and never written to: the two look alike


def take_in(manager: "LogManager", names: list[str], rows: dict[str, TopicRow]) -> set[str]:
    """The directories without a row in the catalogue: what is left of a deletion or an unfinished creation goes, and topics that
    were put there by hand, or whose catalogue was lost, get a row. Returns the names of those, and of those that an earlier start
    has taken in and not settled (``settle``).

    A partition that was made and never written to looks like what a creation that was interrupted has left. It stays where the
    catalogue is new, or where another partition of its topic was written to.
    """
    disk, directory, catalogue = manager.disk, manager.data_dir, manager.catalogue
    deleted_ids = catalogue.deleted_topic_ids()
    is_new = catalogue.meta(TAKEN_IN) is None and catalogue.meta("cluster_id") is None
    found: dict[str, list[_Orphan]] = {}
    changed = False
    for name in names:
        topic, orphan = _orphan(manager, name)
        if orphan is None:
            continue
        topic_id = orphan.metadata.topic_id
        if topic_id is not None and topic_id in deleted_ids:
            gone = f"{directory}/{partition_dir.deleted_name(topic, orphan.number, manager.entropy.uuid())}"
            disk.rename(orphan.path, gone)
            manager.housekeeper.delete_later([gone], 0)
            changed = True
        else:
            found.setdefault(topic, []).append(orphan)
    adopted = _unsettled(manager) & rows.keys()
    homeless: dict[str, list[_Orphan]] = {}
    for topic, orphans in found.items():
        row = rows.get(topic)
        if row is None and not is_new:
            changed = _keep_illegible(manager, orphans) or changed
        if orphans and row is None and (is_new or not all(orphan.is_unfinished for orphan in orphans)):
            homeless[topic] = orphans
            continue
        for orphan in orphans:
            if orphan.is_unfinished and (row is None or orphan.metadata.topic_id in (None, row.topic_id)):
                partition_dir.remove(disk, orphan.path)
                changed = True
            elif row is not None:
                reason = f"topic {topic} has {row.partitions} partitions"
                logger.warning("directory ignored", path=orphan.path, reason=reason)
    if homeless:
        adopted.update(homeless)
        # Before the rows: if this start is interrupted, the next one finds the rows and must not believe the checkpoints.
        catalogue.set_meta(UNSETTLED, json.dumps(sorted(adopted)))
    for topic, orphans in homeless.items():
        rows[topic] = _adopt(manager, topic, orphans)
    if changed or homeless:
        disk.sync_dir(directory)
    try:
        if deleted_ids:
            catalogue.forget_deleted_topics(deleted_ids)
        if catalogue.meta(TAKEN_IN) is None:
            catalogue.set_meta(TAKEN_IN, "1")
    except StorageError as error:  # a full disk: the next start does it again
        logger.warning("catalogue not brought up to date", error=str(error))
    return adopted


def _unsettled(manager: "LogManager") -> set[str]:
    return set(json.loads(manager.catalogue.meta(UNSETTLED) or "[]"))


def settle(manager: "LogManager") -> None:
    """Move the recovery points of the topics that were taken in to their ends, and save them: behind its recovery point a log
    must not have gaps, and there they may be anywhere. From then on the checkpoints are believed.

    Called when all logs are open and the other checkpoints are saved. A topic with a partition that is offline waits for a later
    start. Raises StorageError.
    """
    unsettled = _unsettled(manager)
    if not unsettled:
        return
    left = set()
    for (topic, number), log in list(manager.partitions.items()):
        if topic not in unsettled:
            continue
        try:
            if log.offline is None and log.recovery_point < log.log_end_offset:
                log.checkpoint()
        except (StorageError, RequestError) as error:
            logger.error("checkpoint failed", topic=topic, partition=number, error=str(error))
        if log.offline is not None or log.recovery_point < log.log_end_offset:
            left.add(topic)
    manager.save_recovery_points()
    if left != unsettled:
        manager.catalogue.set_meta(UNSETTLED, json.dumps(sorted(left)))


def _orphan(manager: "LogManager", name: str) -> tuple[str, _Orphan | None]:
    """The topic and what is there; None where a directory is not a partition's, or is not to be touched."""
    disk, path = manager.disk, f"{manager.data_dir}/{name}"
    parsed = partition_dir.parse_name(name)
    if parsed is None or not disk.is_dir(path):
        return "", None
    topic, number = parsed
    if disk.is_link(path):
        logger.warning("directory ignored", path=path, reason="it is a link, and the catalogue has no such partition")
        return topic, None
    contents = partition_dir.look(disk, path)
    unfinished = partition_dir.is_unfinished(disk, path, contents)
    if not contents.is_partition and not unfinished:
        logger.warning("directory ignored", path=path, reason="it has no files of a partition")
        return topic, None
    metadata = read_partition_metadata(disk, path)
    has_metadata = PARTITION_METADATA in contents.own
    has_records = partition_dir.has_records(disk, path, contents)
    return topic, _Orphan(number, path, metadata, has_metadata, has_records, unfinished)


def _keep_illegible(manager: "LogManager", orphans: list[_Orphan]) -> bool:
    """Move those aside that have records, and a partition.metadata that cannot be read. True if there were some.

    The catalogue, which is not new, knows nothing of their topic: most likely it was deleted, and the power went before both the
    text and the directory's new name were on the disk. A deleted topic must not come back by itself.
    """
    illegible = [o for o in orphans if o.has_records and o.has_metadata and o.metadata.topic_id is None]
    for orphan in illegible:
        logger.warning("directory moved aside", path=orphan.path, reason="its partition.metadata is illegible")
        partition_dir.keep(manager.disk, orphan.path, manager.entropy.uuid())
        orphans.remove(orphan)
    return bool(illegible)


def _adopt(manager: "LogManager", topic: str, orphans: list[_Orphan]) -> TopicRow:
    """Give a topic that was found a row. It has as many partitions as its directories say: CreatePartitions writes the new number
    into new directories before it is valid and into the old ones afterwards, so the largest is the one."""
    disk, directory = manager.disk, manager.data_dir
    if any(orphan.metadata.topic_id is not None for orphan in orphans):
        # A directory that was not even finished counts for nothing beside those that were.
        for torn in [o for o in orphans if o.is_unfinished and o.metadata.topic_id is None]:
            partition_dir.remove(disk, torn.path)
            orphans.remove(torn)
    # An id beside records is worth more than one beside none.
    ids = [
        o.metadata.topic_id for o in sorted(orphans, key=lambda o: not o.has_records) if o.metadata.topic_id is not None
    ]
    topic_id = ids[0] if ids else manager.entropy.uuid()
    said = [o.metadata.partitions or 0 for o in orphans if o.metadata.topic_id == topic_id]
    total = max(
        [o.number + 1 for o in orphans] + [number for number in said if number <= partition_dir.MOST_PARTITIONS]
    )
    row = TopicRow(topic, topic_id, total)
    there = {orphan.number for orphan in orphans}
    for number in range(total):
        path = f"{directory}/{partition_dir.directory_name(topic, number)}"
        if number in there or disk.is_link(path) or disk.exists(path):
            continue
        logger.warning(
            "partition made again, empty", path=path, reason="other directories of its topic say that it was there"
        )
        partition_dir.make(disk, path, row.topic_id, total)
    manager.catalogue.put_topic(row)
    logger.warning("topic taken in", topic=topic, partitions=total, reason="it was not in the catalogue")
    return row
