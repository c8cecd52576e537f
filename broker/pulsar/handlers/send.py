"""SEND: a message, or a batch of them, becomes an entry of the log; its receipt follows when the entry is durable.

The bytes count for the client's ``producer_byte_rate``, as those of Kafka's Produce do. After SENDs that leave a debt the
connection takes nothing until it is paid. The same holds for a topic's publish rate, which all its producers share: the
connection that goes above it waits, with all its producers, as in Pulsar.

Tests: tests/pulsar/producers/test_publishing.py.
"""

from broker.pulsar.command import Call, Command, PulsarRequest, Type
from broker.pulsar.context import PulsarContext
from broker.pulsar.producers.publishing import publish
from broker.security.quotas.entities import Kind
from protocol.pulsar.sends import metadata_size

# Metadata that the processor parses: 1 to 2 ms, if it is nothing but properties. Several SENDs that are taken together are less
# than 256 KiB (``session.py``).
_METADATA_MAX = 48 * 1024
# A connection that is above a publish rate waits so long at most before it is heard again: clients close a connection on which
# their PINGs are not answered within 30 s. Its debt stays.
_HOLD_MAX_S = 10.0


def handle(call: Call) -> None:
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


def inline(context: PulsarContext, request: PulsarRequest) -> bool:
    """A write that was slow a moment ago will be slow again, and metadata is not parsed here if that takes milliseconds."""
    frame = request.frame
    return request.received_at >= context.appends_slow_until and (
        len(frame) <= _METADATA_MAX or metadata_size(frame) <= _METADATA_MAX
    )


COMMAND = Command(Type.SEND, handle, inline=inline)
