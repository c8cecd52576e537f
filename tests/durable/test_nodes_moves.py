"""Nodes that an administrator moves between machines, with `broker cluster`, while clients write."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.durable.durable_broker import durable_postgres, wait_until
from tests.durable.machine_load import Writing, client, make, stored
from tests.durable.machines import Cluster
from tests.kafka_connection import KafkaConnection
from tests.process.broker_process import PATIENCE_S

NODES = 3


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with durable_postgres() as postgres:
        made = Cluster(tmp_path, postgres, NODES, more_listeners={"http": 8080})
        yield made
        made.end()


def broker_cluster(cluster: Cluster, *arguments: str, fails: int = 0) -> str:
    """The command's output, of one that fails what it says. It begins with node 0, which must not move then."""
    address = cluster.endpoints("http")[0]
    command = [sys.executable, "-m", "broker", "cluster", *arguments, "--admin-url", f"http://{address}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=4 * PATIENCE_S)
    assert fails == done.returncode, (done.stdout, done.stderr)
    return done.stderr if fails else done.stdout


def listed(cluster: Cluster) -> dict[str, tuple[bool, int]]:
    """Of each machine whether it is drained, and how many nodes it has."""
    lines = map(json.loads, broker_cluster(cluster, "machines", "--output", "json").splitlines())
    return {each["machine"]: (each["drained"], len((each["nodes"] or "").split())) for each in lines}


def test_a_machine_is_drained_under_load_and_comes_back(cluster: Cluster) -> None:
    first, second = cluster.start(2)
    make(cluster, "t")
    writing = Writing(cluster, "t")
    writing.start()
    writing.go_on()
    broker_cluster(cluster, "drain", first.name)
    assert {second.name} == set(cluster.serving().values())
    assert {first.name: (True, 0), second.name: (False, NODES)} == listed(cluster)
    writing.go_on()
    assert "No other machine takes nodes" in broker_cluster(cluster, "drain", second.name, fails=1)
    third = cluster.machine().start()
    wait_until(lambda: third.name in cluster.serving().values(), "the third machine has no node", 2 * PATIENCE_S)
    assert first.name not in cluster.serving().values()
    broker_cluster(cluster, "drain", "--back", first.name)
    cluster.wait_for_balance([first, second, third])
    broker_cluster(cluster, "balance")
    assert writing.finish() == stored(cluster, "t")
    assert [] == first.errors + second.errors


def test_a_drained_machine_takes_nodes_if_it_is_the_last(cluster: Cluster) -> None:
    first, second = cluster.start(2)
    broker_cluster(cluster, "drain", second.name)
    first.lose()
    cluster.wait_for_all([second])
    first.launch()
    first.wait_until_ready()
    cluster.wait_for_all([first])
    assert {first.name: (False, NODES), second.name: (True, 0)} == listed(cluster)
    second.stop()
    second.start()
    cluster.wait_for_balance([first, second])


def test_a_machine_has_nodes_by_its_weight(cluster: Cluster) -> None:
    heavy, light = cluster.machine("machine_weight=2"), cluster.machine()
    heavy.start()
    light.start()
    wait_until(lambda: [*cluster.serving().values()].count(light.name) == 1, "it has no node", 2 * PATIENCE_S)
    cluster.wait_for_balance([heavy, light])
    broker_cluster(cluster, "balance")
    assert {heavy.name: (False, 2), light.name: (False, 1)} == listed(cluster)


def test_tools_for_kafka_move_nothing(cluster: Cluster) -> None:
    """What programs ask for that know clusters of Kafka. Leaders are those that are preferred, on whichever machine."""
    cluster.start(2)
    admin = AdminClient(client(cluster))
    brokers = sorted(admin.list_topics().brokers)
    [made] = admin.create_topics([NewTopic("t", 2, replica_assignment=[brokers[:2], brokers[1:]])]).values()
    made.result(PATIENCE_S)
    found = admin.list_topics("t").topics["t"].partitions
    leaders = {number: partition.leader for number, partition in found.items()}
    elsewhere = [each for each in brokers if each != leaders[0]]
    for address in cluster.endpoints("kafka").values():
        with KafkaConnection(address) as connection:
            replicas = [{"partition_index": 0, "replicas": elsewhere}, {"partition_index": 1, "replicas": [leaders[1]]}]
            asked = [{"name": "t", "partitions": replicas}]
            answer = connection.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, timeout=1000, topics=asked)
            [topic] = answer.responses
            assert [ErrorCode.invalid_replica_assignment, 0] == [each.error_code for each in topic.partitions]
            assert f"stays on broker {leaders[0]}" in topic.partitions[0].error_message
            assert () == tuple(connection.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, timeout=1000, topics=None).topics)
    elected = admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition("t", 0)]).result(PATIENCE_S)
    assert [KafkaError.ELECTION_NOT_NEEDED] == [error.code() for error in elected.values()]
    after = admin.list_topics("t").topics["t"].partitions
    assert leaders == {number: partition.leader for number, partition in after.items()}
