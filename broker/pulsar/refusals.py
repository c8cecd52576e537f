"""The refusals of the Pulsar service, and their codes in Pulsar's ServerError.

Each kind is a class, so that the pure modules know no codes of the protocol; ``code_of`` gives the code. The names are those of
Pulsar's errors. A refusal changes no state. A fault of the machine is a ``StorageError`` instead.
"""

from collections.abc import Mapping
from typing import Final

from broker.config.setting import InvalidSetting
from broker.errors import Refusal, RequestError, StorageError
from broker.storage import refusals as storage
from protocol.pulsar.pulsar_pb2 import ServerError


class AuthenticationError(Refusal):
    """The client has not proved its identity."""


class AuthorizationError(Refusal):
    """The client may not do this."""


class TopicNotFound(Refusal):
    """The topic does not exist and is not created on demand, or its tenant or namespace does not exist."""


class InvalidTopicName(Refusal):
    """No topic can have this name."""


class TopicTerminated(Refusal):
    """The topic is terminated and takes no more messages."""


class SubscriptionNotFound(Refusal):
    """The subscription does not exist."""


class ConsumerNotFound(Refusal):
    """The consumer does not exist on this connection."""


class ConsumerBusy(Refusal):
    """The subscription's present use, or a limit, excludes this consumer."""


class ConsumerAssignError(Refusal):
    """The hash ranges of this consumer and another overlap."""


class ProducerBusy(Refusal):
    """The producer's name is in use, the topic has its maximum of producers, or a producer of the topic is exclusive."""


class ProducerFenced(Refusal):
    """A newer exclusive producer has taken the place of this one."""


class ProducerBlocked(Refusal):
    """The backlog of the topic is over its quota; the client keeps its messages and tries again."""


class ProducerBlockedForGood(Refusal):
    """The backlog of the topic is over its quota; the client reports that to the application."""


class IncompatibleSchema(Refusal):
    """The schema is incompatible with the topic's earlier schemas."""


class NotAllowed(Refusal):
    """The request contradicts the state of the topic or subscription, or asks for a feature that this broker lacks."""


class NamespaceFull(NotAllowed):
    """The namespace has its maximum number of topics."""


class TooManyRequests(Refusal):
    """The connection or the broker has reached a maximum number."""


class ServiceNotReady(Refusal):
    """Not now: the client should try again."""


class Elsewhere(ServiceNotReady):
    """Another node has the topic. ``topic``: the name in Kafka."""

    def __init__(self, topic: str, partition: int = 0) -> None:
        super().__init__("Another node has this topic: look it up again.")
        self.topic = topic
        self.partition = partition


class ChecksumMismatch(Refusal):
    """The bytes of a message do not match their checksum."""


class MetadataInvalid(Refusal):
    """The command lacks a field, or has an invalid value."""


_CODES: Final[Mapping[type[Refusal], int]] = {
    AuthenticationError: ServerError.AuthenticationError,
    AuthorizationError: ServerError.AuthorizationError,
    TopicNotFound: ServerError.TopicNotFound,
    InvalidTopicName: ServerError.InvalidTopicName,
    TopicTerminated: ServerError.TopicTerminatedError,
    SubscriptionNotFound: ServerError.SubscriptionNotFound,
    ConsumerNotFound: ServerError.ConsumerNotFound,
    ConsumerBusy: ServerError.ConsumerBusy,
    ConsumerAssignError: ServerError.ConsumerAssignError,
    ProducerBusy: ServerError.ProducerBusy,
    ProducerFenced: ServerError.ProducerFenced,
    ProducerBlocked: ServerError.ProducerBlockedQuotaExceededError,
    ProducerBlockedForGood: ServerError.ProducerBlockedQuotaExceededException,
    IncompatibleSchema: ServerError.IncompatibleSchema,
    NotAllowed: ServerError.NotAllowedError,
    TooManyRequests: ServerError.TooManyRequests,
    ServiceNotReady: ServerError.ServiceNotReady,
    ChecksumMismatch: ServerError.ChecksumError,
    MetadataInvalid: ServerError.MetadataError,
    storage.LogEnded: ServerError.TopicTerminatedError,
    # For a topic that is deleted while in use: its clients look it up again.
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
    """The code in the answer. A fault of the machine has a code after which clients try again."""
    if isinstance(error, StorageError):
        return ServerError.PersistenceError
    if isinstance(error, RequestError):
        return error.code
    for kind in type(error).__mro__:
        code = _CODES.get(kind)
        if code is not None:
            return code
    return ServerError.UnknownError
