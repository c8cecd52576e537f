"""Which directory each partition is in, for a number of nodes: brought about before the nodes start, when no broker is running.

One broker alone has all partitions in the data directory itself; of several nodes, each has its own in ``nodes/N``. A directory
of a partition is renamed, and its lines in the checkpoint files go with it. The lines are written first, so that an interruption
leaves them in both places: lines about partitions that are elsewhere do not count.

Tests: tests/server/test_node_directories.py.
"""

from broker.cluster.nodes import NODES, directory_of, owner_of
from broker.errors import ConfigError
from broker.runtime.disk import Disk
from broker.server.node_service_files import move_service_files
from broker.storage import partition_dir
from broker.storage.backup.layout import STAGING
from broker.storage.backup.staging import remove_tree
from broker.storage.checkpoints import CorruptCheckpoint, Offsets, read_offsets, write_offsets
from broker.storage.data_directory import CHECKPOINTS
from broker.storage.recovery.startup import CLEAN, mark_clean_stop


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
    move_service_files(disk, old, new, (data_dir, directory_of(data_dir, 0)), partitions)
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
