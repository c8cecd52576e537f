import gzip
import struct
import tracemalloc
from random import Random

import cramjam
import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.kafka.records.compression import GZIP, LZ4, SNAPPY, ZSTD, compress, decompress, largest_size

CODECS = [GZIP, SNAPPY, LZ4, ZSTD]
every_codec = pytest.mark.parametrize("codec", CODECS)

DATA = st.binary(max_size=300) | st.builds(
    lambda piece, times: piece * times, st.binary(max_size=50), st.sampled_from([1, 100, 2000])
)


@every_codec
@given(DATA)
def test_what_goes_in_comes_out(codec: int, data: bytes) -> None:
    packed = compress(codec, data)
    assert data == decompress(codec, packed, len(data))
    assert data == decompress(codec, memoryview(bytearray(packed)), len(data) + 1)


@every_codec
@given(DATA.filter(bool))
def test_more_than_the_bound_is_refused(codec: int, data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decompress(codec, compress(codec, data), len(data) - 1)


@every_codec
@given(DATA, st.data())
def test_truncated_data_is_refused(codec: int, data: bytes, draw: st.DataObject) -> None:
    packed = compress(codec, data)
    cut = packed[: draw.draw(st.integers(0, len(packed) - 1))]
    try:
        decompressed = decompress(codec, cut, len(data))
    except ProtocolError:
        return
    # xerial's framing of snappy has no end mark: a cut between two blocks shows only in the output.
    assert codec == SNAPPY
    assert data.startswith(decompressed)


@every_codec
@given(DATA, st.data())
def test_mutated_data_is_refused_or_within_bound(codec: int, data: bytes, draw: st.DataObject) -> None:
    packed = bytearray(compress(codec, data))
    for _ in range(draw.draw(st.integers(1, 3))):
        packed[draw.draw(st.integers(0, len(packed) - 1))] = draw.draw(st.integers(0, 255))
    try:
        assert len(decompress(codec, packed, 1000)) <= 1000
    except ProtocolError:
        pass


@pytest.mark.parametrize("codec", [*CODECS, 0, 5, 6, 7])
@given(st.binary(max_size=100))
def test_any_bytes_raise_nothing_but_protocol_errors(codec: int, data: bytes) -> None:
    try:
        decompress(codec, data, 1000)
    except ProtocolError:
        pass


BOMB = bytes(50_000_000)


@every_codec
def test_a_bomb_is_refused_within_the_bound(codec: int) -> None:
    packed = compress(codec, BOMB)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decompress(codec, packed, 1 << 20)
        # The result so far, and a copy of it.
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("codec", "packed"),
    [
        (SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(20)),  # raw snappy that claims 4 GiB
        (SNAPPY, b"\x80\x80\x40" + bytes(20)),  # 1 MiB
        (ZSTD, bytes.fromhex("28b52ffd e0 ffffffffffffff7f 010000")),  # an empty block in a frame that claims 8 EiB
        (ZSTD, bytes.fromhex("28b52ffd a0 00001000 010000")),  # 1 MiB
        (LZ4, bytes.fromhex("04224d18 6840 0000000000010000 b7 00000000 00000000")),  # 1 TiB
    ],
)
def test_a_size_that_lies_allocates_nothing(codec: int, packed: bytes) -> None:
    tracemalloc.start()
    try:
        try:
            assert decompress(codec, packed, 1 << 20) == b""
        except ProtocolError:
            pass
        assert tracemalloc.get_traced_memory()[1] < 1 << 19
    finally:
        tracemalloc.stop()


def test_snappy_with_impossible_size_is_not_decompressed() -> None:
    # No Python tool shows cramjam's allocations.
    with pytest.raises(ProtocolError, match="claims to be 1048576"):
        decompress(SNAPPY, b"\x80\x80\x40" + bytes(20), 1 << 20)


def test_raw_snappy_is_taken_as_librdkafka_writes_it() -> None:
    assert decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(b"raw raw raw")), 100) == b"raw raw raw"


def test_snappy_is_framed_in_blocks_like_java() -> None:
    packed = compress(SNAPPY, bytes(32 * 1024) + b"x")
    assert packed[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    (size,) = struct.unpack_from(">i", packed, 16)
    assert struct.unpack_from(">i", packed, 20 + size) == (len(packed) - 24 - size,)


def test_lz4_blocks_do_not_depend_on_each_other() -> None:
    assert lz4.frame.get_frame_info(compress(LZ4, bytes(1 << 20)))["block_linked"] is False


def test_multi_member_and_multi_frame_streams_are_read() -> None:
    assert decompress(GZIP, gzip.compress(b"one ") + gzip.compress(b"two"), 7) == b"one two"
    two = (
        bytes(cramjam.zstd.compress(b"one "))
        + b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
        + bytes(cramjam.zstd.compress(b"two"))
    )
    assert decompress(ZSTD, two, 7) == b"one two"
    with pytest.raises(ProtocolError):
        decompress(GZIP, gzip.compress(b"one ") + gzip.compress(b"two"), 6)


@pytest.mark.parametrize(("codec", "low", "high"), [(GZIP, 1, 9), (LZ4, 0, 12), (ZSTD, 1, 19)])
def test_a_higher_level_makes_it_smaller(codec: int, low: int, high: int) -> None:
    text = b"".join(b'{"id": %d, "name": "name %d"}' % (i * 7919 % 1000, i % 13) for i in range(2000))
    assert len(compress(codec, text, high)) < len(compress(codec, text, low))
    assert decompress(codec, compress(codec, text, high), len(text)) == text


def test_unknown_codec_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="5"):
        compress(5, b"")


def _xerial(block: bytes, count: int) -> bytes:
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + (struct.pack(">i", len(block)) + block) * count


# Each codec's smallest units, repeated: a small unit costs as much as a large one.
EMPTY_GZIP = gzip.compress(b"", mtime=0)
ZSTD_FRAME = bytes.fromhex("28b52ffd 20 00")  # a single segment of no bytes, without its blocks
UNITS = {
    "gzip members": (GZIP, lambda count: EMPTY_GZIP * count),
    "snappy blocks": (SNAPPY, lambda count: _xerial(bytes(cramjam.snappy.compress_raw(b"x")), count)),
    "empty snappy blocks": (SNAPPY, lambda count: _xerial(b"\0", count)),
    "zstd frames": (ZSTD, lambda count: (ZSTD_FRAME + b"\x01\0\0") * count),
    "skippable zstd frames": (ZSTD, lambda count: b"\x50\x2a\x4d\x18\0\0\0\0" * count),
    "empty zstd blocks": (ZSTD, lambda count: b"\x28\xb5\x2f\xfd\0\x58" + b"\0\0\0" * count + b"\x01\0\0"),
    "zstd blocks of one byte": (ZSTD, lambda count: b"\x28\xb5\x2f\xfd\0\x58" + b"\x08\0\0x" * count + b"\x01\0\0"),
}


@pytest.mark.parametrize("unit", UNITS)
def test_repeated_smallest_unit_of_a_codec_is_refused(unit: str) -> None:
    codec, repeated = UNITS[unit]
    few, many = repeated(500), repeated((1 << 20) // (len(repeated(2)) - len(repeated(1))))
    assert len(decompress(codec, few, 1 << 20)) <= 500
    with pytest.raises(ProtocolError, match="parts"):
        decompress(codec, many, 1 << 20)
    if codec == ZSTD:
        with pytest.raises(ProtocolError, match="parts"):
            largest_size(codec, many)


@every_codec
def test_what_is_flushed_often_is_read(codec: int) -> None:
    """32 MiB in as many parts as clients write."""
    data = bytes(32 << 20)
    assert decompress(codec, compress(codec, data), len(data)) == data
    if codec == SNAPPY:
        block = bytes(cramjam.snappy.compress_raw(bytes(16 * 1024)))
        assert len(decompress(codec, _xerial(block, 2048), len(data))) == len(data)


def test_gzip_member_ending_anywhere_in_piece_is_continued() -> None:
    for size in (0, 1, 65_000, 65_500, 65_517, 65_536, 131_072):
        first = bytes(Random(size).randbytes(size))
        assert decompress(GZIP, gzip.compress(first, 0) + gzip.compress(b"end"), 1 << 20) == first + b"end"
