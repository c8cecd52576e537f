"""WATCH_TOPIC_LIST: the topics of a namespace that match an expression; the client is told of changes until
WATCH_TOPIC_LIST_CLOSE.

Only clients that ask are told: others close the connection at a command that they do not know. A topic is shown to who may see it
in the list of the namespace, which is asked at each change.

Tests: tests/pulsar/topics/test_watches.py.
"""

from functools import partial

from broker.network.service import Connection
from broker.network.work import ADMIN
from broker.pulsar.command import Call, Command, Type
from broker.pulsar.context import PulsarContext
from broker.pulsar.refusals import NotAllowed
from broker.pulsar.rights import may
from broker.pulsar.topic_names import check_namespace, topics_hash
from broker.security.acl import Operation, ResourceType
from protocol.pulsar.pulsar_pb2 import CommandWatchTopicListSuccess


def handle(call: Call) -> None:
    body, watches = call.body, call.context.watches
    may_see = partial(_may_see, call.context, call.connection)
    namespace = check_namespace(body.namespace)
    watch = watches.begin(call.state, body.watcher_id, namespace, body.topics_pattern, may_see)
    topics = watch.topics
    answer = CommandWatchTopicListSuccess(
        request_id=body.request_id, watcher_id=body.watcher_id, topics_hash=topics_hash(topics)
    )
    if answer.topics_hash != body.topics_hash:
        answer.topic.extend(topics)
    if answer.ByteSize() > call.context.config.pulsar_max_message_bytes:
        watches.end(call.state, body.watcher_id)
        raise NotAllowed(f"{len(topics)} topics are more than an answer can have.")
    call.reply(Type.WATCH_TOPIC_LIST_SUCCESS, answer)
    watches.ready(watch)


def close(call: Call) -> None:
    call.context.watches.end(call.state, call.body.watcher_id)
    call.success()


def _may_see(context: PulsarContext, connection: Connection, topic: str) -> bool:
    return may(context, connection, Operation.DESCRIBE, ResourceType.TOPIC, topic, audited=False)


COMMANDS = (
    Command(Type.WATCH_TOPIC_LIST, handle, inline=False, lane=ADMIN),
    Command(Type.WATCH_TOPIC_LIST_CLOSE, close),
)
