"""Schemas of topics, in a real catalogue."""

import json
from pathlib import Path
from uuid import UUID

import pytest

from broker.errors import StorageError
from broker.metadata.sqlite import SqliteCatalogue
from broker.pulsar.refusals import IncompatibleSchema, MetadataInvalid
from broker.pulsar.schemas import registry as registry_module
from broker.pulsar.schemas.compatibility import (
    AUTO_CONSUME,
    AVRO,
    SCHEMA_BYTES_MAX,
    STRING,
    Schema,
    StoredSchema,
    Strategy,
    schema_from_message,
    schema_to_message,
    version_bytes,
    version_from_bytes,
)
from broker.pulsar.schemas.registry import SchemaRegistry, decode, encode
from protocol.pulsar.pulsar_pb2 import Schema as SchemaMessage
from tests.pulsar.two_nodes import TwoNodes

TOPIC, OTHER = UUID(int=1), UUID(int=2)
FULL = Strategy.FULL


def avro(*names: str, default: bool = False) -> Schema:
    more = {"default": 0} if default else {}
    fields = [{"name": name, "type": "int", **more} for name in names]
    return Schema(AVRO, json.dumps({"type": "record", "name": "R", "fields": fields}).encode(), "R", {"p": "q"})


class Opened:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.topics = {TOPIC, OTHER}
        self.catalogue = SqliteCatalogue(str(path / "catalogue.db"))
        self.registry = SchemaRegistry(self.catalogue)

    def again(self) -> SchemaRegistry:
        self.catalogue.close()
        self.catalogue = SqliteCatalogue(str(self._path / "catalogue.db"))
        self.registry = SchemaRegistry(self.catalogue)
        self.registry.load(self.topics.__contains__)
        return self.registry


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    return Opened(tmp_path)


def test_versions_count_from_0_per_distinct_schema(opened: Opened) -> None:
    registry = opened.registry
    assert registry.latest(TOPIC) is None
    assert 0 == registry.put(TOPIC, avro("a", default=True), FULL, 5, "me")
    assert 1 == registry.put(TOPIC, avro("a", "b", default=True), FULL, 6)
    assert 0 == registry.put(TOPIC, avro("a", default=True), FULL, 7)
    assert 0 == registry.put(OTHER, avro("x"), FULL, 8)
    for one in (registry, opened.again()):
        latest = one.latest(TOPIC)
        assert latest is not None and (1, 6) == (latest.version, latest.written_ms)
        assert StoredSchema(0, avro("a", default=True), 5, "me") == one.get(TOPIC, 0)
        assert one.get(TOPIC, 2) is None
        assert [0, 1] == [stored.version for stored in one.all(TOPIC)]
        assert 1 == one.find(TOPIC, avro("a", "b", default=True))


def test_schema_incompatible_with_latest_is_not_kept(opened: Opened) -> None:
    registry = opened.registry
    registry.put(TOPIC, avro("a"), FULL, 0)
    for schema in (avro("b"), Schema(STRING, b""), Schema(AVRO, b"nonsense")):
        with pytest.raises(IncompatibleSchema):
            registry.put(TOPIC, schema, FULL, 0)
    assert 1 == len(opened.again().all(TOPIC))


@pytest.mark.parametrize("strategy", Strategy)
def test_consumer_schema_is_checked_by_strategy(opened: Opened, strategy: Strategy) -> None:
    registry = opened.registry
    registry.put(TOPIC, avro("a", "b"), Strategy.ALWAYS_COMPATIBLE, 0)

    def may(schema: Schema) -> bool:
        try:
            registry.check_consumer(TOPIC, schema, strategy)
        except IncompatibleSchema:
            return False
        return True

    assert may(avro("a", "b"))
    # This schema reads the stored data. Only FULL_TRANSITIVE also asks for the other direction.
    assert (strategy not in (Strategy.FULL_TRANSITIVE, Strategy.ALWAYS_INCOMPATIBLE)) == may(avro("a"))
    assert (strategy is Strategy.ALWAYS_COMPATIBLE) == may(avro("a", "b", "c"))
    assert (strategy is Strategy.ALWAYS_COMPATIBLE) == may(Schema(STRING, b""))


def test_consumer_with_schema_is_refused_without_topic_schema(opened: Opened) -> None:
    with pytest.raises(IncompatibleSchema, match="does not have schema"):
        opened.registry.check_consumer(TOPIC, avro("a"), FULL)
    opened.registry.check_consumer(TOPIC, avro("a"), Strategy.ALWAYS_COMPATIBLE)


def test_any_schema_may_follow_deletion_keeping_old_versions(opened: Opened) -> None:
    registry = opened.registry
    assert registry.delete(TOPIC, 0) is None
    registry.put(TOPIC, avro("a"), FULL, 0)
    assert 1 == registry.delete(TOPIC, 9)
    assert registry.latest(TOPIC) is None and registry.find(TOPIC, avro("a")) is None
    registry = opened.again()
    assert 2 == registry.put(TOPIC, Schema(STRING, b""), FULL, 0)
    assert 3 == registry.put(TOPIC, avro("a"), Strategy.ALWAYS_COMPATIBLE, 0)
    old = registry.get(TOPIC, 0)
    assert old is not None and avro("a") == old.schema
    assert registry.get(TOPIC, 1) is None


def test_deleted_topic_loses_its_schemas(opened: Opened) -> None:
    opened.registry.put(TOPIC, avro("a"), FULL, 0)
    opened.registry.put(OTHER, avro("a"), FULL, 0)
    opened.registry.forget(TOPIC)
    assert opened.registry.latest(TOPIC) is None
    opened.topics = {TOPIC}  # the other topic was deleted while the broker was down
    registry = opened.again()
    assert registry.latest(TOPIC) is None and registry.latest(OTHER) is None
    assert [] == list(opened.catalogue.load_documents(registry_module.KIND))


def test_the_versions_of_a_topic_are_bounded(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "VERSIONS_MAX", 3)
    for number in range(3):
        opened.registry.put(TOPIC, avro(f"a{number}", default=True), FULL, 0)
    with pytest.raises(IncompatibleSchema, match="may have 3"):
        opened.registry.put(TOPIC, avro("b", default=True), FULL, 0)
    assert 0 == opened.registry.put(TOPIC, avro("a0", default=True), FULL, 0)
    monkeypatch.setattr(registry_module, "BYTES_MAX", 100)
    opened.registry.put(OTHER, avro("a", default=True), FULL, 0)
    with pytest.raises(IncompatibleSchema):
        opened.registry.put(OTHER, avro("b", default=True), FULL, 0)


def test_unreadable_schemas_are_a_storage_error() -> None:
    body = encode(StoredSchema(3, avro("a"), 1))
    assert StoredSchema(3, avro("a"), 1) == decode(body)
    for wrong in (b"", b"{}\n", b"[]\n", body.replace(b'"format":1', b'"format":2')):
        with pytest.raises(StorageError):
            decode(wrong)


def test_protocol_schema_round_trips() -> None:
    schema = avro("a")
    assert schema == schema_from_message(schema_to_message(schema))
    assert schema_from_message(SchemaMessage(name="", schema_data=b"", type=AUTO_CONSUME)) is None  # type: ignore[arg-type]
    with pytest.raises(IncompatibleSchema, match=str(SCHEMA_BYTES_MAX)):
        schema_from_message(schema_to_message(Schema(AVRO, b"x" * (SCHEMA_BYTES_MAX + 1))))


def test_versions_are_eight_bytes_on_the_wire() -> None:
    assert b"\0\0\0\0\0\0\1\2" == version_bytes(258)
    assert 258 == version_from_bytes(b"\0\0\0\0\0\0\1\2")
    assert version_from_bytes(b"") is None
    with pytest.raises(MetadataInvalid):
        version_from_bytes(b"\1")


def test_two_nodes_number_the_versions_of_a_topic_together(tmp_path: Path) -> None:
    catalogue = SqliteCatalogue(str(tmp_path / "catalogue.db"))
    one, other = (SchemaRegistry(catalogue, node) for node in TwoNodes(tmp_path).nodes)
    schemas = [avro(*"abcdef"[: count + 1], default=True) for count in range(6)]
    numbers = [(one, other)[number % 2].put(TOPIC, schema, FULL, 1) for number, schema in enumerate(schemas)]
    assert list(range(6)) == numbers
    one.reload()
    assert [[0, 1, 2, 3, 4, 5]] * 2 == [[each.version for each in registry.all(TOPIC)] for registry in (one, other)]
    assert [2, 2] == [registry.put(TOPIC, schemas[2], FULL, 1) for registry in (one, other)]
