"""Writers and gates over real sockets, against a reference server that is exact about the rules."""

import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from broker.client import Broker, InputGate, ShuffleWriter
from broker.client.shuffle.errors import ProducerFailedError
from protocol.shuffle import events
from protocol.shuffle.ids import ResultPartitionID
from tests.client.conftest import InThread
from tests.client.shuffle.reference_server import ReferenceServer


@pytest.fixture(params=["reference", "broker"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """The addresses of the reference server and of the real broker."""
    if request.param == "broker":
        with Broker() as broker:
            yield broker.shuffle_address
    else:
        with ReferenceServer() as server:
            yield server.address
            assert server.violations == []


def records(count: int) -> list[bytes]:
    return [b"%d:" % number + b"x" * (number * 37 % 3000) for number in range(count)]


@pytest.mark.parametrize("kind", ["pipelined", "blocking"])
@pytest.mark.parametrize(("credit", "floating"), [(2, 8), (0, 4), (1, 0), (0, 1)])
def test_every_record_arrives_once_and_in_order(
    address: str, partition: ResultPartitionID, in_thread: InThread, kind: str, credit: int, floating: int
) -> None:
    expected = records(3000)

    def write() -> None:
        with ShuffleWriter(address, partition, 3, kind) as writer, writer.records() as out:
            out.extend(expected)

    in_thread(write)
    channels = [(address, partition, index) for index in range(3)]
    received: list[list[bytes]] = [[], [], []]
    with InputGate(channels, credit=credit, floating_buffers=floating) as gate:
        for channel, record in gate.records_by_channel():
            received[channel].append(record)
    assert [expected[index::3] for index in range(3)] == received


def test_writer_learns_when_readers_have_processed_everything(
    address: str, partition: ResultPartitionID, in_thread: InThread
) -> None:
    """As a task of Flink: EndOfData, wait, EndOfPartition."""
    processed: SimpleQueue[int] = SimpleQueue()
    writer = ShuffleWriter(address, partition, 2)
    writer.on_all_processed = processed.put
    channels = [(address, partition, index) for index in range(2)]
    with writer, InputGate(channels) as gate:
        writer.push(0, b"data")
        writer.push_event(events.EndOfData())
        reading = in_thread(lambda: list(gate))
        assert [0, 1] == sorted(processed.get(timeout=20) for _ in range(2))
        writer.push_event(events.EndOfPartition())
        writer.commit()
        reading.join()


def test_no_thread_is_left(address: str, partition: ResultPartitionID) -> None:
    with InputGate([(address, partition, 0)]) as gate:
        with ShuffleWriter(address, partition, 1) as writer, writer.records(flush_interval_ms=1) as out:
            out.write(b"one")
        assert list(gate.records()) == [b"one"]
    assert [] == [thread.name for thread in threading.enumerate() if thread.name.startswith("shuffle-")]


def test_reader_learns_of_a_failed_writer(address: str, partition: ResultPartitionID) -> None:
    def write() -> None:
        with ShuffleWriter(address, partition, 1) as writer:
            writer.push(0, b"before")
            raise ZeroDivisionError("by nothing")

    with InputGate([(address, partition, 0)]) as gate:
        with pytest.raises(ZeroDivisionError):
            write()
        with pytest.raises(ProducerFailedError, match="ZeroDivisionError: by nothing"):
            list(gate.buffers())


def test_cancelled_readers_make_a_writer_discard(partition: ResultPartitionID) -> None:
    """As a task of Flink, which is not told. On our broker: the reference server does not release."""
    with Broker() as broker, ShuffleWriter(broker.shuffle_address, partition, 2) as writer:
        for index in range(2):
            writer.push(index, b"data")
        assert not writer.discards
        with InputGate([(broker.shuffle_address, partition, index) for index in range(2)]) as gate:
            gate.poll()  # the other channel may not even have been requested
        while not writer.discards:
            writer.push(0, b"for nobody")
        assert writer.try_push(1, bytes(32768)) and writer.has_room(1, 32768)
