"""Admin calls about schemas, asked of a whole broker; and the real client, which looks them up over HTTP."""

import json

import pulsar
import pytest

from tests.pulsar.admin.harness import PERSISTENT, Admin
from tests.pulsar.clients import client

BASE = "/admin/v2/schemas/public/default/t"
RECORD = {"type": "record", "name": "Order", "fields": [{"name": "a", "type": ["null", "int"], "default": None}]}
WIDER = {**RECORD, "fields": [*RECORD["fields"], {"name": "b", "type": ["null", "string"], "default": None}]}  # type: ignore[misc]
OTHER = {**RECORD, "fields": [{"name": "a", "type": "string"}]}


def body(definition: object, kind: str = "AVRO") -> dict[str, object]:
    return {"type": kind, "schema": json.dumps(definition), "properties": {"p": "q"}}


def test_versions_are_added_shown_and_deleted(admin: Admin) -> None:
    assert 404 == admin.ask("GET", BASE + "/schema")[0]
    assert (200, {"version": 0}) == admin.ask("POST", BASE + "/schema", body(RECORD))
    assert (200, {"version": 0}) == admin.ask("POST", BASE + "/schema", body(RECORD))
    assert (200, {"version": 1}) == admin.ask("POST", BASE + "/schema", body(WIDER))
    latest = admin.get(BASE + "/schema")
    assert (1, "AVRO", {"p": "q"}) == (latest["version"], latest["type"], latest["properties"])
    assert WIDER == json.loads(latest["data"])
    assert RECORD == json.loads(admin.get(BASE + "/schema/0")["data"])
    assert [0, 1] == [one["version"] for one in admin.get(BASE + "/schemas")["getSchemaResponses"]]
    assert (200, {"version": 2}) == admin.ask("DELETE", BASE + "/schema")
    assert 404 == admin.ask("GET", BASE + "/schema")[0]
    assert 404 == admin.ask("DELETE", BASE + "/schema")[0]


def test_incompatible_schema_is_refused_and_predicted(admin: Admin) -> None:
    admin.ask("POST", BASE + "/schema", body(RECORD))
    answer = {"compatibility": False, "schemaCompatibilityStrategy": "FULL"}
    assert (200, answer) == admin.ask("POST", BASE + "/compatibility", body(OTHER))
    assert 409 == admin.ask("POST", BASE + "/schema", body(OTHER))[0]
    assert (200, {"version": -1}) == admin.ask("POST", BASE + "/version", body(OTHER))
    assert (200, {"version": 0}) == admin.ask("POST", BASE + "/version", body(RECORD))
    admin.do("PUT", "/admin/v2/namespaces/public/default/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    assert (200, {"version": 1}) == admin.ask("POST", BASE + "/schema", body(OTHER))


def test_key_value_schemas_are_shown_as_one_text(admin: Admin) -> None:
    both = {"key": RECORD, "value": WIDER}
    properties = {"key.schema.type": "AVRO", "value.schema.type": "AVRO", "kv.encoding.type": "INLINE"}
    sent = {"type": "KEY_VALUE", "schema": json.dumps(both), "properties": properties}
    assert (200, {"version": 0}) == admin.ask("POST", BASE + "/schema", sent)
    assert both == json.loads(admin.get(BASE + "/schema")["data"])
    assert 422 == admin.ask("POST", BASE + "/schema", {**sent, "schema": "{}"})[0]
    assert 422 == admin.ask("POST", BASE + "/schema", {**sent, "schema": "[" * 2000})[0]


def test_the_schema_of_a_producer_is_shown(admin: Admin) -> None:
    class Order(pulsar.schema.Record):  # type: ignore[misc]
        number = pulsar.schema.Integer()

    with client(admin.service_url) as made:
        made.create_producer("t", schema=pulsar.schema.JsonSchema(Order))
    found = admin.get(BASE + "/schema")
    assert ("JSON", 0) == (found["type"], found["version"])
    assert "Order" == json.loads(found["data"])["name"]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ([1], 400),
        ({}, 422),
        ({"type": "GUESS", "schema": ""}, 422),
        ({"type": ["AVRO"], "schema": ""}, 422),
        ({"type": "AVRO", "schema": 1}, 422),
        ({"type": "AVRO", "schema": "{", "properties": {}}, 409),
        ({"type": "STRING", "schema": "", "properties": {"a": 1}}, 422),
        ({"type": "STRING", "schema": "\ud800"}, 422),
        ({"type": "STRING", "schema": "x" * 600_000}, 413),
    ],
)
def test_what_is_no_schema_is_refused(admin: Admin, sent: object, status: int) -> None:
    admin.do("PUT", f"{PERSISTENT}/t")
    assert status == admin.ask("POST", BASE + "/schema", sent)[0]
    assert 404 == admin.ask("GET", BASE + "/schema")[0]
    assert 400 == admin.ask("GET", BASE + "/schema/latest")[0]
