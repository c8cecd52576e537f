"""WATCH_TOPIC_LIST, by which a client is told of new topics. Refused: CONNECTED says that it is not here, and clients then
poll.

Tests: tests/pulsar/test_service.py.
"""

from broker.pulsar.command import Call, Command, Type
from broker.pulsar.refusals import NotAllowed


def handle(call: Call) -> None:
    raise NotAllowed("This broker does not tell of new topics; ask for the topics of the namespace.")


COMMANDS = (Command(Type.WATCH_TOPIC_LIST, handle), Command(Type.WATCH_TOPIC_LIST_CLOSE, Call.success))
