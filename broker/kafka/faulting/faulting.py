"""Faults on demand for Kafka's requests.

``KafkaContext.faults`` is None as long as there is no fault. Otherwise every request of a client that has logged in, each Produce
by itself, goes to a handler and comes here first: ``begin`` asks which fault it meets (``broker.faults``), and returns the outbox
with which it is handled, or None if the fault has dealt with it.

| kind | the work | the answer |
|---|---|---|
| observe | done | as always |
| delay | done | ``delay_ms`` later |
| throttle | done | with a throttle time of ``delay_ms``, for which the connection is muted (KIP-219) |
| error | done for the other entities only | has the error code for those that match |
| error_after | done | has the error code for the entities that match |
| lost | done | never sent, nor any later one: the connection stays open and is no longer read from |
| reset, reset_after | not done; done | none: the connection is closed |
| those of ``changes.py`` | done, after the broker was changed | as always |

An error code goes where the API's answer has it: to the partition, topic or group, else to the whole answer. An answer
that has errors only for what it lists, such as Metadata about all topics, is made first and then lists them with the code.
Produce with ``acks=0`` has no answer: an error closes the connection, as Kafka does.

A handler's thread, and whichever answers.

Tests: tests/kafka/faulting/test_faulting.py.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from broker.errors import BrokerError
from broker.faults.fault import Entity, Fault, Kind, Passing, Vocabulary
from broker.faults.faults import Taken
from broker.kafka.api import KafkaRequest
from broker.kafka.context import KafkaContext
from broker.kafka.faulting.changes import KINDS, Change, Changes, changes_of
from broker.kafka.faulting.messages import Located, entities_of, names_of, put_error, put_everywhere, without
from broker.log import get_logger
from broker.network.service import Connection, Handover, Outbox, Part, Request
from broker.network.work import ADMIN, REQUEST_ENTRIES_MAX, RESPONSE_MAX_BYTES
from broker.runtime.disk import FileRegion
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.headers import parse_request_header
from protocol.kafka.schema import control
from protocol.kafka.throttle_time import with_throttle_time

log = get_logger("kafka")

_WITH_ERROR, _WITH_DELAY = frozenset({"error"}), frozenset({"delay_ms"})
# Not of Kafka: their messages have no schema.
_OWN: Final = (ApiKey.END_TXNS, ApiKey.BACKUP)
_FOR_EVER_S: Final = 1e8  # three years; timers cannot wait for ever
_LOGIN: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


def vocabulary() -> Vocabulary:
    return Vocabulary(
        kinds={
            "observe": Kind(passes=True),
            "delay": Kind(_WITH_DELAY),
            "throttle": Kind(_WITH_DELAY),
            "error": Kind(_WITH_ERROR),
            "error_after": Kind(_WITH_ERROR),
            "lost": Kind(),
            "reset": Kind(),
            "reset_after": Kind(),
            **KINDS,
        },
        apis=tuple(key.name for key in ApiKey if key not in _LOGIN),
        errors=tuple(code.name.upper() for code in ErrorCode if code),
        names_of=_names_of,
    )


def _names_of(api: str) -> frozenset[str]:
    key = ApiKey[api]
    return frozenset() if key in _OWN else names_of(key)


class Begun:
    """``prepared`` of a request that goes to ``Faulting.begin``: for the first time, or again after a handler has handed
    it over, with the answer that the fault wants and what the handler has prepared; or for the changes of the broker that are
    left to be made before its work (none: all are made)."""

    __slots__ = ("answer", "changes", "prepared")

    def __init__(
        self, answer: "Answer | None" = None, prepared: Any = None, changes: Sequence[Change] | None = None
    ) -> None:
        self.answer = answer
        self.prepared = prepared
        self.changes = changes


# What becomes of an answer: (outbox, request, its parts; None if the request gets none).
Answer = Callable[[Outbox, KafkaRequest, Sequence[Part] | None], None]


class Faulting:
    """The faults of all Kafka listeners."""

    def __init__(self, context: KafkaContext) -> None:
        self._context = context
        self._changes = Changes(context)

    def begin(self, request: KafkaRequest, outbox: Outbox, begun: Begun) -> tuple[Outbox, Any] | None:
        """The outbox and ``prepared`` for the request's handler; None if it needs no handler. Raises ProtocolError."""
        if begun.answer is not None:
            return Faulted(outbox, begun.answer), begun.prepared
        if begun.changes is not None:
            return self._change(request, outbox, begun.changes)
        api = request.api
        body, located = None, None
        if api.key not in _OWN and api.min_version <= request.api_version <= api.max_version:
            body = control.parse_request(api.key, request.api_version, request.body, REQUEST_ENTRIES_MAX)
            located = entities_of(api.key, body, self._name_of)
        faults = self._context.faults  # the last one may have ended since the request arrived
        taken = None if faults is None else faults.take(self._passing(request, located))
        if taken is None:
            return outbox, None
        if taken.fault.kind in KINDS:
            outbox.hand_over(request, Handover(ADMIN, Begun(changes=changes_of(taken.fault, taken.entities, body))))
            return None
        matching = [] if located is None else [each for each in located if each.entity in taken.entities]
        answer = self._carry_out(taken, request, outbox, body, matching)
        return None if answer is None else (Faulted(outbox, answer), None)

    def _change(self, request: KafkaRequest, outbox: Outbox, changes: Sequence[Change]) -> tuple[Outbox, Any] | None:
        """Make the first of the changes; the request comes again for the others, and then for its work."""
        if not changes:
            return outbox, None
        change, left = changes[0], changes[1:]
        lane = ADMIN if left else request.api.lane_of(len(request.frame) - request.body_offset)

        def done(error: BrokerError | None) -> None:
            if error is not None:
                log.warning("fault_did_not_happen", fault=change.fault.as_json(), error=str(error))
            outbox.hand_over(request, Handover(lane, Begun(changes=left)))

        self._changes.happen(change, done)
        return None

    def _passing(self, request: KafkaRequest, located: Sequence[Located] | None) -> Passing:
        entities = (Entity(),) if located is None else tuple(dict.fromkeys(each.entity for each in located))
        return Passing(
            self._context.clock.time_ms(),
            request.api.key.name,
            request.client_id,
            str(request.connection.principal),
            entities,
            "kafka",
        )

    def _name_of(self, topic_id: Any) -> str | None:
        info = self._context.logs.topic_by_id(topic_id)
        return None if info is None else info.name

    def _carry_out(
        self, taken: Taken, request: KafkaRequest, outbox: Outbox, body: Any, matching: Sequence[Located]
    ) -> Answer | None:
        """What shall become of the answer, or None if the request is dealt with."""
        fault = taken.fault
        if fault.kind == "reset" or (fault.kind == "error" and body is None):
            outbox.close(request)
            return None
        if fault.kind == "error":
            return self._error(fault, request, outbox, body, matching)
        seconds = (fault.delay_ms or 0) / 1000
        answers: Mapping[str, Answer] = {
            "delay": partial(self._delay, seconds),
            "throttle": partial(self._throttle, seconds),
            "error_after": partial(self._rewrite, self._code(fault), matching),
            "lost": self._lose,
            "reset_after": _reset,
        }
        return answers[fault.kind]

    # -- error codes --------------------------------------------------------------------------------------------------

    @staticmethod
    def _code(fault: Fault) -> int:
        return 0 if fault.error is None else ErrorCode[fault.error.lower()]

    def _error(
        self, fault: Fault, request: KafkaRequest, outbox: Outbox, body: Any, matching: Sequence[Located]
    ) -> Answer | None:
        code = self._code(fault)
        if request.api.key == ApiKey.PRODUCE and not body.acks:
            outbox.close(request)
            return None
        left = without(body, matching)
        if left is None:
            fields: dict[str, Any] = {}
            if _put(fields, request, matching, code):
                self._send(outbox, request, fields)
                return None
        else:
            api, version = request.api.key, request.api_version
            frame = control.encode_request(api, version, request.correlation_id, request.client_id, left)
            request.frame = memoryview(bytearray(frame))
            request.body_offset = parse_request_header(request.frame)[-1]
        return partial(self._rewrite, code, matching)

    def _rewrite(
        self,
        code: int,
        located: Collection[Located],
        outbox: Outbox,
        request: KafkaRequest,
        parts: Sequence[Part] | None,
    ) -> None:
        """Send the answer with this code for these entities."""
        if parts is None or request.api.key in _OWN:
            outbox.close(request)
            return
        key, version = request.api.key, request.api_version
        _, answer = control.parse_response(key, version, b"".join(map(_bytes_of, parts)))
        fields = dataclasses.asdict(answer)
        if not _put(fields, request, located, code):
            put_everywhere(fields, control.response_class(key, version), code)
        self._send(outbox, request, fields)

    def _send(self, outbox: Outbox, request: KafkaRequest, fields: Mapping[str, Any]) -> None:
        context, api = self._context, request.api
        count = partial(context.errors.add_all, api.label)
        version, correlation_id = request.api_version, request.correlation_id
        outbox.send(
            request, [control.encode_response(api.key, version, correlation_id, fields, RESPONSE_MAX_BYTES, count)]
        )

    # -- answers that come late or never ------------------------------------------------------------------------------

    def _delay(self, seconds: float, outbox: Outbox, request: KafkaRequest, parts: Sequence[Part] | None) -> None:
        context = self._context
        answer = partial(_answer, outbox, request, parts)
        context.timer.at(context.clock.monotonic() + seconds, answer)

    def _throttle(self, seconds: float, outbox: Outbox, request: KafkaRequest, parts: Sequence[Part] | None) -> None:
        context, connection = self._context, request.connection
        until = context.clock.monotonic() + seconds
        outbox.call(connection, partial(context.throttling.begin, connection, outbox, until))
        if parts is not None:
            parts = with_throttle_time(parts, request.api.key, request.api_version, round(seconds * 1000))
        _answer(outbox, request, parts)

    def _lose(self, outbox: Outbox, request: KafkaRequest, _parts: Sequence[Part] | None) -> None:
        """Kafka answers a connection in order, so none of the client's later requests is answered, either. It is muted as if it
        were throttled and not as if its request were in flight, for which a stopping broker would wait."""
        context, connection = self._context, request.connection
        until = context.clock.monotonic() + _FOR_EVER_S
        outbox.call(connection, partial(context.throttling.begin, connection, outbox, until))
        outbox.no_op(request)


def _put(fields: dict[str, Any], request: KafkaRequest, located: Collection[Located], code: int) -> bool:
    cls = control.response_class(request.api.key, request.api_version)
    placed = [put_error(fields, cls, each, code) for each in located]  # all of them, also after one without a place
    return all(placed)


def _bytes_of(part: Part) -> Any:
    return part.read() if isinstance(part, FileRegion) else part


def _answer(outbox: Outbox, request: KafkaRequest, parts: Sequence[Part] | None) -> None:
    if parts is None:
        outbox.no_op(request)
    else:
        outbox.send(request, parts)


def _reset(outbox: Outbox, request: KafkaRequest, _parts: Sequence[Part] | None) -> None:
    outbox.close(request)


class Faulted:
    """The outbox for a request that has met a fault. An ``Outbox``."""

    __slots__ = ("_answer", "_inner")

    def __init__(self, inner: Outbox, answer: Answer) -> None:
        self._inner = inner
        self._answer = answer

    def send(self, request: Request, parts: Sequence[Part]) -> None:
        assert isinstance(request, KafkaRequest)
        self._answer(self._inner, request, parts)

    def no_op(self, request: Request) -> None:
        assert isinstance(request, KafkaRequest)
        self._answer(self._inner, request, None)

    def close(self, request: Request) -> None:
        self._inner.close(request)

    def hand_over(self, request: Request, handover: Handover) -> None:
        self._inner.hand_over(request, Handover(handover.lane, Begun(self._answer, handover.prepared)))

    def push(self, connection: Connection, parts: Sequence[Part]) -> None:
        self._inner.push(connection, parts)

    def call(self, connection: Connection, work: Callable[[], None]) -> None:
        self._inner.call(connection, work)

    def start_throttling(self, connection: Connection) -> None:
        self._inner.start_throttling(connection)

    def end_throttling(self, connection: Connection) -> None:
        self._inner.end_throttling(connection)
