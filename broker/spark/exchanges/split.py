"""Splits a map task's Arrow batches into blocks of one bucket each. Pure; no Python object for each row.

Batches are collected until they are enough for blocks of a good size, sorted by bucket with one stable sort and one ``take``, and
cut. A block is one Arrow IPC record batch message without a schema, because both ends know the schema. A compressed block begins
with its uncompressed size: an int64, little-endian.
"""

import struct
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# The size of a block. Spark reads blocks of a megabyte fastest: smaller ones cost calls, larger ones exceed the caches.
BLOCK_BYTES = 1024 * 1024
# Blocks have at least this size, as long as that fits into _COLLECTED_MAX for all buckets together.
_COLLECTED_PER_BUCKET = 512 * 1024
_COLLECTED_MIN = 4 * 1024 * 1024
_COLLECTED_MAX = 32 * 1024 * 1024

# A larger block was not made by a Splitter.
_BLOCK_MAX = 2**31 - 1
_SIZE = struct.Struct("<q")

# The C library's, which keeps what is freed (``worker.reuse_memory``). Arrow's own gives it back to the kernel.
POOL = pa.system_memory_pool()


class Codec:
    """Encodes a block to bytes and decodes it. ``compression``: lz4, zstd or None."""

    def __init__(self, compression: str | None) -> None:
        self._codec = None if compression is None else pa.Codec(compression)

    def encode(self, batch: pa.RecordBatch) -> pa.Buffer:
        message = batch.serialize(POOL)
        if self._codec is None:
            return message
        return pa.py_buffer(_SIZE.pack(message.size) + self._codec.compress(message, asbytes=True))

    def decode(self, block: bytes | bytearray | memoryview, schema: pa.Schema) -> pa.RecordBatch:
        """The columns of an uncompressed block point into ``block``. Raises ValueError for bytes that are not a block."""
        message = pa.py_buffer(block)
        if self._codec is not None:
            size = _SIZE.unpack_from(block)[0] if len(block) >= _SIZE.size else -1
            if not 0 <= size <= _BLOCK_MAX:
                raise ValueError(f"a compressed block of {size} bytes")
            message = self._codec.decompress(message.slice(_SIZE.size), size)
        # Otherwise offsets could point beyond the block. It takes a few microseconds for a megabyte.
        pa.ipc.read_record_batch(message, _with_bytes_for_texts(schema)).validate(full=True)
        return pa.ipc.read_record_batch(message, schema)


@lru_cache
def _with_bytes_for_texts(schema: pa.Schema) -> pa.Schema:
    """A schema with the same layout, whose validation lets texts pass that are not UTF-8, which Spark's may be."""
    return pa.schema([_as_bytes(field) for field in schema])


def _as_bytes(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_string(kind):
        kind = pa.binary()
    elif pa.types.is_large_string(kind):
        kind = pa.large_binary()
    elif pa.types.is_list(kind):
        kind = pa.list_(_as_bytes(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(_as_bytes(kind.key_field), _as_bytes(kind.item_field))
    elif pa.types.is_struct(kind):
        kind = pa.struct([_as_bytes(kind.field(number)) for number in range(kind.num_fields)])
    return field.with_type(kind)


class Splitter:
    """``add`` batches whose last column is the bucket, an int32 below ``buckets``, and call ``finish`` at the end.

    Both return (bucket, block) pairs. ``counts`` has the number of rows of each bucket so far.
    """

    def __init__(self, buckets: int, compression: str | None = None, collect_bytes: int | None = None) -> None:
        self.counts = np.zeros(buckets, np.int64)
        self._buckets = buckets
        # The narrowest type sorts fastest: from 16 bits down it is a radix sort.
        self._sorted_as = np.uint8 if buckets <= 1 << 8 else np.uint16 if buckets <= 1 << 16 else np.uint32
        self._codec = Codec(compression)
        self._enough = collect_bytes or min(_COLLECTED_MAX, max(_COLLECTED_MIN, buckets * _COLLECTED_PER_BUCKET))
        self._collected: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.Buffer]]:
        if not batch.num_rows:
            return
        self._collected.append(batch)
        self._bytes += batch.get_total_buffer_size()
        if self._bytes >= self._enough:
            yield from self.finish()

    def finish(self) -> Iterator[tuple[int, pa.Buffer]]:
        """The blocks of the collected batches."""
        if not self._collected:
            return
        collected, self._collected = self._collected, []
        size, self._bytes = self._bytes, 0
        batch = collected[0] if len(collected) == 1 else pa.concat_batches(collected, POOL)
        last = batch.num_columns - 1
        buckets = batch.column(last).to_numpy().astype(self._sorted_as)
        counts = np.bincount(buckets, minlength=self._buckets)
        self.counts += counts
        batch = batch.select(list(range(last)))
        if self._buckets > 1:
            order = pa.array(np.argsort(buckets, kind="stable"))
            batch = pc.take(batch, order, boundscheck=False, memory_pool=POOL)
        rows = max(1, batch.num_rows * BLOCK_BYTES // max(size, 1))
        ends = np.cumsum(counts)
        for bucket in np.flatnonzero(counts).tolist():
            start, end = int(ends[bucket] - counts[bucket]), int(ends[bucket])
            # Pieces of equal size, instead of full ones and a small rest.
            pieces = -(-(end - start) // rows)
            for piece in range(pieces):
                first = start + (end - start) * piece // pieces
                beyond = start + (end - start) * (piece + 1) // pieces
                yield bucket, self._codec.encode(batch.slice(first, beyond - first))
