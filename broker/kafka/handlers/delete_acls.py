"""DeleteAcls (31): no ACL in a result is in force any more, for open connections as well.

Tests: tests/kafka/handlers/test_acls.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from broker.errors import Refusal, RequestError, StorageError
from broker.kafka.acls import filter_of, pattern_fields, require_acls, result_fields, rule_fields
from broker.kafka.api import Api, Call
from broker.kafka.authorization import require
from broker.kafka.context import KafkaContext
from broker.network.work import ADMIN
from broker.security.acl import Acl, Operation, ResourceType
from protocol.kafka.api_keys import ApiKey


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    require(context, call.connection, Operation.ALTER, ResourceType.CLUSTER)
    acls = require_acls(context)
    results = acls.delete([filter_of(item) for item in call.work.each(call.body.filters)], call.work.checkpoint)
    return {"filter_results": call.array(results, lambda item: _result(call, item))}


def _result(call: Call, result: Sequence[Acl] | Refusal | StorageError) -> Mapping[str, Any]:
    if isinstance(result, (Refusal, StorageError)):
        return {**result_fields(result), "matching_acls": []}
    return {**result_fields(None), "matching_acls": call.array(result, _match)}


def _match(acl: Acl) -> dict[str, Any]:
    return {**result_fields(None), **pattern_fields(acl), **rule_fields(acl)}


def _refused(call: Call, error: RequestError) -> Mapping[str, Any]:
    return {"filter_results": call.array(call.body.filters, lambda _: _result(call, error))}


API = Api(
    key=ApiKey.DELETE_ACLS, min_version=1, max_version=3, handle=handle, on_error=_refused, lane=ADMIN, settles=True
)
