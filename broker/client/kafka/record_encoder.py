"""Records as Python objects to record batches, and keys to partitions by Kafka's murmur2. Pure, without numpy.

For programs that have lines or messages instead of Arrow columns (``columns/batch_builder.py``, which does both for
whole columns), above all the command line. A record without key, headers and time costs about half a microsecond, a
record with all of them two.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import attrs

from protocol.kafka.records.batch import HEADER_SIZE
from protocol.kafka.records.records import enclose

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
    """Key -> partition, for a topic with this many partitions."""

    @lru_cache(_REMEMBERED)
    def partition(key: bytes) -> int:
        return (murmur2(key) & 0x7FFFFFFF) % partitions

    return partition


NO_HEADERS = b"\x00"

_NULL = b"\x01"  # -1 in zig-zag
# More than length, attributes, time, offset and the lengths of key and value can take together.
_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5
_BATCH_RECORDS_MAX = 65_536


def _varint(value: int) -> bytes:
    value = value << 1 if value >= 0 else ~(value << 1)  # zig-zag
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# Encoded once, because nearly every number in a record is small. `_offsets` grows to the largest batch built so far.
_SMALL = 1024
_small = [_varint(number) for number in range(_SMALL)]
_offsets = list(_small)


@attrs.frozen(eq=False)
class Records:
    """Records, field by field. ``keys`` None: no record has a key; ``times`` (ms) None: all have the time at which they
    are encoded; ``headers`` None: no record has any, else each item comes from ``encode_headers``."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[bytes] | None = None
    times: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, stop: int) -> "Records":
        rows = slice(start, stop)
        return Records(
            self.values[rows],
            None if self.keys is None else self.keys[rows],
            None if self.headers is None else self.headers[rows],
            None if self.times is None else self.times[rows],
        )

    def take(self, rows: Sequence[int]) -> "Records":
        """The records with these numbers."""
        return Records(
            [self.values[row] for row in rows],
            None if self.keys is None else [self.keys[row] for row in rows],
            None if self.headers is None else [self.headers[row] for row in rows],
            None if self.times is None else [self.times[row] for row in rows],
        )

    def most_bytes(self) -> int:
        """An upper bound on the bytes of the records in a batch, before compression."""
        size = len(self.values) * _OVERHEAD
        for column in (self.values, self.keys, self.headers):
            if column is not None:
                size += sum(map(len, filter(None, column)))
        return size


def encode_headers(headers: Sequence[tuple[bytes, bytes | None]]) -> bytes:
    """The headers of one record, preceded by their number."""
    out = [_varint(len(headers))]
    for name, value in headers:
        out += (_varint(len(name)), name)
        out += (_NULL,) if value is None else (_varint(len(value)), value)
    return b"".join(out)


def encode(records: Records, most: int, *, now_ms: int, codec: int = 0) -> Iterator[tuple[bytearray, int]]:
    """Record batches of at most ``most`` bytes (a larger record gets a batch of its own), each with its number of
    records. ``codec`` is Kafka's number; a batch that it would make larger stays uncompressed."""
    count = len(records)
    if not count:
        return
    if count > 1 and (count > _BATCH_RECORDS_MAX or records.most_bytes() + HEADER_SIZE > most):
        yield from encode(records.slice(0, count // 2), most, now_ms=now_ms, codec=codec)
        yield from encode(records.slice(count // 2, count), most, now_ms=now_ms, codec=codec)
        return
    plain = records.keys is None and records.times is None and records.headers is None and None not in records.values
    body = _plain_body(records.values) if plain else _body(records, now_ms)  # type: ignore[arg-type]
    base, latest = now_ms, now_ms
    if records.times is not None:
        base, latest = records.times[0], max(records.times)
    yield enclose(body, count, base, latest, codec), count


def _offset_varints(count: int) -> list[bytes]:
    if count > len(_offsets):
        _offsets.extend(_varint(number) for number in range(len(_offsets), count))
    return _offsets


def _plain_body(values: Sequence[bytes]) -> bytes:
    """Values alone, in one loop without calls."""
    small = _small
    parts: list[bytes] = []
    for offset, value in zip(_offset_varints(len(values)), values, strict=False):
        size = len(value)
        length = small[size] if size < _SMALL else _varint(size)
        # Attributes, time, null key and number of headers take a byte each.
        total = 4 + len(offset) + len(length) + size
        parts += (
            small[total] if total < _SMALL else _varint(total),
            b"\x00\x00",
            offset,
            _NULL,
            length,
            value,
            NO_HEADERS,
        )
    return b"".join(parts)


def _body(records: Records, now_ms: int) -> bytes:
    count = len(records)
    keys: Sequence[bytes | None] = records.keys if records.keys is not None else [None] * count
    headers: Sequence[bytes] = records.headers if records.headers is not None else [NO_HEADERS] * count
    times: Sequence[int] = records.times if records.times is not None else [now_ms] * count
    base = times[0]
    small = _small
    parts: list[bytes] = []
    for offset, key, value, header, time in zip(
        _offset_varints(count), keys, records.values, headers, times, strict=False
    ):
        since = time - base
        record = [b"\x00", small[since] if 0 <= since < _SMALL else _varint(since), offset]
        for field in (key, value):
            if field is None:
                record.append(_NULL)
            else:
                size = len(field)
                record += (small[size] if size < _SMALL else _varint(size), field)
        record.append(header)
        joined = b"".join(record)
        parts += (_varint(len(joined)), joined)
    return b"".join(parts)
