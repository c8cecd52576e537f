"""GET_LAST_MESSAGE_ID: of the topic, and how far the subscription has acknowledged. Clients compare the two to learn whether
there is more.

Tests: tests/pulsar/subscriptions/test_consuming.py.
"""

from functools import partial

from broker.pulsar.command import Call, Command, Type
from broker.pulsar.consumer_calls import answering, consumer_of, subscription_of
from broker.pulsar.entry import Entry
from broker.pulsar.subscriptions.locating import first_located, locate_last
from broker.pulsar.topics.topic import Topic
from protocol.pulsar.message_id import MINUS_1
from protocol.pulsar.pulsar_pb2 import CommandGetLastMessageIdResponse, MessageIdData


def handle(call: Call) -> None:
    subscription = subscription_of(consumer_of(call))
    topic = subscription.topic

    def answer(last: Entry | Exception | None) -> None:
        if isinstance(last, Exception):
            raise last
        before = subscription.cursor.acknowledged_before
        call.reply(
            Type.GET_LAST_MESSAGE_ID_RESPONSE,
            CommandGetLastMessageIdResponse(
                request_id=call.body.request_id,
                last_message_id=_last_id(topic, last),
                consumer_mark_delete_position=_mark_delete(topic, before, last),
            ),
        )

    compacted = subscription.compacted
    if compacted is not None and compacted.ends_log:
        # Of what lies before the horizon, this consumer sees only what is left.
        compacted.read_last(partial(first_located, answering(call, answer)))
    else:
        locate_last(topic, answering(call, answer))


def _last_id(topic: Topic, last: Entry | None) -> MessageIdData:
    if last is None:
        return MessageIdData(ledgerId=MINUS_1, entryId=MINUS_1, partition=topic.partition)
    return MessageIdData(
        ledgerId=topic.ledger,
        entryId=last.offset,
        partition=topic.partition,
        batch_index=last.messages - 1 if last.batched else None,
    )


def _mark_delete(topic: Topic, before: int, last: Entry | None) -> MessageIdData:
    """The id of the last entry that is acknowledged with all before it. Of one in the middle of the log any offset will do."""
    if before <= topic.log.log_start_offset and (last is None or before <= last.offset):
        entry = MINUS_1 if before == 0 else before - 1
    else:
        entry = last.offset if last is not None and before > last.offset else before - 1
    return MessageIdData(ledgerId=topic.ledger, entryId=entry, partition=topic.partition)


COMMAND = Command(Type.GET_LAST_MESSAGE_ID, handle)
