"""ListPartitionReassignments (46): no partition moves while clients can ask, so the list is empty. Web UIs ask for it."""

from collections.abc import Mapping
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.authorization import require
from broker.kafka.checks import error_and_message
from broker.kafka.context import KafkaContext
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    require(context, call.connection, Operation.DESCRIBE, ResourceType.CLUSTER)
    return {"error_code": ErrorCode.none, "error_message": None, "topics": []}


API = Api(
    key=ApiKey.LIST_PARTITION_REASSIGNMENTS,
    min_version=0,
    max_version=0,
    handle=handle,
    on_error=error_and_message,
    inline=True,
)
