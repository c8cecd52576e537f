"""Reads messages into kio's dataclasses, by functions that are built once for each class.

Every count and length is checked against the remaining bytes before anything is allocated. The only exception raised is
ProtocolError.

The fields of each version of each message (``field_specs``) come from kio's dataclasses, which are generated from Kafka's
schemas. kio's codecs are not used: its reader allocates whatever array count the peer claims, and aborts the process when that
fails, so it must never read bytes from the network; its writer demands exact types and takes several times as long. Any thread.

Tests: tests/protocol/kafka/schema/test_control.py,
tests/protocol/kafka/schema/test_budget.py.
"""

from __future__ import annotations

import dataclasses
import datetime
import struct
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Any
from uuid import UUID

import attrs

from protocol.errors import ProtocolError
from protocol.kafka.errors import ErrorCode
from protocol.wire import Reader

# A class of kio's dataclasses. They have no common base class that declares the attributes used here.
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
    """One field of a message: either ``kafka_type`` or ``entity`` is the type of its value, or of each element."""

    name: str
    kafka_type: str | None
    entity: Message | None
    is_array: bool
    nullable: bool
    tag: int | None
    default: Any  # dataclasses.MISSING where the schema has none


@cache
def field_specs(cls: Message) -> tuple[FieldSpec, ...]:
    """The fields of a kio dataclass, in wire order."""
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
    """The value of a missing field: the schema's default, otherwise null, otherwise the empty value of its type."""
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


Read = Callable[[Reader], Any]


@cache
def reader_of(cls: Message) -> Read:
    """A function that reads a ``cls``. It raises only ProtocolError."""
    flexible: bool = cls.__flexible__
    plain = [(spec.name, _field_reader(spec, flexible)) for spec in field_specs(cls) if spec.tag is None]
    tagged = {spec.tag: (spec.name, _field_reader(spec, flexible)) for spec in field_specs(cls) if spec.tag is not None}
    absent = {spec.name: zero_of(spec) for spec in field_specs(cls) if spec.tag is not None}

    def read(reader: Reader) -> Any:
        values = {name: read_field(reader) for name, read_field in plain}
        if flexible:
            values.update(absent)
            for _ in range(reader.compact_tag_count()):
                tag = reader.uvarint()
                body = reader.take(reader.uvarint(), "a tagged field")
                if tag in tagged:
                    name, read_field = tagged[tag]
                    inner = Reader(body, entries=reader.entries)
                    values[name] = read_field(inner)
                    reader.entries = inner.entries
                    if inner.remaining:
                        raise ProtocolError(f"tagged field {name} of {len(body)} bytes is not that long")
        return cls(**values)

    return read


def _field_reader(spec: FieldSpec, flexible: bool) -> Read:
    nullable = spec.nullable and not spec.is_array
    if spec.entity is None:
        assert spec.kafka_type is not None
        read = _primitive_reader(spec.kafka_type, flexible, nullable)
    else:
        read = reader_of(spec.entity)
        if nullable:
            read = _nullable_reader(read)
    return _array_reader(read, _smallest(spec, flexible), flexible, spec.nullable) if spec.is_array else read


def _nullable_reader(read: Read) -> Read:
    def read_nullable(reader: Reader) -> Any:
        return None if reader.i8() < 0 else read(reader)  # KIP-893

    return read_nullable


def _array_reader(read: Read, smallest: int, flexible: bool, nullable: bool) -> Read:
    def read_array(reader: Reader) -> Any:
        count = reader.compact_nullable_array(smallest) if flexible else reader.nullable_array(smallest)
        if count is None:
            if nullable:
                return None
            raise ProtocolError("null where an array must be")
        return tuple([read(reader) for _ in range(count)])

    return read_array


def _primitive_reader(kafka_type: str, flexible: bool, nullable: bool) -> Read:
    if kafka_type == "string":
        if flexible:
            return Reader.compact_nullable_string if nullable else Reader.compact_string
        return Reader.nullable_string if nullable else Reader.string
    if kafka_type in ("bytes", "records"):
        if flexible:
            return _copied(Reader.compact_nullable_bytes if nullable else Reader.compact_bytes)
        return _copied(Reader.nullable_bytes if nullable else Reader.bytes)
    if kafka_type == "datetime_i64":
        return _read_nullable_datetime if nullable else _read_datetime
    return _FIXED_READERS[kafka_type]


def _copied(read: Read) -> Read:
    def read_bytes(reader: Reader) -> bytes | None:
        value = read(reader)
        return None if value is None else bytes(value)

    return read_bytes


def _read_uuid(reader: Reader) -> UUID | None:
    value = reader.uuid()
    return None if value == NIL_UUID else value


def _read_error_code(reader: Reader) -> ErrorCode:
    try:
        return ErrorCode(reader.i16())
    except ValueError:
        return ErrorCode.unknown_server_error  # as Kafka's clients read an unknown code


def _read_timedelta_i64(reader: Reader) -> datetime.timedelta:
    try:
        return datetime.timedelta(milliseconds=reader.i64())
    except OverflowError:
        raise ProtocolError("a duration of millions of years") from None


def _read_datetime(reader: Reader) -> datetime.datetime:
    """Kafka also writes -1, the millisecond before 1970, for no time: a transaction that has not begun."""
    value = reader.i64()
    try:
        return EPOCH + datetime.timedelta(milliseconds=value)
    except OverflowError:
        raise ProtocolError(f"a time of {value} ms since 1970") from None


def _read_nullable_datetime(reader: Reader) -> datetime.datetime | None:
    value = _read_datetime(reader)
    return None if value == _NO_TIME else value


_NO_TIME = EPOCH - MILLISECOND

_FIXED_READERS: dict[str, Read] = {
    "bool": Reader.bool,
    "int8": Reader.i8,
    "int16": Reader.i16,
    "int32": Reader.i32,
    "int64": Reader.i64,
    "uint16": Reader.u16,
    "float64": Reader.f64,
    "uuid": _read_uuid,
    "error_code": _read_error_code,
    "timedelta_i32": lambda reader: datetime.timedelta(milliseconds=reader.i32()),
    "timedelta_i64": _read_timedelta_i64,
}

_SIZES = {"bool": 1, "uuid": 16, "timedelta_i32": 4, "timedelta_i64": 8, "datetime_i64": 8} | {
    name: struct.calcsize(form) for name, form in NUMBER_FORMATS.items()
}


def _smallest(spec: FieldSpec, flexible: bool) -> int:
    """The fewest bytes of an element of ``spec``, which bounds an array's count by the remaining bytes."""
    if spec.entity is None:
        assert spec.kafka_type is not None
        return _SIZES.get(spec.kafka_type) or _length_size(spec.kafka_type, flexible)
    plain = [inner for inner in field_specs(spec.entity) if inner.tag is None]
    return max(1, sum(_smallest_field(inner, flexible) for inner in plain) + (1 if flexible else 0))


def _smallest_field(spec: FieldSpec, flexible: bool) -> int:
    if spec.is_array:
        return 1 if flexible else 4
    if spec.nullable and spec.entity is not None:
        return 1
    return _smallest(spec, flexible)


def _length_size(kafka_type: str, flexible: bool) -> int:
    """The size of the length prefix of strings and bytes."""
    if flexible:
        return 1
    return 2 if kafka_type == "string" else 4
