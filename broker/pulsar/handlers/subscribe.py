"""SUBSCRIBE: a client consumes a subscription, which is made if there is none. SUCCESS when that is durable, before any
message.

Tests: tests/pulsar/subscriptions/test_consuming.py.
"""

from collections.abc import Callable
from functools import partial

from broker.errors import StorageError
from broker.network.work import ADMIN
from broker.pulsar.command import Call, Command, Type
from broker.pulsar.consumer_calls import answering, find_consumer, subscription_of, success_when_saved
from broker.pulsar.entry import Entry
from broker.pulsar.nonpersistent.consumer import PassingConsumer
from broker.pulsar.refusals import ConsumerAssignError, MetadataInvalid, NotAllowed, ServiceNotReady
from broker.pulsar.rights import require_creation, require_subscription, require_topic
from broker.pulsar.schemas import checks
from broker.pulsar.subscriptions.consumer import ConnectedConsumer
from broker.pulsar.subscriptions.dispatchers import NAMES, SINGLE_ACTIVE, KeySharedPolicy, SubType
from broker.pulsar.subscriptions.locating import locate, offset_at, offset_of
from broker.pulsar.subscriptions.subscriptions import Busy, Join, Missing
from broker.pulsar.topic_names import parse_topic
from broker.pulsar.topics.topic import AnyTopic, Topic
from broker.security.acl import Operation
from protocol.pulsar.pulsar_pb2 import CommandSubscribe, KeySharedMode

# Of the names of subscriptions and consumers, and of the properties together.
_NAME_BYTES = 1024
_PROPERTIES_BYTES = 16 * 1024
_RANGES_MAX = 1000

Enter = Callable[[], ConnectedConsumer]  # raises a Refusal, or Missing


def handle(call: Call) -> None:
    context, body = call.context, call.body
    name = parse_topic(body.topic)
    require_topic(context, call.connection, Operation.READ, name)
    require_subscription(context, call.connection, name, body.subscription)
    join = _join(body)
    known = find_consumer(call, join.consumer_id)
    if known is not None:
        # The client has waited for the answer in vain and asks again.
        if known.subscription.name != join.subscription:
            raise NotAllowed("The connection has another consumer of this number.")
        call.success()
        return
    if not name.persistent:
        passing = context.nonpersistent.get(name)
        if passing is None:
            if body.force_topic_creation:
                require_creation(context, call.connection, name)
            passing = context.nonpersistent.get_or_create(name, create=body.force_topic_creation)
        _check_policies(call, passing, join)
        _attach(call, partial(context.nonpersistent.join, passing, call.state, join))
        return
    topic = context.topics.get(name)
    if topic is None:
        if body.force_topic_creation:
            require_creation(context, call.connection, name)
        topic = context.topics.get_or_create(name, create=body.force_topic_creation)
    _check_policies(call, topic, join)
    checks.of_consumer(context, topic, body, str(call.connection.principal))
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
        # A reader. The broker begins at the message that is named; whether it comes first or the one after it, and where within
        # a batch the reader begins, is the client's own business: it leaves out what is before.
        _start_at(call, topic, join, offset_of(topic, body.start_message_id))
    elif body.initialPosition == CommandSubscribe.InitialPosition.Earliest:
        _join_at(call, topic, join, topic.log.log_start_offset)
    else:
        _join_at(call, topic, join, topic.reader.end)


def _join(body: CommandSubscribe) -> Join:
    """The request as values. Raises MetadataInvalid, NotAllowed."""
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
            ranges = tuple((one.start, one.end) for one in meta.hashRanges)
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
    """At the entry that covers the offset."""

    def located(found: Entry | Exception | None) -> None:
        if isinstance(found, Exception):
            raise found
        _join_at(call, topic, join, min(offset, found.offset) if found is not None else offset)

    locate(topic, offset, answering(call, located))


def _join_at(call: Call, topic: Topic, join: Join, start: int | None) -> None:
    """The consumer joins; ``start`` is where a new subscription starts. On any thread, without blocking. Raises Missing."""
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
            # The client does not have the subscription then, and there must be nobody in it.
            call.state.remove_consumer(connected.id, connected)
            subscription.leave(connected)
        success_when_saved(call, error)

    if subscription.never_saved:
        subscription.save(saved)
    else:
        call.success()


COMMAND = Command(Type.SUBSCRIBE, handle, inline=False, lane=ADMIN)
