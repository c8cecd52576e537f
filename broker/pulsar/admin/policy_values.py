"""Converts policies between their values and Pulsar's JSON, and lists them by their names in Pulsar's admin API.

A policy has a name in paths, and a name in the object of all policies of a namespace, which GET shows and with which PUT creates
a namespace. Pure. Functions that parse raise HttpError.

Tests: tests/pulsar/admin/test_policies.py.
"""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final

import attrs

from broker.pulsar.admin.calls import number
from broker.pulsar.dispatch.dispatcher import NAMES
from broker.pulsar.policies.policies import (
    AutoCreation,
    BacklogQuota,
    DeleteWhen,
    Inactivity,
    Persistence,
    Policies,
    Rate,
    Retention,
    WhenFull,
)
from broker.pulsar.schemas.compatibility import Strategy
from broker.web.routes import HttpError

# The names of a backlog quota's two limits.
STORAGE, AGE = "destination_storage", "message_age"
_COUNT_MAX: Final = 2**31 - 1
# The most partitions of a topic that is created on demand. The broker's own bound is checked when it is created.
_PARTITIONS_MAX: Final = 10_000
# Characters of the properties of a topic or of a namespace together.
PROPERTIES_MAX: Final = 16 * 1024


def parse_count(value: Any) -> int:
    count = number(value, "The body")
    if count > _COUNT_MAX:
        raise HttpError(412, f"The number is at most {_COUNT_MAX}.")
    return count


def parse_size(value: Any) -> int:
    return number(value, "The body")


def parse_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise HttpError(400, "The body has to be true or false.")
    return value


def parse_strategy(value: Any) -> Strategy | None:
    if value == "UNDEFINED":
        return None
    try:
        return Strategy(value)
    except ValueError:
        raise HttpError(412, f"The strategy has to be one of {', '.join(Strategy)}.") from None


def parse_object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise HttpError(400, "The body has to be a JSON object.")
    return value


def parse_retention(value: Any) -> Retention:
    body = parse_object(value)
    minutes, megabytes = (number(body.get(key, 0), key, -1) for key in ("retentionTimeInMinutes", "retentionSizeInMB"))
    if (minutes == 0) != (megabytes == 0):
        raise HttpError(412, "Set neither or both of retentionTimeInMinutes and retentionSizeInMB to 0.")
    return Retention(minutes, megabytes)


def retention_json(retention: Retention) -> Any:
    return {"retentionTimeInMinutes": retention.minutes, "retentionSizeInMB": retention.megabytes}


def parse_rate(value: Any) -> Rate:
    body = parse_object(value)
    return Rate(
        number(body.get("dispatchThrottlingRateInMsg", -1), "dispatchThrottlingRateInMsg", -1),
        number(body.get("dispatchThrottlingRateInByte", -1), "dispatchThrottlingRateInByte", -1),
        number(body.get("ratePeriodInSecond", 1), "ratePeriodInSecond", 1),
    )


def rate_json(rate: Rate) -> Any:
    return {
        "dispatchThrottlingRateInMsg": rate.messages,
        "dispatchThrottlingRateInByte": rate.bytes,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": rate.period_s,
    }


def parse_publish_rate(value: Any) -> Rate:
    body = parse_object(value)
    return Rate(
        number(body.get("publishThrottlingRateInMsg", -1), "publishThrottlingRateInMsg", -1),
        number(body.get("publishThrottlingRateInByte", -1), "publishThrottlingRateInByte", -1),
    )


def publish_rate_json(rate: Rate) -> Any:
    return {"publishThrottlingRateInMsg": rate.messages, "publishThrottlingRateInByte": rate.bytes}


def parse_subscribe_rate(value: Any) -> Rate:
    body = parse_object(value)
    return Rate(
        number(body.get("subscribeThrottlingRatePerConsumer", -1), "subscribeThrottlingRatePerConsumer", -1),
        period_s=number(body.get("ratePeriodInSecond", 30), "ratePeriodInSecond", 1),
    )


def subscribe_rate_json(rate: Rate) -> Any:
    return {"subscribeThrottlingRatePerConsumer": rate.messages, "ratePeriodInSecond": rate.period_s}


def parse_types(value: Any) -> tuple[str, ...] | None:
    """An empty list removes the policy, as in Pulsar."""
    if not isinstance(value, list) or not all(isinstance(each, str) and each in NAMES.values() for each in value):
        raise HttpError(412, f"The body has to be a list of types: {', '.join(NAMES.values())}.")
    return tuple(sorted(set(value))) or None


def parse_auto_topic(value: Any) -> AutoCreation:
    body = parse_object(value)
    allowed, kind = parse_flag(body.get("allowAutoTopicCreation", False)), body.get("topicType")
    partitions = body.get("defaultNumPartitions")
    if not allowed:
        return AutoCreation(False)
    if kind == "non-partitioned" and partitions is None:
        return AutoCreation()
    if kind != "partitioned":
        raise HttpError(412, "Set topicType to partitioned with defaultNumPartitions, or to non-partitioned without.")
    count = number(partitions, "defaultNumPartitions", 1)
    if count > _PARTITIONS_MAX:
        raise HttpError(406, f"defaultNumPartitions is at most {_PARTITIONS_MAX}.")
    return AutoCreation(True, count)


def auto_topic_json(creation: AutoCreation) -> Any:
    if not creation.allowed:
        return {"allowAutoTopicCreation": False}
    kind = {"topicType": "partitioned" if creation.partitions else "non-partitioned"}
    counted = {"defaultNumPartitions": creation.partitions} if creation.partitions else {}
    return {"allowAutoTopicCreation": True, **kind, **counted}


def parse_auto_subscription(value: Any) -> bool:
    return parse_flag(parse_object(value).get("allowAutoSubscriptionCreation"))


def auto_subscription_json(allowed: bool) -> Any:
    return {"allowAutoSubscriptionCreation": allowed}


def parse_inactivity(value: Any) -> Inactivity:
    body = parse_object(value)
    try:
        when = DeleteWhen(body.get("inactiveTopicDeleteMode", DeleteWhen.NO_SUBSCRIPTIONS))
    except ValueError:
        raise HttpError(412, f"inactiveTopicDeleteMode has to be one of {', '.join(DeleteWhen)}.") from None
    delete = parse_flag(body.get("deleteWhileInactive", False))
    after_s = number(body.get("maxInactiveDurationSeconds", 60), "maxInactiveDurationSeconds", 1 if delete else 0)
    return Inactivity(delete, after_s, when)


def inactivity_json(inactivity: Inactivity) -> Any:
    return {
        "inactiveTopicDeleteMode": str(inactivity.when),
        "maxInactiveDurationSeconds": inactivity.after_s,
        "deleteWhileInactive": inactivity.delete,
    }


def parse_persistence(value: Any) -> Persistence:
    body = parse_object(value)
    ensemble, write, ack = (
        number(body.get(f"bookkeeper{name}", 1), f"bookkeeper{name}", 1)
        for name in ("Ensemble", "WriteQuorum", "AckQuorum")
    )
    rate = body.get("managedLedgerMaxMarkDeleteRate", 1.0)
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= _COUNT_MAX or not isfinite(rate):
        raise HttpError(400, "managedLedgerMaxMarkDeleteRate has to be a number of at least 0.")
    if not ensemble >= write >= ack:
        raise HttpError(412, "bookkeeperEnsemble >= bookkeeperWriteQuorum >= bookkeeperAckQuorum has to hold.")
    return Persistence(ensemble, write, ack, float(rate))


def persistence_json(persistence: Persistence) -> Any:
    return {
        "bookkeeperEnsemble": persistence.ensemble,
        "bookkeeperWriteQuorum": persistence.write_quorum,
        "bookkeeperAckQuorum": persistence.ack_quorum,
        "managedLedgerMaxMarkDeleteRate": persistence.mark_delete_rate,
    }


def parse_properties(value: Any) -> Mapping[str, str]:
    """The properties of a topic or of a namespace."""
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise HttpError(400, "Properties have to be a JSON object of texts.")
    if sum(len(key) + len(text) for key, text in value.items()) > PROPERTIES_MAX:
        raise HttpError(400, f"Properties have at most {PROPERTIES_MAX} characters together.")
    return value


def same(value: Any) -> Any:
    return value


def parse_quota(before: BacklogQuota, kind: str, value: Any) -> BacklogQuota:
    """``before`` with the limit of this kind, STORAGE or AGE, and the policy of ``value``."""
    body = parse_object(value)
    try:
        policy = WhenFull(body.get("policy", ""))
    except ValueError:
        raise HttpError(412, f"The policy of a backlog quota has to be one of {', '.join(WhenFull)}.") from None
    if kind == STORAGE:
        limit = number(body.get("limitSize", body.get("limit", -1)), "limitSize", -1)
        return attrs.evolve(before, limit_bytes=limit, policy=policy)
    limit = number(body.get("limitTime", -1), "limitTime", -1)
    return attrs.evolve(before, limit_s=limit, policy=policy)


def quota_json(quota: BacklogQuota | None) -> Any:
    if quota is None:
        return {}
    shown = {
        "limit": quota.limit_bytes,
        "limitSize": quota.limit_bytes,
        "limitTime": quota.limit_s,
        "policy": str(quota.policy),
    }
    kinds = [kind for kind, limit in ((STORAGE, quota.limit_bytes), (AGE, quota.limit_s)) if limit >= 0]
    return dict.fromkeys(kinds, shown)


CLUSTER: Final = "standalone"


@attrs.frozen
class Policy:
    member: str  # of Policies
    of_namespaces: str  # the end of the path; empty if there is no such path
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

# The names in the object of all policies that differ from those in the paths.
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
# These have a value for each cluster.
_RATES: Final = frozenset(
    ("topicDispatchRate", "subscriptionDispatchRate", "publishMaxMessageRate", "clusterSubscribeRate")
)
# Pulsar shows these as false if they are not set, so false means that the broker's setting is in force.
_OFTEN_FALSE: Final = frozenset(("encryption_required", "schema_validation_enforced"))


def policies_json(policies: Policies) -> Mapping[str, Any]:
    """The object of all policies of a namespace."""
    members: dict[str, Any] = {}
    for policy, name in _of_namespaces():
        value = getattr(policies, policy.member)
        if value is not None:
            shown = policy.show(value)
            members[name] = {CLUSTER: shown} if name in _RATES else shown
    return {
        "replication_clusters": [CLUSTER],
        "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
        "backlog_quota_map": quota_json(policies.backlog_quota),
        "properties": dict(policies.properties or {}),
        **members,
    }


def parse_policies(found: Mapping[str, Any]) -> Policies:
    """The reverse of ``policies_json``. Ignores members that are null or unknown. Raises HttpError."""
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
    return [
        (policy, _IN_ALL.get(policy.of_namespaces, policy.of_namespaces)) for policy in POLICIES if policy.of_namespaces
    ]
