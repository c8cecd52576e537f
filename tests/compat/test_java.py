"""Kafka's own Java clients, where there is a Java and their jars have been put in place, because no package of theirs is small:
of today, and of the last release before 4.0.
"""

from pathlib import Path

import pytest

from tests.compat.clients import java
from tests.compat.conftest import new_name
from tests.process.nodes import Nodes

CLIENTS = [
    *[f"codec-{codec}" for codec in ("none", "gzip", "snappy", "lz4", "zstd")],
    *["acks", "too-large", "group", "cooperative", "static", "positions", "topics", "groups", "absent"],
]
TRANSACTIONS = [
    *["commit-and-abort", "many-partitions", "transform", "offsets-of-old-members", "zombie", "too-slow"],
    *["described", "aborted-by-admin", "fenced-by-admin"],
]

CLUSTER = [
    *["config-resources", "metadata-quorum", "features"],
    *["no-streams-groups", "no-streams-members", "no-offsets-topic"],
]
SHARE_GROUPS = [
    *["listed-by-type", "shared-partition", "lag", "altered-before-it-exists", "offsets-deleted"],
    *["members-in-the-way", "absent", "settings"],
]


@pytest.fixture(scope="module", params=["java", "java-3.9"])
def jars(request: pytest.FixtureRequest) -> Path:
    return java.jars_or_skip(request.param)


@pytest.mark.parametrize(("program", "scenarios"), [("KafkaClients", CLIENTS), ("Transactions", TRANSACTIONS)])
def test_kafka_s_own_clients(jars: Path, servers: str, program: str, scenarios: list[str]) -> None:
    assert scenarios == java.run(jars, program, servers, new_name("java"))


def test_transactions_of_kafka_s_own_clients_over_two_nodes(jars: Path, tmp_path: Path) -> None:
    with Nodes(tmp_path, count=2) as nodes:
        try:
            assert TRANSACTIONS == java.run(jars, "Transactions", nodes.address, new_name("java"))
        finally:
            nodes.stop()


@pytest.mark.parametrize(("program", "scenarios"), [("ClusterAdmin", CLUSTER), ("ShareAdmin", SHARE_GROUPS)])
def test_kafka_s_own_admin_client(servers: str, program: str, scenarios: list[str]) -> None:
    assert scenarios == java.run(java.jars_or_skip(), program, servers, new_name("java"))
