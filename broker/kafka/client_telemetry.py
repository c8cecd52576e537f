"""The metrics that clients push (KIP-714): client instances, their subscriptions, and their latest series.

Handler threads call ``ask`` and ``push``, threads that read metrics call ``series``; one lock guards the table and is held for
moments. Pushes are decompressed and parsed without the lock. The table is bounded: a new instance replaces the instance that was
silent for longest, and series beyond the bounds are left out. Each push replaces the client's previous push. A client that is
silent for three intervals is forgotten.

Values are cumulative: clients are told not to send differences, so a lost push does no harm.

``ClientInstance`` is the state of one client, with Kafka's rules for when it may ask and push. It is pure: the time comes in as
``now`` (monotonic, s). It may ask for its subscription if it has neither asked nor pushed for an interval, and push if it has not
pushed for an interval, so it may push as soon as it has asked. After an error that tells it to ask again, it may ask at once.
"""

import base64
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from math import inf
from typing import Final

import attrs

from broker.errors import RequestError
from broker.kafka.configs.client_metrics import INTERVAL_DEFAULT_MS, ClientMetricsConfigs, Subscription
from broker.log import EventLimit, get_logger
from broker.metrics import Labels, Registry, names
from broker.runtime.clock import Clock
from broker.runtime.entropy import Entropy
from broker.runtime.threads import Lock
from protocol.errors import ProtocolError
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.otlp_metrics import Point, parse_metrics
from protocol.kafka.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, DecompressedTooLarge, decompress

ALL: Final = "*"
# How long (s) an instance is remembered at least; else three intervals.
_REMEMBERED_S: Final = 60.0
_ASK_AGAIN: Final = frozenset({ErrorCode.unknown_subscription_id, ErrorCode.unsupported_compression_type})

# The name of a metric, and its attributes as text.
Series = dict[tuple[str, str], float]


@attrs.define(eq=False)
class ClientInstance:
    instance_id: uuid.UUID
    facts: Mapping[str, str]
    version: int  # of the subscriptions
    metrics: tuple[str, ...]  # beginnings of names, or ``ALL`` alone
    interval_ms: int
    series: Series = attrs.Factory(dict)
    last_error: int = int(ErrorCode.none)
    seen_at: float = -inf
    _asked_at: float = attrs.field(default=-inf, init=False)
    _pushed_at: float = attrs.field(default=-inf, init=False)
    _terminating: bool = attrs.field(default=False, init=False)

    @property
    def subscription_id(self) -> int:
        """Identifies metrics and interval, so that a push shows whether the client knows the current ones."""
        text = f"{','.join(self.metrics)};{self.interval_ms};{self.instance_id}"
        return zlib.crc32(text.encode()) - (1 << 31)

    @property
    def expires_at(self) -> float:
        return self.seen_at + max(_REMEMBERED_S, 3 * self.interval_ms / 1000)

    def ask(self, now: float) -> None:
        """The client asks for its subscription. Raises RequestError (throttling_quota_exceeded) if that is too early."""
        if now - max(self._asked_at, self._pushed_at) >= self.interval_ms / 1000:
            self._asked_at = now
        elif self.last_error not in _ASK_AGAIN:
            raise RequestError(ErrorCode.throttling_quota_exceeded, "The push interval is not over.")
        self.last_error = ErrorCode.none

    def push(self, now: float, subscription_id: int, *, terminating: bool) -> None:
        """The client pushes. Raises RequestError: it is too early, or the client is subscribed to something else by now."""
        was_terminating, self._terminating = self._terminating, terminating
        if was_terminating:
            raise RequestError(ErrorCode.invalid_request, "The client has said that it terminates.")
        if now - self._pushed_at >= self.interval_ms / 1000:
            self._pushed_at = now
        elif not terminating:
            raise RequestError(ErrorCode.throttling_quota_exceeded, "The push interval is not over.")
        if subscription_id != self.subscription_id:
            raise RequestError(ErrorCode.unknown_subscription_id, "The subscription has changed: ask for it again.")

    def is_subscribed_to(self, metric: str) -> bool:
        return self.metrics == (ALL,) or metric.startswith(self.metrics)


def subscribed(subscriptions: Iterable[Subscription], facts: Mapping[str, str]) -> tuple[tuple[str, ...], int]:
    """The metrics and the interval (ms) of a client: all metrics of the matching subscriptions, at the shortest of their
    intervals, which is at most the default."""
    metrics: set[str] = set()
    interval_ms = INTERVAL_DEFAULT_MS
    for subscription in subscriptions:
        if subscription.matches(facts):
            metrics.update(subscription.metrics)
            interval_ms = min(interval_ms, subscription.interval_ms)
    return ((ALL,) if ALL in metrics else tuple(sorted(metrics))), interval_ms


log = get_logger("kafka")

# The codecs that clients may use, preferred ones first, as in Kafka.
CODECS: Final = (ZSTD, LZ4, GZIP, SNAPPY)
_INSTANCES_MAX = 1_000
_SERIES_MAX = 1_000  # of an instance
_ALL_SERIES_MAX = 20_000
_NAME_MAX, _ATTRIBUTES_MAX = 200, 500
# Ids that mean "no id".
_RESERVED = (None, uuid.UUID(int=0), uuid.UUID(int=1))


class ClientTelemetry:
    def __init__(self, configs: ClientMetricsConfigs, clock: Clock, entropy: Entropy, max_bytes: int) -> None:
        """``max_bytes``: of a push, as it is sent and when it is decompressed."""
        self.configs = configs
        self.max_bytes = max_bytes
        self._clock = clock
        self._entropy = entropy
        self._lock = Lock()
        self._instances: OrderedDict[uuid.UUID, ClientInstance] = OrderedDict()  # the most recently seen is last
        self._series = 0  # of all instances
        self._limit = EventLimit()

    def ask(self, instance_id: uuid.UUID | None, facts: Mapping[str, str]) -> ClientInstance:
        """The client's subscription; a client without an id gets an id. Raises RequestError."""
        if instance_id is None or instance_id.int == 0:
            instance_id = self._entropy.uuid()
        with self._lock:
            now = self._clock.monotonic()
            instance = self._instance(instance_id, facts, now)
            instance.ask(now)
            return instance

    def push(
        self,
        instance_id: uuid.UUID | None,
        facts: Mapping[str, str],
        subscription_id: int,
        codec: int,
        data: bytes,
        *,
        terminating: bool,
    ) -> None:
        """Keep the client's push, in place of its previous push. Raises RequestError."""
        if instance_id is None or instance_id in _RESERVED:
            raise RequestError(
                ErrorCode.invalid_request, "A push has the client instance id that the client was given."
            )
        with self._lock:
            now = self._clock.monotonic()
            instance = self._instance(instance_id, facts, now)
        try:
            with self._lock:
                instance.push(now, subscription_id, terminating=terminating)
            if codec != NONE and codec not in CODECS:
                raise RequestError(ErrorCode.unsupported_compression_type, f"There is no codec {codec}.")
            points = self._parse(codec, data) if data else []
        except RequestError as error:
            with self._lock:
                instance.last_error = error.code
            raise
        series = _series_of(instance, points)
        with self._lock:
            instance.last_error = ErrorCode.none
            if self._instances.get(instance_id) is instance:
                self._keep(instance, series)
        if len(points) > len(series):
            self._report(instance, len(points) - len(series))

    def _parse(self, codec: int, data: bytes) -> list[Point]:
        if len(data) > self.max_bytes:
            raise RequestError(ErrorCode.telemetry_too_large, f"A push has at most {self.max_bytes} bytes.")
        try:
            return parse_metrics(data if codec == NONE else decompress(codec, data, self.max_bytes))
        except DecompressedTooLarge as error:
            raise RequestError(ErrorCode.telemetry_too_large, str(error)) from None
        except ProtocolError as error:
            raise RequestError(ErrorCode.invalid_record, f"These are no metrics: {error}.") from None

    def _instance(self, instance_id: uuid.UUID, facts: Mapping[str, str], now: float) -> ClientInstance:
        """Under the lock."""
        self._expire(now)
        instance = self._instances.get(instance_id)
        version = self.configs.version
        if instance is None or instance.version != version:
            facts = {**facts, "client_instance_id": kafka_text(instance_id)}
            metrics, interval_ms = subscribed(self.configs.subscriptions, facts)
            series = {} if instance is None else instance.series
            instance = ClientInstance(instance_id, facts, version, metrics, interval_ms, series)
            self._instances[instance_id] = instance
            if len(self._instances) > _INSTANCES_MAX:
                self._forget(next(iter(self._instances)))
        self._instances.move_to_end(instance_id)
        instance.seen_at = now
        return instance

    def _expire(self, now: float) -> None:
        """Under the lock. Every instance is looked at, which is some 0.1 ms at most."""
        for instance in [candidate for candidate in self._instances.values() if candidate.expires_at <= now]:
            self._forget(instance.instance_id)

    def _forget(self, instance_id: uuid.UUID) -> None:
        self._series -= len(self._instances.pop(instance_id).series)

    def _keep(self, instance: ClientInstance, series: Series) -> None:
        """Under the lock."""
        self._series -= len(instance.series)
        room = min(_SERIES_MAX, _ALL_SERIES_MAX - self._series)
        while len(series) > room:
            series.popitem()
        instance.series = series
        self._series += len(series)

    def _report(self, instance: ClientInstance, count: int) -> None:
        unlogged = self._limit.take(self._clock.monotonic())
        if unlogged is not None:
            log.info(
                "client_metrics_left_out",
                client_instance_id=kafka_text(instance.instance_id),
                client_id=instance.facts["client_id"],
                metrics=count,
                unlogged_before=unlogged,
            )

    # -- for the registry ---------------------------------------------------------------------------------------------

    def series(self) -> dict[Labels, float]:
        with self._lock:
            self._expire(self._clock.monotonic())
            pushed = [
                (kafka_text(instance.instance_id), instance.facts["client_id"], instance.series)
                for instance in self._instances.values()
            ]
        return {
            (instance_id, client_id, metric, attributes): value
            for instance_id, client_id, of_instance in pushed
            for (metric, attributes), value in of_instance.items()
        }

    def count(self) -> int:
        with self._lock:
            self._expire(self._clock.monotonic())
            return len(self._instances)

    def register(self, registry: Registry) -> None:
        registry.gauge(names.CLIENT_METRICS, self.series)
        registry.gauge(names.CLIENT_INSTANCES, lambda: {(): self.count()})


def kafka_text(instance_id: uuid.UUID) -> str:
    """An id as Kafka's clients write it in their logs: base64 for URLs."""
    return base64.urlsafe_b64encode(instance_id.bytes).rstrip(b"=").decode()


def _series_of(instance: ClientInstance, points: Iterable[Point]) -> Series:
    """The series to which the client is subscribed, except those with too long names."""
    series: Series = {}
    for metric, attributes, value in points:
        if len(metric) <= _NAME_MAX and instance.is_subscribed_to(metric):
            text = ",".join(f"{key}={attributes[key]}" for key in sorted(attributes))
            if len(text) <= _ATTRIBUTES_MAX:
                series[metric, text] = value
    return series
