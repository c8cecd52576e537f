"""ACK and FLOW, which consumers send all the time, without what ``frames.read_command`` does for commands that hold text."""

from __future__ import annotations

from typing import NamedTuple

from protocol.errors import ProtocolError
from protocol.pulsar.frames import COMMAND_AT, command_end
from protocol.pulsar.parsing import parse, parse_partial
from protocol.pulsar.pulsar_pb2 import BaseCommand, CommandAck
from protocol.wire import BytesLike


class Acked(NamedTuple):
    """One id of an ACK. ``ack_set`` has a bit for each message of the entry that is *not* acknowledged; empty: all are."""

    ledger_id: int
    entry_id: int
    ack_set: tuple[int, ...]


class Ack(NamedTuple):
    """``request_id`` -1: no response is wanted. ``validation_error`` -1: none, else the client could not use the message."""

    consumer_id: int
    cumulative: bool
    ids: list[Acked]
    request_id: int
    validation_error: int


_new = tuple.__new__
_CUMULATIVE = CommandAck.AckType.Cumulative


def read_ack(frame: BytesLike) -> Ack:
    """A whole ACK frame, at 0.6 us an id. Raises ProtocolError."""
    command = parse(BaseCommand, _only_command(frame))
    ack = command.ack
    ids: list[Acked] = [
        _new(Acked, (i.ledgerId, i.entryId, tuple(words) if (words := i.ack_set) else ())) for i in ack.message_id
    ]
    # A field that is not there reads as zero, and asking for it takes twice as long: so only a zero is asked about.
    consumer_id = ack.consumer_id
    if not consumer_id and not command.HasField("ack"):
        raise ProtocolError(f"a frame of type {command.type} in place of an ACK")
    request_id = ack.request_id
    if not request_id and not ack.HasField("request_id"):
        request_id = -1
    validation_error = ack.validation_error
    if not validation_error and not ack.HasField("validation_error"):
        validation_error = -1
    read: Ack = _new(Ack, (consumer_id, ack.ack_type == _CUMULATIVE, ids, request_id, validation_error))
    return read


def read_flow(frame: BytesLike) -> tuple[int, int]:
    """Consumer and permits of a whole FLOW frame; the permits may be any 32 bits. Raises ProtocolError."""
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
