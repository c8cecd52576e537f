"""The commands against brokers that answer otherwise than ours: librdkafka's own cluster of three, which serves few of the APIs
of administrators, and ours where the user may do little.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from broker.client import Broker
from tests.cli.conftest import Run


@pytest.fixture(scope="module")
def mock() -> Iterator[str]:
    """The addresses of a cluster with the topic `orders`, of whose ten records the group `billing` has committed one."""
    producer = Producer({"test.mock.num.brokers": 3, "bootstrap.servers": "unused"})
    addresses = ",".join(f"{node.host}:{node.port}" for node in producer.list_topics(timeout=30).brokers.values())
    for _ in range(10):
        producer.produce("orders", b"value", partition=1)
    producer.flush(30)
    consumer = Consumer(
        {
            "bootstrap.servers": addresses,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["orders"])
    (message,) = consumer.consume(1, timeout=30)
    consumer.commit(message, asynchronous=False)
    consumer.close()
    yield addresses
    del producer


@pytest.fixture
def on_mock(run_alone: Run, mock: str) -> Any:
    def on_mock(*arguments: str, fails: int = 0) -> Any:
        return run_alone(*arguments, "-b", mock, fails=fails)

    return on_mock


def objects(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_topics_are_described_without_unavailable_fields(on_mock: Any) -> None:
    assert b"orders\t4\n" == on_mock("topics", "list").stdout
    (orders,) = objects(on_mock("topics", "describe", "orders", "--output", "json"))
    assert orders["settings"] is None
    assert [0, 10, 0, 0] == [partition["end_offset"] for partition in orders["partitions"]]
    assert {partition["leader"] for partition in orders["partitions"]} <= {1, 2, 3}  # the mock draws them
    assert [None] * 4 == [partition["bytes"] for partition in orders["partitions"]]


def test_offsets_are_planned_without_describing_groups(on_mock: Any) -> None:
    how = ("groups", "reset-offsets", "billing", "--topic", "orders:1", "--to-offset", "4")
    assert b"orders\t1\t1\t4\n" == on_mock(*how).stdout
    # The mock keeps a group as it is after its last member has left.
    assert b"The group 'billing' has members: stop its consumers first." in on_mock(*how, "--execute", fails=1).stderr


def test_the_cluster_and_its_rates_are_shown(on_mock: Any) -> None:
    (cluster,) = objects(on_mock("cluster", "describe", "--output", "json"))
    assert [1, 2, 3] == [node["id"] for node in cluster["brokers"]]
    assert [None] * 3 == [node["usable_bytes"] for node in cluster["brokers"]]
    assert b"topic\torders\t4\t0\t0.0\t10\t-\n" == on_mock("top", "--interval", "0.2").stdout


def test_unserved_api_is_reported_in_one_sentence(on_mock: Any) -> None:
    for command in (
        ["groups", "list"],
        ["configs", "get", "--topic", "orders"],
        ["topics", "create", "t"],
        ["users", "list"],
    ):
        said = on_mock(*command, fails=1).stderr.decode()
        assert " does not serve " in said
        assert 1 == said.count("\n")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A broker with logins and an authorizer, and the client settings of bob, who may describe one topic and nothing else."""
    settings = tmp_path_factory.mktemp("bob") / "bob.properties"
    settings.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.username=bob\nsasl.password=secret-of-bob\n"
    )
    with Broker(
        listeners=("kafka://127.0.0.1:0", "kafka+sasl://127.0.0.1:0"),
        sasl_enabled_mechanisms=("SCRAM-SHA-256",),
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users="User:ANONYMOUS",
    ) as broker:
        broker.add_user("bob", "secret-of-bob")
        yield broker.bootstrap_servers, broker.address("kafka+sasl"), settings  # type: ignore[misc]


def test_user_with_few_rights_is_told_why(run_alone: Run, guarded: tuple[str, str, Path]) -> None:
    admin, bobs, settings = guarded
    run_alone("topics", "create", "open", "closed", "-b", admin)
    run_alone("acls", "add", "--allow-principal", "User:bob", "--operation", "Describe", "--topic", "open", "-b", admin)

    def as_bob(*arguments: str, fails: int = 0) -> Any:
        return run_alone(*arguments, "-b", bobs, "--client-config", str(settings), fails=fails)

    assert b"open\t1\n" == as_bob("topics", "list").stdout
    (described,) = objects(as_bob("topics", "describe", "open", "--output", "json"))
    assert described["settings"] is None
    assert 0 == described["partitions"][0]["end_offset"]
    assert described["partitions"][0]["bytes"] is None
    assert b"" == as_bob("groups", "list").stdout
    as_bob("cluster", "describe")
    for refused in (
        ["topics", "describe", "closed"],
        ["topics", "alter", "open", "-p", "3"],
        ["topics", "delete", "open"],
        ["configs", "get", "--topic", "open"],
        ["configs", "get"],
        ["configs", "set", "--topic", "open", "retention.ms=1"],
        ["groups", "describe", "g"],
        ["groups", "delete", "g"],
    ):
        said = as_bob(*refused, fails=1).stderr
        assert b"secret-of-bob" not in said
        assert 1 == said.count(b"\n")
        assert said.startswith(b"broker: ")
