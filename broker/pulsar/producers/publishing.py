"""From a SEND to the log: the message is checked, appended as an entry, and shown to the consumers, and its receipt is put in the
queue.

On the connection's processor, or on a handler while the disk is slow.

Tests: tests/pulsar/producers/test_publishing.py.
"""

import struct
from functools import partial

from broker.errors import StorageError
from broker.pulsar.context import PulsarContext
from broker.pulsar.producers.producer import Producer
from broker.pulsar.refusals import ChecksumMismatch
from protocol.checksum import crc32c
from protocol.kafka.records.batch import HEADER, HEADER_SIZE
from protocol.pulsar.sends import Send, crc_matches

# How long (s) appends go to the handlers after a slow one: the disk is busy writing back.
_SLOW_FOR_S = 1.0


def publish(context: PulsarContext, producer: Producer, frame: memoryview, send: Send) -> None:
    """Raises a Refusal or a StorageError: nothing was appended."""
    if not crc_matches(frame, send):
        raise ChecksumMismatch("Checksum failed on the broker")
    topic = producer.topic
    batch = _batch(frame[send.start : send.end], context.clock.time_ms())
    topic.begin_append()
    try:
        info = topic.log.append(memoryview(batch), now_ms=context.clock.time_ms())
    finally:
        topic.end_append()
    if topic.log.state.slow_until > context.appends_slow_until:
        context.appends_slow_until = context.clock.monotonic() + _SLOW_FOR_S
    end = info.last_offset + 1
    producer.owe(send.sequence_id, send.highest_sequence_id, info.base_offset, end)
    context.flusher.wait_durable(topic.log, end, partial(_durable, producer))


def _durable(producer: Producer, error: StorageError | None) -> None:
    producer.durable()


def _batch(stored: memoryview, now_ms: int) -> bytearray:
    """One record whose value is the stored part."""
    value = _zigzag(len(stored)) + bytes(stored)
    body = b"\x00\x00\x00" + b"\x01" + value + b"\x00"
    record = _zigzag(len(body)) + body
    batch = bytearray(HEADER_SIZE) + record
    HEADER.pack_into(batch, 0, 0, len(batch) - 12, 0, 2, 0, 0, 0, now_ms, now_ms, -1, -1, -1, 1)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def _zigzag(value: int) -> bytes:
    value <<= 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
