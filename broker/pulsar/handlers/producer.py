"""The commands of producers.

- PRODUCER: a client begins to produce to a topic, which is created on demand. The answer comes when the producer may send. A
  client that waits to become the exclusive producer is told so, and gets a second answer when it is its turn.
- CLOSE_PRODUCER: the client closes a producer. SUCCESS, whether the producer exists or not.
- SEND: a message, or a batch of them, becomes an entry of the log; its receipt follows when the entry is durable.

The bytes of SENDs count for the client's ``producer_byte_rate``, like those of Kafka's Produce. After SENDs that leave a debt the
connection is not read until the debt is paid. The same holds for a topic's publish rate, which all its producers share: a
connection that exceeds it waits, with all its producers, as in Pulsar.

Tests: tests/pulsar/producers/test_access.py,
tests/pulsar/test_service.py,
tests/pulsar/producers/test_publishing.py.
"""

from functools import partial

from broker.errors import Refusal, StorageError
from broker.network.work import ADMIN
from broker.pulsar.command import Call, Command, PulsarRequest, Type, error_command
from broker.pulsar.consumer_calls import answering
from broker.pulsar.context import PulsarContext
from broker.pulsar.handlers import schemas
from broker.pulsar.nonpersistent.topic import NonPersistentTopic
from broker.pulsar.policies.upkeep import check_producer
from broker.pulsar.producers.producer import Producer
from broker.pulsar.producers.producers import Access, Admitted, NameTaken
from broker.pulsar.producers.publishing import publish
from broker.pulsar.refusals import MetadataInvalid, NotAllowed, ProducerFenced, ServiceNotReady, TopicTerminated
from broker.pulsar.rights import require_creation, require_subscription, require_topic
from broker.pulsar.topic_names import parse_topic
from broker.pulsar.topics.topic import AnyTopic, Topic
from broker.security.acl import Operation
from broker.security.client_quotas import Kind
from protocol.pulsar.frames import write_command
from protocol.pulsar.pulsar_pb2 import CommandProducer, CommandProducerSuccess
from protocol.pulsar.sends import metadata_size

_NAME_BYTES = 1024


def handle_producer(call: Call) -> None:
    context, state, body = call.context, call.state, call.body
    name = parse_topic(body.topic)
    require_topic(context, call.connection, Operation.WRITE, name)
    _check(body)
    known = state.producers.get(body.producer_id)
    if known is not None:
        # The client did not get the answer in time, and repeats the command.
        if not known.ready:
            raise ServiceNotReady("Producer is already present on the connection")
        call.reply(Type.PRODUCER_SUCCESS, _success(context, known, body.request_id))
        return
    topics = context.of_domain(name)
    topic = topics.get(name)
    if topic is None:
        require_creation(context, call.connection, name)
        topic = topics.get_or_create(name)
    policies = context.policies.of(name.namespace, topic.topic_id)
    if policies.encryption_required and not body.encrypted:
        raise MetadataInvalid("Encryption is required in this topic")
    first = body.initial_subscription_name
    if isinstance(topic, NonPersistentTopic):
        if first:
            require_subscription(context, call.connection, name, first)
            context.nonpersistent.subscribe(topic, first)
        _make(call, topic, b"")
        return
    check_producer(topic, policies.backlog_quota, context.clock.time_ms())
    schema_version = schemas.of_producer(context, topic, body, str(call.connection.principal))
    topic.log.allow_entries()
    context.deduplications.prepare(topic)
    if not first or first in topic.subscriptions:
        _make(call, topic, schema_version)
        return
    # A dead-letter topic: its messages are kept for this subscription, which may not have had a consumer yet.
    require_subscription(context, call.connection, topic.name, first)
    context.limits.check_new_subscription(topic)

    def subscribed(error: StorageError | None) -> None:
        if error is not None:
            raise error
        _make(call, topic, schema_version)

    context.subscriptions.create(topic, first, topic.log.log_start_offset, answering(call, subscribed))


def _make(call: Call, topic: AnyTopic, schema_version: bytes) -> None:
    """Any thread. Does not block. Raises a Refusal."""
    context, state, body = call.context, call.state, call.body
    producer = Producer(
        id=body.producer_id,
        name=body.producer_name or context.new_producer_name(),
        topic=topic,
        connection=call.connection,
        outbox=state.outbox,
        on_closed=state.remove_producer,
        on_paid=state.paid,
        on_promoted=partial(_promoted, call),
        on_fenced=partial(_fenced, call),
        access=Access(body.producer_access_mode),
        epoch=body.epoch,
        topic_epoch=body.topic_epoch if body.HasField("topic_epoch") else None,
        since_ms=context.clock.time_ms(),
        client_version=state.client_version,
        schema_version=schema_version,
    )
    state.add_producer(producer)
    try:
        _admit(call, producer)
    except BaseException:
        state.remove_producer(producer)
        raise


def _check(body: CommandProducer) -> None:
    if len(body.producer_name.encode()) > _NAME_BYTES:
        raise MetadataInvalid(f"The name of a producer has at most {_NAME_BYTES} bytes.")
    if len(body.initial_subscription_name.encode()) > _NAME_BYTES:
        raise MetadataInvalid(f"The name of a subscription has at most {_NAME_BYTES} bytes.")
    if body.txn_enabled:
        raise NotAllowed("This broker has no transactions for producers.")


def _admit(call: Call, producer: Producer) -> None:
    """Any thread. Does not block. Raises a Refusal."""
    context, topic = call.context, producer.topic
    try:
        with topic.lock:
            topic.check_open()
            if topic.terminated:
                raise TopicTerminated("Topic was already terminated")
            most = context.limits.producers_max(topic, context.config.pulsar_max_producers_per_topic)
            admitted = topic.producers.admit(producer, most)
    except NameTaken as taken:
        holder = taken.holder
        assert isinstance(holder, Producer)
        if holder.connection is producer.connection:
            raise taken.as_refusal() from None
        # The connection of the other producer may be dead without having been closed.
        call.context.liveness.probe(
            holder.connection.data, answering(call, partial(_admit_after_probe, call, producer, taken, holder))
        )
        return
    for other in admitted.replaced:
        other.close()
    for other in admitted.fenced:
        other.fenced()
    _answer(call, producer, admitted)


def _admit_after_probe(call: Call, producer: Producer, taken: NameTaken, holder: Producer, alive: bool) -> None:
    try:
        if alive:
            raise taken.as_refusal()
        holder.leave()
        _admit(call, producer)
    except BaseException:
        call.state.remove_producer(producer)
        raise


def _answer(call: Call, producer: Producer, admitted: Admitted) -> None:
    if admitted.waits:
        success = _success(call.context, producer, call.body.request_id)
        success.producer_ready = False
        call.reply(Type.PRODUCER_SUCCESS, success)
    elif admitted.raised:
        _save_epoch(call, producer)
    else:
        producer.ready = True
        call.reply(Type.PRODUCER_SUCCESS, _success(call.context, producer, call.body.request_id))


def _save_epoch(call: Call, producer: Producer) -> None:
    """The topic's epoch has risen. The producer is told when the epoch is durable."""
    topic = producer.topic

    def saved(error: StorageError | None) -> None:
        if error is not None:
            call.state.remove_producer(producer)
            producer.leave()
            _say(call, error)
            return
        producer.ready = True
        _say(call, _success(call.context, producer, call.body.request_id))

    if isinstance(topic, Topic):
        call.context.topics.save_epoch(topic, topic.producers.epoch, saved)
    else:
        saved(None)


def _promoted(call: Call, producer: Producer) -> None:
    _save_epoch(call, producer)


def _fenced(call: Call, producer: Producer) -> None:
    call.state.remove_producer(producer)
    _say(call, ProducerFenced("Fenced by another exclusive producer"))


def _say(call: Call, outcome: CommandProducerSuccess | Refusal | StorageError) -> None:
    """Send the first or second answer."""
    if isinstance(outcome, Refusal | StorageError):
        if call.answered:
            call.state.push(write_command(Type.ERROR, error_command(call.body.request_id, outcome)))
        else:
            call.fail(outcome)
    elif call.answered:
        call.state.push(write_command(Type.PRODUCER_SUCCESS, outcome))
    else:
        call.reply(Type.PRODUCER_SUCCESS, outcome)


def _success(context: PulsarContext, producer: Producer, request_id: int) -> CommandProducerSuccess:
    deduplication = producer.topic.deduplication
    success = CommandProducerSuccess(
        request_id=request_id,
        producer_name=producer.name,
        last_sequence_id=-1 if deduplication is None else deduplication.last(producer.name),
        schema_version=producer.schema_version,
    )
    if producer.access != Access.SHARED:
        success.topic_epoch = max(producer.topic.producers.epoch, 0)
    return success


# Not inline: it may make a topic, which waits for the disk several times.
PRODUCER = Command(Type.PRODUCER, handle_producer, inline=False, lane=ADMIN)


def handle_close_producer(call: Call) -> None:
    producer = call.state.producers.get(call.body.producer_id)
    if producer is not None:
        call.state.remove_producer(producer)
        producer.leave()
    call.success()


CLOSE_PRODUCER = Command(Type.CLOSE_PRODUCER, handle_close_producer)


# The largest metadata that the processor parses: 1 to 2 ms, if all of it is properties. Several SENDs that are handled together
# are less than 256 KiB (``connection.py``).
_METADATA_MAX = 48 * 1024
# The longest time that a connection above a publish rate is not read, because clients close a connection on which their PINGs
# are not answered within 30 s. Its debt stays.
_HOLD_MAX_S = 10.0


def handle_send(call: Call) -> None:
    context, frame = call.context, call.frame
    size = len(frame)
    publish(context, call.state, frame)
    if context.quotas.limits(Kind.PRODUCE):
        now = context.clock.monotonic()
        call.hold(now, context.quotas.take(Kind.PRODUCE, call.connection.principal.name, size, now))
    if call.state.publish_wait_s:
        wait_s, call.state.publish_wait_s = call.state.publish_wait_s, 0.0
        call.hold(context.clock.monotonic(), min(wait_s, _HOLD_MAX_S))
    call.state.park(call.done)


def inline_send(context: PulsarContext, request: PulsarRequest) -> bool:
    """Not inline if a write was slow a moment ago, since the next may be slow too, or if parsing takes milliseconds."""
    frame = request.frame
    return request.received_at >= context.appends_slow_until and (
        len(frame) <= _METADATA_MAX or metadata_size(frame) <= _METADATA_MAX
    )


SEND = Command(Type.SEND, handle_send, inline=inline_send)
