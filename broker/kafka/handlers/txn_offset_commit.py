"""TxnOffsetCommit (28): offsets of a group that count once the transaction is committed. Answered when they are durable.

Tests: tests/kafka/handlers/test_transactions.py.
"""

from collections.abc import Mapping
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.authorization import denied, may
from broker.kafka.context import KafkaContext
from broker.kafka.groups.offset_coordinator import Committer
from broker.kafka.groups.offsets import CommittedOffset, Offsets, Partition
from broker.kafka.transactions.transaction import Claim
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

_NOBODY = -1
# From here on clients know TRANSACTION_ABORTABLE: the producer can abort and go on.
_ABORTABLE_SINCE = 4
# From here on the request adds the group to the transaction, which AddOffsetsToTxn does for older clients (KIP-890).
_ADDS_SINCE = 5
# Kafka's group coordinator translates the transaction coordinator's errors into its own.
_TRANSLATED = {
    ErrorCode.producer_fenced: ErrorCode.invalid_producer_epoch,
    ErrorCode.concurrent_transactions: ErrorCode.coordinator_not_available,
}


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any] | None:
    request = call.body
    denial = _denial(context, call)
    if denial:
        asked = [(topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions]
        return _fields(request, dict.fromkeys(asked, denial))
    topics = (topic.name for topic in request.topics)
    unauthorized = denied(context, call.connection, Operation.READ, ResourceType.TOPIC, topics)
    now_ms = context.clock.time_ms()
    offsets: Offsets = {}
    errors: dict[Partition, ErrorCode] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            key = (topic.name, partition.partition_index)
            metadata = partition.committed_metadata or ""
            if topic.name in unauthorized:
                errors[key] = ErrorCode.topic_authorization_failed
            elif not context.exists(*key):
                errors[key] = ErrorCode.unknown_topic_or_partition
            elif len(metadata) > context.config.offset_metadata_max_bytes:
                errors[key] = ErrorCode.offset_metadata_too_large
            else:
                leader_epoch = getattr(partition, "committed_leader_epoch", -1)  # from version 2 on
                offsets[key] = CommittedOffset(partition.committed_offset, leader_epoch, metadata, now_ms)
    if not request.transactional_id or not request.group_id:
        error = ErrorCode.invalid_group_id if request.transactional_id else ErrorCode.invalid_request
        return _fields(request, dict.fromkeys([*offsets, *errors], error))

    def reply(error: ErrorCode) -> None:
        if error == ErrorCode.invalid_txn_state and call.api_version >= _ABORTABLE_SINCE:
            error = ErrorCode.transaction_abortable
        call.reply(_fields(request, errors | dict.fromkeys(offsets, _TRANSLATED.get(error, error))))

    # From version 3 on.
    committer = Committer(
        getattr(request, "member_id", ""),
        getattr(request, "group_instance_id", None),
        getattr(request, "generation_id", _NOBODY),
    )
    claim = Claim(request.producer_id, request.producer_epoch)
    transactions = context.transactions
    if transactions.pending_offsets is not None:
        adds = call.api_version >= _ADDS_SINCE
        transactions.pending_offsets.commit(
            request.transactional_id, claim, request.group_id, committer, offsets, reply, adds=adds
        )
        return None
    commit = transactions.commit_offsets if call.api_version < _ADDS_SINCE else transactions.version_2.commit_offsets
    commit(request.transactional_id, claim, request.group_id, committer, offsets, reply)
    return None


def _denial(context: KafkaContext, call: Call) -> ErrorCode:
    """The error of all partitions, if the client may not use the transactional id or the group."""
    request, connection = call.body, call.connection
    if not may(context, connection, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):
        return ErrorCode.transactional_id_authorization_failed
    if not may(context, connection, Operation.READ, ResourceType.GROUP, request.group_id):
        return ErrorCode.group_authorization_failed
    return ErrorCode.none


def _fields(request: Any, errors: Mapping[Partition, ErrorCode]) -> Mapping[str, Any]:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": partition.partition_index,
                        "error_code": errors[topic.name, partition.partition_index],
                    }
                    for partition in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


API = Api(key=ApiKey.TXN_OFFSET_COMMIT, min_version=0, max_version=5, handle=handle)
