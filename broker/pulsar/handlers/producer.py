"""PRODUCER: a client begins to produce to a topic."""

from broker.pulsar.command import Call, Command, Type
from broker.pulsar.producers.producer import Producer
from broker.pulsar.rights import require_topic
from broker.pulsar.topic_names import parse_topic
from broker.security.acl import Operation
from protocol.pulsar.pulsar_pb2 import CommandProducerSuccess


def handle(call: Call) -> None:
    context, state, body = call.context, call.state, call.body
    name = parse_topic(body.topic)
    require_topic(context, call.connection, Operation.WRITE, name)
    topic = context.topics.get_or_create(name)
    producer_name = body.producer_name or f"{context.cluster_id}-{context.entropy.uuid().hex[:12]}"
    producer = Producer(body.producer_id, producer_name, topic, call.connection, state.outbox, body.epoch)
    with topic.lock:
        topic.check_open()
        topic.producers.add(producer)
    try:
        state.add_producer(producer)
    except BaseException:
        producer.leave()
        raise
    call.reply(
        Type.PRODUCER_SUCCESS,
        CommandProducerSuccess(
            request_id=body.request_id, producer_name=producer_name, last_sequence_id=-1, schema_version=b""
        ),
    )


COMMAND = Command(Type.PRODUCER, handle, inline=False)
