"""PING: answered at once.

Tests: tests/pulsar/test_service.py.
"""

from broker.pulsar.command import Call, Command, Type
from protocol.pulsar.receipts import PONG


def handle(call: Call) -> None:
    call.send([PONG])


COMMAND = Command(Type.PING, handle)
