"""The partition of a key, by the hash of Kafka's own clients (murmur2), without numpy. Pure.

``columns/murmur2.py`` does the same for whole columns.
"""

import struct
from collections.abc import Callable
from functools import lru_cache

_MULTIPLIER = 0x5BD1E995
_SEED = 0x9747B28C
_MASK = 0xFFFFFFFF
# Keys often repeat, and a look-up takes a tenth of the time of a hash.
_REMEMBERED = 65_536


def murmur2(key: bytes) -> int:
    size = len(key)
    words = size // 4
    value = _SEED ^ size
    for word in struct.unpack_from(f"<{words}I", key):
        word = word * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        value = value * _MULTIPLIER & _MASK ^ word
    tail = key[4 * words :]
    if tail:
        value = (value ^ int.from_bytes(tail, "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15


def by_key(partitions: int) -> Callable[[bytes], int]:
    """Key -> partition, for a topic with so many partitions."""

    @lru_cache(_REMEMBERED)
    def partition(key: bytes) -> int:
        return (murmur2(key) & 0x7FFFFFFF) % partitions

    return partition
