"""Groups over HTTP: members and lag."""

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer

from broker.kafka.groups.share.values import HeartbeatRequest, HeartbeatResult
from tests.http.api.harness import Api, api_broker, differences, documented
from tests.waiting import wait_for


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with api_broker(group_initial_rebalance_delay_ms=0) as made:
        made.kafka.logs.create_topic("orders", 2)
        made.produce("orders", *[b"value"] * 10)
        made.produce("orders", *[b"value"] * 5, partition=1)
        made.commit("billing", "orders", 4, 5)
        made.commit("a/b:ü,c", "orders", 0)
        for number in range(4):
            made.commit(f"more-{number}", "orders", 0, 0)
        yield made


def test_groups_have_a_lag_in_records_and_time(api: Api) -> None:
    groups = {each["group"]: each for each in api.get("/groups")["groups"]}
    billing = groups["billing"]
    assert ("Empty", 0, 6, ["orders"]) == tuple(billing[key] for key in ("state", "members", "lag", "topics"))
    assert 0 <= billing["lag_s"] < 3600
    assert 10 == groups["a/b:ü,c"]["lag"]


def test_group_lists_the_most_lagging_partitions_first(api: Api) -> None:
    api.commit("reports", "orders", 8, 1)
    answer = api.get("/groups/reports")
    first, second = answer["partitions"]
    assert ("orders", 1, 1, 5, 4) == tuple(
        first[key] for key in ("topic", "partition", "committed", "end_offset", "lag")
    )
    assert (0, 2) == (second["partition"], second["lag"])
    assert 0 <= first["lag_s"] < 3600
    assert None is first["member_id"]
    assert 6 == answer["lag"]


def test_group_at_the_end_has_no_lag(api: Api) -> None:
    api.commit("done", "orders", 10, 5)
    answer = api.get("/groups/done")
    assert (0, 0.0) == (answer["lag"], answer["lag_s"])


def test_a_consumer_group_has_its_epochs_and_targets(api: Api) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": api.broker.bootstrap_servers,
            "group.id": "newer",
            "group.protocol": "consumer",
            "client.id": "reader",
        }
    )
    try:
        consumer.subscribe(["orders"])
        while not consumer.assignment():
            consumer.poll(0.1)
        wait_for(lambda: api.get("/groups/newer")["state"] == "Stable")
        answer = api.get("/groups/newer")
        assert [] == differences(documented("/api/v1/groups/shipping"), answer)
        assert ("consumer", "uniform", 1, 1) == tuple(
            answer[key] for key in ("type", "protocol", "generation", "assignment_epoch")
        )
        (member,) = answer["members"]
        assert ("reader", "127.0.0.1", "consumer", 1) == tuple(
            member[key] for key in ("client_id", "host", "protocol", "epoch")
        )
        assert [{"topic": "orders", "partitions": [0, 1]}] == member["assignment"] == member["target"]
        listed = {each["group"]: each for each in api.get("/groups")["groups"]}
        assert ("consumer", 1) == (listed["newer"]["type"], listed["newer"]["members"])
    finally:
        consumer.close()
    wait_for(lambda: api.get("/groups/newer")["state"] == "Empty")
    api.kafka.groups.expiration.sweep()  # without offsets it goes
    assert "newer" not in api.kafka.groups.names()


def test_members_have_their_assignments(api: Api) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": api.broker.bootstrap_servers,
            "group.id": "live",
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe(["orders"])
        message = None
        while message is None:
            message = consumer.poll(1)
        consumer.commit(message, asynchronous=False)
        wait_for(lambda: api.get("/groups/live")["state"] == "Stable")
        answer = api.get("/groups/live")
        assert [] == differences(documented("/api/v1/groups/billing"), answer)
        (member,) = answer["members"]
        assert ("reader", "127.0.0.1", None) == (member["client_id"], member["host"], member["instance_id"])
        assert [{"topic": "orders", "partitions": [0, 1]}] == member["assignment"]
        assert ("consumer", "range") == (answer["protocol_type"], answer["protocol"])
        assert {member["member_id"]} == {each["member_id"] for each in answer["partitions"]}
    finally:
        consumer.close()


def test_figures_beyond_the_pages_work_are_null(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    from broker.kafka.views import groups, topics

    monkeypatch.setattr(groups, "_PARTITIONS_MAX", 4)
    shown = api.get("/groups")["groups"]
    assert None is not shown[0]["lag"]
    assert None is shown[-1]["lag"]
    monkeypatch.setattr(topics, "_PARTITIONS_MAX", 3)
    (orders,) = [each for each in api.get("/topics")["topics"] if each["name"] == "orders"]
    assert None in [each["lag"] for each in orders["groups"]]
    figures = [api.kafka.groups.figures(name) for name in api.kafka.groups.names()]
    assert sum(each is not None and bool(each.topics) for each in figures) == len(orders["groups"])


def test_sample_of_many_groups_takes_turns(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    from broker.kafka.groups.lag import Lags
    from broker.kafka.views import routes
    from broker.kafka.views.view_context import ViewContext

    names = sorted(api.kafka.groups.names())
    monkeypatch.setattr(routes, "_SAMPLED_MAX", 4)
    surroundings = api.http._surroundings
    lags = routes._GroupLags(ViewContext(api.kafka, surroundings.callers, surroundings.figures, Lags(api.kafka.logs)))
    first = lags.read()[routes.LAG]
    assert 0 < len(first) < len(names)
    for _ in names:
        lag = lags.read()[routes.LAG]
    assert names == sorted(lag)
    assert {"billing": 6.0}.items() <= lag.items()


def test_sample_looks_up_times_of_some_partitions(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    from broker.kafka.groups.lag import Lags
    from broker.kafka.views import routes
    from broker.kafka.views.view_context import ViewContext

    surroundings = api.http._surroundings
    lags = routes._GroupLags(ViewContext(api.kafka, surroundings.callers, surroundings.figures, Lags(api.kafka.logs)))
    behind = {name for name, lag in lags.read()[routes.LAG].items() if lag}
    assert "billing" in behind & lags.read()[routes.LAG_S].keys()
    assert lags.read()[routes.LAG_S]["billing"] > 0
    monkeypatch.setattr(routes, "_TIMED_MAX", 0)
    assert not behind & lags.read()[routes.LAG_S].keys()


def test_a_name_may_have_any_characters(api: Api) -> None:
    assert "a/b:ü,c" == api.get("/groups/" + quote("a/b:ü,c", safe=""))["group"]


def test_an_unknown_group_is_not_found(api: Api) -> None:
    assert 404 == api.ask("/api/v1/groups/nothing")[0]


def test_pages_are_complete_and_have_the_documented_form(api: Api) -> None:
    names = [each["group"] for each in api.pages("/groups", "groups", limit=1)]
    assert sorted(api.kafka.groups.names()) == names
    assert [] == differences(documented("/api/v1/groups?limit=1"), api.get("/groups"))


def test_offline_partition_has_an_unknown_lag(api: Api) -> None:
    api.kafka.logs.create_topic("gone", 1)
    api.produce("gone", b"x")
    api.commit("orphan", "gone", 0)
    api.kafka.logs.partitions["gone", 0].state.go_offline("the disk has failed")
    (partition,) = api.get("/groups/orphan")["partitions"]
    assert (None, None, None) == (partition["end_offset"], partition["lag"], partition["lag_s"])


def test_share_group_has_start_offsets_and_members(api: Api) -> None:
    answers: list[HeartbeatResult] = []
    request = HeartbeatRequest("m", 0, "reader", "/127.0.0.1", None, ("orders",))
    api.kafka.groups.share.heartbeat("queue", request, answers.append)
    wait_for(lambda: bool(answers))
    api.produce("orders", b"value")
    (queue,) = [each for each in api.get("/groups")["groups"] if each["group"] == "queue"]
    assert ("share", "Stable", 1, 1, ["orders"]) == tuple(
        queue[key] for key in ("type", "state", "members", "lag", "topics")
    )
    answer = api.get("/groups/queue")
    assert [] == differences(documented("/api/v1/groups/billing"), answer)
    (member,) = answer["members"]
    assert ("m", "reader", "127.0.0.1") == tuple(member[key] for key in ("member_id", "client_id", "host"))
    assert [{"topic": "orders", "partitions": [0, 1]}] == member["assignment"]
    first, second = answer["partitions"]
    assert ("orders", 0, 10, 11, 1) == tuple(
        first[key] for key in ("topic", "partition", "committed", "end_offset", "lag")
    )
    assert (5, 0) == (second["committed"], second["lag"])
