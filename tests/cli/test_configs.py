"""`broker configs` against a broker."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from broker.client import Broker
from tests.cli.conftest import Run


@pytest.fixture
def address() -> Iterator[str]:
    with Broker(num_partitions=3) as running:
        yield running.bootstrap_servers


@pytest.fixture
def configs(run_alone: Run, address: str) -> Any:
    def configs(*arguments: str, fails: int = 0) -> Any:
        return run_alone("configs", *arguments, "-b", address, fails=fails)

    return configs


def lines(result: Any) -> list[str]:
    return result.stdout.decode().splitlines()  # type: ignore[no-any-return]


def test_topic_settings_are_set_shown_and_deleted(run_alone: Run, configs: Any, address: str) -> None:
    run_alone("topics", "create", "orders", "-b", address)
    assert [] == lines(configs("get", "--topic", "orders"))
    done = configs("set", "--topic", "orders", "retention.ms=3600000", "cleanup.policy=compact,delete")
    assert ["set retention.ms, cleanup.policy of topic orders"] == lines(done)
    assert [
        "cleanup.policy\tcompact,delete\tdelete\ttopic",
        "retention.ms\t3600000\t-\ttopic",
    ] == (lines(configs("get", "--topic", "orders")))
    assert ["max.message.bytes\t1048588\t1048588\tdefault"] == lines(
        configs("get", "--topic", "orders", "max.message.bytes")
    )
    assert 20 < len(lines(configs("get", "--topic", "orders", "--all")))
    (line,) = lines(configs("get", "--topic", "orders", "retention.ms", "--documentation", "--output", "json"))
    assert ["name", "value", "default", "source", "documentation"] == list(json.loads(line))
    assert json.loads(line)["documentation"]
    configs("delete", "--topic", "orders", "retention.ms", "cleanup.policy")
    assert [] == lines(configs("get", "--topic", "orders"))


def test_broker_settings_are_set_while_it_runs(configs: Any) -> None:
    assert "num.partitions\t3\t1\tfile" in lines(configs("get"))
    configs("set", "log.retention.ms=5000")
    configs("set", "--all-brokers", "message.max.bytes=2000000")
    assert ["log.retention.ms\t5000\tlog.retention.hours=168\tbroker"] == lines(configs("get", "log.retention.ms"))
    assert ["message.max.bytes\t2000000\t-\tall brokers"] == lines(configs("get", "--all-brokers"))
    assert "broker 1\tlog.retention.ms\t5000\tlog.retention.hours=168\tbroker" in lines(configs("list"))
    configs("delete", "--broker", "1", "log.retention.ms")
    assert "log.retention.ms" not in configs("get").stdout.decode()


def test_other_names_of_kafka_are_understood(run_alone: Run, configs: Any, address: str) -> None:
    run_alone("topics", "create", "orders", "-b", address)
    said = configs("set", "log.retention.hours=2")
    assert b"log.retention.hours is log.retention.ms=7200000 here\n" == said.stderr
    assert ["set log.retention.ms of broker 1"] == lines(said)
    assert lines(configs("get", "log_retention_hours"))[0].startswith("log.retention.ms\t7200000\t")
    configs("set", "--topic", "orders", "log.retention.hours=1")
    assert ["retention.ms\t3600000\t7200000\ttopic"] == lines(configs("get", "--topic", "orders"))


def test_quotas_of_clients_are_settings_too(configs: Any) -> None:
    assert ["set producer_byte_rate of user alice"] == lines(configs("set", "--user", "alice", "producer_byte_rate=1m"))
    assert ["producer_byte_rate\t1048576\t-\tquota"] == lines(configs("get", "--user", "alice"))
    assert "user alice\tproducer_byte_rate\t1048576\t-\tquota" in lines(configs("list"))
    configs("delete", "--user", "alice", "producer_byte_rate")
    assert [] == lines(configs("get", "--user", "alice"))


def test_settings_of_a_group(configs: Any) -> None:
    configs("set", "--group", "readers", "consumer.session.timeout.ms=50000")
    assert ["consumer.session.timeout.ms\t50000\t45000\tgroup"] == lines(configs("get", "--group", "readers"))


def test_subscriptions_to_metrics_of_clients(configs: Any) -> None:
    said = configs("set", "--client-metrics", "slow", "interval.ms=30000", "metrics=org.apache.kafka.consumer.")
    assert ["set interval.ms, metrics of client metrics slow"] == lines(said)
    shown = lines(configs("get", "--client-metrics", "slow"))
    assert "interval.ms\t30000\t300000\tclient metrics" in shown
    assert any(line.startswith("metrics\torg.apache.kafka.consumer.\t") for line in shown)
    configs("delete", "--client-metrics", "slow", "interval.ms")
    assert b"at least 100" in configs("set", "--client-metrics", "slow", "interval.ms=99", fails=1).stderr


def test_a_dry_run_changes_nothing(configs: Any) -> None:
    assert ["checked log.retention.ms of broker 1"] == lines(configs("set", "--dry-run", "log.retention.ms=5000"))
    assert "log.retention.ms" not in configs("get").stdout.decode()
    assert b"never" in configs("set", "--dry-run", "log.retention.ms=never", fails=1).stderr


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["get", "--topic", "t", "--broker", "1"], 2, b"Name one thing"),
        (["get", "--topic", "nosuch"], 1, b"There is no topic 'nosuch'"),
        (["get", "--broker", "7"], 1, b"The cluster has no broker 7; it has 1."),
        (["get", "log.retention.hurs"], 1, b"did you mean log.retention.ms?\n"),
        (["set", "log.retention.ms"], 2, b"KEY=VALUE"),
        (["set", "log.dirs=/elsewhere"], 1, b"log.dirs"),
        (["set", "--user", "alice", "byte_rate=1"], 2, b"There is no quota 'byte_rate'"),
    ],
)
def test_impossible_changes_are_refused_in_one_sentence(
    configs: Any, arguments: list[str], status: int, said: bytes
) -> None:
    stderr = configs(*arguments, fails=status).stderr
    assert said in stderr
    assert status == 2 or 1 == stderr.count(b"\n")
