"""The directories of a node's partitions, where each node makes and removes its own, brought in step with the catalogue at its
start.

Other nodes have made, changed and deleted topics while this one was not there. The catalogue is right: journal and catalogue
are in one database, so neither is older than the other. A directory that the catalogue does not know, or that is of an earlier
topic of the same name, is a deleted topic's. A partition without a directory is one that this node has not made yet: if it
had, the directory would be in its journal from before its first record was acknowledged. If a checkpoint says that there were
records, it is left missing, and the partition is offline.

Runs on the thread that opens the broker.

Tests: tests/storage/recovery/test_own_directories.py.
"""

from collections.abc import Mapping

from broker.cluster.nodes import Nodes
from broker.log import get_logger
from broker.metadata.catalogue import TopicRow
from broker.storage import partition_dir
from broker.storage.checkpoints import RECOVERY_POINTS, Offsets, read_partition_metadata, write_offsets
from broker.storage.log.log import Surroundings

logger = get_logger("storage")


def agree(
    around: Surroundings, directory: str, rows: list[TopicRow], nodes: Nodes, checkpoints: Mapping[str, Offsets]
) -> None:
    """``directory``: this node's data directory. ``checkpoints``: the lines of the checkpoint files, by the file's name; lines of
    deleted topics are taken out, here and there. Raises OSError."""
    disk = around.disk
    own = {
        partition_dir.directory_name(row.name, number): (row, number)
        for row in rows
        for number in range(row.partitions)
        if nodes.has_partition(row.name, number)
    }
    there = {name for name in disk.listdir(directory) if partition_dir.parse_name(name) is not None}
    gone = [name for name in sorted(there) if not _is_of(around, f"{directory}/{name}", own.get(name))]
    _drop_lines(around, directory, gone, checkpoints)
    for name in gone:
        key = partition_dir.parse_name(name)
        assert key is not None
        path = partition_dir.rename_deleted(disk, f"{directory}/{name}", *key, around.entropy.uuid())
        if path is not None:
            around.delete_later([path], 0)
            logger.info("deleted_topic_removed", topic=key[0], partition=key[1])
    points = checkpoints[RECOVERY_POINTS]
    for name, (row, number) in own.items():
        if (name in there and name not in gone) or points.get((row.name, number), 0):
            continue
        path = f"{directory}/{name}"
        if disk.exists(path) and not partition_dir.read_contents(disk, path).is_empty:
            continue  # files of somebody else: the partition goes offline and says so
        partition_dir.make(disk, path, row.topic_id, row.partitions)
    disk.sync_dir(directory)


def _is_of(around: Surroundings, path: str, owned: tuple[TopicRow, int] | None) -> bool:
    """Whether the directory is the partition's that the catalogue has under its name."""
    if owned is None:
        return False
    return read_partition_metadata(around.disk, path).topic_id in (None, owned[0].topic_id)


def _drop_lines(around: Surroundings, directory: str, gone: list[str], checkpoints: Mapping[str, Offsets]) -> None:
    """Before the directories go: the lines would be taken for those of new topics of the same names."""
    keys = {partition_dir.parse_name(name) for name in gone}
    for name, offsets in checkpoints.items():
        dropped = [key for key in offsets if key in keys]
        for key in dropped:
            del offsets[key]
        if dropped:
            write_offsets(around.disk, f"{directory}/{name}", offsets)
