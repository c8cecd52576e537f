"""CreateAcls (30): an ACL is durable and in force when its result says so.

Tests: tests/kafka/handlers/test_acls.py.
"""

from collections.abc import Mapping
from typing import Any

from broker.errors import RequestError
from broker.kafka.acls import acl_of, require_acls, result_fields
from broker.kafka.api import Api, Call
from broker.kafka.authorization import require
from broker.kafka.context import KafkaContext
from broker.network.work import ADMIN
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    require(context, call.connection, Operation.ALTER, ResourceType.CLUSTER)
    acls = require_acls(context)
    results = acls.create([acl_of(creation) for creation in call.work.each(call.body.creations)])
    return {"results": call.array(results, result_fields)}


def _refused(call: Call, error: RequestError) -> Mapping[str, Any]:
    return {"results": call.array(call.body.creations, lambda _: result_fields(error))}


API = Api(
    key=ApiKey.CREATE_ACLS, min_version=1, max_version=3, handle=handle, on_error=_refused, lane=ADMIN, settles=True
)
