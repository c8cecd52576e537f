"""What policies refuse to clients, set over HTTP and tried with the real client."""

from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType, PulsarException

from broker.pulsar.policies.store import PolicyLimits
from tests.pulsar.admin.harness import PERSISTENT, Admin, admin_broker
from tests.pulsar.clients import client

NAMESPACE = "/admin/v2/namespaces/public/default"
OTHER = "persistent://public/default/other"


@pytest.fixture
def admin() -> Any:
    with admin_broker() as made:
        yield made


def test_a_full_namespace_gets_no_topics(admin: Admin) -> None:
    admin.do("PUT", f"{PERSISTENT}/parts/partitions", 2)
    admin.do("POST", NAMESPACE + "/maxTopicsPerNamespace", 3)
    assert 412 == admin.ask("PUT", f"{PERSISTENT}/two/partitions", 2)[0]
    assert 412 == admin.ask("POST", f"{PERSISTENT}/parts/partitions", 4)[0]
    admin.do("PUT", f"{PERSISTENT}/third")
    with client(admin.service_url, operation_timeout_seconds=5) as clients:
        with pytest.raises(PulsarException):
            clients.create_producer("fourth")
        clients.create_producer("third")  # this topic exists already
        admin.do("POST", NAMESPACE + "/maxTopicsPerNamespace", 0)
        clients.create_producer("fourth")
    assert 4 == len(admin.get(PERSISTENT))


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_namespace_can_forbid_topic_creation(admin: Admin, domain: str) -> None:
    topic = f"{domain}://public/default/t"
    admin.do("POST", NAMESPACE + "/autoTopicCreation", {"allowAutoTopicCreation": False})
    with client(admin.service_url, operation_timeout_seconds=5) as clients:
        with pytest.raises(PulsarException):
            clients.create_producer(topic)
        with pytest.raises(PulsarException):
            clients.subscribe(topic, "s")
        assert [] == admin.get(f"/admin/v2/{domain}/public/default")
        admin.do("PUT", f"/admin/v2/{domain}/public/default/t")
        clients.create_producer(topic)


def test_a_namespace_says_how_many_partitions_topics_get(admin: Admin) -> None:
    admin.do(
        "POST",
        NAMESPACE + "/autoTopicCreation",
        {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2},
    )
    with client(admin.service_url) as clients:
        clients.create_producer("t").send(b"x")
        assert 2 == admin.get(f"{PERSISTENT}/t/partitions")["partitions"]
        admin.do("DELETE", NAMESPACE + "/autoTopicCreation")
        clients.create_producer("u").send(b"x")
        assert 0 == admin.get(f"{PERSISTENT}/u/partitions")["partitions"]


def test_consumers_make_no_subscription_where_that_is_forbidden(admin: Admin) -> None:
    admin.do("PUT", f"{PERSISTENT}/t/subscription/known")
    admin.do("POST", NAMESPACE + "/autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
    with client(admin.service_url, operation_timeout_seconds=5) as clients:
        with pytest.raises(PulsarException):
            clients.subscribe("t", "new")
        clients.subscribe("t", "known")
        clients.create_reader("t", pulsar.MessageId.earliest)  # a reader keeps no subscription
        assert ["known"] == [name for name in admin.get(f"{PERSISTENT}/t/subscriptions") if "reader" not in name]
        admin.do("POST", f"{PERSISTENT}/t/autoSubscriptionCreation", {"allowAutoSubscriptionCreation": True})
        clients.subscribe("t", "new")


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_only_the_types_of_subscriptions_that_are_enabled(admin: Admin, domain: str) -> None:
    topic = f"{domain}://public/default/t"
    admin.do("POST", NAMESPACE + "/subscriptionTypesEnabled", ["Shared"])
    with client(admin.service_url, operation_timeout_seconds=5) as clients:
        for kind in (ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.KeyShared):
            with pytest.raises(PulsarException):
                clients.subscribe(topic, "s", consumer_type=kind)
        clients.subscribe(topic, "s", consumer_type=ConsumerType.Shared)


def test_subscribe_rate_limits_each_consumer(admin: Admin) -> None:
    rate = {"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 3600}
    admin.do("PUT", f"{PERSISTENT}/t")
    admin.do("POST", f"{PERSISTENT}/t/subscribeRate", rate)
    with client(admin.service_url, operation_timeout_seconds=5) as clients:
        shared = ConsumerType.Shared
        for _ in range(4):  # other consumers by their numbers
            clients.subscribe("t", "s", consumer_type=shared, consumer_name="same")
    for attempt in range(3):
        with client(admin.service_url, operation_timeout_seconds=5) as clients:
            if attempt == 0:
                clients.subscribe("t", "s", consumer_type=shared, consumer_name="same")
                continue
            with pytest.raises(PulsarException):
                clients.subscribe("t", "s", consumer_type=shared, consumer_name="same")
    admin.do("DELETE", f"{PERSISTENT}/t/subscribeRate")
    with client(admin.service_url) as clients:
        clients.subscribe("t", "s", consumer_type=shared, consumer_name="same")


def test_consumers_that_are_remembered_are_bounded(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.pulsar.policies.store._SUBSCRIBERS_MAX", 10)
    topic = admin.topic("t")
    admin.do(
        "POST",
        f"{PERSISTENT}/t/subscribeRate",
        {"subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": 30},
    )
    limits: PolicyLimits = admin.context.limits
    for number in range(50):
        limits.check_subscribing(topic, "Shared", ("host", f"consumer-{number}", 0), 1.0)
    assert 10 == len(limits._subscribers)


def test_one_subscription_has_a_rate_of_its_own(admin: Admin) -> None:
    admin.do("PUT", f"{PERSISTENT}/t")
    admin.do(
        "POST", f"{PERSISTENT}/t/slow/dispatchRate", {"dispatchThrottlingRateInMsg": 1, "ratePeriodInSecond": 3600}
    )
    with client(admin.service_url) as clients:
        slow, fast = (clients.subscribe("t", name) for name in ("slow", "fast"))
        producer = clients.create_producer("t", batching_enabled=False)
        for number in range(20):
            producer.send(b"%d" % number)
        assert [b"%d" % number for number in range(20)] == [fast.receive(30_000).data() for _ in range(20)]
        assert b"0" == slow.receive(30_000).data()
        with pytest.raises(pulsar.Timeout):
            slow.receive(500)
        limits = admin.context.limits
        topic = admin.topic("t")
        assert (True, False) == tuple(limits.rate_limit(topic, name).limited for name in ("slow", "fast"))
        admin.do("DELETE", f"{PERSISTENT}/t/slow/dispatchRate")
        for _ in range(19):
            slow.receive(30_000)
