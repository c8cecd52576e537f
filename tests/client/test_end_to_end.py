"""Writers and gates over real sockets, against a reference server that is exact about the rules."""

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from broker.client import InputGate, ShuffleWriter
from broker.client.errors import ProducerFailedError
from protocol.shuffle.ids import ResultPartitionID
from tests.client.reference_server import ReferenceServer


@pytest.fixture
def server() -> Iterator[ReferenceServer]:
    with ReferenceServer() as running:
        yield running
    assert running.violations == []


@pytest.fixture
def partition() -> ResultPartitionID:
    return ResultPartitionID.of(os.urandom(16))


def in_thread(function: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=function, name="a user's")
    thread.start()
    return thread


def records(count: int) -> list[bytes]:
    return [b"%d:" % number + b"x" * (number * 37 % 3000) for number in range(count)]


@pytest.mark.parametrize("kind", ["pipelined", "blocking"])
@pytest.mark.parametrize(("credit", "floating"), [(2, 8), (0, 4), (1, 0), (0, 1)])
def test_every_record_arrives_once_and_in_order(
    server: ReferenceServer, partition: ResultPartitionID, kind: str, credit: int, floating: int
) -> None:
    expected = records(3000)

    def write() -> None:
        with ShuffleWriter(server.address, partition, 3, kind) as writer, writer.records() as out:
            out.extend(expected)

    thread = in_thread(write)
    channels = [(server.address, partition, index) for index in range(3)]
    found: list[list[bytes]] = [[], [], []]
    with InputGate(channels, credit=credit, floating_buffers=floating) as gate:
        for channel, record in gate.records_by_channel():
            found[channel].append(record)
    thread.join()
    assert [expected[index::3] for index in range(3)] == found


def test_no_thread_and_no_connection_is_left_behind(server: ReferenceServer, partition: ResultPartitionID) -> None:
    with ShuffleWriter(server.address, partition, 1) as writer, writer.records(flush_interval_ms=1) as out:
        out.write(b"one")
        with InputGate([(server.address, partition, 0)]) as gate:
            assert next(gate.records()) == b"one"
    assert [] == [thread.name for thread in threading.enumerate() if thread.name.startswith("shuffle-")]
    while server.call(lambda: len(server.connections)):
        pass


def test_a_reader_learns_that_the_writer_has_failed(server: ReferenceServer, partition: ResultPartitionID) -> None:
    def write() -> None:
        with pytest.raises(ZeroDivisionError), ShuffleWriter(server.address, partition, 1) as writer:
            writer.push(0, b"before")
            raise ZeroDivisionError("by nothing")

    thread = in_thread(write)
    with InputGate([(server.address, partition, 0)]) as gate:
        found = []
        with pytest.raises(ProducerFailedError, match="ZeroDivisionError: by nothing"):
            found += [bytes(data) for _, data in gate.buffers()]
    thread.join()
