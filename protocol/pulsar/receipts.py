"""SEND_RECEIPT, written once for each entry, and the commands that never differ.

Written by hand: protobuf takes five times as long.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from protocol.pulsar.frames import write_command
from protocol.pulsar.parsing import LAST, MORE, varint
from protocol.pulsar.pulsar_pb2 import BaseCommand, CommandPing, CommandPong

PING = write_command(BaseCommand.Type.PING, CommandPing())
PONG = write_command(BaseCommand.Type.PONG, CommandPong())

_SIZES = struct.Struct(">II")

# What a receipt carries in place of ledger and entry when the message was there already: -1 as an unsigned number.
DUPLICATE = 0xFFFFFFFFFFFFFFFF


class Receipts:
    """The receipts of one producer while its topic has one ledger."""

    __slots__ = ("_before", "_ids")

    def __init__(self, producer_id: int, ledger_id: int) -> None:
        producer = b"\x08" + varint(producer_id) + b"\x10"
        ledger = b"\x08" + varint(ledger_id) + b"\x10"
        # By the length of the entry's varint: what stands before it.
        self._ids = [b"\x1a%c%b" % (len(ledger) + length, ledger) for length in range(11)]
        # By the length of the whole receipt: what stands before the sequence. All is shorter than 128 bytes, so that each of
        # the nested sizes takes one.
        size = len(producer) + 2 + len(ledger) + 1
        self._before = [
            _SIZES.pack(size + 8, size + 4) + b"\x08\x07\x3a%c%b" % (size, producer) for size in range(size, size + 31)
        ]

    def receipts(self, of: Iterable[tuple[int, int, int]]) -> bytes:
        """The frames for these: sequence id, entry id, highest sequence id (0: there is none) of each."""
        parts: list[bytes] = []
        known_sequence = known_entry = -1  # without their lowest seven bits
        before = between = after = sequence = entry = b""
        first_of_sequence = first_of_entry = LAST
        for sequence_id, entry_id, highest in of:
            if sequence_id >> 7 != known_sequence or entry_id >> 7 != known_entry:
                known_sequence, known_entry = sequence_id >> 7, entry_id >> 7
                sequence, first_of_sequence = (varint(known_sequence), MORE) if known_sequence else (b"", LAST)
                entry, first_of_entry = (varint(known_entry), MORE) if known_entry else (b"", LAST)
                before = self._before[len(sequence) + len(entry) + 3]
                between = sequence + self._ids[len(entry) + 1]
                after = entry + b"\x20\x00"
            if highest:
                last = varint(highest)
                parts += (
                    self._before[len(sequence) + len(entry) + 2 + len(last)],
                    first_of_sequence[sequence_id & 0x7F],
                    between,
                    first_of_entry[entry_id & 0x7F],
                    entry,
                    b"\x20",
                    last,
                )
            else:
                parts += (
                    before,
                    first_of_sequence[sequence_id & 0x7F],
                    between,
                    first_of_entry[entry_id & 0x7F],
                    after,
                )
        return b"".join(parts)
