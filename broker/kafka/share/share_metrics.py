"""What share groups measure, for the registry.

Looked up when metrics are read, on a thread that may block, and kept for some seconds. Groups are many, so only some have series
of their own. The walk pauses now and then, because a thread that computes keeps others from the interpreter.

Tests: tests/metrics/test_moving.py.
"""

from collections.abc import Mapping
from typing import NamedTuple

from broker.kafka.share.share_partition import ACCEPT, REJECT, RELEASE, RENEW
from broker.kafka.share.share_service import ShareService
from broker.metrics import Labels, Registry, names
from broker.metrics.bounded import Chosen, summed
from broker.metrics.cached import Cached
from broker.runtime.clock import Clock
from broker.runtime.threads import Event

_GROUPS_MAX = 200
# How old (s) the figures may be.
_AGE_S = 5.0
# Share partitions between two pauses, some 0.2 ms, and how long (s) a pause is.
_PIECE = 100
_PAUSE_S = 0.0005

_TYPES = {ACCEPT: "accept", RELEASE: "release", REJECT: "reject", RENEW: "renew"}


class _Figures(NamedTuple):
    in_flight: Mapping[Labels, float]
    lag: Mapping[Labels, float]


class ShareMetrics:
    def __init__(self, share: ShareService, clock: Clock) -> None:
        self._share = share
        self._clock = clock
        self._chosen = Chosen(_GROUPS_MAX)
        self._figures = Cached(self._walk, clock.monotonic, _AGE_S)

    def register(self, registry: Registry) -> None:
        share = self._share
        registry.read_counter(names.SHARE_ACKNOWLEDGEMENTS, lambda: {(): share.acknowledge_requests})
        registry.read_counter(names.SHARE_RECORD_ACKNOWLEDGEMENTS, self._acknowledged)
        registry.gauge(names.SHARE_SESSIONS, lambda: {(): len(share.sessions)})
        registry.gauge(names.SHARE_SESSION_PARTITIONS, lambda: {(): share.sessions.partitions.taken})
        registry.gauge(names.SHARE_PARTITIONS, lambda: {(): len(share.entries())})
        registry.gauge(names.SHARE_IN_FLIGHT_RECORDS, lambda: self._figures.get().in_flight)
        registry.gauge(names.SHARE_LAG, lambda: self._figures.get().lag)

    def _acknowledged(self) -> dict[Labels, float]:
        counts = self._share.acknowledged()
        return {(name,): float(counts[kind]) for kind, name in _TYPES.items()}

    def _walk(self) -> _Figures:
        in_flight: dict[str, float] = {}
        lags: dict[str, float] = {}
        seen: dict[str, float] = {}
        for number, (group_id, offset, held) in enumerate(self._share.figures()):
            if not number % _PIECE:
                Event().wait(_PAUSE_S)
            in_flight[group_id] = in_flight.get(group_id, 0.0) + held
            lags[group_id] = lags.get(group_id, 0.0) + max(0, offset.lag)
            seen[group_id] = seen.get(group_id, 0.0) + max(0, offset.start)
        chosen = self._chosen.choose(seen, self._clock.monotonic())
        return _Figures(_labelled(summed(in_flight, chosen)), _labelled(summed(lags, chosen)))


def _labelled(values: Mapping[str, float]) -> dict[Labels, float]:
    return {(name,): value for name, value in values.items()}
