"""The spiller: a thread that moves buffers from memory to files, one sequential file a partition, and finishes partitions.

Owns the files. Payloads are written as they are, in the order in which they came; a spilled one is a region of the file and
leaves by sendfile. A finished BLOCKING partition has an index beside its data, written last and made durable, so that it
survives a restart; files without an index are what a broker that died has left, and are removed at the start.

Index file (big endian): magic "RBSP", u8 version, u8 type, 60 bytes id, i64 ttl ms, i32 subpartitions, u16 length and the
owner in UTF-8, i64 entries; per entry i32 subpartition, u8 data type, u8 compressed, i64 offset, i32 size; u32 CRC-32C of all
before.
"""

import struct
from collections.abc import Callable, Iterator

from broker.log import get_logger
from broker.runtime.disk import Disk, File, FileRegion
from broker.runtime.threads import Event, Lock
from broker.shuffle.budget import Budget
from broker.shuffle.result_partition import FINISHED, OPEN, ResultPartition
from broker.shuffle.stored import StoredBuffer
from protocol.checksum import crc32c
from protocol.shuffle.data_type import DATA_TYPES
from protocol.shuffle.ids import ResultPartitionID
from protocol.shuffle.writer_frames import PartitionType

log = get_logger("shuffle")

_MAGIC = b"RBSP"
_HEAD = struct.Struct(">4sBB60sqiH")
_COUNT = struct.Struct(">q")
_ENTRY = struct.Struct(">iBBqi")
_CRC = struct.Struct(">I")
_VERSION = 1
# One write: long enough to be cheap, short enough to let go of memory soon.
_PIECE_BYTES = 4 * 1024 * 1024

Done = Callable[[OSError | None], None]


class Spiller:
    """The body of the spiller thread."""

    def __init__(self, disk: Disk, directory: str, budget: Budget) -> None:
        self._disk = disk
        self._directory = directory
        self._budget = budget
        self._lock = Lock()
        self._partitions: dict[bytes, ResultPartition] = {}
        self._finishing: list[tuple[ResultPartition, Done]] = []
        self._removed: list[ResultPartitionID] = []
        self._wanted = Event()
        self._room = False
        # Writers that were held back may go on; called on the spiller's thread.
        self.on_room: Callable[[], None] = lambda: None
        budget.on_room = self._room_came
        self.broken: OSError | None = None  # the disk does not take anything; tried again at the next finish

    # -- from other threads -------------------------------------------------------------------------------------------

    def add(self, partition: ResultPartition) -> None:
        with self._lock:
            self._partitions[partition.id] = partition

    def _room_came(self) -> None:
        self._room = True
        self._wanted.set()

    def press(self) -> None:
        """Memory has become scarce."""
        self._wanted.set()

    def finish(self, partition: ResultPartition, done: Done) -> None:
        """Write what is left of it and its index, durably."""
        with self._lock:
            self._finishing.append((partition, done))
        self._wanted.set()

    def remove(self, partition: ResultPartition) -> None:
        """The partition was released: its files go."""
        with self._lock:
            self._partitions.pop(partition.id, None)
            self._removed.append(partition.id)
        self._wanted.set()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def step(self, timeout: float | None) -> bool:
        if timeout != 0:
            self._wanted.wait(timeout)
        self._wanted.clear()
        worked = False
        with self._lock:
            finishing, self._finishing = self._finishing, []
            removed, self._removed = self._removed, []
        for partition, done in finishing:
            worked = True
            try:
                self._store(partition)
            except OSError as error:
                done(error)
            else:
                done(None)
        for partition_id in removed:
            worked = True
            self._remove_files(partition_id)
        if self._budget.memory_scarce and not self._budget.disk_full:
            worked |= self._make_room()
        if self._room:
            self._room = False
            self.on_room()
        return worked

    def wakeup(self) -> None:
        self._wanted.set()

    def _make_room(self) -> bool:
        """Spill the partitions with the most memory until half of it is free."""
        spilled = False
        while self._budget.memory_scarce and not self._budget.disk_full:
            with self._lock:
                candidates = list(self._partitions.values())
            largest = max(candidates, key=lambda partition: partition.memory, default=None)
            if largest is None or largest.memory == 0:
                break
            try:
                if not self._spill(largest):
                    break
            except OSError as error:
                if self.broken is None:
                    log.error("spill_failed", error=str(error))
                self.broken = error
                break
            self.broken = None
            spilled = True
        return spilled

    def _spill(self, partition: ResultPartition) -> int:
        """Move one piece of a partition's memory to its file; returns bytes. 0: there is nothing to move."""
        with partition.lock:
            if partition.state not in (OPEN, FINISHED):
                return 0
            batch: list[tuple[StoredBuffer, bytes]] = []
            size = taken = 0
            for buffer in partition.unspilled:
                taken += 1
                if type(buffer.payload) is bytes and buffer.payload:
                    batch.append((buffer, buffer.payload))
                    size += buffer.size
                    if size >= _PIECE_BYTES:
                        break
            del partition.unspilled[:taken]
            file, offset = partition.file, partition.file_end
        if not batch:
            return 0
        try:
            if file is None:
                file = self._open(partition)
            file.pwrite([payload for _, payload in batch], offset)
        except OSError:
            with partition.lock:
                partition.unspilled[:0] = [buffer for buffer, _ in batch if buffer.in_memory]
            raise
        moved = 0
        with partition.lock:
            if partition.state not in (OPEN, FINISHED):
                return size
            partition.file = file
            partition.file_end = offset + size
            for buffer, payload in batch:
                if buffer.payload is payload:  # else it was sent meanwhile
                    buffer.payload = FileRegion(file, offset, len(payload))
                    moved += len(payload)
                    partition.in_memory -= 1
                    partition.spilled_unsent += 1
                offset += len(payload)
            partition.memory -= moved
            partition.disk += moved
        self._budget.spilled(moved)
        return size

    def _open(self, partition: ResultPartition) -> File:
        self._disk.makedirs(self._directory)
        path = self._path(partition.id, "data")
        file = self._disk.open(path, create=True)
        if partition.kind is PartitionType.PIPELINED:
            # It will not be read by another broker, nor grow for long: without a name it goes when it is let go of.
            self._disk.remove(path)
        else:
            file.truncate(0)
        return file

    def _store(self, partition: ResultPartition) -> None:
        while self._spill(partition):
            pass
        with partition.lock:
            if partition.state is not OPEN:
                return
            file = partition.file
            entries = [
                (index, buffer)
                for index, part in enumerate(partition.subpartitions)
                for buffer in part.buffers
                if buffer is not None
            ]
        if file is None:  # not one byte in it: cannot be, each subpartition has its end
            raise OSError("a partition without data")
        file.sync()
        owner = partition.owner.encode()
        index_bytes = bytearray(
            _HEAD.pack(
                _MAGIC,
                _VERSION,
                partition.kind,
                partition.id,
                partition.ttl_ms,
                len(partition.subpartitions),
                len(owner),
            )
        )
        index_bytes += owner
        index_bytes += _COUNT.pack(len(entries))
        for subpartition, buffer in entries:
            region = buffer.payload
            offset, size = (region.offset, region.size) if type(region) is FileRegion else (0, 0)
            index_bytes += _ENTRY.pack(subpartition, buffer.data_type, buffer.compressed, offset, size)
        index_bytes += _CRC.pack(crc32c(index_bytes))
        path = self._path(partition.id, "index")
        index = self._disk.open(f"{path}.tmp", create=True)
        try:
            index.truncate(0)
            index.pwrite([index_bytes], 0)
            index.sync()
        finally:
            index.close()
        self._disk.rename(f"{path}.tmp", path)
        self._disk.sync_dir(self._directory)

    # -- the start ----------------------------------------------------------------------------------------------------

    def load(self, budget: Budget) -> Iterator[tuple[ResultPartition, int]]:
        """The finished partitions on disk, each with its time to live in ms. Everything else there is removed."""
        if not self._disk.is_dir(self._directory):
            return
        names = self._disk.listdir(self._directory)
        kept = set()
        for name in names:
            if not name.endswith(".index"):
                continue
            stem = name.removesuffix(".index")
            try:
                partition = self._read(stem, budget)
            except (OSError, ValueError, struct.error) as error:
                log.warning("partition_unreadable", file=name, error=str(error))
                continue
            kept |= {f"{stem}.index", f"{stem}.data"}
            self._partitions[partition.id] = partition
            yield partition, partition.ttl_ms
        for name in names:
            if name not in kept:
                self._disk.remove(f"{self._directory}/{name}")

    def _read(self, stem: str, budget: Budget) -> ResultPartition:
        index = self._disk.open(f"{self._directory}/{stem}.index", read_only=True)
        try:
            data = index.pread(index.size(), 0)
        finally:
            index.close()
        if len(data) < _HEAD.size + _CRC.size or _CRC.unpack(data[-4:])[0] != crc32c(data[:-4]):
            raise ValueError("the checksum is wrong")
        magic, version, kind, raw_id, ttl_ms, subpartitions, owner_size = _HEAD.unpack_from(data)
        partition_id = ResultPartitionID(raw_id)
        if magic != _MAGIC or version != _VERSION or partition_id.hex() != stem:
            raise ValueError("not an index of this partition")
        pos = _HEAD.size + owner_size
        owner = data[_HEAD.size : pos].decode()
        (count,) = _COUNT.unpack_from(data, pos)
        pos += _COUNT.size
        file = self._disk.open(f"{self._directory}/{stem}.data", read_only=True)
        size_on_disk = file.size()
        partition = ResultPartition(partition_id, PartitionType(kind), subpartitions, budget, owner)
        partition.ttl_ms = ttl_ms
        for _ in range(count):
            subpartition, data_type, compressed, offset, size = _ENTRY.unpack_from(data, pos)
            pos += _ENTRY.size
            if offset + size > size_on_disk:
                raise ValueError("the data is shorter than its index says")
            part = partition.subpartitions[subpartition]
            payload: bytes | FileRegion = FileRegion(file, offset, size) if size else b""
            buffer = StoredBuffer(DATA_TYPES[data_type], bool(compressed), payload, part.data_total)
            part.buffers.append(buffer)
            part.data_total += 1 if buffer.is_data else 0
            partition.disk += size
        for part in partition.subpartitions:
            part.ended = True
        partition.file = file
        partition.state = FINISHED
        budget.loaded(owner, partition.disk)
        return partition

    def _path(self, partition_id: ResultPartitionID, kind: str) -> str:
        return f"{self._directory}/{partition_id.hex()}.{kind}"

    def _remove_files(self, partition_id: ResultPartitionID) -> None:
        # The index first: without it the data means nothing.
        for kind in ("index", "data"):
            try:
                self._disk.remove(self._path(partition_id, kind))
            except FileNotFoundError:
                pass
            except OSError as error:
                log.warning("file_not_removed", file=self._path(partition_id, kind), error=str(error))
