"""Pulsar, HTTP and the shuffle on several machines, one of which is lost."""

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.durable.durable_broker import durable_postgres
from tests.durable.machine_load import PARTITIONS, Writing, make
from tests.durable.machines import Cluster
from tests.process.broker_process import PATIENCE_S
from tests.process.test_nodes_shuffle import payloads, read, write

NODES = 3
PULSAR_PORT = 6650
# Pulsar's client waits up to a minute before it connects again.
PATIENCE_MS = int(2 * PATIENCE_S * 1000)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    listeners = {"pulsar": PULSAR_PORT, "http": 8080, "shuffle": 9300}
    with durable_postgres() as postgres:
        made = Cluster(tmp_path, postgres, NODES, more_listeners=listeners)
        yield made
        made.end()


def ask(address: str, path: str) -> tuple[int, Any]:
    """Status and JSON; of a redirect its address."""
    connection = HTTPConnection(address, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        body = reply.read()
    finally:
        connection.close()
    return (307, reply.headers["location"]) if reply.status == 307 else (reply.status, json.loads(body))


def test_pulsar_goes_on_when_a_machine_is_lost(cluster: Cluster) -> None:
    first, second = cluster.start(2)
    make(cluster, "t")
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(f"pulsar://{cluster.first_at(PULSAR_PORT)}", operation_timeout_seconds=60, logger=logger)
    consumer = client.subscribe("t", "s", initial_position=pulsar.InitialPosition.Earliest)
    routing = pulsar.PartitionsRoutingMode.RoundRobinDistribution
    producer = client.create_producer(
        "t", message_routing_mode=routing, batching_enabled=False, send_timeout_millis=PATIENCE_MS
    )
    seen: set[int] = set()

    def exchange(begin: int) -> None:
        """Send some, to each partition, and receive them; those that were not acknowledged in time come again."""
        for number in range(begin, begin + 5 * PARTITIONS):
            producer.send(b"%d" % number)
        while not seen >= set(range(begin, begin + 5 * PARTITIONS)):
            message = consumer.receive(PATIENCE_MS)
            seen.add(int(message.data()))
            consumer.acknowledge(message)

    exchange(0)
    first.lose()
    cluster.wait_for_all([second])
    exchange(1000)
    first.launch()
    first.wait_until_ready()
    cluster.wait_for_balance([first, second])
    exchange(2000)
    client.close()


def test_http_sends_clients_to_the_machine_that_has_the_partition(cluster: Cluster) -> None:
    first, second = cluster.start(2)
    make(cluster, "t")
    writing = Writing(cluster, "t")
    writing.start()
    writing.go_on()
    written = writing.finish()

    def read_everywhere() -> dict[int, str]:
        """From each node, records of each partition. Which machine has which broker."""
        endpoints = cluster.endpoints("http")
        redirected = 0
        for at in endpoints.values():
            for number in range(PARTITIONS):
                path = f"/api/v1/topics/t/records?partition={number}&limit=5"
                status, answer = ask(at, path)
                if status == 307:
                    redirected += 1
                    host, slash, path = answer.removeprefix("http://").partition("/")
                    assert host in endpoints.values()
                    status, answer = ask(host, slash + path)
                assert 200 == status
                assert written[number][:5] == [int(record["value"]["text"]) for record in answer["records"][:5]]
        assert (NODES - 1) * PARTITIONS == redirected
        described = [ask(at, "/api/v1/cluster")[1]["nodes"] for at in endpoints.values()]
        assert [described[0]] * NODES == described
        assert all(node["alive"] and 2 == node["partitions"] for node in described[0])
        return {node["node_id"]: node["machine"] for node in described[0]}

    before = read_everywhere()
    first.lose()
    cluster.wait_for_all([second])
    after = read_everywhere()
    assert before.keys() != after.keys()
    assert (2, 1) == (len({*before.values()}), len({*after.values()}))
    assert {0, 1, 2} == {(node_id - 1) % NODES for node_id in after}


def test_a_finished_result_partition_comes_along_with_its_node(cluster: Cluster) -> None:
    first, second = cluster.start(2)
    written = {place: write(at, place) for place, at in cluster.endpoints("shuffle").items()}
    first.lose()
    cluster.wait_for_all([second])
    for place, at in cluster.endpoints("shuffle").items():
        assert [payloads(place, 1)] == read([(at, written[place], 1)])
