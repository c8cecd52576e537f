"""Several nodes on one machine: whichever a client asks, it is told who has what, and nothing is lost when one is killed."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.process.broker_process import PATIENCE_S, BrokerProcess

PARTITIONS = 4


class Nodes(BrokerProcess):
    """``broker serve --nodes N`` and what clients do with it."""

    options = ("--nodes", "2")

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address})

    def make(self, topic: str) -> None:
        admin = self.admin()
        [made] = admin.create_topics([NewTopic(topic, PARTITIONS)]).values()
        made.result(PATIENCE_S)

    def write(self, topic: str, count: int, base: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.address, "enable.idempotence": True})
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

    def pids(self) -> list[int]:
        """Of all that were ever started, the newest last."""
        return [event["pid"] for event in self.events if event["event"] == "node_started"]

    def running(self) -> list[int]:
        """By place: the process that was started last."""
        started = {event["node"]: event["pid"] for event in self.events if event["event"] == "node_started"}
        return [pid for _, pid in sorted(started.items())]

    def wait_for_restart(self, before: list[int]) -> None:
        """Returns when another process has been started in the place of one of these."""
        deadline = time.monotonic() + PATIENCE_S
        while self.running() == before:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def expected(count: int) -> list[list[int]]:
    return [list(range(number, count, PARTITIONS)) for number in range(PARTITIONS)]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    running = Nodes(tmp_path)
    running.start()
    yield running
    running.stop()


def test_partitions_are_divided_among_the_nodes_and_each_client_finds_them(nodes: Nodes) -> None:
    nodes.make("t")
    nodes.write("t", 1000)
    assert expected(1000) == nodes.read("t")
    metadata = nodes.admin().list_topics("t")
    assert [1, 2] == sorted(metadata.brokers)
    assert [1, 2] == sorted({partition.leader for partition in metadata.topics["t"].partitions.values()})


def test_a_node_that_is_killed_is_started_again_with_what_it_had(nodes: Nodes) -> None:
    nodes.make("t")
    nodes.write("t", 400)
    for round_number in range(1, 4):
        before = nodes.running()
        os.kill(before[-1], signal.SIGKILL)
        nodes.wait_for_restart(before)
        nodes.write("t", 400, base=400 * round_number)
    assert expected(1600) == nodes.read("t")


def test_topics_are_made_and_deleted_at_any_node(nodes: Nodes) -> None:
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


def test_the_number_of_nodes_may_change_between_two_starts(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    written = 0
    for count in (1, 3, 2, 1):
        nodes.options = ("--nodes", str(count))
        nodes.listener = "kafka://127.0.0.1:0"
        nodes.start()
        if not written:
            nodes.make("t")
        nodes.write("t", 100, base=written)
        written += 100
        assert expected(written) == nodes.read("t")
        nodes.stop()


def test_nodes_end_when_the_process_that_started_them_is_killed(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    nodes.start()
    nodes.make("t")
    nodes.write("t", 100)
    before = nodes.pids()
    nodes.kill()
    nodes.listener = "kafka://127.0.0.1:0"
    nodes.start()
    assert [] == [pid for pid in before if Path(f"/proc/{pid}").exists()]
    assert expected(100) == nodes.read("t")
    assert 0 == nodes.stop()


def test_sighup_makes_all_nodes_open_the_log_file_anew(tmp_path: Path) -> None:
    file = tmp_path / "broker.log"
    nodes = Nodes(tmp_path, f"logging_file={file}")
    nodes.start()
    file.rename(tmp_path / "old.log")
    nodes.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + PATIENCE_S
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert 0 == nodes.stop()
    stopped = [
        event for line in file.read_text().splitlines() if (event := json.loads(line))["event"] == "broker_stopped"
    ]
    assert 2 == len(stopped)
