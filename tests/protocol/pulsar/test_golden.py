"""Frames of Pulsar's own client."""

import pytest

from protocol.kafka.records.batch import read_header
from protocol.kafka.records.entry import build_entry, entry_value
from protocol.kafka.records.records import Record, records
from protocol.pulsar.deliveries import Deliveries, read_delivery
from protocol.pulsar.frames import command_type, frame_size, read_command, write_command
from protocol.pulsar.metadata import check_batch, is_batch, is_chunk, is_encrypted, read_metadata, sticky_key
from protocol.pulsar.payload import decompressed, split_batch
from protocol.pulsar.pulsar_pb2 import BaseCommand, CommandSend, CommandSubscribe, MessageMetadata
from protocol.pulsar.sends import Send, _read_any_send, crc_matches, read_send, write_send
from protocol.translation.to_kafka import to_kafka
from tests.loops import loop_over
from tests.protocol.pulsar.golden import COMMANDS, SENDS

ALL = [(name, frame) for name, frames in SENDS.items() for frame in frames]
CODECS = ["none", "lz4", "zlib", "zstd", "snappy"]


def send_of(frame: bytes) -> tuple[Send, MessageMetadata]:
    send = read_send(frame)
    return send, read_metadata(frame[send.metadata : send.payload])


def kafka_records(frame: bytes, offset: int = 100) -> list[Record]:
    """The records that a Kafka consumer gets, over the entry as it is stored."""
    send, metadata = send_of(frame)
    messages = check_batch(metadata, send.end - send.payload, 5 << 20)
    batch = build_entry(frame[send.start : send.end], messages, metadata.publish_time)
    at, size = entry_value(batch, 0, read_header(batch))
    return list(records(to_kafka(batch[at : at + size], offset, messages)))


@loop_over(("name", "frame"), ALL)
def test_a_send_of_the_client_is_read(name: str, frame: bytes) -> None:
    assert len(frame) == frame_size(frame)
    assert BaseCommand.Type.SEND == command_type(frame)
    send, metadata = send_of(frame)
    assert send == _read_any_send(frame)
    assert send.crc >= 0 and crc_matches(frame, send)
    assert metadata.producer_name == "golden"
    assert ("batch" in name or name in ("encrypted", "key based")) == is_batch(metadata)
    assert send.num_messages == check_batch(metadata, send.end - send.payload, 5 << 20)


@loop_over(("name", "frame"), ALL)
def test_stored_part_is_delivered_unchanged(name: str, frame: bytes) -> None:
    send, _ = send_of(frame)
    stored = frame[send.start : send.end]
    delivery = Deliveries(1, 5).head(7, len(stored)) + stored
    part = read_delivery(delivery).stored
    assert stored == delivery[part.start : part.end]
    assert crc_matches(delivery, part)


def test_send_equals_our_encoding() -> None:
    (frame,) = SENDS["single"]
    send, _ = send_of(frame)
    assert frame == write_send(CommandSend(producer_id=0, sequence_id=0), frame[send.start : send.end])


@pytest.mark.parametrize("codec", CODECS)
def test_the_clients_batches_are_decompressed_and_split(codec: str) -> None:
    (frame,) = SENDS[f"batch {codec}"]
    send, metadata = send_of(frame)
    batch = list(split_batch(decompressed(metadata, frame[send.payload : send.end]), 10))
    assert [b"message-%d" % i * 5 for i in range(10)] == [payload for _, payload in batch]
    assert [f"k{i}" for i in range(10)] == [single.partition_key for single, _ in batch]
    expected = [(100 + i, 1000 + i, b"k%d" % i, b"message-%d" % i * 5, [("i", b"%d" % i)]) for i in range(10)]
    assert expected == kafka_records(frame)


@pytest.mark.parametrize("codec", CODECS)
def test_the_clients_single_messages_become_records(codec: str) -> None:
    (frame,) = SENDS[f"single {codec}"]
    expected = Record(
        100,
        1_600_000_000_123,
        "k\u00e9y".encode(),
        "v\u00e4lue".encode() * 20,
        [("a", b"1"), ("\u00e9", "\u00fc".encode())],
    )
    assert [expected] == kafka_records(frame)


def test_what_the_dispatcher_asks() -> None:
    _, metadata = send_of(SENDS["rich"][0])
    assert (b"order", 1_900_000_000_000, 77) == (sticky_key(metadata), metadata.deliver_at_time, metadata.sequence_id)
    _, metadata = send_of(SENDS["batch none"][0])
    assert b"k0" == sticky_key(metadata)  # the client gives a batch the key of its first message
    assert [b"k%d" % i for i in range(10)] == sorted(sticky_key(send_of(frame)[1]) for frame in SENDS["key based"])


def test_encrypted_batch_is_passed_on_unchanged() -> None:
    (frame,) = SENDS["encrypted"]
    send, metadata = send_of(frame)
    assert is_encrypted(metadata)
    (record,) = kafka_records(frame)
    assert frame[send.payload : send.end] == record.value
    assert {"pulsar.encryption.algorithm", "pulsar.encryption.key.rsa", "pulsar.batch"} <= {
        n for n, _ in record.headers
    }


def test_chunks_of_a_large_message_join_to_it() -> None:
    frames = SENDS["chunked"]
    assert len(frames) > 2
    metadata = [send_of(frame)[1] for frame in frames]
    assert all(is_chunk(chunk) and read_send(frame).is_chunk for chunk, frame in zip(metadata, frames, strict=True))
    assert [(i, len(frames)) for i in range(len(frames))] == [(m.chunk_id, m.num_chunks_from_msg) for m in metadata]
    assert 1 == len({chunk.uuid for chunk in metadata})
    parts = [record for frame in frames for record in kafka_records(frame)]
    assert bytes(range(256)) * 10 == b"".join(record.value or b"" for record in parts)
    assert [b"%d" % i for i in range(len(frames))] == [dict(r.headers)["pulsar.chunk.id"] for r in parts]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_client_command_is_read_and_written_unchanged(name: str) -> None:
    number, command = read_command(COMMANDS[name])
    assert name == BaseCommand.Type.Name(number)
    if name != "CONNECT":  # it has fields that are unused here
        assert COMMANDS[name] == write_command(number, command)


def test_what_a_consumer_subscribes_with() -> None:
    _, command = read_command(COMMANDS["SUBSCRIBE"])
    assert ("persistent://public/default/golden", "golden") == (command.topic, command.subscription)
    assert CommandSubscribe.SubType.Value("Shared") == command.subType
    assert {"a": "b"} == {pair.key: pair.value for pair in command.metadata}
