"""The storage's refusals. Each kind is a class, so that a caller can tell them apart without a protocol's codes.

The storage knows no protocol: a service maps each class to its own error code (``broker/kafka/error_codes.py`` for Kafka). It
shares only the format of record batches with Kafka (``protocol/kafka/records``), because that is the format of its segment files.

After a refusal nothing has changed. A fault of the machine is a ``StorageError`` instead. The settings of topics are refused by
``InvalidSetting`` of ``broker/config/setting.py``.

Tests: tests/kafka/test_error_codes.py.
"""

from collections.abc import Sequence

from broker.errors import Refusal


class LogEnded(Refusal):
    """Nothing more is written to the partition: its topic has been terminated (Pulsar)."""


class UnknownTopic(Refusal):
    """The topic or partition does not exist, or has been deleted."""


class TopicExists(Refusal):
    """A topic of this name exists already."""


class InvalidTopicName(Refusal):
    """No topic can have this name: Kafka's rules for names, or a name too much like that of an existing topic."""


class InvalidPartitionCount(Refusal):
    """A topic cannot have this number of partitions."""


class OffsetOutOfRange(Refusal):
    """The offset is before the start or after the end of the log."""


class CorruptBatch(Refusal):
    """The bytes are not a record batch, or do not match their checksum."""


class InvalidBatch(Refusal):
    """A whole record batch that breaks a rule."""


class KeylessRecords(InvalidBatch):
    """Records without a key for a compacted topic. ``numbers`` are the positions of the first such records in their batch."""

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__("A compacted topic does not accept records without a key.")
        self.numbers = numbers


class InvalidTimestamp(Refusal):
    """A record's timestamp is outside of the topic's limits. ``numbers`` are the positions of the first such records in their
    batch, if its records were read."""

    numbers: Sequence[int] = ()


class BatchTooLarge(Refusal):
    """A record batch is larger than ``max.message.bytes``."""


class BatchesTooLarge(Refusal):
    """The record batches of a request do not fit a segment."""


class OldProducerEpoch(Refusal):
    """A newer instance of the producer has written already."""


class OutOfOrderSequence(Refusal):
    """A producer's sequence number is neither the next nor that of a batch that was appended before."""


class InvalidTransactionState(Refusal):
    """A batch of a transaction that is not open, or a batch outside of the transaction that its producer has open."""
