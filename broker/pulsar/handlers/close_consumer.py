"""CLOSE_CONSUMER: the client is done with a consumer. SUCCESS, whether there is such a consumer or not.

Tests: tests/pulsar/subscriptions/test_consuming.py.
"""

from broker.pulsar.command import Call, Command, Type
from broker.pulsar.consumer_calls import find_consumer


def handle(call: Call) -> None:
    connected = find_consumer(call, call.body.consumer_id)
    if connected is not None:
        call.state.remove_consumer(connected.id, connected)
        connected.subscription.leave(connected)
    call.success()


COMMAND = Command(Type.CLOSE_CONSUMER, handle)
