"""SEND: a message, or a batch of them, becomes an entry of the log; its receipt follows when the entry is durable."""

from broker.pulsar.command import Call, Command, PulsarRequest, Type
from broker.pulsar.context import PulsarContext
from broker.pulsar.producers.publishing import publish
from protocol.errors import ProtocolError
from protocol.pulsar.sends import read_send


def handle(call: Call) -> None:
    frame = call.frame
    send = read_send(frame)
    producer = call.state.producers.get(send.producer_id)
    if producer is None or producer.closed:
        if producer is None and not call.state.was_producer(send.producer_id):
            raise ProtocolError(f"a SEND of producer {send.producer_id}, which is not open")
        call.done()  # sent before the client knew
        return
    publish(call.context, producer, frame, send)
    call.done()


def inline(context: PulsarContext, request: PulsarRequest) -> bool:
    """A write that was slow a moment ago will be slow again."""
    return request.received_at >= context.appends_slow_until


COMMAND = Command(Type.SEND, handle, inline=inline)
