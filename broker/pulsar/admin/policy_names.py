"""The policies by the names that Pulsar's admin API has for them: in its paths, and in the object of all of a namespace's
policies, which GET shows and with which PUT makes a namespace. Pure.

Tests: tests/pulsar/admin/test_policies.py.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from broker.pulsar.admin.policy_values import (
    AGE,
    STORAGE,
    auto_subscription_json,
    auto_topic_json,
    inactivity_json,
    parse_auto_subscription,
    parse_auto_topic,
    parse_count,
    parse_flag,
    parse_inactivity,
    parse_object,
    parse_persistence,
    parse_properties,
    parse_publish_rate,
    parse_quota,
    parse_rate,
    parse_retention,
    parse_size,
    parse_strategy,
    parse_subscribe_rate,
    parse_types,
    persistence_json,
    publish_rate_json,
    quota_json,
    rate_json,
    retention_json,
    same,
    subscribe_rate_json,
)
from broker.pulsar.policies.policies import BacklogQuota, Policies

CLUSTER: Final = "standalone"


@attrs.frozen
class Policy:
    member: str  # of Policies
    of_namespaces: str  # the end of the path; empty: there is none
    of_topics: str
    parse: Callable[[Any], Any]
    show: Callable[[Any], Any] = same
    method: str = "POST"


POLICIES: Final = (
    Policy("message_ttl_s", "messageTTL", "messageTTL", parse_count),
    Policy("retention", "retention", "retention", parse_retention, retention_json),
    Policy("deduplication", "deduplication", "deduplicationEnabled", parse_flag),
    Policy("deduplication", "", "deduplication", parse_flag),
    Policy("max_producers", "maxProducersPerTopic", "maxProducers", parse_count),
    Policy("max_consumers", "maxConsumersPerTopic", "maxConsumers", parse_count),
    Policy("max_consumers_per_subscription", "maxConsumersPerSubscription", "maxConsumersPerSubscription", parse_count),
    Policy("max_subscriptions", "maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic", parse_count),
    Policy("max_unacked_per_consumer", "maxUnackedMessagesPerConsumer", "maxUnackedMessagesOnConsumer", parse_count),
    Policy(
        "max_unacked_per_subscription",
        "maxUnackedMessagesPerSubscription",
        "maxUnackedMessagesOnSubscription",
        parse_count,
    ),
    Policy("dispatch_rate", "dispatchRate", "dispatchRate", parse_rate, rate_json),
    Policy("subscription_dispatch_rate", "subscriptionDispatchRate", "subscriptionDispatchRate", parse_rate, rate_json),
    Policy("publish_rate", "publishRate", "publishRate", parse_publish_rate, publish_rate_json),
    Policy("compaction_threshold_bytes", "compactionThreshold", "compactionThreshold", parse_size, method="PUT"),
    Policy("subscription_expiration_minutes", "subscriptionExpirationTime", "", parse_count),
    Policy(
        "schema_compatibility",
        "schemaCompatibilityStrategy",
        "schemaCompatibilityStrategy",
        parse_strategy,
        method="PUT",
    ),
    Policy("schema_auto_update", "isAllowAutoUpdateSchema", "", parse_flag),
    Policy("encryption_required", "encryptionRequired", "", parse_flag),
    Policy("subscribe_rate", "subscribeRate", "subscribeRate", parse_subscribe_rate, subscribe_rate_json),
    Policy("subscription_types", "subscriptionTypesEnabled", "subscriptionTypesEnabled", parse_types, list),
    Policy("auto_topic_creation", "autoTopicCreation", "", parse_auto_topic, auto_topic_json),
    Policy(
        "auto_subscription_creation",
        "autoSubscriptionCreation",
        "autoSubscriptionCreation",
        parse_auto_subscription,
        auto_subscription_json,
    ),
    Policy("max_topics", "maxTopicsPerNamespace", "", parse_count),
    Policy("inactivity", "inactiveTopicPolicies", "inactiveTopicPolicies", parse_inactivity, inactivity_json),
    Policy("persistence", "persistence", "persistence", parse_persistence, persistence_json),
    Policy("schema_validation_enforced", "schemaValidationEnforced", "schemaValidationEnforced", parse_flag),
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
    "encryptionRequired": "encryption_required",
    "dispatchRate": "topicDispatchRate",
    "publishRate": "publishMaxMessageRate",
    "subscribeRate": "clusterSubscribeRate",
    "subscriptionTypesEnabled": "subscription_types_enabled",
    "autoTopicCreation": "autoTopicCreationOverride",
    "autoSubscriptionCreation": "autoSubscriptionCreationOverride",
    "maxTopicsPerNamespace": "max_topics_per_namespace",
    "inactiveTopicPolicies": "inactive_topic_policies",
}
# These are given by cluster.
_RATES: Final = frozenset(
    ("topicDispatchRate", "subscriptionDispatchRate", "publishMaxMessageRate", "clusterSubscribeRate")
)
# These are false where nobody has set them: the broker's setting holds.
_OFTEN_FALSE: Final = frozenset(("encryption_required", "schema_validation_enforced"))


def policies_json(policies: Policies) -> Mapping[str, Any]:
    """The policies of a namespace in one object."""
    found: dict[str, Any] = {}
    for policy, name in _of_namespaces():
        value = getattr(policies, policy.member)
        if value is not None:
            shown = policy.show(value)
            found[name] = {CLUSTER: shown} if name in _RATES else shown
    return {
        "replication_clusters": [CLUSTER],
        "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
        "backlog_quota_map": quota_json(policies.backlog_quota),
        "properties": dict(policies.properties or {}),
        **found,
    }


def parse_policies(found: Mapping[str, Any]) -> Policies:
    """The same, read. Members that are null, or that this broker does not know, are left out. Raises HttpError."""
    members: dict[str, Any] = {}
    for policy, name in _of_namespaces():
        value = found.get(name)
        if name in _RATES and value is not None:
            value = parse_object(value).get(CLUSTER)
        if value is not None and not (value is False and policy.member in _OFTEN_FALSE):
            members[policy.member] = policy.parse(value)
    quota: BacklogQuota | None = None
    for kind, value in parse_object(found.get("backlog_quota_map") or {}).items():
        if kind in (STORAGE, AGE):
            quota = parse_quota(quota or BacklogQuota(), kind, value)
    properties = parse_properties(found.get("properties") or {}) or None
    return Policies(backlog_quota=quota, properties=properties, **members)


def _of_namespaces() -> list[tuple[Policy, str]]:
    return [(one, _IN_ALL.get(one.of_namespaces, one.of_namespaces)) for one in POLICIES if one.of_namespaces]
