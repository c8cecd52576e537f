"""`broker migrate`: a data directory goes into PostgreSQL and objects, and back, and nothing in it is different."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pulsar
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from broker.errors import ConfigError, StorageError
from broker.runtime import system_runtime
from broker.server import BrokerServer, to_database
from broker.server.to_database import into_database
from broker.server.to_directory import into_directory
from tests.compat.pulsar.conftest import quiet_logger
from tests.durable.postgres import shared_server
from tests.durable.s3_server import BUCKET, fresh_prefix, shared_seaweed
from tests.durable.servers import (
    VALUES,
    Place,
    Silent,
    broker_command,
    client,
    commit,
    fill_one,
    produce,
    read,
    start,
    stop,
    values,
)
from tests.metadata.test_copying import Contents
from tests.process.broker_process import BrokerProcess
from tests.waiting import DEADLINE_S, wait_for

# -- what is in a broker -----------------------------------------------------------------------------------------------


def fill(server: BrokerServer) -> list[Producer]:
    """Everything that a broker keeps. Returns producers with open transactions, which must live on until the broker stops."""
    admin = AdminClient(client(server))
    topics = [
        NewTopic("plain", 3),
        NewTopic("compacted", 1, config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}),
        NewTopic("txn", 1),
        NewTopic("open", 1),
        NewTopic("gone", 1),
        NewTopic(".odd._-name", 1),
    ]
    for future in admin.create_topics(topics).values():
        future.result(DEADLINE_S)
    produce(server, "plain", 3000)
    produce(server, "compacted", 3000, keys=20)
    produce(server, ".odd._-name", 5)
    for number in range(12):
        transaction(server, f"t{number}", commit=number % 3 != 0)
    open_ones = [begun(server, "open", f"o{number}") for number in range(2)]
    produce(server, "open", 1000)
    commit(server, "group-a", {("plain", 0): 17, ("plain", 2): 400})
    share(server)
    for future in admin.delete_topics(["gone"]).values():
        future.result(DEADLINE_S)
    secure(server, admin)
    messages(server)
    return open_ones


def transaction(server: BrokerServer, name: str, commit: bool) -> None:
    producer = Producer(client(server, transactional_id=name))
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    for number in range(100):
        producer.produce("txn", b"%s-%d" % (name.encode(), number))
    if commit:
        producer.commit_transaction(DEADLINE_S)
    else:
        producer.flush(DEADLINE_S)
        producer.abort_transaction(DEADLINE_S)


def begun(server: BrokerServer, topic: str, name: str) -> Producer:
    producer = Producer(client(server, transactional_id=name, transaction_timeout_ms=600_000))
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(topic, name.encode())
    assert producer.flush(DEADLINE_S) == 0
    return producer


def share(server: BrokerServer) -> None:
    """A share group with a state: 50 records are acknowledged."""
    address = server.listeners["kafka"]
    broker_command("configs", "set", "--group", "shared", "share.auto.offset.reset=earliest", "-b", address)
    broker_command("consume", "plain", "-G", "shared", "-n", "50", "-b", address)


def secure(server: BrokerServer, admin: AdminClient) -> None:
    acl = AclBinding(
        ResourceType.TOPIC,
        "plain",
        ResourcePatternType.LITERAL,
        "User:a",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    for future in admin.create_acls([acl]).values():
        future.result(DEADLINE_S)
    server.security.credentials.set_password("alice", "secret", server.runtime.entropy)
    broker_command("quotas", "set", "--user", "alice", "producer_byte_rate=1000000", "-b", server.listeners["kafka"])
    broker_command("configs", "set", "--topic", "plain", "retention.ms=99999999", "-b", server.listeners["kafka"])


def messages(server: BrokerServer) -> None:
    """A subscription that has acknowledged half of some messages."""
    service = pulsar.Client(f"pulsar://{server.listeners['pulsar']}", logger=quiet_logger())
    consumer = service.subscribe("p", "sub", pulsar.ConsumerType.Shared)
    producer = service.create_producer("p")
    for number in range(40):
        producer.send(b"%d" % number)
    for number in range(40):
        message = consumer.receive(int(DEADLINE_S * 1000))
        if number % 2:
            consumer.acknowledge(message)
    consumer.close()
    service.close()


def seen(server: BrokerServer) -> dict[str, Any]:
    """What clients see."""
    admin = AdminClient(client(server))
    known = admin.list_topics(timeout=DEADLINE_S)
    topics = {name: sorted(topic.partitions) for name, topic in known.topics.items()}
    ends: dict[Any, Any] = {}
    records: dict[Any, Any] = {}
    consumer = Consumer(client(server, group_id="x"))
    for name, partitions in topics.items():
        for number in partitions:
            ends[name, number] = consumer.get_watermark_offsets(TopicPartition(name, number), DEADLINE_S)
            records[name, number] = read(server, name, number)
    # Compaction goes on, and leaves the newest record of each key.
    records["compacted", 0] = sorted({record[1]: record for record in records["compacted", 0]}.values())
    consumer.close()
    records["uncommitted"] = read(server, "txn", 0, "read_uncommitted")
    group = Consumer(client(server, group_id="group-a"))
    offsets = [one.offset for one in group.committed([TopicPartition("plain", n) for n in range(3)], DEADLINE_S)]
    group.close()
    address = server.listeners["kafka"]
    return {
        "cluster": known.cluster_id,
        "topics": topics,
        "ends": ends,
        "records": records,
        "offsets": offsets,
        # Without the coordinator's port and how long ago it was.
        "groups": [
            line.split("\t")[:5]
            for line in broker_command("groups", "describe", "-b", address).splitlines()
            if "coordinator" not in line
        ],
        "acls": broker_command("acls", "list", "-b", address),
        "users": broker_command("users", "list", "-b", address),
        "quotas": broker_command("quotas", "list", "-b", address),
        "configs": [
            line for line in broker_command("configs", "list", "-b", address).splitlines() if "broker 1\t" not in line
        ],
        "transactions": broker_command("transactions", "list", "-b", address),
    }


def same(before: dict[str, Any], after: dict[str, Any]) -> None:
    for name, expected in before.items():
        assert expected == after[name], name


def digest(directory: Path) -> dict[str, str]:
    """Of each file's content and time, but for the lock."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() + str(path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def without_remote(contents: Contents) -> dict[str, Any]:
    fields = {name: getattr(contents, name) for name in contents.__slots__ if not name.startswith("__")}
    return {name: value for name, value in fields.items() if name not in ("remote_files", "condemned")}


# -- tests -------------------------------------------------------------------------------------------------------------


def test_everything_is_the_same_there_and_back(
    place: Place, running: list[BrokerServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(to_database, "ROLL_FROM", 10_000)  # some active segments are larger, others are not
    server = start(place.config("data"), running)
    open_ones = fill(server)
    before = seen(server)
    stop(server, running)
    files = digest(place.directory / "data")
    moved = place.move()
    assert files == digest(place.directory / "data")
    assert moved.segments > 2
    assert any(key.startswith("segments/") for key in place.stored())
    assert without_remote(place.in_directory("data")) == without_remote(place.in_database())
    server = start(place.durable(), running)
    same(before, seen(server))
    go_on(server)
    before = seen(server)
    stop(server, running)
    place.move_back()
    assert without_remote(place.in_database()) == without_remote(place.in_directory("back"))
    assert [] == place.in_directory("back").remote_files == place.in_directory("back").condemned
    server = start(place.config("back"), running)
    same(before, seen(server))
    go_on(server)
    stop(server, running)
    assert open_ones


def go_on(server: BrokerServer) -> None:
    """It is a broker like any other."""
    produce(server, "plain", 100)
    transaction(server, "t1", commit=True)


@pytest.fixture
def stopped(place: Place, running: list[BrokerServer]) -> Place:
    """With a data directory that has a few segments."""
    server = start(place.config("data"), running)
    fill_one(server)
    stop(server, running)
    return place


class Breaks(Silent):
    """Interrupts the mover when so many bytes are done."""

    def __init__(self, upto: int) -> None:
        super().__init__()
        self.upto = upto

    def advance(self, size: int) -> None:
        super().advance(size)
        if self.done >= self.upto:
            raise StorageError("interrupted")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.99])
def test_an_interrupted_move_goes_on(stopped: Place, running: list[BrokerServer], share: float) -> None:
    size = sum(path.stat().st_size for path in (stopped.directory / "data" / "t-0").iterdir() if path.suffix == ".log")
    with pytest.raises(StorageError, match="interrupted"):
        into_database(
            stopped.durable(), str(stopped.directory / "data"), system_runtime(), Breaks(int(share * 2 * size))
        )
    before = [key for key in stopped.stored() if key.startswith("segments/")]
    with pytest.raises(ConfigError, match="Run `broker migrate` again"):
        start(stopped.durable(), running)
    with pytest.raises(ConfigError, match="Run `broker migrate` again"):
        stopped.move_back()
    stopped.move()
    after = [key for key in stopped.stored() if key.startswith("segments/")]
    assert set(before) <= set(after), "a segment was uploaded again"
    named = {file.object for file in stopped.in_database().remote_files}
    assert named == set(after)
    server = start(stopped.durable(), running)
    assert VALUES == values(server)


def test_a_move_that_begins_anew_leaves_tables_of_others_alone(stopped: Place) -> None:
    with pytest.raises(StorageError, match="interrupted"):
        into_database(stopped.durable(), str(stopped.directory / "data"), system_runtime(), Breaks(0))
    with shared_server().connect() as connection:
        connection.execute(f"CREATE TABLE {stopped.schema}.theirs AS SELECT 7 AS seven".encode())
        stopped.move()
        assert [(7,)] == connection.execute(f"SELECT seven FROM {stopped.schema}.theirs".encode()).fetchall()


def test_an_interrupted_move_back_goes_on(stopped: Place, running: list[BrokerServer]) -> None:
    stopped.move()
    with pytest.raises(StorageError, match="interrupted"):
        into_directory(stopped.durable(), str(stopped.directory / "back"), system_runtime(), Breaks(30_000))
    with pytest.raises(ConfigError, match="broker migrate --back"):
        start(stopped.config("back"), running)
    stopped.move_back()
    assert VALUES == values(start(stopped.config("back"), running))


def test_large_active_segments_become_objects(
    stopped: Place, running: list[BrokerServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(to_database, "ROLL_FROM", 1)
    moved = stopped.move()
    assert moved.file_bytes < 10_000
    server = start(stopped.durable(), running)
    assert VALUES == values(server)
    produce(server, "t", 100)
    stop(server, running)
    server = start(stopped.durable(), running)
    assert VALUES + VALUES[:100] == values(server)
    stop(server, running)
    stopped.move_back()
    assert VALUES + VALUES[:100] == values(start(stopped.config("back"), running))


def test_a_killed_move_goes_on(stopped: Place, running: list[BrokerServer]) -> None:
    data = str(stopped.directory / "data")
    line = ["migrate", "--data-dir", data, "--objects", stopped.objects, "--schema", stopped.schema]
    process = subprocess.Popen(
        [sys.executable, "-m", "broker", *line],
        env={**os.environ, "BROKER_CATALOGUE": stopped.url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: process.poll() is not None or any(key.startswith("segments/") for key in stopped.stored()))
    process.kill()
    if process.wait(60) == 0:  # it was faster
        with pytest.raises(ConfigError, match="is not empty"):
            stopped.move()
    else:
        stopped.move()
    assert VALUES == values(start(stopped.durable(), running))


def test_a_store_that_speaks_s3(stopped: Place, running: list[BrokerServer], monkeypatch: pytest.MonkeyPatch) -> None:
    server = shared_seaweed()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    stopped.objects = f"s3://{BUCKET}/{fresh_prefix()}"
    assert stopped.move().segments > 2
    server_there = start(stopped.durable(), running)
    assert VALUES == values(server_there)
    stop(server_there, running)
    stopped.move_back()
    assert VALUES == values(start(stopped.config("back"), running))


def test_nothing_is_overwritten(stopped: Place, running: list[BrokerServer]) -> None:
    stopped.move()
    before = stopped.in_database()
    with pytest.raises(ConfigError, match="Name another schema with --schema"):
        stopped.move()
    assert before == stopped.in_database()
    with pytest.raises(ConfigError, match="is not empty"):
        stopped.move_back("data")


def test_a_schema_or_directory_in_use_is_refused(stopped: Place, running: list[BrokerServer]) -> None:
    server = start(stopped.config("data"), running)
    with pytest.raises(ConfigError, match="Stop the broker that uses"):
        stopped.move()
    stop(server, running)
    server = start(stopped.durable(), running)
    for move in (stopped.move, stopped.move_back):
        with pytest.raises(ConfigError, match=r"Another broker .* owns this catalogue"):
            move()
    stop(server, running)


def test_an_empty_schema_is_not_moved_back(place: Place) -> None:
    with pytest.raises(ConfigError, match="is empty"):
        place.move_back()
    assert not (place.directory / "back").exists()


def test_a_killed_broker_is_moved_with_what_was_acknowledged(place: Place, running: list[BrokerServer]) -> None:
    with BrokerProcess(place.directory, "log_segment_bytes=20000") as broker:
        producer = Producer({"bootstrap.servers": broker.address, "acks": "all", "batch.num.messages": 100})
        for value in VALUES:
            producer.produce("t", value)
        assert producer.flush(DEADLINE_S) == 0
        broker.kill()
    moved = place.move()
    assert moved.segments == 0, "what no checkpoint covers was taken for durable"
    server = start(place.durable(), running)
    assert VALUES == values(server)


def test_segments_that_are_in_the_store_stay_there(place: Place, running: list[BrokerServer]) -> None:
    tiered = {
        "objects": place.objects,
        "log_local_retention_bytes": 20_000,
        "log_flush_offset_checkpoint_interval_ms": 50,
        "remote_log_manager_task_interval_ms": 50,
        "log_segment_delete_delay_ms": 0,
    }
    server = start(place.config("data", **tiered), running)
    fill_one(server)
    log = server.kafka.logs.require("t", 0)
    wait_for(lambda: log.local_bytes() <= 60_000 < log.size_bytes())
    stop(server, running)
    files = place.in_directory("data").remote_files
    elsewhere = attrs.evolve(place.durable(), objects=f"file://{place.directory}/elsewhere")
    with pytest.raises(ConfigError, match="Name the object store of that data directory"):
        into_database(elsewhere, str(place.directory / "data"), system_runtime(), Silent())
    place.move()
    assert set(files) <= set(place.in_database().remote_files)
    server = start(place.durable(), running)
    assert VALUES == values(server)
    stop(server, running)
    place.move_back()
    assert VALUES == values(start(place.config("back"), running))


def test_damage_is_named_and_nothing_is_moved(stopped: Place) -> None:
    path = stopped.directory / "data" / "t-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    with pytest.raises(StorageError, match="is damaged at position 0: see what is lost with `broker inspect --repair`"):
        stopped.move()


def test_files_of_others_stay_behind(stopped: Place) -> None:
    (stopped.directory / "data" / "notes.txt").write_text("mine")
    (stopped.directory / "data" / "t-0" / "notes.txt").write_text("mine")
    assert ["notes.txt"] == stopped.move().left


def test_the_command_moves_there_and_back(stopped: Place, running: list[BrokerServer]) -> None:
    where = ["--objects", stopped.objects, "--schema", stopped.schema]
    data = str(stopped.directory / "data")
    said = broker_command("migrate", "--data-dir", data, *where, BROKER_CATALOGUE=stopped.url)
    assert "verifying and copying: " in said
    assert "1 partitions: " in said
    assert stopped.url not in said
    back = str(stopped.directory / "back")
    line = ["migrate", "--back", "--data-dir", back, "--catalogue", stopped.url, *where, "--output", "json"]
    fields = json.loads(next(said for said in broker_command(*line).splitlines() if said.startswith("{")))
    assert (True, 1) == (fields["back"], fields["partitions"])
    assert VALUES == values(start(stopped.config("back"), running))
    assert "Name the database with --catalogue" in broker_command("migrate", "--data-dir", data, fails=2)
    assert "has no catalogue.sqlite" in broker_command(
        "migrate", "--data-dir", str(stopped.directory), *where, BROKER_CATALOGUE=stopped.url, fails=2
    )
