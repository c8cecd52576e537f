"""A client that pushes metrics, as the broker remembers it: what it is subscribed to, when it may ask and push, as Kafka has it,
and what it has pushed last.

A client may ask for its subscription when it has neither asked nor pushed for an interval, and push when it has not pushed for
an interval: so it may push as soon as it has asked. After an error that tells it to ask again, it may ask at once.

Pure: the time comes in as ``now`` (monotonic, s). Under the lock of ``ClientTelemetry``.
"""

import uuid
import zlib
from collections.abc import Iterable, Mapping
from math import inf
from typing import Final

import attrs

from broker.errors import RequestError
from broker.kafka.configs.client_metrics import INTERVAL_DEFAULT_MS, Subscription
from protocol.kafka.errors import ErrorCode

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
        """Says whether a push is about the metrics, and of the interval, that the client should know."""
        text = f"{','.join(self.metrics)};{self.interval_ms};{self.instance_id}"
        return zlib.crc32(text.encode()) - (1 << 31)

    @property
    def expires_at(self) -> float:
        return self.seen_at + max(_REMEMBERED_S, 3 * self.interval_ms / 1000)

    def ask(self, now: float) -> None:
        """The client asks what it is subscribed to. Raises RequestError (throttling_quota_exceeded) if that is too early."""
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
    """The metrics and the interval (ms) of a client: everything that the subscriptions that match it want, as often as any of
    them wants it, and never less often than by default."""
    metrics: set[str] = set()
    interval_ms = INTERVAL_DEFAULT_MS
    for one in subscriptions:
        if one.matches(facts):
            metrics.update(one.metrics)
            interval_ms = min(interval_ms, one.interval_ms)
    return ((ALL,) if ALL in metrics else tuple(sorted(metrics))), interval_ms
