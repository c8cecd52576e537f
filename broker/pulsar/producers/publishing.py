"""From a SEND to the log: the message is checked, appended as an entry, and shown to the consumers, and its receipt is put in the
queue.

On the connection's processor, or on a handler while the disk is slow.

Tests: tests/pulsar/producers/test_publishing.py.
"""

from functools import partial

from broker.errors import StorageError
from broker.pulsar.context import PulsarContext
from broker.pulsar.entries.entry_factory import from_metadata
from broker.pulsar.producers.producer import Producer
from broker.pulsar.refusals import ChecksumMismatch
from protocol.kafka.records.entry import build_entry, value_position
from protocol.pulsar.metadata import publish_time_ms, read_metadata
from protocol.pulsar.sends import Send, crc_matches

# How long (s) appends go to the handlers after a slow one: the disk is busy writing back.
_SLOW_FOR_S = 1.0


def publish(context: PulsarContext, producer: Producer, frame: memoryview, send: Send) -> None:
    """Raises a Refusal or a StorageError: nothing was appended."""
    if not crc_matches(frame, send):
        raise ChecksumMismatch("Checksum failed on the broker")
    topic = producer.topic
    metadata = read_metadata(frame[send.metadata : send.payload])
    messages = max(1, metadata.num_messages_in_batch)
    size = send.end - send.start
    built = build_entry(frame[send.start : send.end], messages, publish_time_ms(metadata))
    batch = memoryview(built)
    topic.tail.begin_append()
    try:
        info = topic.log.append(batch, now_ms=context.clock.time_ms(), entries=True)
        start = value_position(built, size)
        topic.reader.appended([from_metadata(info.base_offset, messages, batch[start : start + size], size, metadata)])
    finally:
        topic.tail.end_append()
    if topic.log.state.slow_until > context.appends_slow_until:
        context.appends_slow_until = context.clock.monotonic() + _SLOW_FOR_S
    end = info.last_offset + 1
    producer.owe(send.sequence_id, send.highest_sequence_id, info.base_offset, end)
    context.flusher.wait_durable(topic.log, end, partial(_durable, producer))


def _durable(producer: Producer, error: StorageError | None) -> None:
    producer.durable()
