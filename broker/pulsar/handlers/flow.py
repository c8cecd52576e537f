"""FLOW: a consumer can take so many messages more.

Tests: tests/pulsar/subscriptions/test_consuming.py.
"""

from broker.pulsar.command import Call, Command, Type
from broker.pulsar.consumer_calls import find_entitled
from protocol.errors import ProtocolError
from protocol.pulsar.acks import read_flow


def handle(call: Call) -> None:
    consumer_id, permits = read_flow(call.frame)
    if not permits:
        raise ProtocolError("a FLOW without permits")
    connected = find_entitled(call, consumer_id)
    # One of a consumer that this side has closed may have been under way.
    if connected is not None:
        connected.subscription.flow(connected, permits)
    call.done()


COMMAND = Command(Type.FLOW, handle)
