"""`broker cluster` against a broker."""

import json

import pytest

from broker.client import Broker
from broker.client.kafka import ClientConfig, Cluster
from broker.client.kafka.admin.cluster import describe_cluster, features
from protocol.kafka.api_keys import ApiKey
from tests.cli.conftest import Run


def test_the_cluster_is_described(session_broker: Broker, run: Run) -> None:
    address = session_broker.bootstrap_servers
    partitions = len(session_broker.server.kafka.logs.partitions)
    (line,) = run("cluster", "describe", "--output", "json").stdout.splitlines()
    described = json.loads(line)
    assert 22 == len(described["cluster_id"])
    assert 1 == described["controller"]
    (own,) = described["brokers"]
    assert (1, address, False) == (own["id"], f"{own['host']}:{own['port']}", own["fenced"])
    assert [f"PLAINTEXT://{address}"] == own["listeners"]
    assert 0 < own["usable_bytes"] <= own["total_bytes"]
    assert partitions == own["partitions"]
    heading, row = run("cluster", "describe").stdout.decode().splitlines()
    assert f"cluster {described['cluster_id']}, controller 1, 1 broker" == heading
    assert row.startswith(f"1\t{address}\t-\tup\tPLAINTEXT://{address}\t")
    assert row.endswith(f"\t{partitions}")


def test_apis_and_features_are_listed(run: Run) -> None:
    apis = run("cluster", "apis").stdout.decode().splitlines()
    assert "18\tApiVersions\t0\t4" in apis
    first = json.loads(run("cluster", "apis", "--broker", "1", "--output", "json").stdout.splitlines()[0])
    assert {"key": 0, "api": "Produce", "lowest": 0, "highest": 13} == first
    features = run("cluster", "features").stdout.decode().splitlines()
    assert "transaction.version\t0\t2\t2" in features
    assert b"no broker 9; it has 1." in run("cluster", "apis", "--broker", "9", fails=1).stderr


@pytest.mark.parametrize("missing", [ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_LOG_DIRS])
def test_older_brokers_tell_less(session_broker: Broker, missing: ApiKey) -> None:
    properties = {"bootstrap.servers": session_broker.bootstrap_servers}
    with Cluster(ClientConfig.from_properties(properties)) as cluster:
        connection = cluster.routing.any_connection()
        del connection.ranges[missing]
        described = describe_cluster(cluster.routing)
        assert [1] == [node.id for node in described.brokers]
        assert 1 == described.controller
        connection.ranges[ApiKey.API_VERSIONS] = (0, 2)
        assert [] == features(connection)
