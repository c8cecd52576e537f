"""Errors by who is at fault. Each class names the layer that catches it.

``ProtocolError`` (the peer's fault; the processor closes the connection) lives in ``protocol.errors``.
"""

from protocol.errors import ProtocolError

__all__ = [
    "BrokerError",
    "ConfigError",
    "Fenced",
    "ProtocolError",
    "Refusal",
    "RequestError",
    "StorageError",
    "UnknownOutcome",
]


class BrokerError(Exception):
    """Base of the errors below."""


class Refusal(BrokerError):
    """The request is at fault. It is answered with an error code, and the connection stays open. Caught by the handlers.

    Modules that know no protocol raise a subclass for each reason (``storage/refusals.py``, ``config/setting.py``); each
    service maps them to its own codes. ``message`` is for people and may be sent to the client.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message


class RequestError(Refusal):
    """A refusal by a service itself. ``code`` is its protocol's own number (for Kafka an ``ErrorCode``)."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message or str(code))
        self.code = code
        self.message = message


class StorageError(BrokerError):
    """The machine is at fault (disk full, I/O error, corrupt file). The records are not acknowledged, and the partition may go
    offline. Caught where requests are handled and by the flusher.
    """


class UnknownOutcome(StorageError):
    """A change of the catalogue failed, and so did finding out whether it reached the disk, or whether the database's server has
    made it. The change is not in force now; the next start finds either all of it or nothing."""


class Fenced(StorageError):
    """Another broker has taken over the data: this one's epoch is over, and nothing that it writes to the shared catalogue or to
    the journal is made any longer, now or later. Or this is one of several nodes, and the process with the catalogue is gone."""


class ConfigError(BrokerError):
    """The operator is at fault: the broker refuses to start. The message is one sentence that says what to change."""
