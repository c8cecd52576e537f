"""PONG: the client lives, which its bytes have shown already."""

from broker.pulsar.command import Call, Command, Type

COMMAND = Command(Type.PONG, Call.done)
