"""HTTP at several nodes: any of them describes the cluster, and sends clients to the node that has what they ask for."""

import re
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.process.broker_process import PATIENCE_S
from tests.process.nodes import Nodes

PARTITIONS = 6


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    running = Nodes(tmp_path_factory.mktemp("nodes"), schemes=["http"])
    running.start()
    admin = AdminClient({"bootstrap.servers": running.address})
    [made] = admin.create_topics([NewTopic("orders", PARTITIONS)]).values()
    made.result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": running.address})
    for number in range(PARTITIONS):
        producer.produce("orders", f"of {number}", partition=number)
    assert 0 == producer.flush(PATIENCE_S)
    yield running
    assert 0 == running.stop()


def test_each_node_describes_the_whole_cluster(nodes: Nodes) -> None:
    answers = {
        node_id: nodes.call("GET", "/api/v1/cluster", at=at)[1] for node_id, at in nodes.endpoints("http").items()
    }
    assert [1, 2, 3] == sorted(answers)
    assert {1: 1, 2: 2, 3: 3} == {node_id: answer["node_id"] for node_id, answer in answers.items()}
    assert 1 == len({str(answer["nodes"]) for answer in answers.values()})
    assert [{"http", "kafka"}] * 3 == [set(node["endpoints"]) for node in answers[1]["nodes"]]
    assert [(1, True, 2), (2, True, 2), (3, True, 2)] == [
        (node["node_id"], node["alive"], node["partitions"]) for node in answers[2]["nodes"]
    ]


def test_metrics_say_how_long_the_catalogue_and_the_other_nodes_take(nodes: Nodes) -> None:
    counts: Counter[str] = Counter()
    for at in nodes.endpoints("http").values():
        found = re.findall(r"^(\w+_seconds)_count (\d+)", nodes.call("GET", "/metrics", at=at)[1], re.MULTILINE)
        assert int(dict(found)["broker_catalogue_seconds"]) > 0
        counts.update({name: int(number) for name, number in found})
    assert counts["broker_cluster_settle_seconds"] > 0  # the topic was made by one of them


def test_records_of_a_partition_are_read_through_any_node(nodes: Nodes) -> None:
    redirected = 0
    for at in nodes.endpoints("http").values():
        for number in range(PARTITIONS):
            path = f"/api/v1/topics/orders/records?partition={number}"
            redirected += 307 == nodes.call("GET", path, at=at, follow=False)[0]
            status, answer = nodes.call("GET", path, at=at)
            assert (200, [f"of {number}"]) == (status, [record["value"]["text"] for record in answer["records"]])
    assert 2 * PARTITIONS == redirected


def test_records_of_partitions_of_several_nodes_are_not_read_in_one_call(nodes: Nodes) -> None:
    status, answer = nodes.call("GET", "/api/v1/topics/orders/records")
    assert (400, "Name a partition: those of the topic are on several nodes.") == (status, answer["reason"])


def test_the_figures_of_a_topic_say_how_many_partitions_they_are_of(nodes: Nodes) -> None:
    found = [nodes.call("GET", "/api/v1/topics/orders", at=at)[1] for at in nodes.endpoints("http").values()]
    assert [(6, 2, 2)] * 3 == [(each["partition_count"], each["partitions_here"], each["messages"]) for each in found]
    assert list(range(PARTITIONS)) == sorted(one["partition"] for each in found for one in each["partitions"])


def test_the_listener_of_nodes_is_not_shown(nodes: Nodes) -> None:
    for at in nodes.endpoints("http").values():
        listeners = nodes.call("GET", "/api/v1/overview", at=at)[1]["listeners"]
        assert {"http", "kafka"} == {listener["name"] for listener in listeners}


def test_a_group_is_described_by_its_coordinator(nodes: Nodes) -> None:
    consumer = Consumer({"bootstrap.servers": nodes.address, "group.id": "billing"})
    consumer.commit(offsets=[TopicPartition("orders", number, 1) for number in range(PARTITIONS)], asynchronous=False)
    consumer.close()
    addresses = nodes.endpoints("http").values()
    answers = [nodes.call("GET", "/api/v1/groups/billing", at=at) for at in addresses]
    # The lag is unknown, as no node has all partitions of the group.
    assert [(200, "billing", None)] * 3 == [(status, each["group"], each["lag"]) for status, each in answers]
    listed = [nodes.call("GET", "/api/v1/groups", at=at)[1]["groups"] for at in addresses]
    assert ["billing"] == [group["group"] for groups in listed for group in groups]


def test_a_node_that_is_away_is_shown_so_and_comes_back(nodes: Nodes) -> None:
    nodes.kill_node(3)
    assert [1, 2, 3] == sorted(nodes.endpoints("http"))
    path = "/api/v1/topics/orders/records?partition={}"
    for number in range(PARTITIONS):
        assert 200 == nodes.call("GET", path.format(number))[0]
