"""All client quotas of a broker: their entities, which quota a client gets, and how much of it is used.

`ClientQuotas` keeps quotas in the catalogue. A change is durable before ``alter`` returns, and in force for the next
request of every client. Any thread may call. No lock is taken for a client that was seen since the last change.

`SensorTable` has a sensor, which is a token bucket, for each entity that shares a quota. Any thread may use a sensor;
the owner guards the table, which is bounded. An idle sensor has the same state as a new sensor, so it may be forgotten
at any time. A sensor that is not idle is never forgotten: otherwise a client could escape its debt by making up client
ids until its sensor has to go. When the table is full of sensors in use, further entities share a sensor for each user
and quota.

An `Entity` is a user, a client id, a user with a client id, or an IP address; each name may also be the default, which
stands for all names without a quota of their own. An entity of the first three kinds is a pair of names here, either of
which may be ABSENT.

Of all entities that match a client, the first in this order counts (Kafka's), separately for each kind of quota:

| precedence | user | client id | shared by |
|---|---|---|---|
| 1 | its own | its own | the connections of this user with this client id |
| 2 | its own | default | the connections of this user with this client id |
| 3 | its own | - | all connections of this user |
| 4 | default | its own | the connections of this user with this client id |
| 5 | default | default | the connections of this user with this client id |
| 6 | default | - | all connections of this user |
| 7 | - | its own | the connections of all users with this client id |
| 8 | - | default | the connections of all users with this client id |

A client that sends no client id, or an empty client id, gets the quotas of the default. (In Kafka it gets none of 2, 5
and 8.)

Tests: tests/security/test_entities.py.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final

import attrs

from broker.metadata.catalogue import Catalogue
from broker.metrics import Registry, names
from broker.runtime.clock import Clock
from broker.runtime.limits import TokenBucket
from broker.runtime.threads import Lock

ABSENT: Final = None
DEFAULT: Final = ""  # no name is empty

USER, CLIENT_ID, IP = "user", "client-id", "ip"

# The names of a user and of a client id, each of them ABSENT, DEFAULT or a name.
Pair = tuple[str | None, str | None]


class Kind(StrEnum):
    """The limited resource, by its name in Kafka."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    MUTATION = "controller_mutation_rate"
    CONNECTION = "connection_creation_rate"


OF_CLIENTS: Final = (Kind.PRODUCE, Kind.FETCH, Kind.REQUEST, Kind.MUTATION)
OF_ADDRESSES: Final = (Kind.CONNECTION,)


@attrs.frozen(slots=True)
class Entity:
    """The subject of a quota. Either ``ip`` or at least one of the others is not ABSENT."""

    user: str | None = ABSENT
    client_id: str | None = ABSENT
    ip: str | None = ABSENT

    @property
    def pair(self) -> Pair:
        return self.user, self.client_id

    @property
    def names(self) -> Mapping[str, str | None]:
        """The names by type, as in Kafka's requests, where null is the default."""
        both = ((USER, self.user), (CLIENT_ID, self.client_id), (IP, self.ip))
        return {kind: name or None for kind, name in both if name is not ABSENT}

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of quota that the entity can have."""
        return OF_CLIENTS if self.ip is ABSENT else OF_ADDRESSES

    def __str__(self) -> str:
        """The text in the catalogue. Names are percent-encoded as in Kafka, so they do not contain ``=``, ``,`` or
        ``<``."""
        return ",".join(f"{kind}={_encoded(name) if name else '<default>'}" for kind, name in self.names.items())


def parse_entity(text: str) -> Entity:
    """The inverse of ``str``."""
    names = {}
    for part in text.split(","):
        kind, _, name = part.partition("=")
        names[kind] = DEFAULT if name == "<default>" else _decoded(name)
    return Entity(names.get(USER), names.get(CLIENT_ID), names.get(IP))


_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def _encoded(name: str) -> str:
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in name.encode())


def _decoded(text: str) -> str:
    return re.sub(rb"%(..)", lambda match: bytes.fromhex(match[1].decode()), text.encode()).decode()


def precedence(user: str, client_id: str) -> Iterator[tuple[Pair, Pair]]:
    """The entities that match a client, in order of precedence, and for each the pair that shares the sensor."""
    own = user, client_id
    yield own, own
    yield (user, DEFAULT), own
    yield (user, ABSENT), (user, ABSENT)
    yield (DEFAULT, client_id), own
    yield (DEFAULT, DEFAULT), own
    yield (DEFAULT, ABSENT), (user, ABSENT)
    yield (ABSENT, client_id), (ABSENT, client_id)
    yield (ABSENT, DEFAULT), (ABSENT, client_id)


# Sensors in the table. A sensor takes about 500 bytes, and checking whether all are idle takes 10 ms.
SENSORS_MAX = 20_000
# The share of the whole windows that a client may be ahead of its quota, or fetch at once. Over all windows (10 s) it
# exceeds its quota by at most this share. Kafka's is 1.
_AHEAD = 0.02
# Users whose further entities share a sensor of the user; the entities of all further users share one sensor.
CROWDS_MAX = 1_000
# Seconds between two searches for idle sensors in a full table.
_SWEEP_EVERY_S = 5.0
# Names longer than this (characters) are kept as digests.
NAME_MAX = 250


@attrs.frozen
class Windows:
    """Kafka's settings: the number of windows over which rates are measured, and their length (s). The last window has
    only begun."""

    count: int = 11
    length_s: float = 1.0
    mutation_count: int = 11
    mutation_length_s: float = 1.0

    @property
    def ahead_s(self) -> float:
        """A client may use the quota of this time (s) at once."""
        return _AHEAD * (self.count - 1) * self.length_s

    @property
    def mutation_ahead_s(self) -> float:
        return self.mutation_count * self.mutation_length_s

    @property
    def request_debt_s(self) -> float:
        """Request time that was used longer ago (s) is forgotten. Its throttle times are short, so a debt would never
        end."""
        return self.count * self.length_s


class SensorTable:
    """The sensors, by the entities that share them. Not thread-safe."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._sensors: dict[tuple[Kind, Pair], TokenBucket] = {}
        # Sensors of entities for which the table has no room.
        self._crowds: dict[tuple[Kind, str | None, float], TokenBucket] = {}
        self._sweep_at = 0.0  # Clock.monotonic() s before which another search for idle sensors is not worthwhile

    def __len__(self) -> int:
        return len(self._sensors) + len(self._crowds)

    def sensor(self, kind: Kind, pair: Pair, quota: float, now: float) -> TokenBucket:
        """The sensor of the clients that share this quota (see ``precedence``)."""
        key = kind, (shortened(pair[0]), shortened(pair[1]))
        sensor = self._sensors.get(key)
        if sensor is None:
            if len(self._sensors) >= SENSORS_MAX and now >= self._sweep_at:
                self.sweep(now)
            if len(self._sensors) >= SENSORS_MAX:
                return self._crowd(kind, key[1][0], quota)
            sensor = self._sensors[key] = self._new(kind)
        return sensor

    def sweep(self, now: float) -> None:
        """Forget idle sensors."""
        self._sensors = {key: sensor for key, sensor in self._sensors.items() if not sensor.idle(now)}
        self._crowds = {crowd: sensor for crowd, sensor in self._crowds.items() if not sensor.idle(now)}
        self._sweep_at = now + _SWEEP_EVERY_S

    def _crowd(self, kind: Kind, user: str | None, quota: float) -> TokenBucket:
        crowd = kind, user if len(self._crowds) < CROWDS_MAX else None, quota
        sensor = self._crowds.get(crowd)
        if sensor is None:
            sensor = self._crowds[crowd] = self._new(kind)
        return sensor

    def _new(self, kind: Kind) -> TokenBucket:
        windows = self._windows
        if kind is Kind.MUTATION:
            return TokenBucket(windows.mutation_ahead_s)
        if kind is Kind.REQUEST:
            return TokenBucket(windows.ahead_s, windows.request_debt_s)
        return TokenBucket(windows.ahead_s)


def shortened(name: str | None) -> str | None:
    """The name, or a digest of it that takes little memory, whatever a client sends."""
    if name is None or len(name) <= NAME_MAX:
        return name
    return f"{name[:32]}...{hashlib.sha256(name.encode()).hexdigest()}"


# Clients whose quotas have been looked up. When there are more, all are looked up again (5 us each).
_CLIENTS_MAX = 20_000


class Meter:
    """One quota of a client, and the sensor of its use, perhaps shared with other clients."""

    __slots__ = ("_take", "kind", "quota", "sensor")

    def __init__(self, kind: Kind, quota: float, sensor: TokenBucket) -> None:
        self.kind = kind
        self.quota = quota
        self.sensor = sensor
        self._take = sensor.take

    def take(self, count: float, now: float) -> float:
        """Count a use. Returns how long (s) the client is to be throttled."""
        return self._take(count, self.quota, now)

    def throttle_s(self, now: float) -> float:
        """How long (s) the client is to be throttled."""
        return self._take(0, self.quota, now)

    def take_unless_in_debt(self, count: float, now: float) -> float:
        """Count a use, unless the client is to be throttled. Returns how long (s)."""
        return self.sensor.take_unless_in_debt(count, self.quota, now)


@attrs.frozen(slots=True, eq=False)
class Meters:
    """The quotas of one client; None for a kind without a quota."""

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
        # The same quotas by kind.
        self._limits: dict[Kind, dict[Pair, float]] = {kind: {} for kind in OF_CLIENTS}
        self._addresses: dict[str, float] = {}
        self.limits_clients = False  # whether any client has a quota; asked for every frame
        self._seen: dict[Pair, Meters] = {}
        self.throttled: Callable[[], int] = lambda: 0  # how many connections are throttled; set by the network
        # How often clients were throttled, and for how many seconds; guarded by the lock.
        self._throttles: dict[tuple[str, ...], float] = {}
        self._throttled_s: dict[tuple[str, ...], float] = {}

    def register_metrics(self, metrics: Registry) -> None:
        metrics.read_counter(names.QUOTA_THROTTLES, lambda: dict(self._throttles))
        metrics.read_counter(names.QUOTA_THROTTLE_SECONDS, lambda: dict(self._throttled_s))
        metrics.gauge(names.QUOTA_THROTTLED_CONNECTIONS, lambda: {(): self.throttled()})
        metrics.gauge(names.QUOTA_SENSORS, lambda: {(): self.sensors})

    def load(self) -> None:
        """Read the catalogue. Call this first."""
        for entity, key, value in self._catalogue.load_quotas():
            self._put(parse_entity(entity), Kind(key), value)

    def reload(self) -> None:
        """Put in force what another node has made of the catalogue. Raises StorageError."""
        with self._changing:
            stored = {(parse_entity(e), Kind(key)): value for e, key, value in self._catalogue.load_quotas()}
            present = {(entity, kind) for entity, quotas in self.entries().items() for kind in quotas}
            with self._lock:
                for entity, kind in present - stored.keys():
                    self._put(entity, kind, None)
                for (entity, kind), value in stored.items():
                    if self._quotas.get(entity, {}).get(kind) != value:
                        self._put(entity, kind, value)
                self._seen = {}
            for changed in self.on_change:
                changed()

    # -- queries ------------------------------------------------------------------------------------------------------

    def limits(self, kind: Kind) -> bool:
        """Whether any client has a quota of this kind."""
        return bool(self._limits[kind])

    def least(self, kind: Kind) -> float | None:
        """The smallest quota of this kind; None without quotas."""
        return min(self._limits[kind].copy().values(), default=None)

    def meters(self, user: str, client_id: str) -> Meters:
        """The quotas of this client. Call it for every request and do not keep the result, because quotas change."""
        return self._seen.get((user, client_id)) or self._look_up(user, client_id)

    def take(self, kind: Kind, user: str, count: float, now: float) -> float:
        """Count a use by a client without a client id. Returns how long (s) it is to be throttled: for the time of its
        requests one window at most. The throttle is counted in the metrics."""
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
        """The number of connections a second that this address may open; None: unlimited."""
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
        """The number of sensors."""
        return len(self._sensors)

    def count_throttle(self, kind: Kind, throttle_s: float) -> None:
        """Count a throttle in the metrics."""
        with self._lock:
            self._throttles[kind,] = self._throttles.get((kind,), 0) + 1
            self._throttled_s[kind,] = self._throttled_s.get((kind,), 0) + throttle_s

    # -- changes ------------------------------------------------------------------------------------------------------

    def alter(self, changes: Iterable[tuple[Entity, Kind, float | None]]) -> None:
        """Set these quotas, or remove those whose value is None. On StorageError nothing has changed."""
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
        # The mapping is replaced, because `entries` reads it without a lock.
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
            fields = {}
            for kind, limits in self._limits.items():
                if limits:
                    for pair, shared_by in precedence(user, client_id):
                        quota = limits.get(pair)
                        if quota is not None:
                            sensor = self._sensors.sensor(kind, shared_by, quota, now)
                            fields[_FIELDS[kind]] = Meter(kind, quota, sensor)
                            break
            meters = Meters(**fields) if fields else UNLIMITED
            if len(self._seen) >= _CLIENTS_MAX:
                self._seen = {}
            if len(user) <= NAME_MAX and len(client_id) <= NAME_MAX:
                self._seen[user, client_id] = meters
            return meters
