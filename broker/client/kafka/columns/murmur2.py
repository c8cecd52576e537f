"""Kafka's murmur2 of all keys of a column at once, so that a key goes to the same partition from every client. Pure.

The function is that of Kafka's Java client (``Utils.murmur2``): it mixes in four bytes at a time, then the remaining bytes. Each
step treats all keys that are long enough for it together.

Tests: tests/client/kafka/columns/test_batch_builder.py.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
# For fewer keys than this, numpy's calls cost more than a loop over the keys.
_FEW = 4


def murmur2(data: Any, starts: I64, lengths: I64) -> U32:
    """The hash of each ``data[start : start + length]``."""
    padded = np.zeros(len(data) + 4, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    # The four bytes at any position as one number.
    words: U32 = np.ndarray((len(data) + 1,), "<u4", padded.data, strides=(1,))
    hashes: U32 = _SEED ^ lengths.astype(np.uint32)
    rows_left = np.flatnonzero(lengths >= 4)
    step = 0
    while len(rows_left) > _FEW:
        mixed = words[starts[rows_left] + 4 * step] * _M
        mixed ^= mixed >> np.uint32(24)
        hashes[rows_left] = hashes[rows_left] * _M ^ mixed * _M
        step += 1
        rows_left = rows_left[lengths[rows_left] >= 4 * (step + 1)]
    for row in rows_left.tolist():
        start = int(starts[row]) + 4 * step
        end = int(starts[row]) + (int(lengths[row]) & ~3)
        hashes[row] = _rest(int(hashes[row]), padded[start:end].view("<u4").tolist())
    remaining = lengths & 3
    rows = np.flatnonzero(remaining)
    tails = words[starts[rows] + (lengths[rows] & ~3)] & (
        (np.uint32(1) << (8 * remaining[rows]).astype(np.uint32)) - np.uint32(1)
    )
    hashes[rows] = (hashes[rows] ^ tails) * _M
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes


def _rest(value: int, words: list[int]) -> int:
    for word in words:
        mixed = word * 0x5BD1E995 & 0xFFFFFFFF
        mixed ^= mixed >> 24
        value = (value * 0x5BD1E995 ^ mixed * 0x5BD1E995) & 0xFFFFFFFF
    return value


def partition_of(hashes: U32, partitions: int) -> npt.NDArray[np.int32]:
    """Kafka's ``toPositive(hash) % partitions``."""
    return ((hashes & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)).astype(np.int32)
