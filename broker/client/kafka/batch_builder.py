"""Arrow columns to record batches. Pure, on the caller's thread: sends nothing, knows no producer until ``stamp``."""

import struct
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from protocol.checksum import crc32c
from protocol.kafka.batch import CRC_START, TRANSACTIONAL
from protocol.kafka.compression import CODEC_NAMES
from protocol.kafka.records import build_batch

_PRODUCER = struct.Struct(">qhi")  # id, epoch, base sequence: from byte 43 of a batch on
_RECORD_OVERHEAD = 40


@attrs.frozen(eq=False)
class Built:
    """A whole record batch of ``count`` records: checksum done, base offset 0, no producer yet (``stamp``)."""

    data: bytearray
    count: int


def build(
    values: Any,
    keys: Any = None,
    headers: Any = None,
    timestamps_ms: Any = None,
    *,
    now_ms: int,
    compression: str = "none",
    max_batch_bytes: int = 1_000_000,
) -> list[Built]:
    """Record batches of at most ``max_batch_bytes`` each; a record larger than that makes a batch of its own.

    ``values`` and ``keys``: Arrow arrays of binary or string, nulls allowed; ``headers``: list<struct<key: string, value:
    binary>>; ``timestamps_ms``: int64, where there is none (or a null) it is ``now_ms``.
    """
    codec = CODEC_NAMES.index(compression)
    built: list[Built] = []
    part: list[Any] = []
    size = 61
    for record in _records(values, keys, headers, timestamps_ms, now_ms):
        length = _RECORD_OVERHEAD + len(record[0] or b"") + len(record[1] or b"")
        length += sum(len(name.encode()) + len(value or b"") + 10 for name, value in record[2])
        if part and size + length > max_batch_bytes:
            built.append(Built(build_batch(part, compression=codec), len(part)))
            part, size = [], 61
        part.append(record)
        size += length
    if part:
        built.append(Built(build_batch(part, compression=codec), len(part)))
    return built


def _records(values: Any, keys: Any, headers: Any, timestamps_ms: Any, now_ms: int) -> Iterator[Any]:
    for i, value in enumerate(values.to_pylist()):
        key = None if keys is None else keys[i].as_py()
        pairs = [] if headers is None else [(h["key"], h["value"]) for h in headers[i].as_py() or ()]
        time = None if timestamps_ms is None else pa.scalar(timestamps_ms[i]).as_py()
        yield _bytes(key), _bytes(value), pairs, now_ms if time is None else time


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def stamp(data: bytearray, producer_id: int, epoch: int, base_sequence: int, transactional: bool) -> None:
    """Writes the producer into a batch, in place, and renews its checksum."""
    attributes = int.from_bytes(data[21:23], "big") & ~TRANSACTIONAL | (TRANSACTIONAL if transactional else 0)
    data[21:23] = attributes.to_bytes(2, "big")
    _PRODUCER.pack_into(data, 43, producer_id, epoch, base_sequence)
    data[17:21] = crc32c(memoryview(data)[CRC_START:]).to_bytes(4, "big")


def partitions_for(keys: Any, partitions: int) -> "np.ndarray[Any, np.dtype[np.int32]]":
    """The partition of each key by Kafka's own hash, as its Java client chooses it. Keys must not be null."""
    return np.array([(_murmur2(_bytes(key.as_py()) or b"") & 0x7FFFFFFF) % partitions for key in keys], dtype=np.int32)


def _murmur2(data: bytes) -> int:
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for pos in range(0, whole, 4):
        k = int.from_bytes(data[pos : pos + 4], "little") * m & mask
        h = h * m & mask ^ (k ^ k >> 24) * m & mask
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15
