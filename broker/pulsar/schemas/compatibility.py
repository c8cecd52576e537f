"""A schema as clients send it, and which schema may follow which on a topic, by the topic's strategy. Pure.

| strategy | the new schema |
|---|---|
| ALWAYS_COMPATIBLE | may be any, of any type |
| ALWAYS_INCOMPATIBLE | is refused: the first schema stays |
| BACKWARD | can read data of the latest schema |
| FORWARD | writes data that the latest schema can read |
| FULL | both; this is the default |
| ..._TRANSITIVE | the same with all earlier schemas |

Except with ALWAYS_COMPATIBLE, the type must stay the same. How definitions are compared depends on the type:

- Avro, JSON and Protobuf schemas are defined in Avro's language and are compared by its rules (``avro.py``).
- A KEY_VALUE schema contains two schemas, with sizes and definitions in its data and types in its properties. Both pairs are
  compared.
- A PROTOBUF_NATIVE schema is a set of file descriptors and the name of a message in it. Two are compatible if their messages
  have the same name, and each field that both have (by number) has the same encoding in both: types with a common encoding, and
  repeated in both or in neither (or, for types that allow it, in either). A required field must be in both. Nested messages are
  compared the same way. The descriptors come from a client: protobuf bounds their depth, and PAIRS_MAX the number of messages
  that are compared.
- Other types have no definition, so they cannot differ.

Tests: tests/pulsar/schemas/test_registry.py.
"""

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from hashlib import sha256
from struct import Struct, error
from typing import Any, Final

import attrs
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from broker.pulsar.refusals import IncompatibleSchema, MetadataInvalid
from broker.pulsar.schemas import avro
from protocol.pulsar.pulsar_pb2 import KeyValue as KeyValueMessage
from protocol.pulsar.pulsar_pb2 import Schema as SchemaMessage

# The definition of a schema, with its properties. Pulsar has no limit but that of a frame.
SCHEMA_BYTES_MAX: Final = 512 * 1024

# Schema.Type of the protocol.
NONE: Final = 0
STRING: Final = 1
JSON: Final = 2
PROTOBUF: Final = 3
AVRO: Final = 4
KEY_VALUE: Final = 15
PROTOBUF_NATIVE: Final = 20
AUTO_CONSUME: Final = 21

_U64: Final = Struct(">Q")

# The types' names in Pulsar's admin API.
TYPE_NAMES: Final[Mapping[int, str]] = {
    0: "NONE", 1: "STRING", 2: "JSON", 3: "PROTOBUF", 4: "AVRO", 5: "BOOLEAN", 6: "INT8", 7: "INT16", 8: "INT32",
    9: "INT64", 10: "FLOAT", 11: "DOUBLE", 12: "DATE", 13: "TIME", 14: "TIMESTAMP", 15: "KEY_VALUE", 16: "INSTANT",
    17: "LOCAL_DATE", 18: "LOCAL_TIME", 19: "LOCAL_DATE_TIME", 20: "PROTOBUF_NATIVE", 21: "AUTO_CONSUME",
}  # fmt: skip
TYPES_BY_NAME: Final[Mapping[str, int]] = {name: number for number, name in TYPE_NAMES.items()}


@attrs.frozen
class Schema:
    type: int  # Schema.Type of the protocol
    data: bytes
    name: str = ""
    properties: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def type_name(self) -> str:
        return TYPE_NAMES.get(self.type, str(self.type))


@attrs.frozen
class StoredSchema:
    """A version of a topic's schema. ``deleted``: it marks that the topic has no schema from here on."""

    version: int
    schema: Schema
    written_ms: int
    user: str = ""
    deleted: bool = False


def schema_from_message(message: Any) -> Schema | None:
    """Convert a Schema of the protocol. None if it stands for no schema. Raises IncompatibleSchema if it is too large."""
    if message.type in (NONE, AUTO_CONSUME) and not message.schema_data:
        return None
    properties = {pair.key: pair.value for pair in message.properties}
    size = len(message.schema_data) + len(message.name)
    size += sum(len(key) + len(value) for key, value in properties.items())
    if size > SCHEMA_BYTES_MAX:
        raise IncompatibleSchema(f"A schema may have {SCHEMA_BYTES_MAX} bytes; this one has {size}.")
    return Schema(message.type, bytes(message.schema_data), message.name, properties)


def schema_to_message(schema: Schema) -> Any:
    return SchemaMessage(
        name=schema.name,
        schema_data=schema.data,
        type=schema.type,
        properties=[KeyValueMessage(key=key, value=value) for key, value in schema.properties.items()],
    )


def version_bytes(version: int) -> bytes:
    """The version as in the protocol and in the metadata of messages: 8 bytes, big-endian."""
    return _U64.pack(version)


def version_from_bytes(data: bytes) -> int | None:
    """None: the latest. Raises MetadataInvalid."""
    if not data:
        return None
    if len(data) != 8:
        raise MetadataInvalid(f"A schema version has 8 bytes, not {len(data)}.")
    version: int = _U64.unpack(data)[0]
    return version


PAIRS_MAX: Final = 5_000

_F = FieldDescriptorProto
# Types of one group read each other's bytes (protobuf's rules for updating a message type).
_GROUPS: Final[Mapping[int, str]] = {
    _F.TYPE_INT32: "varint",
    _F.TYPE_INT64: "varint",
    _F.TYPE_UINT32: "varint",
    _F.TYPE_UINT64: "varint",
    _F.TYPE_BOOL: "varint",
    _F.TYPE_ENUM: "varint",
    _F.TYPE_SINT32: "zigzag",
    _F.TYPE_SINT64: "zigzag",
    _F.TYPE_FIXED32: "fixed32",
    _F.TYPE_SFIXED32: "fixed32",
    _F.TYPE_FIXED64: "fixed64",
    _F.TYPE_SFIXED64: "fixed64",
    _F.TYPE_FLOAT: "float",
    _F.TYPE_DOUBLE: "double",
    _F.TYPE_STRING: "bytes",
    _F.TYPE_BYTES: "bytes",
    _F.TYPE_MESSAGE: "message",
    _F.TYPE_GROUP: "group",
}


class Definition:
    """The messages of a schema by their full names, and the name of its root message."""

    def __init__(self, root: str, messages: Mapping[str, DescriptorProto]) -> None:
        self.root = root
        self.messages = messages


def parse(data: bytes) -> Definition:
    """Raises IncompatibleSchema."""
    try:
        outer = json.loads(data)
        root = outer["rootMessageTypeName"]
        files = FileDescriptorSet.FromString(base64.b64decode(outer["fileDescriptorSet"], validate=True))
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error, DecodeError):
        raise IncompatibleSchema("Invalid schema definition: it has no set of file descriptors.") from None
    messages: dict[str, DescriptorProto] = {}
    for file in files.file:
        _collect(file, messages)
    if not isinstance(root, str) or root not in messages:
        raise IncompatibleSchema("Invalid schema definition: the root message is not among its descriptors.")
    return Definition(root, messages)


def _collect(file: FileDescriptorProto, messages: dict[str, DescriptorProto]) -> None:
    left: list[tuple[str, Iterable[DescriptorProto]]] = [(file.package, file.message_type)]
    while left:
        prefix, descriptors = left.pop()
        for message in descriptors:
            name = f"{prefix}.{message.name}" if prefix else message.name
            messages[name] = message
            left.append((name, message.nested_type))


def why_incompatible(one: Definition, other: Definition) -> str | None:
    """The reason, for the client; None if they are compatible in both directions."""
    if one.root != other.root:
        return "the root message has another name"
    seen = set()
    left = [(one.root, other.root)]
    while left:
        pair = left.pop()
        if pair in seen:
            continue
        seen.add(pair)
        if len(seen) > PAIRS_MAX:
            return f"more than {PAIRS_MAX} messages would have to be compared"
        first, second = one.messages.get(pair[0]), other.messages.get(pair[1])
        if first is None or second is None:
            continue  # its file was not sent along
        reason = _why_not_fields(first, second, left)
        if reason is not None:
            return f"{pair[0]}: {reason}"
    return None


def _why_not_fields(one: Any, other: Any, left: list[tuple[str, str]]) -> str | None:
    fields, others = ({field.number: field for field in message.field} for message in (one, other))
    for number in fields.keys() ^ others.keys():
        field = fields.get(number) or others[number]
        if field.label == _F.LABEL_REQUIRED:
            return f"the required field {field.name!r} is in one of them only"
    for number in fields.keys() & others.keys():
        field, counterpart = fields[number], others[number]
        group = _GROUPS.get(field.type)
        if group != _GROUPS.get(counterpart.type):
            return f"the field {number} has another type"
        repeated = field.label == _F.LABEL_REPEATED
        if repeated != (counterpart.label == _F.LABEL_REPEATED) and group not in ("bytes", "message"):
            return f"the field {number} is repeated in one of them only"
        if group in ("message", "group"):
            left.append((field.type_name.lstrip("."), counterpart.type_name.lstrip(".")))
    return None


_SIZE: Final = Struct(">i")


def split(schema: Schema) -> tuple[Schema, Schema]:
    """The schemas of key and value. Raises IncompatibleSchema if data or properties are not those of a KEY_VALUE schema."""
    data = schema.data
    try:
        (key_size,) = _SIZE.unpack_from(data)
        key_end = 4 + max(0, key_size)
        (value_size,) = _SIZE.unpack_from(data, key_end)
    except error:
        raise _invalid() from None
    value_end = key_end + 4 + max(0, value_size)
    if value_end != len(data):
        raise _invalid()
    return (
        Schema(_type_of(schema, "key"), data[4:key_end], schema.properties.get("key.schema.name", "")),
        Schema(
            _type_of(schema, "value"), data[key_end + 4 : value_end], schema.properties.get("value.schema.name", "")
        ),
    )


def _type_of(schema: Schema, which: str) -> int:
    # Java's name for the protocol's type None is BYTES.
    name = schema.properties.get(f"{which}.schema.type", "BYTES")
    return TYPES_BY_NAME.get(name, 0)


def _invalid() -> IncompatibleSchema:
    return IncompatibleSchema(
        "Invalid schema definition: a KEY_VALUE schema has the sizes and definitions of both schemas."
    )


class Strategy(StrEnum):
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def transitive(self) -> bool:
        return self.endswith("_TRANSITIVE")


_NEW_READS: Final = frozenset(
    (Strategy.BACKWARD, Strategy.BACKWARD_TRANSITIVE, Strategy.FULL, Strategy.FULL_TRANSITIVE)
)
_OLD_READS: Final = frozenset((Strategy.FORWARD, Strategy.FORWARD_TRANSITIVE, Strategy.FULL, Strategy.FULL_TRANSITIVE))


def check(new: Schema, existing: Iterable[Schema], strategy: Strategy) -> None:
    """``existing``: all earlier schemas, the latest first. Raises IncompatibleSchema."""
    if strategy is Strategy.ALWAYS_COMPATIBLE:
        return
    comparison = avro.Comparison()
    for schema in existing:
        _check_pair(new, schema, strategy, comparison)
        if not strategy.transitive:
            return


def check_definition(schema: Schema) -> None:
    """Raises IncompatibleSchema if the definition is not valid for its type."""
    if schema.type in (AVRO, PROTOBUF):
        try:
            avro.parse(schema.data)
        except avro.InvalidAvro as fault:
            raise IncompatibleSchema(f"Invalid schema definition: {fault}.") from None
    elif schema.type == JSON:
        if _json_node(schema) is None:
            try:
                json.loads(schema.data)
            except (ValueError, RecursionError):
                raise IncompatibleSchema("Invalid schema definition: it is not JSON.") from None
    elif schema.type == KEY_VALUE:
        for part in split(schema):
            if part.type != KEY_VALUE:
                check_definition(part)
    elif schema.type == PROTOBUF_NATIVE:
        parse(schema.data)


def identity(schema: Schema) -> bytes:
    """A digest that is equal for equivalent schemas: of the same type, with definitions that differ at most in documentation and
    spaces."""
    definition = schema.data
    if schema.type in (AVRO, JSON, PROTOBUF):
        try:
            definition = avro.canonical(schema.data).encode("utf-8", "surrogatepass")
        except avro.InvalidAvro:
            pass  # a JSON schema in another language
    return sha256(bytes((schema.type,)) + definition).digest()


def _check_pair(new: Schema, old: Schema, strategy: Strategy, comparison: avro.Comparison) -> None:
    if new.type != old.type:
        raise IncompatibleSchema(
            f"Incompatible schema: exists schema type {old.type_name}, new schema type {new.type_name}"
        )
    if identity(new) == identity(old):
        return
    if strategy is Strategy.ALWAYS_INCOMPATIBLE:
        raise IncompatibleSchema("Incompatible schema: the topic's schema may not be changed.")
    if new.type in (AVRO, PROTOBUF):
        _check_avro(avro.parse(new.data), avro.parse(old.data), strategy, comparison)
    elif new.type == JSON:
        # JSON schemas in another language (JSON Schema, as old clients send it) are compatible with any.
        node, existing = _json_node(new), _json_node(old)
        if node is not None and existing is not None:
            _check_avro(node, existing, strategy, comparison)
    elif new.type == KEY_VALUE:
        for new_part, old_part in zip(split(new), split(old), strict=True):
            if new_part.type != KEY_VALUE:
                _check_pair(new_part, old_part, strategy, comparison)
    elif new.type == PROTOBUF_NATIVE:
        reason = why_incompatible(parse(new.data), parse(old.data))
        if reason is not None:
            raise IncompatibleSchema(f"Incompatible schema: {reason}.")


def _check_avro(new: avro.Node, old: avro.Node, strategy: Strategy, comparison: avro.Comparison) -> None:
    try:
        reason = comparison.why_unreadable(new, old) if strategy in _NEW_READS else None
        if reason is None and strategy in _OLD_READS:
            reason = comparison.why_unreadable(old, new)
    except avro.TooComplex:
        reason = "the schemas have too many types to compare"
    if reason is not None:
        raise IncompatibleSchema(f"Incompatible schema used ({strategy}): {reason}.")


def _json_node(schema: Schema) -> avro.Node | None:
    try:
        return avro.parse(schema.data)
    except avro.InvalidAvro:
        return None
