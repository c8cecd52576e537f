"""The errors of the Kafka client. Each has one sentence, which names the address or the partition concerned.

All are ``KafkaClientError`` and can be pickled, because Spark carries them from its workers to the driver. ``code`` is Kafka's
error code if the error came from a broker, else None.
"""

from typing import Any, Self

from broker.errors import BrokerError
from protocol.kafka.errors import ErrorCode

# Another try may succeed after these errors, perhaps with another broker: refresh the metadata and ask again.
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
# After these errors the client asks for the coordinator again.
COORDINATOR_MOVED = frozenset({ErrorCode.coordinator_not_available, ErrorCode.not_coordinator})


class KafkaClientError(BrokerError):
    """Base of all errors that the Kafka client raises, except ConfigError."""

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
    """``code`` by Kafka's name: NOT_LEADER_OR_FOLLOWER (6)."""
    try:
        return f"{ErrorCode(code).name.upper()} ({int(code)})"
    except ValueError:
        return f"error {code}"


class RetriableError(KafkaClientError):
    """The broker answered with an error that another try may overcome."""


# -- connections ------------------------------------------------------------------------------------------------


class LinkError(KafkaClientError):
    """A connection could not be opened, or broke. Another try may succeed."""


class UnreachableError(LinkError):
    """No broker answers at the address."""


class ConnectionLostError(LinkError):
    """The connection broke during a request."""


class TimedOutError(KafkaClientError):
    """The time for the call was over. The broker may still carry out the request."""


class AuthenticationError(KafkaClientError):
    """The broker rejects the user, mechanism or certificate, or the client rejects the broker's certificate."""


class UnsupportedVersionError(KafkaClientError):
    """The broker supports no version of an API that this client supports."""


class BrokerAnswerError(KafkaClientError):
    """The broker answered with an error that another try will not cure, or with bytes that cannot be read."""


# -- topics and reading -----------------------------------------------------------------------------------------


class UnknownTopicError(KafkaClientError):
    """The topic or partition does not exist."""


class TopicRecreatedError(KafkaClientError):
    """The topic was deleted and created again while it was read, so its offsets now mean other records."""


class OffsetOutOfRangeError(KafkaClientError):
    """The partition, which has offsets ``log_start`` to ``end`` (exclusive), does not have this offset, or no
    longer."""

    @classmethod
    def of(cls, topic: str, partition: int, offset: int, log_start: int, end: int) -> Self:
        where = "has been deleted" if offset < log_start else "does not exist yet"
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
    """A record batch does not match its checksum, or its bytes cannot be read."""


# -- writing ----------------------------------------------------------------------------------------------------


class RecordTooLargeError(KafkaClientError):
    """A record or batch is larger than the topic or the client's own limit allows."""


class ProducerFencedError(KafkaClientError):
    """A newer producer has taken over the transactional id; uncommitted records of this producer are aborted."""


class TransactionError(KafkaClientError):
    """The transaction is in a state that does not allow the call, or can only be aborted."""


class JointCommitUnsupportedError(KafkaClientError):
    """The broker cannot commit transactions of several producers as one (EndTxns)."""
