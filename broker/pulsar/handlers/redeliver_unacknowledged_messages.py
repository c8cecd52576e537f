"""REDELIVER_UNACKNOWLEDGED_MESSAGES: a consumer wants messages again, some or all that it has. There is no answer.

Tests: tests/pulsar/subscriptions/test_consuming.py.
"""

from broker.network.work import BULK_BYTES
from broker.pulsar.command import Call, Command, PulsarRequest, Type
from broker.pulsar.consumer_calls import find_entitled, subscription_of
from broker.pulsar.context import PulsarContext
from broker.pulsar.nonpersistent.consumer import PassingConsumer

# Ids for which the subscription's lock is taken once: about 2 ms.
_AT_ONCE = 1000


def handle(call: Call) -> None:
    body = call.body
    connected = find_entitled(call, body.consumer_id)
    if connected is not None and not isinstance(connected, PassingConsumer):  # of those nothing is kept
        subscription = subscription_of(connected)
        epoch = body.consumer_epoch if body.HasField("consumer_epoch") else None
        if not body.message_ids:
            subscription.redeliver(connected, None, epoch)
        else:
            ledger = subscription.topic.ledger
            entries = [one.entryId for one in body.message_ids if one.ledgerId == ledger]
            for at in range(0, len(entries), _AT_ONCE):
                subscription.redeliver(connected, entries[at : at + _AT_ONCE], epoch)
    call.done()


def inline(context: PulsarContext, request: PulsarRequest) -> bool:
    return len(request.frame) <= BULK_BYTES


COMMAND = Command(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, handle, inline=inline)
