"""The directory of spilled partitions: its files, their names, their durability, and the index of a finished partition.

Owned by the spiller, on its thread. A finished BLOCKING partition has an index beside its data (``SpillIndex``), written last and
made durable, so that the partition survives a restart. Files without an index are left by a broker that died, and are removed at
the next start.

Files of released partitions are removed only when other files grow (``ReleasedFiles``). A new file needs a page of the kernel's
memory for each 4 KiB. Free memory that has not been used for long is expensive: on a virtual machine, whose host has to find it
first, 2 to 4 ms for each MB, ten times the cost of the write. Removing a file gives back pages that can be used at once. So a
released file is removed just before as much is written. Files are not overwritten instead: regions that ``sendfile`` has sent are
in the receiver's queue as the file's own pages until the receiver takes them. Removing the file leaves those pages unchanged;
overwriting or truncating it does not.

``SpillIndex`` encodes the index file: the place of each buffer in the data file. Bytes only; it opens no files. Big endian: magic
"RBSP", u8 version, 60 bytes id, i64 ttl ms (-1: the broker's), i64 time of finishing (ms since the epoch), i32 subpartitions, u16
length and the owner in UTF-8, i64 number of entries, the entries, u32 CRC-32C of everything before. The entries of a subpartition
are in the order of their sequence numbers. An entry: i32 subpartition, u8 data type, u8 compressed, i64 offset, i32 size.

Tests: tests/shuffle/spill/test_spiller.py.
"""

import re
import struct
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Self

import attrs
from attrs import frozen

from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.runtime.disk import Disk, File
from broker.runtime.open_files import CachedFile, OpenFiles
from broker.shuffle.partition.budget import PARTITION_BYTES, PLACE_BYTES, Budget
from broker.shuffle.partition.holdings import NamelessFile, SpillFile
from broker.shuffle.partition.result_partition import ResultPartition
from broker.shuffle.partition.subpartition import COMPRESSED
from broker.shuffle.spill.spill import Spill
from protocol.frames import crc32c
from protocol.shuffle.ids import ResultPartitionID
from protocol.shuffle.writer_frames import PartitionType

_MAGIC = b"RBSP"
_VERSION = 1
_HEAD = struct.Struct(">4sB60sqqiH")
_COUNT = struct.Struct(">q")
_ENTRY = struct.Struct(">iBBqi")
_CRC = struct.Struct(">I")

# Entries that are encoded together.
_PIECE = 4096

Entry = tuple[int, int, bool, int, int]


class _Kept:
    """The entries of a partition that is complete and entirely in its file, generated one by one."""

    def __init__(self, parts: list[tuple[bytearray, "array[int]", "array[int]"]]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(len(kinds) for kinds, _, _ in self._parts)

    def __iter__(self) -> Iterator[Entry]:
        for index, (kinds, offsets, sizes) in enumerate(self._parts):
            for kind, offset, size in zip(kinds, offsets, sizes, strict=True):
                yield index, kind & ~COMPRESSED, bool(kind & COMPRESSED), offset, size


class _Packed:
    """The entries of an encoded index, read one by one."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data) // _ENTRY.size

    def __iter__(self) -> Iterator[Entry]:
        return _ENTRY.iter_unpack(self._data)


@attrs.frozen
class SpillIndex:
    """``entries``: subpartition, data type, compressed, offset, size."""

    id: ResultPartitionID
    ttl_ms: int
    finished_ms: int
    subpartitions: int
    owner: str
    entries: "list[Entry] | _Kept | _Packed"

    @classmethod
    def of(cls, partition: ResultPartition, finished_ms: int) -> Self:
        """The index of a completely spilled partition. With the partition's lock held."""
        parts = []
        for part in partition.subpartitions:
            assert part is not None, "a subpartition without an end"
            assert not part.first, "a blocking partition keeps all its buffers"
            assert part.memory_from == part.next_sequence, "a buffer that was not spilled"
            parts.append((part.kinds, part.offsets, part.sizes))
        return cls(partition.id, partition.ttl_ms, finished_ms, len(parts), partition.owner, _Kept(parts))

    def encode(self) -> bytes:
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """The encoded index, piece by piece, because there may be millions of entries."""
        owner = self.owner.encode()
        head = _HEAD.pack(_MAGIC, _VERSION, self.id, self.ttl_ms, self.finished_ms, self.subpartitions, len(owner))
        piece, checksum = b"".join((head, owner, _COUNT.pack(len(self.entries)))), 0
        pack, entries = _ENTRY.pack, iter(self.entries)
        while packed := [pack(*entry) for entry in islice(entries, _PIECE)]:
            piece += b"".join(packed)
            if len(packed) == _PIECE:
                checksum = crc32c(piece, checksum)
                yield piece
                piece = b""
        yield piece + _CRC.pack(crc32c(piece, checksum))

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The index in ``data``. Raises ValueError for invalid bytes."""
        if len(data) < _HEAD.size + _COUNT.size + _CRC.size or _CRC.unpack(data[-4:])[0] != crc32c(data[:-4]):
            raise ValueError("the index is damaged")
        magic, version, raw_id, ttl_ms, finished_ms, subpartitions, owner_size = _HEAD.unpack_from(data)
        if magic != _MAGIC or version != _VERSION:
            raise ValueError(f"an index of another kind: {magic!r} {version}")
        pos = _HEAD.size + owner_size
        try:
            owner = data[_HEAD.size : pos].decode()
            (count,) = _COUNT.unpack_from(data, pos)
            packed = memoryview(data)[pos + _COUNT.size : -_CRC.size]
        except struct.error as error:
            raise ValueError(f"the index is damaged: {error}") from None
        if count * _ENTRY.size != len(packed):
            raise ValueError(f"an index of {count} entries has {len(packed)} bytes of them")
        return cls(ResultPartitionID(raw_id), ttl_ms, finished_ms, subpartitions, owner, _Packed(packed))

    def partition(self, file: SpillFile, size: int, budget: Budget) -> ResultPartition:
        """The partition with its data in ``file``, of ``size`` bytes. Raises ValueError if the file is too short."""
        if any(offset + length > size for _, _, _, offset, length in self.entries):
            raise ValueError("the data is shorter than its index says")
        partition = ResultPartition(
            self.id, PartitionType.BLOCKING, self.subpartitions, budget, self.owner, ttl_ms=self.ttl_ms
        )
        return partition.load(self.entries, file, size)


# How long (s) a file waits for other files to grow.
WAIT_S = 60.0


@frozen
class _Released:
    path: str
    size: int
    since: float


class ReleasedFiles:
    """``bytes_max``: of all files together. ``remove``: removes a file without raising."""

    def __init__(self, bytes_max: int, clock: Clock, remove: Callable[[str], None]) -> None:
        self._bytes_max = bytes_max
        self._clock = clock
        self._remove = remove
        self._files: deque[_Released] = deque()
        self._ahead = 0  # bytes removed in advance of writes
        self.bytes = 0

    @property
    def paths(self) -> list[str]:
        return [file.path for file in self._files.copy()]

    def add(self, path: str, size: int) -> None:
        """Remove a file later, or now if there is no room for it."""
        if 0 < size <= self._bytes_max - self.bytes:
            self._files.append(_Released(path, size, self._clock.monotonic()))
            self.bytes += size
        else:
            self._remove(path)

    def make_way(self, size: int) -> None:
        """``size`` bytes are about to be written: remove as much. The latest files first, because they are in memory."""
        while self._ahead < size and self._files:
            self._ahead += self._drop(self._files.pop())
        self._ahead = max(0, self._ahead - size)

    def trim(self, bytes_max: float) -> bool:
        """Remove files that have waited ``WAIT_S`` or exceed ``bytes_max``, the oldest first. False if there were none."""
        trimmed = False
        while self._files and (self.bytes > bytes_max or self.wait_s() == 0):
            self._drop(self._files.popleft())
            trimmed = True
        return trimmed

    def wait_s(self) -> float | None:
        """Seconds until a file has waited ``WAIT_S``; None without files."""
        return max(0.0, self._files[0].since + WAIT_S - self._clock.monotonic()) if self._files else None

    def _drop(self, file: _Released) -> int:
        self.bytes -= file.size
        self._remove(file.path)
        return file.size


log = get_logger("shuffle")

_DATA = ".data"
_INDEX = ".index"
# The files made here: a partition's id and a number.
_OWN = re.compile(r"[0-9a-f]+-[0-9]+\.(?:data|index|index\.tmp)")


@attrs.define(eq=False)
class Storing:
    """A partition being made durable, completely in ``data``."""

    data: CachedFile
    index: SpillIndex
    error: OSError | None = None
    index_file: File | None = None

    @property
    def index_path(self) -> str:
        return self.data.path.removesuffix(_DATA) + _INDEX


class SpillDirectory:
    def __init__(self, disk: Disk, path: str, clock: Clock, released_bytes: int, open_files: int) -> None:
        """``released_bytes``: the limit of released partitions' files that wait for others to grow."""
        self._disk = disk
        self._path = path
        self._clock = clock
        self._open_files = OpenFiles(disk, open_files)
        self._next_number = 0
        self._durable = False  # the directory's name in the data directory
        self.released = ReleasedFiles(released_bytes, clock, self._remove_file)

    def create(self, spill: Spill) -> NamelessFile | CachedFile:
        """A new, empty file for a partition. Raises OSError."""
        self._disk.makedirs(self._path)
        named = spill.named_file
        if named is None:
            # Names are not reused: an earlier partition with the same id may still be sent or removed.
            self._next_number += 1
            path = f"{self._path}/{spill.partition.id.hex()}-{self._next_number}{_DATA}"
            if spill.partition.pipelined:
                # No other broker reads it, and it does not live long: without a name it is deleted when it is closed.
                file = self._disk.open(path, create=True)
                self._disk.remove(path)
                return NamelessFile(file)
            named = spill.named_file = self._open_files.cached(path)
        named.create()
        return named

    # -- making durable -----------------------------------------------------------------------------------------------

    def store(self, storing: list[Storing]) -> None:
        """Make partitions durable together, step by step; afterwards each has an ``error``, or is durable with its names.

        The first sync of a step makes most of the others' data durable.
        """
        for step in (self._sync_data, self._write_index, self._sync_index, self._name_index):
            for each in storing:
                if each.error is None:
                    try:
                        step(each)
                    except OSError as error:
                        each.error = error
        stored = [each for each in storing if each.error is None]
        if stored:
            try:
                self._sync_names()
            except OSError as error:
                for each in stored:
                    each.error = error

    def _sync_data(self, storing: Storing) -> None:
        storing.data.get().sync()

    def _write_index(self, storing: Storing) -> None:
        storing.index_file = self._disk.open(f"{storing.index_path}.tmp", create=True)
        offset = 0
        for piece in storing.index.pieces():
            offset += storing.index_file.pwrite([piece], offset)

    def _sync_index(self, storing: Storing) -> None:
        assert storing.index_file is not None
        storing.index_file.sync()
        storing.index_file.close()

    def _name_index(self, storing: Storing) -> None:
        self._disk.rename(f"{storing.index_path}.tmp", storing.index_path)

    def _sync_names(self) -> None:
        """Make the directory's entries and its own name durable."""
        self._disk.sync_dir(self._path)
        if not self._durable:
            self._disk.sync_dir(self._path.rpartition("/")[0] or "/")
            self._durable = True

    # -- when the broker starts -----------------------------------------------------------------------------------------

    def load(self, budget: Budget, ttl_s: float) -> Iterator[tuple[Spill, float]]:
        """The finished partitions on disk, each with its remaining time (s). All other files are removed.

        ``ttl_s``: of partitions whose writer did not set it.
        """
        if not self._disk.is_dir(self._path):
            return
        # The newest first. If a partition has two indexes, the older was released before the newer was written, and the broker
        # died before its files were removed. It must not come back, whatever the state of the newer index.
        names = sorted(self._disk.listdir(self._path), key=_number, reverse=True)
        kept = set()
        known = set()
        for name in names:
            stem, dot, kind = name.partition(".")
            number = stem.partition("-")[2]
            if number.isdecimal():
                self._next_number = max(self._next_number, int(number))
            if dot + kind != _INDEX or not _OWN.fullmatch(name):
                continue
            key = stem.partition("-")[0]
            if key in known:
                log.info("released_partition_removed", file=name)
                continue
            known.add(key)
            try:
                index = self.read_index(stem)
                named = self._open_files.cached(f"{self._path}/{stem}{_DATA}")
                partition = index.partition(named, named.get().size(), budget)
            except (FileNotFoundError, ValueError) as error:
                log.warning("partition_load_failed", file=name, error=str(error))
                continue
            except OSError as error:  # perhaps temporary: the partition is not served now, but kept for the next start
                log.warning("partition_load_failed", file=name, error=str(error))
                kept |= {stem + _INDEX, stem + _DATA}
                continue
            partition.holdings.count_loaded(PARTITION_BYTES + PLACE_BYTES * len(partition.subpartitions))
            kept |= {stem + _INDEX, stem + _DATA}
            yield Spill.stored(partition, named), self._time_left_s(partition, index, ttl_s)
        for name in names:
            if name not in kept and _OWN.fullmatch(name):
                self._remove_file(f"{self._path}/{name}")
        # A killed broker may have renamed an index without making that durable; its writer is told only from now on.
        self._sync_names()

    def _time_left_s(self, partition: ResultPartition, index: SpillIndex, ttl_s: float) -> float:
        ttl = ttl_s if partition.ttl_ms < 0 else partition.ttl_ms / 1000
        age_s = (self._clock.time_ms() - index.finished_ms) / 1000
        return min(ttl, max(0.0, ttl - age_s))

    def read_index(self, stem: str) -> SpillIndex:
        """Raises ValueError if it is damaged or of another partition; OSError."""
        file: File = self._disk.open(f"{self._path}/{stem}{_INDEX}", read_only=True)
        try:
            index = SpillIndex.parse(file.pread(file.size(), 0))
        finally:
            file.close()
        if index.id.hex() != stem.partition("-")[0]:
            raise ValueError("not the index of this partition")
        return index

    # -- removing -----------------------------------------------------------------------------------------------------

    def remove(self, spill: Spill) -> None:
        """A partition was released: remove its files, the data perhaps later."""
        named = spill.named_file
        if named is not None:
            named.drop()  # it stays open only while regions of it are sent
            index = named.path.removesuffix(_DATA) + _INDEX
            # The index first: without it the data is unusable.
            for path in (index, f"{index}.tmp"):
                self._remove_file(path)
            self.released.add(named.path, spill.partition.holdings.file_end)

    def _remove_file(self, path: str) -> None:
        try:
            self._disk.remove(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("spill_file_removal_failed", file=path, error=str(error))

    def close(self) -> None:
        """When the spiller's thread has ended."""
        self.released.trim(0)
        self._open_files.close_all()


def _number(name: str) -> int:
    number = name.partition(".")[0].partition("-")[2]
    return int(number) if number.isdecimal() and number.isascii() else 0
