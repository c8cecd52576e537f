"""Schemas: versions, what is compatible, what is refused."""

import json
import threading
from collections.abc import Callable
from typing import Any

import _pulsar
import pulsar
import pytest
from pulsar.schema import AvroSchema, BytesSchema, Integer, JsonSchema, Record, Schema, String, StringSchema

from tests.compat.pulsar.helpers import Admin, receive, send, texts

Connect = Callable[..., pulsar.Client]


class Text(Schema):
    """A schema of any type, of which the broker knows the text and the client nothing."""

    def __init__(self, kind: Any, definition: Any) -> None:
        text = definition if isinstance(definition, str) else json.dumps(definition)
        self._record_cls = bytes
        self._schema_info = _pulsar.SchemaInfo(kind, "Schema", text)

    def encode(self, obj: Any) -> bytes:
        return bytes(obj)

    def decode(self, data: bytes) -> bytes:
        return data


def avro(fields: dict[str, Any], name: str = "Example", **defaults: Any) -> Text:
    return Text(
        _pulsar.SchemaType.AVRO,
        {
            "type": "record",
            "name": name,
            "fields": [
                {"name": field, "type": kind, **({"default": defaults[field]} if field in defaults else {})}
                for field, kind in fields.items()
            ],
        },
    )


class Example(Record):
    a = Integer()
    b = Integer()


class Other(Record):
    a = String()
    b = Integer()


@pytest.fixture
def namespace(rest: Admin, name: str) -> str:
    rest.put(f"/admin/v2/namespaces/public/{name}", {})
    return f"public/{name}"


def strategy(rest: Admin, namespace: str, value: str) -> None:
    status, answer = rest.call("PUT", f"/admin/v2/namespaces/{namespace}/schemaCompatibilityStrategy", value)
    assert status == 204, answer


def test_values_of_a_schema_come_with_its_version(client: pulsar.Client, name: str) -> None:
    schema = JsonSchema(Example)
    consumer = client.subscribe(name, "sub", schema=schema)
    producer = client.create_producer(name, schema=schema)
    producer.send(Example(a=1, b=2))
    [message] = receive(consumer, 1)
    assert message.value() == Example(a=1, b=2)
    assert message.schema_version().encode() == bytes(8)


class Longer(Record):
    a = Integer()
    b = Integer()
    c = String(default="none", required_default=True)


class Unlike(Record):
    x = Integer(required=True)


def test_avro_records_of_schemas_that_grow(client: pulsar.Client, name: str) -> None:
    consumer = client.subscribe(name, "sub", schema=AvroSchema(Example))
    client.create_producer(name, schema=AvroSchema(Example)).send(Example(a=1, b=2))
    client.create_producer(name, schema=AvroSchema(Longer)).send(Longer(a=3, b=4, c="more"))
    received = receive(consumer, 2)
    assert [(1, 2), (3, 4)] == [(value.a, value.b) for value in (message.value() for message in received)]
    assert [0, 1] == [int.from_bytes(message.schema_version().encode(), "big") for message in received]
    for schema in AvroSchema(Unlike), JsonSchema(Example):
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(name, schema=schema)


def test_the_same_schema_is_registered_once(connect: Connect, name: str) -> None:
    consumer = connect().subscribe(name, "sub")
    for _ in range(3):
        connect().create_producer(name, schema=JsonSchema(Example)).send(Example(a=1, b=2))
    assert 3 * [bytes(8)] == [message.schema_version().encode() for message in receive(consumer, 3)]


def test_incompatible_schema_is_refused_without_traces(connect: Connect, name: str) -> None:
    client = connect()
    client.create_producer(name, schema=JsonSchema(Example))
    for schema in (JsonSchema(Other), StringSchema(), avro({"a": "string"})):
        with pytest.raises(pulsar.IncompatibleSchema):
            client.subscribe(name, "sub", schema=schema)
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(name, schema=schema)
    assert client.subscribe(name, "sub", schema=JsonSchema(Example))


def test_bytes_are_a_schema_that_fits_all(client: pulsar.Client, name: str) -> None:
    plain = client.create_producer(name)
    typed = client.create_producer(name, schema=JsonSchema(Example))
    consumer = client.subscribe(name, "sub", schema=BytesSchema())
    plain.send(b"plain")
    typed.send(Example(a=1, b=2))
    first, second = texts(receive(consumer, 2))
    assert first == "plain"
    assert json.loads(second) == {"a": 1, "b": 2}


def test_strings(client: pulsar.Client, name: str) -> None:
    producer = client.create_producer(name, schema=StringSchema())
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(name, schema=JsonSchema(Example))
    consumer = client.subscribe(name, "sub", schema=StringSchema())
    producer.send("hello")
    assert "hello" == receive(consumer, 1)[0].value()


NULLABLE = {"a": ["null", "int"], "b": "boolean"}


@pytest.mark.parametrize(
    ("wanted", "new", "accepted"),
    [
        ("FULL", avro({**NULLABLE, "c": ["null", "string"]}, c=None), True),
        ("FULL", avro({**NULLABLE, "c": "string"}), False),
        ("FULL", avro(NULLABLE, name="Renamed"), True),
        ("FULL", avro(NULLABLE, a=None, b=False), True),
        ("FULL", avro({"a": ["null", "string"], "b": "boolean"}), False),
        ("BACKWARD", avro({"a": ["null", "long"], "b": "boolean"}), True),
        ("BACKWARD", avro({**NULLABLE, "c": "string"}), False),
        ("BACKWARD", avro({"b": "boolean"}), True),
        ("FORWARD", avro({**NULLABLE, "c": "string"}), True),
        ("FORWARD", avro({"b": "boolean"}), False),
        ("FORWARD", avro({"a": "int", "b": "boolean"}), True),
        ("ALWAYS_COMPATIBLE", avro({"z": "string"}), True),
        ("ALWAYS_INCOMPATIBLE", avro(NULLABLE, name="Renamed"), False),
    ],
)
def test_compatibility_strategy_decides(
    connect: Connect, rest: Admin, namespace: str, wanted: str, new: Text, accepted: bool
) -> None:
    strategy(rest, namespace, wanted)
    topic = f"persistent://{namespace}/x"
    connect().create_producer(topic, schema=avro(NULLABLE))
    if accepted:
        connect().create_producer(topic, schema=new).send(b"value")
    else:
        with pytest.raises(pulsar.IncompatibleSchema):
            connect().create_producer(topic, schema=new)
    connect().create_producer(topic, schema=avro(NULLABLE)).send(b"the first is still good")


def test_versions_count_up_and_can_be_asked_for(
    connect: Connect, rest: Admin, namespace: str, request: pytest.FixtureRequest
) -> None:
    strategy(rest, namespace, "FORWARD")
    topic = f"persistent://{namespace}/x"
    consumer = connect().subscribe(topic, "sub")
    schemas = [avro({"a": "int"}), avro({"a": "int", "b": "string"})]
    for schema in [*schemas, schemas[0]]:
        connect().create_producer(topic, schema=schema).send(b"value")
    versions = [message.schema_version().encode() for message in receive(consumer, 3)]
    assert [number.to_bytes(8, "big") for number in (0, 1, 0)] == versions
    path = f"/admin/v2/schemas/{namespace}/x/schema"
    for version, schema in enumerate(schemas):
        stored = rest.get(f"{path}/{version}")
        assert (stored["version"], stored["type"]) == (version, "AVRO")
        assert stored["data"] == schema.schema_info().schema()
        assert isinstance(stored["properties"], dict)
    assert 1 == rest.get(path)["version"]
    assert 404 == rest.call("GET", f"{path}/9")[0]
    assert 404 == rest.call("GET", f"/admin/v2/schemas/{namespace}/nothing/schema")[0]


def test_concurrent_registrations_get_one_or_two_versions(connect: Connect, name: str) -> None:
    clients = [connect() for _ in range(8)]
    consumer = connect().subscribe(name, "sub")
    failures: list[Exception] = []

    def register(number: int) -> None:
        try:
            producer = clients[number].create_producer(name, schema=avro({"a": "int"}))
            producer.send(b"value")
        except pulsar.PulsarException as error:
            failures.append(error)

    threads = [threading.Thread(target=register, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert {bytes(8)} == {message.schema_version().encode() for message in receive(consumer, 8)}


def test_messages_without_a_schema_have_no_version(client: pulsar.Client, name: str) -> None:
    consumer = client.subscribe(name, "sub")
    send(client.create_producer(name), 1)
    assert not receive(consumer, 1)[0].schema_version()
