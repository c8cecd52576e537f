"""The strategies, for each type of schema."""

import base64
import json
from struct import pack

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet

from broker.pulsar.refusals import IncompatibleSchema
from broker.pulsar.schemas.compatibility import (
    AVRO,
    JSON,
    KEY_VALUE,
    PROTOBUF,
    PROTOBUF_NATIVE,
    STRING,
    Schema,
    Strategy,
    check,
    check_definition,
    identity,
)
from tests.loops import loop_over

S = Strategy


def avro(*fields: str, type_: int = AVRO) -> Schema:
    """ "a:int" or "a:int=0", with a default."""
    found = []
    for text in fields:
        name, _, rest = text.partition(":")
        kind, default, value = rest.partition("=")
        found.append({"name": name, "type": kind, **({"default": json.loads(value)} if default else {})})
    return Schema(type_, json.dumps({"type": "record", "name": "R", "fields": found}).encode(), "R")


def compatible(new: Schema, existing: list[Schema], strategy: Strategy) -> bool:
    try:
        check(new, existing, strategy)
    except IncompatibleSchema:
        return False
    return True


A = avro("a:int")
AB = avro("a:int", "b:int")  # cannot read what A has written; A can read what it has written
AB_DEFAULT = avro("a:int", "b:int=0")
B_TEXT = avro("a:string")

# The new schema, the earlier ones (the latest first), and the strategies that allow it.
CASES = [
    (AB, [A], {S.FORWARD, S.FORWARD_TRANSITIVE}),
    (A, [AB], {S.BACKWARD, S.BACKWARD_TRANSITIVE}),
    (AB_DEFAULT, [A], {S.FORWARD, S.FORWARD_TRANSITIVE, S.BACKWARD, S.BACKWARD_TRANSITIVE, S.FULL, S.FULL_TRANSITIVE}),
    (B_TEXT, [A], set()),
    # Only strategies that check all versions see the oldest.
    (AB, [AB_DEFAULT, A], {S.FORWARD, S.FORWARD_TRANSITIVE, S.BACKWARD, S.FULL}),
    (B_TEXT, [avro("a:bytes"), A], {S.FORWARD, S.BACKWARD, S.FULL}),
]


@loop_over("kind", [AVRO, JSON, PROTOBUF])
@loop_over("strategy", Strategy)
@loop_over("case", CASES)
def test_a_schema_follows_others_as_the_strategy_says(
    case: tuple[Schema, list[Schema], set[Strategy]], strategy: Strategy, kind: int
) -> None:
    new, existing, strategies = case
    new, *existing = (Schema(kind, one.data) for one in [new, *existing])
    assert (strategy in strategies or strategy is S.ALWAYS_COMPATIBLE) == compatible(new, existing, strategy)


@pytest.mark.parametrize("strategy", Strategy)
def test_schema_is_compatible_with_no_other_type(strategy: Strategy) -> None:
    assert compatible(A, [A], strategy)
    assert (strategy is S.ALWAYS_COMPATIBLE) == compatible(A, [Schema(JSON, A.data)], strategy)
    assert (strategy is S.ALWAYS_COMPATIBLE) == compatible(Schema(STRING, b""), [A], strategy)
    assert compatible(A, [], strategy)


def test_json_schemas_of_another_language_go_with_any() -> None:
    other = Schema(JSON, b'{"type":"object","id":"x"}')
    check_definition(other)
    assert compatible(other, [Schema(JSON, A.data)], S.FULL)
    assert compatible(Schema(JSON, A.data), [other], S.FULL)


@pytest.mark.parametrize(
    "schema",
    [
        Schema(AVRO, b""),
        Schema(AVRO, b'{"type":"object"}'),
        Schema(PROTOBUF, b"{}"),
        Schema(JSON, b""),
        Schema(JSON, b"[" * 100_000),
        Schema(KEY_VALUE, b""),
        Schema(KEY_VALUE, b"\x7f\xff\xff\xff\x00\x00\x00\x00"),
        Schema(KEY_VALUE, pack(">ii", 0, 5) + b"ab"),
        Schema(KEY_VALUE, pack(">i2si", 2, b"{}", 0), properties={"key.schema.type": "AVRO"}),
        Schema(PROTOBUF_NATIVE, b""),
        Schema(PROTOBUF_NATIVE, b"[]"),
        Schema(PROTOBUF_NATIVE, b'{"rootMessageTypeName":"a","fileDescriptorSet":"!"}'),
        Schema(PROTOBUF_NATIVE, b'{"rootMessageTypeName":"a","fileDescriptorSet":""}'),
        Schema(PROTOBUF_NATIVE, b'{"rootMessageTypeName":[],"fileDescriptorSet":""}'),
    ],
)
def test_invalid_definition_of_type_is_refused(schema: Schema) -> None:
    with pytest.raises(IncompatibleSchema, match="Invalid schema definition"):
        check_definition(schema)


def key_value(key: Schema, value: Schema) -> Schema:
    data = pack(">i", len(key.data)) + key.data + pack(">i", len(value.data)) + value.data
    return Schema(KEY_VALUE, data, "", {"key.schema.type": key.type_name, "value.schema.type": value.type_name})


def test_key_and_value_must_each_be_compatible() -> None:
    text = Schema(STRING, b"")
    check_definition(key_value(text, A))
    assert compatible(key_value(text, AB_DEFAULT), [key_value(text, A)], S.FULL)
    assert not compatible(key_value(text, AB), [key_value(text, A)], S.FULL)
    assert not compatible(key_value(A, A), [key_value(text, A)], S.FULL)
    assert not compatible(key_value(AB, text), [key_value(A, text)], S.FULL)


F = FieldDescriptorProto


def protobuf(*fields: tuple[int, int, int], root: str = "p.M", of_inner: int = F.TYPE_INT32) -> Schema:
    """Fields are (number, type, label); messages are p.M.Inner, which refers to p.M again."""
    files = FileDescriptorSet()
    file = files.file.add(package="p")
    message = file.message_type.add(name="M")
    inner = message.nested_type.add(name="Inner")
    inner.field.add(name="x", number=1, type=of_inner, label=F.LABEL_OPTIONAL)  # type: ignore[arg-type]
    inner.field.add(name="m", number=2, type=F.TYPE_MESSAGE, type_name=".p.M", label=F.LABEL_OPTIONAL)
    for number, type_, label in fields:
        name = ".p.M.Inner" if type_ == F.TYPE_MESSAGE else ""
        message.field.add(name=f"f{number}", number=number, type=type_, label=label, type_name=name)  # type: ignore[arg-type]
    data = {"rootMessageTypeName": root, "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode()}
    return Schema(PROTOBUF_NATIVE, json.dumps(data).encode())


OPTIONAL, REQUIRED, REPEATED = F.LABEL_OPTIONAL, F.LABEL_REQUIRED, F.LABEL_REPEATED
PLAIN = protobuf((1, F.TYPE_INT32, OPTIONAL), (2, F.TYPE_MESSAGE, OPTIONAL))


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (protobuf((1, F.TYPE_INT64, OPTIONAL), (2, F.TYPE_MESSAGE, OPTIONAL)), True),
        (protobuf((2, F.TYPE_MESSAGE, OPTIONAL), (3, F.TYPE_STRING, OPTIONAL)), True),
        (protobuf((2, F.TYPE_MESSAGE, REPEATED)), True),
        (protobuf((1, F.TYPE_STRING, OPTIONAL)), False),
        (protobuf((1, F.TYPE_SINT32, OPTIONAL)), False),
        (protobuf((1, F.TYPE_INT32, REPEATED)), False),
        (protobuf((1, F.TYPE_INT32, OPTIONAL), (4, F.TYPE_INT32, REQUIRED)), False),
        (protobuf((2, F.TYPE_MESSAGE, OPTIONAL), of_inner=F.TYPE_STRING), False),
        (protobuf((1, F.TYPE_INT32, OPTIONAL), root="p.M.Inner"), False),
    ],
)
def test_descriptors_with_same_field_encoding_are_compatible(new: Schema, expected: bool) -> None:
    check_definition(new)
    assert expected == compatible(new, [PLAIN], S.FULL)


def test_schema_identity_ignores_documentation() -> None:
    spaced = Schema(AVRO, json.dumps({"doc": "x", **json.loads(A.data)}, indent=1).encode(), "another name")
    assert identity(A) == identity(spaced)
    assert identity(A) != identity(Schema(JSON, A.data))
    assert identity(A) != identity(AB)
    assert identity(Schema(JSON, b"{}")) == identity(Schema(JSON, b"{}"))
