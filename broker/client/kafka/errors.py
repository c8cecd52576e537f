"""What can go wrong for who uses the Kafka client: one clear sentence each, with the address or the partition it is about.

All are ``KafkaClientError`` and go through pickle, because Spark carries them from its workers to the driver. ``code`` is
Kafka's error code where a broker gave one, else None.
"""

from typing import Any, Self

from broker.errors import BrokerError
from protocol.kafka.errors import ErrorCode

# What may be over at the next try, perhaps with another broker: refresh the metadata and ask again.
RETRIABLE = frozenset(
    {
        ErrorCode.corrupt_message,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.kafka_storage_error,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.offset_not_available,
        ErrorCode.concurrent_transactions,
        ErrorCode.unstable_offset_commit,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.throttling_quota_exceeded,
    }
)
# Of these, the ones that ask for another coordinator.
COORDINATOR_MOVED = frozenset({ErrorCode.coordinator_not_available, ErrorCode.not_coordinator})


class KafkaClientError(BrokerError):
    """Base of all that the Kafka client raises (but ConfigError)."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(cls: type[KafkaClientError], args: tuple[Any, ...], attributes: dict[str, Any]) -> KafkaClientError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


def code_name(code: int) -> str:
    """``code`` in Kafka's words: NOT_LEADER_OR_FOLLOWER (6)."""
    try:
        return f"{ErrorCode(code).name.upper()} ({int(code)})"
    except ValueError:
        return f"error {code}"


class RetriableError(KafkaClientError):
    """The broker answered with an error that may be over at the next try."""


# -- connections ------------------------------------------------------------------------------------------------


class LinkError(KafkaClientError):
    """A connection did not come about or broke. Worth another try."""


class UnreachableError(LinkError):
    """Nobody answers there."""


class ConnectionLostError(LinkError):
    """The connection broke while something was asked."""


class TimedOutError(KafkaClientError):
    """The time for this was over. What was asked for may still happen."""


class AuthenticationError(KafkaClientError):
    """The broker does not take this user, mechanism or certificate, or we do not take its certificate."""


class UnsupportedVersionError(KafkaClientError):
    """The broker has no version of an API that this client has."""


class BrokerAnswerError(KafkaClientError):
    """The broker answered with an error that another try will not cure, or with what cannot be read."""


# -- topics and reading -----------------------------------------------------------------------------------------


class UnknownTopicError(KafkaClientError):
    """There is no such topic or partition."""


class TopicRecreatedError(KafkaClientError):
    """The topic was deleted and made again while it was read: its offsets mean other records now."""


class OffsetOutOfRangeError(KafkaClientError):
    """The offset is not, or no longer, in the partition, which goes from ``log_start`` to ``end`` (exclusive)."""

    @classmethod
    def of(cls, topic: str, partition: int, offset: int, log_start: int, end: int) -> Self:
        where = "is gone already" if offset < log_start else "does not exist yet"
        error = cls(
            f"Offset {offset} of {topic}-{partition} {where}: the partition has offsets {log_start} to {end} (exclusive).",
            ErrorCode.offset_out_of_range,
        )
        error.topic, error.partition, error.offset = topic, partition, offset
        error.log_start, error.end = log_start, end
        return error

    topic: str
    partition: int
    offset: int
    log_start: int
    end: int


class CorruptRecordError(KafkaClientError):
    """A record batch that does not match its checksum, or whose bytes mean nothing."""


# -- writing ----------------------------------------------------------------------------------------------------


class RecordTooLargeError(KafkaClientError):
    """A record or batch is larger than the topic, or the client's own limit, takes."""


class ProducerFencedError(KafkaClientError):
    """A newer producer has taken this transactional id; what this one did not commit is aborted."""


class TransactionError(KafkaClientError):
    """The transaction is not in a state for this, or can only be aborted."""


class JointCommitUnsupportedError(KafkaClientError):
    """The broker cannot commit transactions of several producers as one (EndTxns)."""
