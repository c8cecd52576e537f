"""DescribeClientQuotas (48): the quotas of the entities that match a filter.

A filter has a component for each requested type of entity: one name, the default, or any of both. ``strict``: only entities
without other types. Without components all entities match, or with ``strict`` none.
"""

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any

from broker.errors import RequestError
from broker.kafka.api import Api, Call
from broker.kafka.authorization import require
from broker.kafka.checks import error_fields
from broker.kafka.context import KafkaContext
from broker.network.work import ADMIN
from broker.security.acl import Operation, ResourceType
from broker.security.client_quotas import CLIENT_ID, IP, USER, Entity, Kind
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode


class Match(IntEnum):
    """Which names of an entity's type match."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    require(context, call.connection, Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
    _check(call.body.components)
    entries = list(_matching(context, call))
    return {"error_code": ErrorCode.none, "error_message": None, "entries": call.array(entries, _entry)}


def _matching(context: KafkaContext, call: Call) -> Iterator[tuple[Entity, Mapping[Kind, float]]]:
    components, strict = call.body.components, call.body.strict
    # SPECIFIED means any name, the default included.
    wanted = {each.entity_type: (each.match_type == Match.SPECIFIED, each.match) for each in components}
    for entity, quotas in call.work.each(context.quotas.entries().items()):
        names = entity.names
        if strict and len(names) != len(wanted):
            continue
        if all(kind in names and (any_name or names[kind] == name) for kind, (any_name, name) in wanted.items()):
            yield entity, quotas


def _entry(entry: tuple[Entity, Mapping[Kind, float]]) -> Mapping[str, Any]:
    entity, quotas = entry
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.names.items()],
        "values": [{"key": str(kind), "value": value} for kind, value in sorted(quotas.items())],
    }


def _check(components: Any) -> None:
    seen: set[str] = set()
    for component in components:
        kind = component.entity_type
        if not kind:
            raise RequestError(ErrorCode.invalid_request, "Give every component an entity type.")
        if kind in seen:
            raise RequestError(ErrorCode.invalid_request, f"Name the entity type {kind!r} only once.")
        if component.match_type not in set(Match):
            raise RequestError(ErrorCode.invalid_request, f"There is no match type {component.match_type}.")
        if (component.match_type == Match.EXACT) != (component.match is not None):
            raise RequestError(ErrorCode.invalid_request, "Name an entity for an exact match, and for no other.")
        if kind not in (USER, CLIENT_ID, IP):
            raise RequestError(ErrorCode.unsupported_version, f"Entities of type {kind!r} have no quotas.")
        seen.add(kind)
    if IP in seen and len(seen) > 1:
        raise RequestError(ErrorCode.invalid_request, "Ask for an address alone, not for users or clients besides.")


def _refused(_call: Call, error: RequestError) -> Mapping[str, Any]:
    code, message = error_fields(error)
    return {"error_code": code, "error_message": message, "entries": None}


API = Api(key=ApiKey.DESCRIBE_CLIENT_QUOTAS, min_version=0, max_version=1, handle=handle, on_error=_refused, lane=ADMIN)
