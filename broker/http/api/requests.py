"""``/api/v1/requests``: the number of requests of each API in the last minute, and how long they took.

The broker measures the five parts of a request separately (`broker/metrics/request_times.py`). The percentiles of whole
requests are computed from the parts as if these were independent of each other.

The sampler's thread takes a snapshot of the counters every 5 s; an answer is the difference to the snapshot of a minute
ago.

Tests: tests/http/api/test_requests.py.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

import attrs

from broker.metrics import Labels, Registry, names
from broker.metrics.registry import Ranges
from broker.metrics.request_times import PARTS
from broker.runtime.clock import Clock
from broker.security.acl import Operation, ResourceType
from broker.web.callers import Callers
from broker.web.history import STEP_S
from broker.web.routes import Answer, Call, Route, json_answer

_WINDOW_S: Final = 60.0
_BOUNDS: Final = names.REQUEST_SECONDS.bounds
# The value that represents a range when ranges are added: its middle, and for the last range twice its lower end.
_MIDDLES: Final = tuple(
    (low + high) / 2 for low, high in zip((0.0, *_BOUNDS), (*_BOUNDS, 3 * _BOUNDS[-1]), strict=True)
)
_PERCENTILES: Final = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


@attrs.frozen
class _Snapshot:
    at: float  # Clock.monotonic() s
    counts: Mapping[Labels, float]
    errors: Mapping[str, float]  # by API
    times: Mapping[Labels, Ranges]


class Requests:
    def __init__(self, registry: Registry, callers: Callers, clock: Clock) -> None:
        self._registry = registry
        self._callers = callers
        self._clock = clock
        self._snapshots: deque[_Snapshot] = deque(maxlen=int(_WINDOW_S / STEP_S) + 1)

    def routes(self) -> list[Route]:
        return [Route("GET", "/api/v1/requests", self.page)]

    def sampled(self) -> None:
        """Every 5 s, on the sampler's thread."""
        self._snapshots.append(self._snapshot())

    def page(self, call: Call) -> Answer:
        self._callers.require(call, Operation.DESCRIBE, ResourceType.CLUSTER)
        now = self._snapshot()
        before = next((snapshot for snapshot in self._snapshots.copy() if snapshot.at >= now.at - _WINDOW_S), now)
        elapsed_s = max(now.at - before.at, 1e-3)
        apis = sorted(labels[0] for labels in now.counts)
        return json_answer({"window_s": round(elapsed_s, 3), "apis": [_api(name, before, now) for name in apis]})

    def _snapshot(self) -> _Snapshot:
        errors: dict[str, float] = {}
        for labels, count in self._registry.values(names.REQUEST_ERRORS).items():
            errors[labels[0]] = errors.get(labels[0], 0) + count
        return _Snapshot(
            self._clock.monotonic(),
            dict(self._registry.values(names.REQUESTS)),
            errors,
            dict(self._registry.ranges(names.REQUEST_SECONDS)),
        )


def _api(name: str, before: _Snapshot, now: _Snapshot) -> dict[str, Any]:
    count = now.counts[name,] - before.counts.get((name,), 0)
    parts: dict[str, float | None] = {}
    spread: Sequence[float] | None = None
    for part in PARTS:
        counts, total = _grown(before.times.get((name, part)), now.times.get((name, part)))
        number = sum(counts)
        parts[part] = round(total / number, 6) if number else 0.0 if count else None
        if number:
            spread = counts if spread is None else added(spread, counts)
    elapsed_s = max(now.at - before.at, 1e-3)
    return {
        "api": name,
        "count": int(now.counts[name,]),
        "rate": round(count / elapsed_s, 3),
        "errors": int(now.errors.get(name, 0)),
        **{key: None if spread is None else percentile(spread, share) for key, share in _PERCENTILES},
        "parts": parts,
    }


def _grown(before: Ranges | None, now: Ranges | None) -> tuple[list[float], float]:
    """The increase of a histogram between two snapshots."""
    if now is None:
        return [0.0] * (len(_BOUNDS) + 1), 0.0
    if before is None:
        return list(now[0]), now[1]
    return [max(0.0, b - a) for a, b in zip(before[0], now[0], strict=True)], max(0.0, now[1] - before[1])


def added(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """How the sum of two independent times is spread over the ranges, as shares. ``one`` and ``other``: counts or shares."""
    of_one, of_other = sum(one), sum(other)
    shares = [0.0] * len(_MIDDLES)
    for first, count in enumerate(one):
        if not count:
            continue
        for second, also in enumerate(other):
            if also:
                # A time in the first range is negligible beside a longer one.
                longer = max(first, second)
                place = longer if min(first, second) == 0 else bisect_left(_BOUNDS, _MIDDLES[first] + _MIDDLES[second])
                shares[place] += count * also / (of_one * of_other)
    return shares


def percentile(spread: Sequence[float], share: float) -> float:
    """The time (s) that about this share of the requests did not exceed; requests are assumed to be even within a
    range."""
    sums = list(accumulate(spread))
    wanted = share * sums[-1]
    place = min(bisect_left(sums, wanted), len(spread) - 1)
    low = 0.0 if place == 0 else _BOUNDS[place - 1]
    high = _BOUNDS[place] if place < len(_BOUNDS) else 2 * low
    before = sums[place] - spread[place]
    within = (wanted - before) / spread[place] if spread[place] else 1.0
    return round(low + (high - low) * min(1.0, max(0.0, within)), 6)
