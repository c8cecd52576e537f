"""What is served while the disk of one topic, or of all, hangs in a write: everything that does not need it, by one processor.

The broker is in this process, so that the test can make its disk hang.
"""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import pytest

from broker.client import InputGate, ShuffleWriter
from broker.config import load
from broker.network import relief
from broker.runtime import system_runtime
from broker.runtime.disk import Buffer, SyncQueue, SystemDisk, SystemFile
from broker.server import BrokerServer
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.records.records import build_batch
from protocol.shuffle.ids import ResultPartitionID
from tests.kafka_connection import KafkaConnection, fetch_fields, produce_fields
from tests.pulsar_frames import send
from tests.raw_pulsar import EARLIEST, RawPulsar, topic

# More than there are handlers.
MANY = 12


class HangingDisk(SystemDisk):
    """While ``gate`` is closed, writes and syncs of files with ``part`` in their paths do not return."""

    def __init__(self) -> None:
        super().__init__()
        self.part = ""
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Semaphore(0)

    def hang(self, part: str) -> None:
        self.part = part
        self.gate.clear()

    def wait(self, path: str) -> None:
        if not self.gate.is_set() and self.part in path:
            self.waiting.release()
            assert self.gate.wait(60)

    def _file(self, fd: int, path: str) -> SystemFile:
        file = HangingFile(fd, path)
        file.disk = self
        return file

    def sync_queue(self) -> SyncQueue | None:
        return None  # by `HangingFile.sync`


class HangingFile(SystemFile):
    disk: HangingDisk

    def pwrite(self, buffers: Sequence[Buffer], offset: int) -> int:
        self.disk.wait(self.path)
        return super().pwrite(buffers, offset)

    def sync(self, data_only: bool = True) -> None:
        self.disk.wait(self.path)
        super().sync(data_only)


class Scene:
    def __init__(self, server: BrokerServer, disk: HangingDisk) -> None:
        self.server = server
        self.disk = disk
        self.addresses = {name: url.rpartition("/")[2] for name, url in server.listeners.items()}
        self.kafka = self.connect()
        self.clients: list[KafkaConnection] = []

    def connect(self) -> KafkaConnection:
        return KafkaConnection(self.addresses["kafka"])

    def tell_produce(self, name: str, acks: int = 1) -> KafkaConnection:
        """By a connection of its own, which is not waited for."""
        client = self.connect()
        batch = build_batch([(None, b"value", (), 1_700_000_000_000)])
        client.tell(ApiKey.PRODUCE, 7, **produce_fields(name, batch, acks=acks))
        self.clients.append(client)
        return client

    def produced(self, client: KafkaConnection) -> int:
        """The base offset in its answer."""
        (found,) = client.answer(ApiKey.PRODUCE, 7).responses[0].partition_responses
        assert 0 == found.error_code
        return int(found.base_offset)

    def assert_kafka_answers(self, *, writes: str | None) -> None:
        for client in (self.kafka, self.connect()):
            assert 0 == client.ask(ApiKey.API_VERSIONS, 2).error_code
            assert {"stuck", "other"} <= {each.name for each in client.ask(ApiKey.METADATA, 5, topics=None).topics}
            listed = [{"name": "stuck", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
            ends = client.ask(ApiKey.LIST_OFFSETS, 1, replica_id=-1, topics=listed)
            assert 1 == ends.topics[0].partitions[0].offset
            fetched = client.ask(ApiKey.FETCH, 4, **fetch_fields("stuck", max_wait=0))
            assert fetched.responses[0].partitions[0].records
            assert 0 == client.ask(ApiKey.LIST_GROUPS, 0).error_code
            if writes is not None:
                self.produced(self.tell_produce(writes))
                self.produced(self.tell_produce(writes, acks=-1))
            if client is not self.kafka:
                client.close()


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(relief, "LOOK_S", 0.05)
    disk = HangingDisk()
    listeners = [f"{each}://127.0.0.1:0" for each in ("kafka", "pulsar", "shuffle")]
    config = load(data_dir=str(tmp_path), listeners=listeners, create_topics="stuck,other", network_threads=1)
    server = BrokerServer(config, attrs.evolve(system_runtime(), disk=disk))
    server.start()
    scene = Scene(server, disk)
    try:
        for name in ("stuck", "other"):
            scene.produced(scene.tell_produce(name))
        yield scene
    finally:
        disk.gate.set()
        for client in (scene.kafka, *scene.clients):
            client.close()
        server.stop()


def test_kafka_is_served_while_the_disk_of_a_topic_hangs(scene: Scene) -> None:
    scene.disk.hang("stuck-0")
    first = scene.tell_produce("stuck")
    assert scene.disk.waiting.acquire(timeout=60)
    scene.assert_kafka_answers(writes="other")
    waiting = [first, *(scene.tell_produce("stuck") for _ in range(MANY))]
    scene.assert_kafka_answers(writes="other")
    scene.disk.gate.set()
    assert list(range(1, MANY + 2)) == sorted(map(scene.produced, waiting))
    scene.produced(scene.tell_produce("stuck", acks=-1))


def test_reads_and_metadata_are_served_while_all_logs_hang(scene: Scene) -> None:
    scene.disk.hang(".log")
    first = scene.tell_produce("stuck")
    assert scene.disk.waiting.acquire(timeout=60)
    scene.assert_kafka_answers(writes=None)
    waiting = [first, *(scene.tell_produce("stuck") for _ in range(MANY))]
    others = [scene.tell_produce("other") for _ in range(MANY)]
    scene.assert_kafka_answers(writes=None)
    scene.disk.gate.set()
    assert list(range(1, MANY + 2)) == sorted(map(scene.produced, waiting))
    assert list(range(1, MANY + 1)) == sorted(map(scene.produced, others))


class PulsarProducer(RawPulsar):
    def __init__(self, address: str, name: str) -> None:
        super().__init__(address)
        assert "PRODUCER_SUCCESS" == self.request("PRODUCER", topic=topic(name), producer_id=1).kind

    def publish(self, sequence_id: int) -> None:
        self.send(send(1, sequence_id, b"value"))

    def receipt(self) -> int:
        return int(self.expect("SEND_RECEIPT").sequence_id)


def test_pulsar_is_served_while_the_disk_of_a_topic_hangs(scene: Scene) -> None:
    address = scene.addresses["pulsar"]
    stuck = [PulsarProducer(address, "hung") for _ in range(1 + MANY)]
    other = PulsarProducer(address, "free")
    reader = RawPulsar(address)
    subscribed = {"topic": topic("free"), "subscription": "s", "subType": 0, "consumer_id": 1}
    assert "SUCCESS" == reader.request("SUBSCRIBE", **subscribed, initialPosition=EARLIEST).kind
    scene.clients += [*stuck, other, reader]
    for each in (stuck[0], other):
        each.publish(0)
        assert 0 == each.receipt()
    scene.disk.hang("hung")
    stuck[0].publish(1)
    assert scene.disk.waiting.acquire(timeout=60)
    for sequence_id in (1, 2):
        other.publish(sequence_id)
        assert sequence_id == other.receipt()
        for each in stuck[1:] if sequence_id == 1 else ():
            each.publish(1)
        assert "LOOKUP_RESPONSE" == reader.request("LOOKUP", topic=topic("hung")).kind
        scene.assert_kafka_answers(writes="other")
    reader.tell("FLOW", consumer_id=1, messagePermits=3)
    assert [b"value"] * 3 == [reader.next_frame().payload for _ in range(3)]
    scene.disk.gate.set()
    assert [1] * (1 + MANY) == [each.receipt() for each in stuck]


def test_shuffle_is_served_while_the_disk_of_a_topic_hangs(scene: Scene) -> None:
    scene.disk.hang("stuck-0")
    first = scene.tell_produce("stuck")
    assert scene.disk.waiting.acquire(timeout=60)
    partition = ResultPartitionID.of_name("results")
    with ShuffleWriter(scene.addresses["shuffle"], partition, 1) as writer:
        writer.push(0, b"buffer")
    with InputGate([(scene.addresses["shuffle"], partition, 0)]) as gate:
        assert [b"buffer"] == [bytes(data) for _, data in gate.buffers()]
    scene.disk.gate.set()
    assert 1 == scene.produced(first)
