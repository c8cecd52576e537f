"""kill -9 under load, again and again: nothing that was acknowledged is lost, nothing idempotent is there twice.

``BROKER_KILL_CYCLES`` says how often (5); ``BROKER_KILL_SEED`` when (drawn anew each time, and shown when it fails).
"""

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.process.broker_process import BrokerProcess

CYCLES = int(os.environ.get("BROKER_KILL_CYCLES", "5"))
SEED = int(os.environ.get("BROKER_KILL_SEED", random.SystemRandom().randrange(2**32)))
PARTITIONS = 3
GROUP = "readers"
# Small segments, so that they are full, and their indexes are made, all the time.
SETTINGS = ("log_segment_bytes=4000000", "group_min_session_timeout_ms=500", "log_retention_check_interval_ms=200")
CLIENT = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}


class Load(threading.Thread):
    """A producer that writes numbered values to the partitions of its topic in turn for as long as it is let."""

    def __init__(self, servers: str, topic: str, size: int, queued: int, keys: int = 0, **settings: object) -> None:
        """``keys``: that many, in turn; 0: none."""
        super().__init__(name=topic)
        self.keys = keys
        self.topic = topic
        self.size = size
        self.queued = queued
        self.sent = 0
        # By partition: (offset, number) of what was acknowledged.
        self.acked: dict[int, list[tuple[int, int]]] = {partition: [] for partition in range(PARTITIONS)}
        self.failed: list[KafkaError] = []
        self.stopping = threading.Event()
        # A record that was sent and never acknowledged is tried again until it is: it must not give up first.
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "message.timeout.ms": 0,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "linger.ms": 1,
                **CLIENT,
                **settings,
            }
        )

    def run(self) -> None:
        while not self.stopping.is_set():
            if len(self._producer) < self.queued:
                self._producer.produce(
                    self.topic,
                    value(self.sent, self.size),
                    key=b"%d" % (self.sent % self.keys) if self.keys else None,
                    partition=self.sent % PARTITIONS,
                    on_delivery=self._delivered,
                )
                self.sent += 1
                self._producer.poll(0)
            else:
                self._producer.poll(0.01)
        self._producer.flush(60)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(error)
        else:
            self.acked[message.partition()].append((message.offset(), number(message.value())))

    @property
    def count(self) -> int:
        """How many were acknowledged."""
        return sum(map(len, self.acked.values()))


class Reader(threading.Thread):
    """A group's only member: reads a topic and commits, on and on."""

    def __init__(self, servers: str, topic: str, group: str = GROUP, **settings: object) -> None:
        """``settings``: in place of those of a classic group."""
        super().__init__(name=f"reader {group}")
        self.group = group
        self.stopping = threading.Event()
        self.committed = dict.fromkeys(range(PARTITIONS), 0)
        self.seen: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **(settings or {"session.timeout.ms": 3000, "heartbeat.interval.ms": 100}),
                **CLIENT,
            }
        )
        self._consumer.subscribe([topic])

    def run(self) -> None:
        while not self.stopping.is_set():
            for message in self._consumer.consume(500, 0.05):
                if message.error() is None:
                    self.seen[message.partition()].append(message.offset())
            try:
                for one in self._consumer.commit(asynchronous=False) or ():
                    if one.error is None and one.offset >= 0:
                        self.committed[one.partition] = one.offset
            except KafkaException:
                pass  # nothing new, or nobody there just now: it was not committed, and is not expected to be
        self._consumer.close()


def value(number: int, size: int) -> bytes:
    return (b"%d " % number).ljust(size, b"%d" % (number % 10))


def number(value: bytes) -> int:
    return int(value.split(b" ", 1)[0])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("kill"), *SETTINGS) as broker:
        yield broker


@pytest.fixture(scope="module")
def survivors(broker: BrokerProcess) -> tuple[dict[str, Load], Reader]:
    """What wrote and read while the broker was killed, when it is all over and everything is acknowledged."""
    print(f"BROKER_KILL_SEED={SEED}")
    chance = random.Random(SEED)
    servers = broker.address
    admin = AdminClient({"bootstrap.servers": servers, **CLIENT})
    loads = {
        # In order and without gaps or repetitions is promised to the first only; the second sends one request at a time.
        "idempotent": Load(servers, "idempotent", 100, 2000, **{"enable.idempotence": True}),
        "leader": Load(servers, "leader", 100, 500, **{"acks": 1, "max.in.flight": 1}),
        # Batches of several writes, so that a kill can come in the middle of one.
        "large": Load(servers, "large", 700_000, 6, **{"enable.idempotence": True}),
    }
    for made in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in loads]).values():
        made.result(30)
    reader = Reader(servers, "idempotent")
    threads = [*loads.values(), reader]
    for thread in threads:
        thread.start()
    try:
        for _ in range(CYCLES):
            before = {name: load.count for name, load in loads.items()}
            while not all(load.count > before[name] for name, load in loads.items()):
                time.sleep(0.01)
            time.sleep(chance.uniform(0.0, 0.4))
            broker.kill()
            broker.start()
        for load in loads.values():
            load.stopping.set()
            load.join()
        # Whatever it was in the middle of when the broker went, the reader comes to the end of what there is.
        while min(reader.committed.values()) < loads["idempotent"].sent // PARTITIONS:
            time.sleep(0.05)
    finally:
        for thread in threads:
            thread.stopping.set()
        for thread in threads:
            thread.join()
    return loads, reader


def in_the_log(servers: str, topic: str) -> dict[int, list[int]]:
    """The numbers in each partition; offsets have no gaps."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "check", "enable.partition.eof": True, **CLIENT})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    ended = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None
        if message.error() is not None:
            assert KafkaError._PARTITION_EOF == message.error().code(), message.error()
            ended.add(message.partition())
        else:
            assert len(found[message.partition()]) == message.offset()
            found[message.partition()].append(number(message.value()))
    consumer.close()
    return found


Survivors = tuple[dict[str, Load], Reader]
pytestmark = pytest.mark.timeout(120 + 10 * CYCLES)


@pytest.mark.parametrize("topic", ["idempotent", "large"])
def test_idempotent_records_are_stored_once_in_order(topic: str, survivors: Survivors, broker: BrokerProcess) -> None:
    load = survivors[0][topic]
    assert [] == load.failed
    assert load.sent == load.count
    expected = {partition: list(range(partition, load.sent, PARTITIONS)) for partition in range(PARTITIONS)}
    assert expected == in_the_log(broker.address, topic)


@pytest.mark.parametrize("topic", ["idempotent", "leader", "large"])
def test_acknowledged_records_are_at_their_offsets(topic: str, survivors: Survivors, broker: BrokerProcess) -> None:
    load = survivors[0][topic]
    found = in_the_log(broker.address, topic)
    for partition, acked in load.acked.items():
        assert acked == [(offset, found[partition][offset]) for offset, _ in acked]


def test_records_of_acks_1_are_in_order(survivors: Survivors, broker: BrokerProcess) -> None:
    load = survivors[0]["leader"]
    assert [] == load.failed
    for partition, numbers in in_the_log(broker.address, "leader").items():
        # Without idempotence what was not acknowledged is written again, so batches may repeat, but nothing is left out.
        firsts = list(dict.fromkeys(numbers))
        assert list(range(partition, load.sent, PARTITIONS)) == firsts


def test_committed_offsets_survive(survivors: Survivors, broker: BrokerProcess) -> None:
    reader = survivors[1]
    assert min(reader.committed.values()) > 0
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": GROUP, **CLIENT})
    partitions = [TopicPartition("idempotent", partition) for partition in range(PARTITIONS)]
    found = {one.partition: one.offset for one in consumer.committed(partitions, 30)}
    consumer.close()
    assert [] == [partition for partition, offset in reader.committed.items() if found[partition] < offset]


def test_the_reader_missed_nothing(survivors: Survivors) -> None:
    loads, reader = survivors
    for partition, acked in loads["idempotent"].acked.items():
        assert {offset for offset, _ in acked} == set(reader.seen[partition])


def test_files_are_sound_and_nothing_was_logged(survivors: Survivors, broker: BrokerProcess) -> None:
    assert broker.stop() == 0
    assert [] == broker.errors
    inspect(broker.data_dir)


def inspect(directory: Path) -> None:
    """AssertionError with what is wrong with the files."""
    command = [sys.executable, "-m", "broker", "inspect", str(directory)]
    result = subprocess.run(command, capture_output=True, check=False, timeout=120)
    assert result.returncode == 0, result.stdout.decode() + result.stderr.decode()
