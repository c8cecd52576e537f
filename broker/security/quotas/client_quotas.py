"""All client quotas of a broker: which there are, and which one a client gets.

They are kept in the catalogue. A change is durable before ``alter`` returns, and in force for the next request of every client.
Any thread. No lock is taken for a client that has been seen since the last change.

Tests: tests/security/quotas/test_client_quotas.py.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import attrs

from broker.metadata.catalogue import Catalogue
from broker.metrics import Registry, names
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.security.quotas.entities import DEFAULT, OF_CLIENTS, Entity, Kind, Pair, parse_entity, precedence
from broker.security.quotas.sensors import NAME_MAX, SensorTable, Windows
from broker.security.quotas.token_bucket import TokenBucket

# Clients whose quotas have been looked up. When there are more, they are looked up again (5 us).
_CLIENTS_MAX = 20_000


class Meter:
    """One quota of a client, and what was used of it, perhaps by other clients that share it."""

    __slots__ = ("_take", "kind", "quota", "sensor")

    def __init__(self, kind: Kind, quota: float, sensor: TokenBucket) -> None:
        self.kind = kind
        self.quota = quota
        self.sensor = sensor
        self._take = sensor.take

    def take(self, count: float, now: float) -> float:
        """Count it. How long (s) the client is to be throttled."""
        return self._take(count, self.quota, now)

    def throttle_s(self, now: float) -> float:
        """How long the client is to be throttled."""
        return self._take(0, self.quota, now)

    def take_unless_in_debt(self, count: float, now: float) -> float:
        """Count it, unless the client is to be throttled."""
        return self.sensor.take_unless_in_debt(count, self.quota, now)


@attrs.frozen(slots=True, eq=False)
class Meters:
    """The quotas of one client; None where it has none."""

    produce: Meter | None = None
    fetch: Meter | None = None
    request: Meter | None = None
    mutation: Meter | None = None


UNLIMITED: Final = Meters()
_FIELDS: Final = {Kind.PRODUCE: "produce", Kind.FETCH: "fetch", Kind.REQUEST: "request", Kind.MUTATION: "mutation"}


class ClientQuotas:
    def __init__(self, catalogue: Catalogue, clock: Clock, windows: Windows) -> None:
        self.windows = windows
        # Called after each change, one at a time, on the thread that made it.
        self.on_change: list[Callable[[], None]] = []
        self._catalogue = catalogue
        self._clock = clock
        self._changing = Lock()  # held while a change is stored
        self._lock = Lock()  # guards everything below; never held while anything waits
        self._sensors = SensorTable(windows)
        self._quotas: dict[Entity, Mapping[Kind, float]] = {}
        # The same by kind.
        self._limits: dict[Kind, dict[Pair, float]] = {kind: {} for kind in OF_CLIENTS}
        self._addresses: dict[str, float] = {}
        self.limits_clients = False  # whether any client has a quota; asked for every frame
        self._seen: dict[Pair, Meters] = {}
        self.throttled: Callable[[], int] = lambda: 0  # how many connections are throttled; set by who throttles them
        # How often clients were throttled, and for how many seconds; guarded by the lock.
        self._throttles: dict[tuple[str, ...], float] = {}
        self._throttled_s: dict[tuple[str, ...], float] = {}

    def register_metrics(self, metrics: Registry) -> None:
        metrics.read_counter(names.QUOTA_THROTTLES, lambda: dict(self._throttles))
        metrics.read_counter(names.QUOTA_THROTTLE_SECONDS, lambda: dict(self._throttled_s))
        metrics.gauge(names.QUOTA_THROTTLED_CONNECTIONS, lambda: {(): self.throttled()})
        metrics.gauge(names.QUOTA_SENSORS, lambda: {(): self.sensors})

    def load(self) -> None:
        """Read the catalogue. Before anything else."""
        for entity, key, value in self._catalogue.load_quotas():
            self._put(parse_entity(entity), Kind(key), value)

    # -- what there is ------------------------------------------------------------------------------------------------

    def limits(self, kind: Kind) -> bool:
        """Whether any client has such a quota."""
        return bool(self._limits[kind])

    def least(self, kind: Kind) -> float | None:
        """The smallest quota of that kind that a client has; None: none has one."""
        return min(self._limits[kind].copy().values(), default=None)

    def meters(self, user: str, client_id: str) -> Meters:
        """The quotas of this client. For every request: not to be kept, as quotas change."""
        return self._seen.get((user, client_id)) or self._look_up(user, client_id)

    def take(self, kind: Kind, user: str, count: float, now: float) -> float:
        """Count what a client without a client id has used. How long (s) it is to be throttled: for the time of its requests one
        window at most. The throttle is in the metrics."""
        meter: Meter | None = getattr(self.meters(user, ""), _FIELDS[kind])
        if meter is None:
            return 0.0
        throttle_s = meter.take(count, now)
        if kind is Kind.REQUEST:
            throttle_s = min(throttle_s, self.windows.length_s)
        if throttle_s:
            self.count_throttle(kind, throttle_s)
        return throttle_s

    def connection_rate(self, address: str) -> float | None:
        """How many connections a second this address may open; None: as many as it likes."""
        addresses = self._addresses
        if not addresses:
            return None
        return addresses.get(address, addresses.get(DEFAULT))

    def entries(self) -> Mapping[Entity, Mapping[Kind, float]]:
        """All quotas, sorted by their entities' texts."""
        with self._lock:
            quotas = self._quotas.copy()
        return {entity: quotas[entity] for entity in sorted(quotas, key=str)}

    @property
    def sensors(self) -> int:
        """How many there are."""
        return len(self._sensors)

    def count_throttle(self, kind: Kind, throttle_s: float) -> None:
        """For the metrics."""
        with self._lock:
            self._throttles[kind,] = self._throttles.get((kind,), 0) + 1
            self._throttled_s[kind,] = self._throttled_s.get((kind,), 0) + throttle_s

    # -- changes ------------------------------------------------------------------------------------------------------

    def alter(self, changes: Iterable[tuple[Entity, Kind, float | None]]) -> None:
        """Set these quotas, or remove those whose value is None. Raises StorageError: then none of it has happened."""
        changes = list(changes)
        if not changes:
            return
        with self._changing:
            self._catalogue.alter_quotas([(str(entity), str(kind), value) for entity, kind, value in changes])
            with self._lock:
                for entity, kind, value in changes:
                    self._put(entity, kind, value)
                self._seen = {}
            for changed in self.on_change:
                changed()

    def _put(self, entity: Entity, kind: Kind, value: float | None) -> None:
        limits: dict[Any, float] = self._addresses if entity.ip is not None else self._limits[kind]
        name = entity.pair if entity.ip is None else entity.ip
        # Replaced, because `entries` reads them without a lock.
        quotas = {its: other for its, other in self._quotas.get(entity, {}).items() if its is not kind}
        if value is None:
            limits.pop(name, None)
        else:
            limits[name] = quotas[kind] = value
        if quotas:
            self._quotas[entity] = quotas
        else:
            self._quotas.pop(entity, None)
        self.limits_clients = any(self._limits.values())

    def _look_up(self, user: str, client_id: str) -> Meters:
        now = self._clock.monotonic()
        with self._lock:
            found = {}
            for kind, limits in self._limits.items():
                if limits:
                    for pair, shared_by in precedence(user, client_id):
                        quota = limits.get(pair)
                        if quota is not None:
                            sensor = self._sensors.sensor(kind, shared_by, quota, now)
                            found[_FIELDS[kind]] = Meter(kind, quota, sensor)
                            break
            meters = Meters(**found) if found else UNLIMITED
            if len(self._seen) >= _CLIENTS_MAX:
                self._seen = {}
            if len(user) <= NAME_MAX and len(client_id) <= NAME_MAX:
                self._seen[user, client_id] = meters
            return meters
