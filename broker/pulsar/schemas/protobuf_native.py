"""Schemas of type PROTOBUF_NATIVE: a set of file descriptors, and the name of a message in it. Pure.

Two of them go together if their messages have the same name, and if each field that both have (by number) is written and read
alike: with types that share their encoding, and repeated in both or in none (or, for a type that allows it, in one). A
required field must be in both. Messages within messages are compared the same way.

The descriptors come from a client. protobuf bounds how deep they are, and PAIRS_MAX how many messages are compared.

Tests: tests/pulsar/schemas/test_compatibility.py.
"""

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from broker.pulsar.refusals import IncompatibleSchema

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
    """The messages of a schema by their full names, and which of them it is about."""

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
        prefix, found = left.pop()
        for message in found:
            name = f"{prefix}.{message.name}" if prefix else message.name
            messages[name] = message
            left.append((name, message.nested_type))


def why_incompatible(one: Definition, other: Definition) -> str | None:
    """For the client; None if they go together, whichever of them reads."""
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
            continue  # of a file that was not sent along
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
