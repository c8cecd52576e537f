"""Files of services beside the partitions, for a number of nodes: moved with the partitions' directories, before the nodes start.

- Pulsar's compacted files (``pulsar-compacted/TOPIC_ID-PARTITION-HORIZON.compacted``) are with the partition's node: the log may
  have deleted what is in them.
- Finished result partitions of the shuffle (``shuffle``) are read at the address of the node that was written to. One broker
  alone has the address that the first of several nodes has. Those of a node that is no more stay where they are until it returns.

A file has its new name at once, and what an interruption leaves is moved at the next start.

Tests: tests/server/test_node_service_files.py.
"""

import re
from collections.abc import Iterable, Sequence

from broker.cluster.nodes import owner_of
from broker.runtime.disk import Disk
from broker.storage import partition_dir
from broker.storage.checkpoints import read_partition_metadata

COMPACTED, SHUFFLE = "pulsar-compacted", "shuffle"
COMPACTED_NAME = re.compile(r"([0-9a-f]{32})-([0-9]+)-[0-9]+\.compacted")


def move_service_files(
    disk: Disk, old: Sequence[str], new: Sequence[str], firsts: tuple[str, str], partitions: Iterable[tuple[str, str]]
) -> None:
    """``old`` and ``new``: the directories that may have files, and those of the nodes to be. ``firsts``: that of a broker alone
    and that of the first of several nodes. ``partitions``: where each partition's directory is now, and its name. Raises
    OSError."""
    names = {place: _listed(disk, f"{place}/{COMPACTED}") for place in old}
    found = {
        place: matches
        for place in old
        if (matches := [each for each in map(COMPACTED_NAME.fullmatch, names[place]) if each])
    }
    topics = _topics(disk, {match[1] for matches in found.values() for match in matches}, partitions)
    for place, matches in found.items():
        for match in matches:
            topic = topics.get(match[1])
            if topic is not None:
                target = new[owner_of(topic, int(match[2]), len(new))]
                _move(disk, f"{place}/{COMPACTED}", f"{target}/{COMPACTED}", [match[0]])
    (source,) = {*firsts} - {new[0]}
    _move(disk, f"{source}/{SHUFFLE}", f"{new[0]}/{SHUFFLE}", _listed(disk, f"{source}/{SHUFFLE}"))


def _listed(disk: Disk, directory: str) -> list[str]:
    return sorted(disk.listdir(directory)) if disk.exists(directory) else []


def _topics(disk: Disk, wanted: set[str], partitions: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The name of each topic by its id in hexadecimal digits."""
    topics: dict[str, str] = {}
    for place, name in partitions:
        if len(topics) == len(wanted):
            break
        topic_id = read_partition_metadata(disk, f"{place}/{name}").topic_id
        parsed = partition_dir.parse_name(name)
        if topic_id is not None and topic_id.hex in wanted and parsed is not None:
            topics[topic_id.hex] = parsed[0]
    return topics


def _move(disk: Disk, source: str, target: str, names: Sequence[str]) -> None:
    if source == target or not names:
        return
    disk.makedirs(target)
    for name in names:
        if not disk.exists(f"{target}/{name}"):
            disk.rename(f"{source}/{name}", f"{target}/{name}")
    disk.sync_dir(target)
    disk.sync_dir(source)
