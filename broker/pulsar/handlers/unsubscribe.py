"""UNSUBSCRIBE: the client deletes its subscription. SUCCESS when that is durable.

Tests: tests/pulsar/subscriptions/test_consuming.py.
"""

from functools import partial

from broker.pulsar.command import Call, Command, Type
from broker.pulsar.consumer_calls import consumer_of, success_when_saved
from broker.pulsar.nonpersistent.subscription import NonPersistentSubscription
from broker.pulsar.refusals import ConsumerBusy
from broker.pulsar.subscriptions.subscription import Subscription


def handle(call: Call) -> None:
    connected = consumer_of(call)
    subscription = connected.subscription
    assert isinstance(subscription, Subscription | NonPersistentSubscription)
    if not call.body.force and set(subscription.connected) - {connected}:
        # Clients show this text.
        raise ConsumerBusy("Unconnected or shared consumer attempting to unsubscribe")
    call.state.remove_consumer(connected.id, connected)
    subscription.leave(connected)
    if isinstance(subscription, NonPersistentSubscription):
        call.context.nonpersistent.unsubscribe(subscription)
        call.success()
        return
    call.context.subscriptions.remove(subscription, partial(success_when_saved, call))


COMMAND = Command(Type.UNSUBSCRIBE, handle)
