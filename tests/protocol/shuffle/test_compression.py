import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.shuffle.compression import Codec, compress, decompress
from tests.protocol.shuffle.strategies import mutated

CODECS = [Codec.LZ4, Codec.ZSTD]
every_codec = pytest.mark.parametrize("codec", CODECS)
DATA = st.binary(max_size=100) | st.builds(
    lambda piece, times: piece * times, st.binary(min_size=1, max_size=50), st.sampled_from([20, 100, 600])
)
SHRINKS = st.builds(lambda piece, times: piece * times, st.binary(min_size=1, max_size=9), st.integers(100, 900))


@every_codec
@given(DATA)
def test_compressed_buffer_is_smaller_and_restored(codec: Codec, data: bytes) -> None:
    packed = compress(codec, memoryview(data))
    if packed is not None:
        assert len(packed) < len(data)
        assert (len(packed) - 8, len(data)) == struct.unpack_from("<ii", packed)
        assert data == decompress(codec, packed, len(data))
        assert data == decompress(codec, memoryview(bytearray(packed)))


@every_codec
def test_what_does_not_shrink_is_left_alone(codec: Codec) -> None:
    for data in (b"", b"a", b"aaaaaaaa", bytes(range(256))):
        assert compress(codec, data) is None
    packed = [compress(codec, bytes(size)) for size in range(64)]
    assert packed[-1] is not None
    assert all(block is None or len(block) < size for size, block in enumerate(packed))


def test_no_codec_compresses_nothing() -> None:
    assert compress(Codec.NONE, bytes(1000)) is None
    with pytest.raises(ProtocolError):
        decompress(Codec.NONE, bytes(1000))


@every_codec
@given(SHRINKS)
def test_more_than_the_bound_is_refused(codec: Codec, data: bytes) -> None:
    packed = compress(codec, data)
    assert packed is not None
    with pytest.raises(ProtocolError):
        decompress(codec, packed, len(data) - 1)


@every_codec
@given(SHRINKS, st.data())
def test_truncated_data_is_refused(codec: Codec, data: bytes, draw: st.DataObject) -> None:
    packed = compress(codec, data)
    assert packed is not None
    cut = packed[: draw.draw(st.integers(0, len(packed) - 1))]
    for block in (cut, struct.pack("<ii", len(cut) - 8, len(data)) + cut[8:]):
        with pytest.raises(ProtocolError):
            decompress(codec, block)


@every_codec
@given(SHRINKS, st.data())
def test_mutated_data_is_refused_or_within_bound(codec: Codec, data: bytes, draw: st.DataObject) -> None:
    packed = compress(codec, data)
    assert packed is not None
    try:
        assert len(decompress(codec, draw.draw(mutated(packed)), 10_000)) <= 10_000
    except ProtocolError:
        pass


@every_codec
@pytest.mark.parametrize("size", [-1, 0, 999, 1001, 32_769, 2**31 - 1])
def test_an_original_size_that_lies_is_refused(codec: Codec, size: int) -> None:
    packed = compress(codec, bytes(1000))
    assert packed is not None
    lying = packed[:4] + struct.pack("<i", size) + packed[8:]
    tracemalloc.start()
    with pytest.raises(ProtocolError):
        decompress(codec, lying)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


@every_codec
def test_block_larger_than_stated_stays_within_stated_size(codec: Codec) -> None:
    packed = compress(codec, bytes(50_000_000))
    assert packed is not None
    lying = packed[:4] + struct.pack("<i", 1000) + packed[8:]
    tracemalloc.start()
    with pytest.raises(ProtocolError):
        decompress(codec, lying)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def zstd(frame: bytes, size: int) -> bytes:
    return struct.pack("<ii", len(frame), size) + frame


def test_zstd_window_too_large_for_flink_is_refused() -> None:
    # Magic number, an empty descriptor, the window, a last raw block of three bytes.
    for window, taken in ((0x68, True), (0x69, False), (0xFF, False)):
        frame = bytes.fromhex("28b52ffd00") + bytes((window,)) + bytes.fromhex("190000") + b"abc"
        if taken:
            assert decompress(Codec.ZSTD, zstd(frame, 3)) == b"abc"
        else:
            with pytest.raises(ProtocolError, match="window"):
                decompress(Codec.ZSTD, zstd(frame, 3))


def test_a_zstd_block_is_one_frame() -> None:
    packed = compress(Codec.ZSTD, bytes(1000))
    assert packed is not None
    with pytest.raises(ProtocolError, match="after its end"):
        decompress(Codec.ZSTD, zstd(packed[8:] + packed[8:], 1000))
