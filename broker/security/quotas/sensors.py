"""What clients have used of their quotas: one sensor, a bucket of tokens, for each entity that shares a quota.

Any thread may use a sensor. The table is guarded by its owner, and it is bounded. A sensor that is idle says what a new one would
say, so it may be forgotten at any time. One that is not idle is never forgotten: otherwise a client could escape
its debt by making up client ids until its sensor has to go. When the table is full of sensors that are in use, further entities
share one for each user and quota.
"""

import hashlib

import attrs

from broker.security.quotas.entities import Kind, Pair
from broker.security.quotas.token_bucket import TokenBucket

# Sensors in the table. One takes about 500 bytes, and looking whether all are idle takes 10 ms.
SENSORS_MAX = 20_000
# The share of the whole windows that a client may be ahead of its quota, or fetch at once. Over all of them (10 s) it gets so
# much more than its quota at most. Kafka's is 1.
_AHEAD = 0.02
# Users whose further entities share a sensor of the user's own; those of all further users share one.
CROWDS_MAX = 1_000
# Seconds between two looks for idle sensors in a full table.
_SWEEP_EVERY_S = 5.0
# Longer names (characters) are kept as digests.
NAME_MAX = 250


@attrs.frozen
class Windows:
    """Kafka's settings: over how many windows of which length (s) rates are measured. The last one has only begun."""

    count: int = 11
    length_s: float = 1.0
    mutation_count: int = 11
    mutation_length_s: float = 1.0

    @property
    def ahead_s(self) -> float:
        """What the quota allows in this time may be used at once."""
        return _AHEAD * (self.count - 1) * self.length_s

    @property
    def mutation_ahead_s(self) -> float:
        return self.mutation_count * self.mutation_length_s

    @property
    def request_debt_s(self) -> float:
        """Longer ago, the time that requests took is forgotten. Their throttle times are short, so it would never end."""
        return self.count * self.length_s


class SensorTable:
    """The sensors by who shares them. Not guarded."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._sensors: dict[tuple[Kind, Pair], TokenBucket] = {}
        # Of entities for which there is no room.
        self._crowds: dict[tuple[Kind, str | None, float], TokenBucket] = {}
        self._sweep_at = 0.0  # Clock.monotonic() s before which looking for idle ones again is not worth its time

    def __len__(self) -> int:
        return len(self._sensors) + len(self._crowds)

    def sensor(self, kind: Kind, pair: Pair, quota: float, now: float) -> TokenBucket:
        """The sensor of those who share this quota (see ``entities.precedence``)."""
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
        """Forget the idle ones."""
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
    """A name that takes little memory, whatever a client sends."""
    if name is None or len(name) <= NAME_MAX:
        return name
    return f"{name[:32]}...{hashlib.sha256(name.encode()).hexdigest()}"
