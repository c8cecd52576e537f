"""What share groups measure, for the registry.

Looked up when metrics are read, on a thread that may block, and kept for some seconds. Groups are many, so only some have series
of their own. The walk pauses now and then, because a thread that computes keeps others from the interpreter.

Tests: tests/metrics/test_moving.py.
"""

from collections.abc import Mapping

from broker.kafka.share.share_partition import ACCEPT, REJECT, RELEASE, RENEW
from broker.kafka.share.share_service import ShareService
from broker.metrics import Labels, Registry, names
from broker.metrics.bounded import Chosen, summed
from broker.metrics.metric import Cached
from broker.runtime.clock import Clock
from broker.runtime.threads import Event

_GROUPS_MAX = 200
# How old (s) the figures may be.
_AGE_S = 5.0
# Share partitions between two pauses, some 0.2 ms, and how long (s) a pause is.
_PIECE = 100
_PAUSE_S = 0.0005

_TYPES = {ACCEPT: "accept", RELEASE: "release", REJECT: "reject", RENEW: "renew"}


class ShareMetrics:
    def __init__(self, share: ShareService, clock: Clock) -> None:
        self._share = share
        self._clock = clock
        self._chosen = Chosen(_GROUPS_MAX)
        self._in_flight = Cached(self._walk, clock.monotonic, _AGE_S)

    def register(self, registry: Registry) -> None:
        share = self._share
        registry.read_counter(names.SHARE_ACKNOWLEDGEMENTS, lambda: {(): share.acknowledge_requests})
        registry.read_counter(names.SHARE_RECORD_ACKNOWLEDGEMENTS, self._acknowledged)
        registry.gauge(names.SHARE_SESSIONS, lambda: {(): len(share.sessions)})
        registry.gauge(names.SHARE_SESSION_PARTITIONS, lambda: {(): share.sessions.partitions.taken})
        registry.gauge(names.SHARE_PARTITIONS, lambda: {(): len(share.entries())})
        registry.gauge(names.SHARE_IN_FLIGHT_RECORDS, self._in_flight.get)

    def _acknowledged(self) -> dict[Labels, float]:
        counts = self._share.acknowledged()
        return {(name,): float(counts[kind]) for kind, name in _TYPES.items()}

    def _walk(self) -> dict[Labels, float]:
        """By group, what its members hold."""
        held: dict[str, float] = {}
        ends: dict[str, float] = {}
        for number, entry in enumerate(self._share.entries()):
            if not number % _PIECE:
                Event().wait(_PAUSE_S)
            group_id, partition = entry.key.group_id, entry.partition
            if partition is not None:
                held[group_id] = held.get(group_id, 0.0) + partition.in_flight_count
                ends[group_id] = ends.get(group_id, 0.0) + partition.end
        return _labelled(summed(held, self._chosen.choose(ends, self._clock.monotonic())))


def _labelled(values: Mapping[str, float]) -> dict[Labels, float]:
    return {(name,): value for name, value in values.items()}
