"""Kafka's murmur2, of all keys of a column at once: the same key goes to the same partition whoever writes it. Pure.

The function is the one of Kafka's Java client (``Utils.murmur2``): four bytes are mixed in at a time, then what is left over.
All keys take each step together, those of more bytes than the step has go on.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
# Below this many keys at a time numpy's calls cost more than the keys one by one.
_FEW = 4


def murmur2(data: Any, starts: I64, lengths: I64) -> U32:
    """Of each ``data[start : start + length]``."""
    padded = np.zeros(len(data) + 4, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    # The four bytes at any position as one number.
    words: U32 = np.ndarray((len(data) + 1,), "<u4", padded.data, strides=(1,))
    hashes: U32 = _SEED ^ lengths.astype(np.uint32)
    going = np.flatnonzero(lengths >= 4)
    step = 0
    while len(going) > _FEW:
        mixed = words[starts[going] + 4 * step] * _M
        mixed ^= mixed >> np.uint32(24)
        hashes[going] = hashes[going] * _M ^ mixed * _M
        step += 1
        going = going[lengths[going] >= 4 * (step + 1)]
    for row in going.tolist():
        start = int(starts[row]) + 4 * step
        end = int(starts[row]) + (int(lengths[row]) & ~3)
        hashes[row] = _rest(int(hashes[row]), padded[start:end].view("<u4").tolist())
    left = lengths & 3
    rows = np.flatnonzero(left)
    tails = words[starts[rows] + (lengths[rows] & ~3)] & (
        (np.uint32(1) << (8 * left[rows]).astype(np.uint32)) - np.uint32(1)
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
