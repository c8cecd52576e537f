"""DescribeClientQuotas (48): there are no quotas, so the answer is empty. What Kafka refuses is refused here as well."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from broker.errors import RequestError
from broker.kafka.api import Api, Call
from broker.kafka.checks import error_fields
from broker.kafka.context import KafkaContext
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

USER, CLIENT_ID, IP = "user", "client-id", "ip"


class Match(IntEnum):
    """Which names of an entity's type are meant."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


def handle(_broker: KafkaContext, call: Call) -> Mapping[str, Any]:
    _check(call.body.components)
    return {"error_code": ErrorCode.none, "error_message": None, "entries": []}


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


API = Api(key=ApiKey.DESCRIBE_CLIENT_QUOTAS, min_version=0, max_version=1, handle=handle, on_error=_refused)
