"""Admin calls about policies, asked of a whole broker."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.pulsar.admin.harness import PERSISTENT, Admin, admin_broker

NAMESPACE = "/admin/v2/namespaces/public/default"
TOPIC = f"{PERSISTENT}/t"

PUBLISH_RATE = {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": -1}
RATE = {
    "dispatchThrottlingRateInMsg": 10,
    "dispatchThrottlingRateInByte": -1,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 2,
}
SUBSCRIBE_RATE = {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 30}
INACTIVE = {
    "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
    "maxInactiveDurationSeconds": 120,
    "deleteWhileInactive": True,
}
PERSISTENCE = {
    "bookkeeperEnsemble": 3,
    "bookkeeperWriteQuorum": 2,
    "bookkeeperAckQuorum": 1,
    "managedLedgerMaxMarkDeleteRate": 0.5,
}


@pytest.fixture(scope="module")
def shared() -> Iterator[Admin]:
    with admin_broker() as made:
        made.do("PUT", TOPIC)
        yield made


@pytest.mark.parametrize(
    ("path", "method", "value"),
    [
        (NAMESPACE + "/messageTTL", "POST", 3600),
        (TOPIC + "/messageTTL", "POST", 0),
        (NAMESPACE + "/retention", "POST", {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}),
        (TOPIC + "/retention", "POST", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}),
        (NAMESPACE + "/deduplication", "POST", True),
        (TOPIC + "/deduplicationEnabled", "POST", False),
        (NAMESPACE + "/maxProducersPerTopic", "POST", 5),
        (TOPIC + "/maxProducers", "POST", 5),
        (NAMESPACE + "/maxUnackedMessagesPerConsumer", "POST", 10),
        (TOPIC + "/maxUnackedMessagesOnSubscription", "POST", 10),
        (TOPIC + "/publishRate", "POST", PUBLISH_RATE),
        (NAMESPACE + "/publishRate", "POST", PUBLISH_RATE),
        (TOPIC + "/dispatchRate", "POST", RATE),
        (NAMESPACE + "/subscriptionDispatchRate", "POST", RATE),
        (NAMESPACE + "/compactionThreshold", "PUT", 10_000_000_000),
        (NAMESPACE + "/schemaCompatibilityStrategy", "PUT", "BACKWARD_TRANSITIVE"),
        (TOPIC + "/schemaCompatibilityStrategy", "PUT", "FULL"),
        (NAMESPACE + "/schemaValidationEnforced", "POST", True),
        (NAMESPACE + "/encryptionRequired", "POST", True),
        (NAMESPACE + "/isAllowAutoUpdateSchema", "POST", False),
        (NAMESPACE + "/subscribeRate", "POST", SUBSCRIBE_RATE),
        (TOPIC + "/subscribeRate", "POST", SUBSCRIBE_RATE),
        (NAMESPACE + "/subscriptionTypesEnabled", "POST", ["Exclusive", "Key_Shared"]),
        (TOPIC + "/subscriptionTypesEnabled", "POST", ["Shared"]),
        (NAMESPACE + "/autoTopicCreation", "POST", {"allowAutoTopicCreation": False}),
        (
            NAMESPACE + "/autoTopicCreation",
            "POST",
            {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
        ),
        (
            NAMESPACE + "/autoTopicCreation",
            "POST",
            {"allowAutoTopicCreation": True, "topicType": "non-partitioned"},
        ),
        (NAMESPACE + "/autoSubscriptionCreation", "POST", {"allowAutoSubscriptionCreation": False}),
        (TOPIC + "/autoSubscriptionCreation", "POST", {"allowAutoSubscriptionCreation": True}),
        (NAMESPACE + "/maxTopicsPerNamespace", "POST", 100),
        (NAMESPACE + "/inactiveTopicPolicies", "POST", INACTIVE),
        (TOPIC + "/inactiveTopicPolicies", "POST", INACTIVE),
        (NAMESPACE + "/persistence", "POST", PERSISTENCE),
        (TOPIC + "/persistence", "POST", PERSISTENCE),
        (TOPIC + "/s/dispatchRate", "POST", RATE),
        (
            TOPIC + "/delayedDelivery",
            "POST",
            {"active": False, "tickTime": 500, "maxDeliveryDelayInMillis": 0},
        ),
    ],
)
def test_a_policy_is_set_shown_and_taken_back(shared: Admin, path: str, method: str, value: Any) -> None:
    assert (204, None) == shared.ask("GET", path)
    shared.do(method, path, value)
    assert value == shared.get(path)
    shared.do("DELETE", path)
    assert (204, None) == shared.ask("GET", path)


def test_topic_policy_overrides_namespace_policy(shared: Admin) -> None:
    shared.do("POST", NAMESPACE + "/messageTTL", 60)
    assert (204, None) == shared.ask("GET", TOPIC + "/messageTTL")
    assert 60 == shared.get(TOPIC + "/messageTTL?applied=true")
    shared.do("POST", TOPIC + "/messageTTL", 5)
    assert 5 == shared.get(TOPIC + "/messageTTL?applied=true")
    assert 5 == shared.context.policies.of("public/default", shared.topic("t").log.topic_id).message_ttl_s
    shared.do("DELETE", TOPIC + "/messageTTL")
    shared.do("DELETE", NAMESPACE + "/messageTTL")


def test_backlog_quota_limits_bytes_and_time(shared: Admin) -> None:
    path = NAMESPACE + "/backlogQuota"
    shared.do("POST", path, {"policy": "producer_exception", "limitSize": 1000})
    shared.do("POST", path + "?backlogQuotaType=message_age", {"policy": "consumer_backlog_eviction", "limitTime": 60})
    quota = {"limit": 1000, "limitSize": 1000, "limitTime": 60, "policy": "consumer_backlog_eviction"}
    assert {"destination_storage": quota, "message_age": quota} == shared.get(NAMESPACE + "/backlogQuotaMap")
    assert quota == shared.get(NAMESPACE)["backlog_quota_map"]["message_age"]
    shared.do("DELETE", path)
    assert ["message_age"] == [*shared.get(NAMESPACE + "/backlogQuotaMap")]
    shared.do("DELETE", path + "?backlogQuotaType=message_age")
    assert {} == shared.get(NAMESPACE + "/backlogQuotaMap")


def test_all_policies_of_a_namespace_are_shown_together(shared: Admin) -> None:
    shared.do("POST", NAMESPACE + "/dispatchRate", RATE)
    assert {"standalone": RATE} == shared.get(NAMESPACE)["topicDispatchRate"]
    shared.do("DELETE", NAMESPACE + "/dispatchRate")
    assert ["standalone"] == shared.get(NAMESPACE + "/replication")
    shared.do("POST", NAMESPACE + "/deduplication", True)
    found = shared.get(NAMESPACE)
    assert found["deduplicationEnabled"] is True
    assert ["standalone"] == found["replication_clusters"]
    shared.do("DELETE", NAMESPACE + "/deduplication")


@pytest.mark.parametrize(
    ("path", "method", "value", "status"),
    [
        ("/messageTTL", "POST", -1, 400),
        ("/messageTTL", "POST", "60", 400),
        ("/messageTTL", "POST", True, 400),
        ("/messageTTL", "POST", 2**40, 412),
        ("/messageTTL", "POST", 2**70, 400),
        ("/retention", "POST", 5, 400),
        ("/retention", "POST", {"retentionTimeInMinutes": 5}, 412),
        ("/deduplication", "POST", 1, 400),
        ("/backlogQuota", "POST", {"policy": "drop"}, 412),
        ("/backlogQuota", "POST", {"policy": ["producer_exception"]}, 412),
        ("/backlogQuota?backlogQuotaType=color", "POST", {"policy": "producer_exception"}, 400),
        ("/backlogQuota", "POST", [], 400),
        ("/schemaCompatibilityStrategy", "PUT", "SOMETIMES", 412),
        ("/schemaCompatibilityStrategy", "PUT", ["FULL"], 412),
        ("/dispatchRate", "POST", {"ratePeriodInSecond": 0}, 400),
        ("/subscribeRate", "POST", {"subscribeThrottlingRatePerConsumer": "5"}, 400),
        ("/subscribeRate", "POST", {"subscribeThrottlingRatePerConsumer": 2**70}, 400),
        ("/subscriptionTypesEnabled", "POST", ["Sometimes"], 412),
        ("/subscriptionTypesEnabled", "POST", "Shared", 412),
        ("/subscriptionTypesEnabled", "POST", [["Shared"]], 412),
        ("/autoTopicCreation", "POST", {"allowAutoTopicCreation": True}, 412),
        ("/autoTopicCreation", "POST", {"allowAutoTopicCreation": "true"}, 400),
        ("/autoTopicCreation", "POST", {"allowAutoTopicCreation": True, "topicType": "partitioned"}, 400),
        (
            "/autoTopicCreation",
            "POST",
            {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 10**6},
            406,
        ),
        ("/autoSubscriptionCreation", "POST", {}, 400),
        ("/maxTopicsPerNamespace", "POST", -1, 400),
        ("/inactiveTopicPolicies", "POST", {"inactiveTopicDeleteMode": "now"}, 412),
        ("/inactiveTopicPolicies", "POST", {**INACTIVE, "maxInactiveDurationSeconds": 0}, 400),
        ("/persistence", "POST", {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 2}, 412),
        ("/persistence", "POST", {"managedLedgerMaxMarkDeleteRate": -1}, 400),
        ("/properties", "PUT", {"a": 1}, 400),
        ("/properties", "PUT", [], 400),
        ("/properties", "PUT", {"a": "x" * 20_000}, 400),
    ],
)
def test_what_is_no_such_policy_is_refused(shared: Admin, path: str, method: str, value: Any, status: int) -> None:
    assert status == shared.ask(method, NAMESPACE + path, value)[0]
    assert {} == shared.get(NAMESPACE)["backlog_quota_map"]


def test_policies_of_nothing_are_not_found(shared: Admin) -> None:
    assert 404 == shared.ask("POST", "/admin/v2/namespaces/no/where/messageTTL", 1)[0]
    assert 404 == shared.ask("POST", f"{PERSISTENT}/none/messageTTL", 1)[0]
    assert 404 == shared.ask("GET", "/admin/v2/namespaces/no/where")[0]


def test_topic_policies_as_java_client_sets_them(shared: Admin) -> None:
    assert 204 == shared.ask("POST", TOPIC + "/messageTTL?messageTTL=70")[0]
    assert (200, 70) == shared.ask("GET", TOPIC + "/messageTTL")
    assert 400 == shared.ask("POST", TOPIC + "/messageTTL?messageTTL=soon")[0]
    for method, value in (("POST", 5_000_000_000), ("PUT", 6_000_000_000)):
        assert 204 == shared.ask(method, TOPIC + "/compactionThreshold", value)[0]
        assert (200, value) == shared.ask("GET", TOPIC + "/compactionThreshold")
    for path in ("/messageTTL", "/compactionThreshold"):
        shared.do("DELETE", TOPIC + path)


def test_numbers_that_are_none_are_refused(shared: Admin) -> None:
    for rate in (b"1e999", b"NaN", b"-Infinity", b"true"):
        body = b'{"managedLedgerMaxMarkDeleteRate": %s}' % rate
        assert 400 == shared.raw("POST", NAMESPACE + "/persistence", body)[0], rate


def test_properties_of_a_namespace_are_merged(shared: Admin) -> None:
    assert {} == shared.get(NAMESPACE + "/properties")
    shared.do("PUT", NAMESPACE + "/properties", {"team": "a", "cost": "1"})
    shared.do("PUT", NAMESPACE + "/property/team/b%20c")
    assert {"team": "b c", "cost": "1"} == shared.get(NAMESPACE + "/properties") == shared.get(NAMESPACE)["properties"]
    assert (200, b"b c") == (shared.raw("GET", NAMESPACE + "/property/team")[::2])
    assert (204, None) == shared.ask("GET", NAMESPACE + "/property/other")
    assert (200, b"b c") == (shared.raw("DELETE", NAMESPACE + "/property/team")[::2])
    assert {"cost": "1"} == shared.get(NAMESPACE + "/properties")
    assert (
        400 == shared.ask("PUT", NAMESPACE + "/properties", {"long": "x" * 16_380})[0]
    )  # both together exceed the bound
    shared.do("DELETE", NAMESPACE + "/properties")
    assert {} == shared.get(NAMESPACE + "/properties")


def test_changes_at_the_same_time_are_all_made(shared: Admin) -> None:
    def add(worker: int) -> None:
        for number in range(10):
            shared.do("PUT", f"{NAMESPACE}/property/{worker}-{number}/x")
            shared.do("POST", f"{TOPIC}/{worker}-{number}/dispatchRate", RATE)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    assert 40 == len(shared.get(NAMESPACE + "/properties"))
    topic_id = shared.topic("t").log.topic_id
    assert 40 == len(shared.context.policies.topic(topic_id).subscription_dispatch_rates or {})
    shared.do("DELETE", NAMESPACE + "/properties")
    shared.context.policies.set_topic(topic_id, subscription_dispatch_rates=None)


def test_rates_of_single_subscriptions_are_bounded(shared: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.pulsar.admin.policies._RATES_MAX", 1)
    for _ in range(2):
        shared.do("POST", TOPIC + "/one/dispatchRate", RATE)
    assert 412 == shared.ask("POST", TOPIC + "/two/dispatchRate", RATE)[0]
    shared.do("DELETE", TOPIC + "/one/dispatchRate")


def test_what_holds_where_nothing_is_set(shared: Admin) -> None:
    for place in (NAMESPACE, TOPIC):
        for path, expected in [
            ("/inactiveTopicPolicies", ("deleteWhileInactive", False)),
            ("/subscribeRate", ("subscribeThrottlingRatePerConsumer", -1)),
            ("/autoSubscriptionCreation", ("allowAutoSubscriptionCreation", True)),
            ("/persistence", ("bookkeeperEnsemble", 1)),
        ]:
            assert expected in shared.get(f"{place}{path}?applied=true").items()


def test_no_types_are_all_types(shared: Admin) -> None:
    shared.do("POST", NAMESPACE + "/subscriptionTypesEnabled", ["Shared"])
    shared.do("POST", NAMESPACE + "/subscriptionTypesEnabled", [])
    assert (204, None) == shared.ask("GET", NAMESPACE + "/subscriptionTypesEnabled")


def test_subscription_rate_overrides_topic_rate(shared: Admin) -> None:
    path = TOPIC + "/one/dispatchRate"
    shared.do("POST", TOPIC + "/subscriptionDispatchRate", {**RATE, "dispatchThrottlingRateInMsg": 50})
    assert (204, None) == shared.ask("GET", path)
    assert 50 == shared.get(path + "?applied=true")["dispatchThrottlingRateInMsg"]
    shared.do("POST", path, RATE)
    assert RATE == shared.get(path + "?applied=true")
    shared.do("DELETE", path)
    shared.do("DELETE", TOPIC + "/subscriptionDispatchRate")
    assert 412 == shared.ask("POST", f"{TOPIC}/{'x' * 1025}/dispatchRate", RATE)[0]
    assert 404 == shared.ask("POST", f"{PERSISTENT}/none/one/dispatchRate", RATE)[0]


def test_policies_are_there_after_a_restart(tmp_path: Path) -> None:
    values = [
        ("/subscribeRate", SUBSCRIBE_RATE),
        ("/inactiveTopicPolicies", INACTIVE),
        ("/persistence", PERSISTENCE),
        ("/subscriptionTypesEnabled", ["Shared"]),
        ("/s/dispatchRate", RATE),
    ]
    with admin_broker(data_dir=str(tmp_path)) as admin:
        admin.do("PUT", TOPIC)
        for path, value in values:
            admin.do("POST", TOPIC + path, value)
        admin.do("POST", NAMESPACE + "/autoTopicCreation", {"allowAutoTopicCreation": False})
        admin.do("PUT", NAMESPACE + "/properties", {"team": "a"})
    with admin_broker(data_dir=str(tmp_path)) as admin:
        assert [value for _, value in values] == [admin.get(TOPIC + path) for path, _ in values]
        assert {"allowAutoTopicCreation": False} == admin.get(NAMESPACE + "/autoTopicCreation")
        assert {"team": "a"} == admin.get(NAMESPACE + "/properties")
