"""The policies of a namespace or of a topic. Pure values.

A policy that is None is not set there: a topic has then that of its namespace, and a namespace that of the broker (``BROKER``,
or the settings). In the catalogue they are JSON; a member that this version does not know is kept out, so that an older broker
can read what a newer one has written.

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
    """What happens when the backlog is over its quota: Pulsar's names."""

    HOLD = "producer_request_hold"
    EXCEPTION = "producer_exception"
    EVICT = "consumer_backlog_eviction"


@attrs.frozen
class Retention:
    """What is kept of a topic although all subscriptions have acknowledged it. -1: without limit."""

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
    """Whether topics are made by whoever asks for them, and with how many partitions (0: without)."""

    allowed: bool = True
    partitions: int = 0


class DeleteWhen(StrEnum):
    """Which topics without producers and consumers are inactive: Pulsar's names."""

    NO_SUBSCRIPTIONS = "delete_when_no_subscriptions"
    CAUGHT_UP = "delete_when_subscriptions_caught_up"


@attrs.frozen
class Inactivity:
    """What happens to topics that have been inactive for so long."""

    delete: bool = False
    after_s: int = 60
    when: DeleteWhen = attrs.field(default=DeleteWhen.NO_SUBSCRIPTIONS, converter=DeleteWhen)


@attrs.frozen
class Persistence:
    """How many bookies keep a message. Nothing here goes by it; it is kept to be shown."""

    ensemble: int = 1
    write_quorum: int = 1
    ack_quorum: int = 1
    mark_delete_rate: float = 1.0


@attrs.frozen(kw_only=True)
class Policies:
    """Bounds of 0 are none."""

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
    # Of a topic: those of single subscriptions, by name, before ``subscription_dispatch_rate``.
    subscription_dispatch_rates: Mapping[str, Rate] | None = None
    publish_rate: Rate | None = None  # of a topic, or of each of its partitions
    subscribe_rate: Rate | None = None  # how often a consumer may subscribe
    subscription_types: tuple[str, ...] | None = None  # that may be used
    auto_subscription_creation: bool | None = None  # whether consumers make subscriptions
    auto_topic_creation: AutoCreation | None = None  # of namespaces
    max_topics: int | None = None  # of namespaces: partitions count one by one
    inactivity: Inactivity | None = None
    persistence: Persistence | None = None
    properties: Mapping[str, str] | None = None  # of namespaces
    delayed_delivery: bool | None = None
    delayed_delivery_tick_ms: int | None = None
    compaction_threshold_bytes: int | None = None  # 0: only on demand
    subscription_expiration_minutes: int | None = None  # 0: never
    schema_compatibility: Strategy | None = None
    schema_auto_update: bool | None = None  # whether clients may add versions
    schema_validation_enforced: bool | None = None  # whether producers need a schema where the topic has one
    encryption_required: bool | None = None  # whether Pulsar's producers have to encrypt

    def over(self, other: "Policies") -> "Policies":
        """These, and those of ``other`` where they are not set."""
        return attrs.evolve(other, **{name: value for name, value in _members(self) if value is not None})


# The policies that are not set by settings, as Pulsar has them.
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
    """Members that this version does not know are left out."""
    known = {one.name for one in attrs.fields(kind)}
    return lambda found: kind(**{key: value for key, value in found.items() if key in known})


_VALUES: Final[dict[str, Callable[[Any], Any]]] = {
    "retention": _made(Retention),
    "backlog_quota": _made(BacklogQuota),
    "dispatch_rate": _made(Rate),
    "subscription_dispatch_rate": _made(Rate),
    "subscription_dispatch_rates": lambda found: {name: _made(Rate)(rate) for name, rate in found.items()},
    "publish_rate": _made(Rate),
    "subscribe_rate": _made(Rate),
    "subscription_types": tuple,
    "auto_topic_creation": _made(AutoCreation),
    "inactivity": _made(Inactivity),
    "persistence": _made(Persistence),
    "schema_compatibility": Strategy,
}
_NAMES: Final = frozenset(one.name for one in attrs.fields(Policies))


def _members(policies: Policies) -> list[tuple[str, Any]]:
    return [(name, getattr(policies, name)) for name in sorted(_NAMES)]


def encode(policies: Policies) -> bytes:
    found = {name: value for name, value in attrs.asdict(policies).items() if value is not None}
    return json.dumps(found, separators=(",", ":")).encode()


def decode(body: bytes) -> Policies:
    """Raises StorageError."""
    try:
        found = {name: value for name, value in json.loads(body).items() if name in _NAMES}
        for name, make in _VALUES.items():
            if name in found:
                found[name] = make(found[name])
        return Policies(**found)
    except (ValueError, TypeError, AttributeError):
        raise StorageError("The catalogue has policies that cannot be read.") from None
