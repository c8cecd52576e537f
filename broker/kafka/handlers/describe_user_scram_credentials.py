"""DescribeUserScramCredentials (50): the users that can log in with SCRAM, their mechanisms, and numbers of iterations.

Nothing else of a credential is shown.

Tests: tests/kafka/handlers/test_alter_user_scram_credentials.py.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.authorization import require
from broker.kafka.checks import error_and_message
from broker.kafka.context import KafkaContext
from broker.kafka.logins import CODES
from broker.network.work import ADMIN
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    require(context, call.connection, Operation.DESCRIBE, ResourceType.CLUSTER)
    asked = Counter(user.name for user in call.body.users or ())
    names = list(asked) or context.credentials.users()

    def described(name: str) -> Mapping[str, Any]:
        if asked[name] > 1:
            message = "Cannot describe SCRAM credentials for the same user twice in a single request"
            return _result(name, ErrorCode.duplicate_resource, message)
        iterations = context.credentials.of_user(name)
        if not iterations:
            message = "Attempt to describe a user credential that does not exist"
            return _result(name, ErrorCode.resource_not_found, message)
        infos = [{"mechanism": CODES[mechanism], "iterations": count} for mechanism, count in iterations.items()]
        return _result(name, ErrorCode.none, None) | {"credential_infos": infos}

    return {"error_code": ErrorCode.none, "error_message": None, "results": call.array(names, described)}


def _result(name: str, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {"user": name, "error_code": code, "error_message": message, "credential_infos": []}


API = Api(
    key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    min_version=0,
    max_version=0,
    handle=handle,
    on_error=error_and_message,
    lane=ADMIN,
)
