"""Ids of messages in JSON, and the entries that they mean.

Tests: tests/pulsar/admin/test_subscriptions.py.
"""

from typing import Any

from broker.network.routes import Call, HttpError
from broker.pulsar.admin.calls import number, waited_for
from broker.pulsar.entry import Entry
from broker.pulsar.subscriptions.locating import locate, locate_last, offset_in
from broker.pulsar.topics.topic import Topic
from protocol.pulsar.message_id import MessageId


def message_id_json(topic: Topic, entry: int, batch_index: int = -1) -> dict[str, int]:
    return {"ledgerId": topic.ledger, "entryId": entry, "partitionIndex": topic.partition, "batchIndex": batch_index}


def parse_message_id(value: Any) -> MessageId:
    """An object such as ``{"ledgerId": 1, "entryId": 2}``. Raises HttpError."""
    if not isinstance(value, dict):
        raise HttpError(400, "A message id is an object with ledgerId and entryId.")
    return MessageId(number(value.get("ledgerId"), "ledgerId", -1), number(value.get("entryId"), "entryId", -1))


def offset_of(topic: Topic, message_id: MessageId) -> int:
    """The offset that the id names; of another generation of the topic the start or the end."""
    return offset_in(topic, message_id.ledger_id, message_id.entry_id)


def entry_at(call: Call, topic: Topic, offset: int) -> Entry | None:
    """The entry that covers the offset, or the first one after it; None at the end."""
    found: Entry | None = waited_for(call, lambda done: locate(topic, offset, done))
    return found


def last_entry(call: Call, topic: Topic) -> Entry | None:
    found: Entry | None = waited_for(call, lambda done: locate_last(topic, done))
    return found
