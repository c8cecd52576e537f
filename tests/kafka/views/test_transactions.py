"""Open transactions and producers over HTTP."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from tests.http.api.harness import Api, api_broker, differences, documented


@pytest.fixture
def api() -> Iterator[Api]:
    with api_broker() as made:
        made.kafka.logs.create_topic("orders", 2)
        yield made


def begun(api: Api, name: str, *values: bytes) -> Producer:
    producer = Producer({"bootstrap.servers": api.broker.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce("orders", value, partition=0)
    producer.flush(30)
    return producer


def test_open_transaction_is_shown_with_held_partitions(api: Api) -> None:
    api.produce("orders", b"before")
    first = begun(api, "first", b"a")
    second = begun(api, "second", b"b")
    answer = api.get("/transactions")
    assert [] == differences(documented("/api/v1/transactions"), answer)
    one, other = answer["transactions"]
    assert ("first", "Ongoing", 60.0) == (one["id"], one["state"], one["timeout_s"])
    assert 0 <= one["open_s"] < 3600
    assert [{"topic": "orders", "partition": 0}] == one["partitions"] == other["partitions"]
    assert [{"topic": "orders", "partition": 0, "offset": 1}] == one["holds_last_stable_offset"]
    assert [] == other["holds_last_stable_offset"]
    (held,) = answer["held"]
    assert ("orders", 0, 1, 3, "first") == tuple(
        held[key] for key in ("topic", "partition", "last_stable_offset", "end_offset", "transactional_id")
    )
    first.commit_transaction(30)
    answer = api.get("/transactions")
    (other,) = answer["transactions"]
    assert [{"topic": "orders", "partition": 0, "offset": 2}] == other["holds_last_stable_offset"]
    second.abort_transaction(30)
    assert {"transactions": [], "held": [], "next": None} == api.get("/transactions")
    everything = api.get("/transactions?all=true")["transactions"]
    assert [("first", "CompleteCommit", None), ("second", "CompleteAbort", None)] == [
        (each["id"], each["state"], each["open_s"]) for each in everything
    ]


def test_unknown_transaction_is_shown_at_its_held_partition(api: Api) -> None:
    first = begun(api, "first", b"a")
    log = api.kafka.logs.partitions["orders", 0]
    (producer_id,) = log.producers.open
    api.kafka.transactions._registry._entries.clear()
    answer = api.get("/transactions")
    assert [] == answer["transactions"]
    assert [(producer_id, None)] == [(each["producer_id"], each["transactional_id"]) for each in answer["held"]]
    first.purge()


def test_producers_of_a_topic(api: Api) -> None:
    producer = Producer({"bootstrap.servers": api.broker.bootstrap_servers, "enable.idempotence": True})
    producer.produce("orders", b"x", partition=1)
    producer.flush(30)
    begun(api, "open", b"a")
    answer = api.get("/producers?topic=orders")
    assert [] == differences(documented("/api/v1/producers?topic=orders"), answer)
    by_partition = {each["partition"]: each for each in answer["producers"]}
    assert (0, 0) == (by_partition[0]["open_since_offset"], by_partition[0]["last_sequence"])
    assert None is by_partition[1]["open_since_offset"]
    assert [1] == [each["partition"] for each in api.get("/producers?topic=orders&partition=1")["producers"]]


def test_producers_need_a_topic(api: Api) -> None:
    assert 400 == api.ask("/api/v1/producers")[0]
    assert 404 == api.ask("/api/v1/producers?topic=nothing")[0]
    assert 400 == api.ask("/api/v1/producers?topic=orders&partition=2")[0]
