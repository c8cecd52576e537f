"""`broker groups` against a broker, with groups of kafka-python."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer

from broker.client import Broker
from broker.client.kafka import ClientConfig, Cluster
from broker.runtime.clock import SystemClock
from protocol.kafka.records.records import build_batch
from tests.cli.conftest import Run


@pytest.fixture
def group(topic: str) -> str:
    return f"g-{topic}"


def lines(result: Any) -> list[str]:
    return result.stdout.decode().splitlines()  # type: ignore[no-any-return]


def objects(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines(result)]


@pytest.fixture
def read_some(session_broker: Broker, run: Run, topic: str, group: str) -> None:
    """A topic of two partitions with five records each; the group has committed offset 2 of partition 0 and 5 of 1."""
    run("topics", "create", topic, "-p", "2")
    with Cluster(config(session_broker)) as cluster, cluster.producer() as producer:
        now = SystemClock.time_ms()
        for partition in (0, 1):
            producer.send(topic, partition, build_batch([(None, b"value", [], now)] * 5), 5)
        producer.flush()
        cluster.commit(group, {(topic, 0): 2, (topic, 1): 5})


def config(broker: Broker) -> ClientConfig:
    return ClientConfig.from_properties({"bootstrap.servers": broker.bootstrap_servers})


def commit(broker: Broker, group: str, offsets: dict[tuple[str, int], int]) -> None:
    with Cluster(config(broker)) as cluster:
        cluster.commit(group, offsets)


@contextmanager
def member(broker: Broker, group: str, topic: str) -> Iterator[Any]:
    """A consumer that has joined the group and has partitions."""
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        topic,
        group_id=group,
        bootstrap_servers=broker.bootstrap_servers,
        client_id="reader",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    try:
        while not consumer.assignment():
            consumer.poll(timeout_ms=100)
        yield consumer
    finally:
        consumer.close()


@pytest.mark.usefixtures("read_some")
def test_group_is_listed_with_lag_by_partition(run: Run, topic: str, group: str) -> None:
    assert f"{group}\tclassic\tEmpty\t" in lines(run("groups", "list"))
    assert [f"{group}\tclassic\tEmpty\t"] == [
        line for line in lines(run("groups", "list", "--state", "empty")) if group in line
    ]
    assert group not in run("groups", "list", "--state", "Stable").stdout.decode()
    heading, first, second = lines(run("groups", "describe", group))
    assert heading.startswith(f"{group}: Empty, 0 members, coordinator 127.0.0.1:")
    *cells, seconds, _member, _client, _host = first.split("\t")
    assert [topic, "0", "2", "5", "3"] == cells
    assert 0 <= float(seconds) < 3600
    assert f"{topic}\t1\t5\t5\t0\t0.0\t-\t-\t-" == second


@pytest.mark.usefixtures("read_some")
def test_json_has_an_object_a_partition(run: Run, topic: str, group: str) -> None:
    first, second = objects(run("groups", "describe", group, "--output", "json"))
    age = first.pop("lag_s")
    assert 0 < age < 3600
    nobody = {"problem": None, "member_id": None, "client_id": None, "host": None}
    assert {
        "group": group,
        "state": "Empty",
        "topic": topic,
        "partition": 0,
        "committed": 2,
        "end_offset": 5,
        "lag": 3,
        **nobody,
    } == first
    assert (5, 0, 0.0) == (second["committed"], second["lag"], second["lag_s"])
    listed = [listing for listing in objects(run("groups", "list", "--output", "json")) if listing["group"] == group]
    assert [{"group": group, "type": "classic", "state": "Empty", "protocol": ""}] == listed
    (state,) = objects(run("groups", "describe", group, "--state", "--output", "json"))
    assert ("Empty", 0) == (state["state"], state["members"])


def test_members_and_partitions_without_a_commit_are_shown(
    session_broker: Broker, run: Run, topic: str, group: str
) -> None:
    run("topics", "create", topic, "-p", "2")
    with member(session_broker, group, topic) as consumer:
        heading, *rows = lines(run("groups", "describe", group))
        assert f"{group}: Stable, 1 member, range" in heading
        assert [(f"{topic}\t{number}\t-\t0\t-\t-", "reader") for number in (0, 1)] == [
            ("\t".join(row.split("\t")[:6]), row.split("\t")[7]) for row in rows
        ]
        (described,) = objects(run("groups", "describe", group, "--members", "--output", "json"))
        assert [{"topic": topic, "partitions": [0, 1]}] == described["assignment"]
        assert f"{topic}:0,1" in run("groups", "describe", group, "--members").stdout.decode()
        assert {(topic, 0), (topic, 1)} == {(assigned.topic, assigned.partition) for assigned in consumer.assignment()}


def test_newer_protocol_group_is_handled_like_others(session_broker: Broker, run: Run, topic: str, group: str) -> None:
    run("topics", "create", topic, "-p", "2")
    consumer = Consumer(
        {"bootstrap.servers": session_broker.bootstrap_servers, "group.id": group, "group.protocol": "consumer"}
    )
    try:
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(0.1)
        assert any(line.startswith(f"{group}\tconsumer\t") for line in lines(run("groups", "list")))
        heading, *rows = lines(run("groups", "describe", group))
        assert f"{group}: " in heading and "1 member, uniform" in heading
        assert len(rows) == 2
        (described,) = objects(run("groups", "describe", group, "--members", "--output", "json"))
        assert [{"topic": topic, "partitions": [0, 1]}] == described["assignment"]
        run("groups", "delete", group, fails=1)
    finally:
        consumer.close()
    run("groups", "reset-offsets", group, "--topic", topic, "--to-earliest", "--execute")
    (state,) = objects(run("groups", "describe", group, "--state", "--output", "json"))
    assert ("Empty", 0) == (state["state"], state["members"])
    run("groups", "delete", group)
    assert group not in run("groups", "list").stdout.decode()


def test_a_group_that_does_not_exist_is_told(run: Run, group: str) -> None:
    assert f"broker: There is no group '{group}'.\n".encode() == run("groups", "describe", group, fails=1).stderr
