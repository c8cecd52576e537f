"""SEEK: the subscription goes on somewhere else, at a message or a time. Its consumers are closed, and subscribe again.

SUCCESS when the new position is durable. Whether the message that is named comes first or the one after it is the client's own
business: the broker reads at it.

Tests: tests/pulsar/subscriptions/test_consuming.py.
"""

from collections.abc import Sequence
from functools import partial

from broker.network.work import INSPECTION
from broker.pulsar.command import Call, Command, Type
from broker.pulsar.consumer_calls import answering, consumer_of, subscription_of, success_when_saved
from broker.pulsar.entry import Entry
from broker.pulsar.nonpersistent.consumer import PassingConsumer
from broker.pulsar.refusals import MetadataInvalid
from broker.pulsar.subscriptions.locating import locate, offset_at, offset_of
from broker.pulsar.subscriptions.subscription import Subscription


def handle(call: Call) -> None:
    body = call.body
    connected = consumer_of(call)
    if isinstance(connected, PassingConsumer):
        call.success()  # as in Pulsar: there is nothing else than what comes next
        return
    subscription = subscription_of(connected)
    topic = subscription.topic
    ack_set: Sequence[int] | None = None
    if body.HasField("message_id"):
        offset = offset_of(topic, body.message_id)
        if offset == body.message_id.entryId:
            ack_set = tuple(body.message_id.ack_set) or None
    elif body.HasField("message_publish_time"):
        offset = offset_at(topic, body.message_publish_time)
    else:
        raise MetadataInvalid("A SEEK names a message or a time.")

    def located(found: Entry | Exception | None) -> None:
        if isinstance(found, Exception):
            raise found
        _reset(call, subscription, offset, found, ack_set)

    locate(topic, offset, answering(call, located))


def _reset(
    call: Call, subscription: Subscription, offset: int, found: Entry | None, ack_set: Sequence[int] | None
) -> None:
    if found is None or found.offset > offset:
        subscription.reset(offset)
    elif ack_set is None:
        subscription.reset(found.offset)
    else:
        subscription.reset(found.offset, (found.offset, found.messages, ack_set))
    subscription.save(partial(success_when_saved, call))


# To find a time, a batch may have to be decompressed.
COMMAND = Command(Type.SEEK, handle, inline=False, lane=INSPECTION)
