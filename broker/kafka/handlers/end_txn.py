"""EndTxn (26): commit or abort.

Answered when every marker is durable and the group offsets are committed, so that a client that is told of a commit can read
it, and the producer's next transaction does not run into CONCURRENT_TRANSACTIONS. (Kafka answers once the decision is
durable.) From version 5 on the answer has the producer's next epoch.

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
# From here on the end gives the producer its next epoch (KIP-890).
_BUMPS_SINCE = 5


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any] | None:
    request = call.body
    require(context, call.connection, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    if not request.transactional_id:
        return {"error_code": ErrorCode.invalid_request}

    def reply(error: ErrorCode) -> None:
        if error == ErrorCode.producer_fenced and call.api_version < _FENCED_SINCE:
            error = ErrorCode.invalid_producer_epoch
        call.reply({"error_code": error})

    def ended(error: ErrorCode, producer_id: int, epoch: int) -> None:
        call.reply({"error_code": error, "producer_id": producer_id, "producer_epoch": epoch})

    claim = Claim(request.producer_id, request.producer_epoch)
    if call.api_version >= _BUMPS_SINCE:
        context.transactions.version_2.end(request.transactional_id, claim, request.committed, ended)
        return None
    context.transactions.end(request.transactional_id, claim, request.committed, reply)
    return None


API = Api(key=ApiKey.END_TXN, min_version=0, max_version=5, handle=handle, on_error=error_alone)
