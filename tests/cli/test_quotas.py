"""`broker quotas` against a broker."""

import json
from collections.abc import Iterator

import pytest

from broker.client import Broker
from tests.cli.conftest import Run


@pytest.fixture
def address() -> Iterator[str]:
    with Broker() as running:
        yield running.bootstrap_servers


def test_quotas_are_set_listed_and_removed(run_alone: Run, address: str) -> None:
    def run(*arguments: str, fails: int = 0) -> list[str]:
        result = run_alone("quotas", *arguments, "-b", address, fails=fails)
        return (result.stdout or result.stderr).decode().splitlines()

    assert [] == run("list")
    said = run("set", "--user", "alice", "--client-id", "app", "producer_byte_rate=10m", "request_percentage=50")
    assert ["set producer_byte_rate, request_percentage of user alice, client-id app"] == said
    run("set", "--user-default", "consumer_byte_rate=1048576")
    assert [
        "user <default>\tconsumer_byte_rate\t1048576",
        "user alice, client-id app\tproducer_byte_rate\t10485760",
        "user alice, client-id app\trequest_percentage\t50",
    ] == sorted(run("list"))
    assert 2 == len(run("list", "--user", "alice"))
    (listed,) = run("list", "--user-default", "--output", "json")
    assert {"entity": {"user": None}, "quotas": {"consumer_byte_rate": 1048576.0}} == json.loads(listed)
    run("remove", "--user", "alice", "--client-id", "app", "request_percentage")
    assert 1 == len(run("list", "--user", "alice"))
    (removed,) = run("remove", "--user", "alice", "--client-id", "app", "--output", "json")
    entity = {"user": "alice", "client-id": "app"}
    assert {"entity": entity, "keys": ["producer_byte_rate"], "done": "removed"} == json.loads(removed)
    assert "There is no quota of user alice" in run("remove", "--user", "alice", "--client-id", "app", fails=1)[0]
    assert 1 == len(run("list"))


def test_nonsense_is_refused_in_one_sentence(run_alone: Run) -> None:
    for arguments, said in (
        (["set", "producer_byte_rate=1"], b"Say whose quotas"),
        (["set", "--user", "a", "byte_rate=1"], b"There is no quota 'byte_rate'"),
        (["set", "--user", "a", "producer_byte_rate"], b"KEY=VALUE"),
        (["set", "--user", "a", "producer_byte_rate=fast"], b"must be a number"),
        (["set", "--user", "a", "request_percentage=10m"], b"must be a number"),
        (["set", "--user", "a", "producer_byte_rate=-4"], b"must be a number above 0"),
        (["set", "--user", "a", "--user-default", "producer_byte_rate=1"], b"either --user or --user-default"),
        (["set", "--user", "a", "--ip", "10.0.0.1", "connection_creation_rate=1"], b"--ip stands alone"),
    ):
        assert said in run_alone("quotas", *arguments, fails=2).stderr
