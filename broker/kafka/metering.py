"""Measures how much of its client's quotas each request uses, throttles the connections of clients over their quotas, and counts
the errors of answers.

``KafkaContext.metering`` is None as long as no client has a quota. Otherwise ``KafkaService`` has each request begin and end
here, and a request that may have to be throttled is answered through an outbox of its own, ``Metered``.

| quota | counted | throttled |
|---|---|---|
| producer_byte_rate | the request, when its handling begins | after a request that leaves a debt |
| consumer_byte_rate | the response | while there is a debt; the response is empty, not counted, and nothing is read |
| request_percentage | the time of handling and of sending | after a request that leaves a debt, for one window at most |
| controller_mutation_rate | partitions created or deleted | after a request that leaves a debt, or while there is one |

Fetch and ShareFetch count for consumer_byte_rate. A change of partitions while there is a debt is refused if the request's
version has an error for that, and made otherwise.

If several quotas throttle a request, the longest throttle time counts. Requests during a login count for no quota: the client is
not known yet, and anybody can claim a client id.

The error counts by API are for the metrics. Kafka, too, counts the errors of all partitions of an answer. An error is rare enough
for a lock, and a client that provokes errors all day waits for its answers.

Any thread.

Tests: tests/kafka/test_metrics.py.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from typing import Any, Final

from broker.config.listener import NODES_LISTENER
from broker.errors import RequestError
from broker.metrics import Labels
from broker.network.quota import Throttling
from broker.network.service import Connection, Handover, Outbox, Part, Request
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.security.client_quotas import UNLIMITED, ClientQuotas, Kind, Meter, Meters
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.throttle_time import with_throttle_time

_INT_MAX = 2**31 - 1
_PERCENT: Final = 100.0
_FETCHES: Final = (ApiKey.FETCH, ApiKey.SHARE_FETCH)


class Metering:
    """The measuring of all Kafka listeners."""

    def __init__(self, quotas: ClientQuotas, throttling: Throttling, clock: Clock) -> None:
        self.quotas = quotas
        self.throttling = throttling
        self.clock = clock
        self._monotonic = clock.monotonic
        self.timed = False  # whether a client has a quota for the time of its requests
        # The bytes of Produce requests that the client with the smallest quota may send at once. More are not handled together,
        # because all would be counted before the client is throttled.
        self.run_max_bytes = _INT_MAX

    def configure(self) -> None:
        """The quotas have changed."""
        self.timed = self.quotas.limits(Kind.REQUEST)
        least = self.quotas.least(Kind.PRODUCE)
        self.run_max_bytes = _INT_MAX if least is None else int(min(_INT_MAX, least * self.quotas.windows.ahead_s))

    def begin(self, request: Any, outbox: Outbox) -> "Metered | None":
        """The handling of a request begins. Returns its own outbox if it may have to be throttled, else None."""
        connection = request.connection
        if not connection.session.has_logged_in or connection.peer.listener == NODES_LISTENER:  # nodes are no clients
            return None
        meters = self.quotas.meters(connection.principal.name, request.client_id or "")
        if connection.on_flushed is not None and meters.request is None:
            connection.on_flushed = None  # it had such a quota before
        if meters is UNLIMITED:
            return None
        now = self._monotonic()
        key = request.api.key
        in_debt = False
        produce = meters.produce
        if produce is not None and key == ApiKey.PRODUCE:
            # Otherwise it was parked, and is handled again. Kafka does not count the length fields.
            if not hasattr(request, "in_debt"):
                size = len(request.frame) - 4 * request.count
                request.in_debt = produce.sensor.take(size, produce.quota, now) > 0
            in_debt = request.in_debt
            if not in_debt and meters.request is None:
                return None
        elif meters.request is None and (meters.fetch if key in _FETCHES else meters.mutation) is None:
            return None
        if meters.request is not None:
            # For the response to this request, and until the next one.
            connection.on_flushed = partial(_count_time, meters.request)
        return Metered(self, meters, outbox, now, in_debt=in_debt)

    def fetch_max_bytes(self, request: Any) -> int:
        """The most bytes that a client fetches at once, unless the first batch is longer."""
        meter = self.quotas.meters(request.connection.principal.name, request.client_id or "").fetch
        return _INT_MAX if meter is None else max(1, int(min(_INT_MAX, meter.quota * self.quotas.windows.ahead_s)))

    def prepare(self, prepare: Callable[[Any, Any], Any], context: Any, request: Any) -> Any:
        """Call an API's ``prepare``, which may already be most of the work, and count the time."""
        if not (self.timed and request.connection.session.has_logged_in):
            return prepare(context, request)
        began = self.clock.monotonic()
        prepared = prepare(context, request)
        meter = self.quotas.meters(request.connection.principal.name, request.client_id or "").request
        if meter is not None:
            now = self.clock.monotonic()
            _count_time(meter, now - began, now)
        return prepared


def _count_time(meter: Meter, seconds: float, now: float) -> None:
    meter.take(seconds * _PERCENT, now)


class Metered:
    """The outbox for one request of a client with quotas. An ``Outbox``."""

    __slots__ = ("_began", "_in_debt", "_inner", "_kind", "_metering", "_throttle_s", "meters")

    def __init__(self, metering: Metering, meters: Meters, inner: Outbox, began: float, *, in_debt: bool) -> None:
        """``in_debt``: a produce request that has left a debt."""
        self._metering = metering
        self.meters = meters
        self._inner = inner
        self._began: float | None = began  # of the handling; None when it is over
        self._in_debt = in_debt
        self._kind: Kind | None = None  # of the quota that throttles for the longest time, and
        self._throttle_s = 0.0  # that time

    # -- what requests use --------------------------------------------------------------------------------------------

    def fetched(self, size: int) -> bool:
        """Whether a fetch may send a response of this many bytes. If not, it sends an empty one."""
        meter = self.meters.fetch
        if meter is None:
            return True
        throttle_s = meter.take_unless_in_debt(size, self._metering.clock.monotonic())
        self._longer(Kind.FETCH, throttle_s)
        return not throttle_s

    def check_mutations(self) -> None:
        """Raises RequestError while the client is in debt."""
        meter = self.meters.mutation
        if meter is not None:
            throttle_s = meter.throttle_s(self._metering.clock.monotonic())
            if throttle_s:
                self._longer(Kind.MUTATION, throttle_s)
                raise RequestError(
                    ErrorCode.throttling_quota_exceeded, "The throttling quota has been exceeded: try again later."
                )

    def mutated(self, partitions: int, *, throttle: bool) -> None:
        """So many partitions were created or deleted. ``throttle``: the request is throttled for a debt."""
        meter = self.meters.mutation
        if meter is not None:
            now = self._metering.clock.monotonic()
            throttle_s = meter.take(partitions, now)
            if throttle:
                self._longer(Kind.MUTATION, throttle_s)

    def handled(self) -> None:
        """The handler of the request has returned, perhaps without an answer yet."""
        if self.meters.request is not None:
            self._count_time(self._metering.clock.monotonic())
            self._began = None

    def _count_time(self, now: float) -> None:
        meter = self.meters.request
        if meter is not None and self._began is not None:
            _count_time(meter, now - self._began, now)
            self._began = now  # the time after the answer is counted by `handled`

    def _longer(self, kind: Kind, throttle_s: float) -> None:
        if throttle_s > self._throttle_s:
            self._kind, self._throttle_s = kind, throttle_s

    def _throttle_ms(self) -> int:
        """The throttle time of an answer that is sent now."""
        metering, meters = self._metering, self.meters
        now = metering.clock.monotonic()
        if meters.request is not None:
            self._count_time(now)
            self._longer(Kind.REQUEST, min(meters.request.throttle_s(now), metering.quotas.windows.length_s))
        if self._in_debt and meters.produce is not None:
            self._longer(Kind.PRODUCE, meters.produce.throttle_s(now))
        # Rounded up: clients recognise an empty response to a fetch as throttled only by its throttle time.
        return ceil(min(self._throttle_s * 1000, _INT_MAX))  # a tiny quota throttles for ever

    def _throttle(self, connection: Connection, throttle_ms: int) -> None:
        until = self._metering.clock.monotonic() + throttle_ms / 1000
        assert self._kind is not None
        self._metering.quotas.count_throttle(self._kind, throttle_ms / 1000)
        # On the processor, where it comes before the answer and is dropped if the connection is closed.
        self._inner.call(connection, partial(self._metering.throttling.begin, connection, self._inner, until))

    # -- Outbox -------------------------------------------------------------------------------------------------------

    def send(self, request: Request, parts: Sequence[Part]) -> None:
        throttle_ms = self._throttle_ms()
        if throttle_ms:
            self._throttle(request.connection, throttle_ms)
            parts = with_throttle_time(parts, request.api.key, request.api_version, throttle_ms)  # type: ignore[attr-defined]
        self._inner.send(request, parts)

    def no_op(self, request: Request) -> None:
        throttle_ms = self._throttle_ms()
        if throttle_ms:
            self._throttle(request.connection, throttle_ms)
        self._inner.no_op(request)

    def close(self, request: Request) -> None:
        self._inner.close(request)

    def hand_over(self, request: Request, handover: Handover) -> None:
        self._inner.hand_over(request, handover)

    def push(self, connection: Connection, parts: Sequence[Part]) -> None:
        self._inner.push(connection, parts)

    def call(self, connection: Connection, work: Callable[[], None]) -> None:
        self._inner.call(connection, work)

    def start_throttling(self, connection: Connection) -> None:
        self._inner.start_throttling(connection)

    def end_throttling(self, connection: Connection) -> None:
        self._inner.end_throttling(connection)


class AnsweredErrors:
    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[tuple[str, int], int] = {}

    def add(self, api: str, code: int, count: int = 1) -> None:
        """``api``: Kafka's name of the API."""
        with self._lock:
            self._counts[api, code] = self._counts.get((api, code), 0) + count

    def add_all(self, api: str, counts: Mapping[int, int]) -> None:
        for code, count in counts.items():
            self.add(api, code, count)

    def read(self) -> dict[Labels, float]:
        with self._lock:
            counts = self._counts.copy()
        return {(api, _name(code)): float(count) for (api, code), count in counts.items()}


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return str(code)
