"""CLOSE_PRODUCER: the client is done with a producer. SUCCESS, whether there is such a producer or not.

Tests: tests/pulsar/test_service.py.
"""

from broker.pulsar.command import Call, Command, Type


def handle(call: Call) -> None:
    producer = call.state.producers.get(call.body.producer_id)
    if producer is not None:
        call.state.remove_producer(producer)
        producer.leave()
    call.success()


COMMAND = Command(Type.CLOSE_PRODUCER, handle)
