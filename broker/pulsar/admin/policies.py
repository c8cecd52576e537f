"""Admin calls about policies, of namespaces and of single topics: Pulsar's paths and JSON for ``broker/pulsar/policies``.

GET shows what was set there, and is answered with 204 if nothing was; with ``applied=true`` it shows what holds. POST (for
some PUT) sets a policy, DELETE takes it back. Of a partitioned topic all partitions share the policies.

A backlog quota has a limit of bytes and one of seconds, which Pulsar sets by two calls with different ``backlogQuotaType``. Here
both have the same policy: that of the last call.

Tests: tests/pulsar/admin/test_policies.py.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final
from uuid import UUID

import attrs

from broker.network.routes import NO_CONTENT, Answer, Call, HttpError, Route, json_answer
from broker.pulsar.admin.calls import namespace_name, number, require_cluster, require_topic, route, topic_name
from broker.pulsar.admin.policy_values import (
    AGE,
    STORAGE,
    parse_count,
    parse_flag,
    parse_object,
    parse_rate,
    parse_retention,
    parse_size,
    parse_strategy,
    quota_json,
    rate_json,
    retention_json,
    same,
)
from broker.pulsar.context import PulsarContext
from broker.pulsar.policies.policies import BacklogQuota, Policies, WhenFull
from broker.pulsar.refusals import TopicNotFound
from broker.pulsar.topic_names import kafka_name
from broker.security.acl import Operation

TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"


@attrs.frozen
class _Policy:
    member: str  # of Policies
    of_namespaces: str  # the end of the path; empty: there is none
    of_topics: str
    parse: Callable[[Any], Any]
    show: Callable[[Any], Any] = same
    method: str = "POST"


_POLICIES: Final = (
    _Policy("message_ttl_s", "messageTTL", "messageTTL", parse_count),
    _Policy("retention", "retention", "retention", parse_retention, retention_json),
    _Policy("deduplication", "deduplication", "deduplicationEnabled", parse_flag),
    _Policy("deduplication", "", "deduplication", parse_flag),
    _Policy("max_producers", "maxProducersPerTopic", "maxProducers", parse_count),
    _Policy("max_consumers", "maxConsumersPerTopic", "maxConsumers", parse_count),
    _Policy(
        "max_consumers_per_subscription", "maxConsumersPerSubscription", "maxConsumersPerSubscription", parse_count
    ),
    _Policy("max_subscriptions", "maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic", parse_count),
    _Policy("max_unacked_per_consumer", "maxUnackedMessagesPerConsumer", "maxUnackedMessagesOnConsumer", parse_count),
    _Policy(
        "max_unacked_per_subscription",
        "maxUnackedMessagesPerSubscription",
        "maxUnackedMessagesOnSubscription",
        parse_count,
    ),
    _Policy("dispatch_rate", "dispatchRate", "dispatchRate", parse_rate, rate_json),
    _Policy(
        "subscription_dispatch_rate", "subscriptionDispatchRate", "subscriptionDispatchRate", parse_rate, rate_json
    ),
    _Policy("compaction_threshold_bytes", "compactionThreshold", "compactionThreshold", parse_size, method="PUT"),
    _Policy("subscription_expiration_minutes", "subscriptionExpirationTime", "", parse_count),
    _Policy(
        "schema_compatibility",
        "schemaCompatibilityStrategy",
        "schemaCompatibilityStrategy",
        parse_strategy,
        method="PUT",
    ),
    _Policy("schema_auto_update", "isAllowAutoUpdateSchema", "", parse_flag),
    _Policy("schema_validation_enforced", "schemaValidationEnforced", "schemaValidationEnforced", parse_flag),
)


# -- where they are set -----------------------------------------------------------------------------------------------------


class _OfNamespaces:
    def __init__(self, context: PulsarContext) -> None:
        self._context = context

    def get(self, call: Call, *, stored: bool = False) -> Policies:
        namespace = namespace_name(call)
        require_cluster(self._context, call, Operation.DESCRIBE)
        self._context.namespaces.require(namespace)
        policies = self._context.policies
        return (
            policies.of_namespace(namespace) if call.flag("applied") and not stored else policies.namespace(namespace)
        )

    def check(self, call: Call) -> None:
        """Before a change. Raises AuthorizationError, TopicNotFound."""
        namespace = namespace_name(call)
        require_cluster(self._context, call, Operation.ALTER)
        self._context.namespaces.require(namespace)

    def set(self, call: Call, **members: Any) -> None:
        self._context.policies.set_namespace(namespace_name(call), **members)


class _OfTopics:
    def __init__(self, context: PulsarContext) -> None:
        self._context = context

    def get(self, call: Call, *, stored: bool = False) -> Policies:
        name = topic_name(call)
        require_topic(self._context, call, Operation.DESCRIBE, name)
        topic_id, policies = self._topic_id(call), self._context.policies
        return (
            policies.of(name.namespace, topic_id) if call.flag("applied") and not stored else policies.topic(topic_id)
        )

    def check(self, call: Call) -> None:
        """Before a change. Raises AuthorizationError, TopicNotFound."""
        require_topic(self._context, call, Operation.ALTER, topic_name(call))
        self._topic_id(call)

    def set(self, call: Call, **members: Any) -> None:
        self._context.policies.set_topic(self._topic_id(call), **members)

    def _topic_id(self, call: Call) -> UUID:
        name = topic_name(call)
        info = self._context.logs.topic(kafka_name(name.whole))
        if info is None:
            raise TopicNotFound(f"Topic {name} not found")
        return info.topic_id


_Place = _OfNamespaces | _OfTopics


class PolicyCalls:
    def __init__(self, context: PulsarContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        namespaces, topics = _OfNamespaces(self._context), _OfTopics(self._context)
        routes = [route("GET", NAMESPACE, partial(_all, namespaces))]
        for policy in _POLICIES:
            if policy.of_namespaces:
                routes += _routes(f"{NAMESPACE}/{policy.of_namespaces}", policy, namespaces)
            if policy.of_topics:
                routes += _routes(f"{TOPIC}/{policy.of_topics}", policy, topics)
        for base, place in ((NAMESPACE, namespaces), (TOPIC, topics)):
            routes += [
                route("GET", f"{base}/backlogQuotaMap", partial(_quotas, place)),
                route("POST", f"{base}/backlogQuota", partial(_set_quota, place)),
                route("DELETE", f"{base}/backlogQuota", partial(_take_quota_back, place)),
                route("GET", f"{base}/delayedDelivery", partial(_delayed, place)),
                route("POST", f"{base}/delayedDelivery", partial(_set_delayed, place)),
                route("DELETE", f"{base}/delayedDelivery", partial(_take_delayed_back, place)),
            ]
        return routes


def _routes(path: str, policy: _Policy, place: _Place) -> Sequence[Route]:
    def get(call: Call) -> Answer:
        value = getattr(place.get(call), policy.member)
        return NO_CONTENT if value is None else json_answer(policy.show(value))

    def put(call: Call) -> Answer:
        place.check(call)
        place.set(call, **{policy.member: policy.parse(call.json())})
        return NO_CONTENT

    def take_back(call: Call) -> Answer:
        place.check(call)
        place.set(call, **{policy.member: None})
        return NO_CONTENT

    return [route("GET", path, get), route(policy.method, path, put), route("DELETE", path, take_back)]


def _all(place: _Place, call: Call) -> Answer:
    """The policies of a namespace in one object, with Pulsar's names."""
    policies = place.get(call)
    found = {
        policy.of_namespaces: policy.show(getattr(policies, policy.member))
        for policy in _POLICIES
        if policy.of_namespaces and getattr(policies, policy.member) is not None
    }
    named = {_IN_ALL.get(key, key): value for key, value in found.items()}
    for rate in _RATES & named.keys():
        named[rate] = {"standalone": named[rate]}  # by cluster
    return json_answer(
        {
            "replication_clusters": ["standalone"],
            "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
            "backlog_quota_map": quota_json(policies.backlog_quota),
            **named,
        }
    )


# Where the object of all policies calls them otherwise than the path of one.
_IN_ALL: Final = {
    "messageTTL": "message_ttl_in_seconds",
    "retention": "retention_policies",
    "deduplication": "deduplicationEnabled",
    "maxProducersPerTopic": "max_producers_per_topic",
    "maxConsumersPerTopic": "max_consumers_per_topic",
    "maxConsumersPerSubscription": "max_consumers_per_subscription",
    "maxSubscriptionsPerTopic": "max_subscriptions_per_topic",
    "maxUnackedMessagesPerConsumer": "max_unacked_messages_per_consumer",
    "maxUnackedMessagesPerSubscription": "max_unacked_messages_per_subscription",
    "compactionThreshold": "compaction_threshold",
    "subscriptionExpirationTime": "subscription_expiration_time_minutes",
    "schemaCompatibilityStrategy": "schema_compatibility_strategy",
    "isAllowAutoUpdateSchema": "is_allow_auto_update_schema",
    "schemaValidationEnforced": "schema_validation_enforced",
    "dispatchRate": "topicDispatchRate",
}
_RATES: Final = frozenset(("topicDispatchRate", "subscriptionDispatchRate"))


# -- backlog quotas and delayed delivery ------------------------------------------------------------------------------------


def _quota_type(call: Call) -> str:
    text = call.query.get("backlogQuotaType") or STORAGE
    if text not in (STORAGE, AGE):
        raise HttpError(400, f"backlogQuotaType is {STORAGE} or {AGE}.")
    return text


def _quotas(place: _Place, call: Call) -> Answer:
    return json_answer(quota_json(place.get(call).backlog_quota))


def _set_quota(place: _Place, call: Call) -> Answer:
    place.check(call)
    kind, found = _quota_type(call), parse_object(call.json())
    try:
        policy = WhenFull(found.get("policy", ""))
    except ValueError:
        raise HttpError(412, f"The policy of a backlog quota has to be one of {', '.join(WhenFull)}.") from None
    before = place.get(call, stored=True).backlog_quota or BacklogQuota()
    if kind == STORAGE:
        limit = number(found.get("limitSize", found.get("limit", -1)), "limitSize", -1)
        changed = attrs.evolve(before, limit_bytes=limit, policy=policy)
    else:
        limit = number(found.get("limitTime", -1), "limitTime", -1)
        changed = attrs.evolve(before, limit_s=limit, policy=policy)
    place.set(call, backlog_quota=changed)
    return NO_CONTENT


def _take_quota_back(place: _Place, call: Call) -> Answer:
    place.check(call)
    kind, quota = _quota_type(call), place.get(call, stored=True).backlog_quota
    if quota is not None:
        quota = attrs.evolve(quota, limit_bytes=-1) if kind == STORAGE else attrs.evolve(quota, limit_s=-1)
        if quota.limit_bytes < 0 and quota.limit_s < 0:
            quota = None
    place.set(call, backlog_quota=quota)
    return NO_CONTENT


def _delayed(place: _Place, call: Call) -> Answer:
    policies = place.get(call)
    if policies.delayed_delivery is None:
        return NO_CONTENT
    tick_ms = 1000 if policies.delayed_delivery_tick_ms is None else policies.delayed_delivery_tick_ms
    return json_answer({"active": policies.delayed_delivery, "tickTime": tick_ms, "maxDeliveryDelayInMillis": 0})


def _set_delayed(place: _Place, call: Call) -> Answer:
    place.check(call)
    found = parse_object(call.json())
    active, tick_ms = parse_flag(found.get("active", True)), number(found.get("tickTime", 1000), "tickTime", 1)
    if found.get("maxDeliveryDelayInMillis"):
        raise HttpError(412, "This broker does not bound the delay of messages.")
    place.set(call, delayed_delivery=active, delayed_delivery_tick_ms=tick_ms)
    return NO_CONTENT


def _take_delayed_back(place: _Place, call: Call) -> Answer:
    place.check(call)
    place.set(call, delayed_delivery=None, delayed_delivery_tick_ms=None)
    return NO_CONTENT
