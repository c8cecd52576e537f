"""Topics over HTTP: what a list and a description show."""

from collections.abc import Iterator

import pytest

from tests.http.api.harness import Api, api_broker, differences, documented


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with api_broker() as made:
        for name in ("orders", "clicks", "__internal", "a", "b"):
            made.kafka.logs.create_topic(name, 2 if name == "orders" else 1)
        made.produce("orders", *[b"value"] * 10)
        made.produce("orders", *[b"value"] * 5, partition=1)
        made.commit("billing", "orders", 4, 5)
        made.commit("audit", "orders", 0)
        yield made


def test_topics_have_sizes_and_their_groups_lag(api: Api) -> None:
    topics = {each["name"]: each for each in api.get("/topics")["topics"]}
    orders = topics["orders"]
    assert (2, False, 15, 0) == (orders["partitions"], orders["internal"], orders["messages"], orders["offline"])
    assert api.kafka.logs.partitions["orders", 0].size_bytes() < orders["log_bytes"]
    assert [{"group": "audit", "lag": 10}, {"group": "billing", "lag": 6}] == orders["groups"]
    assert topics["__internal"]["internal"]
    assert [] == topics["clicks"]["groups"]


def test_pages_are_sorted_by_name_and_complete(api: Api) -> None:
    names = [each["name"] for each in api.pages("/topics", "topics")]
    assert sorted(info.name for info in api.kafka.logs.topics()) == names


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "limit=-1", "limit=%d9%a3", "limit=" + "9" * 30])
def test_a_limit_that_is_none_is_refused(api: Api, query: str) -> None:
    status, answer = api.ask(f"/api/v1/topics?{query}")
    assert 400 == status
    assert "limit" in answer["reason"]


def test_a_topic_is_described(api: Api) -> None:
    answer = api.get("/topics/orders")
    assert [] == differences(documented("/api/v1/topics/orders"), answer)
    first, second = answer["partitions"]
    assert (0, 0, 10, 10, None) == (
        first["partition"],
        first["start_offset"],
        first["end_offset"],
        first["last_stable_offset"],
        first["offline_reason"],
    )
    assert 5 == second["end_offset"]
    audit, billing = answer["groups"]
    assert ("audit", 10) == (audit["group"], audit["lag"])
    assert ("billing", 6) == (billing["group"], billing["lag"])
    assert 0 <= billing["lag_s"] < 3600
    (cleanup,) = [each for each in answer["settings"] if each["name"] == "cleanup.policy"]
    assert ("delete", "delete", "default") == (cleanup["value"], cleanup["default"], cleanup["source"])


def test_a_list_has_the_documented_form(api: Api) -> None:
    assert [] == differences(documented("/api/v1/topics?limit=1"), api.get("/topics?limit=1&after=clicks"))


def test_an_unknown_topic_is_not_found(api: Api) -> None:
    assert (404, {"reason": "There is no topic 'nothing'."}) == api.ask("/api/v1/topics/nothing")


def test_own_setting_of_a_topic_is_marked(api: Api) -> None:
    api.kafka.logs.alter_topic_configs("a", {"retention.ms": "1000"})
    settings = {each["name"]: each for each in api.get("/topics/a")["settings"]}
    assert ("1000", "604800000", "topic") == tuple(
        settings["retention.ms"][key] for key in ("value", "default", "source")
    )


def test_an_offline_partition_says_why(api: Api) -> None:
    api.kafka.logs.create_topic("broken", 1)
    api.kafka.logs.partitions["broken", 0].state.go_offline("the disk has failed")
    answer = api.get("/topics/broken")
    assert 1 == answer["offline"]
    assert "the disk has failed" in answer["partitions"][0]["offline_reason"]
