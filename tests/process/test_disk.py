"""Disks that are full, and directories that cannot be written to."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from broker.client import Broker
from broker.runtime.disk import SystemDisk
from tests.compat.clients.librdkafka import Librdkafka, settings
from tests.http.api.harness import LISTENERS, Api
from tests.process.broker_process import BrokerProcess
from tests.process.failing_disk import FailingDisk
from tests.process.test_kill import inspect
from tests.waiting import wait_for

# Some of the broker's files are larger than they look: of an index, its place is taken at once.
DISK_BYTES = 16_000_000
VALUE_BYTES = 100_000


def mounted(where: Path, options: str) -> Iterator[Path]:
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "broker-test", str(where)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system takes a root who may")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path / "disk", f"size={DISK_BYTES}")


def fill(producer: Producer, topic: str, least: int = 1) -> tuple[int, set[int]]:
    """Write until it is refused; how many were acknowledged, and the codes of the errors."""
    acked: list[int] = []
    errors: list[int] = []

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is None:
            acked.append(1)
        else:
            errors.append(error.code())

    sent = 0
    while not errors:
        producer.produce(topic, b"%06d" % sent + os.urandom(VALUE_BYTES), on_delivery=delivered)
        sent += 1
        producer.flush(30)
    assert len(acked) >= least
    return len(acked), set(errors)


def numbers(servers: str, topic: str, count: int) -> list[int]:
    found = Librdkafka().consume(servers, topic, count)
    return [int((record.value or b"")[:6]) for record in found[0]]


def end_of(servers: str, topic: str) -> int:
    consumer = Consumer(settings(servers, group_id="unused"))
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), 30)
    consumer.close()
    return int(end)


@pytest.mark.parametrize("acks", [1, -1])
def test_full_disk_refuses_new_and_keeps_old_records(acks: int, small_disk: Path, tmp_path: Path) -> None:
    filler = small_disk / "somebody-else-s"
    with BrokerProcess(tmp_path, data_dir=small_disk / "data") as broker:
        servers = broker.address
        producer = Producer(settings(servers, acks=acks, linger_ms=0))
        producer.produce("other", b"before")
        assert 0 == producer.flush(30)
        filler.write_bytes(bytes(DISK_BYTES // 2))
        acked, errors = fill(Producer(settings(servers, acks=acks, message_timeout_ms=5000, linger_ms=0)), "topic")
        # It is tried again until the producer's own time is over.
        assert errors <= {KafkaError.KAFKA_STORAGE_ERROR, KafkaError._MSG_TIMED_OUT}
        # Everything that needs no space goes on.
        assert list(range(acked)) == numbers(servers, "topic", acked)
        assert {0: 1} == {partition: len(some) for partition, some in Librdkafka().consume(servers, "other", 1).items()}
        # When there is space again, so does writing, without anybody doing anything.
        filler.unlink()
        more = 0
        for more in range(3):
            producer.produce("topic", b"%06d" % (acked + more))
        assert 0 == producer.flush(30)
        assert end_of(servers, "topic") >= acked + more + 1
        broker.kill()
        broker.start()
        found = numbers(servers, "topic", end_of(servers, "topic"))
        assert list(range(acked)) == found[:acked]
        assert 0 == broker.stop()
        inspect(broker.data_dir)


def test_full_disk_makes_broker_unready_with_reason(small_disk: Path) -> None:
    with Broker(small_disk / "data", listeners=LISTENERS) as broker:
        api = Api(broker)
        assert (200, b"ok\n") == api.raw("/readyz")
        producer = Producer(settings(broker.bootstrap_servers, retries=0, linger_ms=0))
        fill(producer, "topic")
        wait_for(lambda: api.raw("/readyz")[0] == 503)
        overview = api.get("/overview")
        free = os.statvfs(small_disk)
        assert overview["free_bytes"] <= free.f_bavail * free.f_frsize + VALUE_BYTES
        assert (1, "degraded") == (overview["full_partitions"], overview["health"]["status"])
        (reason,) = overview["health"]["reasons"]
        assert f"The disk is full ({overview['free_bytes']} bytes are free): records are refused for topic-0." == reason
        assert reason + "\n" == api.raw("/readyz")[1].decode()
        assert (200, b"ok\n") == api.raw("/healthz")
        metrics = api.raw("/metrics")[1].decode()
        assert re.search(
            r'^kafka_network_requestmetrics_errors_total\{request="Produce",error=".*"\} [1-9]', metrics, re.M
        )
        assert re.search(r"^broker_data_directory_free_bytes \d+", metrics, re.M)
        broker.server.kafka.logs.delete_topic("topic")
        wait_for(lambda: api.raw("/readyz") == (200, b"ok\n"))


def test_full_disk_refuses_topics_and_offsets_whole(small_disk: Path, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, data_dir=small_disk / "data") as broker:
        servers = broker.address
        producer = Producer(settings(servers))
        producer.produce("topic", b"value")
        assert 0 == producer.flush(30)
        consumer = Consumer(settings(servers, group_id="group"))
        consumer.commit(offsets=[TopicPartition("topic", 0, 1)], asynchronous=False)
        filler = small_disk / "somebody-else-s"
        fill_up(filler)
        admin = AdminClient(settings(servers))
        with pytest.raises(KafkaException) as refusal:
            # More than can still be in some half-used page.
            admin.create_topics([NewTopic("big", 1000, 1)])["big"].result(30)
        assert KafkaError.KAFKA_STORAGE_ERROR == refusal.value.args[0].code()
        refused = commit_until_refused(consumer)
        assert 1 <= refused.args[0].code()
        assert "topic" in admin.list_topics(timeout=30).topics
        filler.unlink()
        assert "big" not in admin.list_topics(timeout=30).topics
        admin.create_topics([NewTopic("big", 10, 1)])["big"].result(30)
        consumer.commit(offsets=[TopicPartition("topic", 0, 1)], asynchronous=False)
        consumer.close()
        broker.kill()
        broker.start()
        assert 10 == len(AdminClient(settings(servers)).list_topics("big", 30).topics["big"].partitions)
        assert 0 == broker.stop()


@pytest.mark.parametrize("kernel_aio", [False, True], ids=["calls", "kernel"])
@pytest.mark.parametrize("failing", ["call", "kernel"])
def test_an_fsync_that_fails_is_never_an_acknowledgement(kernel_aio: bool, failing: str, tmp_path: Path) -> None:
    """In both ways in which a log is synced. Each is the control of the other: who leaves its fsyncs to the kernel does not
    notice that those fail which it would call itself."""
    if kernel_aio and SystemDisk().sync_queue() is None:
        pytest.skip("the kernel does not offer it here")
    disk = FailingDisk(tmp_path, kernel_aio=kernel_aio)
    with BrokerProcess(tmp_path, environment=disk.environment) as broker:
        producer = Producer(settings(broker.address, acks=-1, retries=0, linger_ms=0))
        acked: list[str] = []
        errors: list[int] = []

        def produce(value: str) -> None:
            def delivered(error: KafkaError | None, _message: object) -> None:
                if error is None:
                    acked.append(value)
                else:
                    errors.append(error.code())

            producer.produce("topic", value, partition=0, on_delivery=delivered)
            assert 0 == producer.flush(60)

        # A flusher's thread syncs a new segment, the kernel what follows.
        for number in range(3):
            produce(f"before {number}")
        assert (3, []) == (len(acked), errors)
        disk.fail(failing, "/topic-0/")
        produce("after")
        assert (["after"] == acked[3:]) == (kernel_aio != (failing == "kernel"))
        assert errors == ([] if acked[3:] else [KafkaError.KAFKA_STORAGE_ERROR])
        disk.heal()
        broker.kill()
        broker.start()
        found = [
            (record.value or b"").decode() for record in Librdkafka().consume(broker.address, "topic", len(acked))[0]
        ]
        assert acked == found[: len(acked)]
        assert 0 == broker.stop()


def commit_until_refused(consumer: Consumer) -> KafkaException:
    for number in range(10_000):
        try:
            consumer.commit(offsets=[TopicPartition("topic", 0, 1, "x" * 4000 + str(number))], asynchronous=False)
        except KafkaException as refusal:
            return refusal
    raise AssertionError("offsets are committed to a full disk")


def fill_up(path: Path) -> None:
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="takes Linux's prlimit")
def test_file_size_limit_acts_like_full_disk(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, prefix=["prlimit", "--fsize=3000000"]) as broker:
        producer = Producer(settings(broker.address, retries=0, linger_ms=0))
        acked, errors = fill(producer, "topic", least=10)
        assert errors == {KafkaError.KAFKA_STORAGE_ERROR}
        assert list(range(acked)) == numbers(broker.address, "topic", acked)
        producer.produce("other", b"value")  # another file, which may still grow
        assert 0 == producer.flush(30)
        assert 0 == broker.stop()


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A directory that nobody can write to, with a broker's data in it."""
    where = tmp_path / "disk"
    if os.geteuid() != 0:
        where.mkdir()
        where.chmod(0o555)
        yield where
        where.chmod(0o755)
    else:  # root writes everywhere but to what is mounted so
        yield from mounted(where, "size=1m,ro")


def test_unwritable_directory_is_refused_in_one_sentence(read_only: Path, tmp_path: Path) -> None:
    refused(BrokerProcess(tmp_path, data_dir=read_only / "data"), says=str(read_only))
    refused(BrokerProcess(tmp_path, data_dir=read_only), says=str(read_only))


def test_file_as_directory_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    refused(BrokerProcess(tmp_path), says=str(tmp_path / "data"))


def refused(broker: BrokerProcess, says: str) -> None:
    """It does not start, and says why in one line."""
    before = broker.output
    broker.launch()
    try:
        assert 2 == broker.process.wait(30)
    finally:
        broker.kill()
    said = broker.output.removeprefix(before).strip()
    assert "Traceback" not in said
    assert 1 == len(said.splitlines()), said
    assert says in said
    assert said.endswith(".")


def test_directory_with_foreign_files_is_refused(tmp_path: Path) -> None:
    photo = tmp_path / "data" / "backup-2024" / "a.jpg"
    photo.parent.mkdir(parents=True)
    photo.write_text("a photo")
    refused(BrokerProcess(tmp_path), says="data_dir_accept_foreign_files")
    assert ["backup-2024"] == os.listdir(tmp_path / "data")
    with BrokerProcess(tmp_path, "data_dir_accept_foreign_files=true") as broker:
        assert 0 == broker.stop()
    with BrokerProcess(tmp_path) as broker:  # by now it is a broker's as well
        assert 0 == broker.stop()
    assert "a photo" == photo.read_text()


def test_start_on_full_disk_serves_and_later_writes(small_disk: Path, tmp_path: Path) -> None:
    filler = small_disk / "somebody-else-s"
    with BrokerProcess(tmp_path, data_dir=small_disk / "data") as broker:
        for killed in (True, False, True):
            producer = Producer(settings(broker.address, linger_ms=0))
            before = end_of(broker.address, "topic") if filler.exists() else 0
            filler.unlink(missing_ok=True)
            for number in range(before, before + 20):
                producer.produce("topic", b"%06d" % number)
            assert 0 == producer.flush(30)
            consumer = Consumer(settings(broker.address, group_id="group"))
            consumer.commit(offsets=[TopicPartition("topic", 0, 7)], asynchronous=False)
            consumer.close()
            broker.kill() if killed else broker.stop()
            fill_up(filler)
            broker.start()
            assert list(range(before + 20)) == numbers(broker.address, "topic", before + 20)
            consumer = Consumer(settings(broker.address, group_id="group"))
            assert 7 == consumer.committed([TopicPartition("topic", 0)], 30)[0].offset
            consumer.close()
            refused = Producer(settings(broker.address, retries=0, linger_ms=0))
            assert {KafkaError.KAFKA_STORAGE_ERROR} == fill(refused, "topic", least=0)[1]
        assert 0 == broker.stop()
