import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.pulsar.murmur3 import HASHED_BYTES, key_hash, murmur3_32


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # Published vectors of MurmurHash3_x86_32 with the seed 0.
        (b"", 0),
        (b"hello", 0x248BFA47),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
        (b"!eDoZj $XVe>vtaxn<x^ qU]m([aWSI^Hy>@E#hX}v mbkz#gB", 0x1CB30D2D),
        (b"[)<{vbjRgcp", 0x100949F7),
        (b"R", 0x79B365C1),
    ],
)
def test_the_published_vectors(key: bytes, expected: int) -> None:
    assert expected == murmur3_32(key)
    assert expected & 0x7FFFFFFF == key_hash(key)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"k1", 2110152746),
        (b"k2", 1479966664),
        (b"key1", 462881061),
        (b"key2", 1936800180),
        (b"key01", 39696932),
        (b"key02", 751761803),
    ],
)
def test_pulsars_clients_get_the_same_hashes(key: bytes, expected: int) -> None:
    assert expected == key_hash(key)


@given(st.binary(max_size=200))
def test_hash_has_31_bits_and_is_stable(key: bytes) -> None:
    assert 0 <= key_hash(key) < 2**31
    assert murmur3_32(key) & 0x7FFFFFFF == key_hash(key) == key_hash(bytes(key))


def test_only_the_beginning_of_huge_keys_is_hashed() -> None:
    assert key_hash(bytes(HASHED_BYTES) + b"a") == key_hash(bytes(HASHED_BYTES) + b"b")
    assert key_hash(bytes(HASHED_BYTES - 1) + b"a") != key_hash(bytes(HASHED_BYTES - 1) + b"b")
