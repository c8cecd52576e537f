"""InitProducerId (22): an id for a producer; for a producer with a transactional id, the next epoch of that id.

A transactional producer is answered when its epoch is durable: from then on every older producer is fenced. A transaction that
an older producer left open is aborted first, and CONCURRENT_TRANSACTIONS has the new producer ask again.
"""

from collections.abc import Mapping
from typing import Any

from broker.errors import StorageError
from broker.kafka.api import Api, Call
from broker.kafka.authorization import may, may_with_any
from broker.kafka.context import KafkaContext
from broker.kafka.transactions.transaction import Claim
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.schema.control import milliseconds

NONE = -1
# Before version 4 clients did not know PRODUCER_FENCED.
_FENCED_SINCE = 4


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any] | None:
    request = call.body
    denial = _denial(context, call, request.transactional_id)
    if denial:
        return _fields(denial)
    # From version 3 on a producer may name its present id and epoch (KIP-360): both or neither. A producer without
    # transactions gets a new id all the same, as from Kafka: with it, its sequence numbers start again.
    producer_id = getattr(request, "producer_id", NONE)
    epoch = getattr(request, "producer_epoch", NONE)
    if request.transactional_id == "" or (producer_id == NONE) != (epoch == NONE):
        return _fields(ErrorCode.invalid_request)
    if request.transactional_id is None:
        return _plain(context)

    def reply(error: ErrorCode, producer_id: int, epoch: int) -> None:
        if error == ErrorCode.producer_fenced and call.api_version < _FENCED_SINCE:
            error = ErrorCode.invalid_producer_epoch
        call.reply(_fields(error, producer_id, epoch))

    claim = None if producer_id == NONE else Claim(producer_id, epoch)
    timeout_ms = milliseconds(request.transaction_timeout)
    context.transactions.init(request.transactional_id, timeout_ms, claim, reply)
    return None


def _denial(context: KafkaContext, call: Call, transactional_id: str | None) -> ErrorCode:
    """A client that may write to any topic may have an id to do so (KIP-679)."""
    connection = call.connection
    if transactional_id is None:
        idempotent = Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER
        allowed = (
            may(context, connection, *idempotent, audited=False)
            or may_with_any(context, connection, Operation.WRITE, ResourceType.TOPIC)
            or may(context, connection, *idempotent)  # denied again, and this time audited
        )
        return ErrorCode.none if allowed else ErrorCode.cluster_authorization_failed
    if may(context, connection, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return ErrorCode.none
    return ErrorCode.transactional_id_authorization_failed


def _plain(context: KafkaContext) -> Mapping[str, Any]:
    try:
        return _fields(ErrorCode.none, context.catalogue.allocate_producer_ids(1), 0)
    except StorageError:
        # Retriable to every client.
        return _fields(ErrorCode.coordinator_not_available)


def _fields(error: ErrorCode, producer_id: int = NONE, epoch: int = NONE) -> Mapping[str, Any]:
    return {"error_code": error, "producer_id": producer_id, "producer_epoch": epoch}


API = Api(key=ApiKey.INIT_PRODUCER_ID, min_version=0, max_version=5, handle=handle)
