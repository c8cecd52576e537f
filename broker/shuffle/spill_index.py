"""The index file of a finished BLOCKING partition: where in the data file each buffer lies. Bytes only, no files.

Big endian: magic "RBSP", u8 version, 60 bytes id, i64 ttl ms (-1: the broker's), i64 ms since the epoch when it was finished,
i32 subpartitions, u16 length and the owner in UTF-8, i64 entries, the entries, u32 CRC-32C of all before. An entry, in the order
of the sequence numbers of each subpartition: i32 subpartition, u8 data type, u8 compressed, i64 offset, i32 size.
"""

import struct
from typing import Self

import attrs

from broker.shuffle.budget import Budget
from broker.shuffle.result_partition import FINISHED, ResultPartition
from broker.shuffle.stored import SpillFile
from broker.shuffle.subpartition import COMPRESSED
from protocol.checksum import crc32c
from protocol.shuffle.data_type import DATA_TYPES
from protocol.shuffle.ids import ResultPartitionID
from protocol.shuffle.writer_frames import PartitionType

_MAGIC = b"RBSP"
_VERSION = 1
_HEAD = struct.Struct(">4sB60sqqiH")
_COUNT = struct.Struct(">q")
_ENTRY = struct.Struct(">iBBqi")
_CRC = struct.Struct(">I")

Entry = tuple[int, int, bool, int, int]


@attrs.frozen
class SpillIndex:
    """``entries``: subpartition, data type, compressed, offset, size."""

    id: ResultPartitionID
    ttl_ms: int
    finished_ms: int
    subpartitions: int
    owner: str
    entries: list[Entry]

    @classmethod
    def of(cls, partition: ResultPartition, finished_ms: int) -> Self:
        """With the partition's lock held, when all of it is spilled."""
        entries: list[Entry] = []
        for index, part in enumerate(partition.subpartitions):
            assert not part.first, "a blocking partition keeps all its buffers"
            assert part.memory_from == part.next_sequence, "a buffer that was not spilled"
            for kind, offset, size in zip(part.kinds, part.offsets, part.sizes, strict=True):
                entries.append((index, kind & ~COMPRESSED, bool(kind & COMPRESSED), offset, size))
        count = len(partition.subpartitions)
        return cls(partition.id, partition.ttl_ms, finished_ms, count, partition.owner, entries)

    def encode(self) -> bytes:
        owner = self.owner.encode()
        head = _HEAD.pack(_MAGIC, _VERSION, self.id, self.ttl_ms, self.finished_ms, self.subpartitions, len(owner))
        pack = _ENTRY.pack
        body = b"".join([head, owner, _COUNT.pack(len(self.entries)), *(pack(*entry) for entry in self.entries)])
        return body + _CRC.pack(crc32c(body))

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """ValueError if it is not what ``encode`` made."""
        if len(data) < _HEAD.size + _COUNT.size + _CRC.size or _CRC.unpack(data[-4:])[0] != crc32c(data[:-4]):
            raise ValueError("the index is damaged")
        magic, version, raw_id, ttl_ms, finished_ms, subpartitions, owner_size = _HEAD.unpack_from(data)
        if magic != _MAGIC or version != _VERSION:
            raise ValueError(f"an index of another kind: {magic!r} {version}")
        pos = _HEAD.size + owner_size
        try:
            owner = data[_HEAD.size : pos].decode()
            (count,) = _COUNT.unpack_from(data, pos)
            entries = list(_ENTRY.iter_unpack(data[pos + _COUNT.size : -_CRC.size]))
        except struct.error as error:
            raise ValueError(f"the index is damaged: {error}") from None
        if count != len(entries):
            raise ValueError(f"an index of {count} entries has {len(entries)}")
        return cls(ResultPartitionID(raw_id), ttl_ms, finished_ms, subpartitions, owner, entries)

    def partition(self, file: SpillFile, size: int, budget: Budget) -> ResultPartition:
        """The partition whose data is in ``file``, of ``size`` bytes. ValueError if it cannot be that."""
        partition = ResultPartition(self.id, PartitionType.BLOCKING, self.subpartitions, budget, self.owner)
        partition.ttl_ms = self.ttl_ms
        for subpartition, data_type, compressed, offset, length in self.entries:
            if offset + length > size:
                raise ValueError("the data is shorter than its index says")
            part = partition.subpartitions[subpartition]
            part.load(DATA_TYPES[data_type], bool(compressed), offset, length)
            partition.disk += length
            partition.in_file += 1
        for part in partition.subpartitions:
            part.ended = True
        partition.file = file
        partition.file_end = size
        partition.state = FINISHED
        return partition
