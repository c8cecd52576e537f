"""Ids of messages: a ledger, an entry in it and a place in the entry's batch, with the two that mean the ends of the topic."""

from __future__ import annotations

from typing import NamedTuple

from protocol.pulsar.pulsar_pb2 import MessageIdData

_UINT64 = 1 << 64
MINUS_1 = _UINT64 - 1  # as it is on the wire
_LATEST = (1 << 63) - 1


class MessageId(NamedTuple):
    """Ledger and entry are signed, as in Pulsar: -1 stands for "none". ``batch_index`` -1: the whole entry."""

    ledger_id: int
    entry_id: int
    partition: int = -1
    batch_index: int = -1

    @property
    def is_earliest(self) -> bool:
        """Before all messages. Also the last id of an empty topic, and the id of a message that was there already."""
        return self.ledger_id == -1 and self.entry_id == -1

    @property
    def is_latest(self) -> bool:
        """After all messages."""
        return self.ledger_id == _LATEST and self.entry_id == _LATEST

    def encode(self) -> MessageIdData:
        return MessageIdData(
            ledgerId=self.ledger_id % _UINT64,
            entryId=self.entry_id % _UINT64,
            partition=self.partition,
            batch_index=self.batch_index,
        )


EARLIEST = MessageId(-1, -1)
LATEST = MessageId(_LATEST, _LATEST)


def read_message_id(data: MessageIdData) -> MessageId:
    """Any numbers are a message id, so this refuses nothing."""
    return MessageId(signed(data.ledgerId), signed(data.entryId), data.partition, data.batch_index)


def signed(value: int) -> int:
    """A uint64 as the signed number that it stands for, as in Java."""
    return value - _UINT64 if value >> 63 else value
