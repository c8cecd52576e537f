"""Protobuf's varints, for the few messages that are written by hand because protobuf takes several times as long.

Tests: tests/protocol/pulsar/test_receipts.py, tests/protocol/pulsar/test_deliveries.py.
"""

from __future__ import annotations

import struct

# The first byte of a number, by its lowest seven bits: where no others follow, and where some do. Numbers that ascend by small
# steps have the others in common as a rule, so they are not computed for each of them.
LAST = [bytes((value,)) for value in range(0x80)]
MORE = [bytes((value | 0x80,)) for value in range(0x80)]
_three = struct.Struct("3B").pack
_four = struct.Struct("4B").pack
_MASK_64 = 0xFFFFFFFFFFFFFFFF


def varint(value: int) -> bytes:
    """A number of at most 64 bits, negative ones as protobuf writes those of any signed type."""
    if 0 <= value < 0x10000000:
        if value < 0x80:
            return LAST[value]
        if value < 0x4000:
            return MORE[value & 0x7F] + LAST[value >> 7]
        if value < 0x200000:
            return _three(value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14)
        return _four(value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21)
    value &= _MASK_64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
