"""The two schemas in one of type KEY_VALUE: sizes and definitions in its data, types in its properties. Pure.

Tests: tests/pulsar/schemas/test_compatibility.py.
"""

from struct import Struct, error
from typing import Final

from broker.pulsar.refusals import IncompatibleSchema
from broker.pulsar.schemas.schema import TYPES_BY_NAME, Schema

_SIZE: Final = Struct(">i")


def split(schema: Schema) -> tuple[Schema, Schema]:
    """The schemas of key and value. Raises IncompatibleSchema for data or properties that are not of such a schema."""
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
    # Java writes BYTES for what the protocol calls None.
    name = schema.properties.get(f"{which}.schema.type", "BYTES")
    return TYPES_BY_NAME.get(name, 0)


def _invalid() -> IncompatibleSchema:
    return IncompatibleSchema(
        "Invalid schema definition: a KEY_VALUE schema has the sizes and definitions of both schemas."
    )
