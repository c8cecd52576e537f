"""Kafka's error code for each refusal of the broker's own modules, which know no protocol.

Pure. Every seam at which such a refusal becomes a reply asks ``code_of``: ``checks.error_fields`` for the administrative
handlers; produce, fetch, metadata and the topic maker for themselves.
"""

from collections.abc import Mapping

from broker.config.setting import InvalidSetting
from broker.errors import Refusal, RequestError
from broker.security.acl_authorizer import TooManyAcls
from broker.security.acl_rules import InvalidAcl
from broker.security.credentials import UnacceptableCredential
from broker.storage import refusals
from protocol.kafka.errors import ErrorCode

CODES: Mapping[type[Refusal], ErrorCode] = {
    InvalidSetting: ErrorCode.invalid_config,
    InvalidAcl: ErrorCode.invalid_request,
    TooManyAcls: ErrorCode.policy_violation,
    UnacceptableCredential: ErrorCode.unacceptable_credential,
    refusals.LogEnded: ErrorCode.policy_violation,
    refusals.UnknownTopic: ErrorCode.unknown_topic_or_partition,
    refusals.TopicExists: ErrorCode.topic_already_exists,
    refusals.InvalidTopicName: ErrorCode.invalid_topic_exception,
    refusals.InvalidPartitionCount: ErrorCode.invalid_partitions,
    refusals.OffsetOutOfRange: ErrorCode.offset_out_of_range,
    refusals.CorruptBatch: ErrorCode.corrupt_message,
    refusals.InvalidBatch: ErrorCode.invalid_record,
    refusals.KeylessRecords: ErrorCode.invalid_record,
    refusals.InvalidTimestamp: ErrorCode.invalid_timestamp,
    refusals.BatchTooLarge: ErrorCode.message_too_large,
    refusals.BatchesTooLarge: ErrorCode.record_list_too_large,
    refusals.OldProducerEpoch: ErrorCode.invalid_producer_epoch,
    refusals.OutOfOrderSequence: ErrorCode.out_of_order_sequence_number,
    refusals.InvalidTransactionState: ErrorCode.invalid_txn_state,
}


def code_of(refusal: Refusal) -> int:
    """The error code for a reply."""
    return refusal.code if isinstance(refusal, RequestError) else CODES[type(refusal)]
