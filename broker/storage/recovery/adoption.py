"""Directories of partitions that the catalogue does not know: topics that were copied into the data directory or whose catalogue
was lost, and leftovers of interrupted creations and deletions.

Of several nodes with their directories on one machine, each takes in what is in its own when it starts, while others may run.
What a deletion has left is removed from the directories of all, because the deletion is forgotten then.

Runs on the thread that opens the broker. Directories that are not a partition's are left alone, whatever their names.
"""

import json
import uuid
from collections.abc import Callable, Mapping

import attrs

from broker.cluster.nodes import Nodes
from broker.errors import Refusal, StorageError
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue, TopicRow
from broker.runtime.disk import Disk
from broker.storage import partition_dir
from broker.storage.checkpoints import PARTITION_METADATA, PartitionMetadata, read_partition_metadata
from broker.storage.config import MOST_PARTITIONS
from broker.storage.log.log import Log

logger = get_logger("storage")

# Keys in the catalogue. The first exists since the catalogue was first brought in step with the directories; a catalogue without
# it is new. The second has the adopted topics of which the checkpoint files do not say everything yet (JSON).
TAKEN_IN = "directories_taken_in"
UNSETTLED = "topics_not_settled"


@attrs.define
class _Orphan:
    """The directory of a partition that the catalogue does not know."""

    number: int
    path: str
    metadata: PartitionMetadata
    has_metadata: bool  # the file exists, legible or not
    has_records: bool
    is_unfinished: bool  # a complete directory that was never written to looks the same


@attrs.frozen
class Adoption:
    """``directory`` is the data directory, of several ``nodes`` this one's. ``new_id`` draws a random id; ``delete_later``
    removes paths after that many ms."""

    disk: Disk
    directory: str
    catalogue: Catalogue
    new_id: Callable[[], uuid.UUID]
    delete_later: Callable[[list[str], int], None]
    nodes: Nodes | None = None

    def take_in(self, names: list[str], rows: dict[str, TopicRow]) -> set[str]:
        """Decide about the directories ``names``, which have no row in the catalogue.

        The rest of a deletion or an unfinished creation is removed. Topics that were put there by hand, or whose catalogue was
        lost, get a row, in the catalogue and in ``rows``. Returns their names, and the names of topics that an earlier start has
        taken in and not settled (``settle``). Raises OSError, StorageError.

        A partition that was made and never written to looks like an interrupted creation. It stays if the catalogue is new, or if
        another partition of its topic was written to.
        """
        catalogue = self.catalogue
        deleted_ids = catalogue.deleted_topic_ids()
        is_new = catalogue.meta(TAKEN_IN) is None and catalogue.meta("cluster_id") is None
        by_topic, changed = self._orphans(names, deleted_ids)
        adopted = _unsettled(catalogue) & rows.keys()
        without_row: dict[str, list[_Orphan]] = {}
        for topic, orphans in by_topic.items():
            row = rows.get(topic)
            if row is None and not is_new:
                changed = self._keep_illegible(orphans) or changed
            if orphans and row is None and (is_new or not all(orphan.is_unfinished for orphan in orphans)):
                without_row[topic] = orphans
            else:
                changed = self._remove_unfinished(topic, orphans, row) or changed
        if without_row:
            adopted.update(without_row)
            # Before the rows: if this start is interrupted, the next start finds the rows and must not believe the checkpoints.
            catalogue.set_meta(UNSETTLED, json.dumps(sorted(adopted)))
        for topic, orphans in without_row.items():
            rows[topic] = self._adopt(topic, orphans)
        if changed or without_row:
            self.disk.sync_dir(self.directory)
        if deleted_ids and self.nodes is not None:
            for directory in self.nodes.directories:
                self._remove_deleted(directory, deleted_ids)
        try:
            if deleted_ids:
                catalogue.forget_deleted_topics(deleted_ids)
            if catalogue.meta(TAKEN_IN) is None:
                catalogue.set_meta(TAKEN_IN, "1")
        except StorageError as error:  # a full disk: the next start tries again
            logger.warning("catalogue_not_updated", error=str(error))
        return adopted

    def _orphans(self, names: list[str], deleted_ids: set[uuid.UUID]) -> tuple[dict[str, list[_Orphan]], bool]:
        """The directories of partitions by topic, and whether there were directories of deleted topics, which are left out,
        renamed and removed later."""
        by_topic: dict[str, list[_Orphan]] = {}
        renamed = False
        for name in names:
            topic, orphan = self._orphan(name)
            if orphan is None:
                continue
            topic_id = orphan.metadata.topic_id
            if topic_id is not None and topic_id in deleted_ids:
                path = f"{self.directory}/{partition_dir.deleted_name(topic, orphan.number, self.new_id())}"
                self.disk.rename(orphan.path, path)
                self.delete_later([path], 0)
                renamed = True
            else:
                by_topic.setdefault(topic, []).append(orphan)
        return by_topic, renamed

    def _remove_deleted(self, directory: str, deleted_ids: set[uuid.UUID]) -> None:
        """From the directory of a node, which may run: it has heard of the deletion, or will in a moment."""
        for name in self.disk.listdir(directory) if self.disk.exists(directory) else ():
            key, path = partition_dir.parse_name(name), f"{directory}/{name}"
            if key is None or not self.disk.is_dir(path) or self.disk.is_link(path):
                continue
            try:
                if read_partition_metadata(self.disk, path).topic_id in deleted_ids:
                    renamed = partition_dir.rename_deleted(self.disk, path, *key, self.new_id())
                    self.delete_later([renamed] if renamed else [], 0)
            except FileNotFoundError:
                pass  # the node removes it itself
        self.disk.sync_dir(directory)

    def _orphan(self, name: str) -> tuple[str, _Orphan | None]:
        """The topic and its orphan; None if the directory is not a partition's, or must not be touched."""
        disk, path = self.disk, f"{self.directory}/{name}"
        parsed = partition_dir.parse_name(name)
        if parsed is None or not disk.is_dir(path):
            return "", None
        topic, number = parsed
        if disk.is_link(path):
            logger.warning(
                "directory_ignored", path=path, reason="it is a link, and the catalogue has no such partition"
            )
            return topic, None
        contents = partition_dir.read_contents(disk, path)
        unfinished = partition_dir.is_unfinished(disk, path, contents)
        if not contents.is_partition and not unfinished:
            logger.warning("directory_ignored", path=path, reason="it has no files of a partition")
            return topic, None
        metadata = read_partition_metadata(disk, path)
        has_metadata = PARTITION_METADATA in contents.own
        has_records = partition_dir.has_records(disk, path, contents)
        return topic, _Orphan(number, path, metadata, has_metadata, has_records, unfinished)

    def _keep_illegible(self, orphans: list[_Orphan]) -> bool:
        """Move aside orphans that have records and an illegible partition.metadata. True if there were some.

        The catalogue is not new and does not know their topic. Most likely the topic was deleted, and the power failed before
        both the text and the directory's new name were on the disk. A deleted topic must not come back by itself.
        """
        illegible = [o for o in orphans if o.has_records and o.has_metadata and o.metadata.topic_id is None]
        for orphan in illegible:
            logger.warning("directory_moved_aside", path=orphan.path, reason="its partition.metadata is illegible")
            partition_dir.move_aside(self.disk, orphan.path, self.new_id())
            orphans.remove(orphan)
        return bool(illegible)

    def _remove_unfinished(self, topic: str, orphans: list[_Orphan], row: TopicRow | None) -> bool:
        """Remove directories of an interrupted creation; partitions that the topic of ``row`` lacks stay. True if any was
        removed."""
        removed = False
        for orphan in orphans:
            if orphan.is_unfinished and (row is None or orphan.metadata.topic_id in (None, row.topic_id)):
                partition_dir.remove(self.disk, orphan.path)
                removed = True
            elif row is not None:
                reason = f"topic {topic} has {row.partitions} partitions"
                logger.warning("directory_ignored", path=orphan.path, reason=reason)
        return removed

    def _adopt(self, topic: str, orphans: list[_Orphan]) -> TopicRow:
        """Give a topic a row. It has as many partitions as its directories say: CreatePartitions writes the new number into new
        directories before it is valid and into the old ones afterwards, so the largest number is right."""
        disk = self.disk
        if any(orphan.metadata.topic_id is not None for orphan in orphans):
            # An unfinished directory counts for nothing beside finished directories.
            for torn in [o for o in orphans if o.is_unfinished and o.metadata.topic_id is None]:
                partition_dir.remove(disk, torn.path)
                orphans.remove(torn)
        # An id beside records is worth more than an id without.
        ids = [
            o.metadata.topic_id
            for o in sorted(orphans, key=lambda o: not o.has_records)
            if o.metadata.topic_id is not None
        ]
        topic_id = ids[0] if ids else self.new_id()
        numbers = [o.metadata.partitions or 0 for o in orphans if o.metadata.topic_id == topic_id]
        total = max([o.number + 1 for o in orphans] + [number for number in numbers if number <= MOST_PARTITIONS])
        row = TopicRow(topic, topic_id, total)
        present = {orphan.number for orphan in orphans}
        for number in range(total):
            parent = self.directory if self.nodes is None else self.nodes.directory_of(topic, number)
            path = f"{parent}/{partition_dir.directory_name(topic, number)}"
            if number in present or disk.is_link(path) or disk.exists(path):
                continue
            reason = "other directories of its topic say that it was there"
            logger.warning("partition_recreated", path=path, reason=reason)
            partition_dir.make(disk, path, row.topic_id, total)
            disk.sync_dir(parent)
        self.catalogue.put_topic(row)
        logger.warning("topic_adopted", topic=topic, partitions=total, reason="it was not in the catalogue")
        return row


def settle(
    catalogue: Catalogue, partitions: Mapping[tuple[str, int], Log], save_recovery_points: Callable[[], None]
) -> None:
    """Move the recovery points of the adopted topics to the ends of their logs, and save them. Beyond its recovery point a log
    must not have gaps, and these logs may have gaps anywhere. From then on the checkpoints are trusted.

    Called when all logs are open and the other checkpoints are saved. A topic with a partition that is offline waits for a later
    start. Raises StorageError.
    """
    unsettled = _unsettled(catalogue)
    if not unsettled:
        return
    left = set()
    for (topic, number), log in list(partitions.items()):
        if topic not in unsettled:
            continue
        try:
            if log.offline is None and log.recovery_point < log.log_end_offset:
                log.durability.checkpoint()
        except (StorageError, Refusal) as error:
            logger.error("checkpoint_failed", topic=topic, partition=number, error=str(error))
        if log.offline is not None or log.recovery_point < log.log_end_offset:
            left.add(topic)
    save_recovery_points()
    if left != unsettled:
        catalogue.set_meta(UNSETTLED, json.dumps(sorted(left)))


def _unsettled(catalogue: Catalogue) -> set[str]:
    return set(json.loads(catalogue.meta(UNSETTLED) or "[]"))
