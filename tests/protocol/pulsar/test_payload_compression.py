import zlib

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.pulsar.payload import CODEC_NAMES, LZ4, NONE, SNAPPY, ZLIB, ZSTD, compress, decompress
from tests.protocol.pulsar.strategies import refused_or_read

codecs = st.sampled_from([LZ4, ZLIB, ZSTD, SNAPPY])
datas = st.one_of(
    st.binary(max_size=300), st.builds(lambda piece, times: piece * times, st.binary(max_size=9), st.integers(0, 3000))
)


@given(st.sampled_from(sorted(CODEC_NAMES)), datas)
def test_what_was_compressed_is_decompressed(codec: int, data: bytes) -> None:
    assert data == decompress(codec, memoryview(compress(codec, data)), len(data), len(data))


@given(codecs, datas, st.integers(0, 3000))
def test_false_size_is_refused(codec: int, data: bytes, size: int) -> None:
    assume(size != len(data))
    with pytest.raises(ProtocolError):
        decompress(codec, compress(codec, data), size, 1 << 20)


@given(codecs, st.binary(max_size=60), st.integers(0, 2**32 - 1))
def test_any_bytes_are_decompressed_or_refused(codec: int, data: bytes, size: int) -> None:
    refused_or_read(lambda data: decompress(codec, data, size, 1 << 20), data)


@given(codecs, datas, st.data())
def test_changed_bytes_are_decompressed_or_refused(codec: int, data: bytes, draw: st.DataObject) -> None:
    compressed = bytearray(compress(codec, data))
    for _ in range(draw.draw(st.integers(1, 3))):
        compressed[draw.draw(st.integers(0, len(compressed) - 1))] = draw.draw(st.integers(0, 255))
    refused_or_read(lambda changed: decompress(codec, changed, len(data), 1 << 20), bytes(compressed))


@pytest.mark.parametrize("codec", [LZ4, ZLIB, ZSTD, SNAPPY])
def test_bomb_is_refused_before_any_allocation(codec: int) -> None:
    bomb = compress(codec, bytes(10 << 20))
    with pytest.raises(ProtocolError, match="where 1048576 are read"):
        decompress(codec, bomb, 10 << 20, 1 << 20)
    # A payload that hides its size yields no more than it claims.
    with pytest.raises(ProtocolError):
        decompress(codec, bomb, 1 << 20, 1 << 20)
    # A payload that claims more than its codec can yield is not decompressed.
    with pytest.raises(ProtocolError, match=r"100 bytes that claims to be 1073741824|10 bytes that claims"):
        decompress(codec, bomb[:100] if codec != ZSTD else bomb[:10], 1 << 30, 1 << 30)


@pytest.mark.parametrize("codec", [-1, 5, 99])
def test_a_codec_that_nobody_knows_is_refused(codec: int) -> None:
    with pytest.raises(ProtocolError, match=f"no codec has the number {codec}"):
        decompress(codec, b"data", 4, 100)
    with pytest.raises(ValueError, match=f"no codec has the number {codec}"):
        compress(codec, b"data")


def test_without_a_codec_the_data_is_itself() -> None:
    data = memoryview(b"data")
    assert decompress(NONE, data, 0, 0) is data


def test_zlib_data_that_is_cut_off_is_refused() -> None:
    with pytest.raises(ProtocolError, match="ends too early"):
        decompress(ZLIB, zlib.compress(b"data")[:-5], 4, 100)
