"""Kafka's protocol as a ``Service`` of the reactor: requests to their API's handler.

``KafkaService.handle`` runs on a processor (inline) or a handler thread. Frames become requests in ``kafka_session.py`` or,
where clients log in, in ``sasl_session.py``.
"""

from typing import Any

from broker.errors import RequestError
from broker.kafka import sasl_session
from broker.kafka.api import Api, Call, KafkaRequest
from broker.kafka.context import KafkaContext
from broker.kafka.faulting.faulting import Begun, Faulting
from broker.kafka.kafka_session import KafkaSession
from broker.kafka.producing.appending import SLOW_FOR_S, RunRequest
from broker.kafka.sasl_session import LoginRules, SaslSession
from broker.log import get_logger
from broker.network.service import Connection, Handover, Outbox, Peer, Request, Violations
from broker.network.work import BULK, REQUEST_ENTRIES_MAX, Abandoned
from broker.runtime.threads import Lock
from protocol.errors import ProtocolError, TooManyEntries
from protocol.kafka.schema import control

_NOTHING = memoryview(b"")
_BULK_HANDOVER = Handover(BULK)


class KafkaService:
    """The ``Service`` of a Kafka listener."""

    def __init__(self, context: KafkaContext, apis: dict[int, Api], rules: LoginRules | None = None) -> None:
        """``apis``: the served APIs by key. ``rules``: clients log in."""
        self._context = context
        self._apis = apis
        self._violations = Violations(get_logger("kafka"))
        self._rules = rules
        self._faulting = Faulting(context)

    def connect(self, peer: Peer) -> KafkaSession:
        if self._rules is not None:
            return SaslSession(self._rules, self._context.clock.monotonic(), self._context)
        return KafkaSession(self._apis, self._context)

    def inline(self, request: Request) -> Any:
        assert isinstance(request, KafkaRequest)
        api = request.api
        size = len(request.frame) - request.body_offset
        if self._context.faults is not None and type(request) is not RunRequest and _has_logged_in(request):
            return Handover(api.lane_of(size), Begun())
        if size <= api.inline_max_bytes:
            if api.prepare is not None:
                metering = self._context.metering
                try:
                    if metering is not None:
                        return metering.prepare(api.prepare, self._context, request)
                    return api.prepare(self._context, request)
                except TooManyEntries:
                    return _BULK_HANDOVER
            if api.inline:
                return None
        return Handover(api.lane_of(size))

    def handle(self, request: Request, outbox: Outbox, prepared: Any) -> None:
        assert isinstance(request, KafkaRequest)
        if type(prepared) is Begun:
            try:
                going_on = self._faulting.begin(request, outbox, prepared)
            except ProtocolError as error:
                self._refuse(request, outbox, error)
                return
            if going_on is None:
                return
            outbox, prepared = going_on
        metering = self._context.metering
        metered = None if metering is None else metering.begin(request, outbox)
        if metered is not None:
            outbox = metered
        try:
            if request.api.handle_raw is not None:
                request.api.handle_raw(self._context, request, outbox, prepared)
            else:
                self._call(request, outbox, prepared)
        except ProtocolError as error:
            self._refuse(request, outbox, error)
        except Abandoned:
            outbox.close(request)
        finally:
            if metered is not None:
                metered.handled()

    def _refuse(self, request: KafkaRequest, outbox: Outbox, error: ProtocolError) -> None:
        # The processor closes the connection for this only if it handles the request itself.
        self._violations.report(request.connection, str(error), request.received_at, api=request.api.key.name)
        outbox.close(request)

    def _call(self, request: KafkaRequest, outbox: Outbox, call: Call | None) -> None:
        api = request.api
        assert api.handle is not None
        if getattr(request, "lane", None) is not None:
            request.work(self._context).checkpoint()  # it may have waited long in its lane
        if call is None:
            body = control.parse_request(api.key, request.api_version, request.body, REQUEST_ENTRIES_MAX)
            # A call may be parked for minutes, as a JoinGroup is. The parsed body is a copy, so the frame is not kept until then.
            request.frame = _NOTHING
            call = Call(self._context, request, outbox, body)
        else:
            call.resumed(outbox)
        try:
            fields = api.handle(self._context, call)
        except RequestError as error:
            if api.on_error is None:
                raise
            fields = api.on_error(call, error)
        if fields is not None:
            call.reply(fields)

    def held_up(self) -> None:
        context, now = self._context, self._context.clock.monotonic()
        context.appends_stuck_until = context.appends_slow_until = now + SLOW_FOR_S

    def writable(self, connection: Connection) -> None:
        """Nothing to do: every byte sent is an answer."""

    def stopping(self, connection: Connection) -> None:
        if connection.data is not None:
            connection.data.give_up()

    def disconnected(self, connection: Connection) -> None:
        self._context.throttling.forget(connection)
        # A fetch that waits for records, metadata that waits for topics, or the refusal of a login.
        parked = connection.data
        if parked is not None:
            parked.abandon()
            connection.data = None
        self._context.share.connection_closed(connection)
        session = connection.session
        assert isinstance(session, KafkaSession)
        if session.client_software is not None:
            self._context.client_software.leave(session.client_software)
        if isinstance(session, SaslSession):
            sasl_session.disconnected(self._context, session)


class NodesService(KafkaService):
    """The ``Service`` of the listener by which the nodes of a cluster ask each other."""

    def __init__(self, context: KafkaContext, apis: dict[int, Api], rules: LoginRules) -> None:
        super().__init__(context, apis, rules)
        self._lock = Lock()
        self._connections = 0

    def connect(self, peer: Peer) -> KafkaSession:
        session = super().connect(peer)
        assert isinstance(session, SaslSession)
        with self._lock:
            self._connections += 1
            session.number = self._connections
        return session


def _has_logged_in(request: Request) -> bool:
    session = request.connection.session
    assert isinstance(session, KafkaSession)
    return session.has_logged_in
