"""Avro's rules, against values: what one schema has written is read with another."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.pulsar.schemas.avro import COMPARISONS_MAX, Comparison, InvalidAvro, TooComplex, canonical, parse
from tests.loops import loop_over


def readable(reader: Any, writer: Any) -> bool:
    comparison = Comparison()
    return comparison.why_unreadable(parse(json.dumps(reader).encode()), parse(json.dumps(writer).encode())) is None


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, type_: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **more}


PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
PROMOTED = {("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double"),
            ("float", "double"), ("string", "bytes"), ("bytes", "string")}  # fmt: skip


@loop_over("writer", PRIMITIVES)
@loop_over("reader", PRIMITIVES)
def test_primitives_are_readable_as_themselves_and_promoted(reader: str, writer: str) -> None:
    assert (reader == writer or (writer, reader) in PROMOTED) == readable(reader, writer)
    assert (reader == writer or (writer, reader) in PROMOTED) == readable({"type": reader}, {"type": writer, "doc": ""})


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
WIDER = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}
FIXED = {"type": "fixed", "name": "F", "size": 4}


@loop_over(
    ("reader", "writer", "expected"),
    [
        (record(field("a", "int")), record(field("a", "int"), field("b", "int")), True),
        (record(field("a", "int"), field("b", "int")), record(field("a", "int")), False),
        (record(field("a", "int"), field("b", "int", default=1)), record(field("a", "int")), True),
        (record(field("a", "int"), field("b", ["null", "int"])), record(field("a", "int")), False),
        (record(field("a", "int")), record(field("a", "string")), False),
        (record(field("a", "int")), record(field("a", "int"), name="Other"), True),
        (record(field("b", "int", aliases=["a"])), record(field("a", "int")), True),
        (record(field("b", "int", aliases=["a"])), record(field("c", "int")), False),
        (["null", "int"], "int", True),
        ("int", ["null", "int"], False),
        ("int", ["int"], True),
        ("long", ["int", "long"], True),
        (["null", "string"], ["null", "int"], False),
        (["null", "int", "string"], ["int", "null"], True),
        (ENUM, ENUM, True),
        (WIDER, ENUM, True),
        (ENUM, WIDER, False),
        ({**ENUM, "default": "A"}, WIDER, True),
        ({**ENUM, "name": "X"}, ENUM, False),
        ({**ENUM, "name": "n.X", "aliases": ["E"]}, {**ENUM, "namespace": "n"}, True),
        ({**ENUM, "name": "a.E"}, {**ENUM, "name": "b.E"}, True),
        (FIXED, FIXED, True),
        (FIXED, {**FIXED, "size": 5}, False),
        (FIXED, {**FIXED, "name": "G"}, False),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, True),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, False),
        ({"type": "map", "values": "string"}, {"type": "map", "values": "bytes"}, True),
        ({"type": "map", "values": "string"}, {"type": "array", "items": "string"}, False),
        (record(field("a", {"type": {"type": "int"}})), record(field("a", "int")), True),
    ],
)  # fmt: skip
def test_the_specifications_rules(reader: Any, writer: Any, expected: bool) -> None:
    assert expected == readable(reader, writer)


def chain(name: str, *more: Any) -> dict[str, Any]:
    return record(field("value", "int"), field("next", ["null", name]), *more, name=name)


def test_types_that_contain_themselves_are_compared_once() -> None:
    assert readable(chain("List"), chain("List"))
    assert readable(chain("List"), chain("Other"))
    assert not readable(chain("List", field("more", "int")), chain("List"))


def test_a_namespace_is_inherited() -> None:
    outer = record(field("a", {**ENUM}), field("b", "E"), field("c", "n.E"), name="n.R")
    assert readable(outer, outer)
    with pytest.raises(InvalidAvro, match=r"m\.E"):
        parse(json.dumps(record(field("a", ENUM), field("b", "m.E"), name="n.R")).encode())


@loop_over(
    "schema",
    [
        "nothing",
        5,
        None,
        {},
        {"type": "record", "name": "R"},
        {"type": "record", "fields": []},
        {"type": "record", "name": "1", "fields": []},
        {"type": "record", "name": "R", "fields": [{"name": "a"}]},
        {"type": "record", "name": "R", "fields": [{"name": "a-b", "type": "int"}]},
        {"type": "record", "name": "R", "fields": [field("a", "int"), field("a", "int")]},
        {"type": "record", "name": "int", "fields": []},
        {"type": "record", "name": "R", "fields": 3},
        {"type": "enum", "name": "E"},
        {"type": "enum", "name": "E", "symbols": ["A", "A"]},
        {"type": "enum", "name": "E", "symbols": [1]},
        {"type": "enum", "name": "E", "symbols": ["A"], "default": "B"},
        {"type": "enum", "name": "E", "symbols": ["A"], "default": ["B"]},
        {"type": "fixed", "name": "F"},
        {"type": "fixed", "name": "F", "size": -1},
        {"type": "fixed", "name": "F", "size": True},
        {"type": "array"},
        {"type": "map", "items": "int"},
        ["int", "int"],
        ["int", ["string"]],
        [ENUM, ENUM],
        {"type": "record", "name": "R", "namespace": 5, "fields": []},
        {"type": "record", "name": "R", "aliases": "X", "fields": []},
    ],
)
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidAvro):
        parse(json.dumps(schema).encode())


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b"[" * 100_000, b'{"type":' * 50_000, b'["a",' * 3000 + b"1" + b"]" * 3000]
)
def test_invalid_or_too_deep_json_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidAvro):
        parse(data)
    with pytest.raises(InvalidAvro):
        canonical(data)


def test_default_beyond_recursion_limit_is_refused_or_read() -> None:
    deep = b'{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":%s}]}' % (b"[" * 900 + b"]" * 900)
    try:
        canonical(deep)
    except InvalidAvro:
        pass


def test_schemas_with_too_many_pairs_are_refused() -> None:
    wide = [record(field("a", "int"), name=f"R{number}") for number in range(1000)]
    other = [record(field("b", "int"), name=f"S{number}") for number in range(1000)]
    wide.append(record(field("b", "int"), name="Last"))
    with pytest.raises(TooComplex):
        readable(wide, other)
    assert COMPARISONS_MAX < 1000 * 1000


def test_documentation_spaces_and_key_order_are_ignored() -> None:
    one = b'{"type":"record","name":"R","doc":"x","fields":[{"name":"a","type":"int","doc":"y"}]}'
    two = b'{ "name" : "R", "type":"record", "fields":[{"type":"int","name":"a"}]}'
    other = b'{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":{"doc":1}}]}'
    another = b'{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":{"doc":2}}]}'
    assert canonical(one) == canonical(two)
    assert canonical(other) != canonical(another)


# -- hypothesis: schemas, and values that they have -------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c", "d"])


def schemas(depth: int = 2) -> st.SearchStrategy[Any]:
    simple = st.sampled_from([*PRIMITIVES])
    if depth == 0:
        return simple
    inner = schemas(depth - 1)
    # The depth and a letter make names that no two types of a schema share.
    named = st.sampled_from(["X", "Y"]).map(lambda letter: f"{letter}{depth}")
    fields = st.lists(
        st.tuples(NAMES, simple if depth == 1 else inner, st.booleans()), max_size=3, unique_by=lambda one: one[0]
    ).map(lambda found: [field(n, t, **({"default": None} if d else {})) for n, t, d in found])
    return st.one_of(
        simple,
        inner.map(lambda one: {"type": "array", "items": one}),
        inner.map(lambda one: {"type": "map", "values": one}),
        st.builds(lambda name, found: record(*found, name=name), named, fields),
    )


@given(schemas(), schemas())
def test_whatever_is_readable_can_be_read(reader: Any, writer: Any) -> None:
    try:
        expected = readable(reader, writer)
    except InvalidAvro:
        return
    assert expected == resolves(reader, writer)


@given(schemas())
def test_every_schema_reads_itself(schema: Any) -> None:
    try:
        assert readable(schema, schema)
        assert canonical(json.dumps(schema).encode()) == canonical(json.dumps(schema, indent=2).encode())
    except InvalidAvro:
        return


def resolves(reader: Any, writer: Any) -> bool:
    """The rules once more, on the JSON, without unions and names."""
    if isinstance(reader, str) or isinstance(writer, str):
        return (
            reader == writer or (writer, reader) in PROMOTED
            if isinstance(reader, str) and isinstance(writer, str)
            else False
        )
    if reader["type"] != writer["type"]:
        return False
    if reader["type"] == "array":
        return resolves(reader["items"], writer["items"])
    if reader["type"] == "map":
        return resolves(reader["values"], writer["values"])
    written = {one["name"]: one["type"] for one in writer["fields"]}
    return all(
        resolves(one["type"], written[one["name"]]) if one["name"] in written else "default" in one
        for one in reader["fields"]
    )


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_a_schema_or_refused(data: bytes) -> None:
    try:
        parse(data)
        canonical(data)
    except InvalidAvro:
        pass
