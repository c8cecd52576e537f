"""PONG: the client lives.

Tests: tests/pulsar/test_service.py.
"""

from broker.pulsar.command import Call, Command, Type


def handle(call: Call) -> None:
    call.context.liveness.heard(call.state)
    call.done()


COMMAND = Command(Type.PONG, handle)
