"""Which schema may follow which on a topic, by the topic's strategy. Pure.

| strategy | the new schema |
|---|---|
| ALWAYS_COMPATIBLE | may be any, of any type |
| ALWAYS_INCOMPATIBLE | none: the first one stays |
| BACKWARD | reads what the last one has written |
| FORWARD | writes what the last one reads |
| FULL | both; this is the default |
| ..._TRANSITIVE | the same with all earlier ones |

Avro, JSON and Protobuf schemas are defined in Avro's language and are compared by its rules (``avro.py``); KEY_VALUE by those
of key and value; PROTOBUF_NATIVE by their descriptors. Other types have nothing that could differ. But for ALWAYS_COMPATIBLE
the type stays the same.
"""

import json
from collections.abc import Iterable
from enum import StrEnum
from hashlib import sha256
from typing import Final

from broker.pulsar.refusals import IncompatibleSchema
from broker.pulsar.schemas import avro, key_value, protobuf_native
from broker.pulsar.schemas.schema import AVRO, JSON, KEY_VALUE, PROTOBUF, PROTOBUF_NATIVE, Schema


class Strategy(StrEnum):
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def transitive(self) -> bool:
        return self.endswith("_TRANSITIVE")


_NEW_READS: Final = frozenset(
    (Strategy.BACKWARD, Strategy.BACKWARD_TRANSITIVE, Strategy.FULL, Strategy.FULL_TRANSITIVE)
)
_OLD_READS: Final = frozenset((Strategy.FORWARD, Strategy.FORWARD_TRANSITIVE, Strategy.FULL, Strategy.FULL_TRANSITIVE))


def check(new: Schema, existing: Iterable[Schema], strategy: Strategy) -> None:
    """``existing``: all earlier schemas, the latest first. Raises IncompatibleSchema."""
    if strategy is Strategy.ALWAYS_COMPATIBLE:
        return
    comparison = avro.Comparison()
    for schema in existing:
        _check_pair(new, schema, strategy, comparison)
        if not strategy.transitive:
            return


def check_definition(schema: Schema) -> None:
    """Raises IncompatibleSchema if the definition is none of its type."""
    if schema.type in (AVRO, PROTOBUF):
        try:
            avro.parse(schema.data)
        except avro.InvalidAvro as fault:
            raise IncompatibleSchema(f"Invalid schema definition: {fault}.") from None
    elif schema.type == JSON:
        if _json_node(schema) is None:
            try:
                json.loads(schema.data)
            except (ValueError, RecursionError):
                raise IncompatibleSchema("Invalid schema definition: it is not JSON.") from None
    elif schema.type == KEY_VALUE:
        for one in key_value.split(schema):
            if one.type != KEY_VALUE:
                check_definition(one)
    elif schema.type == PROTOBUF_NATIVE:
        protobuf_native.parse(schema.data)


def identity(schema: Schema) -> bytes:
    """The same for schemas that are one: of the same type, with definitions that differ in documentation and spaces at
    most."""
    definition = schema.data
    if schema.type in (AVRO, JSON, PROTOBUF):
        try:
            definition = avro.canonical(schema.data).encode("utf-8", "surrogatepass")
        except avro.InvalidAvro:
            pass  # JSON of another language
    return sha256(bytes((schema.type,)) + definition).digest()


def _check_pair(new: Schema, old: Schema, strategy: Strategy, comparison: avro.Comparison) -> None:
    if new.type != old.type:
        raise IncompatibleSchema(
            f"Incompatible schema: exists schema type {old.type_name}, new schema type {new.type_name}"
        )
    if identity(new) == identity(old):
        return
    if strategy is Strategy.ALWAYS_INCOMPATIBLE:
        raise IncompatibleSchema("Incompatible schema: the topic's schema may not be changed.")
    if new.type in (AVRO, PROTOBUF):
        _check_avro(avro.parse(new.data), avro.parse(old.data), strategy, comparison)
    elif new.type == JSON:
        # JSON schemas of another language (JSON Schema, as old clients send it) go with any.
        node, existing = _json_node(new), _json_node(old)
        if node is not None and existing is not None:
            _check_avro(node, existing, strategy, comparison)
    elif new.type == KEY_VALUE:
        for one, other in zip(key_value.split(new), key_value.split(old), strict=True):
            if one.type != KEY_VALUE:
                _check_pair(one, other, strategy, comparison)
    elif new.type == PROTOBUF_NATIVE:
        reason = protobuf_native.why_incompatible(protobuf_native.parse(new.data), protobuf_native.parse(old.data))
        if reason is not None:
            raise IncompatibleSchema(f"Incompatible schema: {reason}.")


def _check_avro(new: avro.Node, old: avro.Node, strategy: Strategy, comparison: avro.Comparison) -> None:
    try:
        reason = comparison.why_unreadable(new, old) if strategy in _NEW_READS else None
        if reason is None and strategy in _OLD_READS:
            reason = comparison.why_unreadable(old, new)
    except avro.TooComplex:
        reason = "the schemas have too many types to compare"
    if reason is not None:
        raise IncompatibleSchema(f"Incompatible schema used ({strategy}): {reason}.")


def _json_node(schema: Schema) -> avro.Node | None:
    try:
        return avro.parse(schema.data)
    except avro.InvalidAvro:
        return None
