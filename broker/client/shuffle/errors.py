"""What can go wrong for who writes or reads result partitions. All are ``ShuffleError``.

Where Flink has an exception for it, the error carries its name: what a job sees here is what it would see there.

Tests: tests/client/shuffle/writing/test_shuffle_writer.py.
"""

from broker.errors import BrokerError
from protocol.shuffle.writer_frames import WriterErrorCode

__all__ = [
    "AnotherAttemptWonError",
    "BufferReorderingError",
    "ConnectionFailedError",
    "LocalTransportError",
    "NoBufferError",
    "NoCreditError",
    "PartitionExistsError",
    "PartitionFinishedError",
    "PartitionLostError",
    "PartitionNotFoundError",
    "PartitionReleasedError",
    "ProducerFailedError",
    "QuotaExceededError",
    "RemoteTransportError",
    "SequenceGapError",
    "ShuffleClosedError",
    "ShuffleError",
    "ShuffleTimeoutError",
    "TransportError",
    "WriterFencedError",
    "WriterRefusedError",
    "of_another_process",
    "writer_refused",
]


class ShuffleError(BrokerError):
    """Base of all that the shuffle client raises."""


class ShuffleClosedError(ShuffleError):
    """The writer or gate was closed before, or while, it was asked for something."""


def of_another_process() -> ShuffleClosedError:
    """For what a forked child does with an object of its parent."""
    return ShuffleClosedError(
        "it belongs to the process that this one was forked from, which goes on with it: make another one here"
    )


class ShuffleTimeoutError(ShuffleError):
    """The time that the caller gave has passed. What was asked for may still happen."""


class NoCreditError(ShuffleTimeoutError):
    """The broker has taken everything that it was sent, and has had no room for more in that time."""


# -- connections ------------------------------------------------------------------------------------------------


class TransportError(ShuffleError):
    """A connection is of no more use, and with it all that went over it. ``address`` is the other side's."""

    def __init__(self, message: str, address: str = "") -> None:
        super().__init__(message)
        self.address = address


class ConnectionFailedError(TransportError):
    """No connection came about."""


class LocalTransportError(TransportError):
    """This side gave up on the connection: what came cannot be read, or there is no room for it."""


class RemoteTransportError(TransportError):
    """The other side gave up: it said so (``class_name`` is the Java class of its error), or it was gone."""

    def __init__(self, message: str, address: str = "", class_name: str | None = None) -> None:
        super().__init__(message, address)
        self.class_name = class_name


# -- readers: errors of one channel -----------------------------------------------------------------------------


class ProducerFailedError(RemoteTransportError):
    """Whoever wrote the partition has failed; what was read of it is not all there was to be."""


class PartitionNotFoundError(ShuffleError):
    """Nobody has written, or is writing, this partition there, and waiting for it has not helped."""


class BufferReorderingError(ShuffleError):
    """A buffer is missing or has come twice."""

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(f"Buffer re-ordering: expected buffer with sequence number {expected}, but received {actual}.")
        self.expected = expected
        self.actual = actual


class NoBufferError(ShuffleError):
    """The sender has sent more than it had credit for."""


# -- writers ----------------------------------------------------------------------------------------------------


class WriterRefusedError(ShuffleError):
    """The broker does not let this writer go on. ``code`` says why; most have a class of their own below."""

    def __init__(self, message: str, code: WriterErrorCode) -> None:
        super().__init__(message)
        self.code = code


class AnotherAttemptWonError(WriterRefusedError):
    """Another attempt of the same producer has finished first; nobody needs this one."""


class PartitionExistsError(WriterRefusedError):
    """The partition is there already, with another type or number of subpartitions, or from another writer."""


class PartitionFinishedError(WriterRefusedError):
    """The partition is finished: nothing can be added to it."""


class PartitionReleasedError(WriterRefusedError):
    """The partition was released while it was being written."""


class QuotaExceededError(WriterRefusedError):
    """The owner has as many bytes on this broker as it may have."""


class WriterFencedError(WriterRefusedError):
    """Another writer has opened the partition under the same writer id: it goes on from there, and this one must not."""


class SequenceGapError(WriterRefusedError):
    """The broker misses a buffer of this writer: an error of the library or of the broker."""


class PartitionLostError(ShuffleError):
    """The broker has forgotten what it had acknowledged (it was restarted, for example): write the partition again."""


_BY_CODE: dict[WriterErrorCode, type[WriterRefusedError]] = {
    WriterErrorCode.EXISTS_WITH_OTHER_SHAPE: PartitionExistsError,
    WriterErrorCode.ANOTHER_ATTEMPT_WON: AnotherAttemptWonError,
    WriterErrorCode.QUOTA_EXCEEDED: QuotaExceededError,
    WriterErrorCode.SEQUENCE_GAP: SequenceGapError,
    WriterErrorCode.RELEASED: PartitionReleasedError,
    WriterErrorCode.FINISHED_ALREADY: PartitionFinishedError,
    WriterErrorCode.FENCED: WriterFencedError,
}


def writer_refused(code: WriterErrorCode, message: str) -> WriterRefusedError:
    """The error for what a broker answered."""
    text = message or code.name.lower().replace("_", " ")
    return _BY_CODE.get(code, WriterRefusedError)(text, code)
