"""Admin calls about policies of namespaces and of topics: Pulsar's paths and JSON for ``broker/pulsar/policies``.

GET shows the policy that is set for the namespace or topic itself, and answers 204 if it is not set; with ``applied=true`` it
shows the policy in force. POST (PUT for some policies) sets a policy, DELETE removes it. All partitions of a topic share its
policies.

A backlog quota has limits of bytes and of seconds, which Pulsar sets by two calls with different ``backlogQuotaType``. Here both
limits have the same policy, from the last call.

Tests: tests/pulsar/admin/test_policies.py.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import attrs

from broker.pulsar.admin.calls import namespace_name, number, require_tenant, require_topic, route, topic_name
from broker.pulsar.admin.policy_values import (
    AGE,
    POLICIES,
    STORAGE,
    Policy,
    parse_flag,
    parse_object,
    parse_properties,
    parse_quota,
    parse_rate,
    policies_json,
    quota_json,
    rate_json,
)
from broker.pulsar.context import PulsarContext
from broker.pulsar.policies.policies import BacklogQuota, Policies, Rate
from broker.pulsar.refusals import TopicNotFound
from broker.security.acl import Operation
from broker.web.routes import NO_CONTENT, TEXT, Answer, Call, HttpError, Route, json_answer

TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"

# Subscriptions of a topic that may have a rate of their own, and bytes of a subscription's name.
_RATES_MAX = 1_000
_NAME_MAX = 1024


# -- where policies are set -------------------------------------------------------------------------------------------------


class _OfNamespaces:
    def __init__(self, context: PulsarContext) -> None:
        self._context = context

    def get(self, call: Call) -> Policies:
        namespace = namespace_name(call)
        require_tenant(self._context, call, Operation.DESCRIBE)
        self._context.namespaces.require(namespace)
        policies = self._context.policies
        return policies.of_namespace(namespace) if call.flag("applied") else policies.namespace(namespace)

    def check(self, call: Call) -> None:
        """Call it before a change. Raises AuthorizationError, TopicNotFound."""
        namespace = namespace_name(call)
        require_tenant(self._context, call, Operation.ALTER)
        self._context.namespaces.require(namespace)

    def set(self, call: Call, **members: Any) -> None:
        self._context.policies.set_namespace(namespace_name(call), **members)


class _OfTopics:
    def __init__(self, context: PulsarContext) -> None:
        self._context = context

    def get(self, call: Call) -> Policies:
        name = topic_name(call)
        require_topic(self._context, call, Operation.DESCRIBE, name)
        topic_id, policies = self._topic_id(call), self._context.policies
        return policies.of(name.namespace, topic_id) if call.flag("applied") else policies.topic(topic_id)

    def check(self, call: Call) -> None:
        """Call it before a change. Raises AuthorizationError, TopicNotFound."""
        require_topic(self._context, call, Operation.ALTER, topic_name(call))
        self._topic_id(call)

    def set(self, call: Call, **members: Any) -> None:
        self._context.policies.set_topic(self._topic_id(call), **members)

    def _topic_id(self, call: Call) -> UUID:
        name = topic_name(call)
        info = self._context.topics.info(name)
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
        for policy in POLICIES:
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
        property_path = NAMESPACE + "/property/{key}"
        return [
            *routes,
            route("GET", TOPIC + "/{subscription}/dispatchRate", partial(_rate_of_one, topics)),
            route("POST", TOPIC + "/{subscription}/dispatchRate", partial(_set_rate_of_one, topics)),
            route("DELETE", TOPIC + "/{subscription}/dispatchRate", partial(_set_rate_of_one, topics)),
            route("GET", NAMESPACE + "/properties", partial(_properties, namespaces)),
            route("PUT", NAMESPACE + "/properties", partial(_add_properties, namespaces)),
            route("DELETE", NAMESPACE + "/properties", partial(_clear_properties, namespaces)),
            route("GET", property_path, partial(_property, namespaces)),
            route("PUT", property_path + "/{value}", partial(_add_properties, namespaces)),
            route("DELETE", property_path, partial(_remove_property, namespaces)),
        ]


def _routes(path: str, policy: Policy, place: _Place) -> Sequence[Route]:
    def get(call: Call) -> Answer:
        value = getattr(place.get(call), policy.member)
        return NO_CONTENT if value is None else json_answer(policy.show(value))

    def put(call: Call) -> Answer:
        place.check(call)
        place.set(call, **{policy.member: policy.parse(_given(call, path.rpartition("/")[2]))})
        return NO_CONTENT

    def take_back(call: Call) -> Answer:
        place.check(call)
        place.set(call, **{policy.member: None})
        return NO_CONTENT

    # Java's client sets some policies of a topic by POST, and those of a namespace by PUT.
    methods = {policy.method, "POST"} if isinstance(place, _OfTopics) else {policy.method}
    return [route("GET", path, get), *(route(each, path, put) for each in methods), route("DELETE", path, take_back)]


def _given(call: Call, name: str) -> Any:
    """The value of a policy: the body or, because Java's client sends some values so, the parameter of the policy's name. Raises
    HttpError."""
    text = call.query.get(name)
    if text is None or call.body.strip():
        return call.json()
    return attrs.evolve(call, body=text.encode("utf-8", "surrogateescape")).json()


def _all(place: _Place, call: Call) -> Answer:
    return json_answer(policies_json(place.get(call)))


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
    kind, value = _quota_type(call), call.json()
    place.set(call, backlog_quota=lambda before: parse_quota(before or BacklogQuota(), kind, value))
    return NO_CONTENT


def _take_quota_back(place: _Place, call: Call) -> Answer:
    place.check(call)
    kind = _quota_type(call)

    def without(before: BacklogQuota | None) -> BacklogQuota | None:
        quota = before or BacklogQuota()
        quota = attrs.evolve(quota, limit_bytes=-1) if kind == STORAGE else attrs.evolve(quota, limit_s=-1)
        return None if quota.limit_bytes < 0 and quota.limit_s < 0 else quota

    place.set(call, backlog_quota=without)
    return NO_CONTENT


def _delayed(place: _Place, call: Call) -> Answer:
    policies = place.get(call)
    if policies.delayed_delivery is None:
        return NO_CONTENT
    tick_ms = 1000 if policies.delayed_delivery_tick_ms is None else policies.delayed_delivery_tick_ms
    return json_answer({"active": policies.delayed_delivery, "tickTime": tick_ms, "maxDeliveryDelayInMillis": 0})


def _set_delayed(place: _Place, call: Call) -> Answer:
    place.check(call)
    body = parse_object(call.json())
    active, tick_ms = parse_flag(body.get("active", True)), number(body.get("tickTime", 1000), "tickTime", 1)
    if body.get("maxDeliveryDelayInMillis"):
        raise HttpError(412, "This broker does not bound the delay of messages.")
    place.set(call, delayed_delivery=active, delayed_delivery_tick_ms=tick_ms)
    return NO_CONTENT


def _take_delayed_back(place: _Place, call: Call) -> Answer:
    place.check(call)
    place.set(call, delayed_delivery=None, delayed_delivery_tick_ms=None)
    return NO_CONTENT


# -- the rate of a single subscription --------------------------------------------------------------------------------------


def _rate_of_one(place: _OfTopics, call: Call) -> Answer:
    policies = place.get(call)
    rate = (policies.subscription_dispatch_rates or {}).get(call.names["subscription"])
    if rate is None and call.flag("applied"):
        rate = policies.subscription_dispatch_rate
    return NO_CONTENT if rate is None else json_answer(rate_json(rate))


def _set_rate_of_one(place: _OfTopics, call: Call) -> Answer:
    """The subscription need not exist yet."""
    place.check(call)
    name = call.names["subscription"]
    if len(name.encode("utf-8", "surrogatepass")) > _NAME_MAX:
        raise HttpError(412, f"The name of a subscription has at most {_NAME_MAX} bytes.")
    rate = None if call.method == "DELETE" else parse_rate(call.json())

    def changed(before: Mapping[str, Rate] | None) -> Mapping[str, Rate] | None:
        rates = {each: value for each, value in (before or {}).items() if each != name}
        if rate is not None:
            rates[name] = rate
        if len(rates) > _RATES_MAX:
            raise HttpError(412, f"A topic has rates for {_RATES_MAX} subscriptions at most.")
        return rates or None

    place.set(call, subscription_dispatch_rates=changed)
    return NO_CONTENT


# -- properties of a namespace ----------------------------------------------------------------------------------------------


def _properties(place: _OfNamespaces, call: Call) -> Answer:
    return json_answer(dict(place.get(call).properties or {}))


def _add_properties(place: _OfNamespaces, call: Call) -> Answer:
    """Add the properties of the path or the body to the present properties."""
    place.check(call)
    key = call.names.get("key")
    added = parse_properties(call.json() if key is None else {key: call.names["value"]})
    place.set(call, properties=lambda before: parse_properties({**(before or {}), **added}) or None)
    return NO_CONTENT


def _clear_properties(place: _OfNamespaces, call: Call) -> Answer:
    place.check(call)
    place.set(call, properties=None)
    return NO_CONTENT


def _property(place: _OfNamespaces, call: Call) -> Answer:
    """The bare text, as Java's client reads it."""
    value = (place.get(call).properties or {}).get(call.names["key"])
    return NO_CONTENT if value is None else Answer(200, value.encode("utf-8", "replace"), TEXT)


def _remove_property(place: _OfNamespaces, call: Call) -> Answer:
    """Answers with the removed value."""
    place.check(call)
    key, removed = call.names["key"], []

    def without(before: Mapping[str, str] | None) -> Mapping[str, str] | None:
        properties = dict(before or {})
        removed.append(properties.pop(key, None))
        return properties or None

    place.set(call, properties=without)
    value = removed[0]
    return NO_CONTENT if value is None else Answer(200, value.encode("utf-8", "replace"), TEXT)
