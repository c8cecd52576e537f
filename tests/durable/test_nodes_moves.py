"""Nodes that an administrator moves between machines, with `broker cluster`, while clients write."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, KafkaError
from confluent_kafka import TopicPartition as kafka_partition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from tests.durable.durable_broker import durable_postgres, wait_until
from tests.durable.machine_load import Writing, client, make, stored
from tests.durable.machines import Cluster
from tests.process.broker_process import PATIENCE_S

NODES = 3
pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with durable_postgres() as postgres:
        made = Cluster(tmp_path, postgres, NODES, more_listeners={"http": 8080})
        yield made
        made.end()


def broker_cluster(cluster: Cluster, *arguments: str, fails: int = 0) -> str:
    """The command's output, of one that fails what it says. It begins with node 0."""
    wait_until(lambda: _answers(cluster.endpoints("http")[0]), "node 0 does not answer")
    url = f"http://{cluster.endpoints('http')[0]}"
    command = [sys.executable, "-m", "broker", "cluster", *arguments, "--admin-url", url]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=4 * PATIENCE_S)
    assert fails == done.returncode, (done.stdout, done.stderr)
    return done.stderr if fails else done.stdout


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), PATIENCE_S).close()
    except OSError:
        return False
    return True


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
    broker_cluster(cluster, "balance")
    assert {heavy.name: (False, 2), light.name: (False, 1)} == listed(cluster)


def test_tools_for_kafka_move_nothing(cluster: Cluster) -> None:
    """What programs ask for that know clusters of Kafka. Leaders are those that are preferred, on whichever machine."""
    cluster.start(2)
    confluent = AdminClient(client(cluster))
    admin = KafkaAdminClient(bootstrap_servers=cluster.addresses)
    brokers = sorted(confluent.list_topics().brokers)
    assignment = {0: brokers[:2], 1: brokers[1:]}
    [made] = confluent.create_topics(
        [NewTopic("t", len(assignment), replica_assignment=list(assignment.values()))]
    ).values()
    made.result(PATIENCE_S)
    assert {} == admin.list_partition_reassignments()
    found = confluent.list_topics("t").topics["t"].partitions
    leaders = {number: partition.leader for number, partition in found.items()}
    elsewhere = [each for each in brokers if each != leaders[0]]
    asked = {TopicPartition("t", 0): elsewhere, TopicPartition("t", 1): [leaders[1]]}
    answered = admin.alter_partition_reassignments(asked)
    assert {0: "InvalidReplicationAssignmentError", 1: "None"} == {
        each.partition: getattr(answered[each], "__name__", str(answered[each])) for each in asked
    }
    elected = confluent.elect_leaders(ElectionType.PREFERRED, [kafka_partition("t", 0)]).result(PATIENCE_S)
    assert [KafkaError.ELECTION_NOT_NEEDED] == [error.code() for error in elected.values()]
    admin.close()
    after = confluent.list_topics("t").topics["t"].partitions
    assert leaders == {number: partition.leader for number, partition in after.items()}
