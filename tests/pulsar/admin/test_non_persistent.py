"""Admin calls about topics whose messages are not kept, asked of a whole broker."""

import pytest

from tests.pulsar.admin.harness import Admin
from tests.pulsar.clients import client

BASE = "/admin/v2/non-persistent/public/default"
NAMESPACE = "/admin/v2/namespaces/public/default"


def test_topics_are_made_listed_and_deleted(admin: Admin) -> None:
    assert 404 == admin.ask("GET", f"{BASE}/t/stats")[0]
    admin.do("PUT", f"{BASE}/t")
    assert 409 == admin.ask("PUT", f"{BASE}/t")[0]
    admin.do("PUT", f"{BASE}/p/partitions", {"partitions": 2})
    names = [f"non-persistent://public/default/{name}" for name in ("t", "p-partition-0", "p-partition-1")]
    assert names == admin.get(BASE) == admin.get(NAMESPACE + "/topics?mode=NON_PERSISTENT")
    assert ["non-persistent://public/default/p"] == admin.get(BASE + "/partitioned")
    admin.topic("kept")
    assert {*names, "persistent://public/default/kept"} == {*admin.get(NAMESPACE + "/topics?mode=ALL")}
    assert ["persistent://public/default/kept"] == admin.get(NAMESPACE + "/topics")
    admin.do("POST", f"{BASE}/p/partitions", 3)
    assert {"partitions": 3, "deleted": False} == admin.get(f"{BASE}/p/partitions")
    assert 405 == admin.ask("POST", f"{BASE}/p/partitions", 3)[0]
    admin.do("DELETE", f"{BASE}/p/partitions")
    admin.do("DELETE", f"{BASE}/t")
    assert [] == admin.get(BASE)
    assert 404 == admin.ask("DELETE", f"{BASE}/t")[0]


@pytest.mark.parametrize(("body", "status"), [(0, 406), (-1, 400), ("3", 400), (10**9, 405), ({}, 400)])
def test_what_is_no_number_of_partitions_makes_nothing(admin: Admin, body: object, status: int) -> None:
    assert status == admin.ask("PUT", f"{BASE}/p/partitions", body)[0]
    assert [] == admin.get(BASE)


def test_partitions_of_what_does_not_exist(admin: Admin) -> None:
    assert 404 == admin.ask("GET", f"{BASE}/t/partitions")[0]
    assert {"partitions": 0, "deleted": False} == admin.get(f"{BASE}/t/partitions?checkAllowAutoCreation=true")
    assert 412 == admin.ask("PUT", f"{BASE}/t-partition-1/partitions", 2)[0]
    assert 404 == admin.ask("GET", "/admin/v2/non-persistent/no/where")[0]


def test_statistics_and_subscriptions(admin: Admin) -> None:
    topic = "non-persistent://public/default/t"
    with client(admin.service_url) as pulsar:
        consumer = pulsar.subscribe(topic, "s", consumer_name="c")
        producer = pulsar.create_producer(topic, "p")
        for number in range(5):
            producer.send(b"%d" % number)
            assert b"%d" % number == consumer.receive(30_000).data()
        stats = admin.get(f"{BASE}/t/stats")
        assert ["p"] == [one["producerName"] for one in stats["publishers"]]
        of = stats["subscriptions"]["s"]
        assert ("c", 5, 0, "Exclusive") == (
            of["consumers"][0]["consumerName"],
            of["msgOutCounter"],
            of["msgDropCounter"],
            of["type"],
        )
        assert 5 == admin.get(f"{BASE}/t/internalStats")["entriesAddedCounter"]
        admin.do("PUT", f"{BASE}/t/subscription/other")
        assert ["s", "other"] == admin.get(f"{BASE}/t/subscriptions")
        assert 412 == admin.ask("DELETE", f"{BASE}/t/subscription/s")[0]
        admin.do("DELETE", f"{BASE}/t/subscription/other")
        assert 404 == admin.ask("DELETE", f"{BASE}/t/subscription/other")[0]
        assert 412 == admin.ask("DELETE", f"{BASE}/t")[0]


def test_statistics_of_partitions(admin: Admin) -> None:
    admin.do("PUT", f"{BASE}/p/partitions", 2)
    with client(admin.service_url) as pulsar:
        producer = pulsar.create_producer("non-persistent://public/default/p-partition-1")
        producer.send(b"x")
        stats = admin.get(f"{BASE}/p/partitioned-stats")
        assert (1, 2) == (stats["msgInCounter"], stats["metadata"]["partitions"])
        assert ["non-persistent://public/default/p-partition-1"] == list(stats["partitions"])
        assert 405 == admin.ask("PUT", f"{BASE}/p/subscription/s")[0]
