"""Admin calls about policies, of namespaces and of single topics: retention, backlog quotas, time to live, deduplication, and the
compatibility of schemas. They are kept as Pulsar's JSON has them (``broker/pulsar/namespaces.py``).

| path | methods that set it | key | value |
|---|---|---|---|
| messageTTL | POST | message_ttl_in_seconds | seconds; 0: no end |
| retention | POST | retention_policies | {retentionTimeInMinutes, retentionSizeInMB}, -1: without limit |
| backlogQuota | POST | backlog_quota_map | {policy, limitSize, limitTime} for each backlogQuotaType |
| deduplication, deduplicationEnabled | POST | deduplicationEnabled | true or false |
| schemaCompatibilityStrategy | PUT | schema_compatibility_strategy | FULL, BACKWARD, ... |
| compactionThreshold | PUT | compaction_threshold | bytes; 0: never by itself |

DELETE takes a policy back, GET shows what was set.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import attrs

from broker.network.routes import NO_CONTENT, Answer, Call, HttpError, Route, json_answer
from broker.pulsar.admin.calls import namespace_name, number, require_cluster, require_topic, route, topic_name
from broker.pulsar.context import PulsarContext
from broker.pulsar.refusals import TopicNotFound
from broker.pulsar.topic_names import kafka_name
from broker.security.acl import Operation

TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"

QUOTA_TYPES: Final = ("destination_storage", "message_age")
QUOTA_POLICIES: Final = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")
STRATEGIES: Final = (
    "UNDEFINED",
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
)


@attrs.frozen
class Policy:
    """``check`` takes the body's JSON and returns what is kept. Raises HttpError."""

    path: str
    key: str
    check: Callable[[Any], Any]
    method: str = "POST"


def _seconds(value: Any) -> int:
    return number(value, "The time to live")


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise HttpError(400, "The body has to be true or false.")
    return value


def _retention(value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        raise HttpError(400, "The body has to be a JSON object.")
    minutes, size = (number(value.get(key, 0), key, -1) for key in ("retentionTimeInMinutes", "retentionSizeInMB"))
    if (minutes == 0) != (size == 0):
        raise HttpError(412, "Set neither or both of retentionTimeInMinutes and retentionSizeInMB to 0.")
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": size}


def _threshold(value: Any) -> int:
    return number(value, "The threshold")


def _strategy(value: Any) -> str:
    if value not in STRATEGIES:
        raise HttpError(412, f"The strategy has to be one of {', '.join(STRATEGIES)}.")
    return str(value)


def _quota(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or value.get("policy") not in QUOTA_POLICIES:
        raise HttpError(412, f"The policy of a backlog quota has to be one of {', '.join(QUOTA_POLICIES)}.")
    size = value.get("limitSize", value.get("limit", -1))
    return {
        "limit": number(size, "limitSize", -1),
        "limitSize": number(size, "limitSize", -1),
        "limitTime": number(value.get("limitTime", -1), "limitTime", -1),
        "policy": value["policy"],
    }


_SHARED: Final = (
    Policy("messageTTL", "message_ttl_in_seconds", _seconds),
    Policy("retention", "retention_policies", _retention),
    Policy("schemaCompatibilityStrategy", "schema_compatibility_strategy", _strategy, "PUT"),
    Policy("compactionThreshold", "compaction_threshold", _threshold, "PUT"),
)
OF_NAMESPACES: Final = (*_SHARED, Policy("deduplication", "deduplicationEnabled", _flag))
OF_TOPICS: Final = (
    *_SHARED,
    Policy("deduplicationEnabled", "deduplicationEnabled", _flag),
    Policy("deduplication", "deduplicationEnabled", _flag),
)
_QUOTAS: Final = "backlog_quota_map"


class Policies:
    def __init__(self, context: PulsarContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        routes = [route("GET", NAMESPACE, self.of_namespace)]
        namespaces, topics = _OfNamespaces(self._context), _OfTopics(self._context)
        for base, policies, place in ((NAMESPACE, OF_NAMESPACES, namespaces), (TOPIC, OF_TOPICS, topics)):
            for policy in policies:
                routes += _routes(f"{base}/{policy.path}", policy, place)
            routes += [
                route("GET", f"{base}/backlogQuotaMap", partial(_quotas, place)),
                route("POST", f"{base}/backlogQuota", partial(_set_quota, place)),
                route("DELETE", f"{base}/backlogQuota", partial(_take_quota_back, place)),
            ]
        return routes

    def of_namespace(self, call: Call) -> Answer:
        namespace = namespace_name(call)
        require_cluster(self._context, call, Operation.DESCRIBE)
        return json_answer(
            {
                "replication_clusters": ["standalone"],
                "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
                _QUOTAS: {},
                **self._context.namespaces.policies(namespace),
            }
        )


class _OfNamespaces:
    def __init__(self, context: PulsarContext) -> None:
        self._context = context

    def get(self, call: Call, key: str) -> Any:
        namespace = namespace_name(call)
        require_cluster(self._context, call, Operation.DESCRIBE)
        return self._context.namespaces.policies(namespace).get(key)

    def set(self, call: Call, key: str, value: Any) -> None:
        namespace = namespace_name(call)
        require_cluster(self._context, call, Operation.ALTER)
        self._context.namespaces.set_policy(namespace, key, value)


class _OfTopics:
    def __init__(self, context: PulsarContext) -> None:
        self._context = context

    def get(self, call: Call, key: str) -> Any:
        name = topic_name(call)
        require_topic(self._context, call, Operation.DESCRIBE, name)
        value = self._context.namespaces.topic_policies(self._topic_id(call)).get(key)
        if value is None and call.flag("applied"):
            value = self._context.namespaces.policies(name.namespace).get(key)
        return value

    def set(self, call: Call, key: str, value: Any) -> None:
        require_topic(self._context, call, Operation.ALTER, topic_name(call))
        self._context.namespaces.set_topic_policy(self._topic_id(call), key, value)

    def _topic_id(self, call: Call) -> Any:
        name = topic_name(call)
        info = self._context.logs.topic(kafka_name(name.whole))
        if info is None:
            raise TopicNotFound(f"Topic {name} not found")
        return info.topic_id


def _routes(path: str, policy: Policy, place: _OfNamespaces | _OfTopics) -> list[Route]:
    def get(call: Call) -> Answer:
        value = place.get(call, policy.key)
        return NO_CONTENT if value is None else json_answer(value)

    def put(call: Call) -> Answer:
        place.set(call, policy.key, policy.check(call.json()))
        return NO_CONTENT

    def take_back(call: Call) -> Answer:
        place.set(call, policy.key, None)
        return NO_CONTENT

    return [route("GET", path, get), route(policy.method, path, put), route("DELETE", path, take_back)]


# -- backlog quotas: one for each type -----------------------------------------------------------------------------------


def _quota_type(call: Call) -> str:
    text = call.query.get("backlogQuotaType") or QUOTA_TYPES[0]
    if text not in QUOTA_TYPES:
        raise HttpError(400, f"backlogQuotaType is {' or '.join(QUOTA_TYPES)}.")
    return text


def _quotas(place: _OfNamespaces | _OfTopics, call: Call) -> Answer:
    return json_answer(place.get(call, _QUOTAS) or {})


def _set_quota(place: _OfNamespaces | _OfTopics, call: Call) -> Answer:
    kind, quota = _quota_type(call), _quota(call.json())
    place.set(call, _QUOTAS, {**(place.get(call, _QUOTAS) or {}), kind: quota})
    return NO_CONTENT


def _take_quota_back(place: _OfNamespaces | _OfTopics, call: Call) -> Answer:
    kind = _quota_type(call)
    left = {each: quota for each, quota in (place.get(call, _QUOTAS) or {}).items() if each != kind}
    place.set(call, _QUOTAS, left or None)
    return NO_CONTENT
