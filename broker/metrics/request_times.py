"""How long requests take, by API, in the five parts that Kafka distinguishes.

| part | from | to |
|---|---|---|
| queue | the poller reported bytes to the processor | a thread begins to handle the request |
| local | a thread begins to handle the request | the request is answered or parked |
| wait | the request is parked (for records, members of a group, an fsync) | its answer is ready |
| throttle | the answer to a client above its quota | the next request of that client may come |
| send | the answer | the socket has taken all of it |

Each processor measures for itself, and readers sum the processors. All requests that are parked or go to a handler are
measured. The others are answered within microseconds, and measuring each would cost a good part of that. They are all
counted, but measured only in some *steps* of the processor, at most ``1 / GAP_S`` requests a second. Each measured
request stands for as many as were answered since the last such step. A broker with little to do measures every request.

Streams, whose frames are not answered one by one, have no times.

Tests: tests/network/test_request_times.py.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any, Final, Protocol

from broker.metrics import Labels, names
from broker.metrics.registry import Ranges
from broker.metrics.tracing import Traces

PARTS: Final = ("queue", "local", "wait", "throttle", "send")
QUEUE, LOCAL, WAIT, THROTTLE, SEND = range(5)
_BOUNDS: Final = names.REQUEST_SECONDS.bounds
# How long (s) nothing is measured after a step, for each request that was measured in it. Measuring one takes 1 to 2 us.
GAP_S: Final = 0.0005


class Times:
    """The times of one API's requests: by part, the number of requests in each range, and the sum (s)."""

    __slots__ = ("counts", "sums")

    def __init__(self) -> None:
        self.counts = [[0] * (len(_BOUNDS) + 1) for _ in PARTS]
        self.sums = [0.0] * len(PARTS)

    def observe(self, part: int, seconds: float, weight: int = 1) -> None:
        if seconds < 0.0:  # the times of two threads crossed
            seconds = 0.0
        self.counts[part][bisect_left(_BOUNDS, seconds)] += weight
        self.sums[part] += seconds * weight


class RequestTimes:
    """The times of one processor's requests, by kind. Only its thread writes; any thread may read."""

    def __init__(self) -> None:
        # Requests that were answered while their processor handled them, and requests that were answered later.
        self.at_once: defaultdict[str, int] = defaultdict(int)
        self.later: defaultdict[str, int] = defaultdict(int)
        self.times: dict[str, Times] = {}
        self._measured = 0  # how many of ``at_once`` are measured or represented by a measured request

    def of(self, kind: str) -> Times:
        times = self.times.get(kind)
        if times is None:
            times = self.times[kind] = Times()
        return times

    def answered_later(
        self, kind: str, received_at: float, taken_at: float, handled_at: float, now: float, count: int = 1
    ) -> None:
        """A request that was parked or handled by a handler, or several that were answered together."""
        self.later[kind] += count
        times = self.times.get(kind) or self.of(kind)
        counts, sums = times.counts, times.sums
        # The times of two threads may cross. No loop: requests that wait for an fsync all come here.
        queue = taken_at - received_at if taken_at > received_at else 0.0
        local = handled_at - taken_at if handled_at > taken_at else 0.0
        wait = now - handled_at if now > handled_at else 0.0
        counts[QUEUE][bisect_left(_BOUNDS, queue)] += count
        counts[LOCAL][bisect_left(_BOUNDS, local)] += count
        counts[WAIT][bisect_left(_BOUNDS, wait)] += count
        sums[QUEUE] += queue * count
        sums[LOCAL] += local * count
        sums[WAIT] += wait * count

    def answered_at_once(self, measured: Sequence[Any], began: float, ended: float) -> None:
        """The requests of one step, which lasted from ``began`` to ``ended``. ``measured`` has three values for each
        request, in order: its kind, the time when its handling began, and the time when it was answered."""
        since = sum(self.at_once.values()) - self._measured
        number = len(measured) // 3
        weight = max(1, since // number)
        self._measured += weight * number
        for index in range(0, len(measured), 3):
            kind, taken_at, answered_at = measured[index : index + 3]
            times = self.of(kind)
            times.observe(QUEUE, taken_at - began, weight)
            times.observe(LOCAL, answered_at - taken_at, weight)
            times.observe(SEND, ended - answered_at, weight)


class Timed(Protocol):
    """What a processor notes of the times of a connection (Clock.monotonic() s)."""

    kind: str  # of its last request; empty for a stream
    stalled_at: float
    throttled_at: float


class TimedRequest(Protocol):
    """What a processor notes of the times of a request (Clock.monotonic() s). 0.0: it has not been taken, or handled, yet."""

    kind: str
    count: int
    received_at: float
    taken_at: float
    handled_at: float


class Measuring:
    """Measures the requests of one processor. Only the processor's thread uses it; any thread may read ``table``.

    The processor sets ``began`` and ``measured`` when its poller reports something.
    """

    def __init__(self, number: int, table: RequestTimes, traces: Traces | None, monotonic: Callable[[], float]) -> None:
        """``number``: the processor's. ``traces``: None if no request is traced."""
        self.number = number
        self.table = table
        self.at_once = table.at_once
        self.traces = traces
        self.began = monotonic()  # of the step: when the processor began to work on what was reported
        # Of each request of this step that was answered at once: its kind, when its handling began, when it was answered.
        # None: nothing is measured, before ``measure_from``.
        self.measured: list[Any] | None = []
        self.measure_from = inf
        self._monotonic = monotonic

    def end_step(self, measured: Sequence[Any], polled_at: float) -> None:
        """The step is over in which these requests were measured, and their answers have left."""
        now = self._monotonic()
        self.table.answered_at_once(measured, polled_at, now)
        self.measured = None
        self.measure_from = now + len(measured) // 3 * GAP_S

    def handled(self, request: TimedRequest, measured: list[Any]) -> None:
        """A request was answered at once, in a step that is measured."""
        taken_at = measured[-1] if measured else self.began
        now = self._monotonic()
        measured += request.kind, taken_at, now
        if self.traces is not None:
            self.traces.offer(request, self.number, taken_at, now, now)

    def parked(self, request: TimedRequest) -> None:
        """A request was handled and is not answered, or not sent."""
        request.taken_at = self.measured[-1] if self.measured else self.began
        request.handled_at = self._monotonic()

    def answered(self, connection: Timed, request: TimedRequest | None) -> None:
        """A request was answered that was parked, or handled by another thread, or whose answer is long."""
        assert request is not None
        now = self._monotonic()
        # A handler that has answered may not have returned yet.
        taken, handled = request.taken_at or now, request.handled_at or now
        connection.kind = request.kind
        self.table.answered_later(request.kind, request.received_at, taken, handled, now, request.count)
        if self.traces is not None:
            self.traces.offer(request, self.number, taken, handled, now)
        if not connection.stalled_at:
            connection.stalled_at = now

    def sent(self, connection: Timed) -> None:
        """The socket has taken all that was answered, after it had not."""
        stalled_at, connection.stalled_at = connection.stalled_at, 0.0
        if connection.kind:
            self.table.of(connection.kind).observe(SEND, self._monotonic() - stalled_at)

    def throttle_started(self, connection: Timed) -> None:
        connection.throttled_at = self._monotonic()

    def throttle_ended(self, connection: Timed) -> None:
        if connection.kind:  # a stream has no times
            self.table.of(connection.kind).observe(THROTTLE, self._monotonic() - connection.throttled_at)


def requests(tables: Iterable[RequestTimes]) -> dict[Labels, float]:
    """How many requests were answered, by API."""
    sums: defaultdict[Labels, float] = defaultdict(float)
    for table in tables:
        for counts in (table.at_once, table.later):
            for kind, count in counts.copy().items():
                sums[kind,] += count
    return dict(sums)


def ranges(tables: Iterable[RequestTimes]) -> dict[Labels, Ranges]:
    """The times of requests, by API and part."""
    totals: dict[str, Times] = {}
    for table in tables:
        for kind, times in table.times.copy().items():
            total = totals.setdefault(kind, Times())
            for part in range(len(PARTS)):
                total.sums[part] += times.sums[part]
                total.counts[part] = [a + b for a, b in zip(total.counts[part], times.counts[part], strict=True)]
            # Requests that were answered at once did not wait. Throttled requests are counted separately.
            at_once = table.at_once.get(kind, 0)
            total.counts[WAIT][0] += at_once
            total.counts[THROTTLE][0] += at_once
    return {
        (kind, name): (times.counts[part], times.sums[part])
        for kind, times in totals.items()
        for part, name in enumerate(PARTS)
    }
