"""Pulsar's protocol as a ``Service`` of the reactor, which passes each command to its handler.

The commands of a connection are handled one after the other (``in_flight_max`` 1), on its processor or on a handler thread.
Messages, receipts and unsolicited commands are pushed.

Tests: tests/pulsar/test_service.py.
"""

from collections.abc import Mapping
from typing import Any

from broker.errors import Refusal, StorageError
from broker.log import get_logger
from broker.network.service import Connection, Handover, Outbox, Peer, Request, Violations
from broker.network.work import lane_of
from broker.pulsar.command import Call, Command
from broker.pulsar.connection import PulsarConnection, PulsarRequest, PulsarSession
from broker.pulsar.context import PulsarContext
from broker.pulsar.faulting import FAULTED, MET, Faulting
from broker.pulsar.producers.producer import OrderedOutbox
from broker.pulsar.producers.publishing import SLOW_FOR_S, lane_while_stuck
from broker.security.client_quotas import Kind
from protocol.errors import ProtocolError

# Consumers of a closed connection that leave on the processor. In a subscription with thousands of consumers, each takes up to
# 5 ms.
_AT_ONCE = 16


class PulsarService:
    """The ``Service`` of all listeners of Pulsar."""

    def __init__(self, context: PulsarContext, commands: Mapping[int, Command]) -> None:
        self._context = context
        self._commands = commands
        self._violations = Violations(get_logger("pulsar"))
        self._faulting = Faulting(context, self._carry_out)

    def connect(self, peer: Peer) -> PulsarSession:
        context = self._context
        deadline = context.clock.monotonic() + context.config.handshake_timeout_ms / 1000
        return PulsarSession(context.config.pulsar_max_message_bytes, deadline)

    def inline(self, request: Request) -> Any:
        assert isinstance(request, PulsarRequest)
        command = self._commands.get(request.type)
        if self._context.faults is not None and (request.type in MET or request.unparsed):
            return Handover(lane_of(len(request.frame), command.lane if command is not None else None), FAULTED)
        if request.unparsed:
            return Handover(lane_of(len(request.frame), command.lane if command is not None else None))
        if command is None:
            return None  # to be refused
        inline = command.inline
        if inline is True or (inline is not False and inline(self._context, request)):
            return None
        if request.may_wait and request.received_at < self._context.appends_stuck_until:
            return Handover(lane_while_stuck(request.connection.data, request.frame))
        return Handover(command.lane)

    def handle(self, request: Request, outbox: Outbox, prepared: Any) -> None:
        assert isinstance(request, PulsarRequest)
        connection = request.connection
        state = connection.data
        if state is None:
            state = connection.data = PulsarConnection(connection, OrderedOutbox(connection, outbox))
        state.heard_at = request.received_at
        call = Call(self._context, state, request, outbox)
        try:
            if request.unparsed:
                request.parse()
                call.body = request.body
            command = self._commands.get(request.type)
            if command is None or not (state.connected or command.before_connect):
                raise ProtocolError(f"a command of type {request.type} that is not for a broker, or not now")
            if prepared is FAULTED:
                self._faulting.handle(command, call)
            else:
                self._carry_out(command, call)
        except ProtocolError as error:
            # On a ProtocolError the processor closes the connection only if it handles the request itself.
            self._violations.report(connection, str(error), request.received_at)
            outbox.close(request)

    def _carry_out(self, command: Command, call: Call) -> None:
        """Raises ProtocolError."""
        try:
            if self._context.quotas.limits(Kind.REQUEST) and call.state.connected:
                self._handle_timed(command, call)
            else:
                command.handle(call)
        except (Refusal, StorageError) as error:
            if call.answered:
                raise
            if command.on_error is not None:
                command.on_error(call, error)
            else:
                call.fail(error)

    def _handle_timed(self, command: Command, call: Call) -> None:
        """The time taken counts for the client's request_percentage. A debt delays the connection, not the answer."""
        quotas, clock = self._context.quotas, self._context.clock
        began = clock.monotonic()
        try:
            command.handle(call)
        finally:
            now = clock.monotonic()
            call.hold(now, quotas.take(Kind.REQUEST, call.connection.principal.name, (now - began) * 100, now))

    def held_up(self) -> None:
        context, now = self._context, self._context.clock.monotonic()
        context.appends_stuck_until = context.appends_slow_until = now + SLOW_FOR_S

    def writable(self, connection: Connection) -> None:
        state = connection.data
        if state is not None:
            for consumer in list(state.consumers.values()):
                consumer.writable()
            self._context.watches.writable(state)

    def stopping(self, connection: Connection) -> None:
        """Nothing to do: no command waits for an event."""

    def disconnected(self, connection: Connection) -> None:
        self._context.throttling.forget(connection)
        state = connection.data
        if state is None:
            return
        producers, consumers = state.close()
        if state.expiry is not None:
            state.expiry.cancel()
        self._context.keep_alive.forget(state)
        self._context.watches.forget(state)
        self._context.liveness.lost(state)
        for producer in producers:
            producer.disconnected()
        for consumer in consumers[:_AT_ONCE]:
            consumer.disconnected()
        for consumer in consumers[_AT_ONCE:]:
            consumer.disconnected_later()
