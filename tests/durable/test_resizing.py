"""`broker cluster resize`: a catalogue of one broker becomes that of several nodes, and back, and nothing in it is different."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pulsar
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from broker.errors import ConfigError, StorageError
from broker.metadata import postgres_resizing
from broker.metadata.postgres_connection import Address
from broker.metadata.postgres_owner import OwnerSession
from broker.runtime import system_runtime
from broker.server import BrokerServer
from broker.server.resizing import Resized, resize
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.records.records import build_batch
from tests.compat.pulsar.conftest import quiet_logger
from tests.durable.machines import Cluster
from tests.durable.servers import (
    SMALL,
    VALUES,
    Place,
    Silent,
    broker_command,
    client,
    fill_one,
    read,
    start,
    stop,
    values,
)
from tests.durable.test_migration import fill, seen, transaction
from tests.kafka_connection import KafkaConnection, produce_fields
from tests.waiting import DEADLINE_S, wait_for

UPLOADS = {"log_flush_offset_checkpoint_interval_ms": 50, "remote_log_manager_task_interval_ms": 50}


@attrs.frozen
class At:
    """What stands where tests have a server: several nodes, for clients."""

    listeners: dict[str, str]


def resized(place: Place, count: int, progress: Silent | None = None) -> Resized:
    return resize(place.durable("work"), count, system_runtime(), progress or Silent())


def machines(place: Place, count: int, directory: Path) -> Cluster:
    """Two of them, which serve."""
    settings = [f"{name}={value}" for name, value in SMALL.items()]
    cluster = Cluster(directory, place.server, count, f"catalogue_schema={place.schema}", *settings)
    cluster.settings = [
        f"objects={place.objects}" if each.startswith("objects=") else each for each in cluster.settings
    ]
    cluster.schema = place.schema
    cluster.start(2)
    return cluster


def alike(before: dict[str, Any], after: dict[str, Any]) -> None:
    """But for what commands say of each broker, and in which order."""
    for name, expected in before.items():
        found = after[name]
        if name == "configs":
            expected, found = ([line for line in each if not line.startswith("broker ")] for each in (expected, found))
        elif name in ("groups", "transactions"):
            lines = (each.splitlines() if isinstance(each, str) else each for each in (expected, found))
            expected, found = map(sorted, lines)
        assert expected == found, name


class Repeating:
    """An idempotent producer that sends its only batch of each partition again and again."""

    def __init__(self, server: Any) -> None:
        with KafkaConnection(server.listeners["kafka"]) as connection:
            made = connection.ask(
                ApiKey.INIT_PRODUCER_ID,
                4,
                transactional_id=None,
                transaction_timeout=1,
                producer_id=-1,
                producer_epoch=-1,
            )
        self._batch = bytes(
            build_batch(
                [(None, b"once", (), 1)],
                producer_id=made.producer_id,
                producer_epoch=made.producer_epoch,
                base_sequence=0,
            )
        )

    def send(self, server: Any) -> list[int]:
        """The offsets that it is told."""
        metadata = AdminClient(client(server)).list_topics("plain", timeout=DEADLINE_S)
        offsets = []
        for number, partition in sorted(metadata.topics["plain"].partitions.items()):
            leader = metadata.brokers[partition.leader]
            with KafkaConnection(f"{leader.host}:{leader.port}") as connection:
                answer = connection.ask(ApiKey.PRODUCE, 9, **produce_fields("plain", self._batch, number))
            [told] = answer.responses[0].partition_responses
            assert 0 == told.error_code
            offsets.append(int(told.base_offset))
        return offsets


def test_nothing_is_different_with_another_number_of_nodes(
    place: Place, running: list[BrokerServer], tmp_path: Path
) -> None:
    server = start(place.durable(**UPLOADS), running)
    open_ones = fill(server)
    repeating = Repeating(server)
    once = repeating.send(server)
    before = seen(server)
    epochs = [leader_epochs(server)]
    stop(server, running)
    for count in (3, 2):
        assert (count != 3) + 1 < resized(place, count).files
        cluster = machines(place, count, tmp_path / f"of-{count}")
        try:
            at = At({"kafka": cluster.endpoints("kafka")[0]})
            epochs.append(leader_epochs(at))
            alike(before, seen(at))  # type: ignore[arg-type]
            assert once == repeating.send(at)
            transaction(at, "t1", commit=True)  # type: ignore[arg-type]
            before = seen(at)  # type: ignore[arg-type]
            for machine in cluster.running():
                assert 0 == machine.stop()
            assert [] == [event for machine in cluster.machines for event in machine.errors]
        finally:
            cluster.end()
    resized(place, 1)
    assert set() == missing(place)
    server = start(place.durable(), running)
    alike(before, seen(server))
    assert once == repeating.send(server)
    epochs.append(leader_epochs(server))
    for of_partition in zip(*epochs, strict=True):
        assert sorted(set(of_partition)) == list(of_partition), "clients believe no leader of an older epoch"
    others_are_there(server)
    assert open_ones


def leader_epochs(server: Any) -> list[int]:
    """Of the partitions of the topic."""
    with KafkaConnection(server.listeners["kafka"]) as connection:
        wanted = [{"topic_id": None, "name": "plain"}]
        told = connection.ask(
            ApiKey.METADATA,
            12,
            topics=wanted,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
    return [each.leader_epoch for each in sorted(told.topics[0].partitions, key=lambda each: each.partition_index)]


def missing(place: Place) -> set[str]:
    """Objects that the catalogue names and that are not in the store."""
    return {file.object for file in place.in_database().remote_files} - set(place.stored())


def others_are_there(server: BrokerServer) -> None:
    """What only those can tell who go on: open transactions, a share group, a subscription."""
    for number in range(2):
        Producer(client(server, transactional_id=f"o{number}")).init_transactions(DEADLINE_S)  # aborts what is open
    assert 1000 == len(read(server, "open", 0))
    address = server.listeners["kafka"]
    told = broker_command("consume", "plain", "-G", "shared", "-n", "2953", "-b", address).splitlines()
    assert 2950 + 1 == len(set(told)), "a record was acknowledged, or comes twice"
    service = pulsar.Client(f"pulsar://{server.listeners['pulsar']}", logger=quiet_logger())
    consumer = service.subscribe("p", "sub", pulsar.ConsumerType.Shared)
    got = {int(consumer.receive(int(DEADLINE_S * 1000)).data()) for _ in range(20)}
    service.close()
    assert set(range(0, 40, 2)) == got


@pytest.fixture
def stopped(place: Place, running: list[BrokerServer]) -> Place:
    """With the state of one broker that has a few segments, and more in the journal than fits into its rows."""
    server = start(place.durable(**UPLOADS), running)
    fill_one(server)
    large = NewTopic("large", 3, config={"segment.bytes": "1000000"})
    admin = AdminClient(client(server))
    admin.create_topics([large])["large"].result(DEADLINE_S)
    producer = Producer(client(server, linger_ms=5))
    for number in range(15_000):
        producer.produce("large", b"%030d" % number, partition=number % 3)
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0
    place.wait_for_uploads(server)
    stop(server, running)
    return place


class Breaks(Silent):
    """Interrupts it at the first step of a part of the work."""

    def __init__(self, part: str, advances: int) -> None:
        super().__init__()
        self.part, self.left = part, advances

    def advance(self, size: int) -> None:
        if self.begun[-1] == self.part:
            self.left -= 1
            if self.left < 0:
                raise StorageError("interrupted")


@pytest.mark.parametrize("part", ["replaying the journals", "writing the journals"])
@pytest.mark.parametrize("advances", [0, 2])
def test_an_interrupted_attempt_changes_nothing(
    stopped: Place, running: list[BrokerServer], part: str, advances: int
) -> None:
    with pytest.raises(StorageError, match="interrupted"):
        resized(stopped, 3, Breaks(part, advances))
    server = start(stopped.durable(), running)
    assert VALUES == values(server)
    stop(server, running)
    there_and_back(stopped, running)


@pytest.mark.parametrize("table", ["remote_files", "journal"])
def test_a_switch_that_fails_changes_nothing(
    stopped: Place, running: list[BrokerServer], monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """The last node's table is locked by somebody for too long."""
    monkeypatch.setattr(postgres_resizing, "_LOCK_S", 1)
    resized(stopped, 3)
    with stopped.server.connect() as connection, connection.transaction():
        connection.execute(f"SELECT 1 FROM {stopped.schema}_node2.{table}".encode())
        with pytest.raises(StorageError, match="lock timeout"):
            resized(stopped, 2)
    assert 3 == resized(stopped, 3).was
    there_and_back(stopped, running)


def there_and_back(place: Place, running: list[BrokerServer]) -> None:
    """And nothing of an attempt before is left, but for what is to be deleted soon."""
    resized(place, 3)
    assert {1, 2} <= {int(key.split("/")[1]) for key in place.stored() if key.startswith("nodes/")}
    resized(place, 1)
    assert set() == missing(place)
    server = start(place.durable(), running)
    assert VALUES == values(server)
    stop(server, running)
    named = {file.object for file in place.in_database().remote_files} | {
        key for key, _ in place.in_database().condemned
    }
    with place.server.connect() as connection:
        for schema in (place.schema, *(f"{place.schema}_node{node}" for node in range(1, 3))):
            rows = connection.execute(f"SELECT object FROM {schema}.journal WHERE object IS NOT NULL".encode())
            named |= {str(key) for (key,) in rows.fetchall()}
        beside = f"{place.schema}_node[0-9]{{2,}}"
        assert [] == connection.execute("SELECT 1 FROM pg_namespace WHERE nspname ~ %s", (f"^{beside}$",)).fetchall()
    assert set() == set(place.stored()) - named - {"cluster-id"}


def test_a_killed_attempt_is_made_again(stopped: Place, running: list[BrokerServer]) -> None:
    chance = random.Random(7)
    line = [sys.executable, "-m", "broker", "cluster", "resize", "--data-dir", str(stopped.directory / "work")]
    line += ["--schema", stopped.schema, "--objects", stopped.objects]
    ended, count, longest_s = 0, 3, 3.0
    while ended < 3:
        process = subprocess.Popen([*line, str(count)], env={**os.environ, "BROKER_CATALOGUE": stopped.url})
        try:
            ended += process.wait(chance.uniform(0.5, longest_s)) == 0
            count = {3: 2, 2: 1, 1: 3}[count]
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            longest_s *= 1.3  # on a busy machine none would ever come to its end
    there_and_back(stopped, running)


def test_it_is_refused_while_a_broker_runs(stopped: Place, running: list[BrokerServer], tmp_path: Path) -> None:
    server = start(stopped.durable(), running)
    with pytest.raises(ConfigError, match="Stop all brokers of this catalogue first"):
        resized(stopped, 3)
    assert VALUES == values(server)
    stop(server, running)
    resized(stopped, 3)
    with pytest.raises(ConfigError, match=r"Start the broker with --nodes 3: .* only `broker cluster resize` changes"):
        start(stopped.durable(), running)
    cluster = machines(stopped, 3, tmp_path / "machines")
    try:
        with pytest.raises(ConfigError, match=r"Stop all brokers of this catalogue first: .* has node 1"):
            resized(stopped, 1)
        with stopped.server.connect() as connection:
            # However long it takes until the engine has noticed that the others are lost.
            connection.execute(
                f"INSERT INTO {stopped.schema}.machines VALUES ('m', 3, '', clock_timestamp() + interval '1 hour')".encode()
            )
        for machine in cluster.machines:
            machine.lose()
        wait_for(lambda: not has_owners(stopped, 3))
        with pytest.raises(ConfigError, match=r"Stop `broker serve` on all machines first: .* was there"):
            resized(stopped, 1)
    finally:
        cluster.end()


def has_owners(place: Place, count: int) -> bool:
    """Whether a session has a node's lock, such as one that waited for it and whose client is gone."""
    for node in range(count):
        session = OwnerSession(Address(place.url, place.schema, node), DEADLINE_S)
        try:
            if session.lock_holders():
                return True
        finally:
            session.close()
    return False


def test_a_directory_with_files_of_others_is_refused(stopped: Place) -> None:
    (stopped.directory / "work").mkdir()
    (stopped.directory / "work" / "mine").write_text("mine")
    with pytest.raises(ConfigError, match="mine"):
        resized(stopped, 3)


def test_the_command_and_the_way_back_into_a_directory(stopped: Place, running: list[BrokerServer]) -> None:
    where = ("--schema", stopped.schema, "--objects", stopped.objects)
    work = str(stopped.directory / "work")

    def command(*line: str, fails: int = 0) -> str:
        return broker_command(*line, *where, BROKER_CATALOGUE=stopped.url, fails=fails)

    assert "1 to 4 nodes: 4 partitions have moved. Start the brokers with --nodes 4." in command(
        "cluster", "resize", "4", "--data-dir", work
    )
    back = ("migrate", "--back", "--data-dir", str(stopped.directory / "back"))
    assert "only `broker cluster resize` changes" in command(*back, fails=2)
    said = command("cluster", "resize", "1", "--data-dir", work, "--output", "json")
    assert {"was": 4, "nodes": 1, "partitions": 4} == {
        name: value
        for name, value in json.loads(next(line for line in said.splitlines() if line.startswith("{"))).items()
        if not name.startswith("file")
    }
    assert "The number of nodes is 1 already" in command("cluster", "resize", "1", "--data-dir", work)
    command(*back)
    assert VALUES == values(start(stopped.config("back"), running))
