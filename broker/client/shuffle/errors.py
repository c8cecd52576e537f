"""The errors of writing and reading result partitions. All are ``ShuffleError``, and have the name of Flink's exception
if Flink has one for the case.

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
    """Base of all errors of the shuffle client."""


class ShuffleClosedError(ShuffleError):
    """The writer or gate was closed before or during the call."""


def of_another_process() -> ShuffleClosedError:
    """The error for a forked child that uses an object of its parent."""
    return ShuffleClosedError(
        "this object belongs to the process that this one was forked from, which still uses it: create another one here"
    )


class ShuffleTimeoutError(ShuffleError):
    """The caller's timeout has passed. The broker may still carry out the request."""


class NoCreditError(ShuffleTimeoutError):
    """The broker has taken everything that was sent, and had no room for more within the timeout."""


# -- connections ------------------------------------------------------------------------------------------------


class TransportError(ShuffleError):
    """A connection is lost, and with it all data in flight on it. ``address`` is the peer's."""

    def __init__(self, message: str, address: str = "") -> None:
        super().__init__(message)
        self.address = address


class ConnectionFailedError(TransportError):
    """The connection could not be made."""


class LocalTransportError(TransportError):
    """This side closed the connection, because it cannot read the received data or has no room for it."""


class RemoteTransportError(TransportError):
    """The peer closed the connection, with an error message (``class_name`` is the error's Java class) or without."""

    def __init__(self, message: str, address: str = "", class_name: str | None = None) -> None:
        super().__init__(message, address)
        self.class_name = class_name


# -- readers: errors of one channel -----------------------------------------------------------------------------


class ProducerFailedError(RemoteTransportError):
    """The partition's writer has failed, so the data read from it is incomplete."""


class PartitionNotFoundError(ShuffleError):
    """The partition does not exist on the peer, and did not appear while the reader waited."""


class BufferReorderingError(ShuffleError):
    """A buffer is missing or was repeated."""

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(f"Buffer re-ordering: expected buffer with sequence number {expected}, but received {actual}.")
        self.expected = expected
        self.actual = actual


class NoBufferError(ShuffleError):
    """The sender sent more buffers than it had credit for."""


# -- writers ----------------------------------------------------------------------------------------------------


class WriterRefusedError(ShuffleError):
    """The broker refuses this writer. ``code`` says why; most codes have a class of their own below."""

    def __init__(self, message: str, code: WriterErrorCode) -> None:
        super().__init__(message)
        self.code = code


class AnotherAttemptWonError(WriterRefusedError):
    """Another attempt of the same producer finished first, so this attempt is not needed."""


class PartitionExistsError(WriterRefusedError):
    """The partition exists already, with another type or number of subpartitions, or from another writer."""


class PartitionFinishedError(WriterRefusedError):
    """The partition is finished, so nothing can be added to it."""


class PartitionReleasedError(WriterRefusedError):
    """The partition was released while it was being written."""


class QuotaExceededError(WriterRefusedError):
    """The owner has used up its quota of bytes on this broker."""


class WriterFencedError(WriterRefusedError):
    """Another writer has opened the partition under the same writer id and continues it, so this writer must stop."""


class NotAuthorizedError(WriterRefusedError):
    """This client may not write this owner's data."""


class SequenceGapError(WriterRefusedError):
    """A buffer of this writer did not reach the broker: a bug in the client or the broker."""


class PartitionLostError(ShuffleError):
    """The broker has lost acknowledged data, for example in a restart. Write the partition again."""


_BY_CODE: dict[WriterErrorCode, type[WriterRefusedError]] = {
    WriterErrorCode.EXISTS_WITH_OTHER_SHAPE: PartitionExistsError,
    WriterErrorCode.ANOTHER_ATTEMPT_WON: AnotherAttemptWonError,
    WriterErrorCode.QUOTA_EXCEEDED: QuotaExceededError,
    WriterErrorCode.SEQUENCE_GAP: SequenceGapError,
    WriterErrorCode.RELEASED: PartitionReleasedError,
    WriterErrorCode.FINISHED_ALREADY: PartitionFinishedError,
    WriterErrorCode.FENCED: WriterFencedError,
    WriterErrorCode.NOT_AUTHORIZED: NotAuthorizedError,
}


def writer_refused(code: WriterErrorCode, message: str) -> WriterRefusedError:
    """Return the error for the code that a broker answered with."""
    text = message or code.name.lower().replace("_", " ")
    return _BY_CODE.get(code, WriterRefusedError)(text, code)
