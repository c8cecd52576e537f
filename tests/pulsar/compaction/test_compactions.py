"""Compaction with the real client: who reads compacted gets the latest message of each key, and then the log."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pulsar
import pytest

from broker.client.embedded import Broker
from broker.pulsar.assembly import PulsarPart
from broker.pulsar.compaction.compactions import State
from broker.pulsar.context import PulsarContext
from broker.pulsar.policies.policies import Retention
from broker.pulsar.topic_names import parse_topic
from broker.pulsar.topics.topic import Topic
from tests.storage.helpers import NOW_MS, batch
from tests.waiting import wait_for


class Running:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.start()

    def start(self) -> None:
        self.broker = Broker(str(self._path), listeners=["pulsar://127.0.0.1:0"]).start()
        self.client = pulsar.Client(f"pulsar://{self.broker.address('pulsar')}", operation_timeout_seconds=10)
        self.context: PulsarContext = cast(PulsarPart, self.broker.server.part("pulsar")).context

    def stop(self) -> None:
        self.client.close()
        self.broker.stop()

    def topic(self, name: str) -> Topic:
        return self.context.topics.get_or_create(parse_topic(name))

    def compact(self, name: str) -> None:
        topic = self.topic(name)
        assert self.context.upkeep.compact(topic)
        wait_for(lambda: self.context.compactions.status(topic.log).state is not State.RUNNING)
        assert State.SUCCESS == self.context.compactions.status(topic.log).state

    def send(self, name: str, *messages: tuple[str, bytes], batched: bool = False) -> None:
        producer = self.client.create_producer(
            name,
            batching_enabled=batched,
            batching_max_publish_delay_ms=5_000,
            compression_type=pulsar.CompressionType.LZ4,
        )
        for key, payload in messages:
            producer.send_async(payload, None, partition_key=key)
        producer.flush()
        producer.close()

    def read(self, name: str, *, compacted: bool = True) -> list[tuple[str, bytes]]:
        """To the end."""
        reader = self.client.create_reader(name, pulsar.MessageId.earliest, is_read_compacted=compacted)
        found = []
        while reader.has_message_available():
            message = reader.read_next(10_000)
            found.append((message.partition_key(), message.data()))
        reader.close()
        return found


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    yield running
    running.stop()


FIRST = [("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1"), ("c", b"")]
LEFT = [("b", b"1"), ("a", b"2")]


def test_reader_gets_latest_of_each_key_then_log(running: Running) -> None:
    running.send("plain", *FIRST)
    assert FIRST == running.read("plain")
    running.compact("plain")
    assert LEFT == running.read("plain")
    assert FIRST == running.read("plain", compacted=False)
    running.send("plain", ("b", b"2"))
    assert [*LEFT, ("b", b"2")] == running.read("plain")
    running.compact("plain")
    assert [("a", b"2"), ("b", b"2")] == running.read("plain")


def test_rest_of_compacted_batch_keeps_its_place(running: Running) -> None:
    running.send("batch", ("a", b"1"), ("b", b"1"), ("a", b"2"), batched=True)
    running.send("batch", ("b", b"2"), ("d", b"1"), batched=True)
    running.compact("batch")
    file = running.context.compactions.file(running.topic("batch").log)
    assert file is not None and (2, 0, 5) == (len(file), file.first, file.horizon)
    assert [("a", b"2"), ("b", b"2"), ("d", b"1")] == [one for one in running.read("batch") if one[1]]


def test_what_a_file_covers_is_durable(running: Running) -> None:
    """A Kafka producer does not wait for that."""
    log = running.topic("t").log
    log.append(batch(b"1", b"2", keys=[b"a", b"a"]), now_ms=NOW_MS)
    assert log.durable_offset == 0
    running.compact("t")
    file = running.context.compactions.file(log)
    assert file is not None
    assert 2 == file.horizon == log.durable_offset


def test_fully_compacted_topic_has_no_message(running: Running) -> None:
    running.send("nothing", ("a", b"1"), ("a", b""))
    running.compact("nothing")
    assert [] == running.read("nothing")
    running.send("nothing", ("a", b"3"))
    assert [("a", b"3")] == running.read("nothing")


def test_compacted_messages_survive_restart_and_log_deletion(tmp_path: Path) -> None:
    running = Running(tmp_path)
    try:
        running.send("kept", *FIRST)
        running.compact("kept")
        running.stop()
        (tmp_path / "pulsar-compacted" / "left.compacted.tmp").write_bytes(b"of a broker that died")
        running.start()
        assert 1 == len(list((tmp_path / "pulsar-compacted").iterdir()))
        topic = running.topic("kept")
        running.context.policies.set_topic(topic.log.topic_id, retention=Retention(0, 0))
        time.sleep(0.01)  # records of this millisecond are not older than 0 ms
        for _ in range(2):  # a subscription might come into use during the first
            list(running.context.logs.housekeeper.apply_retention())
        assert 5 == topic.log.log_start_offset
        running.send("kept", ("d", b"1"))
        assert [*LEFT, ("d", b"1")] == running.read("kept")
        running.compact("kept")
        assert [*LEFT, ("d", b"1")] == running.read("kept")
        running.context.logs.delete_topic("kept")
        assert [] == list((tmp_path / "pulsar-compacted").iterdir())
    finally:
        running.stop()


def test_topic_is_compacted_after_growing_by_threshold(running: Running) -> None:
    running.send("threshold", *FIRST)
    topic = running.topic("threshold")
    policies = running.context.policies
    policies.set_topic(topic.log.topic_id, compaction_threshold_bytes=1_000_000, retention=Retention(0, 0))
    time.sleep(0.01)  # records of this millisecond are not older than 0 ms
    list(running.context.logs.housekeeper.apply_retention())
    assert 0 == topic.log.log_start_offset
    running.context.upkeep.run_now("compact_topics")
    assert State.NOT_RUN == running.context.compactions.status(topic.log).state
    policies.set_topic(topic.log.topic_id, compaction_threshold_bytes=10)
    running.context.upkeep.run_now("compact_topics")
    running.context.upkeep.wakeup()
    wait_for(lambda: running.context.compactions.status(topic.log).state is State.SUCCESS)
    assert LEFT == running.read("threshold")


def test_failed_compaction_reports_reason_and_changes_nothing(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.send("fails", *FIRST)
    topic = running.topic("fails")
    compactions = running.context.compactions
    monkeypatch.setattr(compactions, "_keys_max", 1)
    assert running.context.upkeep.compact(topic)
    wait_for(lambda: compactions.status(topic.log).state is not State.RUNNING)
    status = compactions.status(topic.log)
    assert State.ERROR == status.state and "keys" in status.error
    assert compactions.file(topic.log) is None and compactions.needed_from(topic.log) is None
    assert FIRST == running.read("fails")
    monkeypatch.setattr(compactions, "_keys_max", 10)
    running.compact("fails")
    assert LEFT == running.read("fails")


def test_read_compacted_consumer_resumes_at_its_position(running: Running) -> None:
    running.send("durable", *FIRST)
    running.compact("durable")

    def subscribe() -> Any:
        return running.client.subscribe(
            "durable", "s", is_read_compacted=True, initial_position=pulsar.InitialPosition.Earliest
        )

    consumer = subscribe()
    message = consumer.receive(60_000)
    assert ("b", b"1") == (message.partition_key(), message.data())
    consumer.acknowledge_cumulative(message)
    consumer.close()
    consumer = subscribe()
    message = consumer.receive(60_000)
    assert ("a", b"2") == (message.partition_key(), message.data())
    consumer.acknowledge(message)
    consumer.close()
