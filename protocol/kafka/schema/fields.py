"""The fields of each version of each message, taken from kio's dataclasses, which are generated from Kafka's schemas.

kio's own codecs are not used. Its reader allocates for an array whatever count the peer claims, and aborts the whole process when
that fails, so it must never see bytes from the network. Its writer demands exact types and takes several times as long.
``schema_reader.py`` and ``schema_writer.py`` build this project's codecs from the fields described here.

Tests: tests/protocol/kafka/schema/test_control.py.
"""

from __future__ import annotations

import dataclasses
import datetime
import types
import typing
from functools import cache
from typing import Any
from uuid import UUID

import attrs

# One of kio's dataclasses, as a class. They have no common base class that declares what is needed here.
Message = Any

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MILLISECOND = datetime.timedelta(milliseconds=1)
NIL_UUID = UUID(int=0)

# The struct formats of Kafka's number types.
NUMBER_FORMATS = {
    "int8": ">b",
    "int16": ">h",
    "int32": ">i",
    "int64": ">q",
    "uint16": ">H",
    "float64": ">d",
    "error_code": ">h",
}


@attrs.frozen
class FieldSpec:
    """One field of a message: either ``kafka_type`` or ``entity`` says what it, or each of its elements, is."""

    name: str
    kafka_type: str | None
    entity: Message | None
    is_array: bool
    nullable: bool
    tag: int | None
    default: Any  # dataclasses.MISSING where the schema gives none


@cache
def field_specs(cls: Message) -> tuple[FieldSpec, ...]:
    """The fields of a kio dataclass, in the order in which they are sent."""
    return tuple(_field_spec(field) for field in dataclasses.fields(cls))


def _field_spec(field: dataclasses.Field[Any]) -> FieldSpec:
    kind: Any = field.type
    kind, nullable = _without_none(kind)
    is_array = typing.get_origin(kind) is tuple
    if is_array:
        kind, _ = _without_none(typing.get_args(kind)[0])
    entity: Message | None = kind if dataclasses.is_dataclass(kind) else None
    return FieldSpec(
        name=field.name,
        kafka_type=None if entity else field.metadata["kafka_type"],
        entity=entity,
        is_array=is_array,
        nullable=nullable,
        tag=field.metadata.get("tag"),
        default=field.default,
    )


def _without_none(kind: Any) -> tuple[Any, bool]:
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        (inner,) = (arg for arg in typing.get_args(kind) if arg is not types.NoneType)
        return inner, True
    return kind, False


def zero_of(spec: FieldSpec, *, mapping: bool = False) -> Any:
    """The value of a missing field: the schema's default, or else null, or else the empty value of its type."""
    if spec.default is not dataclasses.MISSING:
        return dataclasses.asdict(spec.default) if mapping and spec.entity and spec.default else spec.default
    if spec.nullable:
        return None
    if spec.is_array:
        return ()
    if spec.entity is not None:
        return {} if mapping else spec.entity(**{inner.name: zero_of(inner) for inner in field_specs(spec.entity)})
    return {"string": "", "bytes": b"", "records": b""}.get(spec.kafka_type or "", 0)


def milliseconds(value: datetime.timedelta | int) -> int:
    """A duration as Kafka sends it. An int is already in milliseconds."""
    return value if isinstance(value, int) else round(value / MILLISECOND)
