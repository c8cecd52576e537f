"""DescribeAcls (29): the ACLs that match a filter, by the resources that they concern.

Tests: tests/kafka/handlers/test_acls.py.
"""

from collections.abc import Mapping
from typing import Any

from broker.errors import Refusal, RequestError
from broker.kafka.acls import filter_of, pattern_fields, require_acls, result_fields, rule_fields
from broker.kafka.api import Api, Call
from broker.kafka.authorization import require
from broker.kafka.context import KafkaContext
from broker.network.work import ADMIN, CHECK_EVERY
from broker.security.acl import Acl, Operation, PatternType, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

Pattern = tuple[ResourceType, str, PatternType]


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    require(context, call.connection, Operation.DESCRIBE, ResourceType.CLUSTER)
    acls = require_acls(context)
    wanted = filter_of(call.body)
    try:
        wanted.check()
    except Refusal as error:
        return {**result_fields(error), "resources": []}
    by_pattern: dict[Pattern, list[Acl]] = {}
    for number, acl in enumerate(wanted.candidates(acls.rules)):
        if number % CHECK_EVERY == 0:
            call.work.checkpoint()
        if wanted.matches(acl):
            by_pattern.setdefault((acl.resource_type, acl.name, acl.pattern), []).append(acl)
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "resources": call.array(
            [by_pattern[pattern] for pattern in sorted(by_pattern)], lambda pattern_acls: _resource(call, pattern_acls)
        ),
    }


def _resource(call: Call, acls: list[Acl]) -> dict[str, Any]:
    return {**pattern_fields(acls[0]), "acls": call.array(sorted(acls), rule_fields)}


def _refused(_call: Call, error: RequestError) -> Mapping[str, Any]:
    return {**result_fields(error), "resources": []}


API = Api(key=ApiKey.DESCRIBE_ACLS, min_version=1, max_version=3, handle=handle, on_error=_refused, lane=ADMIN)
