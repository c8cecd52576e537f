"""The values of policies as Pulsar's JSON has them, and back. Pure; what is parsed raises HttpError.

Tests: tests/pulsar/admin/test_policies.py.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

import attrs

from broker.network.routes import HttpError
from broker.pulsar.admin.calls import number
from broker.pulsar.policies.policies import (
    AutoCreation,
    BacklogQuota,
    DeleteWhen,
    Inactivity,
    Persistence,
    Rate,
    Retention,
    WhenFull,
)
from broker.pulsar.schemas.compatibility import Strategy
from broker.pulsar.subscriptions.dispatchers import NAMES

# Of a backlog quota: what its two limits are called.
STORAGE, AGE = "destination_storage", "message_age"
_COUNT_MAX: Final = 2**31 - 1
# The most partitions that a topic can be made with, on demand as well (Kafka's and this broker's bound is checked then).
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
    found = parse_object(value)
    minutes, megabytes = (number(found.get(key, 0), key, -1) for key in ("retentionTimeInMinutes", "retentionSizeInMB"))
    if (minutes == 0) != (megabytes == 0):
        raise HttpError(412, "Set neither or both of retentionTimeInMinutes and retentionSizeInMB to 0.")
    return Retention(minutes, megabytes)


def retention_json(retention: Retention) -> Any:
    return {"retentionTimeInMinutes": retention.minutes, "retentionSizeInMB": retention.megabytes}


def parse_rate(value: Any) -> Rate:
    found = parse_object(value)
    return Rate(
        number(found.get("dispatchThrottlingRateInMsg", -1), "dispatchThrottlingRateInMsg", -1),
        number(found.get("dispatchThrottlingRateInByte", -1), "dispatchThrottlingRateInByte", -1),
        number(found.get("ratePeriodInSecond", 1), "ratePeriodInSecond", 1),
    )


def rate_json(rate: Rate) -> Any:
    return {
        "dispatchThrottlingRateInMsg": rate.messages,
        "dispatchThrottlingRateInByte": rate.bytes,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": rate.period_s,
    }


def parse_publish_rate(value: Any) -> Rate:
    found = parse_object(value)
    return Rate(
        number(found.get("publishThrottlingRateInMsg", -1), "publishThrottlingRateInMsg", -1),
        number(found.get("publishThrottlingRateInByte", -1), "publishThrottlingRateInByte", -1),
    )


def publish_rate_json(rate: Rate) -> Any:
    return {"publishThrottlingRateInMsg": rate.messages, "publishThrottlingRateInByte": rate.bytes}


def parse_subscribe_rate(value: Any) -> Rate:
    found = parse_object(value)
    return Rate(
        number(found.get("subscribeThrottlingRatePerConsumer", -1), "subscribeThrottlingRatePerConsumer", -1),
        period_s=number(found.get("ratePeriodInSecond", 30), "ratePeriodInSecond", 1),
    )


def subscribe_rate_json(rate: Rate) -> Any:
    return {"subscribeThrottlingRatePerConsumer": rate.messages, "ratePeriodInSecond": rate.period_s}


def parse_types(value: Any) -> tuple[str, ...] | None:
    """No types are no policy, as in Pulsar."""
    if not isinstance(value, list) or not all(isinstance(each, str) and each in NAMES.values() for each in value):
        raise HttpError(412, f"The body has to be a list of types: {', '.join(NAMES.values())}.")
    return tuple(sorted(set(value))) or None


def parse_auto_topic(value: Any) -> AutoCreation:
    found = parse_object(value)
    allowed, kind = parse_flag(found.get("allowAutoTopicCreation", False)), found.get("topicType")
    partitions = found.get("defaultNumPartitions")
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
    found = parse_object(value)
    try:
        when = DeleteWhen(found.get("inactiveTopicDeleteMode", DeleteWhen.NO_SUBSCRIPTIONS))
    except ValueError:
        raise HttpError(412, f"inactiveTopicDeleteMode has to be one of {', '.join(DeleteWhen)}.") from None
    delete = parse_flag(found.get("deleteWhileInactive", False))
    after_s = number(found.get("maxInactiveDurationSeconds", 60), "maxInactiveDurationSeconds", 1 if delete else 0)
    return Inactivity(delete, after_s, when)


def inactivity_json(inactivity: Inactivity) -> Any:
    return {
        "inactiveTopicDeleteMode": str(inactivity.when),
        "maxInactiveDurationSeconds": inactivity.after_s,
        "deleteWhileInactive": inactivity.delete,
    }


def parse_persistence(value: Any) -> Persistence:
    found = parse_object(value)
    ensemble, write, ack = (
        number(found.get(f"bookkeeper{name}", 1), f"bookkeeper{name}", 1)
        for name in ("Ensemble", "WriteQuorum", "AckQuorum")
    )
    rate = found.get("managedLedgerMaxMarkDeleteRate", 1.0)
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
    """Those of a topic or of a namespace."""
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise HttpError(400, "Properties have to be a JSON object of texts.")
    if sum(len(key) + len(text) for key, text in value.items()) > PROPERTIES_MAX:
        raise HttpError(400, f"Properties have at most {PROPERTIES_MAX} characters together.")
    return value


def same(value: Any) -> Any:
    return value


def parse_quota(before: BacklogQuota, kind: str, value: Any) -> BacklogQuota:
    """With the limit of this kind, STORAGE or AGE, and the policy that ``value`` has."""
    found = parse_object(value)
    try:
        policy = WhenFull(found.get("policy", ""))
    except ValueError:
        raise HttpError(412, f"The policy of a backlog quota has to be one of {', '.join(WhenFull)}.") from None
    if kind == STORAGE:
        limit = number(found.get("limitSize", found.get("limit", -1)), "limitSize", -1)
        return attrs.evolve(before, limit_bytes=limit, policy=policy)
    limit = number(found.get("limitTime", -1), "limitTime", -1)
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
