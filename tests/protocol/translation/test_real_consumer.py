"""Pulsar's own client reads a Kafka client's batches, through the codecs alone."""

from collections.abc import Sequence

import pulsar
import pytest

from protocol.kafka.records.batch import read_header
from protocol.kafka.records.records import build_batch
from protocol.pulsar.acks import Ack, read_ack
from protocol.pulsar.pulsar_pb2 import BaseCommand
from protocol.translation.to_pulsar import Translated, to_pulsar
from tests.protocol.pulsar.stub_broker import StubBroker

NOW = 1_700_000_000_000
TOPIC = "persistent://public/default/t"


def received(broker: StubBroker, count: int, acks: int) -> list[pulsar.Message]:
    """The messages that the client gets and acknowledges, until the broker has as many ids of acknowledged entries."""
    client = pulsar.Client(broker.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"))
    try:
        consumer = client.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared)
        messages = [consumer.receive(30_000) for _ in range(count)]
        for message in messages:
            consumer.acknowledge(message)
        for _ in range(acks):
            assert broker.acked.acquire(timeout=30)
    finally:
        client.close()
    return messages


def delivered(entries: Sequence[Translated]) -> list[tuple[int, bytes]]:
    return [(entry.offset, entry.stored) for entry in entries]


def entries_of(ack: Ack) -> list[int]:
    return [*ack.whole, *(acked.entry_id for acked in ack.ids)]


@pytest.mark.parametrize("codec", range(5))
def test_client_gets_keys_values_headers_times_and_ids(codec: int) -> None:
    records = [
        (b"a", b"one", [("h", b"1"), ("bin", b"\x00\xff")], NOW),
        (None, b"two", [], NOW + 1),
        (b"\xff\x00", b"", [("\u00e9", "\u00fc".encode())], NOW + 2),
    ]
    batch = build_batch(records, base_offset=40, compression=codec)
    with StubBroker(delivered(to_pulsar(batch, 0, read_header(batch)))) as broker:
        one, two, three = received(broker, 3, 1)
        (ack,) = (read_ack(frame) for frame in broker.of_type(BaseCommand.Type.ACK))
    assert [b"one", b"two", b""] == [message.data() for message in (one, two, three)]
    assert ["a", "", "/wA="] == [message.partition_key() for message in (one, two, three)]
    assert {"h": "1", "bin": "data:;base64,AP8="} == one.properties()
    assert {"\u00e9": "\u00fc"} == three.properties()
    assert [NOW, NOW + 1, NOW + 2] == [message.event_timestamp() for message in (one, two, three)]
    assert [NOW + 2] * 3 == [message.publish_timestamp() for message in (one, two, three)]
    ids = [message.message_id() for message in (one, two, three)]
    assert [(40, 0), (40, 1), (40, 2)] == [(message_id.entry_id(), message_id.batch_index()) for message_id in ids]
    assert [40] == entries_of(ack)


def test_the_client_acknowledges_all_of_a_compacted_batch() -> None:
    """It would never acknowledge an entry with a message that it does not get."""
    records = [(b"k", b"%d" % i, [], NOW) for i in range(4)]
    batch = build_batch(records, base_offset=40, offsets=[41, 42, 45, 47], last_offset_delta=9)
    with StubBroker(delivered(to_pulsar(batch, 0, read_header(batch)))) as broker:
        messages = received(broker, 4, 3)
        acked = {entry for frame in broker.of_type(BaseCommand.Type.ACK) for entry in entries_of(read_ack(frame))}
    assert [b"0", b"1", b"2", b"3"] == [message.data() for message in messages]
    ids = [message.message_id() for message in messages]
    assert [(41, 0), (41, 1), (45, -1), (47, -1)] == [
        (message_id.entry_id(), message_id.batch_index()) for message_id in ids
    ]
    assert {41, 45, 47} == acked


def test_client_takes_record_larger_than_the_message_limit() -> None:
    value = b"0123456789" * (1 << 20)
    batch = build_batch([(None, value, [], NOW)], base_offset=1, compression=4)
    with StubBroker(delivered(to_pulsar(batch, 0, read_header(batch)))) as broker:
        (message,) = received(broker, 1, 1)
    assert value == message.data()
