"""AlterClientQuotas (49): set and remove quotas. All changes of one entity are made or none; entities are independent."""

import ipaddress
from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

from broker.errors import RequestError, StorageError
from broker.kafka.api import Api, Call
from broker.kafka.authorization import require
from broker.kafka.checks import error_fields
from broker.kafka.context import KafkaContext
from broker.network.work import ADMIN
from broker.security.acl import Operation, ResourceType
from broker.security.client_quotas import CLIENT_ID, DEFAULT, IP, USER, Entity, Kind
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1
# The quotas of whole numbers, and their largest values. A value may be this far from a whole number.
_WHOLE: Final = {Kind.PRODUCE: _LONG_MAX, Kind.FETCH: _LONG_MAX, Kind.CONNECTION: _INT_MAX}
_NEARLY = 1e-6

Changes = list[tuple[Entity, Kind, float | None]]


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    require(context, call.connection, Operation.ALTER_CONFIGS, ResourceType.CLUSTER)
    request = call.body
    results: list[RequestError | StorageError | Changes] = []
    first: dict[Entity, int] = {}  # the first result of each entity
    for entry in request.entries:
        call.work.checkpoint()
        try:
            entity = _entity(entry.entity)
            number = first.setdefault(entity, len(results))
            if number < len(results):
                results[number] = RequestError(ErrorCode.invalid_request, f"Name {entity} only once in a request.")
                raise RequestError(ErrorCode.invalid_request, f"Name {entity} only once in a request.")
            results.append(_changes(entity, entry.ops))
        except RequestError as error:
            results.append(error)
    if not request.validate_only:
        _make(context, results)
    return {"entries": [_result(entry, result) for entry, result in zip(request.entries, results, strict=True)]}


def _make(context: KafkaContext, results: list[RequestError | StorageError | Changes]) -> None:
    """Make all valid changes by one write to the catalogue. If it fails, their results are the error."""
    try:
        context.quotas.alter([change for result in results if isinstance(result, list) for change in result])
    except StorageError as error:
        results[:] = [error if isinstance(result, list) else result for result in results]


def _entity(components: Any) -> Entity:
    names: dict[str, str] = {}
    for component in components:
        kind, name = component.entity_type, component.entity_name
        if kind not in (USER, CLIENT_ID, IP):
            raise RequestError(ErrorCode.invalid_request, f"Unhandled client quota entity type: {kind}")
        if kind in names:
            raise RequestError(ErrorCode.invalid_request, f"Name the entity type {kind} only once.")
        if name == "":
            raise RequestError(ErrorCode.invalid_request, f"Empty {kind} not supported")
        names[kind] = DEFAULT if name is None else name
    if not names or (IP in names and len(names) > 1):
        raise RequestError(ErrorCode.invalid_request, "Invalid empty client quota entity")
    if names.get(IP):
        try:
            names[IP] = str(ipaddress.ip_address(names[IP]))
        except ValueError:
            raise RequestError(ErrorCode.invalid_request, f"{names[IP]} is not a valid IP address.") from None
    return Entity(names.get(USER), names.get(CLIENT_ID), names.get(IP))


def _changes(entity: Entity, ops: Any) -> Changes:
    changes: dict[str, tuple[Entity, Kind, float | None]] = {}
    for op in ops:
        if op.key in changes:
            raise RequestError(ErrorCode.invalid_request, f"Duplicate quota key {op.key}")
        if op.key not in entity.kinds:
            raise RequestError(ErrorCode.invalid_request, f"Invalid configuration key {op.key}")
        kind = Kind(op.key)
        changes[op.key] = entity, kind, None if op.remove else _value(kind, op.value)
    return list(changes.values())


def _value(kind: Kind, value: float) -> float:
    if not isfinite(value) or value <= 0:
        raise RequestError(ErrorCode.invalid_request, f"Quota {kind} must be greater than 0")
    most = _WHOLE.get(kind)
    if most is not None:
        whole = int(value + _NEARLY)
        if abs(whole - value) > _NEARLY or not 0 < whole <= most:
            raise RequestError(
                ErrorCode.invalid_request, f"Configuration {kind} must be a whole number from 1 to {most}"
            )
        return float(whole)
    return value


def _result(entry: Any, result: RequestError | StorageError | Changes) -> Mapping[str, Any]:
    code, message = (ErrorCode.none, None) if isinstance(result, list) else error_fields(result)
    entity = [{"entity_type": each.entity_type, "entity_name": each.entity_name} for each in entry.entity]
    return {"error_code": code, "error_message": message, "entity": entity}


def _refused(call: Call, error: RequestError) -> Mapping[str, Any]:
    return {"entries": [_result(entry, error) for entry in call.body.entries]}


API = Api(
    key=ApiKey.ALTER_CLIENT_QUOTAS,
    min_version=0,
    max_version=1,
    handle=handle,
    on_error=_refused,
    lane=ADMIN,
    settles=True,
)
