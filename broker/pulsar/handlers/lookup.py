"""The commands about topics: lookup, partitions, lists and the last message id.

- LOOKUP: the broker to which a client connects for a topic: this one, or the node that has the topic, where the client asks
  again. The answer has the address of the listener that the client has used or names, and the address of the first listener that
  does the same with TLS, or without.
- PARTITIONED_METADATA: the number of partitions of a topic; 0 if it is not partitioned. Where topics are created on demand with
  partitions (``pulsar_auto_topic_partitions``), this command creates them. Otherwise PRODUCER and SUBSCRIBE do, and a missing
  topic has 0.
- GET_TOPICS_OF_NAMESPACE: the names of its topics, with each partition listed. Clients with a regular expression for topics
  repeat this command. They do the filtering (``filtered`` is false), because matching a client's expression can take for ever.
  A client that names the hash of its last list is told whether the list has changed.
- WATCH_TOPIC_LIST: the topics of a namespace that match an expression; the client is told of changes until
  WATCH_TOPIC_LIST_CLOSE. Only clients that ask are told: others close the connection at an unknown command. A topic is shown
  only if the client may see it in the list of the namespace, which is checked at each change.
- GET_LAST_MESSAGE_ID: of the topic, and the subscription's mark-delete position. Clients compare the two to learn whether there
  are more messages.

Tests: tests/pulsar/test_service.py,
tests/pulsar/topics/test_watches.py,
tests/pulsar/subscriptions/test_consuming.py.
"""

from functools import partial
from typing import Any

from broker.cluster.nodes import Node
from broker.config import Listener
from broker.errors import Refusal, StorageError
from broker.network.service import Connection, Peer
from broker.network.work import ADMIN
from broker.part import as_reached
from broker.pulsar.command import Call, Command, PulsarRequest, Type
from broker.pulsar.consumer_calls import answering, consumer_of, subscription_of
from broker.pulsar.context import PulsarContext
from broker.pulsar.entry import Entry
from broker.pulsar.refusals import Elsewhere, InvalidTopicName, NotAllowed, ServiceNotReady, TopicNotFound, code_of
from broker.pulsar.rights import may, require_creation, require_topic
from broker.pulsar.subscriptions.locating import first_located, locate_last
from broker.pulsar.topic_names import TopicName, check_namespace, parse_topic, topics_hash
from broker.pulsar.topics.topic import Topic
from broker.security.acl import Operation, ResourceType
from protocol.pulsar.metadata import MINUS_1
from protocol.pulsar.pulsar_pb2 import (
    CommandGetLastMessageIdResponse,
    CommandGetTopicsOfNamespace,
    CommandGetTopicsOfNamespaceResponse,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
    CommandWatchTopicListSuccess,
    MessageIdData,
)

Response = CommandLookupTopicResponse
MetadataResponse = CommandPartitionedTopicMetadataResponse


def handle_lookup(call: Call) -> None:
    context, connection, body = call.context, call.connection, call.body
    name = parse_topic(body.topic)
    context.topics.check_namespace(name)
    require_topic(context, connection, Operation.DESCRIBE, name)
    owner = owner_of(context, name)
    if owner is not None and body.authoritative:
        # Another node took this one for the topic's: one of them has not heard yet how many partitions the topic has.
        raise ServiceNotReady("Another node has this topic; look it up again.")
    plain, tls = service_urls(context, connection.peer, body.advertised_listener_name, owner)
    call.reply(
        Type.LOOKUP_RESPONSE,
        Response(
            request_id=body.request_id,
            response=Response.LookupType.Connect if owner is None else Response.LookupType.Redirect,
            authoritative=True,
            brokerServiceUrl=plain,
            brokerServiceUrlTls=tls,
            proxy_through_service_url=False,
        ),
    )


def owner_of(context: PulsarContext, name: TopicName) -> Node | None:
    """The other node that has the topic; None: this one has it. Raises ServiceNotReady if that node is not there now."""
    try:
        context.of_domain(name).check_here(name)
    except Elsewhere as elsewhere:
        nodes = context.logs.nodes
        owner = None if nodes is None else nodes.owner_of(elsewhere.topic, elsewhere.partition)
        if owner is None:
            raise ServiceNotReady("The node that has this topic is being started again.") from None
        return owner
    return None


def service_urls(
    context: PulsarContext, peer: Peer, named: str = "", node: Node | None = None
) -> tuple[str | None, str | None]:
    """The URLs without and with TLS for this client; None where no listener has one. ``named``: the name of the listener that
    the client asks for. ``node``: whose; None: this one's. Raises ServiceNotReady."""
    listener = context.listeners.get(named or peer.listener)
    if listener is None and named:
        raise ServiceNotReady(f"the broker do not have {named[:200]} listener")
    if listener is None:  # the client uses another protocol
        listener = next(iter(context.listeners.values()))
    other = next((each for each in context.listeners.values() if each.ssl != listener.ssl), None)
    urls = {each.ssl: _url(context, each, peer, node) for each in (listener, other) if each is not None}
    return urls.get(False), urls.get(True)


def _url(context: PulsarContext, listener: Listener, peer: Peer, node: Node | None) -> str:
    if node is None:
        host, port = context.advertised(listener.name, peer)
    elif listener.name in node.endpoints:
        host, port = as_reached(node.endpoints[listener.name], peer)
    else:
        raise ServiceNotReady(f"The node that has this topic has no listener {listener.name}.")
    host = f"[{host}]" if ":" in host else host
    return f"pulsar{'+ssl' * listener.ssl}://{host}:{port}"


def _refuse(type: int, answer: Any, call: Call, error: Refusal | StorageError) -> None:
    failed = answer.LookupType.Failed
    call.reply(type, answer(request_id=call.body.request_id, response=failed, error=code_of(error), message=str(error)))


LOOKUP = Command(Type.LOOKUP, handle_lookup, on_error=partial(_refuse, Type.LOOKUP_RESPONSE, Response))


def handle_partitioned_metadata(call: Call) -> None:
    context, body = call.context, call.body
    name = parse_topic(body.topic)
    context.topics.check_namespace(name)
    require_topic(context, call.connection, Operation.DESCRIBE, name)
    partitions = context.of_domain(name).partitions(name)
    if partitions is None:
        if not body.metadata_auto_creation_enabled:
            raise TopicNotFound(f"Topic {name} does not exist")
        partitions = 0
        if context.topics.creates_partitioned(name):
            require_creation(context, call.connection, name)
            partitions = context.topics.create_on_demand(name)
    call.reply(
        Type.PARTITIONED_METADATA_RESPONSE,
        MetadataResponse(
            request_id=body.request_id, response=MetadataResponse.LookupType.Success, partitions=partitions
        ),
    )


def inline_partitioned_metadata(context: PulsarContext, request: PulsarRequest) -> bool:
    """Not inline if a topic is created, which waits for the disk."""
    try:
        name = parse_topic(request.body.topic)
    except InvalidTopicName:
        return True  # to be refused
    return not context.topics.creates_partitioned(name) or context.topics.partitions(name) is not None


PARTITIONED_METADATA = Command(
    Type.PARTITIONED_METADATA,
    handle_partitioned_metadata,
    inline=inline_partitioned_metadata,
    lane=ADMIN,
    on_error=partial(_refuse, Type.PARTITIONED_METADATA_RESPONSE, MetadataResponse),
)


def handle_topics_of_namespace(call: Call) -> None:
    context, body = call.context, call.body
    namespace = check_namespace(body.namespace)
    names: list[TopicName] = []
    if body.mode != CommandGetTopicsOfNamespace.Mode.NON_PERSISTENT:
        names += context.topics.topics(namespace)
    if body.mode != CommandGetTopicsOfNamespace.Mode.PERSISTENT:
        names += context.nonpersistent.topics(namespace)
    if context.authorizer is not None:
        names = [name for name in names if _may_see(context, call.connection, context.kafka_name(name))]
    texts = [str(name) for name in names]
    response = CommandGetTopicsOfNamespaceResponse(request_id=body.request_id, filtered=False)
    if body.topics_hash:
        response.topics_hash = topics_hash(texts)
        response.changed = response.topics_hash != body.topics_hash
    if not body.topics_hash or response.changed:
        response.topics.extend(texts)
    call.reply(Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, response)


def _may_see(context: PulsarContext, connection: Connection, topic: str) -> bool:
    """``topic``: the name in Kafka."""
    return may(context, connection, Operation.DESCRIBE, ResourceType.TOPIC, topic, audited=False)


TOPICS_OF_NAMESPACE = Command(Type.GET_TOPICS_OF_NAMESPACE, handle_topics_of_namespace, inline=False, lane=ADMIN)


def handle_watch_topic_list(call: Call) -> None:
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


def close_watch_topic_list(call: Call) -> None:
    call.context.watches.end(call.state, call.body.watcher_id)
    call.success()


WATCH_TOPIC_LIST = (
    Command(Type.WATCH_TOPIC_LIST, handle_watch_topic_list, inline=False, lane=ADMIN),
    Command(Type.WATCH_TOPIC_LIST_CLOSE, close_watch_topic_list),
)


def handle_get_last_message_id(call: Call) -> None:
    subscription = subscription_of(consumer_of(call))
    topic = subscription.topic

    def answer(last: Entry | Exception | None) -> None:
        if isinstance(last, Exception):
            raise last
        before = subscription.cursor.acknowledged_before
        call.reply(
            Type.GET_LAST_MESSAGE_ID_RESPONSE,
            CommandGetLastMessageIdResponse(
                request_id=call.body.request_id,
                last_message_id=_last_id(topic, last),
                consumer_mark_delete_position=_mark_delete(topic, before, last),
            ),
        )

    compacted = subscription.compacted
    if compacted is not None and compacted.ends_log:
        # Before the horizon, this consumer sees only the messages that compaction has left.
        compacted.read_last(partial(first_located, answering(call, answer)))
    else:
        locate_last(topic, answering(call, answer))


def _last_id(topic: Topic, last: Entry | None) -> MessageIdData:
    if last is None:
        return MessageIdData(ledgerId=MINUS_1, entryId=MINUS_1, partition=topic.partition)
    return MessageIdData(
        ledgerId=topic.ledger,
        entryId=last.offset,
        partition=topic.partition,
        batch_index=last.messages - 1 if last.batched else None,
    )


def _mark_delete(topic: Topic, before: int, last: Entry | None) -> MessageIdData:
    """The id of the last entry that is acknowledged with all before it; for an entry in the middle of the log, any offset of it
    will do."""
    if before <= topic.log.log_start_offset and (last is None or before <= last.offset):
        entry = MINUS_1 if before == 0 else before - 1
    else:
        entry = last.offset if last is not None and before > last.offset else before - 1
    return MessageIdData(ledgerId=topic.ledger, entryId=entry, partition=topic.partition)


GET_LAST_MESSAGE_ID = Command(Type.GET_LAST_MESSAGE_ID, handle_get_last_message_id)
