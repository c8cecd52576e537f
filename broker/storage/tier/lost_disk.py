"""Makes the data directory of a broker whose disk is lost again, from what is in its object store: a copy of the catalogue
(``catalogue_copies.py``) and the segments, which stay where they are.

What was not uploaded is lost: the open segment of each partition, and what was changed since the copy. So each log ends where its
last uploaded segment ends. Committed offsets and cursors are cut there, because the offsets beyond will be those of other
records. Producers are forgotten, and those that come get ids that no lost allocation has given to others, as after the restore of
a backup. Deleted records at the beginning of a segment come back.

On the main thread of a command.

Tests: tests/durable/test_restore.py.
"""

from collections.abc import Callable

import attrs

from broker.errors import ConfigError
from broker.metadata.catalogue import Catalogue, RemoteFile, TopicRow
from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime import copying
from broker.runtime.disk import Disk
from broker.runtime.objects import ObjectStore
from broker.storage import partition_dir
from broker.storage.backup.copying import PRODUCER_IDS, check_empty, filled, give_catalogue
from broker.storage.data_directory import CATALOGUE
from broker.storage.log.producer_state import Frozen
from broker.storage.segments.segment import LOG, SNAPSHOT, file_name
from broker.storage.tier import keys
from broker.storage.tier.catalogue_copies import copies

_PIECE_BYTES = 4 * 1024 * 1024


@attrs.frozen
class Rebuilt:
    """``missing``: paths of files that the copy names and whose objects are not in the store any more."""

    taken_ms: int
    partitions: int
    segments: int
    bytes: int
    missing: tuple[str, ...]


# A stored cursor without what it says about offsets from this one on. Its format is a service's.
CutCursor = Callable[[bytes, int], bytes]


def rebuild(disk: Disk, objects: ObjectStore, data_dir: str, now_ms: int, cut_cursor: CutCursor) -> Rebuilt:
    """Make ``data_dir``, which is missing or empty. Raises ConfigError, OSError, StorageError."""
    check_empty(disk, data_dir)
    found = copies(objects)
    if not found:
        raise ConfigError(
            f"Name a store with a backup, or that of a broker: there is no copy of a catalogue in {objects.name}."
        )
    taken_ms, key, size = found[-1]
    with filled(disk, data_dir):
        for suffix in ("", "-wal", "-shm"):  # of an attempt before
            if disk.exists(f"{data_dir}/{CATALOGUE}{suffix}"):
                disk.remove(f"{data_dir}/{CATALOGUE}{suffix}")
        pieces = (
            objects.get(key, position, min(_PIECE_BYTES, size - position)) for position in range(0, size, _PIECE_BYTES)
        )
        copying.write_file(f"{data_dir}/{CATALOGUE}", pieces)
        catalogue = SqliteCatalogue(f"{data_dir}/{CATALOGUE}")
        try:
            rebuilt = _Rebuilding(disk, objects, data_dir, catalogue, now_ms).run(taken_ms, cut_cursor)
        finally:
            catalogue.close()
        give_catalogue(disk, data_dir)
    return rebuilt


class _Rebuilding:
    def __init__(self, disk: Disk, objects: ObjectStore, data_dir: str, catalogue: Catalogue, now_ms: int) -> None:
        self._disk = disk
        self._objects = objects
        self._data_dir = data_dir
        self._catalogue = catalogue
        self._now_ms = now_ms

    def run(self, taken_ms: int, cut_cursor: CutCursor) -> Rebuilt:
        catalogue = self._catalogue
        there = {key for key, _ in self._objects.list(keys.PREFIX)}
        files = list(catalogue.load_remote_files())
        missing = tuple(sorted(file.path for file in files if file.object not in there))
        if missing:
            catalogue.alter_remote_files((), missing, self._now_ms)
        kept = [file for file in files if file.object in there]
        ends = _ends(kept)
        topics = catalogue.topics()
        for row in topics:
            for number in range(row.partitions):
                self._make_partition(row, number, ends.get((row.name, number), 0))
        self._disk.sync_dir(self._data_dir)
        beyond = [
            row._replace(offset=ends.get((row.topic, row.partition), 0))
            for row in catalogue.load_offsets()
            if row.offset > ends.get((row.topic, row.partition), 0)
        ]
        catalogue.restore_offsets(beyond)
        names = {row.topic_id: row.name for row in topics}
        catalogue.save_cursors(
            [
                row._replace(state=cut_cursor(row.state, ends.get((names[row.topic_id], row.partition), 0)))
                for row in catalogue.load_cursors()
                if row.topic_id in names
            ]
        )
        catalogue.allocate_producer_ids(PRODUCER_IDS)
        return Rebuilt(
            taken_ms,
            sum(row.partitions for row in topics),
            len({file.object for file in kept}),
            sum(file.size for file in kept),
            missing,
        )

    def _make_partition(self, row: TopicRow, number: int, end: int) -> None:
        """With an empty segment for what comes, and the producers of a log that has none: without them, the first start would
        read all segments to find them."""
        directory = f"{self._data_dir}/{partition_dir.directory_name(row.name, number)}"
        partition_dir.make(self._disk, directory, row.topic_id, row.partitions)
        if end:
            self._disk.remove(f"{directory}/{file_name(0, LOG)}")
            self._disk.open(f"{directory}/{file_name(end, LOG)}", create=True).close()
            copying.write_file(f"{directory}/{file_name(end, SNAPSHOT)}", [Frozen({}, {}).to_snapshot()])
            self._disk.sync_dir(directory)
        copying.give_to_owner_of(self._data_dir, directory)
        for name in self._disk.listdir(directory):
            copying.give_to_owner_of(self._data_dir, f"{directory}/{name}")


def _ends(files: list[RemoteFile]) -> dict[tuple[str, int], int]:
    """Where the last uploaded segment of each partition ends."""
    ends: dict[tuple[str, int], int] = {}
    for file in files:
        partition = partition_dir.parse_name(file.path.rpartition("/")[0])
        key = keys.parse(file.object)
        if partition is not None and key is not None:
            ends[partition] = max(ends.get(partition, 0), key.end)
    return ends
