"""Refusals and faults as the codes of Pulsar's ServerError."""

from collections.abc import Mapping
from typing import Final

from broker.config.setting import InvalidSetting
from broker.errors import Refusal, RequestError, StorageError
from broker.pulsar import refusals
from broker.storage import refusals as storage
from protocol.pulsar.pulsar_pb2 import ServerError

_CODES: Final[Mapping[type[Refusal], int]] = {
    refusals.AuthenticationError: ServerError.AuthenticationError,
    refusals.AuthorizationError: ServerError.AuthorizationError,
    refusals.TopicNotFound: ServerError.TopicNotFound,
    refusals.InvalidTopicName: ServerError.InvalidTopicName,
    refusals.TopicTerminated: ServerError.TopicTerminatedError,
    refusals.SubscriptionNotFound: ServerError.SubscriptionNotFound,
    refusals.ConsumerNotFound: ServerError.ConsumerNotFound,
    refusals.ConsumerBusy: ServerError.ConsumerBusy,
    refusals.ConsumerAssignError: ServerError.ConsumerAssignError,
    refusals.ProducerBusy: ServerError.ProducerBusy,
    refusals.ProducerFenced: ServerError.ProducerFenced,
    refusals.ProducerBlocked: ServerError.ProducerBlockedQuotaExceededError,
    refusals.ProducerBlockedForGood: ServerError.ProducerBlockedQuotaExceededException,
    refusals.IncompatibleSchema: ServerError.IncompatibleSchema,
    refusals.NotAllowed: ServerError.NotAllowedError,
    refusals.TooManyRequests: ServerError.TooManyRequests,
    refusals.ServiceNotReady: ServerError.ServiceNotReady,
    refusals.ChecksumMismatch: ServerError.ChecksumError,
    refusals.MetadataInvalid: ServerError.MetadataError,
    storage.LogEnded: ServerError.TopicTerminatedError,
    # A topic that is deleted while it is used: its clients look it up again.
    storage.UnknownTopic: ServerError.TopicNotFound,
    storage.TopicExists: ServerError.NotAllowedError,
    storage.InvalidTopicName: ServerError.InvalidTopicName,
    storage.InvalidPartitionCount: ServerError.NotAllowedError,
    storage.OffsetOutOfRange: ServerError.MetadataError,
    storage.CorruptBatch: ServerError.ChecksumError,
    storage.InvalidBatch: ServerError.MetadataError,
    storage.KeylessRecords: ServerError.MetadataError,
    storage.InvalidTimestamp: ServerError.MetadataError,
    storage.BatchTooLarge: ServerError.NotAllowedError,
    storage.BatchesTooLarge: ServerError.NotAllowedError,
    storage.OldProducerEpoch: ServerError.ProducerFenced,
    storage.OutOfOrderSequence: ServerError.MetadataError,
    storage.InvalidTransactionState: ServerError.NotAllowedError,
    InvalidSetting: ServerError.NotAllowedError,
}


def code_of(error: Refusal | StorageError) -> int:
    """The code with which a client is answered. Of a fault of the machine: one after which clients try again."""
    if isinstance(error, StorageError):
        return ServerError.PersistenceError
    if isinstance(error, RequestError):
        return error.code
    for kind in type(error).__mro__:
        code = _CODES.get(kind)
        if code is not None:
            return code
    return ServerError.UnknownError
