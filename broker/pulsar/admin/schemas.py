"""Admin calls about the schemas of topics: show, add, check and delete.

The definition of a KEY_VALUE schema is a JSON text: ``{"key": ..., "value": ...}``.

Tests: tests/pulsar/admin/test_schemas.py.
"""

import json
from struct import Struct
from typing import Any, Final
from uuid import UUID

from broker.pulsar.admin.calls import json_object, require_creation, require_topic, route, topic_name
from broker.pulsar.context import PulsarContext
from broker.pulsar.refusals import IncompatibleSchema, TopicNotFound
from broker.pulsar.schemas.compatibility import (
    KEY_VALUE,
    SCHEMA_BYTES_MAX,
    TYPES_BY_NAME,
    Schema,
    StoredSchema,
    Strategy,
    split,
)
from broker.security.acl import Operation
from broker.web.routes import Answer, Call, HttpError, Route, json_answer

BASE = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"

_SIZE: Final = Struct(">i")


class Schemas:
    def __init__(self, context: PulsarContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            route("GET", BASE + "/schema", self.latest),
            route("GET", BASE + "/schema/{version}", self.one),
            route("GET", BASE + "/schemas", self.all),
            route("POST", BASE + "/schema", self.add),
            route("DELETE", BASE + "/schema", self.delete),
            route("POST", BASE + "/compatibility", self.compatibility),
            route("POST", BASE + "/version", self.version),
        ]

    def latest(self, call: Call) -> Answer:
        return json_answer(_json(_found(self._context.schemas.latest(self._topic_id(call, Operation.DESCRIBE)))))

    def one(self, call: Call) -> Answer:
        text = call.names["version"]
        topic_id = self._topic_id(call, Operation.DESCRIBE)
        if not text.isascii() or not text.isdecimal() or len(text) > 18:
            raise HttpError(400, "The version of a schema is a whole number.")
        return json_answer(_json(_found(self._context.schemas.get(topic_id, int(text)))))

    def all(self, call: Call) -> Answer:
        stored = self._context.schemas.all(self._topic_id(call, Operation.DESCRIBE))
        return json_answer({"getSchemaResponses": [_json(schema) for schema in call.work.each(stored)]})

    def add(self, call: Call) -> Answer:
        """Creates the topic if it does not exist, as a producer with this schema would."""
        name = topic_name(call)
        require_topic(self._context, call, Operation.ALTER, name)  # first, so as not to reveal whether the topic exists
        if self._context.topics.partitions(name) is None:
            require_creation(self._context, call, name)
            self._context.topics.get_or_create(name)
        topic_id = self._topic_id(call, Operation.ALTER)
        version = self._context.schemas.put(
            topic_id, _schema(call), self._strategy(call, topic_id), self._context.clock.time_ms(), str(call.principal)
        )
        return json_answer({"version": version})

    def delete(self, call: Call) -> Answer:
        topic_id = self._topic_id(call, Operation.ALTER)
        version = self._context.schemas.delete(topic_id, self._context.clock.time_ms(), str(call.principal))
        if version is None:
            raise TopicNotFound("The topic has no schema")
        return json_answer({"version": version})

    def compatibility(self, call: Call) -> Answer:
        topic_id = self._topic_id(call, Operation.DESCRIBE)
        strategy = self._strategy(call, topic_id)
        try:
            self._context.schemas.check(topic_id, _schema(call), strategy)
            compatible = True
        except IncompatibleSchema:
            compatible = False
        return json_answer({"compatibility": compatible, "schemaCompatibilityStrategy": str(strategy)})

    def version(self, call: Call) -> Answer:
        """The version of a schema of the topic; -1 if the topic does not have the schema."""
        version = self._context.schemas.find(self._topic_id(call, Operation.DESCRIBE), _schema(call))
        return json_answer({"version": -1 if version is None else version})

    def _topic_id(self, call: Call, operation: Operation) -> UUID:
        name = topic_name(call)
        require_topic(self._context, call, operation, name)
        info = self._context.topics.info(name)
        if info is None:
            raise TopicNotFound(f"Topic {name} not found")
        return info.topic_id

    def _strategy(self, call: Call, topic_id: UUID) -> Strategy:
        policies = self._context.policies.of(topic_name(call).namespace, topic_id)
        return policies.schema_compatibility or Strategy.FULL


def _found(stored: StoredSchema | None) -> StoredSchema:
    if stored is None:
        raise TopicNotFound("Schema not found")
    return stored


def _json(stored: StoredSchema) -> dict[str, Any]:
    return {
        "version": stored.version,
        "type": stored.schema.type_name,
        "timestamp": stored.written_ms,
        "data": _text(stored.schema),
        "properties": dict(stored.schema.properties),
    }


def _text(schema: Schema) -> str:
    if schema.type != KEY_VALUE:
        return schema.data.decode("utf-8", "replace")
    try:
        parts = [part.data.decode("utf-8", "replace") for part in split(schema)]
    except IncompatibleSchema:
        return schema.data.decode("utf-8", "replace")
    return json.dumps(dict(zip(("key", "value"), map(_value, parts), strict=True)), separators=(",", ":"))


def _value(text: str) -> Any:
    """A definition is JSON or, for primitive types, empty."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _schema(call: Call) -> Schema:
    """The schema in the body. Raises HttpError."""
    body = json_object(call)
    kind, text, properties = body.get("type"), body.get("schema", ""), body.get("properties") or {}
    if not isinstance(kind, str) or kind not in TYPES_BY_NAME:
        raise HttpError(422, f"The type of a schema is one of {', '.join(TYPES_BY_NAME)}.")
    if not isinstance(text, str):
        raise HttpError(422, "The schema has to be a text.")
    if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
        raise HttpError(422, "The properties of a schema have to be a JSON object of texts.")
    data = _key_value(text) if TYPES_BY_NAME[kind] == KEY_VALUE else _bytes(text)
    size = len(data) + sum(len(_bytes(key)) + len(_bytes(value)) for key, value in properties.items())
    if size > SCHEMA_BYTES_MAX:
        raise HttpError(413, f"A schema may have {SCHEMA_BYTES_MAX} bytes; this one has {size}.")
    return Schema(TYPES_BY_NAME[kind], data, "", properties)


def _key_value(text: str) -> bytes:
    try:
        definition = json.loads(text)
        parts = [definition[name] for name in ("key", "value")]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise HttpError(422, 'The schema of a KEY_VALUE is {"key": ..., "value": ...}.') from None
    parts = [_bytes(part if isinstance(part, str) else json.dumps(part, separators=(",", ":"))) for part in parts]
    return b"".join(_SIZE.pack(len(part)) + part for part in parts)


def _bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise HttpError(422, "The schema is no Unicode text.") from None
