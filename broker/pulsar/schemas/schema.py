"""A schema as clients send it. Pure.

Tests: tests/pulsar/schemas/test_registry.py.
"""

from collections.abc import Mapping
from struct import Struct
from typing import Any, Final

import attrs

from broker.pulsar.refusals import IncompatibleSchema, MetadataInvalid
from protocol.pulsar.pulsar_pb2 import KeyValue as KeyValueMessage
from protocol.pulsar.pulsar_pb2 import Schema as SchemaMessage

# The definition of one schema, with its properties. Pulsar has no limit but that of a frame.
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

# What Pulsar's admin API calls the types.
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
    """A version of a topic's schema. ``deleted``: it stands for "no schema from here on"."""

    version: int
    schema: Schema
    written_ms: int
    user: str = ""
    deleted: bool = False


def schema_from_message(message: Any) -> Schema | None:
    """A Schema of the protocol. None for those that say that there is none. Raises IncompatibleSchema for one too large."""
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
    """As the protocol has it, and as producers put it into the metadata of their messages."""
    return _U64.pack(version)


def version_from_bytes(data: bytes) -> int | None:
    """None: the latest. Raises MetadataInvalid."""
    if not data:
        return None
    if len(data) != 8:
        raise MetadataInvalid(f"A schema version has 8 bytes, not {len(data)}.")
    version: int = _U64.unpack(data)[0]
    return version
