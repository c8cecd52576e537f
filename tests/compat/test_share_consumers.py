"""Share groups with the clients that have them: confluent-kafka (librdkafka), Kafka's own for Java, and ours; alone, and as
members of one group. Workers are processes, because some of them are killed."""

import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
)

import broker.client
from tests.compat.clients import java
from tests.compat.conftest import new_name
from tests.compat.served import Served

ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 120.0
SCENARIOS = [
    *[
        "implicit-none",
        "implicit-zstd",
        "explicit",
        "renew",
        "strict",
        "two-members",
        "read-committed",
        "described",
        "offsets",
    ],
]


@pytest.fixture(scope="module")
def shares(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Short locks, so that those of a worker that hangs end soon."""
    settings = ["group_share_min_record_lock_duration_ms=1000", "group_share_min_heartbeat_interval_ms=100"]
    with Served(tmp_path_factory.mktemp("shares"), *settings) as served:
        yield served
        assert served.stop() == 0
        assert [] == served.errors


def make(served: Served, partitions: int = 1, **settings: str) -> str:
    """A topic, and a group of the same name that begins at the first record."""
    name = new_name("share")
    admin = AdminClient({"bootstrap.servers": served.address})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(LIMIT_S)
    entries = [
        ConfigEntry(key, value, ConfigSource.DYNAMIC_TOPIC_CONFIG, incremental_operation=AlterConfigOpType.SET)
        for key, value in ({"share.auto.offset.reset": "earliest"} | settings).items()
    ]
    resource = ConfigResource(ResourceType.GROUP, name, incremental_configs=entries)
    (future,) = admin.incremental_alter_configs([resource]).values()
    future.result(LIMIT_S)
    return name


def write(served: Served, topic: str, values: Iterator[str] | range, **settings: Any) -> None:
    producer = Producer({"bootstrap.servers": served.address, "batch.num.messages": 20} | settings)
    for value in values:
        producer.produce(topic, str(value).encode())
        producer.poll(0)
    assert producer.flush(LIMIT_S) == 0


class Worker:
    """``done`` counts the records whose acknowledgements were answered, ``unknown`` has those of which nobody knows."""

    def __init__(self, kind: str, served: Served, name: str) -> None:
        if kind == "java":
            command = java.command(java.jars_in(), "ShareConsumers", "worker", served.address, name, name)
        else:
            command = [sys.executable, "-m", "tests.compat.clients.share_worker", kind, served.address, name, name]
        self.kind = kind
        self.done: Counter[str] = Counter()
        self.unknown: set[str] = set()
        self.told: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        self._errors: list[str] = []
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            value = line.strip()
            if value.startswith("?"):
                self.unknown.add(value[1:])
            else:
                self.done[value] += 1
                self.told.put(value)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors += self._process.stderr

    def kill(self) -> None:
        self._process.kill()
        self._end()

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("end\n")
        self._process.stdin.close()
        self._end()
        assert self._process.returncode == 0, "".join(self._errors)[-3000:]

    def _end(self) -> None:
        self._process.wait(LIMIT_S)
        for thread in self._threads:
            thread.join(LIMIT_S)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None


@contextmanager
def workers(served: Served, name: str, *kinds: str) -> Iterator[list[Worker]]:
    running = [Worker(kind, served, name) for kind in kinds]
    try:
        yield running
        for worker in running:
            if worker.is_alive:
                worker.stop()
    finally:
        for worker in running:
            if worker.is_alive:
                worker.kill()


def wait_until_done(running: list[Worker], expected: set[str]) -> Counter[str]:
    """How often each record was acknowledged, when all have been."""
    tick = threading.Event()
    for _ in range(int(LIMIT_S * 20)):
        done = sum((Counter(dict(worker.done)) for worker in running), Counter[str]())  # copies: workers add to theirs
        if expected <= done.keys() | set().union(*(worker.unknown for worker in running)):
            return done
        assert any(worker.is_alive for worker in running)
        tick.wait(0.05)
    raise AssertionError(f"{len(expected - done.keys())} of {len(expected)} were not acknowledged")


def wait_for_more(running: list[Worker], before: set[str], count: int) -> None:
    """Until so many further records have been acknowledged."""
    tick = threading.Event()
    for _ in range(int(LIMIT_S * 100)):
        if len(set().union(*(dict(worker.done) for worker in running)) - before) >= count:
            return
        tick.wait(0.01)
    raise AssertionError(f"fewer than {count} were acknowledged")


needs_java = pytest.mark.skipif(not java.has_java(), reason="Java or Kafka's jars are not there: `make java-clients`")
KINDS = ["ours", "confluent", pytest.param("java", marks=needs_java)]


@needs_java
def test_kafka_s_own_share_consumer(shares: Served) -> None:
    jars, name = java.jars_in(), new_name("java")
    assert SCENARIOS == java.run(jars, "ShareConsumers", "scenarios", shares.address, name, timeout_s=300)


@pytest.mark.parametrize("kind", KINDS)
def test_each_client_processes_every_record_once(shares: Served, kind: str) -> None:
    name = make(shares, 2)
    write(shares, name, range(300))
    expected = {str(number) for number in range(300)}
    with workers(shares, name, kind, kind) as running:
        assert wait_until_done(running, expected) == Counter(expected)


def test_mixed_clients_process_every_record_once(shares: Served) -> None:
    name = make(shares, 2)
    kinds = ["ours", "confluent", *(["java"] if java.has_java() else [])]
    with workers(shares, name, *kinds) as running:
        for begin in range(0, 900, 100):
            write(shares, name, range(begin, begin + 100))
        assert set(wait_until_done(running, {str(number) for number in range(900)}).values()) == {1}
        number = 900
        for _ in range(200):  # each of them gets something in the end
            if all(worker.done for worker in running):
                break
            write(shares, name, range(number, number + 30))
            number += 30
            wait_until_done(running, {str(n) for n in range(number)})
        assert all(worker.done for worker in running), [(worker.kind, len(worker.done)) for worker in running]


@pytest.mark.parametrize("kind", KINDS)
def test_killed_worker_s_records_go_to_others(shares: Served, kind: str) -> None:
    name = make(shares)
    write(shares, name, range(20))
    with workers(shares, name, "hold") as (held,):
        had = {held.told.get(timeout=LIMIT_S)}
        held.kill()
        had |= held.done.keys()
        with workers(shares, name, kind) as running:
            done = wait_until_done(running, {str(number) for number in range(20)})
    assert had <= done.keys()
    assert set(done.values()) == {1}


def test_acknowledged_records_stay_so_after_broker_kill(tmp_path: Path) -> None:
    with Served(tmp_path, "group_share_min_record_lock_duration_ms=1000") as served:
        name = make(served, 2, **{"share.record.lock.duration.ms": "2000"})
        count = 0
        with workers(served, name, "ours", "ours", "confluent") as running:
            for _ in range(3):
                before = set().union(*(worker.done for worker in running))
                write(served, name, range(count, count + 200))
                wait_for_more(running, before, 50)
                served.kill()
                served.start()
                count += 200
            done = wait_until_done(running, {str(number) for number in range(count)})
        assert {value: times for value, times in done.items() if times > 1} == {}
        served.stop()


def test_librdkafka_releases_rejects_and_reaches_delivery_limit(shares: Served) -> None:
    name = make(shares)
    write(shares, name, range(3))
    settings = {"bootstrap.servers": shares.address, "group.id": name, "share.acknowledgement.mode": "explicit"}
    with ShareConsumer(settings) as jobs:
        jobs.subscribe([name])
        deliveries: list[tuple[bytes, int]] = []
        while len(deliveries) < 7:
            for message in jobs.poll(5):
                assert message.error() is None
                deliveries.append((message.value(), message.delivery_count()))
                kinds = {b"0": AcknowledgeType.ACCEPT, b"1": AcknowledgeType.RELEASE, b"2": AcknowledgeType.REJECT}
                jobs.acknowledge(message, kinds[message.value()])
            assert all(error is None for error in jobs.commit_sync(LIMIT_S).values())
        assert sorted(deliveries) == [(b"0", 1), *((b"1", count) for count in range(1, 6)), (b"2", 1)]
        assert len(jobs.poll(1)) == 0


def test_transactions_under_read_committed(shares: Served) -> None:
    name = make(shares, **{"share.isolation.level": "read_committed"})
    producer = Producer({"bootstrap.servers": shares.address, "transactional.id": name})
    producer.init_transactions(LIMIT_S)
    with broker.client.ShareConsumer(shares.address, name, [name]) as jobs:
        seen: list[bytes | None] = []
        for value, commit in [(b"kept", True), (b"dropped", False), (b"kept too", True)]:
            producer.begin_transaction()
            producer.produce(name, value)
            producer.flush(LIMIT_S)
            assert [] == jobs.poll(0.2)
            (producer.commit_transaction if commit else producer.abort_transaction)(LIMIT_S)
            if commit:
                seen += [record.value for record in jobs.poll(LIMIT_S)]
        assert seen == [b"kept", b"kept too"]
        assert [] == jobs.poll(0.5)


def test_many_workers_share_one_partition(shares: Served) -> None:
    name = make(shares)
    count, members = 200, 8
    done: Counter[bytes | None] = Counter()
    by_worker: Counter[int] = Counter()
    lock, everything, failures = threading.Lock(), threading.Event(), []
    begun = threading.Barrier(members + 1)

    def work(number: int) -> None:
        try:
            with broker.client.ShareConsumer(shares.address, name, [name]) as jobs:
                assert jobs.poll(0.2) == []
                begun.wait(LIMIT_S)
                while not everything.is_set():
                    for record in jobs.poll(0.2, max_records=1):
                        everything.wait(0.01)  # the work
                        with lock:
                            done[record.value] += 1
                            by_worker[number] += 1
                            if len(done) == count:
                                everything.set()
        except BaseException as error:
            failures.append(error)
            begun.abort()
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(members)]
    for thread in threads:
        thread.start()
    begun.wait(LIMIT_S)
    write(shares, name, range(count))
    finished = everything.wait(LIMIT_S)
    everything.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not failures
    assert finished
    assert set(done.values()) == {1}
    assert len(by_worker) == members
