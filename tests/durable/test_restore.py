"""`broker backup` into an object store, `broker restore --from`; and a broker whose disk is lost, made again from its store."""

import json
import shutil
from pathlib import Path
from typing import Any

import pulsar
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from broker.config import BrokerConfig
from broker.runtime.directory_objects import DirectoryObjects
from broker.server import BrokerServer
from tests.compat.pulsar.conftest import quiet_logger
from tests.durable.servers import VALUES, broker_command, client, commit, produce, start, stop, values
from tests.waiting import DEADLINE_S, wait_for

SEGMENT = 20_000


def config(data_dir: Path, **settings: Any) -> BrokerConfig:
    return BrokerConfig(
        listeners=("kafka://127.0.0.1:0", "pulsar://127.0.0.1:0"),
        data_dir=str(data_dir),
        log_segment_bytes=SEGMENT,
        **settings,
    )


def filled(server: BrokerServer) -> None:
    admin = AdminClient(client(server))
    for future in admin.create_topics([NewTopic("t", 1), NewTopic("empty", 2)]).values():
        future.result(DEADLINE_S)
    produce(server, "t", len(VALUES))


def messages(server: BrokerServer, sent: list[bytes]) -> list[bytes]:
    """What a subscription receives and acknowledges."""
    service = pulsar.Client(f"pulsar://{server.listeners['pulsar']}", logger=quiet_logger())
    consumer = service.subscribe("p", "sub", pulsar.ConsumerType.Shared)
    producer = service.create_producer("p")
    for value in sent:
        producer.send(value)
    found = []
    for _ in sent:
        message = consumer.receive(int(DEADLINE_S * 1000))
        consumer.acknowledge(message)
        found.append(message.data())
    service.close()
    return found


# -- backups -----------------------------------------------------------------------------------------------------------


def test_a_backup_in_a_store_is_verified_and_restored(tmp_path: Path, running: list[BrokerServer]) -> None:
    server = start(config(tmp_path / "data"), running)
    filled(server)
    url = f"file://{tmp_path}/backups/monday"
    address = server.listeners["kafka"]
    said = json.loads(broker_command("backup", url, "-b", address, "--output", "json"))
    assert (url, 3, []) == (said["directory"], said["partitions"], said["offline"])
    assert "whole; 3 partitions" in broker_command("backup", "--verify", url)
    assert "is a backup already" in broker_command("backup", url, "-b", address, fails=2)
    assert "--since goes with a directory" in broker_command("backup", url, "--since", str(tmp_path), fails=2)
    stop(server, running)
    broker_command("restore", "--from", url, str(tmp_path / "restored"))
    assert VALUES == values(start(config(tmp_path / "restored"), running))
    assert "is not empty" in broker_command("restore", "--from", url, str(tmp_path / "restored"), fails=2)


def test_damage_of_a_backup_in_a_store_is_found(tmp_path: Path, running: list[BrokerServer]) -> None:
    server = start(config(tmp_path / "data"), running)
    filled(server)
    url = f"file://{tmp_path}/backup"
    broker_command("backup", url, "-b", server.listeners["kafka"])
    store = DirectoryObjects(f"{tmp_path}/backup")
    key = max(store.list("data"), key=lambda found: found[1])[0]
    size = store.size(key)
    data = bytearray(store.get(key, 0, size))
    data[size // 2] ^= 1
    store.put(key, [data], size)
    assert "1 of its files are wrong" in broker_command("backup", "--verify", url, fails=1)
    assert "is damaged" in broker_command("restore", "--from", url, str(tmp_path / "restored"), fails=1)
    store.delete(["backup.json"])
    assert "is not a backup" in broker_command("backup", "--verify", url, fails=1)


# -- a lost disk -------------------------------------------------------------------------------------------------------


def test_a_lost_disk_costs_what_was_not_uploaded(tmp_path: Path, running: list[BrokerServer]) -> None:
    tiered = {
        "objects": f"file://{tmp_path}/objects",
        "log_local_retention_bytes": SEGMENT,
        "log_flush_offset_checkpoint_interval_ms": 50,
        "remote_log_manager_task_interval_ms": 50,
        "log_segment_delete_delay_ms": 0,
    }
    server = start(config(tmp_path / "data", **tiered), running)
    filled(server)
    commit(server, "behind", {("t", 0): 7})
    commit(server, "at-the-end", {("t", 0): len(VALUES)})
    assert [b"0", b"1"] == messages(server, [b"0", b"1"])
    log = server.kafka.logs.require("t", 0)
    wait_for(lambda: log.local_bytes() <= 3 * SEGMENT < log.size_bytes())
    stop(server, running)
    server = start(config(tmp_path / "data", **tiered), running)  # its first round makes a copy
    tier = server.kafka.logs.require("t", 0).around.tier
    wait_for(lambda: tier.uploads.copies.taken_ms > 0)  # type: ignore[union-attr]
    uploaded = tier.latest_tiered(server.kafka.logs.require("t", 0)) + 1  # type: ignore[union-attr,operator]
    stop(server, running)
    shutil.rmtree(tmp_path / "data")
    url = tiered["objects"]
    said = broker_command("restore", "--from", str(url), str(tmp_path / "again"))
    assert "4 partitions as of" in said
    assert "What had not been uploaded is lost" in said
    server = start(config(tmp_path / "again", **tiered), running)
    assert 0 < uploaded < len(VALUES)
    assert VALUES[:uploaded] == values(server)
    groups = Consumer(client(server, group_id="behind")), Consumer(client(server, group_id="at-the-end"))
    assert [7, uploaded] == [group.committed([TopicPartition("t", 0)], DEADLINE_S)[0].offset for group in groups]
    for group in groups:
        group.close()
    produce(server, "t", 500)
    produce(server, "empty", 5)
    assert [b"2"] == messages(server, [b"2"]), "the cursor has acknowledged what came later"
    assert VALUES[:uploaded] + VALUES[:500] == values(server)
    stop(server, running)
    server = start(config(tmp_path / "again", **tiered), running)
    assert VALUES[:uploaded] + VALUES[:500] == values(server)


def test_a_store_without_a_copy_is_refused(tmp_path: Path) -> None:
    said = broker_command("restore", "--from", f"file://{tmp_path}/objects", str(tmp_path / "data"), fails=2)
    assert "there is no copy of a catalogue" in said
    assert not (tmp_path / "data").exists()
    assert "Name BACKUP, or --from, and DATA_DIR" in broker_command("restore", str(tmp_path / "data"), fails=2)
