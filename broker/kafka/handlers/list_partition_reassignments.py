"""ListPartitionReassignments (46): with one node no partition ever moves, so the list is empty. Web UIs ask for it."""

from collections.abc import Mapping
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.context import KafkaContext
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode


def handle(_broker: KafkaContext, _call: Call) -> Mapping[str, Any]:
    return {"error_code": ErrorCode.none, "error_message": None, "topics": []}


API = Api(key=ApiKey.LIST_PARTITION_REASSIGNMENTS, min_version=0, max_version=0, handle=handle, inline=True)
