"""SEND_RECEIPT, written once for each entry, and the commands that never differ.

Written by hand: protobuf takes five times as long.
"""

from __future__ import annotations

import struct

from protocol.pulsar.frames import write_command
from protocol.pulsar.pulsar_pb2 import BaseCommand, CommandPing, CommandPong
from protocol.pulsar.varint import varint

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

    def receipt(self, sequence_id: int, entry_id: int, highest_sequence_id: int = 0) -> bytes:
        """The frame for one entry."""
        sequence = varint(sequence_id)
        entry = varint(entry_id)
        highest = varint(highest_sequence_id) if highest_sequence_id else b"\x00"
        before = self._before[len(sequence) + len(entry) + len(highest)]
        return before + sequence + self._ids[len(entry)] + entry + b"\x20" + highest
