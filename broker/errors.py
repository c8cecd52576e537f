"""Errors by whose fault they are; the seam that catches each one is named beside it.

``ProtocolError`` (the peer's fault; the processor closes the connection) lives in ``protocol.errors``.
"""

from protocol.errors import ProtocolError

__all__ = ["BrokerError", "ConfigError", "ProtocolError", "Refusal", "RequestError", "StorageError", "UnknownOutcome"]


class BrokerError(Exception):
    """Base of the errors below."""


class Refusal(BrokerError):
    """The request is at fault: it is answered with an error code, and the connection lives on. Caught by the handler seam.

    Modules that know no protocol raise a subclass for each reason (``storage/refusals.py``, ``config/kafka_setting.py``); each
    service maps them to its own codes. ``message`` is for people and may be sent.
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
    """The machine is at fault (disk full, I/O error, corrupt file): never acknowledged, the partition goes offline.

    Caught by the handler and flusher seams.
    """


class UnknownOutcome(StorageError):
    """A change of the catalogue failed, and the disk does not let the broker find out whether it is on it. It is not in force
    now; the next start finds it whole or not at all."""


class ConfigError(BrokerError):
    """The operator is at fault: the broker refuses to start. The message is one sentence that says what to change."""
