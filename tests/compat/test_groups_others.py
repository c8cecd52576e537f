"""Consumer groups of the Node clients and of kcat, and one group of all kinds of members."""

import asyncio
import signal
import subprocess
import threading
import time
from collections.abc import Callable

import aiokafka
import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AiokafkaRange
from confluent_kafka import Consumer

from tests.compat.clients import kafka_python
from tests.compat.clients.kcat import Kcat
from tests.compat.clients.librdkafka import settings
from tests.compat.clients.node import Kafkajs, Platformatic
from tests.compat.conftest import new_name
from tests.compat.test_groups_kafka_python import RangePartitionAssignor
from tests.compat.test_groups_librdkafka import write

node_clients = pytest.mark.parametrize("client", [Kafkajs(), Platformatic()], ids=lambda client: client.name)


def skip_if_missing(client: Kafkajs | Platformatic | Kcat) -> None:
    reason = client.missing()
    if reason:
        pytest.skip(reason)


@node_clients
def test_members_that_join_and_leave_share_all_partitions(
    client: Kafkajs | Platformatic, make_topic: Callable[..., str], servers: str
) -> None:
    skip_if_missing(client)
    topic = make_topic(partitions=4)
    result = client.run("rebalance", servers=servers, topic=topic, partitions=4, group=topic)
    assert {"alone": 4, "shared": [2, 2], "left": 4} == result


@node_clients
def test_next_consumer_begins_at_the_committed_offset(client: Kafkajs | Platformatic, topic: str, servers: str) -> None:
    skip_if_missing(client)
    write(servers, topic, b"0", b"1")
    first = client.run("consume", servers=servers, topic=topic, count=2, group=topic)
    write(servers, topic, b"2", b"3")
    second = client.run("consume", servers=servers, topic=topic, count=2, group=topic)
    assert [0, 1, 2, 3] == [record["offset"] for record in first + second]


class Mixed:
    """A group of members on threads of their own, one of each kind; ``heard``: what each has read so far."""

    def __init__(self, servers: str, topic: str) -> None:
        self.servers = servers
        self.topic = topic
        self.group = new_name("mixed")
        self.heard: dict[str, list[bytes]] = {}
        self.done = threading.Event()
        self._deadline = time.monotonic() + 200
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(member,))
            for member in (_librdkafka, _kafka_python, _aiokafka, _kcat)
        ]

    def __enter__(self) -> "Mixed":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        for thread in self._threads:
            thread.join()

    def check(self) -> None:
        """Wait a little for things to come; raises if a member has failed, or if it takes too long for what has come."""
        self.done.wait(0.02)
        if self._errors:
            raise self._errors[0]
        assert time.monotonic() < self._deadline, {name: len(values) for name, values in self.heard.items()}

    def _run(self, member: "Callable[[Mixed, list[bytes]], None]") -> None:
        try:
            member(self, self.heard.setdefault(member.__name__, []))
        except BaseException as error:
            self._errors.append(error)


def test_group_of_mixed_clients_loses_nothing(make_topic: Callable[..., str], servers: str) -> None:
    skip_if_missing(Kcat())
    partitions = 8
    topic = make_topic(partitions=partitions)
    written: list[bytes] = []

    def write_to_each() -> None:
        for partition in range(partitions):
            written.append(b"%d" % len(written))
            write(servers, topic, written[-1], partition=partition)

    with Mixed(servers, topic) as group:
        while not (len(group.heard) == 4 and all(group.heard.values())):
            write_to_each()
            group.check()
        # All have joined and been given something. From now on each partition has one owner, so nothing is read twice.
        while len(set().union(*group.heard.values())) < len(written):
            group.check()
        before = len(written)
        write_to_each()
        while len(set().union(*group.heard.values())) < len(written):
            group.check()
    # Rebalancing may repeat what was not committed yet.
    assert set(written) == set().union(*group.heard.values())
    last = [[value for value in values if value in written[before:]] for values in group.heard.values()]
    assert sorted(written[before:]) == sorted(value for values in last for value in values)
    assert [2, 2, 2, 2] == [len(values) for values in last]


def _librdkafka(group: Mixed, heard: list[bytes]) -> None:
    consumer = Consumer(
        settings(
            group.servers,
            group_id=group.group,
            auto_offset_reset="earliest",
            partition_assignment_strategy="range",
            heartbeat_interval_ms=100,
        )
    )
    consumer.subscribe([group.topic])
    while not group.done.is_set():
        message = consumer.poll(0.05)
        if message is not None:
            heard.append(message.value())
    consumer.close()


def _kafka_python(group: Mixed, heard: list[bytes]) -> None:
    consumer = kafka_python.join(
        group.topic,
        bootstrap_servers=group.servers,
        group_id=group.group,
        auto_offset_reset="earliest",
        partition_assignment_strategy=[RangePartitionAssignor],
        heartbeat_interval_ms=100,
    )
    while not group.done.is_set():
        for records in consumer.poll(timeout_ms=50).values():
            heard += [record.value for record in records]
    consumer.close()


def _aiokafka(group: Mixed, heard: list[bytes]) -> None:
    async def read() -> None:
        async with aiokafka.AIOKafkaConsumer(
            group.topic,
            bootstrap_servers=group.servers,
            group_id=group.group,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[AiokafkaRange],
            session_timeout_ms=60_000,
            heartbeat_interval_ms=100,
        ) as consumer:
            while not group.done.is_set():
                for records in (await consumer.getmany(timeout_ms=50)).values():
                    heard.extend(record.value for record in records)

    asyncio.run(read())


def _kcat(group: Mixed, heard: list[bytes]) -> None:
    options = ["heartbeat.interval.ms=100", "partition.assignment.strategy=range", "auto.offset.reset=earliest"]
    command = ["kcat", "-q", "-u", "-b", group.servers]
    for option in options:
        command += ["-X", option]
    with subprocess.Popen([*command, "-G", group.group, group.topic], stdout=subprocess.PIPE) as process:
        lines = threading.Thread(target=lambda: heard.extend(line.strip() for line in process.stdout or ()))
        lines.start()
        group.done.wait()
        process.send_signal(signal.SIGINT)
        process.wait(30)
        lines.join()
