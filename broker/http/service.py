"""HTTP as a ``Service`` of the reactor: finds a request's route, decides where it runs, and writes its answer.

Faulty requests and routes that do not block are handled on the connection's processor; blocking routes go to the
handlers through the admin lane. A connection takes one request at a time, so pipelined requests are answered in order.
An answer that waits (``Answer.later``) occupies no thread: the timer asks for it. Errors are JSON in Pulsar's form:
``{"reason": "..."}``.

Tests: tests/http/test_service.py, tests/faults/test_http.py, tests/http/api/test_faults.py.
"""

from collections.abc import Callable, Collection
from email.utils import formatdate
from functools import partial
from typing import Any, TypeVar

import attrs
import h11

from broker.errors import StorageError
from broker.http import targets
from broker.http.chunks import Fault, Unreadable
from broker.http.router import MethodNotAllowed, Router
from broker.http.session import HttpRequest, HttpSession
from broker.http.streams import Stream, Streams
from broker.http.targets import parse_target
from broker.log import EventLimit, get_logger
from broker.network.service import Connection, Handover, Outbox, Peer, Request, Violations
from broker.network.work import Abandoned, Work
from broker.runtime import Runtime
from broker.runtime.limits import Allowance
from broker.runtime.threads import Event
from broker.runtime.timers import Timer
from broker.web.routes import UNAVAILABLE, Answer, Call, HttpError, Route, json_answer

log = get_logger("http")

_T = TypeVar("_T")

# Bytes after an unreadable request are read and dropped (see `session.py`) until none have come for this long (s), for
# at most this many rounds.
_LINGER_S = 1.0
_LINGER_ROUNDS = 10
# How many answers are delayed at a time. Beyond that, the connection is closed at once.
_DELAYED_MAX = 1000
# How many answers wait at a time, and how often (s) each is asked whether it is ready.
WAITING_MAX = 64
_ASKED_EVERY_S = 0.02
_FAILED = 500
# Unless their route says otherwise, answers may be confidential, so caches must not keep them and browsers must not
# guess their type.
_DEFAULTS = (("cache-control", "no-store"), ("x-content-type-options", "nosniff"))
# Answers with these statuses never have a body.
_BODILESS = (204, 304)


@attrs.frozen
class HttpServiceSettings:
    body_max: int  # bytes
    timeout_s: float
    hosts: Collection[str]  # allowed in the header Host, besides loopback and the broker's address


@attrs.frozen
class _Decision:
    """The route of a request, and the route's arguments."""

    route: Route
    names: Any
    query: Any


class HttpService:
    """The service of one listener. All listeners have the same routes."""

    def __init__(
        self,
        router: Router,
        settings: HttpServiceSettings,
        runtime: Runtime,
        timer: Timer,
        stopping: Event,
        streams: Streams,
        waiting: Allowance,
    ) -> None:
        """``stopping``: set when the broker is about to stop. ``streams``, ``waiting``: of all listeners; answers that wait take
        one each."""
        self._router = router
        self._settings = settings
        self._clock = runtime.clock
        self._timer = timer
        self._stopping = stopping
        self._streams = streams
        self._violations = Violations(log)
        self._failures = EventLimit()
        self._delayed = Allowance(_DELAYED_MAX)
        self._waiting = waiting

    def connect(self, peer: Peer) -> HttpSession:
        return HttpSession(self._settings.body_max, self._settings.timeout_s, self._clock.monotonic)

    def inline(self, request: Request) -> Any:
        """None, a `_Decision`, or the HttpError of a request without a route."""
        assert isinstance(request, HttpRequest)
        if request.dropped or request.proceed or request.fault is not None:
            return None
        try:
            decision = self._decide(request)
        except HttpError as error:
            return error
        assert request.head is not None
        return Handover(decision.route.lane, decision) if decision.route.blocking or request.head.chunked else decision

    def handle(self, request: Request, outbox: Outbox, prepared: Any) -> None:
        assert isinstance(request, HttpRequest)
        if request.dropped:
            outbox.no_op(request)
        elif request.proceed:
            assert request.head is not None
            go_on = request.head.parser.send(h11.InformationalResponse(status_code=100, headers=[]))
            outbox.send(request, [go_on or b""])
        elif request.fault is not None:
            self._answer_fault(request, outbox, request.fault)
        else:
            try:
                answer = self._answer(request, prepared)
            except Abandoned:
                outbox.close(request)
            except Unreadable as error:
                self._answer_fault(request, outbox, error.fault)
            else:
                if answer.later is None:
                    self._send_in_time(request, outbox, answer)
                else:
                    self._wait(request, outbox, prepared.route, answer)

    def held_up(self) -> None:
        """No request of it may wait."""

    def writable(self, connection: Connection) -> None:
        if isinstance(connection.data, Stream):
            connection.data.drain()

    def stopping(self, connection: Connection) -> None:
        if isinstance(connection.data, Stream):
            connection.data.end()

    def disconnected(self, connection: Connection) -> None:
        if isinstance(connection.data, Stream):
            connection.data.disconnected()
            connection.data = None

    # -- deciding -----------------------------------------------------------------------------------------------------

    def _decide(self, request: HttpRequest) -> _Decision:
        head = request.head
        assert head is not None
        target = parse_target(head.event.target)
        method = head.event.method.decode("ascii")
        of_page = method == "GET" and list(target.segments) == [""]
        local = request.connection.peer.local[0]
        targets.check(head.headers, target.authority, local, self._settings.hosts, of_page=of_page)
        route, names = self._router.match(method, target.segments)
        return _Decision(route, names, target.query)

    def _answer(self, request: HttpRequest, prepared: _Decision | HttpError) -> Answer:
        if isinstance(prepared, HttpError):
            return _refusal(prepared)
        head, connection = request.head, request.connection
        assert head is not None
        call = Call(
            method=head.event.method.decode("ascii"),
            names=prepared.names,
            query=prepared.query,
            headers=head.headers,
            body=request.body(),
            peer=connection.peer,
            principal=connection.principal,
            received_at=request.received_at,
            work=Work(lambda: connection.closed or self._stopping.is_set()),
        )
        return self._guarded(prepared.route, partial(prepared.route.handler, call))

    def _guarded(self, route: Route, ask: Callable[[], _T]) -> _T | Answer:
        try:
            return ask()
        except HttpError as error:
            return _refusal(error)
        except Abandoned:
            raise
        except Exception as error:  # the seam: a route's bug costs one answer
            self._log_failure(route, error)
            return json_answer({"reason": "The broker could not do this; its log says why."}, _FAILED)

    def _log_failure(self, route: Route, error: Exception) -> None:
        unlogged = self._failures.take(self._clock.monotonic())
        if unlogged is None:
            return
        where = f"{route.method} {route.pattern}"
        if isinstance(error, StorageError):
            log.error("http_request_failed", route=where, error=str(error), unlogged_before=unlogged)
        else:
            log.error("http_request_failed", route=where, exc_info=error, unlogged_before=unlogged)

    def _send_in_time(self, request: HttpRequest, outbox: Outbox, answer: Answer) -> None:
        if not answer.delay_s:
            self._send(request, outbox, answer)
        elif self._stopping.is_set() or not self._delayed.take(1):
            outbox.close(request)
        else:

            def send() -> None:
                self._delayed.give_back(1)
                self._send(request, outbox, answer)

            self._timer.at(self._clock.monotonic() + answer.delay_s, send)

    def _wait(self, request: HttpRequest, outbox: Outbox, route: Route, waiting: Answer) -> None:
        """Without a thread: the timer asks for the answer until there is one, or until nobody can get it any more."""
        if not self._waiting.take(1):
            refusal = json_answer({"reason": "Too many requests wait already; try again later."}, UNAVAILABLE)
            self._send(request, outbox, refusal)
            return
        ask = waiting.later
        assert ask is not None

        def look() -> None:
            if self._stopping.is_set() or request.connection.closed:
                self._waiting.give_back(1)
                outbox.close(request)
                return
            answer = self._guarded(route, ask)
            if answer is None:
                self._timer.at(self._clock.monotonic() + _ASKED_EVERY_S, look)
                return
            self._waiting.give_back(1)
            self._send_in_time(request, outbox, attrs.evolve(answer, delay_s=max(answer.delay_s, waiting.delay_s)))

        look()

    # -- answering ----------------------------------------------------------------------------------------------------

    def _send(self, request: HttpRequest, outbox: Outbox, answer: Answer) -> None:
        assert request.head is not None
        parser = request.head.parser
        bodiless = request.head.event.method == b"HEAD"
        if answer.stream is not None and not bodiless:
            outbox.call(request.connection, partial(self._begin_stream, request, outbox, answer))
            return
        parts = _response(parser, answer, self._clock.time_ms(), bodiless)
        closes = parser.our_state is h11.MUST_CLOSE
        outbox.send(request, parts)
        if closes:
            outbox.close(request)

    def _begin_stream(self, request: HttpRequest, outbox: Outbox, answer: Answer) -> None:
        """On the connection's processor."""
        assert request.head is not None
        assert answer.stream is not None
        connection, parser = request.connection, request.head.parser
        if self._stopping.is_set() or connection.finished:
            outbox.close(request)
            return
        stream = self._streams.open(request, outbox, parser, answer.watcher, of_cluster=answer.of_cluster)
        if stream is None:
            refusal = json_answer({"reason": "There are too many event streams; try again later."}, UNAVAILABLE)
            self._send(request, outbox, refusal)
            return
        connection.data = stream
        headers = [
            ("date", formatdate(self._clock.time_ms() / 1000, usegmt=True)),
            *_DEFAULTS,
            *answer.headers,
            ("content-type", answer.content_type),
            ("connection", "close"),
        ]
        stream.begin(parser.send(h11.Response(status_code=answer.status, headers=headers)) or b"")
        answer.stream(stream)

    def _answer_fault(self, request: HttpRequest, outbox: Outbox, fault: Fault) -> None:
        connection = request.connection
        # The event has no bytes of the client, since they may be a secret.
        self._violations.report(connection, f"a request that is answered with {fault.status}", request.received_at)
        answer = json_answer({"reason": fault.reason}, fault.status)
        answer = attrs.evolve(answer, headers=(("connection", "close"),))
        # A new parser: the request's parser may not be able to answer any more.
        parser = h11.Connection(h11.SERVER)
        outbox.send(request, _response(parser, answer, self._clock.time_ms()))
        if request.fault is None:  # it was complete, so there is nothing to drop
            outbox.close(request)
        else:
            self._linger(request, outbox, _LINGER_ROUNDS)

    def _linger(self, request: Request, outbox: Outbox, rounds: int) -> None:
        """Close the connection when its client has stopped sending. On the connection's processor."""
        connection = request.connection
        session = connection.session
        assert isinstance(session, HttpSession)
        before = session.dropped_bytes

        def look_again() -> None:
            if rounds > 1 and session.dropped_bytes > before:
                self._linger(request, outbox, rounds - 1)
            else:
                outbox.close(request)

        self._timer.at(self._clock.monotonic() + _LINGER_S, partial(outbox.call, connection, look_again))


def _refusal(error: HttpError) -> Answer:
    answer = json_answer({"reason": error.message}, error.status)
    if isinstance(error, MethodNotAllowed):
        return attrs.evolve(answer, headers=(("allow", ", ".join(error.allowed)),))
    return attrs.evolve(answer, delay_s=error.delay_s) if error.delay_s else answer


def _response(parser: h11.Connection, answer: Answer, now_ms: int, bodiless: bool = False) -> list[bytes]:
    added = {name for name, _ in answer.headers}
    defaults = [(name, value) for name, value in _DEFAULTS if name not in added]
    headers = [("date", formatdate(now_ms / 1000, usegmt=True)), *defaults, *answer.headers]
    bodiless = bodiless or answer.status in _BODILESS
    if answer.status not in _BODILESS:
        headers += [("content-type", answer.content_type), ("content-length", str(len(answer.body)))]
    parts = [parser.send(h11.Response(status_code=answer.status, headers=headers))]
    if answer.body and not bodiless:
        parts.append(parser.send(h11.Data(data=answer.body)))
    parts.append(parser.send(h11.EndOfMessage()))
    return [part for part in parts if part]
