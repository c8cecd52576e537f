"""`broker backup` while Kafka's and Pulsar's clients are at work, `broker restore`, and what a broker finds in what was restored.

The promises: nothing that was acknowledged before the backup began is missing; no committed offset and no cursor is beyond the
end of its log; transactions are whole; what a consumer has acknowledged is, once durable, not delivered again.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pulsar
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from broker.cli.backup import read_plan
from broker.client.kafka.admin.cluster import Pinned
from broker.errors import BrokerError
from tests.compat.clients.librdkafka import settings
from tests.compat.pulsar.conftest import quiet_logger
from tests.process.broker_process import PATIENCE_S, BrokerProcess
from tests.process.test_kill import inspect

PARTITIONS = 3
SMALL_SEGMENTS = ("log_segment_bytes=200000", "log_retention_check_interval_ms=200", "log_cleaner_backoff_ms=100")


def command(*arguments: object, fails: int = 0, **environment: str) -> str:
    """Standard output and standard error of a command."""
    line = [sys.executable, "-m", "broker", *map(str, arguments)]
    ended = subprocess.run(
        line, capture_output=True, check=False, timeout=PATIENCE_S, env={**os.environ, **environment}
    )
    said = ended.stdout.decode() + ended.stderr.decode()
    assert ended.returncode == fails, said
    assert "Traceback" not in said, said
    return said


class Load(threading.Thread):
    """Calls ``act`` with 0, 1, 2... until it is stopped; ``done`` of them have returned."""

    def __init__(self, act: Callable[[int], None]) -> None:
        super().__init__()
        self._act = act
        self._over = threading.Event()
        self.done = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._over.is_set():
                self._act(self.done)
                self.done += 1
        except BaseException as error:
            self.failure = error

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.done < count:
            assert self.failure is None, self.failure
            assert time.monotonic() < deadline, "the load does not get on"
            time.sleep(0.01)

    def end(self) -> None:
        self._over.set()
        self.join(PATIENCE_S)
        assert self.failure is None, self.failure


def transactions(servers: str) -> Callable[[int], None]:
    """Transaction n writes n to each partition of `txn` and commits the offset n of the group `g`."""
    producer = Producer(settings(servers, transactional_id="me"))
    producer.init_transactions(PATIENCE_S)
    group = Consumer(settings(servers, group_id="g")).consumer_group_metadata()

    def act(number: int) -> None:
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce("txn", b"%d" % number, partition=partition)
        producer.send_offsets_to_transaction([TopicPartition("txn", 0, number)], group, PATIENCE_S)
        if number % 5 == 4:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)

    return act


def chain(servers: str) -> Callable[[int], None]:
    """Record n goes to one topic after record n of the other was acknowledged, so the second never has more than the first.
    The topics are with different nodes, if there are three."""
    producer = Producer(settings(servers, enable_idempotence=True, linger_ms=0))

    def act(number: int) -> None:
        for topic in ("earlier", "second"):
            producer.produce(topic, b"%d" % number + bytes(1000), key=b"%d" % (number % 50))
            assert 0 == producer.flush(PATIENCE_S)

    return act


def messages(client: pulsar.Client) -> tuple[Callable[[int], None], Callable[[int], None], list[int]]:
    """Sends message n to `p`; receives one message, if one comes, and acknowledges it; all that were acknowledged."""
    consumer = client.subscribe("p", "sub", pulsar.ConsumerType.Shared)
    producer = client.create_producer("p", batching_enabled=False)
    acknowledged: list[int] = []

    def send(number: int) -> None:
        producer.send(b"%d" % number)

    def receive(_: int) -> None:
        try:
            message = consumer.receive(200)
        except pulsar.Timeout:
            return
        consumer.acknowledge(message)
        acknowledged.append(int(message.data()))

    return send, receive, acknowledged


def read(servers: str, topic: str, partition: int, isolation: str = "read_committed") -> list[int]:
    """The numbers in a partition."""
    consumer = Consumer(settings(servers, group_id="reader", isolation_level=isolation, enable_partition_eof=True))
    consumer.assign([TopicPartition(topic, partition, 0)])
    found = []
    while True:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        if message.error():
            consumer.close()
            return found
        found.append(int((message.value() or b"").rstrip(b"\0")))


def ends(servers: str, topic: str, partition: int = 0) -> tuple[int, int]:
    consumer = Consumer(settings(servers, group_id="reader"))
    found = consumer.get_watermark_offsets(TopicPartition(topic, partition), PATIENCE_S)
    consumer.close()
    return int(found[0]), int(found[1])


def make_topics(servers: str) -> None:
    admin = AdminClient(settings(servers))
    topics = [
        NewTopic("txn", PARTITIONS, 1),
        # Small segments that are compacted all the time, below the backup.
        NewTopic(
            "earlier",
            1,
            1,
            config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.bytes": "20000"},
        ),
        NewTopic("second", 1, 1),
        NewTopic("short", 1, 1),
    ]
    for future in admin.create_topics(topics).values():
        future.result(PATIENCE_S)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, *SMALL_SEGMENTS, more_listeners=["pulsar://127.0.0.1:0"]) as broker:
        make_topics(broker.address)
        yield broker


def fill(servers: str, count: int, size: int) -> None:
    """So many records of random bytes in ``second``, in batches that fit the segments."""
    producer = Producer(settings(servers, batch_size=20_000))
    refused = []
    for number in range(count):
        producer.produce(
            "second",
            b"%08d" % number + os.urandom(size),
            on_delivery=lambda error, _: refused.append(error) if error else None,
        )
        producer.poll(0)
    assert 0 == producer.flush(PATIENCE_S)
    assert [] == refused


def test_a_backup_under_load_keeps_every_promise(broker: BrokerProcess, tmp_path: Path) -> None:
    taken = back_up_under_load(broker, tmp_path, [broker.address] * 3)
    assert not (broker.data_dir / ".backup").exists()
    assert 0 == broker.stop()
    for number, (target, before) in enumerate(taken):
        directory = tmp_path / f"restored-{number}"
        directory.mkdir()
        command("restore", target, directory / "data")
        inspect(check(directory, before))
    assert [] == broker.errors


def back_up_under_load(broker: BrokerProcess, tmp_path: Path, asked: Sequence[str]) -> list[tuple[Path, list[int]]]:
    """A backup by each of these addresses, with what had been done before it."""
    client = pulsar.Client(f"pulsar://{broker.addresses['pulsar']}", logger=quiet_logger())
    send, receive, acknowledged = messages(client)
    loads = [Load(transactions(broker.address)), Load(chain(broker.address)), Load(send), Load(receive)]
    for load in loads:
        load.start()
    taken = []
    since: list[str] = []
    for number, address in enumerate(asked):
        for load in loads:
            load.wait_for(load.done + 20)
        received = len(acknowledged)
        time.sleep(1.5)  # an acknowledgement without an answer is durable about a second later
        for load in loads:  # on a machine that is busy, it is later, and so is this
            load.wait_for(load.done + 20)
        before = [load.done for load in loads[:3]] + [received]
        target = tmp_path / f"backup-{number}"
        said = json.loads(command("backup", "-b", address, target, "--output", "json", *since))
        since = ["--since", str(target)]
        assert [] == said["offline"]
        command("backup", "--verify", target)
        taken.append((target, before))
    for load in loads:
        load.end()
    client.close()
    return taken


def check(directory: Path, before: list[int], options: Sequence[str] = ()) -> Path:
    """``options``: of the broker that is started there. Returns its data directory."""
    transactions_done, chained, sent, acknowledged = before
    restored = BrokerProcess(directory, more_listeners=["pulsar://127.0.0.1:0"])
    restored.options = options
    with restored:
        servers = restored.address
        # What was open is aborted, and its producer goes on under its name.
        Producer(settings(servers, transactional_id="me")).init_transactions(PATIENCE_S)
        seen = [read(servers, "txn", partition) for partition in range(PARTITIONS)]
        assert seen[0] == seen[1] == seen[2], "a transaction is visible in part"
        committed_before = [number for number in range(transactions_done) if number % 5 != 4]
        assert committed_before == seen[0][: len(committed_before)]
        group = Consumer(settings(servers, group_id="g"))
        (committed,) = group.committed([TopicPartition("txn", 0)], PATIENCE_S)
        group.close()
        assert committed.offset == seen[0][-1], "the offset is not the one of the last transaction"
        assert committed.offset <= ends(servers, "txn")[1]
        first, second = read(servers, "earlier", 0), read(servers, "second", 0)
        assert list(range(len(second))) == second
        assert len(second) >= chained
        # The first is compacted: the newest record of each key is there.
        assert set(range(max(0, first[-1] - 49), first[-1] + 1)) <= set(first), "compaction took what nothing replaces"
        assert first[-1] >= second[-1], "the second has a record whose cause is missing"
        check_messages(restored, sent, acknowledged)
        # It is a broker like any other.
        producer = Producer(settings(servers, enable_idempotence=True))
        producer.produce("second", b"1")
        assert 0 == producer.flush(PATIENCE_S)
        assert 0 == restored.stop()
        assert [] == restored.errors
    return restored.data_dir


def check_messages(restored: BrokerProcess, sent: int, acknowledged: int) -> None:
    client = pulsar.Client(f"pulsar://{restored.addresses['pulsar']}", logger=quiet_logger())
    reader = client.create_reader("p", pulsar.MessageId.earliest)
    stored = []
    while reader.has_message_available():
        stored.append(int(reader.read_next(int(PATIENCE_S * 1000)).data()))
    assert list(range(len(stored))) == stored
    assert len(stored) >= sent
    consumer = client.subscribe("p", "sub", pulsar.ConsumerType.Shared)
    client.create_producer("p").send(b"the end")
    left = []
    while (data := consumer.receive(int(PATIENCE_S * 1000)).data()) != b"the end":
        left.append(int(data))
    client.close()
    # A shared consumer gets them in order and acknowledges each, so those that are left are the last.
    assert stored[len(stored) - len(left) :] == sorted(left)
    assert len(left) <= len(stored) - min(acknowledged, len(stored)) + 20


def test_topic_deleted_meanwhile_is_gone_or_whole(broker: BrokerProcess, tmp_path: Path) -> None:
    admin = AdminClient(settings(broker.address))
    names = [f"passing-{number}" for number in range(20)]

    def act(number: int) -> None:
        for future in admin.create_topics([NewTopic(name, 5, 1) for name in names]).values():
            future.result(PATIENCE_S)
        for future in admin.delete_topics(names).values():
            future.result(PATIENCE_S)

    load = Load(act)
    load.start()
    for number in range(4):
        load.wait_for(load.done + 1)
        command("backup", "-b", broker.address, tmp_path / f"b{number}")
        directory = tmp_path / f"r{number}"
        directory.mkdir()
        command("restore", tmp_path / f"b{number}", directory / "data")
        with BrokerProcess(directory) as restored:
            known = AdminClient(settings(restored.address)).list_topics(timeout=PATIENCE_S).topics
            assert {5} >= {len(topic.partitions) for name, topic in known.items() if name.startswith("passing-")}
            assert 0 == restored.stop()
            assert [] == restored.errors
    load.end()


def test_killed_backup_is_recognised_and_continued(broker: BrokerProcess, tmp_path: Path) -> None:
    fill(broker.address, 20000, 1000)
    target = tmp_path / "backup"
    line = [sys.executable, "-m", "broker", "backup", "-b", broker.address, str(target)]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE_S
    journal = target / "backup-unfinished.jsonl"
    while process.poll() is None and not (journal.exists() and journal.read_text().count("second-0") > 20):
        assert time.monotonic() < deadline
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE_S)
    if (target / "backup.json").exists():
        pytest.skip("it was too fast to be killed")
    assert "was not finished" in command("backup", "--verify", target, fails=1)
    assert "was not finished" in command("restore", target, tmp_path / "data-2", fails=1)
    assert not (tmp_path / "data-2").exists()
    # The broker still has the files pinned, and says so.
    assert "Another backup is being made" in command("backup", "-b", broker.address, target, fails=1)
    broker.kill()
    broker.start()
    deadline = time.monotonic() + PATIENCE_S
    while (broker.data_dir / ".backup").exists():
        assert time.monotonic() < deadline, "what was left over is still there"
        time.sleep(0.02)
    said = json.loads(command("backup", "-b", broker.address, target, "--output", "json"))
    assert said["reused_files"] > 0
    command("backup", "--verify", target)


def test_broker_killed_during_a_backup(broker: BrokerProcess, tmp_path: Path) -> None:
    fill(broker.address, 1000, 100)
    target = tmp_path / "backup"
    line = [sys.executable, "-m", "broker", "backup", "-b", broker.address, str(target)]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + PATIENCE_S
    while not (broker.data_dir / ".backup").exists():
        assert time.monotonic() < deadline and process.poll() is None
    broker.kill()
    process.communicate(timeout=2 * PATIENCE_S)
    broker.start()
    assert ends(broker.address, "second") == (0, 1000)
    command("backup", "-b", broker.address, tmp_path / "another")
    command("backup", "--verify", tmp_path / "another")


def test_damage_is_reported_by_verify_refused_by_restore(broker: BrokerProcess, tmp_path: Path) -> None:
    producer = Producer(settings(broker.address))
    producer.produce("second", b"1" * 1000)
    assert 0 == producer.flush(PATIENCE_S)
    target = tmp_path / "backup"
    command("backup", "-b", broker.address, target)
    log = target / "data" / "second-0" / f"{0:020d}.log"
    content = bytearray(log.read_bytes())
    content[500] ^= 1
    log.write_bytes(content)
    assert "is damaged: its checksum differs" in command("backup", "--verify", target, fails=1)
    assert "is damaged: its checksum differs" in command("restore", target, tmp_path / "data-2", fails=1)
    # No broker starts on half of a backup.
    line = [
        sys.executable,
        "-m",
        "broker",
        "serve",
        "--data-dir",
        str(tmp_path / "data-2"),
        "--listener",
        "kafka://127.0.0.1:0",
    ]
    ended = subprocess.run(line, capture_output=True, check=False, timeout=PATIENCE_S)
    assert 2 == ended.returncode
    assert b"the last one did not finish" in ended.stderr
    log.unlink()
    assert "is missing" in command("backup", "--verify", target, fails=1)


def test_existing_files_are_never_overwritten(broker: BrokerProcess, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis").write_text("precious")
    assert "is not empty" in command("backup", "-b", broker.address, tmp_path / "full", fails=2)
    command("backup", "-b", broker.address, tmp_path / "backup")
    assert "is a backup already" in command("backup", "-b", broker.address, tmp_path / "backup", fails=2)
    assert "is not empty" in command("restore", tmp_path / "backup", tmp_path / "full", fails=2)
    assert "is not a backup" in command("restore", tmp_path / "full", tmp_path / "new", fails=1)
    assert ["thesis"] == [path.name for path in (tmp_path / "full").iterdir()]
    assert "precious" == (tmp_path / "full" / "thesis").read_text()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "disk"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1000000", "broker-test", str(where)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system takes a root who may")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


def test_a_full_target_fails_cleanly_and_is_continued(broker: BrokerProcess, small_disk: Path) -> None:
    fill(broker.address, 3000, 1000)
    said = command("backup", "-b", broker.address, small_disk / "backup", fails=1)
    assert "No space left on device" in said
    assert "is not complete" in said
    assert not (broker.data_dir / ".backup").exists()
    assert "was not finished" in command("backup", "--verify", small_disk / "backup", fails=1)
    subprocess.run(["mount", "-o", "remount,size=10000000", str(small_disk)], check=True)
    command("backup", "-b", broker.address, small_disk / "backup")
    command("backup", "--verify", small_disk / "backup")


def test_command_on_another_machine_is_refused() -> None:
    with pytest.raises(BrokerError, match=r"is not on this machine.*docker compose exec broker broker backup"):
        read_plan(Pinned("id", "/nowhere/.backup"))
