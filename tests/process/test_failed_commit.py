"""Changes of the catalogue that were answered as failed, and what the next start makes of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from broker.metadata.sqlite import SqliteCatalogue
from tests.compat.clients.librdkafka import settings
from tests.process.broker_process import BrokerProcess
from tests.process.failing_disk import FailingDisk

WAL = "catalogue.sqlite-wal"

# Writes one offset, then others while the disk fails, and dies at the end of what it was told to do.
COMMITS = """
import os, sys
from broker.errors import StorageError
from broker.metadata.sqlite import SqliteCatalogue
catalogue = SqliteCatalogue(sys.argv[1])
control = os.environ["FAILING_DISK"]
for step in sys.argv[2:]:
    if step in ("sync", "write", "sync,write", "sync,later"):
        open(control, "w").write(f"{step}=-wal")
    elif step == "heal":
        os.remove(control)
    elif step == "close":
        catalogue.close()
    else:
        try:
            catalogue.commit_offsets("group", [("topic", 0, int(step), 0, None, 0)])
            print("done", end=" ")
        except StorageError as error:
            print(type(error).__name__, end=" ")
sys.stdout.flush()
os._exit(0)
"""


def commits(disk: FailingDisk, path: Path, *steps: str) -> list[str]:
    environment = {**os.environ, **disk.environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", COMMITS, str(path), *steps], env=environment, capture_output=True, check=True, timeout=60
    )
    return done.stdout.decode().split()


def committed(path: Path) -> list[int]:
    catalogue = SqliteCatalogue(str(path))
    try:
        return [offset.offset for offset in catalogue.load_offsets()]
    finally:
        catalogue.close()


@pytest.mark.parametrize(
    ("steps", "answers", "found"),
    [
        # The fsync fails, also that of the commit that is written over it: what is in the page cache counts after a kill.
        (("1", "sync", "2"), ["done", "UnknownOutcome"], [1]),
        (("1", "sync", "2", "3"), ["done", "UnknownOutcome", "StorageError"], [1]),
        # It goes on by itself when the disk does, and what failed does not come back.
        (("1", "sync", "2", "heal", "3"), ["done", "UnknownOutcome", "done"], [3]),
        (("1", "sync", "2", "sync,write", "3", "heal"), ["done", "UnknownOutcome", "StorageError"], [1]),
        # It cannot be written over, so it comes back, whole. Nothing else was answered meanwhile.
        (("1", "sync,later", "2", "3"), ["done", "UnknownOutcome", "StorageError"], [2]),
        (("1", "sync,later", "2", "3", "heal", "4"), ["done", "UnknownOutcome", "StorageError", "done"], [4]),
        # Nothing is written at all.
        (("1", "write", "2"), ["done", "StorageError"], [1]),
        (("1", "write", "2", "heal", "3"), ["done", "StorageError", "done"], [3]),
        # Stopped in order, the broker leaves what it knows.
        (("1", "sync", "2", "heal", "close"), ["done", "UnknownOutcome"], [1]),
    ],
)
def test_failed_commit_is_gone_or_reported_unknown(
    steps: tuple[str, ...], answers: list[str], found: list[int], tmp_path: Path
) -> None:
    disk = FailingDisk(tmp_path)
    assert answers == commits(disk, tmp_path / "catalogue", *steps)
    assert found == committed(tmp_path / "catalogue")


def test_topics_and_offsets_that_were_refused_stay_refused(tmp_path: Path) -> None:
    disk = FailingDisk(tmp_path)
    with BrokerProcess(tmp_path, environment=disk.environment) as broker:
        servers = broker.address
        admin = AdminClient(settings(servers))
        admin.create_topics([NewTopic("topic", 2, 1), NewTopic("kept", 1, 1)])["topic"].result(30)
        consumer = Consumer(settings(servers, group_id="group"))
        consumer.commit(offsets=[TopicPartition("topic", 0, 5)], asynchronous=False)
        disk.fail("sync", WAL)
        with pytest.raises(KafkaException) as refused:
            admin.create_topics([NewTopic("refused", 3, 1)])["refused"].result(30)
        assert KafkaError.KAFKA_STORAGE_ERROR == refused.value.args[0].code()
        with pytest.raises(KafkaException):
            consumer.commit(offsets=[TopicPartition("topic", 0, 6)], asynchronous=False)
        broker.kill()
        disk.heal()
        broker.start()
        assert {"topic", "kept"} == set(AdminClient(settings(servers)).list_topics(timeout=30).topics)
        consumer = Consumer(settings(servers, group_id="group"))
        assert [5] == [partition.offset for partition in consumer.committed([TopicPartition("topic", 0)], 30)]
        consumer.close()
        # The name is free.
        admin = AdminClient(settings(servers))
        admin.create_topics([NewTopic("refused", 1, 1)])["refused"].result(30)
        assert {"topic-0", "topic-1", "kept-0", "refused-0"} == {
            path.name for path in broker.data_dir.iterdir() if path.is_dir()
        }
        assert 0 == broker.stop()


def test_doubtful_topic_creation_is_whole_or_nothing(tmp_path: Path) -> None:
    disk = FailingDisk(tmp_path)
    with BrokerProcess(tmp_path, environment=disk.environment) as broker:
        admin = AdminClient(settings(broker.address))
        disk.fail("sync,later", WAL)
        with pytest.raises(KafkaException) as refused:
            admin.create_topics([NewTopic("topic", 3, 1)])["topic"].result(30)
        assert KafkaError.KAFKA_STORAGE_ERROR == refused.value.args[0].code()
        assert "topic" not in AdminClient(settings(broker.address)).list_topics(timeout=30).topics
        broker.kill()
        disk.heal()
        broker.start()
        assert 3 == len(AdminClient(settings(broker.address)).list_topics("topic", 30).topics["topic"].partitions)
        producer = Producer(settings(broker.address))
        for partition in range(3):
            producer.produce("topic", b"value", partition=partition)
        assert 0 == producer.flush(30)
        assert 0 == broker.stop()


def test_doubtful_topic_deletion_acknowledges_nothing(tmp_path: Path) -> None:
    disk = FailingDisk(tmp_path)
    with BrokerProcess(tmp_path, environment=disk.environment) as broker:
        admin = AdminClient(settings(broker.address))
        admin.create_topics([NewTopic("topic", 1, 1)])["topic"].result(30)
        disk.fail("sync,later", WAL)
        with pytest.raises(KafkaException) as refused:
            admin.delete_topics(["topic"])["topic"].result(30)
        assert KafkaError.KAFKA_STORAGE_ERROR == refused.value.args[0].code()
        acked: list[object] = []
        producer = Producer(settings(broker.address, message_timeout_ms=1000))
        producer.produce("topic", b"value", on_delivery=lambda error, _: None if error else acked.append(1))
        producer.flush(30)
        assert [] == acked
        broker.kill()
        disk.heal()
        broker.start()
        assert "topic" not in AdminClient(settings(broker.address)).list_topics(timeout=30).topics
        assert not list(broker.data_dir.glob("topic-*/*.log"))
        assert 0 == broker.stop()
