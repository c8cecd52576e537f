"""AddOffsetsToTxn (25): a producer adds the offsets of a group to its transaction, and begins one if none is open.

Tests: tests/kafka/handlers/test_transactions.py.
"""

from collections.abc import Mapping
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.authorization import require
from broker.kafka.checks import error_alone
from broker.kafka.context import KafkaContext
from broker.kafka.transactions.transaction import Claim
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

# Before version 2 clients did not know PRODUCER_FENCED.
_FENCED_SINCE = 2


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any] | None:
    request = call.body
    require(context, call.connection, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    require(context, call.connection, Operation.READ, ResourceType.GROUP, request.group_id)
    if not request.transactional_id:
        return {"error_code": ErrorCode.invalid_request}
    if not request.group_id:
        return {"error_code": ErrorCode.invalid_group_id}

    def reply(error: ErrorCode) -> None:
        if error == ErrorCode.producer_fenced and call.api_version < _FENCED_SINCE:
            error = ErrorCode.invalid_producer_epoch
        call.reply({"error_code": error})

    claim = Claim(request.producer_id, request.producer_epoch)
    context.transactions.add_group(request.transactional_id, claim, request.group_id, reply)
    return None


API = Api(key=ApiKey.ADD_OFFSETS_TO_TXN, min_version=0, max_version=4, handle=handle, on_error=error_alone)
