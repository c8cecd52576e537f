"""The values of policies as Pulsar's JSON has them, and back. Pure; what is parsed raises HttpError.

Tests: tests/pulsar/admin/test_policies.py.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from broker.network.routes import HttpError
from broker.pulsar.admin.calls import number
from broker.pulsar.policies.policies import BacklogQuota, Rate, Retention, WhenFull
from broker.pulsar.schemas.compatibility import Strategy

# Of a backlog quota: what its two limits are called.
STORAGE, AGE = "destination_storage", "message_age"
_COUNT_MAX: Final = 2**31 - 1


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
