"""Avro schemas: parses them from JSON, and decides whether data written with one schema can be read with another (the
specification's "schema resolution"). Pure.

A schema comes from a client and may be hostile. The caller bounds its size. This module bounds its depth (DEPTH_MAX), the number
of its types (NODES_MAX) and the number of pairs of types that are compared (COMPARISONS_MAX), so that parsing and comparing take
some tens of milliseconds at most. Named types may refer to themselves.

As in Pulsar, which uses Avro's library for Java, records resolve regardless of their names; enums and fixed types must have the
same name (without the namespace) or a matching alias. A logical type is treated as its underlying type.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

DEPTH_MAX: Final = 64
NODES_MAX: Final = 20_000
COMPARISONS_MAX: Final = 100_000

_PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
# Reader -> the writers' types that it can read beside its own.
_PROMOTIONS: Final[Mapping[str, frozenset[str]]] = {
    "long": frozenset(("int",)),
    "float": frozenset(("int", "long")),
    "double": frozenset(("int", "long", "float")),
    "string": frozenset(("bytes",)),
    "bytes": frozenset(("string",)),
}
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FULL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


class InvalidAvro(Exception):
    """Not an Avro schema. The message may be shown to the client."""


class TooComplex(Exception):
    """The schemas have more pairs of types than COMPARISONS_MAX."""


@attrs.define(eq=False)
class Field:
    name: str
    aliases: frozenset[str]
    type: "Node"
    has_default: bool


@attrs.define(eq=False)
class Node:
    kind: str  # a primitive's name, or "record", "enum", "fixed", "array", "map", "union"
    name: str = ""  # full, of named types
    aliases: frozenset[str] = frozenset()  # full
    fields: Sequence[Field] = ()
    symbols: frozenset[str] = frozenset()
    has_default: bool = False  # of an enum
    size: int = 0
    branches: Sequence["Node"] = ()  # of a union; for arrays and maps, the single type of their items or values

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]


def parse(data: bytes) -> Node:
    """Raises InvalidAvro."""
    return _Parser().schema(_json(data), "", 0)


def canonical(data: bytes) -> str:
    """A text that is equal for schemas that differ only in documentation, spaces and order of keys. Raises InvalidAvro."""
    value = _json(data)
    _Parser().schema(value, "", 0)
    try:
        return json.dumps(_without_docs(value), sort_keys=True, separators=(",", ":"))
    except RecursionError:  # other parts of the JSON, such as defaults, may be deeper than the schema
        raise InvalidAvro("it is too deep") from None


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidAvro("it is not JSON") from None


def _without_docs(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_docs(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {key: item for key, item in value.items() if key != "doc"}
    for key in ("type", "items", "values"):
        if key in kept:
            kept[key] = _without_docs(kept[key])
    if isinstance(kept.get("fields"), list):
        kept["fields"] = [_without_docs(item) for item in kept["fields"]]
    return kept


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, Node] = {}
        self._nodes = 0

    def schema(self, value: Any, namespace: str, depth: int) -> Node:
        self._nodes += 1
        if depth > DEPTH_MAX or self._nodes > NODES_MAX:
            raise InvalidAvro(f"it is deeper than {DEPTH_MAX} types, or has more than {NODES_MAX}")
        if isinstance(value, str):
            return self._reference(value, namespace)
        if isinstance(value, list):
            return self._union(value, namespace, depth)
        if not isinstance(value, dict):
            raise InvalidAvro("a type is a string, a list or an object")
        kind = value.get("type")
        if kind in ("record", "error"):
            return self._record(value, namespace, depth)
        if kind == "enum":
            return self._enum(value, namespace)
        if kind == "fixed":
            node = self._define("fixed", value, namespace)
            node.size = _integer(value.get("size"))
            return node
        if kind in ("array", "map"):
            member = "items" if kind == "array" else "values"
            if member not in value:
                raise InvalidAvro(f"an {kind} has no {member}" if kind == "array" else f"a {kind} has no {member}")
            return Node(str(kind), branches=[self.schema(value[member], namespace, depth + 1)])
        if kind is None:
            raise InvalidAvro("an object has no type")
        return self.schema(kind, namespace, depth + 1)  # a primitive with properties, or a type in another object

    def _reference(self, name: str, namespace: str) -> Node:
        if name in _PRIMITIVES:
            return Node(name)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        node = self._named.get(full) or self._named.get(name)
        if node is None:
            raise InvalidAvro(f"there is no type {name[:100]!r}")
        return node

    def _union(self, value: list[Any], namespace: str, depth: int) -> Node:
        branches = [self.schema(branch_value, namespace, depth + 1) for branch_value in value]
        names = [branch.name or branch.kind for branch in branches]
        if "union" in names:
            raise InvalidAvro("a union contains a union")
        if len(names) != len(set(names)):
            raise InvalidAvro("a union has a type twice")
        return Node("union", branches=branches)

    def _define(self, kind: str, value: Mapping[str, Any], namespace: str) -> Node:
        name = value.get("name")
        own = value.get("namespace", namespace)
        if not isinstance(name, str) or not _FULL_NAME.fullmatch(name) or not isinstance(own, str):
            raise InvalidAvro(f"a {kind} has no name, or one that Avro does not allow")
        full = name if "." in name or not own else f"{own}.{name}"
        if full in self._named or full in _PRIMITIVES:
            raise InvalidAvro(f"the type {full[:100]!r} is defined twice")
        space = full.rpartition(".")[0]
        aliases = frozenset(
            alias if "." in alias or not space else f"{space}.{alias}" for alias in _strings(value.get("aliases"))
        )
        node = self._named[full] = Node(kind, full, aliases)
        return node

    def _record(self, value: Mapping[str, Any], namespace: str, depth: int) -> Node:
        node = self._define("record", value, namespace)
        inner = node.name.rpartition(".")[0]
        listed = value.get("fields")
        if not isinstance(listed, list):
            raise InvalidAvro("a record has no fields")
        fields: list[Field] = []
        for entry in listed:
            if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or "type" not in entry:
                raise InvalidAvro("a field has no name or no type")
            if not _NAME.fullmatch(entry["name"]):
                raise InvalidAvro(f"{entry['name'][:100]!r} is no name of a field")
            type_ = self.schema(entry["type"], inner, depth + 1)
            fields.append(Field(entry["name"], _strings(entry.get("aliases")), type_, "default" in entry))
        if len({field.name for field in fields}) != len(fields):
            raise InvalidAvro("a record has a field twice")
        node.fields = fields
        return node

    def _enum(self, value: Mapping[str, Any], namespace: str) -> Node:
        node = self._define("enum", value, namespace)
        if not isinstance(value.get("symbols"), list):
            raise InvalidAvro("an enum has no symbols")
        node.symbols = _strings(value["symbols"])
        if len(node.symbols) != len(value["symbols"]):
            raise InvalidAvro("an enum has a symbol twice")
        node.has_default = "default" in value
        if node.has_default and value["default"] not in value["symbols"]:
            raise InvalidAvro("the default of an enum is none of its symbols")
        return node


def _strings(value: Any) -> frozenset[str]:
    if value is None:
        return frozenset()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InvalidAvro("aliases and symbols are lists of strings")
    return frozenset(value)


def _integer(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise InvalidAvro("a fixed type has no size")
    return value


class Comparison:
    """The comparisons of one request. All of them count towards COMPARISONS_MAX."""

    def __init__(self) -> None:
        self._left = COMPARISONS_MAX
        # Pairs whose comparison is under way further up the stack. A recursive type counts as readable there.
        self._open: set[tuple[int, int]] = set()

    def why_unreadable(self, reader: Node, writer: Node) -> str | None:
        """Why data of ``writer`` cannot be read as ``reader``, for the client; None if it can. Raises TooComplex."""
        return self._why(reader, writer, "")

    def _why(self, reader: Node, writer: Node, path: str) -> str | None:
        self._left -= 1
        if self._left < 0:
            raise TooComplex
        if writer.kind == "union":
            for branch in writer.branches:
                reason = self._why(reader, branch, path)
                if reason is not None:
                    return reason
            return None
        if reader.kind == "union":
            for branch in reader.branches:
                if self._why(branch, writer, path) is None:
                    return None
            return f"{path or 'the schema'}: no type of the reader's union reads {_called(writer)}"
        if reader.kind != writer.kind:
            if writer.kind in _PROMOTIONS.get(reader.kind, ()):
                return None
            return f"{path or 'the schema'}: {_called(writer)} cannot be read as {_called(reader)}"
        if reader.kind in ("array", "map"):
            return self._why(reader.branches[0], writer.branches[0], f"{path}[]")
        if reader.kind in ("enum", "fixed"):
            return self._why_not_named(reader, writer, path)
        if reader.kind == "record":
            return self._why_not_record(reader, writer, path)
        return None

    def _why_not_named(self, reader: Node, writer: Node, path: str) -> str | None:
        if reader.short_name != writer.short_name and writer.name not in reader.aliases:
            return f"{path or 'the schema'}: {_called(writer)} cannot be read as {_called(reader)}"
        if reader.size != writer.size:
            return f"{path or 'the schema'}: the size of {_called(writer)} is not that of {_called(reader)}"
        if not reader.has_default and not writer.symbols <= reader.symbols:
            missing = min(writer.symbols - reader.symbols)
            return f"{path or 'the schema'}: the reader's enum lacks {missing[:100]!r}"
        return None

    def _why_not_record(self, reader: Node, writer: Node, path: str) -> str | None:
        pair = (id(reader), id(writer))
        if pair in self._open:
            return None
        self._open.add(pair)
        try:
            written = {field.name: field for field in writer.fields}
            for field in reader.fields:
                names = [field.name, *field.aliases]
                source = next((written[name] for name in names if name in written), None)
                where = f"{path}.{field.name}" if path else field.name
                if source is None:
                    if not field.has_default:
                        return f"{where}: the reader's field has no default, and the writer does not have it"
                    continue
                reason = self._why(field.type, source.type, where)
                if reason is not None:
                    return reason
            return None
        finally:
            self._open.discard(pair)


def _called(node: Node) -> str:
    return f"{node.kind} {node.name[:100]}" if node.name else node.kind
