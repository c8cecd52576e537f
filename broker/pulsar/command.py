"""The interface between the service and the handlers of commands.

Each module of ``broker.pulsar.handlers`` defines ``Command`` values. A handler gets a ``Call`` and answers it once: ``reply``,
``fail`` or ``done``. A Refusal or a StorageError that leaves the handler becomes an ERROR with the request's id; a ProtocolError
closes the connection.

Tests: tests/pulsar/test_service.py.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs

from broker.errors import Refusal, StorageError
from broker.network.service import Connection, Outbox, Part
from broker.pulsar.connection import PulsarConnection, PulsarRequest, PulsarSession
from broker.pulsar.context import PulsarContext
from broker.pulsar.refusals import code_of
from protocol.pulsar.frames import FIELDS, write_command
from protocol.pulsar.pulsar_pb2 import BaseCommand, CommandError, CommandSuccess

Type = BaseCommand.Type

__all__ = ["Call", "Command", "PulsarRequest", "Type", "error_command"]


class Call:
    """A command, and its single answer, which may come later and from any thread."""

    __slots__ = ("_answered", "_outbox", "body", "context", "request", "state")

    def __init__(self, context: PulsarContext, state: PulsarConnection, request: PulsarRequest, outbox: Outbox) -> None:
        self.context = context
        self.state = state
        self.body = request.body  # CommandSubscribe, for example
        self.request = request
        self._outbox = outbox
        self._answered = False

    @property
    def connection(self) -> Connection:
        return self.request.connection

    @property
    def frame(self) -> memoryview:
        """The bytes of the command, until it is answered or the handler returns."""
        return self.request.frame

    @property
    def outbox(self) -> Outbox:
        return self._outbox

    @property
    def session(self) -> PulsarSession:
        session = self.request.connection.session
        assert isinstance(session, PulsarSession)
        return session

    @property
    def received_at(self) -> float:
        """Clock.monotonic() s."""
        return self.request.received_at

    def send(self, parts: Sequence[Part]) -> None:
        """Answer with these bytes, which form whole frames."""
        self._once()
        self._outbox.send(self.request, parts)

    def reply(self, type: int, command: Any) -> None:
        """Answer with this command."""
        self.send([write_command(type, command)])

    def reply_and_close(self, type: int, command: Any) -> None:
        """Answer with this command, and close the connection."""
        self.send([write_command(type, command)])
        self._outbox.close(self.request)

    def success(self) -> None:
        """Answer SUCCESS."""
        self.reply(Type.SUCCESS, CommandSuccess(request_id=self.body.request_id))

    def fail(self, error: Refusal | StorageError) -> None:
        """Answer ERROR."""
        self.reply(Type.ERROR, error_command(self.body.request_id, error))

    def done(self) -> None:
        """The command has no answer."""
        self._once()
        self._outbox.no_op(self.request)

    def close(self) -> None:
        """Close the connection after its queued bytes have been sent."""
        self._once()
        self._outbox.close(self.request)

    def hold(self, now: float, seconds: float) -> None:
        """Read nothing from the connection for ``seconds``. Of several holds the first counts. Any thread."""
        if seconds:
            until = now + seconds
            self.state.heard_at = until  # nothing is read from it before
            begin = partial(self.context.throttling.begin, self.connection, self._outbox, until)
            self._outbox.call(self.connection, begin)

    @property
    def answered(self) -> bool:
        return self._answered

    def _once(self) -> None:
        assert not self._answered, "a call was answered twice"
        self._answered = True


def error_command(request_id: int, error: Refusal | StorageError) -> CommandError:
    return CommandError(request_id=request_id, error=code_of(error), message=str(error) or type(error).__name__)


@attrs.frozen
class Command:
    """A command and its handler.

    ``handle(call)`` runs on the connection's processor if ``inline`` is true, or is a function that returns true for the context
    and the request; it must not block then. Otherwise it runs on a handler thread, through ``lane`` (see ``broker.network.work``)
    if that is set. ``on_error`` answers a Refusal or StorageError; by default with ERROR.
    """

    type: int
    handle: Callable[[Call], None]
    inline: bool | Callable[[PulsarContext, PulsarRequest], bool] = True
    lane: str | None = None
    on_error: Callable[[Call, Refusal | StorageError], None] | None = None
    before_connect: bool = False  # may come before CONNECTED

    @property
    def name(self) -> str:
        return FIELDS[self.type]
