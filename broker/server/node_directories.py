"""Which directory each partition is in, for a number of nodes: brought about before the nodes start, when no broker is running.

One broker alone has all partitions in the data directory itself; of several nodes, each has its own in ``nodes/N``. A directory
of a partition is renamed, and its lines in the checkpoint files go with it. The lines are written first, so that an interruption
leaves them in both places: lines about partitions that are elsewhere do not count.

What services have beside the partitions is moved first. A file has its new name at once, and what an interruption leaves is moved
at the next start.

- Pulsar's compacted files (``pulsar-compacted/TOPIC_ID-PARTITION-HORIZON.compacted``) are with the partition's node: the log may
  have deleted what is in them.
- Finished result partitions of the shuffle (``shuffle``) are read at the address of the node that was written to. One broker
  alone has the address that the first of several nodes has. Those of a node that is no more stay where they are until it returns.

Tests: tests/server/test_node_directories.py.
"""

import re
from collections.abc import Iterable, Sequence

from broker.cluster.nodes import NODES, directory_of, owner_of
from broker.errors import ConfigError
from broker.runtime.disk import Disk
from broker.storage import partition_dir
from broker.storage.backup.layout import STAGING
from broker.storage.backup.staging import remove_tree
from broker.storage.checkpoints import CorruptCheckpoint, Offsets, read_offsets, read_partition_metadata, write_offsets
from broker.storage.data_directory import CHECKPOINTS
from broker.storage.recovery.startup import CLEAN, mark_clean_stop

COMPACTED, SHUFFLE = "pulsar-compacted", "shuffle"
COMPACTED_NAME = re.compile(r"([0-9a-f]{32})-([0-9]+)-[0-9]+\.compacted")


def arrange(disk: Disk, data_dir: str, count: int) -> int:
    """Have the partitions where ``count`` nodes look for them. Returns how many were moved. Raises ConfigError."""
    try:
        return _arrange(disk, data_dir, count)
    except (OSError, CorruptCheckpoint) as error:
        raise ConfigError(f"The partitions in {data_dir} cannot be divided among {count} nodes: {error}.") from error


def gather(disk: Disk, data_dir: str) -> None:
    """Have the partitions where one broker alone looks for them, if they were divided. Raises ConfigError."""
    if disk.exists(f"{data_dir}/{NODES}"):
        arrange(disk, data_dir, 1)


def _arrange(disk: Disk, data_dir: str, count: int) -> int:
    if not disk.exists(data_dir):
        disk.makedirs(data_dir)
    nodes = f"{data_dir}/{NODES}"
    old = [data_dir, *(f"{nodes}/{name}" for name in (disk.listdir(nodes) if disk.exists(nodes) else ()))]
    new = [data_dir] if count == 1 else [directory_of(data_dir, place) for place in range(count)]
    for directory in new:
        disk.makedirs(directory)
    for directory in set(old) - set(new):  # a backup that was pinned there; the node that did so is no more
        remove_tree(disk, f"{directory}/{STAGING}")
    found = [(place, name, target) for place in old for name in disk.listdir(place) if (target := _target(new, name))]
    partitions = ((place, name) for place, name, _ in found)
    _move_service_files(disk, old, new, (data_dir, directory_of(data_dir, 0)), partitions)
    moves = [(place, name, target) for place, name, target in found if target != place]
    if not moves:
        return 0
    clean = all(disk.exists(f"{place}/{CLEAN}") for place in {place for place, _, _ in found})
    _move_lines(disk, old, new, moves)
    for directory in {*old, *new}:
        if disk.exists(f"{directory}/{CLEAN}"):
            disk.remove(f"{directory}/{CLEAN}")
    for place, name, target in moves:
        disk.rename(f"{place}/{name}", f"{target}/{name}")
    for directory in sorted({*old, *new}):
        disk.sync_dir(directory)
    if clean:
        for directory in new:
            mark_clean_stop(disk, directory)
    return len(moves)


def _target(new: list[str], name: str) -> str | None:
    """None: it is not a partition's directory."""
    parsed = partition_dir.parse_name(name)
    if parsed is None or partition_dir.is_deleted(name):
        return None
    return new[owner_of(*parsed, len(new))]


def _move_lines(disk: Disk, old: list[str], new: list[str], moves: list[tuple[str, str, str]]) -> None:
    for name in CHECKPOINTS:
        lines = {place: _lines(disk, f"{place}/{name}") for place in {*old, *new}}
        changed = {place: dict(offsets) for place, offsets in lines.items()}
        for place, directory, target in moves:
            key = partition_dir.parse_name(directory)
            assert key is not None
            offset = lines[place].get(key)
            if offset is None:
                changed[target].pop(key, None)
            else:
                changed[target][key] = offset
        for place, offsets in changed.items():
            if offsets != lines[place] or not disk.exists(f"{place}/{name}"):
                write_offsets(disk, f"{place}/{name}", offsets)


def _lines(disk: Disk, path: str) -> Offsets:
    return read_offsets(disk, path) if disk.exists(path) else {}


def _move_service_files(
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
