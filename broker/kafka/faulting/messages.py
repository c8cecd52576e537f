"""What a request is about, entity by entity; the request without some of them; and answers that give them an error code.

All of it works for every API, because Kafka's schemas name the same things alike: the partitions of a request and of its answer
stand in elements of arrays within elements of topics, and these within groups, where there are several. Values are
mappings of kio's field names, as in ``protocol.kafka.schema.control``.

Pure; used only while there are faults, so it may be slow.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import Any, Final
from uuid import UUID

import attrs

from broker.faults.fault import Entity
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.schema import control
from protocol.kafka.schema.schema_reader import Message, field_specs

Steps = tuple[tuple[str, int], ...]
NameOf = Callable[[UUID], str | None]

# What names an entity in an element of an array, in requests and answers.
_KEYS: Final = {
    "topic": "topic",
    "topic_name": "topic",
    "topic_id": "topic",
    "partition": "partition",
    "partition_index": "partition",
    "partition_id": "partition",
    "index": "partition",
    "group_id": "group",
    "transactional_id": "transactional_id",
    "v3_and_below_transactional_id": "transactional_id",
}
# Arrays of plain values that name entities.
_PLAIN: Final = {
    "partitions": "partition",
    "partition_indexes": "partition",
    "topic_names": "topic",
    "groups": "group",
    "groups_names": "group",
    "group_ids": "group",
    "transactional_ids": "transactional_id",
}
# Partitions that a fetch is to end, and those of a topic that does not exist yet.
_OTHER_ARRAYS: Final = ("forgotten_topics_data", "assignments")
# FindCoordinator's types of keys, and the types of resources (broker.kafka.configs.resources) that are entities.
_COORDINATORS: Final = {0: "group", 1: "transactional_id"}
_RESOURCES: Final = {2: "topic", 32: "group"}
# These name the partitions that the member has. Their answers are about the member.
_ABOUT_MEMBERS: Final = (ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_HEARTBEAT)
# What stands beside an error code, where that is not the schema's default.
_FAILED: Final[dict[str, Any]] = {
    **dict.fromkeys(
        (
            "base_offset",
            "log_append_time",
            "log_start_offset",
            "high_watermark",
            "last_stable_offset",
            "timestamp",
            "offset",
            "committed_offset",
            "low_watermark",
            "end_offset",
            "node_id",
            "port",
            "producer_id",
            "producer_epoch",
            "generation_id",
        ),
        -1,
    ),
    "records": b"",
}


@attrs.frozen
class Located:
    """An entity of a request, and where it stands: the fields and indexes that lead to it; () is the whole request."""

    entity: Entity
    steps: Steps
    topic_id: UUID | None  # where the request names the topic by it


def entities_of(api_key: int, body: Any, name_of: NameOf) -> list[Located]:
    """At least one: a request about nothing in particular has an empty entity. ``body``: as ``control.parse_request`` returns it.
    ``name_of``: the name of a topic by its id; a topic without a name has no name here, either."""
    found = list(_find(dataclasses.asdict(body), api_key, Located(Entity(), (), None), name_of))
    return found or [Located(Entity(), (), None)]


def _find(values: Mapping[str, Any], api_key: int, around: Located, name_of: NameOf) -> Iterator[Located]:
    here = _named(values, around, name_of)
    inner = False
    for field, value in values.items():
        if not isinstance(value, tuple) or field in _OTHER_ARRAYS or api_key in _ABOUT_MEMBERS:
            continue
        for index, element in enumerate(value):
            steps = (*here.steps, (field, index))
            below = attrs.evolve(here, steps=steps)
            if isinstance(element, dict):
                if _is_keyed(element, field):
                    inner = True
                    yield from _find(_with_topic(element, field), api_key, below, name_of)
                continue
            attribute = _COORDINATORS.get(values["key_type"]) if field == "coordinator_keys" else _PLAIN.get(field)
            if attribute is not None:
                inner = True
                yield attrs.evolve(below, entity=_with(here.entity, attribute, element))
    if not inner:
        yield here


def _is_keyed(element: Mapping[str, Any], field: str) -> bool:
    return "topic" in field or "resource_type" in element or not _KEYS.keys().isdisjoint(element)


def _with_topic(element: dict[str, Any], field: str) -> Mapping[str, Any]:
    """``name`` is the topic's in an array of topics only: elsewhere it is that of a setting, a protocol, a user."""
    if "topic" in field and element.get("name") is not None:
        return {"topic": element["name"], **element}
    return element


def _named(values: Mapping[str, Any], around: Located, name_of: NameOf) -> Located:
    entity, topic_id = around.entity, around.topic_id
    for field, attribute in _KEYS.items():
        value = values.get(field)
        if value is None or isinstance(value, tuple):
            continue
        if field == "topic_id":
            topic_id, value = value, name_of(value)
        if value is not None:
            entity = _with(entity, attribute, value)
    if "key" in values and not around.steps:  # FindCoordinator before version 4; version 0 knows groups only
        attribute = _COORDINATORS.get(values.get("key_type", 0), "")
        entity = _with(entity, attribute, values["key"])
    entity = _with(entity, _RESOURCES.get(values.get("resource_type", -1), ""), values.get("resource_name"))
    return Located(entity, around.steps, topic_id)


def _with(entity: Entity, attribute: str, value: Any) -> Entity:
    """``attribute``: "" changes nothing."""
    return entity._replace(**{attribute: value}) if attribute else entity


@cache
def names_of(api_key: int) -> frozenset[str]:
    """The fields of entities that requests of this API may have, in any version."""
    if api_key == ApiKey.FIND_COORDINATOR:
        return frozenset(_COORDINATORS.values())
    return frozenset().union(*(_names_in(cls, api_key, "") for cls in control.request_classes(api_key)))


def _names_in(cls: Message, api_key: int, array: str) -> frozenset[str]:
    """``array``: the field whose elements are of this class."""
    found: set[str] = set()
    for spec in field_specs(cls):
        if spec.entity is None:
            attribute = (_PLAIN if spec.is_array else _KEYS).get(spec.name)
            if attribute is not None and not (spec.is_array and api_key in _ABOUT_MEMBERS):
                found.add(attribute)
            if spec.name == "name" and "topic" in array:
                found.add("topic")
            if spec.name == "resource_type":
                found.update(_RESOURCES.values())
        elif spec.is_array and spec.name not in _OTHER_ARRAYS and api_key not in _ABOUT_MEMBERS:
            found |= _names_in(spec.entity, api_key, spec.name)
    return frozenset(found)


def without(body: Any, located: Collection[Located]) -> Mapping[str, Any] | None:
    """The fields of the request without these entities, or None if nothing would be left."""
    fields = dataclasses.asdict(body)
    return _without(fields, (), {each.steps for each in located})


def _without(values: dict[str, Any], steps: Steps, gone: Collection[Steps]) -> dict[str, Any] | None:
    if steps in gone:
        return None
    for field, value in values.items():
        if isinstance(value, tuple) and value:
            kept = []
            for index, element in enumerate(value):
                inner = (*steps, (field, index))
                left = (
                    _without(element, inner, gone) if isinstance(element, dict) else None if inner in gone else element
                )
                if left is not None:
                    kept.append(left)
            if not kept:
                return None
            values[field] = tuple(kept)
    return values


def put_error(values: dict[str, Any], cls: Message, located: Located, code: int) -> bool:
    """Give an entity this error code in an answer of the class ``cls``: in its own element, which is added if need be, else for
    the whole answer. False if the answer has no place for it."""
    return _put_in_array(values, cls, located, code) or _put_here(values, cls, code)


def _put_in_array(values: dict[str, Any], cls: Message, located: Located, code: int) -> bool:
    for spec in field_specs(cls):
        if spec.entity is None or not spec.is_array:
            continue
        keys = _keys_of(spec.entity, located)
        if not keys or not _has_error(spec.entity):
            continue
        elements = list(values.get(spec.name) or ())
        element = next((each for each in elements if keys.items() <= each.items()), None)
        if element is None:
            element = dict(keys)
            elements.append(element)
        if _put_in_array(element, spec.entity, located, code) or _put_here(element, spec.entity, code):
            values[spec.name] = tuple(elements)
            return True
    return False


def _put_here(values: dict[str, Any], cls: Message, code: int) -> bool:
    specs = field_specs(cls)
    field = next((spec.name for spec in specs if spec.kafka_type == "error_code"), None)
    if field is None:
        return False
    values[field] = code
    values.update({spec.name: _FAILED[spec.name] for spec in specs if spec.name in _FAILED and spec.tag is None})
    return True


def _has_error(cls: Message) -> bool:
    return any(
        spec.kafka_type == "error_code" or (spec.entity is not None and spec.is_array and _has_error(spec.entity))
        for spec in field_specs(cls)
    )


def _keys_of(cls: Message, located: Located) -> dict[str, Any]:
    """The fields of an element of ``cls`` that name this entity; none if its elements are about something else."""
    entity = located.entity
    names = {spec.name for spec in field_specs(cls)}
    keys: dict[str, Any] = {}
    for field in names:
        attribute = _KEYS.get(field)
        if field == "topic_id":
            keys[field] = located.topic_id
        elif attribute is not None:
            keys[field] = getattr(entity, attribute)
        elif field == "name":
            keys[field] = entity.topic
        elif field == "key":
            keys[field] = entity.group if entity.group is not None else entity.transactional_id
        elif field == "resource_name":
            keys["resource_type"] = 2 if entity.topic is not None else 32
            keys[field] = entity.topic if entity.topic is not None else entity.group
    return {field: value for field, value in keys.items() if value is not None}


def put_everywhere(values: dict[str, Any], cls: Message, code: int) -> None:
    """Give everything in an answer this error code: for an answer that has no place for an error of the whole request."""
    for spec in field_specs(cls):
        if spec.entity is not None and spec.is_array and _has_error(spec.entity):
            for element in values.get(spec.name) or ():
                if not _put_here(element, spec.entity, code):
                    put_everywhere(element, spec.entity, code)
