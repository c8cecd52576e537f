"""Frames that no Pulsar client sends: the connection ends, or gets an error, and nobody else notices."""

import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from protocol.pulsar.pulsar_pb2 import BaseCommand
from tests.faults.pulsar_faults import PulsarFaults
from tests.faults.raw import Faults
from tests.loops import loop_over
from tests.pulsar_frames import command, connect, entry, field_of, metadata, send, send_batch, send_entry, simple
from tests.raw_pulsar import topic

_INT = struct.Struct(">I")
HUGE = 2**64 - 1


@pytest.fixture
def pulsar(faults_of_all: Faults) -> Iterator[PulsarFaults]:
    attacked = PulsarFaults(faults_of_all)
    yield attacked
    attacked.close()


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32),
        b"\xff" * 100,
        _INT.pack(2**32 - 1) + bytes(100),
        _INT.pack(100 << 20) + _INT.pack(10) + bytes(100),
        _INT.pack(0),
        _INT.pack(3) + bytes(3),
        _INT.pack(8) + _INT.pack(2**32 - 1) + bytes(4),
        _INT.pack(8) + _INT.pack(100) + bytes(4),
        _INT.pack(4) + _INT.pack(0),
    ],
    ids=["http", "tls", "ones", "4 GiB", "100 MiB", "nothing", "less than a length", "lies", "too short", "empty"],
)
@pytest.mark.parametrize("greets", [False, True], ids=["at once", "after CONNECT"])
def test_noise_ends_the_connection(pulsar: PulsarFaults, noise: bytes, greets: bool) -> None:
    client = pulsar.connect_pulsar(greets=greets)
    client.try_send(noise)
    client.finish()
    assert client.is_closed()
    assert pulsar.serves_pulsar()


def _filled(kind: str) -> bytes:
    """A command of this type with all required fields."""
    base = BaseCommand(type=BaseCommand.Type.Value(kind))
    if field_of(kind) not in BaseCommand.DESCRIPTOR.fields_by_name:
        return simple(base)
    body = getattr(base, field_of(kind))
    body.SetInParent()
    _fill(body)
    return simple(base)


def _fill(message: Any) -> None:
    for field in message.DESCRIPTOR.fields:
        if not field.is_required:
            continue
        if field.message_type is not None:
            getattr(message, field.name).SetInParent()
            _fill(getattr(message, field.name))
        elif field.enum_type is not None:
            setattr(message, field.name, field.enum_type.values[0].number)
        elif field.cpp_type == field.CPPTYPE_STRING:
            setattr(message, field.name, b"x" if field.type == field.TYPE_BYTES else "x")
        else:
            setattr(message, field.name, 1)


@loop_over("kind", BaseCommand.Type.keys())
def test_every_command_with_the_least_that_it_requires(pulsar: PulsarFaults, kind: str) -> None:
    """With ids that do not exist, and of types that only a broker sends."""
    client = pulsar.connect_pulsar()
    client.try_send(_filled(kind))
    client.try_send(command("PING"))
    client.finish()
    client.rest()
    assert pulsar.serves_pulsar()


@loop_over("kind", BaseCommand.Type.keys())
def test_every_command_without_what_it_requires(pulsar: PulsarFaults, kind: str) -> None:
    for greets in (True, False):
        client = pulsar.connect_pulsar(greets=greets)
        client.try_send(simple(BaseCommand(type=BaseCommand.Type.Value(kind))))
        client.finish()
        client.rest()
    assert pulsar.serves_pulsar()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x0e\x01",
        b"\x0e\x01" + bytes(4),
        entry(b"", b"value"),
        entry(b"\xff\xff\xff", b"value"),
        entry(metadata(0)[:-3], b""),
        struct.pack(">HII", 0x0E01, 0, 2**31) + b"x",
        struct.pack(">HII", 0x0E01, 0, 2**32 - 1) + b"x",
        struct.pack(">I", 2**31) + b"x",
        entry(metadata(0, producer_name="x" * 100_000), b"value"),
    ],
    ids=[
        "nothing",
        "a magic number",
        "and a checksum",
        "no metadata",
        "metadata that are none",
        "metadata cut off",
        "metadata of 2 GiB",
        "metadata of 4 GiB",
        "no magic number",
        "a long name",
    ],
)
def test_sends_that_cannot_be_read(pulsar: PulsarFaults, data: bytes) -> None:
    client = pulsar.connect_pulsar().produce_to(topic())
    client.try_send(send_entry(0, 0, data))
    client.finish()
    client.rest()
    assert pulsar.serves_pulsar()


@pytest.mark.parametrize("count", [-(2**31), -1, 0, 2, 1000, 2**31 - 1])
def test_a_number_of_messages_that_lies(pulsar: PulsarFaults, count: int) -> None:
    name = topic()
    client = pulsar.connect_pulsar().produce_to(name)
    client.try_send(send_entry(0, 0, entry(metadata(0, num_messages_in_batch=count), b"value"), num_messages=count))
    client.finish()
    client.rest()
    # Whatever was stored, readers of the topic continue, also by Kafka's protocol.
    other = pulsar.connect_pulsar().produce_to(name, producer_id=1)
    other.send(send(1, 0, b"after"))
    receipt = other.expect("SEND_RECEIPT")
    reader = pulsar.connect_pulsar().subscribe_to(name)
    reader.flow(100)
    while reader.messages(1)[0].body.message_id.entryId != receipt.message_id.entryId:
        pass
    assert pulsar.serves_pulsar()


def test_messages_larger_than_allowed_are_refused(pulsar: PulsarFaults) -> None:
    client = pulsar.connect_pulsar().produce_to(topic())
    client.try_send(send(0, 0, bytes(6 << 20)))
    client.finish()
    client.rest()
    assert pulsar.serves_pulsar()


def test_frames_that_come_byte_by_byte(pulsar: PulsarFaults) -> None:
    name = topic()
    data = connect() + command("PRODUCER", topic=name, producer_id=0, request_id=1) + send(0, 0, b"slowly")
    clients = [pulsar.connect_pulsar(greets=False) for _ in range(10)]
    for at in range(len(data)):
        for client in clients:
            client.send(data[at : at + 1])
        if at % 30 == 0:
            assert pulsar.serves_pulsar()
    for client in clients:
        client.expect("CONNECTED")
        client.expect("PRODUCER_SUCCESS")
        client.expect("SEND_RECEIPT")


def test_damaged_conversations(pulsar: PulsarFaults) -> None:
    """Bits flip in the frames of good clients; the seed is fixed, so that failures are reproducible."""
    rng = random.Random(13)
    name = topic()
    good = [
        connect(),
        command("PARTITIONED_METADATA", topic=name, request_id=0),
        command("LOOKUP", topic=name, request_id=1),
        command("PRODUCER", topic=name, producer_id=0, request_id=2),
        send(0, 0, b"value"),
        send_batch(0, 1, [b"a", b"b", b"c"], keys=["x", "y", "z"]),
        command("SUBSCRIBE", topic=name, subscription="s", subType=1, consumer_id=0, request_id=3, initialPosition=1),
        command("FLOW", consumer_id=0, messagePermits=10),
        command("ACK", consumer_id=0, ack_type=0, message_id=[{"ledgerId": 0, "entryId": 0}], request_id=4),
        command("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=0),
        command("SEEK", consumer_id=0, request_id=5, message_publish_time=1),
        command("GET_LAST_MESSAGE_ID", consumer_id=0, request_id=6),
        command("GET_SCHEMA", topic=name, request_id=7),
        command("GET_TOPICS_OF_NAMESPACE", namespace="public/default", request_id=8),
        command("CONSUMER_STATS", consumer_id=0, request_id=9),
        command("UNSUBSCRIBE", consumer_id=0, request_id=10),
        command("CLOSE_PRODUCER", producer_id=0, request_id=11),
    ]
    for turn in range(150):
        client = pulsar.connect_pulsar(greets=False)
        frames = [bytearray(frame) for frame in good]
        for frame in rng.sample(frames, rng.randrange(1, 4)):
            for _ in range(rng.randrange(1, 4)):
                # Often the head of the frame stays, so that its content is read.
                frame[rng.randrange(8 if rng.random() < 0.8 else 0, len(frame))] = rng.randrange(256)
        client.try_send(b"".join(frames))
        client.finish()
        client.rest()
        client.close()
        if turn % 30 == 0:
            assert pulsar.serves_pulsar()


def test_ids_that_do_not_exist(pulsar: PulsarFaults) -> None:
    name = topic()
    client = pulsar.connect_pulsar().produce_to(name).subscribe_to(name)
    client.publish(b"value")
    wild = [
        {"ledgerId": ledger, "entryId": entry_id, "partition": partition, "batch_index": index}
        for ledger in (0, HUGE, 2**63 - 1)
        for entry_id in (0, 1, 2**40, HUGE, 2**63 - 1)
        for partition, index in ((-1, -1), (2**31 - 1, 2**31 - 1), (-(2**31), -(2**31)))
    ]
    for kind in (0, 1):
        for message_id in wild:
            client.request("ACK", consumer_id=0, ack_type=kind, message_id=[message_id])
    client.tell("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=0, message_ids=wild)
    for message_id in wild:
        other = pulsar.connect_pulsar().subscribe_to(name, "seeks", consumer_id=1)
        other.try_send(command("SEEK", consumer_id=1, request_id=99, message_id=message_id))
        other.finish()
        other.rest()
        other.close()
    for time_ms in (0, 1, HUGE, 2**63 - 1):
        other = pulsar.connect_pulsar().subscribe_to(name, "seeks", consumer_id=1)
        other.try_send(command("SEEK", consumer_id=1, request_id=99, message_publish_time=time_ms))
        other.finish()
        other.rest()
        other.close()
    for consumer_id in (1, HUGE):
        client.tell("FLOW", consumer_id=consumer_id, messagePermits=10)
        client.tell("ACK", consumer_id=consumer_id, ack_type=0, message_id=[{"ledgerId": 0, "entryId": 0}])
        client.tell("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=consumer_id)
        for kind in ("SEEK", "GET_LAST_MESSAGE_ID", "UNSUBSCRIBE", "CONSUMER_STATS"):
            client.request(kind, consumer_id=consumer_id)
        assert client.request("CLOSE_CONSUMER", consumer_id=consumer_id).kind == "SUCCESS"
        assert client.request("CLOSE_PRODUCER", producer_id=consumer_id).kind == "SUCCESS"
    assert pulsar.serves_pulsar()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "persistent://",
        "persistent://public",
        "persistent://public/default",
        "persistent://public/default/",
        "persistent:///default/x",
        "persistent://public//x",
        "elsewhere://public/default/x",
        "persistent://public/default/" + "x" * 100_000,
        "persistent://public/default/\x00",
        "persistent://public/default/x-partition-99999999999999999999",
        "persistent://public/default/x-partition--1",
        "persistent://public/../x",
        "../../../etc/passwd",
        "persistent://public/default/../../../../etc/passwd",
        "x/y/z/w/v",
    ],
    ids=lambda name: name[:40].encode().hex()[:24],
)
def test_topics_with_names_that_are_none(pulsar: PulsarFaults, name: str) -> None:
    client = pulsar.connect_pulsar()
    for kind, fields in (
        ("PARTITIONED_METADATA", {}),
        ("LOOKUP", {}),
        ("PRODUCER", {"producer_id": 1}),
        ("SUBSCRIBE", {"subscription": "s", "subType": 0, "consumer_id": 1}),
        ("GET_SCHEMA", {}),
    ):
        client.request(kind, topic=name, **fields)
    client.request("GET_TOPICS_OF_NAMESPACE", namespace=name)
    assert pulsar.serves_pulsar()
