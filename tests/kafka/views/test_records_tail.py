"""Records as they arrive."""

import pytest

from broker.kafka.views import records
from broker.security.client_quotas import Entity, Kind
from tests.http.api.harness import api_broker, differences, documented
from tests.http.api.test_live import streamed
from tests.waiting import wait_for


def test_new_records_arrive_as_events() -> None:
    with api_broker() as api:
        api.kafka.logs.create_topic("orders", 2)
        api.produce("orders", b"before")
        with streamed(api, "/api/v1/topics/orders/tail") as events:
            (example,) = documented("/api/v1/topics/orders/records?partition=0&offset=4998&limit=1")["records"]
            for number in range(3):
                api.produce("orders", f"n{number}".encode(), partition=number % 2)
                event, record = next(events)
                assert ("record", {"text": f"n{number}"}, number % 2) == (event, record["value"], record["partition"])
                assert [] == differences(example, record)


def test_one_partition_can_be_followed() -> None:
    with api_broker() as api:
        api.kafka.logs.create_topic("orders", 2)
        with streamed(api, "/api/v1/topics/orders/tail?partition=1") as events:
            api.produce("orders", b"other", partition=0)
            api.produce("orders", b"own", partition=1)
            assert {"text": "own"} == next(events)[1]["value"]


def test_slow_stream_jumps_to_the_end() -> None:
    with api_broker() as api:
        api.kafka.logs.create_topic("orders", 1)
        log = api.kafka.logs.partitions["orders", 0]
        with streamed(api, "/api/v1/topics/orders/tail") as events:
            api.produce("orders", b"first")
            next(events)
            api.produce("orders", *[b"x" * 5000] * 2000)
            seen = set()
            event, data = next(events)
            while event != "jumped" or data["to"] < 2001:
                if event == "record":
                    seen.add(data["offset"])
                elif event == "jumped":
                    assert data["from"] < data["to"] <= log.high_watermark
                event, data = next(events)
            assert len(seen) < 2000
            api.produce("orders", b"last")
            while event != "record":
                event, data = next(events)
            assert "last" == data["value"]["text"]


def test_oversized_record_is_shortened_without_losing_others() -> None:
    with api_broker() as api:
        api.kafka.logs.create_topic("orders", 1)
        with streamed(api, "/api/v1/topics/orders/tail") as events:
            for large, shown in ((b"x", {"text": "x" * 2000}), (b"\xff", {"base64": "/" * 2000})):
                api.produce("orders", b"before", large * 70_000, b"after")
                seen = [next(events) for _ in range(3)]
                assert ["record"] * 3 == [event for event, _ in seen]
                assert [{"text": "before"}, {**shown, "truncated": True}, {"text": "after"}] == [
                    record["value"] for _, record in seen
                ]
                assert 70_000 == seen[1][1]["size"]


def test_stream_ends_when_another_topic_takes_the_name() -> None:
    with api_broker() as api:
        api.kafka.logs.create_topic("orders", 1)
        with streamed(api, "/api/v1/topics/orders/tail") as events:
            api.produce("orders", b"x")
            next(events)
            api.kafka.logs.delete_topic("orders")
            api.kafka.logs.create_topic("orders", 1)
            assert [] == list(events)


def test_the_stream_ends_with_its_topic() -> None:
    with api_broker() as api:
        api.kafka.logs.create_topic("orders", 1)
        with streamed(api, "/api/v1/topics/orders/tail") as events:
            api.produce("orders", b"x")
            next(events)
            api.kafka.logs.delete_topic("orders")
            assert [] == list(events)


def test_nobody_follows_a_topic_that_is_not_there() -> None:
    with api_broker() as api:
        api.kafka.logs.create_topic("wide", records.PARTITIONS_MAX + 1)
        assert 404 == api.ask("/api/v1/topics/nothing/tail")[0]
        assert 400 == api.ask("/api/v1/topics/wide/tail")[0]
        assert 400 == api.ask("/api/v1/topics/wide/tail?partition=999")[0]


def test_followed_records_count_for_the_users_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[tuple[int, int]] = []  # the end of the log and the position of the stream after each look
    with api_broker() as api:
        api.kafka.logs.create_topic("orders", 1)
        log, quotas = api.kafka.logs.partitions["orders", 0], api.broker.server.security.quotas
        look = records.Tail.look

        def seen(followed: records.Tail) -> None:
            look(followed)
            looks.extend((log.high_watermark, each.positions[0]) for each in followed._followers)

        monkeypatch.setattr(records.Tail, "look", seen)
        with streamed(api, "/api/v1/topics/orders/tail") as events:
            quotas.alter([(Entity(user="ANONYMOUS"), Kind.FETCH, 1)])
            api.produce("orders", b"first")
            assert "first" == next(events)[1]["value"]["text"]
            api.produce("orders", b"second")
            wait_for(lambda: looks.count((2, 1)) > 3)
            quotas.alter([(Entity(user="ANONYMOUS"), Kind.FETCH, None)])
            assert "second" == next(events)[1]["value"]["text"]
