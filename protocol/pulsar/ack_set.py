"""Sets of messages within a batch, as the wire has them: Java's BitSet as 64-bit words, the lowest first.

Bit 1 means *not* acknowledged. Inside the broker such a set is one Python integer, whose bit i is message i. Words that a client
sends are bounded by the number of messages of the entry, which the broker knows, and never by what the client sends.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence


def bits_from_words(words: Sequence[int], messages: int) -> int:
    """The messages of a batch that are not acknowledged. Missing words are 0, and bits beyond the batch are dropped."""
    count = -(-messages // 64)
    words = words[:count]
    value = int.from_bytes(struct.pack(f"<{len(words)}q", *words), "little")
    return value & (1 << messages) - 1


def words_from_bits(bits: int) -> tuple[int, ...]:
    """The words of a set; as in Java, the last one is not 0."""
    count = -(-bits.bit_length() // 64)
    return struct.unpack(f"<{count}q", bits.to_bytes(count * 8, "little"))


def all_bits(messages: int) -> int:
    """The set of a batch of which nothing is acknowledged."""
    return (1 << messages) - 1
