"""How an API of Kafka plugs into the service.

Each module of ``broker.kafka.handlers`` exports ``API``. Most are *control* APIs: ``protocol.kafka.schema.control`` parses the
body and encodes the reply, and the handler returns the reply's fields for a parsed request. The few on the hot path are *raw*:
they get the frame and send bytes themselves.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeVar

import attrs

from broker.errors import RequestError
from broker.kafka.context import KafkaContext
from broker.kafka.metering import Metered
from broker.log import get_logger
from broker.metrics.tracing import LOG_CALLS_MAX, LogCall
from broker.network.service import Handover, Outbox, Peer, Request
from broker.network.work import INLINE_BYTES, RESPONSE_MAX_BYTES, Abandoned, Work, lane_of
from broker.security.principal import Principal
from protocol.errors import MessageTooLarge
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.schema import control
from protocol.kafka.schema.control import Counted

T = TypeVar("T")
Fields = Mapping[str, Any]
log = get_logger("kafka")


class KafkaRequest(Request):
    """A request whose header has been read; the body is ``frame[body_offset:]``."""

    __slots__ = ("api", "api_version", "body_offset", "client_id", "correlation_id", "in_debt", "kind", "log_calls")

    api: "Api"
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int
    in_debt: bool  # only set for a Produce request that was counted against a quota: it left a debt
    log_calls: list[LogCall]  # only while requests are traced, and only for requests that append or fetch

    @property
    def body(self) -> memoryview:
        return self.frame[self.body_offset :]

    def note_log_call(self, call: LogCall) -> None:
        if not hasattr(self, "log_calls"):
            self.log_calls = []
        if len(self.log_calls) < LOG_CALLS_MAX:
            self.log_calls.append(call)

    def work(self, context: KafkaContext) -> Work:
        """The work on this request, which is abandoned when its connection has closed or the broker stops."""
        connection = self.connection
        return Work(lambda: connection.closed or context.stopping)


class Call:
    """A control request: the parsed body, the work on it, and its one reply."""

    __slots__ = ("_context", "_outbox", "_replied", "_request", "body", "progress")

    def __init__(self, context: KafkaContext, request: KafkaRequest, outbox: Outbox, body: Any) -> None:
        self._context = context
        self._request = request
        self._outbox = outbox
        self._replied = False
        self.body = body
        self.progress: Any = None  # the progress of a handler that continues in a lane

    @property
    def work(self) -> Work:
        """The work on this request, for handlers that take long enough to ask whether the answer is still needed."""
        return self._request.work(self._context)

    @property
    def api_version(self) -> int:
        return self._request.api_version

    @property
    def client_id(self) -> str | None:
        return self._request.client_id

    @property
    def client_host(self) -> str:
        return self._request.connection.peer.host

    @property
    def peer(self) -> Peer:
        return self._request.connection.peer

    @property
    def principal(self) -> Principal:
        """Who the client is."""
        return self._request.connection.principal

    @property
    def connection(self) -> Any:
        """The identity of the connection, to distinguish its calls from those of others."""
        return self._request.connection

    @property
    def received_at(self) -> float:
        """Clock.monotonic() of its arrival."""
        return self._request.received_at

    def array(self, items: Collection[T], make: Callable[[T], Any]) -> Counted:
        """An array of the reply, for everything that a request may name often. The elements ``make(item)`` are created singly
        while the reply is written. If the work is abandoned meanwhile, the reply is given up."""
        return Counted(len(items), map(make, self.work.each(items)))

    def is_in(self, lane: str) -> bool:
        return self._request.lane == lane

    def continue_in(self, lane: str) -> None:
        """Have the API's ``handle`` called again, with this call, on a handler of that lane, behind the requests there: it
        has discovered that the request is slow, or has had its turn. It then returns None. Not on a processor."""
        self._outbox.hand_over(self._request, Handover(lane, self))

    def resumed(self, outbox: Outbox) -> None:
        """The call is handled again, after ``continue_in``."""
        self._outbox = outbox

    def check_mutations(self, strict_since: int) -> None:
        """Raises RequestError if the client has used up its quota for changing partitions. Requests of versions before
        ``strict_since``, which have no error for that, are throttled instead."""
        if type(self._outbox) is Metered and self.api_version >= strict_since:
            self._outbox.check_mutations()

    def mutated(self, partitions: int, strict_since: int) -> None:
        """So many partitions were created or deleted."""
        if type(self._outbox) is Metered:
            self._outbox.mutated(partitions, throttle=self.api_version < strict_since)

    def reply(self, fields: Fields) -> None:
        """Send the reply: once, from any thread. A reply to a closed connection is dropped. One that would be longer than
        ``RESPONSE_MAX_BYTES`` is not sent, and the connection is closed."""
        assert not self._replied, "a call was answered twice"
        self._replied = True
        nodes = self._context.nodes
        if nodes is not None and self._request.api.settles:
            nodes.when_settled(partial(self._send, fields))
        else:
            self._send(fields)

    def _send(self, fields: Fields) -> None:
        request = self._request
        if request.connection.closed:
            return
        try:
            encoded = control.encode_response(
                request.api.key,
                request.api_version,
                request.correlation_id,
                fields,
                RESPONSE_MAX_BYTES,
                partial(self._context.errors.add_all, request.api.label),
            )
        except MessageTooLarge as error:
            log.warning("response_refused", peer=self.client_host, api=request.api.key.name, error=str(error))
            self._outbox.close(request)
        except Abandoned:
            self._outbox.close(request)
        else:
            self._outbox.send(request, [encoded])


@attrs.frozen
class Api:
    """One API: its versions and its handler.

    Exactly one of ``handle`` and ``handle_raw`` is set.

    ``handle(context, call)`` returns the reply's fields, or None if it will call ``call.reply`` later, from any thread.
    A RequestError that leaves it becomes the reply ``on_error(call, error)``; without ``on_error``, closes the connection.
    ``inline``: ``handle`` is cheap and never blocks.

    ``handle_raw(context, request, outbox, prepared)`` answers through the outbox. ``prepare(context, request)``, on the
    processor, returns a ``Handover`` if the request may block or take long this time, and else its result, which
    ``handle_raw`` gets as ``prepared``. TooManyEntries from it hands the request over through the bulk lane. ``handle_raw`` gets
    None if ``prepare`` was not called.

    A request whose body is longer than ``inline_max_bytes`` goes to a handler thread without ``prepare``, whatever ``inline``
    says. ``lane``: the lane of an API whose requests are slow whatever their size (see ``broker.network.work``).
    """

    key: ApiKey
    min_version: int
    max_version: int
    handle: Callable[[KafkaContext, Call], Fields | None] | None = None
    on_error: Callable[[Call, RequestError], Fields] | None = None
    inline: bool = False
    handle_raw: Callable[[KafkaContext, KafkaRequest, Outbox, Any], None] | None = None
    prepare: Callable[[KafkaContext, KafkaRequest], Any] | None = None
    inline_max_bytes: int = INLINE_BYTES
    lane: str | None = None
    # Of several nodes each has in force what the request has changed when it is answered.
    settles: bool = False
    # A long body has many entries, and its request goes through the bulk lane. False where the body carries records.
    sized_by_bytes: bool = True
    # Advertised instead of min_version, for clients that misread a higher minimum.
    advertised_min: int | None = None
    # For an API that Kafka does not have: name and level of the feature by which clients find it. ApiVersions omits its key.
    feature: tuple[str, int] | None = None
    # For an API that is useless to clients unless an operator has asked for it: when ApiVersions lists its key, in words.
    condition: str | None = None
    label: str = attrs.field(init=False)  # the name as Kafka writes it: CreateTopics

    def __attrs_post_init__(self) -> None:
        assert (self.handle is None) != (self.handle_raw is None)
        object.__setattr__(self, "label", "".join(word.capitalize() for word in self.key.name.split("_")))

    def lane_of(self, size: int) -> str | None:
        """The lane for a request whose body has ``size`` bytes. None: any handler."""
        return lane_of(size, self.lane) if self.sized_by_bytes else self.lane

    @property
    def advertised(self) -> tuple[int, int]:
        """The range of versions that ApiVersions returns."""
        return (self.min_version if self.advertised_min is None else self.advertised_min, self.max_version)
