"""Computes the subpartition of a key exactly as Flink does (KeyGroupRangeAssignment).

    key group = murmur(hashCode(key)) mod max_parallelism          subpartition = key group * parallelism / max_parallelism

``hashCode`` is that of the Java type to which PyFlink converts a Python value:

    Python              Java                hashCode
    str                 String              s[0] * 31^(n-1) + ... + s[n-1] over its UTF-16 code units
    int                 Long                low half xor high half of the 64 bits
    ``Int32``           Integer             the value
    float               Double              low half xor high half of its bits; all NaNs are equal, -0.0 is not 0.0
    bool                Boolean             1231 or 1237
    bytes               byte[]              as ``Arrays.hashCode``: h = 1, then h * 31 + each signed byte
    tuple               Flink's Tuple       h(first), then h * 31 + h(next)
    list                List                h = 1, then h * 31 + h(each)
    None                null                0 (Flink does not accept null as the whole key)

Long and Integer have the same hash code from 0 to 2**31 - 1. Flink refuses a bare array as key; bytes are supported for jobs that
use a list or string of the same bytes, and for readers that use this library.
"""

import struct
from functools import lru_cache
from typing import Any

# Flink's limits for the number of key groups (KeyGroupRangeAssignment).
LOWEST_MAX_PARALLELISM = 128
HIGHEST_MAX_PARALLELISM = 32768

_MASK = 0xFFFFFFFF


class Int32(int):
    """An int whose Java type is Integer, not Long."""

    __slots__ = ()


def _signed(code: int) -> int:
    code &= _MASK
    return code - (1 << 32) if code & 0x80000000 else code


def java_hash(key: Any) -> int:
    """``hashCode`` as a signed 32-bit number. Raises TypeError for a type that is not in the table, and OverflowError for an
    int of more than 64 bits.
    """
    return _signed(_hash(key))


def _hash(key: Any) -> int:
    kind = type(key)
    if kind is str:
        return _hash_text(key)
    if kind is int:
        return _fold(int.from_bytes(key.to_bytes(8, "big", signed=True), "big"))
    if kind is Int32:
        return int.from_bytes(int(key).to_bytes(4, "big", signed=True), "big")
    if kind is bytes:
        return _hash_bytes(key)
    if key is None:
        return 0
    if kind is bool:
        return 1231 if key else 1237
    if kind is float:
        bits: int = struct.unpack(">Q", struct.pack(">d", key))[0]
        return _fold(0x7FF8000000000000 if key != key else bits)
    if isinstance(key, tuple):
        code = _hash(key[0]) if key else 0
        for part in key[1:]:
            code = (31 * code + _hash(part)) & _MASK
        return code
    if kind is list:
        code = 1
        for part in key:
            code = (31 * code + _hash(part)) & _MASK
        return code
    bases: tuple[type[Any], ...] = (str, int, bytes, float)
    for base in bases:
        if isinstance(key, base):
            return _hash(base(key))
    raise TypeError(f"the Java hash code of a {kind.__name__} is not known: use a str, int, bytes or tuple as the key")


def _fold(bits: int) -> int:
    return (bits ^ (bits >> 32)) & _MASK


def _hash_text(text: str) -> int:
    code = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(data[::2], data[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & _MASK
    return code


def _hash_bytes(data: bytes) -> int:
    code = 1
    for byte in data:
        code = (31 * code + (byte if byte < 128 else byte - 256)) & _MASK
    return code


def murmur_hash(code: int) -> int:
    """Flink's MathUtils.murmurHash, which returns 0 or more."""
    code = (code * 0xCC9E2D51) & _MASK
    code = (code << 15 | code >> 17) & _MASK
    code = (code * 0x1B873593) & _MASK
    code = (code << 13 | code >> 19) & _MASK
    code = (code * 5 + 0xE6546B64) & _MASK
    code ^= 4
    code ^= code >> 16
    code = (code * 0x85EBCA6B) & _MASK
    code ^= code >> 13
    code = (code * 0xC2B2AE35) & _MASK
    code ^= code >> 16
    signed = _signed(code)
    if signed >= 0:
        return signed
    return -signed if signed != -(1 << 31) else 0


def default_max_parallelism(parallelism: int) -> int:
    """Flink's default: 1.5 times the parallelism, rounded up to a power of two, within its bounds."""
    target = parallelism + parallelism // 2
    return min(max(1 << (target - 1).bit_length(), LOWEST_MAX_PARALLELISM), HIGHEST_MAX_PARALLELISM)


def key_group(key: Any, max_parallelism: int) -> int:
    return murmur_hash(_hash(key)) % max_parallelism


def subpartition_of(group: int, max_parallelism: int, parallelism: int) -> int:
    """Return the subtask, and so the subpartition, of a key group."""
    return group * parallelism // max_parallelism


# Keys repeat, and hashing a text takes a microsecond a character in Python. Typed, because 1, 1.0 and True are equal keys of a
# cache but have different hash codes in Java.
@lru_cache(maxsize=65536, typed=True)
def _cached(key: Any, max_parallelism: int, parallelism: int) -> int:
    return subpartition_of(key_group(key, max_parallelism), max_parallelism, parallelism)


def assign(key: Any, parallelism: int, max_parallelism: int) -> int:
    """Return the subpartition of a key."""
    kind = type(key)
    # Only these types are cached: a typed cache does not see the types within a tuple, and -0.0 equals 0.0.
    if kind is str or kind is bytes or kind is int:
        return _cached(key, max_parallelism, parallelism)
    return subpartition_of(key_group(key, max_parallelism), max_parallelism, parallelism)
