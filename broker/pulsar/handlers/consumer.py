"""The commands of consumers.

- SUBSCRIBE: a client joins a subscription, which is created on demand. SUCCESS when that is durable, before any message.
- UNSUBSCRIBE: the client deletes its subscription. SUCCESS when that is durable.
- CLOSE_CONSUMER: the client closes a consumer. SUCCESS, whether the consumer exists or not.
- FLOW: a consumer gives permits for further messages.
- ACK: messages are consumed. With a request id, ACK_RESPONSE follows when that is durable. The connection's next commands do not
  wait for that, unless an acknowledgement names entries with an unknown number of messages: then they wait until these entries
  have been read, so that a client cannot cause many such reads at a time.
- REDELIVER_UNACKNOWLEDGED_MESSAGES: a consumer wants some or all of its messages again. There is no answer.
- SEEK: the subscription moves to a message or a time. Its consumers are closed, and subscribe again. SUCCESS when the new
  position is durable. The client decides whether the named message or its successor comes first: the broker reads at the message.
- CONSUMER_STATS: the messages sent to a consumer, its permits, and the backlog of its subscription.

Tests: tests/pulsar/subscriptions/test_consuming.py.
"""

from collections.abc import Callable, Sequence
from functools import partial

from broker.errors import Refusal, StorageError
from broker.network.work import ADMIN, BULK_BYTES, INSPECTION
from broker.pulsar.command import Call, Command, PulsarRequest, Type
from broker.pulsar.consumer_calls import (
    answering,
    consumer_of,
    find_consumer,
    find_entitled,
    subscription_of,
    success_when_saved,
)
from broker.pulsar.context import PulsarContext
from broker.pulsar.dispatch.dispatcher import NAMES, SINGLE_ACTIVE, KeySharedPolicy, SubType
from broker.pulsar.entry import Entry
from broker.pulsar.handlers import schemas
from broker.pulsar.nonpersistent.subscription import NonPersistentSubscription, PassingConsumer
from broker.pulsar.nonpersistent.topic import NonPersistentTopic
from broker.pulsar.refusals import (
    ConsumerAssignError,
    ConsumerBusy,
    ConsumerNotFound,
    MetadataInvalid,
    NotAllowed,
    ServiceNotReady,
    code_of,
)
from broker.pulsar.rights import require_creation, require_subscription, require_topic
from broker.pulsar.subscriptions.acknowledging import Acknowledging
from broker.pulsar.subscriptions.consumer import ConnectedConsumer
from broker.pulsar.subscriptions.locating import locate, offset_at, offset_of
from broker.pulsar.subscriptions.subscription import Subscription
from broker.pulsar.subscriptions.subscriptions import Busy, Join, Missing
from broker.pulsar.topic_names import parse_topic
from broker.pulsar.topics.topic import AnyTopic, Topic
from broker.security.acl import Operation
from protocol.errors import ProtocolError
from protocol.pulsar.acks import read_ack, read_flow
from protocol.pulsar.frames import write_command
from protocol.pulsar.pulsar_pb2 import CommandAckResponse, CommandConsumerStatsResponse, CommandSubscribe, KeySharedMode

# The longest name of a subscription or consumer, and the limit of all properties together.
_NAME_BYTES = 1024
_PROPERTIES_BYTES = 16 * 1024
_RANGES_MAX = 1000

Enter = Callable[[], ConnectedConsumer]  # raises a Refusal, or Missing


def handle_subscribe(call: Call) -> None:
    context, body = call.context, call.body
    name = parse_topic(body.topic)
    require_topic(context, call.connection, Operation.READ, name)
    require_subscription(context, call.connection, name, body.subscription)
    join = _join(body)
    known = find_consumer(call, join.consumer_id)
    if known is not None:
        # The client did not get the answer in time, and repeats the command.
        if known.subscription.name != join.subscription:
            raise NotAllowed("The connection has another consumer of this number.")
        call.success()
        return
    topics = context.of_domain(name)
    topic = topics.get(name)
    if topic is None:
        if body.force_topic_creation:
            require_creation(context, call.connection, name)
        topic = topics.get_or_create(name, create=body.force_topic_creation)
    _check_policies(call, topic, join)
    if isinstance(topic, NonPersistentTopic):
        _attach(call, partial(context.nonpersistent.join, topic, call.state, join))
        return
    schemas.of_consumer(context, topic, body, str(call.connection.principal))
    try:
        _join_at(call, topic, join, None)
    except Missing:
        _begin(call, topic, join)


def _check_policies(call: Call, topic: AnyTopic, join: Join) -> None:
    """Raises NotAllowed."""
    consumer = call.connection.peer.host, join.consumer_name, join.consumer_id
    call.context.limits.check_subscribing(topic, NAMES[join.kind], consumer, call.context.clock.monotonic())


def _begin(call: Call, topic: Topic, join: Join) -> None:
    """Join a new subscription."""
    context, body = call.context, call.body
    if join.durable:
        context.limits.check_new_subscription(topic)
    if body.start_message_rollback_duration_sec:
        since = context.clock.time_ms() - body.start_message_rollback_duration_sec * 1000
        _start_at(call, topic, join, offset_at(topic, since))
    elif not join.durable and body.HasField("start_message_id"):
        # A reader. The broker begins at the named message. Whether the reader begins with this message or its successor, and
        # where within a batch, is decided by the client, which skips earlier messages.
        _start_at(call, topic, join, offset_of(topic, body.start_message_id))
    elif body.initialPosition == CommandSubscribe.InitialPosition.Earliest:
        _join_at(call, topic, join, topic.log.log_start_offset)
    else:
        _join_at(call, topic, join, topic.reader.end)


def _join(body: CommandSubscribe) -> Join:
    """The values of the command. Raises MetadataInvalid, NotAllowed."""
    if not body.subscription or len(body.subscription.encode()) > _NAME_BYTES:
        raise MetadataInvalid(f"The name of a subscription has 1 to {_NAME_BYTES} bytes.")
    if len(body.consumer_name.encode()) > _NAME_BYTES:
        raise MetadataInvalid(f"The name of a consumer has at most {_NAME_BYTES} bytes.")
    metadata = {pair.key: pair.value for pair in body.metadata}
    properties = {pair.key: pair.value for pair in body.subscription_properties}
    for pairs in metadata, properties:
        if sum(len(key.encode()) + len(value.encode()) + 8 for key, value in pairs.items()) > _PROPERTIES_BYTES:
            raise MetadataInvalid(f"Properties have at most {_PROPERTIES_BYTES} bytes.")
    kind = int(body.subType)
    if body.read_compacted and kind not in SINGLE_ACTIVE:
        raise NotAllowed(f"read_compacted is not allowed with {NAMES[kind]} subscriptions.")
    policy: KeySharedPolicy | None = None
    ranges: tuple[tuple[int, int], ...] = ()
    if kind == SubType.Key_Shared:
        meta = body.keySharedMeta
        sticky = meta.keySharedMode == KeySharedMode.STICKY
        policy = KeySharedPolicy(sticky, meta.allowOutOfOrderDelivery)
        if sticky:
            if not 0 < len(meta.hashRanges) <= _RANGES_MAX:
                raise ConsumerAssignError(f"A consumer with sticky hashing has 1 to {_RANGES_MAX} ranges of hashes.")
            ranges = tuple((hash_range.start, hash_range.end) for hash_range in meta.hashRanges)
    return Join(
        subscription=body.subscription,
        kind=kind,
        consumer_id=body.consumer_id,
        consumer_name=body.consumer_name or f"consumer-{body.consumer_id}",
        durable=body.durable,
        priority=body.priority_level,
        ranges=ranges,
        policy=policy,
        epoch=body.consumer_epoch if body.HasField("consumer_epoch") else None,
        read_compacted=body.read_compacted,
        metadata=metadata,
        properties=properties,
    )


def _start_at(call: Call, topic: Topic, join: Join, offset: int) -> None:
    """Join a subscription that starts at the entry that covers the offset."""

    def located(found: Entry | Exception | None) -> None:
        if isinstance(found, Exception):
            raise found
        _join_at(call, topic, join, min(offset, found.offset) if found is not None else offset)

    locate(topic, offset, answering(call, located))


def _join_at(call: Call, topic: Topic, join: Join, start: int | None) -> None:
    """Add the consumer; ``start``: the offset at which a new subscription starts. Any thread. Does not block. Raises Missing."""
    _attach(call, partial(call.context.subscriptions.join, topic, call.state, join, start))


def _attach(call: Call, enter: Enter) -> None:
    try:
        _attach_once(call, enter)
    except Busy as busy:
        holder = busy.holder.connection
        if holder is call.state:
            raise
        # Its connection may be dead without having been closed.
        after_probe = answering(call, partial(_attach_after_probe, call, enter, busy))
        call.context.liveness.probe(holder, after_probe)


def _attach_after_probe(call: Call, enter: Enter, busy: Busy, alive: bool) -> None:
    if alive:
        raise busy
    busy.holder.subscription.leave(busy.holder)
    try:
        _attach_once(call, enter)
    except Missing:
        raise ServiceNotReady("The subscription has just ended; try again.") from None


def _attach_once(call: Call, enter: Enter) -> None:
    if call.context.stopping:
        raise ServiceNotReady("The broker is stopping.")
    connected = enter()
    try:
        call.state.add_consumer(connected.id, connected)
    except BaseException:
        connected.subscription.leave(connected)
        raise
    if isinstance(connected, PassingConsumer):
        call.success()
        return
    subscription = subscription_of(connected)

    def saved(error: StorageError | None) -> None:
        if error is not None:
            # For the client the subscription does not exist then, so its consumer must not stay in it.
            call.state.remove_consumer(connected.id, connected)
            subscription.leave(connected)
        success_when_saved(call, error)

    if subscription.saving.never_saved:
        subscription.saving.save(saved)
    else:
        call.success()


SUBSCRIBE = Command(Type.SUBSCRIBE, handle_subscribe, inline=False, lane=ADMIN)


def handle_unsubscribe(call: Call) -> None:
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


UNSUBSCRIBE = Command(Type.UNSUBSCRIBE, handle_unsubscribe)


def handle_close_consumer(call: Call) -> None:
    connected = find_consumer(call, call.body.consumer_id)
    if connected is not None:
        call.state.remove_consumer(connected.id, connected)
        connected.subscription.leave(connected)
    call.success()


CLOSE_CONSUMER = Command(Type.CLOSE_CONSUMER, handle_close_consumer)


def handle_flow(call: Call) -> None:
    consumer_id, permits = read_flow(call.frame)
    if not permits:
        raise ProtocolError("a FLOW without permits")
    connected = find_entitled(call, consumer_id)
    # A FLOW of a consumer that the broker has closed may still have been on its way.
    if connected is not None:
        connected.subscription.flow(connected, permits)
    call.done()


FLOW = Command(Type.FLOW, handle_flow)


def handle_ack(call: Call) -> None:
    ack = read_ack(call.frame)
    state = call.state

    def respond(error: Refusal | StorageError | None) -> None:
        """The acknowledgement is durable, or has failed."""
        response = CommandAckResponse(consumer_id=ack.consumer_id, request_id=ack.request_id)
        if error is not None:
            response.error, response.message = code_of(error), str(error)
        state.push(write_command(Type.ACK_RESPONSE, response))

    connected = find_entitled(call, ack.consumer_id)
    if connected is None:
        if ack.request_id >= 0:
            respond(ConsumerNotFound(f"Consumer {ack.consumer_id} not found"))
        call.done()
        return
    if isinstance(connected, PassingConsumer):  # its messages are not kept
        if ack.request_id >= 0:
            respond(None)
        call.done()
        return
    subscription = subscription_of(connected)

    def taken(error: Refusal | StorageError | None) -> None:
        """Everything is acknowledged in memory, or the acknowledgement has failed."""
        if ack.request_id >= 0:
            if error is not None:
                respond(error)
            else:
                subscription.saving.save(respond)
        call.done()

    Acknowledging(subscription, connected, ack, taken).start()


def inline_ack(context: PulsarContext, request: PulsarRequest) -> bool:
    return len(request.frame) <= BULK_BYTES


ACK = Command(Type.ACK, handle_ack, inline=inline_ack)


# Ids for which the subscription's lock is taken once: about 2 ms.
_AT_ONCE = 1000


def handle_redeliver(call: Call) -> None:
    body = call.body
    connected = find_entitled(call, body.consumer_id)
    if connected is not None and not isinstance(connected, PassingConsumer):  # whose messages are not kept
        subscription = subscription_of(connected)
        epoch = body.consumer_epoch if body.HasField("consumer_epoch") else None
        if not body.message_ids:
            subscription.redeliver(connected, None, epoch)
        else:
            ledger = subscription.topic.ledger
            entries = [message_id.entryId for message_id in body.message_ids if message_id.ledgerId == ledger]
            for at in range(0, len(entries), _AT_ONCE):
                subscription.redeliver(connected, entries[at : at + _AT_ONCE], epoch)
    call.done()


def inline_redeliver(context: PulsarContext, request: PulsarRequest) -> bool:
    return len(request.frame) <= BULK_BYTES


REDELIVER = Command(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, handle_redeliver, inline=inline_redeliver)


def handle_seek(call: Call) -> None:
    body = call.body
    connected = consumer_of(call)
    if isinstance(connected, PassingConsumer):
        call.success()  # as in Pulsar: earlier messages are not kept
        return
    subscription = subscription_of(connected)
    topic = subscription.topic
    ack_set: Sequence[int] | None = None
    if body.HasField("message_id"):
        offset = offset_of(topic, body.message_id)
        if offset == body.message_id.entryId:
            ack_set = tuple(body.message_id.ack_set) or None
    elif body.HasField("message_publish_time"):
        offset = offset_at(topic, body.message_publish_time)
    else:
        raise MetadataInvalid("A SEEK names a message or a time.")

    def located(found: Entry | Exception | None) -> None:
        if isinstance(found, Exception):
            raise found
        _reset(call, subscription, offset, found, ack_set)

    locate(topic, offset, answering(call, located))


def _reset(
    call: Call, subscription: Subscription, offset: int, found: Entry | None, ack_set: Sequence[int] | None
) -> None:
    if found is None or found.offset > offset:
        subscription.reset(offset)
    elif ack_set is None:
        subscription.reset(found.offset)
    else:
        subscription.reset(found.offset, (found.offset, found.messages, ack_set))
    subscription.saving.save(partial(success_when_saved, call))


# To find a time, a batch may have to be decompressed.
SEEK = Command(Type.SEEK, handle_seek, inline=False, lane=INSPECTION)


def handle_consumer_stats(call: Call) -> None:
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


def refuse_consumer_stats(call: Call, error: Refusal | StorageError) -> None:
    call.reply(
        Type.CONSUMER_STATS_RESPONSE,
        CommandConsumerStatsResponse(
            request_id=call.body.request_id, error_code=code_of(error), error_message=str(error)
        ),
    )


CONSUMER_STATS = Command(Type.CONSUMER_STATS, handle_consumer_stats, on_error=refuse_consumer_stats)
