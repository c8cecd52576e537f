"""The history over HTTP."""

from urllib.parse import quote

from confluent_kafka import Consumer, TopicPartition

from broker.web.history import STEP_S
from tests.http.api.harness import Api, api_broker, differences, documented
from tests.waiting import wait_for


def grown(api: Api) -> None:
    """A second sample: rates are known from then on."""
    figures = api.http.sampler._figures
    figures.sample((figures._sampled_at or 0.0) + STEP_S, api.kafka.clock.time_ms() + STEP_S * 1000)


def test_the_history_has_the_figures_of_the_overview() -> None:
    with api_broker() as api:
        answer = api.get("/history")
        assert [] == differences(
            documented("/api/v1/history?series=messages_in,group:billing:lag"), answer | {"series": {}}
        )
        assert {"requests", "errors", "bytes_in", "bytes_out", "messages_in", "connections", "groups"} <= answer[
            "series"
        ].keys()


def test_topics_and_groups_have_series() -> None:
    with api_broker() as api:
        api.kafka.logs.create_topic("orders", 1)
        api.produce("orders", *[b"x"] * 10)
        api.commit("a,b", "orders", 4)
        api.commit("%2C-ü-中", "orders", 3)
        grown(api)
        wait_for(lambda: api.get("/history?series=group:a%252Cb:lag")["series"])
        assert 6.0 == api.get("/history?series=group:a%252Cb:lag")["series"]["group:a,b:lag"][-1]
        assert api.get("/history?series=group:a%252Cb:lag_s")["series"]["group:a,b:lag_s"][-1] >= 0.0
        name = quote("group:%252C-ü-中:lag")
        assert [7.0] == api.get(f"/history?series={name}")["series"]["group:%2C-ü-中:lag"][-1:]
        assert 2.0 == api.get("/history?series=topic:orders:messages_in")["series"]["topic:orders:messages_in"][-1]


def test_topic_bytes_are_counted_in_both_directions() -> None:
    with api_broker() as api:
        api.kafka.logs.create_topic("orders", 1)
        figures = api.http.sampler._figures
        api.produce("orders", *[b"x" * 1000] * 10)
        consumer = Consumer(
            {
                "bootstrap.servers": api.broker.bootstrap_servers,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.assign([TopicPartition("orders", 0, 0)])
        for _ in range(10):
            while consumer.poll(1) is None:
                pass
        consumer.close()
        grown(api)
        wait_for(lambda: len(api.get("/history?series=topic:orders:bytes_in,topic:orders:bytes_out")["series"]) == 2)
        (topic,) = api.get("/topics")["topics"]
        assert topic["bytes_in_rate"] > 2000 or figures.values["messages_in"] == 0  # a later sample may have come


def test_series_that_are_not_kept_are_left_out() -> None:
    with api_broker() as api:
        assert {} == api.get("/history?series=topic:nothing:messages_in,,:,nonsense")["series"]
        assert 400 == api.ask("/api/v1/history?since=x")[0]
