"""SEND: a message, or a batch of them, becomes an entry of the log; its receipt follows when the entry is durable."""

from broker.pulsar.command import Call, Command, PulsarRequest, Type
from broker.pulsar.context import PulsarContext
from broker.pulsar.producers.publishing import publish


def handle(call: Call) -> None:
    publish(call.context, call.state, call.frame)
    call.state.park(call.done)


def inline(context: PulsarContext, request: PulsarRequest) -> bool:
    """A write that was slow a moment ago will be slow again."""
    return request.received_at >= context.appends_slow_until


COMMAND = Command(Type.SEND, handle, inline=inline)
