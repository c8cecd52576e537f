"""A splitter returns all rows, bucket by bucket and in order, for all types."""

import contextlib
import struct
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.spark.exchanges.plan import ExchangeError
from broker.spark.exchanges.tasks import BLOCK_BYTES, Codec, Splitter, decoded, merge_small

VALUES: list[tuple[pa.DataType, st.SearchStrategy[object]]] = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=5)),
    (pa.binary(), st.binary(max_size=5)),
    (pa.decimal128(20, 3), st.decimals(-100, 100, places=3)),
    (pa.list_(pa.int8()), st.lists(st.integers(-9, 9), max_size=3)),
    (pa.map_(pa.string(), pa.int32()), st.lists(st.tuples(st.text(max_size=2), st.integers(0, 9)), max_size=2)),
    (
        pa.struct([("a", pa.string()), ("b", pa.list_(pa.bool_()))]),
        st.fixed_dictionaries({"a": st.none() | st.text(max_size=2), "b": st.lists(st.booleans(), max_size=10)}),
    ),
]


@st.composite
def batches(draw: st.DrawFn, buckets: int) -> list[pa.RecordBatch]:
    kinds = draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=4))
    result = []
    for _ in range(draw(st.integers(0, 4))):
        rows = draw(st.integers(0, 30))
        columns = [
            pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind) for kind, values in kinds
        ]
        bucket = pa.array(draw(st.lists(st.integers(0, buckets - 1), min_size=rows, max_size=rows)), pa.int32())
        result.append(pa.record_batch([*columns, bucket], [str(number) for number in range(len(kinds) + 1)]))
    return result


def split(splitter: Splitter, given_: list[pa.RecordBatch]) -> Iterator[tuple[int, pa.Buffer]]:
    for batch in given_:
        yield from splitter.add(batch)
    yield from splitter.finish()


@given(
    data=st.data(),
    buckets=st.sampled_from([1, 2, 7, 256, 257, 65536]),
    compression=st.sampled_from([None, "lz4", "zstd"]),
    collect=st.sampled_from([1, 500, 10_000_000]),
)
def test_rows_come_in_their_buckets_in_order(
    data: st.DataObject, buckets: int, compression: str | None, collect: int
) -> None:
    given_ = data.draw(batches(buckets))
    expected: dict[int, list[dict[str, object]]] = {}
    for batch in given_:
        *_, bucket_name = batch.schema.names
        for row in batch.to_pylist():
            expected.setdefault(row.pop(bucket_name), []).append(row)
    splitter = Splitter(buckets, compression, collect)
    codec = Codec(compression)
    actual: dict[int, list[dict[str, object]]] = {}
    for bucket, block in split(splitter, given_):
        schema = pa.schema(list(given_[0].schema)[:-1])
        actual.setdefault(bucket, []).extend(codec.decode(memoryview(block), schema).to_pylist())
    assert expected == actual
    assert {bucket: len(rows) for bucket, rows in expected.items()} == {
        int(bucket): int(splitter.counts[bucket]) for bucket in np.flatnonzero(splitter.counts)
    }


def test_blocks_have_about_a_megabyte_each() -> None:
    rows = 4000
    batch = pa.record_batch(
        {"v": pa.array([bytes(1000)] * rows), "b": pa.array([0, 0, 0, 1] * (rows // 4), pa.int32())}
    )
    sizes = [(bucket, block.size) for bucket, block in split(Splitter(2), [batch])]
    assert [0, 0, 0, 1] == [bucket for bucket, _ in sizes]
    assert all(0.7 * BLOCK_BYTES < size < 1.1 * BLOCK_BYTES for _, size in sizes)


@pytest.mark.parametrize("block", [b"", b"1234567", bytes(8), b"\xff" * 16, b"\0\0\0\0\1\0\0\0 and not so many bytes"])
def test_invalid_compressed_block_is_an_error(block: bytes) -> None:
    with pytest.raises((ValueError, OSError)):
        Codec("lz4").decode(block, pa.schema([]))


def test_block_offsets_beyond_its_bytes_are_an_error() -> None:
    batch = pa.record_batch({"v": pa.array(["abc", "de"])})
    block = bytearray(Codec(None).encode(batch))
    offsets = block.index(struct.pack("<3i", 0, 3, 5))
    block[offsets + 8 : offsets + 12] = struct.pack("<i", 1 << 30)
    with pytest.raises(ExchangeError, match="is not one that an exchange writes"):
        list(decoded([(0, block)], Codec(None), batch.schema))


def test_texts_need_not_be_utf_8() -> None:
    """Spark's texts need not be UTF-8."""
    texts = pa.StringArray.from_buffers(2, pa.py_buffer(struct.pack("<3i", 0, 1, 2)), pa.py_buffer(b"\xff\xfe"))
    nested = pa.StructArray.from_arrays([texts, pa.MapArray.from_arrays([0, 1, 2], texts, texts)], ["t", "m"])
    batch = pa.record_batch({"v": texts, "l": pa.ListArray.from_arrays([0, 1, 2], texts), "s": nested})
    [(decoded_batch, _)] = decoded([(0, Codec(None).encode(batch))], Codec(None), batch.schema)
    assert batch.equals(decoded_batch)


@given(changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
@example(changes=[(4, 0)])  # no length
def test_changed_block_is_whole_or_an_error(changes: list[tuple[int, int]]) -> None:
    batch = pa.record_batch({"v": pa.array(["abc", None] * 9), "l": pa.array([[1, 2], None] * 9)})
    block = bytearray(Codec(None).encode(batch))
    for position, byte in changes:
        block[position % len(block)] = byte
    with contextlib.suppress(ExchangeError, UnicodeDecodeError):
        for decoded_batch, _ in decoded([(0, block)], Codec(None), batch.schema):
            decoded_batch.to_pydict()


@given(sizes=st.lists(st.integers(1, 3 * BLOCK_BYTES)))
def test_small_batches_are_read_as_megabytes(sizes: list[int]) -> None:
    def source() -> Iterator[tuple[pa.RecordBatch, int]]:
        for number, size in enumerate(sizes):
            yield pa.record_batch({"n": [number], "size": [size]}), size

    out = [batch.to_pydict() for batch in merge_small(source())]
    assert sorted(range(len(sizes))) == sorted(number for batch in out for number in batch["n"])
    small = [sum(batch["size"]) for batch in out if max(batch["size"]) < BLOCK_BYTES // 2]
    assert all(BLOCK_BYTES <= size < 2 * BLOCK_BYTES for size in small[:-1])


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_batches_of_small_blocks_have_a_megabyte(compression: str | None) -> None:
    rows = 40_000
    batch = pa.record_batch({"v": pa.array([b"0123456789" * 100] * rows), "b": pa.array([0] * rows, pa.int32())})
    blocks = [(bucket, bytearray(block)) for bucket, block in split(Splitter(1, compression), [batch])]
    merged = list(merge_small(decoded(blocks, Codec(compression), batch.schema.remove(1))))
    assert rows == sum(part.num_rows for part in merged)
    assert max(part.nbytes for part in merged) < 2 * BLOCK_BYTES
