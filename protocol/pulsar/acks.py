"""ACK and FLOW, which consumers send continuously: read without ``frames.read_command``'s checks of commands with text.

An ACK may have thousands of ids, so it is read by hand if it has the usual form, otherwise by protobuf.

Acknowledgement sets within a batch are Java BitSets on the wire: 64-bit words, the lowest first, in which bit 1 means *not*
acknowledged. Inside the broker such a set is one Python integer, whose bit i is message i. The words from a client are bounded by
the entry's number of messages, which the broker knows. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from protocol.errors import ProtocolError
from protocol.pulsar.frames import COMMAND_AT, MAX_COMMAND_SIZE, command_end, parse, parse_partial
from protocol.pulsar.pulsar_pb2 import BaseCommand, CommandAck
from protocol.wire import BytesLike


def bits_from_words(words: Sequence[int], messages: int) -> int:
    """The messages of a batch that are not acknowledged. Missing words are 0; bits beyond the batch are dropped."""
    count = -(-messages // 64)
    words = words[:count]
    value = int.from_bytes(struct.pack(f"<{len(words)}q", *words), "little")
    return value & (1 << messages) - 1


def words_from_bits(bits: int) -> tuple[int, ...]:
    """The words of a set; as in Java, the last word is not 0."""
    count = -(-bits.bit_length() // 64)
    return struct.unpack(f"<{count}q", bits.to_bytes(count * 8, "little"))


def all_bits(messages: int) -> int:
    """The set of a batch without acknowledged messages."""
    return (1 << messages) - 1


class Acked(NamedTuple):
    """An id of an ACK. ``ack_set`` has a bit for each message of the entry *not* acknowledged; empty: all are acknowledged."""

    ledger_id: int
    entry_id: int
    ack_set: tuple[int, ...]


class Ack(NamedTuple):
    """``request_id`` -1: no response is wanted. ``validation_error`` -1: none, otherwise why the client cannot use it.

    Nearly always an ACK is for whole entries of one ledger, individually. Then ``ids`` is empty: ``whole`` has the entry numbers,
    and ``ledger_id`` the ledger's number."""

    consumer_id: int
    cumulative: bool
    ids: list[Acked]
    request_id: int
    validation_error: int
    ledger_id: int = 0
    whole: Sequence[int] = ()


_new = tuple.__new__
_CUMULATIVE = CommandAck.AckType.Cumulative
_SIZES = struct.Struct(">II")
_ACK_TAGS = b"\x08\x0a\x52"  # the type with its value, and the tag of the ACK


def read_ack(frame: BytesLike) -> Ack:
    """A whole ACK frame, at 0.25 us an id. Raises ProtocolError."""
    try:
        ack = _read_plain_ack(bytes(frame))
    except (IndexError, struct.error):
        ack = None
    return ack or _read_any_ack(frame)


def _read_plain_ack(data: bytes) -> Ack | None:
    """An ACK of the usual form. None or IndexError for any other form, which protobuf then reads."""
    end = len(data)
    total, size = _SIZES.unpack_from(data)
    if total + 4 != end or size + COMMAND_AT != end or size > MAX_COMMAND_SIZE or data[8:11] != _ACK_TAGS:
        return None
    size, pos = _varint(data, 11)
    if pos + size != end or data[pos] != 0x08:
        return None
    consumer_id, pos = _varint(data, pos + 1)
    if data[pos] != 0x10 or data[pos + 1] > 1:
        return None
    cumulative = data[pos + 1] == 1
    pos += 2
    if not cumulative and (plain := _read_whole_entries(data, pos)) is not None:
        ledger_id, whole, request_id = plain
        return Ack(consumer_id, False, [], request_id, -1, ledger_id, whole)
    ids: list[Acked] = []
    # The beginning of the previous id: tag and value of the ledger, and the tag of the entry.
    ledger_id, before, before_size = 0, b"none", 4
    while pos < end and data[pos] == 0x1A:
        size = data[pos + 1]
        at = pos + 2
        pos = at + size
        if data[at : at + before_size] != before:
            ledger_id, after = _varint(data, at + 1)
            if data[at] != 0x08 or data[after] != 0x10:
                return None
            before = data[at : after + 1]
            before_size = len(before)
        at += before_size
        entry_id = data[at]
        at += 1
        if entry_id > 0x7F:
            entry_id, shift = entry_id & 0x7F, 7
            while (byte := data[at]) > 0x7F:
                entry_id |= (byte & 0x7F) << shift
                shift += 7
                at += 1
                if shift > 56:
                    return None
            entry_id |= byte << shift
            at += 1
        if at == pos:
            ids.append(_new(Acked, (ledger_id, entry_id, ())))
            continue
        words: tuple[int, ...] = ()
        while at < pos and data[at] == 0x28:
            word, at = _varint(data, at + 1)
            words += (word,)
        if at != pos or size > 0x7F:
            return None
        ids.append(_new(Acked, (ledger_id, entry_id, words)))
    request_id = -1
    if pos < end:
        if data[pos] != 0x40:
            return None
        request_id, pos = _varint(data, pos + 1)
    return Ack(consumer_id, cumulative, ids, request_id, -1) if pos == end else None


def _read_whole_entries(data: bytes, pos: int) -> tuple[int, list[int], int] | None:
    """The rest of an ACK with ids of one ledger, without sets: ledger, entries, request id. None: it has other ids."""
    end = len(data)
    entries: list[int] = []
    ledger_id = size = 0
    start = high_bytes = (
        b"none"  # the beginning of an id, up to the entry's number, and that number's bytes without the first
    )
    high = 0
    while pos < end and data[pos] == 0x1A:
        if not data.startswith(start, pos):
            ledger, at = _varint(data, pos + 3)
            if data[pos + 2] != 0x08 or data[at] != 0x10 or (entries and ledger != ledger_id):
                return None
            ledger_id = ledger
            start = data[pos : at + 1]
            size = pos + 2 + data[pos + 1] - (at + 1)  # of the entry's number
            if not 0 < size < 9:
                return None
        pos += len(start)
        low = data[pos]
        after = pos + size
        following = data[pos + 1 : after]
        if following != high_bytes:
            high = 0
            if size > 1:
                high, at = _varint(data, pos + 1)
                high <<= 7
                if at != after:
                    return None
            high_bytes = following
        if (low > 0x7F) is not (size > 1):
            return None
        entries.append(high | low & 0x7F)
        pos = after
    request_id = -1
    if pos < end and data[pos] == 0x40:
        request_id, pos = _varint(data, pos + 1)
    return (ledger_id, entries, request_id) if pos == end and entries else None


def _varint(data: bytes, pos: int) -> tuple[int, int]:
    """A varint of at most 63 bits and the position after it; IndexError for a longer varint."""
    value = shift = 0
    while (byte := data[pos]) > 0x7F:
        value |= (byte & 0x7F) << shift
        shift += 7
        pos += 1
        if shift > 56:
            raise IndexError
    return value | byte << shift, pos + 1


def _read_any_ack(frame: BytesLike) -> Ack:
    command = parse(BaseCommand, _only_command(frame))
    if not command.HasField("ack"):
        raise ProtocolError(f"a frame of type {command.type} in place of an ACK")
    ack = command.ack
    return Ack(
        ack.consumer_id,
        ack.ack_type == _CUMULATIVE,
        [Acked(i.ledgerId, i.entryId, tuple(i.ack_set)) for i in ack.message_id],
        ack.request_id if ack.HasField("request_id") else -1,
        ack.validation_error if ack.HasField("validation_error") else -1,
    )


def read_flow(frame: BytesLike) -> tuple[int, int]:
    """Consumer and permits of a whole FLOW frame; the permits may be any 32-bit value. Raises ProtocolError."""
    flow = parse_partial(BaseCommand, _only_command(frame)).flow
    consumer_id, permits = flow.consumer_id, flow.messagePermits
    if not (consumer_id and permits) and not flow.IsInitialized():
        raise ProtocolError("a frame without a whole FLOW in place of one")
    return consumer_id, permits


def _only_command(frame: BytesLike) -> BytesLike:
    end = command_end(frame)
    if end != len(frame):
        raise ProtocolError(f"a command with {len(frame) - end} bytes after it")
    return frame[COMMAND_AT:]
