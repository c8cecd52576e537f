"""What Pulsar's codecs cost for each entry, each id and each message, and the translation between Pulsar's and Kafka's format.

    python -m tests.bench.pieces

Times are of the CPU of this thread, the best of several rounds. Messages have 1 KB unless the line says something else.
"""

import time
from collections.abc import Callable

from protocol.kafka.records.batch import read_header
from protocol.kafka.records.entry import build_entry, entry_value
from protocol.kafka.records.records import build_batch
from protocol.pulsar.acks import read_ack, read_flow
from protocol.pulsar.compression import LZ4, compress
from protocol.pulsar.deliveries import Deliveries
from protocol.pulsar.frames import command_type, read_command, write_command
from protocol.pulsar.metadata import check_batch, read_metadata, read_stored_metadata, sticky_key
from protocol.pulsar.murmur3 import murmur3_32
from protocol.pulsar.payload import build_batch as build_payload
from protocol.pulsar.payload import single_metadata
from protocol.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandFlow,
    CommandProducer,
    CommandSend,
    MessageIdData,
    MessageMetadata,
)
from protocol.pulsar.receipts import Receipts
from protocol.pulsar.sends import crc_matches, read_send, write_send, write_stored_part
from protocol.pulsar.usual_sends import UsualSends
from protocol.translation.to_kafka import to_kafka
from protocol.translation.to_pulsar import to_pulsar

NOW = 1_700_000_000_000
KEY = b"customer-1234567"
PAYLOAD = bytes(range(256)) * 4
IDS = 1000
BATCH = 100


def report(what: str, body: Callable[[], object], units: int = 1, calls: int = 0, rounds: int = 9) -> None:
    """Prints microseconds of CPU for each of the ``units`` that one call handles."""
    calls = calls or max(20, 20_000 // units)
    best = 1e9
    for _ in range(rounds):
        began = time.thread_time()
        for _ in range(calls):
            body()
        best = min(best, time.thread_time() - began)
    print(f"{what:<64}{best / calls / units * 1e6:8.2f} us")


def metadata(**fields: object) -> bytes:
    values = {"producer_name": "standalone-0-12", "sequence_id": 123456, "publish_time": NOW} | fields
    return MessageMetadata(**values).SerializeToString()  # type: ignore[arg-type]


def entries() -> None:
    meta = metadata(partition_key=KEY.decode())
    stored = write_stored_part(meta, PAYLOAD)
    frame = memoryview(bytearray(write_send(CommandSend(producer_id=1, sequence_id=123456), stored)))
    send = read_send(frame)
    report("SEND: what it is", lambda: command_type(frame))
    report("SEND: read", lambda: read_send(frame))
    report("SEND: its checksum", lambda: crc_matches(frame, send))
    report("metadata: read strictly, as it comes in", lambda: read_metadata(meta))
    report("metadata: read again", lambda: read_stored_metadata(meta))
    parsed = read_metadata(meta)
    usual = UsualSends(1)
    usual.learn(send, frame, parsed)
    assert usual.read(frame, 0, len(frame)) is not None
    report("SEND with metadata and checksum, like one before", lambda: usual.read(frame, 0, len(frame)))
    report("metadata: number of messages", lambda: check_batch(parsed, len(PAYLOAD), 5 << 20))
    report("metadata: the key that orders", lambda: sticky_key(parsed))
    report("hash of a new key of 16 bytes", lambda: murmur3_32(KEY))
    value = frame[send.start : send.end]
    report("entry: the record batch around it, with copy and checksum", lambda: build_entry(value, 1, NOW))
    batch = build_entry(value, 1, NOW)
    header = read_header(batch)
    report("entry: where its value is", lambda: entry_value(batch, 0, header))
    receipts = Receipts(1, 5)
    report("SEND_RECEIPT", lambda: receipts.receipts([(123456, 1_000_000, 0)]))
    many = [(123456 + number, 1_000_000 + number, 0) for number in range(100)]
    report("100 SEND_RECEIPTs", lambda: receipts.receipts(many))
    deliveries = Deliveries(1, 5)
    report("MESSAGE: the head", lambda: deliveries.head(1_000_000, len(stored)))
    report("MESSAGE: the head of one delivered again", lambda: deliveries.head(1_000_000, len(stored), 1))


def commands() -> None:
    ids = [MessageIdData(ledgerId=5, entryId=1_000_000 + i) for i in range(IDS)]
    many = write_command(BaseCommand.Type.ACK, CommandAck(consumer_id=1, ack_type=0, message_id=ids))
    one = write_command(BaseCommand.Type.ACK, CommandAck(consumer_id=1, ack_type=0, message_id=ids[:1], request_id=9))
    flow = write_command(BaseCommand.Type.FLOW, CommandFlow(consumer_id=1, messagePermits=500))
    producer = CommandProducer(topic="persistent://public/default/topic", producer_id=1, request_id=2)
    other = write_command(BaseCommand.Type.PRODUCER, producer)
    report(f"ACK of {IDS}, an id", lambda: read_ack(many), IDS)
    report("ACK of one", lambda: read_ack(one))
    report("FLOW", lambda: read_flow(flow))
    report("any other command (PRODUCER)", lambda: read_command(other))


def translation() -> None:
    single = single_metadata(len(PAYLOAD), [("trace", "0123456789")], KEY.decode())
    payload = build_payload([(single, PAYLOAD)] * BATCH)
    plain = write_stored_part(metadata(num_messages_in_batch=BATCH), payload)
    report(f"a batch of {BATCH} to Kafka, a message", lambda: to_kafka(plain, 0, BATCH), BATCH)
    fields = {"num_messages_in_batch": BATCH, "compression": LZ4, "uncompressed_size": len(payload)}
    packed = write_stored_part(metadata(**fields), compress(LZ4, payload))
    report(f"a batch of {BATCH} in LZ4 to Kafka, a message", lambda: to_kafka(packed, 0, BATCH), BATCH)
    alone = write_stored_part(metadata(partition_key=KEY.decode()), PAYLOAD)
    report("a single message to Kafka", lambda: to_kafka(alone, 0, 1))
    for name, codec in (("", 0), (" in LZ4", 3)):
        batch = build_batch([(KEY, PAYLOAD, [("trace", b"0123456789")], NOW)] * BATCH, compression=codec)
        header = read_header(batch)
        report(f"a batch of {BATCH}{name} to Pulsar, a record", lambda b=batch, h=header: to_pulsar(b, 0, h), BATCH)  # type: ignore[misc]
    record = build_batch([(KEY, PAYLOAD, [], NOW)])
    only = read_header(record)
    report("a single record to Pulsar", lambda: to_pulsar(record, 0, only))


if __name__ == "__main__":
    entries()
    commands()
    translation()
