"""CONSUMER_STATS: what a consumer has been sent, what it may be sent, and the backlog of its subscription.

Tests: tests/pulsar/subscriptions/test_consuming.py.
"""

from broker.errors import Refusal, StorageError
from broker.pulsar.command import Call, Command, Type
from broker.pulsar.consumer_calls import consumer_of
from broker.pulsar.error_codes import code_of
from broker.pulsar.nonpersistent.subscription import NonPersistentSubscription
from broker.pulsar.subscriptions.dispatchers import NAMES
from broker.pulsar.subscriptions.subscription import Subscription
from protocol.pulsar.pulsar_pb2 import CommandConsumerStatsResponse


def handle(call: Call) -> None:
    connected = consumer_of(call)
    subscription = connected.subscription
    assert isinstance(subscription, Subscription | NonPersistentSubscription)
    consumer = connected.consumer
    call.reply(
        Type.CONSUMER_STATS_RESPONSE,
        CommandConsumerStatsResponse(
            request_id=call.body.request_id,
            consumerName=consumer.name,
            availablePermits=max(0, consumer.permits),
            unackedMessages=max(0, consumer.unacked),
            blockedConsumerOnUnackedMsgs=consumer.blocked,
            address=connected.connection.connection.peer.host,
            connectedSince=str(connected.since_ms),
            type=NAMES[subscription.kind],
            msgBacklog=subscription.backlog if isinstance(subscription, Subscription) else 0,
        ),
    )


def refuse(call: Call, error: Refusal | StorageError) -> None:
    call.reply(
        Type.CONSUMER_STATS_RESPONSE,
        CommandConsumerStatsResponse(
            request_id=call.body.request_id, error_code=code_of(error), error_message=str(error)
        ),
    )


COMMAND = Command(Type.CONSUMER_STATS, handle, on_error=refuse)
