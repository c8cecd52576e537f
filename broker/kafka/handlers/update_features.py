"""UpdateFeatures (57): finalize levels of features, as ``kafka-features.sh upgrade`` and ``downgrade`` do.

All of the changes are made, or none. The new levels are durable when the request is answered, and told to every client that
connects from then on; a connected client keeps the level that it has read, as with Kafka.
"""

from collections.abc import Mapping
from typing import Any

from broker.errors import RequestError, StorageError
from broker.kafka.api import Api, Call
from broker.kafka.authorization import require
from broker.kafka.checks import error_fields, repeated
from broker.kafka.context import KafkaContext
from broker.log import get_logger
from broker.network.work import ADMIN
from broker.security.acl import Operation, ResourceType
from broker.security.acl_authorizer import printable
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

log = get_logger("kafka")

_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3
# Version 0 has a flag instead: whether a downgrade is allowed.
_FIRST_WITH_TYPES = 1
# The first version with one error for all.
_FIRST_WITHOUT_RESULTS = 2


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    require(context, call.connection, Operation.ALTER, ResourceType.CLUSTER)
    request = call.body
    updates = request.feature_updates
    if not updates:
        raise RequestError(ErrorCode.invalid_request, "The request names no feature.")
    for name in repeated(update.feature for update in updates):
        raise RequestError(ErrorCode.invalid_request, f"The feature {name} is named twice.")
    levels: dict[str, int] = {}
    for update in updates:
        reason = _refusal(context, call.api_version, update)
        if reason:
            raise RequestError(
                ErrorCode.invalid_update_version,
                "The update failed for all features since the following feature had an error: "
                f"Invalid update version {update.max_version_level} for feature {update.feature}. {reason}",
            )
        levels[update.feature] = update.max_version_level
    if not getattr(request, "validate_only", False):
        try:
            context.features.finalize(levels)
        except StorageError as error:
            return _fields(call, *error_fields(error))
        log.warning("features_finalized", by=printable(str(call.principal)), **_as_words(levels))
    return _fields(call, ErrorCode.none, None)


def _as_words(levels: Mapping[str, int]) -> dict[str, int]:
    return {name.replace(".", "_"): level for name, level in levels.items()}


def _refusal(context: KafkaContext, version: int, update: Any) -> str:
    """Why this level may not be finalized, in Kafka's words; empty if it may."""
    if version < _FIRST_WITH_TYPES:
        kind = _SAFE_DOWNGRADE if update.allow_downgrade else _UPGRADE
    else:
        kind = update.upgrade_type
    if kind not in (_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE):
        return "The controller does not support the given upgrade type."
    level = update.max_version_level
    if level < 0:
        return "A feature version cannot be less than 0."
    supported = context.features.range(update.feature)
    if supported is None:
        return f"Broker {context.node_id} does not support this feature."
    if not supported[0] <= level <= supported[1]:
        return f"Broker {context.node_id} only supports versions {supported[0]}-{supported[1]}"
    current = context.features.level(update.feature)
    if level < current and kind == _UPGRADE:
        return "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade."
    if level > current and kind != _UPGRADE and version >= _FIRST_WITH_TYPES:
        return "Can't downgrade to a newer version."
    return ""


def _fields(call: Call, code: int, message: str | None) -> Mapping[str, Any]:
    fields: dict[str, Any] = {"error_code": code, "error_message": message}
    if call.api_version < _FIRST_WITHOUT_RESULTS and not code:
        fields["results"] = call.array(
            call.body.feature_updates,
            lambda update: {"feature": update.feature, "error_code": ErrorCode.none, "error_message": None},
        )
    return fields


def _refused(call: Call, error: RequestError) -> Mapping[str, Any]:
    return _fields(call, *error_fields(error))


API = Api(
    key=ApiKey.UPDATE_FEATURES, min_version=0, max_version=2, handle=handle, on_error=_refused, lane=ADMIN, settles=True
)
