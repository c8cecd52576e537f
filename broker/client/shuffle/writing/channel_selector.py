"""Selects the subpartitions of a record (Flink's ChannelSelectors and StreamPartitioners).

round_robin()               one after the other, from the first
rebalance(start)            the same, from ``start`` (random in Flink, so that writers begin at different subpartitions)
rescale(index, writers)     round robin over this writer's share of the subpartitions
forward()                   all to the first: one writer, one reader
hash_by_key(key)            by key group, so that equal keys go to the same reader
broadcast()                 every record to all
custom(function)            ``function(value, subpartitions) -> subpartition``

The subpartition of a key is computed exactly as in Flink (KeyGroupRangeAssignment):

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

Long and Integer have the same hash code from 0 to 2**31 - 1. Flink refuses a bare array as key; bytes are supported for
jobs that use a list or string of the same bytes, and for readers that use this library.
"""

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Generic, TypeVar

# Flink's limits for the number of key groups (KeyGroupRangeAssignment).
LOWEST_MAX_PARALLELISM = 128
HIGHEST_MAX_PARALLELISM = 32768

_MASK = 0xFFFFFFFF


class Int32(int):
    """An int with the Java type Integer, not Long."""

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


T = TypeVar("T")


class ChannelSelector(Generic[T]):
    """Belongs to one RecordWriter, which calls ``setup`` once and then ``select`` for every value."""

    is_broadcast = False

    def setup(self, subpartitions: int) -> None:
        """The number of subpartitions to choose from."""
        self.subpartitions = subpartitions

    def select(self, value: T) -> int:
        raise NotImplementedError


class RoundRobin(ChannelSelector[Any]):
    def __init__(self, start: int = 0) -> None:
        self._next = start

    def setup(self, subpartitions: int) -> None:
        super().setup(subpartitions)
        self._next %= subpartitions

    def select(self, value: Any) -> int:
        chosen = self._next
        self._next = chosen + 1 if chosen + 1 < self.subpartitions else 0
        return chosen


class Rescale(ChannelSelector[Any]):
    """Flink's pointwise distribution: with ``n`` writers and ``m`` subpartitions, writer ``i`` has the subpartitions
    from i*m/n up to the first subpartition of the next writer; if there are more writers than subpartitions, each
    writer has one.
    """

    def __init__(self, index: int, writers: int) -> None:
        if not 0 <= index < writers:
            raise ValueError(f"there is no writer {index} of {writers}")
        self._index, self._writers = index, writers

    def setup(self, subpartitions: int) -> None:
        super().setup(subpartitions)
        self._first = self._index * subpartitions // self._writers
        self._end = max(self._first + 1, (self._index + 1) * subpartitions // self._writers)
        self._next = self._first

    def select(self, value: Any) -> int:
        chosen = self._next
        self._next = chosen + 1 if chosen + 1 < self._end else self._first
        return chosen


class Forward(ChannelSelector[Any]):
    def select(self, value: Any) -> int:
        return 0


class Broadcast(ChannelSelector[Any]):
    is_broadcast = True

    def select(self, value: Any) -> int:
        raise AssertionError("a broadcast does not select a subpartition")


class HashByKey(ChannelSelector[T]):
    """``key`` returns the key of a value: str, int, bytes, float, bool, or a tuple of them. ``max_parallelism``: the number of
    key groups; if not given, Flink's default for the number of subpartitions.
    """

    def __init__(self, key: Callable[[T], Any], max_parallelism: int | None = None) -> None:
        if max_parallelism is not None and not 1 <= max_parallelism <= HIGHEST_MAX_PARALLELISM:
            raise ValueError(f"{max_parallelism} key groups: 1 to {HIGHEST_MAX_PARALLELISM} are possible")
        self._key = key
        self._max_parallelism = max_parallelism

    def setup(self, subpartitions: int) -> None:
        super().setup(subpartitions)
        self.max_parallelism = self._max_parallelism or default_max_parallelism(subpartitions)
        if subpartitions > self.max_parallelism:
            raise ValueError(f"{subpartitions} subpartitions need more than {self.max_parallelism} key groups")

    def select(self, value: T) -> int:
        return assign(self._key(value), self.subpartitions, self.max_parallelism)


class Custom(ChannelSelector[T]):
    def __init__(self, function: Callable[[T, int], int]) -> None:
        self._function = function

    def select(self, value: T) -> int:
        chosen = self._function(value, self.subpartitions)
        if not 0 <= chosen < self.subpartitions:
            raise ValueError(f"the function selected subpartition {chosen} of {self.subpartitions}")
        return chosen


def round_robin() -> ChannelSelector[Any]:
    return RoundRobin()


def rebalance(start: int) -> ChannelSelector[Any]:
    return RoundRobin(start)


def rescale(index: int, writers: int) -> ChannelSelector[Any]:
    return Rescale(index, writers)


def forward() -> ChannelSelector[Any]:
    return Forward()


def broadcast() -> ChannelSelector[Any]:
    return Broadcast()


def hash_by_key(key: Callable[[T], Any], max_parallelism: int | None = None) -> ChannelSelector[T]:
    return HashByKey(key, max_parallelism)


def custom(function: Callable[[T, int], int]) -> ChannelSelector[T]:
    return Custom(function)
