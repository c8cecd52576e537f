"""The policies of a namespace or of a topic. Pure values.

None means that a policy is not set: a topic then has its namespace's policy, and a namespace the broker's (``BROKER``, or the
settings). In the catalogue policies are JSON; unknown members are ignored, so that a broker can read the policies that a newer
version wrote.

Tests: tests/pulsar/policies/test_store.py.
"""

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final

import attrs

from broker.errors import StorageError
from broker.pulsar.schemas.compatibility import Strategy

UNLIMITED: Final = -1


class WhenFull(StrEnum):
    """The reaction to a backlog over its quota, by Pulsar's names."""

    HOLD = "producer_request_hold"
    EXCEPTION = "producer_exception"
    EVICT = "consumer_backlog_eviction"


@attrs.frozen
class Retention:
    """How much of a topic is kept although all subscriptions have acknowledged it. -1: no limit."""

    minutes: int = 0
    megabytes: int = 0


@attrs.frozen
class BacklogQuota:
    """-1: no limit."""

    limit_bytes: int = UNLIMITED
    limit_s: int = UNLIMITED
    policy: WhenFull = attrs.field(default=WhenFull.HOLD, converter=WhenFull)


@attrs.frozen
class Rate:
    """-1 or 0: no limit."""

    messages: int = UNLIMITED
    bytes: int = UNLIMITED
    period_s: int = 1


@attrs.frozen
class AutoCreation:
    """Whether using a topic creates it, and with how many partitions (0: not partitioned)."""

    allowed: bool = True
    partitions: int = 0


class DeleteWhen(StrEnum):
    """Which topics without producers and consumers are inactive, by Pulsar's names."""

    NO_SUBSCRIPTIONS = "delete_when_no_subscriptions"
    CAUGHT_UP = "delete_when_subscriptions_caught_up"


@attrs.frozen
class Inactivity:
    """Whether topics are deleted after having been inactive for ``after_s``."""

    delete: bool = False
    after_s: int = 60
    when: DeleteWhen = attrs.field(default=DeleteWhen.NO_SUBSCRIPTIONS, converter=DeleteWhen)


@attrs.frozen
class Persistence:
    """How many bookies store a message. It is stored and shown, but has no effect here."""

    ensemble: int = 1
    write_quorum: int = 1
    ack_quorum: int = 1
    mark_delete_rate: float = 1.0


@attrs.frozen(kw_only=True)
class Policies:
    """A bound of 0 means no bound."""

    retention: Retention | None = None
    message_ttl_s: int | None = None  # 0: none
    backlog_quota: BacklogQuota | None = None
    deduplication: bool | None = None
    max_producers: int | None = None  # of a topic
    max_consumers: int | None = None  # of a topic
    max_consumers_per_subscription: int | None = None
    max_subscriptions: int | None = None  # of a topic
    max_unacked_per_consumer: int | None = None
    max_unacked_per_subscription: int | None = None
    dispatch_rate: Rate | None = None  # of a topic
    subscription_dispatch_rate: Rate | None = None
    # Of a topic: rates of single subscriptions, by name. They take precedence over ``subscription_dispatch_rate``.
    subscription_dispatch_rates: Mapping[str, Rate] | None = None
    publish_rate: Rate | None = None  # of a topic, or of each of its partitions
    subscribe_rate: Rate | None = None  # how often a consumer may subscribe
    subscription_types: tuple[str, ...] | None = None  # that may be used
    auto_subscription_creation: bool | None = None  # whether consumers create subscriptions
    auto_topic_creation: AutoCreation | None = None  # of namespaces
    max_topics: int | None = None  # of namespaces; each partition counts
    inactivity: Inactivity | None = None
    persistence: Persistence | None = None
    properties: Mapping[str, str] | None = None  # of namespaces
    delayed_delivery: bool | None = None
    delayed_delivery_tick_ms: int | None = None
    compaction_threshold_bytes: int | None = None  # 0: only on demand
    subscription_expiration_minutes: int | None = None  # 0: never
    schema_compatibility: Strategy | None = None
    schema_auto_update: bool | None = None  # whether clients may add versions
    schema_validation_enforced: bool | None = None  # whether producers need a schema if the topic has a schema
    encryption_required: bool | None = None  # whether Pulsar's producers have to encrypt

    def over(self, other: "Policies") -> "Policies":
        """These policies, with those of ``other`` where they are not set."""
        return attrs.evolve(other, **{name: value for name, value in _members(self) if value is not None})


# Pulsar's defaults for the policies that the broker's settings do not set.
BROKER: Final = Policies(
    message_ttl_s=0,
    backlog_quota=BacklogQuota(),
    deduplication=False,
    dispatch_rate=Rate(),
    subscription_dispatch_rate=Rate(),
    publish_rate=Rate(),
    subscribe_rate=Rate(period_s=30),
    auto_subscription_creation=True,
    inactivity=Inactivity(),
    persistence=Persistence(),
    delayed_delivery=True,
    compaction_threshold_bytes=0,
    subscription_expiration_minutes=0,
    schema_compatibility=Strategy.FULL,
    schema_auto_update=True,
    schema_validation_enforced=False,
    encryption_required=False,
)


def _made(kind: type) -> Callable[[Mapping[str, Any]], Any]:
    """A converter from JSON to ``kind`` that ignores unknown members."""
    known = {field.name for field in attrs.fields(kind)}
    return lambda members: kind(**{key: value for key, value in members.items() if key in known})


_VALUES: Final[dict[str, Callable[[Any], Any]]] = {
    "retention": _made(Retention),
    "backlog_quota": _made(BacklogQuota),
    "dispatch_rate": _made(Rate),
    "subscription_dispatch_rate": _made(Rate),
    "subscription_dispatch_rates": lambda rates: {name: _made(Rate)(rate) for name, rate in rates.items()},
    "publish_rate": _made(Rate),
    "subscribe_rate": _made(Rate),
    "subscription_types": tuple,
    "auto_topic_creation": _made(AutoCreation),
    "inactivity": _made(Inactivity),
    "persistence": _made(Persistence),
    "schema_compatibility": Strategy,
}
_NAMES: Final = frozenset(field.name for field in attrs.fields(Policies))


def _members(policies: Policies) -> list[tuple[str, Any]]:
    return [(name, getattr(policies, name)) for name in sorted(_NAMES)]


def encode(policies: Policies) -> bytes:
    members = {name: value for name, value in attrs.asdict(policies).items() if value is not None}
    return json.dumps(members, separators=(",", ":")).encode()


def decode(body: bytes) -> Policies:
    """Raises StorageError."""
    try:
        members = {name: value for name, value in json.loads(body).items() if name in _NAMES}
        for name, make in _VALUES.items():
            if name in members:
                members[name] = make(members[name])
        return Policies(**members)
    except (ValueError, TypeError, AttributeError):
        raise StorageError("The catalogue has policies that cannot be read.") from None
