"""Readers and writers compiled from kio's dataclasses, which are generated from Kafka's own message schemas.

kio says what each version of each message is made of; the bytes are read and written here. kio's own reader
allocates for an array whatever count the peer claims and aborts the process when that fails, so it must never see
bytes from the network; its writer asks for exact types and takes several times as long. Both codecs are compiled
once per class: reading gives instances of the class, writing takes nested mappings.
"""

from __future__ import annotations

import dataclasses
import datetime
import struct
import types
import typing
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any
from uuid import UUID

import attrs

from protocol.errors import ProtocolError
from protocol.kafka.errors import ErrorCode
from protocol.wire import Reader, encode_uvarint

Read = Callable[[Reader], Any]
Write = Callable[[bytearray, Any], None]
UnknownKeys = Callable[[tuple[str, ...], Collection[str]], None]

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)
_NIL = UUID(int=0)


@attrs.frozen
class FieldSpec:
    """One field of a message: either ``kafka_type`` or ``entity`` says what it, or each of its elements, is."""

    name: str
    kafka_type: str | None
    entity: type[Any] | None
    is_array: bool
    nullable: bool
    tag: int | None
    default: Any  # dataclasses.MISSING where the schema gives none


@cache
def field_specs(cls: type[Any]) -> tuple[FieldSpec, ...]:
    """The fields of a kio dataclass, in the order in which they are sent."""
    return tuple(_field_spec(field) for field in dataclasses.fields(cls))


def _field_spec(field: dataclasses.Field[Any]) -> FieldSpec:
    kind: Any = field.type
    kind, nullable = _without_none(kind)
    is_array = typing.get_origin(kind) is tuple
    if is_array:
        kind, _ = _without_none(typing.get_args(kind)[0])
    entity = kind if dataclasses.is_dataclass(kind) else None
    return FieldSpec(
        name=field.name,
        kafka_type=None if entity else field.metadata["kafka_type"],
        entity=typing.cast("type[Any] | None", entity),
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


# -- reading ----------------------------------------------------------------------------------------------------


@cache
def reader_of(cls: type[Any]) -> Read:
    """A function that reads one ``cls``; all it raises is ProtocolError."""
    flexible: bool = cls.__flexible__
    plain = [(spec.name, _field_reader(spec, flexible)) for spec in field_specs(cls) if spec.tag is None]
    tagged = {spec.tag: (spec.name, _field_reader(spec, flexible)) for spec in field_specs(cls) if spec.tag is not None}
    absent = {spec.name: _zero(spec) for spec in field_specs(cls) if spec.tag is not None}

    def read(reader: Reader) -> Any:
        values = {name: read_field(reader) for name, read_field in plain}
        if flexible:
            values.update(absent)
            for _ in range(reader.compact_tag_count()):
                tag = reader.uvarint()
                body = reader.take(reader.uvarint(), "a tagged field")
                if tag in tagged:
                    name, read_field = tagged[tag]
                    inner = Reader(body)
                    values[name] = read_field(inner)
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
    return _array_reader(read, _smallest(spec), flexible, spec.nullable) if spec.is_array else read


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
    return None if value == _NIL else value


def _read_error_code(reader: Reader) -> ErrorCode:
    try:
        return ErrorCode(reader.i16())
    except ValueError:
        return ErrorCode.unknown_server_error  # a code newer than we are, as Kafka's clients take it


def _read_timedelta_i64(reader: Reader) -> datetime.timedelta:
    try:
        return datetime.timedelta(milliseconds=reader.i64())
    except OverflowError:
        raise ProtocolError("a duration of millions of years") from None


def _read_datetime(reader: Reader) -> datetime.datetime:
    value = _read_nullable_datetime(reader)
    if value is None:
        raise ProtocolError("null where a time must be")
    return value


def _read_nullable_datetime(reader: Reader) -> datetime.datetime | None:
    value = reader.i64()
    if value == -1:
        return None
    try:
        return _EPOCH + datetime.timedelta(milliseconds=value)
    except OverflowError:
        raise ProtocolError(f"a time of {value} ms since 1970") from None


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

_FORMATS = {
    "int8": ">b",
    "int16": ">h",
    "int32": ">i",
    "int64": ">q",
    "uint16": ">H",
    "float64": ">d",
    "error_code": ">h",
}
_SIZES = {"bool": 1, "uuid": 16, "timedelta_i32": 4, "timedelta_i64": 8, "datetime_i64": 8} | {
    name: struct.calcsize(form) for name, form in _FORMATS.items()
}


def _smallest(spec: FieldSpec) -> int:
    """The fewest bytes that one element of ``spec`` takes: what bounds an array's count by the bytes there are."""
    if spec.entity is None:
        assert spec.kafka_type is not None
        return _SIZES.get(spec.kafka_type, 1)  # strings and bytes begin with a length
    plain = [inner for inner in field_specs(spec.entity) if inner.tag is None]
    return max(1, sum(1 if inner.is_array or inner.nullable else _smallest(inner) for inner in plain))


# -- writing ----------------------------------------------------------------------------------------------------


def writer_of(cls: type[Any], unknown: UnknownKeys, path: tuple[str, ...] = ()) -> Write:
    """A function that appends a mapping of ``cls``'s field names to a bytearray; what is missing gets its default.

    Keys that ``cls`` does not have are shown to ``unknown`` once, with the path of field names that leads to them:
    it raises, or they are left out from then on.
    """
    flexible: bool = cls.__flexible__
    plain: list[tuple[str, Write, bytes]] = []
    tagged: list[tuple[str, Write, int, bytes]] = []
    names = {spec.name for spec in field_specs(cls)}
    for spec in field_specs(cls):
        write_field = _field_writer(spec, flexible, unknown, path)
        absent = bytearray()
        if spec.tag is None:
            write_field(absent, _zero(spec, mapping=True))
            plain.append((spec.name, write_field, bytes(absent)))
        else:
            default = _zero(spec, mapping=True)
            if default is not None:  # no value but null is left out where null is the default
                write_field(absent, default)
            tagged.append((spec.name, write_field, spec.tag, bytes(absent)))
    tagged.sort(key=lambda entry: entry[2])

    def write(out: bytearray, values: Mapping[str, Any]) -> None:
        if not values.keys() <= names:
            unknown(path, values.keys() - names)
            names.update(values.keys())
        name = ""
        try:
            for name, write_field, absent in plain:
                if name in values:
                    write_field(out, values[name])
                else:
                    out += absent
            if flexible:
                if tagged and not values.keys().isdisjoint(tag_names):
                    _write_tags(out, values)
                else:
                    out.append(0)
        except Exception as error:
            error.add_note(f"in field {name} of {cls.__name__} v{cls.__version__}")
            raise

    tag_names = [entry[0] for entry in tagged]

    def _write_tags(out: bytearray, values: Mapping[str, Any]) -> None:
        count = 0
        section = bytearray()
        for name, write_field, tag, absent in tagged:
            value = values.get(name)
            if value is None:
                continue
            body = bytearray()
            write_field(body, value)
            if body != absent:
                count += 1
                section += encode_uvarint(tag) + encode_uvarint(len(body)) + body
        out += encode_uvarint(count) + section

    return write


def _zero(spec: FieldSpec, *, mapping: bool = False) -> Any:
    """What a field has that is not given: the schema's default, else null, else nothing of its type."""
    if spec.default is not dataclasses.MISSING:
        return dataclasses.asdict(spec.default) if mapping and spec.entity and spec.default else spec.default
    if spec.nullable:
        return None
    if spec.is_array:
        return ()
    if spec.entity is not None:
        return {} if mapping else spec.entity(**{inner.name: _zero(inner) for inner in field_specs(spec.entity)})
    return {"string": "", "bytes": b"", "records": b""}.get(spec.kafka_type or "", 0)


def _field_writer(spec: FieldSpec, flexible: bool, unknown: UnknownKeys, path: tuple[str, ...]) -> Write:
    nullable = spec.nullable and not spec.is_array
    if spec.entity is None:
        assert spec.kafka_type is not None
        write = _primitive_writer(spec.kafka_type, flexible, nullable)
    else:
        write = writer_of(spec.entity, unknown, (*path, spec.name))
        if nullable:
            write = _nullable_writer(write)
    return _array_writer(write, flexible, spec.nullable) if spec.is_array else write


def _nullable_writer(write: Write) -> Write:
    def write_nullable(out: bytearray, value: Any) -> None:
        if value is None:
            out += b"\xff"
        else:
            out += b"\x01"
            write(out, value)

    return write_nullable


def _array_writer(write: Write, flexible: bool, nullable: bool) -> Write:
    null = b"\x00" if flexible else b"\xff\xff\xff\xff"

    def write_array(out: bytearray, value: Any) -> None:
        if value is None:
            if not nullable:
                raise TypeError("this array may not be null")
            out += null
            return
        items = value if isinstance(value, (list, tuple)) else tuple(value)
        out += encode_uvarint(len(items) + 1) if flexible else len(items).to_bytes(4, "big")
        for item in items:
            write(out, item)

    return write_array


def _primitive_writer(kafka_type: str, flexible: bool, nullable: bool) -> Write:
    if kafka_type == "string":
        return _text_writer(flexible, nullable)
    if kafka_type in ("bytes", "records"):
        return _bytes_writer(flexible, nullable)
    if kafka_type in _FORMATS:
        return _number_writer(_FORMATS[kafka_type])
    return _WRITERS[kafka_type]


def _number_writer(form: str) -> Write:
    pack = struct.Struct(form).pack

    def write_number(out: bytearray, value: Any) -> None:
        out += pack(value)

    return write_number


def _text_writer(flexible: bool, nullable: bool) -> Write:
    write_bytes = _bytes_writer(flexible, nullable, prefix=2)

    def write_text(out: bytearray, value: str | None) -> None:
        write_bytes(out, None if value is None else value.encode())

    return write_text


def _bytes_writer(flexible: bool, nullable: bool, prefix: int = 4) -> Write:
    null = b"\x00" if flexible else b"\xff" * prefix

    def write_bytes(out: bytearray, value: bytes | None) -> None:
        if value is None:
            if not nullable:
                raise TypeError("this field may not be null")
            out += null
        else:
            out += encode_uvarint(len(value) + 1) if flexible else len(value).to_bytes(prefix, "big", signed=True)
            out += value

    return write_bytes


def _write_bool(out: bytearray, value: Any) -> None:
    out.append(1 if value else 0)


def _write_uuid(out: bytearray, value: UUID | None) -> None:
    out += (value or _NIL).bytes


def _write_timedelta_i32(out: bytearray, value: Any) -> None:
    out += milliseconds(value).to_bytes(4, "big", signed=True)


def _write_timedelta_i64(out: bytearray, value: Any) -> None:
    out += milliseconds(value).to_bytes(8, "big", signed=True)


def _write_datetime(out: bytearray, value: Any) -> None:
    if value is None:
        value = -1
    elif isinstance(value, datetime.datetime):
        value = milliseconds(value - _EPOCH)
    out += value.to_bytes(8, "big", signed=True)


_WRITERS: dict[str, Write] = {
    "bool": _write_bool,
    "uuid": _write_uuid,
    "timedelta_i32": _write_timedelta_i32,
    "timedelta_i64": _write_timedelta_i64,
    "datetime_i64": _write_datetime,
}


def milliseconds(value: datetime.timedelta | int) -> int:
    """A duration as Kafka sends it; an int is in milliseconds already."""
    return value if isinstance(value, int) else round(value / _MILLISECOND)
