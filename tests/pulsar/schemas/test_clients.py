"""Producers and consumers with schemas, with the real client."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar.schema import Integer, JsonSchema, Record, String, StringSchema

from broker.client.embedded import Broker
from broker.pulsar.refusals import IncompatibleSchema, TopicNotFound, code_of
from protocol.pulsar import pulsar_pb2 as pb
from tests.pulsar.wire import Wire


class Example(Record):
    a = Integer()
    b = Integer()


class BadExample(Record):
    a = String()
    b = Integer()


class Optional(Record):
    a = Integer()
    b = Integer()
    c = Integer(default=0, required_default=True)


@pytest.fixture
def client(broker: Broker) -> Iterator[Any]:
    client = pulsar.Client(f"pulsar://{broker.address('pulsar')}", operation_timeout_seconds=10)
    yield client
    client.close()


def test_schema_incompatible_with_topic_is_refused(client: Any) -> None:
    producer = client.create_producer("schemas", schema=JsonSchema(Example))
    for schema in (JsonSchema(BadExample), StringSchema()):
        with pytest.raises(pulsar.IncompatibleSchema):
            client.subscribe("schemas", "s", schema=schema)
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer("schemas", schema=schema)
    consumer = client.subscribe("schemas", "s", schema=JsonSchema(Example))
    producer.send(Example(a=4, b=5))
    message = consumer.receive(60_000)
    assert (4, 5) == (message.value().a, message.value().b)


def test_messages_carry_their_schema_version(client: Any) -> None:
    consumer = client.subscribe("versions", "s")
    for schema, value in ((JsonSchema(Example), Example(a=1, b=2)), (JsonSchema(Optional), Optional(a=3, b=4, c=5))):
        producer = client.create_producer("versions", schema=schema)
        producer.send(value)
        producer.close()
    for version in (0, 1):
        message = consumer.receive(60_000)
        assert version.to_bytes(8, "big") == message._message.schema_version().encode("latin-1")


def ask(broker: Broker, *commands: tuple[int, Any]) -> list[Any]:
    """What the broker answers to these commands, on a connection of their own."""
    with closing(Wire(broker.address("pulsar"))) as wire:
        return [wire.ask(kind, command)[1] for kind, command in commands]


def test_schemas_are_told_and_added_without_a_producer(broker: Broker, client: Any) -> None:
    client.create_producer("asked", schema=JsonSchema(Example))
    client.create_producer("asked", schema=JsonSchema(Optional))
    get, make = pb.BaseCommand.GET_SCHEMA, pb.BaseCommand.GET_OR_CREATE_SCHEMA
    first, latest, unknown, none = ask(
        broker,
        (get, pb.CommandGetSchema(request_id=0, topic="asked", schema_version=bytes(8))),
        (get, pb.CommandGetSchema(request_id=0, topic="asked")),
        (get, pb.CommandGetSchema(request_id=0, topic="asked", schema_version=b"\0" * 7 + b"\7")),
        (get, pb.CommandGetSchema(request_id=0, topic="nothing")),
    )
    assert (bytes(8), True) == (first.schema_version, b"Example" in first.schema.schema_data)
    assert (b"\0" * 7 + b"\1", True) == (latest.schema_version, b"Optional" in latest.schema.schema_data)
    for answer in (unknown, none):
        assert code_of(TopicNotFound()) == answer.error_code
    text = pb.Schema(name="", schema_data=b"", type=pb.Schema.String)
    same, other = ask(
        broker,
        (make, pb.CommandGetOrCreateSchema(request_id=0, topic="asked", schema=first.schema)),
        (make, pb.CommandGetOrCreateSchema(request_id=0, topic="asked", schema=text)),
    )
    assert (bytes(8), False) == (same.schema_version, same.HasField("error_code"))
    assert code_of(IncompatibleSchema()) == other.error_code


def test_first_consumer_sets_schema_of_empty_topic(client: Any) -> None:
    client.subscribe("first", "s", schema=JsonSchema(Example))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer("first", schema=JsonSchema(BadExample))
    client.create_producer("first", schema=JsonSchema(Example))


def test_schemas_are_there_after_a_restart(tmp_path: Path) -> None:
    for number in range(2):
        with Broker(str(tmp_path), listeners=["pulsar://127.0.0.1:0"]) as broker:
            client = pulsar.Client(f"pulsar://{broker.address('pulsar')}", operation_timeout_seconds=10)
            try:
                if number == 0:
                    client.create_producer("kept", schema=JsonSchema(Example))
                with pytest.raises(pulsar.IncompatibleSchema):
                    client.create_producer("kept", schema=JsonSchema(BadExample))
            finally:
                client.close()
