"""Subscriptions over HTTP, and Pulsar's entries in the message browser, with the real client."""

from collections.abc import Iterator

import pytest

from tests.http.api.harness import Api, api_broker, differences, documented
from tests.pulsar.clients import client
from tests.waiting import wait_for

LISTENERS = ("kafka://127.0.0.1:0", "pulsar://127.0.0.1:0", "http://127.0.0.1:0")


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with api_broker(listeners=LISTENERS) as made:
        yield made


def url(api: Api) -> str:
    return f"pulsar://{api.broker.address('pulsar')}"


def test_without_pulsar_there_is_nothing() -> None:
    with api_broker() as api:
        assert 404 == api.ask("/api/v1/subscriptions")[0]


def test_a_subscription_shows_backlog_permits_and_consumers(api: Api) -> None:
    import pulsar as names

    with client(url(api)) as pulsar:
        consumer = pulsar.subscribe(
            "t", "s", consumer_type=names.ConsumerType.Shared, consumer_name="c", receiver_queue_size=10
        )
        producer = pulsar.create_producer("t", batching_enabled=False)
        for number in range(20):
            producer.send(b"%d" % number)
        for _ in range(4):
            consumer.acknowledge(consumer.receive(30_000))
        path = "/subscriptions?topic=persistent://public/default/t"
        wait_for(lambda: api.get(path)["subscriptions"][0]["backlog"] == 16)
        answer = api.get(path)
        assert [] == differences(documented("/api/v1/subscriptions?limit=1"), answer)
        (subscription,) = answer["subscriptions"]
        assert ("s", "Shared", True, 1) == tuple(subscription[key] for key in ("name", "type", "durable", "consumers"))
        assert ["c"] == [each["name"] for each in subscription["connected"]]
        of_topic = api.get("/topics/t")["subscriptions"]
        assert [("s", 16)] == [(each["name"], each["backlog"]) for each in of_topic]
        pulsar_connections = [each for each in api.get("/connections")["connections"] if each["listener"] == "pulsar"]
        assert {"Pulsar-CPP"} == {each["software"] for each in pulsar_connections}


def test_pages_are_complete(api: Api) -> None:
    with client(url(api)) as pulsar:
        for topic in ("p1", "p2"):
            for name in ("b", "a", "a b/ü"):
                pulsar.subscribe(topic, name).close()
        found = [(each["topic"], each["name"]) for each in api.pages("/subscriptions", "subscriptions")]
        assert sorted(found) == found
        filtered = api.get("/subscriptions?filter=P2")["subscriptions"]
        assert [("persistent://public/default/p2", name) for name in ("a", "a b/ü", "b")] == [
            (each["topic"], each["name"]) for each in filtered
        ]
        assert {
            (f"persistent://public/default/{topic}", name) for topic in ("p1", "p2") for name in ("a", "b", "a b/ü")
        } <= set(found)


def test_messages_of_pulsar_producers_are_shown_as_records(api: Api) -> None:
    import pulsar as names

    with client(url(api)) as pulsar:
        producer = pulsar.create_producer(
            "entries",
            batching_enabled=True,
            batching_max_publish_delay_ms=200,
            compression_type=names.CompressionType.LZ4,
        )
        for number in range(5):
            producer.send_async(
                b'{"n": %d}' % number, lambda *_: None, properties={"p": str(number)}, partition_key="k"
            )
        producer.flush()
    records = api.get("/topics/entries/records?partition=0&offset=0")["records"]
    assert [(f'{{"n": {number}}}', number, "k", True) for number in range(5)] == [
        (each["value"]["text"], each["offset"], each["key"]["text"], each["pulsar"]) for each in records
    ]
    assert {"p": {"text": "3"}} == {each["key"]: each["value"] for each in records[3]["headers"] if each["key"] == "p"}
    assert [2, 3, 4] == [each["offset"] for each in api.get("/topics/entries/records?partition=0&offset=2")["records"]]


def test_idle_topic_shows_its_subscription_names(api: Api) -> None:
    with client(url(api)) as pulsar:
        pulsar.subscribe("idle", "kept").close()
    part = api.broker.server.part("pulsar")
    (topic,) = [each for each in part.context.topics.loaded() if each.name.local == "idle"]  # type: ignore[union-attr]
    part.context.topics.unload(topic)  # type: ignore[union-attr]
    (shown,) = api.get("/subscriptions?topic=persistent://public/default/idle")["subscriptions"]
    assert ("kept", False, None) == (shown["name"], shown["in_use"], shown["backlog"])
