"""Several nodes on one machine: whichever a client asks, it is told who has what, and nothing is lost when one is killed."""

import json
import re
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.kafka.api_keys import ApiKey
from tests.process.broker_process import PATIENCE_S, runs
from tests.process.nodes import Nodes
from tests.waiting import wait_for

PARTITIONS = 4


class NodesInUse(Nodes):
    """Topics of four partitions, whose records are numbers."""

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address})

    def make_topic(self, topic: str) -> None:
        admin = self.admin()
        [made] = admin.create_topics([NewTopic(topic, PARTITIONS)]).values()
        made.result(PATIENCE_S)

    def write(self, topic: str, count: int, base: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.address, "enable.idempotence": True, "batch.size": 10_000})
        failed = []
        for number in range(base, base + count):
            producer.produce(
                topic,
                str(number),
                partition=number % PARTITIONS,
                on_delivery=lambda error, _: error and failed.append(error),
            )
        assert 0 == producer.flush(PATIENCE_S)
        assert [] == failed

    def read(self, topic: str) -> list[list[int]]:
        """What is in each partition."""
        consumer = Consumer({"bootstrap.servers": self.address, "group.id": "reader", "enable.auto.commit": False})
        ends = [
            consumer.get_watermark_offsets(TopicPartition(topic, number), PATIENCE_S)[1] for number in range(PARTITIONS)
        ]
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        found: list[list[int]] = [[] for _ in range(PARTITIONS)]
        while [len(each) for each in found] != ends:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, (ends, [len(each) for each in found])
            assert message.error() is None
            found[message.partition()].append(int(message.value()))
        consumer.close()
        return found


def expected(count: int) -> list[list[int]]:
    return [list(range(number, count, PARTITIONS)) for number in range(PARTITIONS)]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NodesInUse]:
    running = NodesInUse(tmp_path, count=2)
    running.start()
    yield running
    running.stop()


def test_partitions_are_divided_among_the_nodes_and_each_client_finds_them(nodes: NodesInUse) -> None:
    nodes.make_topic("t")
    nodes.write("t", 1000)
    assert expected(1000) == nodes.read("t")
    metadata = nodes.admin().list_topics("t")
    assert [1, 2] == sorted(metadata.brokers)
    assert [1, 2] == sorted({partition.leader for partition in metadata.topics["t"].partitions.values()})


def test_a_node_that_is_killed_is_started_again_with_what_it_had(nodes: NodesInUse) -> None:
    nodes.make_topic("t")
    nodes.write("t", 400)
    for round_number in range(1, 4):
        nodes.crash_node(2)
        nodes.write("t", 400, base=400 * round_number)
    assert expected(1600) == nodes.read("t")


def test_topics_are_made_and_deleted_at_any_node(nodes: NodesInUse) -> None:
    ports = [broker.port for broker in nodes.admin().list_topics().brokers.values()]
    admins = [AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"}) for port in ports]
    for turn in range(4):
        here, there = admins[turn % 2], admins[1 - turn % 2]
        [made] = here.create_topics([NewTopic("again", PARTITIONS)]).values()
        made.result(PATIENCE_S)
        assert PARTITIONS == len(there.list_topics("again").topics["again"].partitions)
        nodes.write("again", 40)
        assert expected(40) == nodes.read("again")
        [deleted] = there.delete_topics(["again"]).values()
        deleted.result(PATIENCE_S)
        assert "again" not in here.list_topics().topics


def test_a_topic_whose_deletion_was_interrupted_does_not_come_back(nodes: NodesInUse) -> None:
    nodes.make_topic("t")
    nodes.write("t", 400)
    nodes.nodes()

    def delete() -> None:
        with pytest.raises(OSError):  # the node is killed
            nodes.ask(1, ApiKey.DELETE_TOPICS, 6, topics=[{"name": "t", "topic_id": None}], timeout=60_000)

    with ThreadPoolExecutor(1) as threads, nodes.standing_still(2):  # it is waited for before files are removed
        deleting = threads.submit(delete)
        wait_for(lambda: not nodes.leaders(1, "t"))
        nodes.crash_node(1)
    deleting.result(PATIENCE_S)
    nodes.wait_for_all()
    nodes.kill_node(2)
    assert {} == nodes.leaders(2, "t")
    nodes.make_topic("t")
    nodes.write("t", 40)
    assert expected(40) == nodes.read("t")


def test_topics_are_taken_in_that_were_put_into_the_directory(nodes: NodesInUse) -> None:
    nodes.make_topic("t")
    nodes.write("t", 400)
    nodes.stop()
    for directory in Path(nodes.data_dir).glob("nodes/*/t-*"):
        copy = shutil.copytree(directory, Path(nodes.data_dir) / directory.name.replace("t-", "copied-"))
        metadata = copy / "partition.metadata"
        metadata.write_text(re.sub("(topic_id: ).{4}", r"\1AAAA", metadata.read_text()))
    for _ in range(2):
        nodes.start()
        assert expected(400) == nodes.read("copied")
        nodes.stop()
    nodes.start()


def test_the_number_of_nodes_may_change_between_two_starts(tmp_path: Path) -> None:
    nodes = NodesInUse(tmp_path, count=2)
    written = 0
    for count in (1, 3, 2, 1):
        nodes.resize(count)
        nodes.start()
        if not written:
            nodes.make_topic("t")
        nodes.write("t", 100, base=written)
        written += 100
        assert expected(written) == nodes.read("t")
        nodes.stop()


def test_nodes_end_when_the_process_that_started_them_is_killed(tmp_path: Path) -> None:
    nodes = NodesInUse(tmp_path, count=2)
    nodes.start()
    nodes.make_topic("t")
    nodes.write("t", 100)
    before = nodes.pids().values()
    nodes.kill()
    nodes.start()
    wait_for(lambda: not any(map(runs, before)), "a node has survived")
    assert expected(100) == nodes.read("t")
    assert 0 == nodes.stop()


def test_sighup_makes_all_nodes_open_the_log_file_anew(tmp_path: Path) -> None:
    file = tmp_path / "broker.log"
    nodes = NodesInUse(tmp_path, f"logging_file={file}", count=2)
    nodes.start()
    file.rename(tmp_path / "old.log")
    nodes.process.send_signal(signal.SIGHUP)
    wait_for(file.exists)
    assert 0 == nodes.stop()
    stopped = [
        event for line in file.read_text().splitlines() if (event := json.loads(line))["event"] == "broker_stopped"
    ]
    assert 2 == len(stopped)
