"""MESSAGE frames, SEND_RECEIPTs, and the constant commands PING and PONG.

A MESSAGE frame brings an entry to a consumer. The broker writes only its head, which counts the bytes of the entry's stored part;
that follows unchanged, often by sendfile. Heads, and the receipts written for each entry, are encoded by hand, because protobuf
takes five times as long. Objects here belong to one thread at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from protocol.errors import ProtocolError
from protocol.pulsar.frames import COMMAND_AT, LAST, MORE, command_end, parse, varint, write_command
from protocol.pulsar.pulsar_pb2 import BaseCommand, BrokerEntryMetadata, CommandMessage, CommandPing, CommandPong
from protocol.pulsar.sends import StoredPart, read_stored_part
from protocol.wire import BytesLike

MAGIC_BROKER_ENTRY = 0x0E02

_SIZES = struct.Struct(">II")
_BROKER_ENTRY = struct.Struct(">HI")  # magic, size


class Deliveries:
    """The heads of a consumer's MESSAGE frames while its topic keeps its ledger. ``partition`` -1: not partitioned."""

    __slots__ = ("_consumer", "_heads", "_ledger", "_partition")

    def __init__(self, consumer_id: int, ledger_id: int, partition: int = -1) -> None:
        self._consumer = b"\x08" + varint(consumer_id)
        self._ledger = b"\x08" + varint(ledger_id) + b"\x10"
        self._partition = b"" if partition < 0 else b"\x18" + varint(partition)
        # By the length of the entry's varint: all bytes before it, where nothing follows the id. Made on demand, because many
        # consumers are idle.
        self._heads: dict[int, tuple[int, bytes]] = {}

    def _head_before(self, entry_size: int) -> tuple[int, bytes]:
        id_size = len(self._ledger) + entry_size + len(self._partition)
        size = len(self._consumer) + 2 + id_size
        before = b"\x08\x09\x4a%c%b\x12%c%b" % (size, self._consumer, id_size, self._ledger)
        self._heads[entry_size] = size + 4, before
        return size + 4, before

    def head(
        self,
        entry_id: int,
        stored_size: int,
        redelivery_count: int = 0,
        ack_set: Sequence[int] = (),
        consumer_epoch: int | None = None,
        broker_entry: bytes = b"",
    ) -> bytes:
        """A frame without the ``stored_size`` bytes that follow. ``broker_entry``: the result of ``broker_entry_block``."""
        if not (redelivery_count or ack_set or consumer_epoch is not None or broker_entry):
            before, first, after = self.plain(entry_id, stored_size)
            return before + first[entry_id & 0x7F] + after
        entry = varint(entry_id)
        _, before = self._heads.get(len(entry)) or self._head_before(len(entry))
        rest = b"" if not redelivery_count else b"\x18" + varint(redelivery_count)
        if ack_set:
            rest += b"".join([b"\x20" + varint(word) for word in ack_set])
        if consumer_epoch is not None:
            rest += b"\x28" + varint(consumer_epoch)
        message = before[4:] + entry + self._partition + rest
        command = b"\x08\x09\x4a" + varint(len(message)) + message
        size = len(command)
        return _SIZES.pack(size + 4 + len(broker_entry) + stored_size, size) + command + broker_entry

    def plain(self, entry_id: int, stored_size: int) -> tuple[bytes, Sequence[bytes], bytes]:
        """The head of an entry that is delivered whole for the first time, in three pieces: the beginning, the entry id's first
        byte, indexed by the id's lowest seven bits, and the rest. Entries of the same size whose ids differ only in those bits
        share all three."""
        others = entry_id >> 7
        rest, first = (varint(others), MORE) if others else (b"", LAST)
        size, before = self._heads.get(len(rest) + 1) or self._head_before(len(rest) + 1)
        return _SIZES.pack(size + 4 + stored_size, size) + before, first, rest + self._partition


def broker_entry_block(timestamp_ms: int, index: int) -> bytes:
    """The broker's metadata of an entry, for clients that asked for it; ``index``: that of the entry's last message."""
    metadata = b"\x08" + varint(timestamp_ms) + b"\x10" + varint(index)
    return _BROKER_ENTRY.pack(MAGIC_BROKER_ENTRY, len(metadata)) + metadata


class Delivery(NamedTuple):
    """A MESSAGE frame, as read by a client."""

    command: CommandMessage
    broker_entry: BrokerEntryMetadata | None
    stored: StoredPart


def read_delivery(frame: BytesLike) -> Delivery:
    """A whole MESSAGE frame, for clients, tests and the simulator; the broker does not use it. Raises ProtocolError."""
    pos = command_end(frame)
    command = parse(BaseCommand, frame[COMMAND_AT:pos])
    if not command.HasField("message"):
        raise ProtocolError(f"a MESSAGE frame whose command has the type {command.type}")
    broker_entry = None
    if len(frame) - pos >= _BROKER_ENTRY.size:
        magic, size = _BROKER_ENTRY.unpack_from(frame, pos)
        if magic == MAGIC_BROKER_ENTRY:
            pos += _BROKER_ENTRY.size
            if pos + size > len(frame):
                raise ProtocolError(f"broker metadata of {size} bytes where {len(frame) - pos} are left")
            broker_entry = parse(BrokerEntryMetadata, frame[pos : pos + size])
            pos += size
    return Delivery(command.message, broker_entry, read_stored_part(frame, pos))


PING = write_command(BaseCommand.Type.PING, CommandPing())
PONG = write_command(BaseCommand.Type.PONG, CommandPong())


# Ledger and entry in the receipt of a duplicate message: -1 as an unsigned number.
DUPLICATE = 0xFFFFFFFFFFFFFFFF


class Receipts:
    """The receipts of a producer while its topic keeps its ledger."""

    __slots__ = ("_before", "_ids")

    def __init__(self, producer_id: int, ledger_id: int) -> None:
        producer = b"\x08" + varint(producer_id) + b"\x10"
        ledger = b"\x08" + varint(ledger_id) + b"\x10"
        # By the length of the entry's varint: the bytes before it.
        self._ids = [b"\x1a%c%b" % (len(ledger) + length, ledger) for length in range(11)]
        # By the length of the whole receipt: the bytes before the sequence id. A receipt is shorter than 128 bytes, so that each
        # nested size takes one byte.
        size = len(producer) + 2 + len(ledger) + 1
        self._before = [
            _SIZES.pack(size + 8, size + 4) + b"\x08\x07\x3a%c%b" % (size, producer) for size in range(size, size + 31)
        ]

    def receipts(self, of: Iterable[tuple[int, int, int]]) -> bytes:
        """The frames for these (sequence id, entry id, highest sequence id; 0: none)."""
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
