"""kill -9 of the broker, of writers and of readers while they work: what was said to be finished is there, byte for byte.

``BROKER_KILL_CYCLES`` says how often (3); ``BROKER_KILL_SEED`` when (drawn anew each time, and shown when it fails).
"""

import hashlib
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.client import InputGate, ShuffleWriter
from broker.client.shuffle.errors import AnotherAttemptWonError, ShuffleError
from protocol.shuffle import writer_frames as w
from protocol.shuffle.buffer_response import BufferResponse
from protocol.shuffle.errors import PARTITION_NOT_FOUND_EXCEPTION, PRODUCER_FAILED_EXCEPTION, ErrorResponse
from protocol.shuffle.ids import ResultPartitionID
from protocol.shuffle.writer_frames import WriterErrorCode
from tests.process.broker_process import BrokerProcess
from tests.shuffle.harness import BLOCKING, PIPELINED, Client, new_id

CYCLES = int(os.environ.get("BROKER_KILL_CYCLES", "3"))
SEED = int(os.environ.get("BROKER_KILL_SEED", random.SystemRandom().randrange(2**32)))
SETTINGS = (
    # What is known of the partitions must have room, some 6 KiB each: a fast machine finishes hundreds in a cycle.
    f"shuffle_memory_bytes={(16 << 20) * CYCLES}",
    "shuffle_partition_request_timeout_ms=200",
)
SUBPARTITIONS = 3
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    """Its parameter: how long (ms) it keeps what a writer has left."""
    print(f"BROKER_KILL_SEED={SEED}")
    settings = *SETTINGS, f"shuffle_writer_retention_ms={getattr(request, 'param', 1500)}"
    with BrokerProcess(tmp_path, *settings, listener="shuffle://127.0.0.1:0") as process:
        yield process
        assert [event for event in process.errors if "accept" not in event["event"]] == []


def address(broker: BrokerProcess) -> tuple[str, int]:
    host, port = broker.address.rsplit(":", 1)
    return host, int(port)


def buffers(seed: bytes, count: int) -> list[bytes]:
    """What a partition with this id holds, dealt out to its subpartitions in turn; anybody can work it out."""
    drawn = random.Random(seed)
    return [drawn.randbytes(drawn.choice([0, 1, 100, 5_000, 32_000])) for _ in range(count)]


def digest(payloads: list[bytes]) -> str:
    return hashlib.sha256(b"".join(len(p).to_bytes(4, "big") + p for p in payloads)).hexdigest()


def write(where: tuple[str, int], partition: bytes, kind: Any, name: bytes, count: int) -> None:
    """A whole partition, or the rest of one."""
    with Client(where) as client:
        writer = client.open(partition, SUBPARTITIONS, kind, writer=name)
        for number, payload in enumerate(buffers(partition, count)):
            if number // SUBPARTITIONS >= writer.opened.next_sequences[number % SUBPARTITIONS]:
                writer.push_with_credit(payload, number % SUBPARTITIONS)
        client.finish(writer)


def write_in_part(where: tuple[str, int], partition: bytes, kind: Any, name: bytes, count: int) -> None:
    """Two thirds of a partition; then nothing, until the process is killed."""
    with Client(where) as client:
        writer = client.open(partition, SUBPARTITIONS, kind, writer=name)
        for number, payload in enumerate(buffers(partition, count)[: 2 * count // 3]):
            writer.push_with_credit(payload, number % SUBPARTITIONS)
        threading.Event().wait()


def read(where: tuple[str, int], partition: bytes, subpartition: int) -> list[bytes]:
    with Client(where) as client:
        came = client.read_to_end(client.request(partition, subpartition))
    return [bytes(buffer.payload) for buffer in came if buffer.data_type.is_buffer]


def assert_reads_back(where: tuple[str, int], partition: bytes, count: int) -> None:
    whole = buffers(partition, count)
    for index in range(SUBPARTITIONS):
        assert digest(read(where, partition, index)) == digest(whole[index::SUBPARTITIONS])


class Load(threading.Thread):
    """Writes one blocking partition after another, as often as needed, and notes which are finished."""

    def __init__(self, where: tuple[str, int]) -> None:
        super().__init__()
        self.where = where
        self.stopping = False
        self.finished: list[ResultPartitionID] = []
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping:
                partition, name = new_id(), os.urandom(16)
                while not self._written(partition, name):
                    time.sleep(0.02)
                self.finished.append(partition)
        except BaseException as error:
            self.failed = error
            raise

    def _written(self, partition: ResultPartitionID, name: bytes) -> bool:
        try:
            write(self.where, partition, BLOCKING, name, 60)
        except (OSError, AssertionError) as error:
            # The broker died; or it had finished, and died before it could say so.
            return WriterErrorCode.FINISHED_ALREADY.name in str(error)
        return True


def test_finished_partitions_survive_kill_9(broker: BrokerProcess) -> None:
    drawn = random.Random(SEED)
    where = address(broker)
    loads = [Load(where) for _ in range(2)]
    for load in loads:
        load.start()
    try:
        for cycle in range(CYCLES):
            enough = [len(load.finished) + 2 for load in loads]
            while any(len(load.finished) < count for load, count in zip(loads, enough, strict=True)):
                assert all(load.is_alive() for load in loads), [load.failed for load in loads]
                time.sleep(0.005)
            time.sleep(drawn.random() * 0.1)
            broker.kill()
            promised = [partition for load in loads for partition in list(load.finished)]
            broker.start()
            for partition in promised if cycle == CYCLES - 1 else drawn.sample(promised, 3):
                assert_reads_back(where, partition, 60)
    finally:
        for load in loads:
            load.stopping = True
        for load in loads:
            load.join()
    assert [load.failed for load in loads] == [None, None]
    with Client(where) as client:
        there = {info.partition for info in client.list() if info.state == w.PartitionState.FINISHED}
    assert there == {partition for load in loads for partition in load.finished}


@pytest.mark.parametrize("broker", [60_000], indirect=True, ids=["kept"])
@pytest.mark.parametrize("kind", [PIPELINED, BLOCKING])
def test_killed_writer_s_successor_goes_on(broker: BrokerProcess, kind: Any) -> None:
    where, count = address(broker), 3000
    partition, name = new_id(), os.urandom(16)
    results: dict[int, list[bytes]] = {}

    def reader(index: int) -> None:
        results[index] = read(where, partition, index)

    threads = [threading.Thread(target=reader, args=(index,)) for index in range(SUBPARTITIONS)]
    writer = SPAWN.Process(target=write_in_part, args=(where, partition, kind, name, count), daemon=True)
    writer.start()
    with Client(where) as watcher:
        while not any(info.buffers for info in watcher.list()):
            time.sleep(0.002)
    if kind is PIPELINED:
        for thread in threads:
            thread.start()
    writer.kill()
    writer.join()
    write(where, partition, kind, name, count)
    if kind is BLOCKING:
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()
    whole = buffers(partition, count)
    for index in range(SUBPARTITIONS):
        assert digest(results[index]) == digest(whole[index::SUBPARTITIONS])


def test_readers_learn_of_a_writer_without_successor(broker: BrokerProcess) -> None:
    where = address(broker)
    partition, healthy = new_id(), new_id()
    write(where, healthy, BLOCKING, os.urandom(16), 30)
    writer = SPAWN.Process(target=write, args=(where, partition, PIPELINED, os.urandom(16), 100_000))
    writer.start()
    with Client(where) as client:
        while not any(info.buffers for info in client.list(partition.hex())):
            time.sleep(0.002)
        receiver = client.request(partition, credit=1)
        while not isinstance(client.next(), BufferResponse):
            pass
        writer.kill()
        writer.join()
        error = client.find(ErrorResponse)
    assert (error.class_name, error.receiver) == (PRODUCER_FAILED_EXCEPTION, receiver)
    assert_reads_back(where, healthy, 30)


def _read_for_ever(where: tuple[str, int], partition: bytes) -> None:
    while True:
        read(where, partition, 0)


def test_a_killed_reader_takes_nothing_from_the_others(broker: BrokerProcess) -> None:
    where = address(broker)
    partition = new_id()
    write(where, partition, BLOCKING, os.urandom(16), 300)
    drawn = random.Random(SEED)
    with Client(where) as watcher:
        for _ in range(CYCLES):
            victim = SPAWN.Process(target=_read_for_ever, args=(where, partition))
            victim.start()
            while not watcher.list()[0].readers:
                time.sleep(0.001)
            time.sleep(drawn.random() * 0.05)
            victim.kill()
            assert_reads_back(where, partition, 300)
            victim.join()
        while watcher.list()[0].readers:
            time.sleep(0.001)


def _read_slowly(where: tuple[str, int], partition: bytes) -> None:
    with Client(where) as client:
        receiver = client.request(partition, 0, credit=1)
        while True:
            client.next(BufferResponse)
            time.sleep(0.005)
            client.add_credit(receiver)


def test_killed_pipelined_reader_holds_nobody_back(broker: BrokerProcess) -> None:
    """It was in the middle of its subpartition. The others read on; the writer hears of it when it finishes."""
    where, count = address(broker), 2000
    partition = new_id()
    whole = buffers(partition, count)
    results: dict[int, list[bytes]] = {}

    def reader(index: int) -> None:
        results[index] = read(where, partition, index)

    with Client(where) as client, Client(where) as watcher:
        writer = client.open(partition, SUBPARTITIONS)
        victim = SPAWN.Process(target=_read_slowly, args=(where, partition))
        victim.start()
        threads = [threading.Thread(target=reader, args=(index,)) for index in range(1, SUBPARTITIONS)]
        for thread in threads:
            thread.start()
        for number, payload in enumerate(whole):
            if number == count // 4:
                while watcher.list()[0].readers < SUBPARTITIONS:
                    time.sleep(0.002)
                victim.kill()
                victim.join()
            writer.push_with_credit(payload, number % SUBPARTITIONS)
        for index in range(1, SUBPARTITIONS):
            writer.end(index)
        for thread in threads:
            thread.join()
        writer.finish()
        assert client.writer_error().code == WriterErrorCode.RELEASED
    for index in range(1, SUBPARTITIONS):
        assert digest(results[index]) == digest(whole[index::SUBPARTITIONS])


def test_own_clients_survive_kills_of_the_broker(broker: BrokerProcess) -> None:
    """Written again as the next attempt when the broker has forgotten the last one; read again when it went while it was read."""
    drawn = random.Random(SEED)
    where = broker.address
    partition = new_id()
    whole = buffers(partition, 600)
    killing = threading.Event()

    def kill() -> None:
        for _ in range(CYCLES):
            killing.wait(10)
            time.sleep(drawn.random() * 0.15)
            broker.kill()
            broker.start()
            killing.clear()

    killer = threading.Thread(target=kill)
    killer.start()
    finished: ResultPartitionID | None = None
    for attempt in range(100):
        try:
            with ShuffleWriter(where, partition.with_attempt(attempt), SUBPARTITIONS, "blocking") as writer:
                for number, payload in enumerate(whole):
                    writer.push(number % SUBPARTITIONS, payload)
                    if number == 50:
                        killing.set()
        except AnotherAttemptWonError:
            finished = partition.with_attempt(attempt - 1)  # it had, and its answer was lost
        except ShuffleError:
            time.sleep(0.05)
            continue
        finished = finished or partition.with_attempt(attempt)
        break
    assert finished is not None
    channels = [(where, finished, index) for index in range(SUBPARTITIONS)]
    expected = [
        digest([payload for payload in whole[index::SUBPARTITIONS] if payload]) for index in range(SUBPARTITIONS)
    ]
    in_peace = False
    while not in_peace:
        in_peace = not killer.is_alive()
        killing.set()
        found: list[list[bytes]] = [[] for _ in range(SUBPARTITIONS)]
        try:
            with InputGate(channels, partition_wait=30.0) as gate:
                for item in gate:
                    if not item.is_event:
                        found[item.channel].append(bytes(item.data or b""))
        except ShuffleError:
            assert not in_peace
            time.sleep(0.05)  # it was being read when the broker went
            continue
        assert expected == [digest(each) for each in found]
    killer.join()


def test_pipelined_and_unfinished_partitions_die_with_broker(broker: BrokerProcess) -> None:
    where = address(broker)
    partitions = []
    with Client(where) as client:
        for kind in (PIPELINED, BLOCKING):
            partitions.append(new_id())
            writer = client.open(partitions[-1], 1, kind)
            writer.push(*[b"x" * 30_000] * writer.credit)
        client.sync()
        broker.kill()
    broker.start()
    with Client(where) as client:
        assert client.list() == ()
        for partition in partitions:
            client.request(partition)
            assert client.error().class_name == PARTITION_NOT_FOUND_EXCEPTION
    files = broker.data_dir / "shuffle"  # made when something is spilled
    assert not files.exists() or os.listdir(files) == []
