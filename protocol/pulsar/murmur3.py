"""Murmur3, 32 bits, seed 0, without the sign: Pulsar's hash of keys, which distributes them over consumers and partitions."""

from __future__ import annotations

import struct
from functools import lru_cache

_MASK = 0xFFFFFFFF
_C1 = 0xCC9E2D51
_C2 = 0x1B873593

# Only so many bytes of a key are hashed: in Python four bytes take 0.3 us, and a hostile key may have megabytes.
HASHED_BYTES = 4096
# Hashes of keys up to this length are remembered.
_SHORT = 64
_REMEMBERED = 8192


def key_hash(key: bytes) -> int:
    """0 to 2^31 - 1."""
    if len(key) <= _SHORT:
        return _remembered(key)
    return murmur3_32(key[:HASHED_BYTES]) & 0x7FFFFFFF


def murmur3_32(data: bytes) -> int:
    """All 32 bits, unsigned, of all of ``data``."""
    size = len(data)
    value = 0
    for (block,) in struct.iter_unpack("<I", data[: size & ~3]):
        block = block * _C1 & _MASK
        block = (block << 15 | block >> 17) * _C2 & _MASK
        value ^= block
        value = ((value << 13 | value >> 19) & _MASK) * 5 + 0xE6546B64 & _MASK
    if size & 3:
        block = int.from_bytes(data[size & ~3 :], "little") * _C1 & _MASK
        value ^= (block << 15 | block >> 17) * _C2 & _MASK
    value ^= size
    value = (value ^ value >> 16) * 0x85EBCA6B & _MASK
    value = (value ^ value >> 13) * 0xC2B2AE35 & _MASK
    return value ^ value >> 16


@lru_cache(_REMEMBERED)
def _remembered(key: bytes) -> int:
    return murmur3_32(key) & 0x7FFFFFFF
