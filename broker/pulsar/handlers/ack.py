"""ACK: messages are consumed. With a request id, ACK_RESPONSE follows when that is durable.

The connection goes on meanwhile, except where an acknowledgement names entries of which it is not known how many messages they
have: then its next command waits until they have been read, so that nobody can ask for many of those at a time.

Tests: tests/pulsar/subscriptions/test_consuming.py.
"""

from broker.errors import Refusal, StorageError
from broker.network.work import BULK_BYTES
from broker.pulsar.command import Call, Command, PulsarRequest, Type
from broker.pulsar.consumer_calls import find_entitled, subscription_of
from broker.pulsar.context import PulsarContext
from broker.pulsar.error_codes import code_of
from broker.pulsar.nonpersistent.consumer import PassingConsumer
from broker.pulsar.refusals import ConsumerNotFound
from broker.pulsar.subscriptions.acknowledging import Acknowledging
from protocol.pulsar.acks import read_ack
from protocol.pulsar.frames import write_command
from protocol.pulsar.pulsar_pb2 import CommandAckResponse


def handle(call: Call) -> None:
    ack = read_ack(call.frame)
    state = call.state

    def respond(error: Refusal | StorageError | None) -> None:
        """It is durable, or not."""
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
    if isinstance(connected, PassingConsumer):  # nothing is kept
        if ack.request_id >= 0:
            respond(None)
        call.done()
        return
    subscription = subscription_of(connected)

    def taken(error: Refusal | StorageError | None) -> None:
        """Everything is acknowledged in memory, or what is wrong."""
        if ack.request_id >= 0:
            if error is not None:
                respond(error)
            else:
                subscription.save(respond)
        call.done()

    Acknowledging(subscription, connected, ack, taken).start()


def inline(context: PulsarContext, request: PulsarRequest) -> bool:
    return len(request.frame) <= BULK_BYTES


COMMAND = Command(Type.ACK, handle, inline=inline)
