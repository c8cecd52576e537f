"""`broker health --deep` against a broker, and against one that has something wrong with it."""

import json
from collections.abc import Iterator

import pytest

from broker.cli import deep_health
from broker.client import Broker
from broker.client.security_settings import SecuritySettings
from broker.errors import BrokerError
from tests.cli.conftest import Run


@pytest.fixture
def own() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def look(broker: Broker, least_free_percent: float = 0.0) -> deep_health.Findings:
    host, port = broker.bootstrap_servers.rsplit(":", 1)
    return deep_health.look((host, int(port)), 30, SecuritySettings.from_properties({}), least_free_percent)


def test_a_healthy_broker_has_no_problems(own: Broker, run: Run) -> None:
    own.server.kafka.logs.create_topic("orders", 3)
    findings = look(own)
    assert ([], 1, 3) == (findings.problems, findings.topics, findings.partitions)
    assert f"{own.bootstrap_servers} answers" in deep_health.check(findings, own.bootstrap_servers)
    said = run("health", "--deep", "--least-free", "0", "--output", "json", own.bootstrap_servers).stdout
    assert json.loads(said)["healthy"] is True


def test_offline_partitions_are_named_with_the_reason(own: Broker, run: Run) -> None:
    logs = own.server.kafka.logs
    logs.create_topic("orders", 3)
    for number in (1, 2):
        log = logs.get("orders", number)
        assert log is not None
        log.state.go_offline("the disk is broken")
    findings = look(own)
    assert ["orders-1", "orders-2"] == [problem.split()[0] for problem in findings.problems]
    assert all("the disk is broken" in problem for problem in findings.problems)
    said = run("health", "--deep", "--least-free", "0", own.bootstrap_servers, fails=1).stderr.decode()
    assert "orders-1 is offline" in said


def test_all_partitions_offline_is_noticed(own: Broker) -> None:
    logs = own.server.kafka.logs
    logs.create_topic("orders", 1)
    log = logs.get("orders", 0)
    assert log is not None
    log.state.go_offline("the disk is broken")
    assert ["orders-0"] == [problem.split()[0] for problem in look(own).problems]


def test_nearly_full_disk_is_a_problem(own: Broker) -> None:
    with pytest.raises(BrokerError, match=r"% of its disk free .* less than 100 %"):
        deep_health.check(look(own, 100), own.bootstrap_servers)


def test_closed_listener_matters_only_at_the_asked_address() -> None:
    findings = deep_health.Findings()
    deep_health._look_at_listener(findings, "kafka://127.0.0.1:1", ("127.0.0.1", 9092), 5)
    assert "does not accept connections at 127.0.0.1:1" in findings.problems[0]
    findings = deep_health.Findings()
    deep_health._look_at_listener(findings, "kafka://127.0.0.2:1", ("127.0.0.1", 9092), 5)
    assert ([], 1) == (findings.problems, len(findings.notes))


def test_address_may_be_given_with_the_usual_option(own: Broker, run_alone: Run) -> None:
    said = run_alone("health", "-b", own.bootstrap_servers, "--output", "json").stdout
    assert (own.bootstrap_servers, True) == tuple(map(json.loads(said).get, ("address", "healthy")))
    twice = run_alone("health", own.bootstrap_servers, "-b", own.bootstrap_servers, fails=2).stderr
    assert b"unexpected extra argument" in twice


@pytest.mark.parametrize("scheme", ["pulsar", "http", "shuffle"])
def test_the_listener_of_another_protocol_is_named(run_alone: Run, scheme: str) -> None:
    with Broker(listeners=["kafka://127.0.0.1:0", f"{scheme}://127.0.0.1:0"]) as broker:
        said = run_alone("health", broker.address(scheme), fails=1).stderr.decode()
    assert f"{scheme}:// listener" in said
