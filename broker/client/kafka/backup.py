"""Asks a broker to pin the files of a backup, to keep them, and to release them (``protocol/kafka/messages/backup.py``).

Used by one thread.

Tests: tests/process/test_backup.py.
"""

import attrs

from broker.client.kafka.connection import Connection
from broker.client.kafka.errors import BrokerAnswerError, UnsupportedVersionError, code_name
from broker.client.kafka.routing import Routing
from broker.runtime.dial import pause
from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import backup
from protocol.kafka.messages.backup import Action, BackupResponse

# To pin a backup of many thousand partitions takes a few seconds.
_BEGIN_MS = 120_000
_TRIES = 10
_PAUSE_S = 0.5


@attrs.frozen
class Pinned:
    backup_id: str
    directory: str  # on the broker's machine


class BackupClient:
    """Of the one broker at the configured address."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    def begin(self) -> Pinned:
        """Raises BrokerAnswerError, UnsupportedVersionError, LinkError, TimedOutError."""
        for left in reversed(range(_TRIES)):
            try:
                answer = self._ask(Action.BEGIN, "", _BEGIN_MS)
            except BrokerAnswerError as error:
                if error.code != ErrorCode.throttling_quota_exceeded or not left:
                    raise
                pause(_PAUSE_S)  # another one was begun a moment ago
            else:
                return Pinned(answer.backup_id, answer.directory)
        raise AssertionError("the last try returns or raises")

    def renew(self, pinned: Pinned) -> None:
        self._ask(Action.RENEW, pinned.backup_id, self._routing.config.request_timeout_ms)

    def end(self, pinned: Pinned) -> None:
        self._ask(Action.END, pinned.backup_id, self._routing.config.request_timeout_ms)

    def _ask(self, action: Action, backup_id: str, timeout_ms: float) -> BackupResponse:
        with self._routing.limit.within(timeout_ms):
            connection = self._routing.any_connection()
            if backup.FEATURE not in connection.features:
                raise UnsupportedVersionError(
                    f"The broker at {connection.where} cannot be backed up in this way (it lacks {backup.FEATURE})."
                )
            answer = self._exchange(connection, action, backup_id, timeout_ms)
        if answer.error:
            raise BrokerAnswerError(
                answer.message or f"The broker refuses the backup: {code_name(answer.error)}.", answer.error
            )
        return answer

    def _exchange(self, connection: Connection, action: Action, backup_id: str, timeout_ms: float) -> BackupResponse:
        correlation_id = connection.next_id()
        deadline = connection.deadline(timeout_ms)
        request = backup.request(correlation_id, self._routing.config.client_id, action, backup_id)
        connection.send([request], deadline)
        frame = connection.receive(deadline, ApiKey.BACKUP.name)
        try:
            answered, answer = backup.parse_response(frame)
        except ProtocolError as error:
            raise connection.unreadable(ApiKey.BACKUP.name, error) from None
        connection.check_id(answered, correlation_id)
        return answer
