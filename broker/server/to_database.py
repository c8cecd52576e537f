"""Moves a stopped broker from its data directory into PostgreSQL and an object store.

Closed segments become objects with rows in the catalogue (``closed_segments.py`` says which); all other files go through the
journal, as if the broker had just written them. Until everything is there, the catalogue has a document with which no broker
starts. An attempt that finds the document of an earlier one empties the schema and begins anew, except that segments which are in
the store already stay: their names are made of their content, and of the time when the first attempt began.

On the main thread of a command. Raises ConfigError, StorageError and OSError.

Tests: tests/durable/test_migration.py.
"""

import hashlib
import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing

from broker.config import BrokerConfig
from broker.errors import ConfigError
from broker.metadata.catalogue import RemoteFile, TopicRow
from broker.metadata.copying import UNFINISHED, copy_catalogue, is_empty, unfinished
from broker.metadata.postgres_clearing import clear
from broker.runtime import Runtime, copying
from broker.runtime.disk import Disk, File
from broker.runtime.objects import ObjectMissing
from broker.server.durable import DurableState
from broker.server.moving import Moved, Progress, Shipping, database_of, owned
from broker.server.node_directories import gather
from broker.storage import partition_dir
from broker.storage.checkpoints import (
    CLEANER_OFFSETS,
    RECOVERY_POINTS,
    CorruptCheckpoint,
    Offsets,
    read_leader_epochs,
    read_offsets,
)
from broker.storage.data_directory import CATALOGUE, CHECKPOINTS, PROPERTIES
from broker.storage.journal import store_mark
from broker.storage.recovery.startup import CLEAN
from broker.storage.segments.segment import CLEANED, DELETED, LOG, NEVER, file_name, offset_of
from broker.storage.stopped_directory import copy_of_catalogue, locked
from broker.storage.tier import keys
from broker.storage.tier.closed_segments import ClosedSegment, Partition, closed_segments, files_to_ship
from broker.storage.tier.keys import SegmentKey

_PIECE_BYTES = 4 * 1024 * 1024
# Active segments of at least so many bytes do not go through the journal, which is read as a whole at each start.
ROLL_FROM = 1024 * 1024
# Files that the next start would remove.
_PASSING = (DELETED, CLEANED, ".tmp")
_TOP = (PROPERTIES, CLEAN, *CHECKPOINTS)
# Directories of services, which are taken along as they are.
_OF_SERVICES = ("pulsar-compacted", "shuffle")
_NOT_TAKEN = {CATALOGUE, f"{CATALOGUE}-wal", f"{CATALOGUE}-shm", "lost+found"}


def into_database(config: BrokerConfig, data_dir: str, runtime: Runtime, progress: Progress) -> Moved:
    """Move the data directory to where ``catalogue`` and ``objects`` of the settings say."""
    disk = runtime.disk
    with locked(disk, data_dir), copy_of_catalogue(disk, data_dir) as source, owned(config, runtime) as durable:
        gather(disk, data_dir)
        remote = list(source.load_remote_files())
        _check_store(durable, source.meta("cluster_id"), remote)
        began_ms = _prepare(durable, runtime.clock.time_ms())
        copy_catalogue(source, durable.catalogue)
        mover = _Mover(disk, data_dir, durable, began_ms, progress, {file.path for file in remote})
        moved = mover.run({row.name: row for row in source.topics()})
        durable.catalogue.alter_documents([(UNFINISHED, "", None)])
        return moved


def _check_store(durable: DurableState, cluster_id: str | None, remote: Sequence[RemoteFile]) -> None:
    """The segments that are in a store already must be in this one, and it must not be another cluster's."""
    wanted = {file.object for file in remote}
    missing = wanted - {key for key, _ in durable.objects.list(keys.PREFIX)} if wanted else set()
    if missing:
        raise ConfigError(
            f"Name the object store of that data directory: {len(missing)} of its segments are not in {durable.objects.name}, "
            f"for example {min(missing)}."
        )
    if cluster_id is not None:  # otherwise no broker has ever started on that data directory
        store_mark.claim(durable.objects, cluster_id, lambda: None)


def _prepare(durable: DurableState, now_ms: int) -> int:
    """Have an empty catalogue with the document. Returns when the first attempt began (ms)."""
    catalogue = durable.catalogue
    body = unfinished(catalogue)
    if body is not None:
        durable.objects.delete(clear(database_of(durable)))
        return int(json.loads(body)["began_ms"])
    with closing(durable.engine.journal.read(0)) as rows:  # type: ignore[type-var]  # a generator
        has_rows = next(rows, None) is not None
    if has_rows or not is_empty(catalogue):
        address = database_of(durable).address
        raise ConfigError(
            f"Name another schema with --schema, or drop this one: {address.schema} in {address.place()} is not empty, and a "
            "migration overwrites nothing."
        )
    catalogue.alter_documents([(UNFINISHED, "", json.dumps({"began_ms": now_ms}).encode())])
    return now_ms


class _Mover:
    """Files of a data directory, into the journal and the store. ``remote``: paths of those that are in the store already."""

    def __init__(
        self, disk: Disk, data_dir: str, durable: DurableState, began_ms: int, progress: Progress, remote: set[str]
    ) -> None:
        self._disk = disk
        self._data_dir = data_dir
        self._durable = durable
        self._began_ms = began_ms
        self._progress = progress
        self._remote = remote
        self._moved = Moved()
        self._shipping = Shipping(disk, data_dir, durable.shipper)
        self._done = 0

    def run(self, topics: dict[str, TopicRow]) -> Moved:
        partitions, others = self._listed()
        total = sum(sum(self._sizes(name).values()) for name in partitions)
        self._progress.begin("verifying and copying", total + sum(self._size(path) for path in others))
        saved = {name: self._saved(name) for name in (RECOVERY_POINTS, CLEANER_OFFSETS)}
        for name in partitions:
            before, expected = self._done, sum(self._sizes(name).values())
            self._move_partition(name, topics, saved)
            self._advance(before + expected - self._done)  # of what did not have to be read, or read twice
            self._moved.partitions += 1
        for path in others:
            self._ship(path)
        self._shipping.flush()
        self._moved.files, self._moved.file_bytes = self._shipping.files, self._shipping.size
        return self._moved

    def _advance(self, size: int) -> None:
        self._done += size
        self._progress.advance(size)

    def _listed(self) -> tuple[list[str], list[str]]:
        """The names of partitions' directories, and the paths of all other files that are taken along."""
        disk, partitions, others = self._disk, [], []
        for name in disk.listdir(self._data_dir):
            path = f"{self._data_dir}/{name}"
            if name in _TOP:
                others.append(name)
            elif disk.is_link(path) or not disk.is_dir(path):
                self._leave(name)
            elif name in _OF_SERVICES:
                others += [f"{name}/{file}" for file in copying.files_below(path)]
            elif partition_dir.parse_name(name) and partition_dir.read_contents(disk, path).is_partition:
                partitions.append(name)
            elif not partition_dir.is_deleted(name):
                self._leave(name)
        return partitions, others

    def _leave(self, name: str) -> None:
        """What the broker makes for a while is not worth a word."""
        if name not in _NOT_TAKEN and not name.startswith(".") and not name.endswith(".tmp"):
            self._moved.left.append(name)

    def _saved(self, name: str) -> Offsets | None:
        """None if the checkpoint is missing or damaged."""
        path = f"{self._data_dir}/{name}"
        try:
            return read_offsets(self._disk, path) if self._disk.exists(path) else None
        except CorruptCheckpoint:
            return None

    def _size(self, path: str) -> int:
        return self._disk.file_size(f"{self._data_dir}/{path}")

    def _sizes(self, name: str) -> dict[str, int]:
        """Of the partition's own files that are not in the store already. Their logs count twice: they are read twice."""
        own = partition_dir.read_contents(self._disk, f"{self._data_dir}/{name}").own
        sizes = {file: self._size(f"{name}/{file}") for file in own if f"{name}/{file}" not in self._remote}
        return {file: 2 * size if file.endswith(LOG) else size for file, size in sizes.items()}

    def _move_partition(self, name: str, topics: dict[str, TopicRow], saved: dict[str, Offsets | None]) -> None:
        directory = f"{self._data_dir}/{name}"
        own = partition_dir.read_contents(self._disk, directory).own
        remote = {file for file in own if f"{name}/{file}" in self._remote}
        parsed = partition_dir.parse_name(name)
        assert parsed is not None
        row = topics.get(parsed[0])
        closed: list[ClosedSegment] = []
        if row is not None:
            bases = (offset_of(file, LOG) for file in remote)
            partition = Partition(
                directory=directory,
                names=own,
                recovery_point=(saved[RECOVERY_POINTS] or {}).get(parsed, 0),
                dense_from=_dense_from(saved, parsed),
                newest_epoch=self._newest_epoch(directory),
                elsewhere=frozenset(base for base in bases if base is not None),
                roll_from=ROLL_FROM,
            )
            closed = closed_segments(self._disk, partition, self._advance)
            rows = [file for each in closed for file in self._upload(name, row.topic_id, parsed[1], each)]
            self._durable.catalogue.alter_remote_files(rows, (), self._began_ms)
            newest = max(base for file in own if (base := offset_of(file, LOG)) is not None)
            if closed and closed[-1].base == newest:
                self._make_empty(f"{name}/{file_name(closed[-1].end, LOG)}")
        for file in files_to_ship(own - remote, closed, _PASSING):
            self._ship(f"{name}/{file}")

    def _make_empty(self, path: str) -> None:
        """With the next flush. A log goes on in its newest segment, and no segment in the store goes on."""
        with self._durable.shipper.lock:
            self._durable.shipper.table.created(path)

    def _newest_epoch(self, directory: str) -> int:
        try:
            epochs = read_leader_epochs(self._disk, directory)
        except CorruptCheckpoint:
            return 0
        return epochs[-1][0] if epochs else 0

    # Segments.

    def _upload(self, name: str, topic_id: uuid.UUID, partition: int, segment: ClosedSegment) -> list[RemoteFile]:
        files = [(file, self._size(f"{name}/{file}")) for file in segment.names]
        size = sum(size for _, size in files)
        content = hashlib.blake2b(digest_size=16)
        for piece in self._pieces(name, files):
            content.update(piece)
        key = str(
            SegmentKey(
                topic_id,
                partition,
                segment.base,
                segment.end,
                segment.largest_timestamp,
                segment.timestamp_offset,
                self._began_ms,
                uuid.UUID(bytes=content.digest()),
            )
        )
        objects = self._durable.objects
        try:
            there = objects.size(key) == size  # an earlier attempt has put it
        except ObjectMissing:
            there = False
        if not there:
            objects.put(key, self._pieces(name, files), size)
        self._advance(size)
        self._moved.segments += 1
        self._moved.segment_bytes += size
        rows, position = [], 0
        for file, length in files:
            rows.append(RemoteFile(f"{name}/{file}", key, position, length))
            position += length
        return rows

    def _pieces(self, name: str, files: Sequence[tuple[str, int]]) -> Iterator[bytes]:
        for file, size in files:
            opened = self._open(f"{name}/{file}")
            try:
                for position in range(0, size, _PIECE_BYTES):
                    yield opened.pread(min(_PIECE_BYTES, size - position), position)
            finally:
                opened.close()

    def _ship(self, path: str) -> None:
        """With the next flush."""
        self._advance(self._shipping.add(path))

    def _open(self, path: str) -> File:
        return self._disk.open(f"{self._data_dir}/{path}", read_only=True)


def _dense_from(saved: dict[str, Offsets | None], partition: tuple[str, int]) -> int:
    """As a start has it (``recovery/startup.py``), but more lenient without a checkpoint."""
    cleaned = saved[CLEANER_OFFSETS]
    if cleaned is not None and partition not in cleaned:
        return 0
    return (saved[RECOVERY_POINTS] or {}).get(partition, 0) or NEVER
