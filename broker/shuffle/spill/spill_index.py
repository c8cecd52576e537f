"""The index file of a finished BLOCKING partition: where in the data file each buffer lies. Bytes only; it opens no files.

Big endian: magic "RBSP", u8 version, 60 bytes id, i64 ttl ms (-1: the broker's), i64 ms since the epoch when it was finished,
i32 subpartitions, u16 length and the owner in UTF-8, i64 number of entries, the entries, u32 CRC-32C of everything before. The
entries of a subpartition are in the order of their sequence numbers. An entry: i32 subpartition, u8 data type, u8 compressed, i64
offset, i32 size.
"""

import struct
from array import array
from collections.abc import Iterator
from itertools import islice
from typing import Self

import attrs

from broker.shuffle.partition.budget import Budget
from broker.shuffle.partition.holdings import SpillFile
from broker.shuffle.partition.result_partition import ResultPartition
from broker.shuffle.partition.subpartition import COMPRESSED
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
    """The entries of a partition whose buffers are all in its file and to which nothing is added; made one by one."""

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
        """Of a partition that is spilled completely. With the partition's lock held."""
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
        """Raises ValueError for bytes that ``encode`` has not made."""
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
        """The partition whose data is in ``file``, of ``size`` bytes. Raises ValueError if the file is too short for it."""
        if any(offset + length > size for _, _, _, offset, length in self.entries):
            raise ValueError("the data is shorter than its index says")
        partition = ResultPartition(
            self.id, PartitionType.BLOCKING, self.subpartitions, budget, self.owner, ttl_ms=self.ttl_ms
        )
        return partition.load(self.entries, file, size)
