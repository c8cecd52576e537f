"""InitProducerId (22): an id for an idempotent producer. Java's producers ask for one by default.

Transactions are not there yet. A producer with a transactional id is answered TRANSACTIONAL_ID_AUTHORIZATION_FAILED: of the
codes that fit, it is the only one that the Java client, librdkafka and kafka-python all take as final at once, where
librdkafka would try again until its time-out after INVALID_REQUEST or UNSUPPORTED_VERSION; and it is what a Kafka cluster
says on which the client may not use transactions.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from broker.errors import StorageError
from broker.kafka.api import Api, Call
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from broker.kafka.broker import KafkaBroker

NONE = -1


def handle(broker: "KafkaBroker", call: Call) -> Mapping[str, Any]:
    request = call.body
    if request.transactional_id is not None:
        # An empty transactional id is a fault of the client's in Kafka, too.
        code = (
            ErrorCode.transactional_id_authorization_failed if request.transactional_id else ErrorCode.invalid_request
        )
        return _error(code)
    # From version 3 on a producer may name its present id and epoch (KIP-360): both or neither. A producer without
    # transactions gets a new id all the same, as from Kafka: with it, its sequence numbers start again.
    if (getattr(request, "producer_id", NONE) == NONE) != (getattr(request, "producer_epoch", NONE) == NONE):
        return _error(ErrorCode.invalid_request)
    try:
        producer_id = broker.catalogue.allocate_producer_ids(1)
    except StorageError:
        # Retriable to every client.
        return _error(ErrorCode.coordinator_not_available)
    return {"error_code": ErrorCode.none, "producer_id": producer_id, "producer_epoch": 0}


def _error(code: ErrorCode) -> Mapping[str, Any]:
    return {"error_code": code, "producer_id": NONE, "producer_epoch": NONE}


API = Api(key=ApiKey.INIT_PRODUCER_ID, min_version=0, max_version=5, handle=handle)
