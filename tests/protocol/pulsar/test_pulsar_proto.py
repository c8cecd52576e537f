"""pulsar.proto, and that the generated module was made from it."""

import re

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as F
from google.protobuf.descriptor_pool import Default

from protocol.pulsar import pulsar_pb2
from tests.protocol.pulsar.generate_pb2 import FOLDER

PROTO = (FOLDER / "pulsar.proto").read_text(encoding="utf-8")
STUBS = (FOLDER / "pulsar_pb2.pyi").read_text(encoding="utf-8")

Field = tuple[str, str, int, str]  # label, name, number, default or ""


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*", "", text)


def declared(text: str) -> dict[str, dict[str, object]]:
    """Message or enum -> its fields or values, read by a few patterns without protoc."""
    definitions: dict[str, dict[str, object]] = {}
    owner = ""
    for line in without_comments(text).splitlines():
        line = line.strip()
        if match := re.fullmatch(r"(message|enum) (\w+) \{", line):
            owner = f"{owner}.{match[2]}".lstrip(".")
            definitions[owner] = {}
        elif line == "}":
            owner = owner.rpartition(".")[0]
        elif match := re.fullmatch(
            r"(required|optional|repeated) ([\w.]+) (\w+) = (\d+)(?: \[default = (\S+)\])?;", line
        ):
            definitions[owner][match[3]] = (match[1], match[2].rpartition(".")[2], int(match[4]), match[5] or "")
        elif match := re.fullmatch(r"(\w+) = (\d+);", line):
            definitions[owner][match[1]] = int(match[2])
        else:
            assert not line or line.startswith(("syntax", "package")), f"not understood: {line}"
    return definitions


LABELS = {F.LABEL_REQUIRED: "required", F.LABEL_OPTIONAL: "optional", F.LABEL_REPEATED: "repeated"}
TYPES = {
    F.TYPE_DOUBLE: "double",
    F.TYPE_INT64: "int64",
    F.TYPE_UINT64: "uint64",
    F.TYPE_INT32: "int32",
    F.TYPE_UINT32: "uint32",
    F.TYPE_BOOL: "bool",
    F.TYPE_STRING: "string",
    F.TYPE_BYTES: "bytes",
}


def generated() -> dict[str, dict[str, object]]:
    """The same as `declared`, from the classes of the generated module."""
    definitions: dict[str, dict[str, object]] = {}
    for name in pulsar_pb2.__all__:
        thing = getattr(pulsar_pb2, name)
        descriptor = getattr(thing, "DESCRIPTOR", None)
        if isinstance(descriptor, EnumDescriptor):
            definitions[name] = dict(thing.items())
        elif isinstance(descriptor, Descriptor):
            message = DescriptorProto()
            descriptor.CopyToProto(message)
            definitions[name] = {field.name: field_of(field) for field in message.field}
            for enum in message.enum_type:
                definitions[f"{name}.{enum.name}"] = {value.name: value.number for value in enum.value}
    return definitions


def field_of(field: F) -> Field:
    type_name = TYPES.get(field.type) or field.type_name.rpartition(".")[2]
    return LABELS[field.label], type_name, field.number, field.default_value


def test_generated_module_matches_the_proto_file() -> None:
    assert declared(PROTO) == generated()


def test_the_types_name_every_message_and_field() -> None:
    for name, fields in declared(PROTO).items():
        owner = name.partition(".")[0]
        match = re.search(rf"^class {owner}\(.*?(?=^class |\Z)", STUBS, re.MULTILINE | re.DOTALL)
        assert match, name
        text = match[0]
        for field, declaration in fields.items():
            if isinstance(declaration, tuple):
                assert re.search(rf"^    {field}: \S+$", text, re.MULTILINE), f"{name}.{field}"
            elif field != "None":
                assert re.search(rf"^ +{field}: int$", text, re.MULTILINE), f"{name}.{field}"


def test_a_command_has_the_number_of_its_type() -> None:
    """The rule of the protocol from which `frames` takes the command of a type."""
    numbers = {field.number for field in pulsar_pb2.BaseCommand.DESCRIPTOR.fields} - {1}
    types = set(pulsar_pb2.BaseCommand.Type.values())
    assert types - numbers == {pulsar_pb2.BaseCommand.TOPIC_MIGRATED}
    assert numbers <= types


def test_messages_are_not_in_the_shared_pool() -> None:
    """Pulsar's Python tools may register messages of the same names there."""
    with pytest.raises(KeyError):
        Default().FindMessageTypeByName(pulsar_pb2.BaseCommand.DESCRIPTOR.full_name)
