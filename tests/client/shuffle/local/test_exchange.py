"""Partitions that never leave the process."""

import pytest

from broker.client import InputGate, LocalExchange, hash_by_key
from broker.client.shuffle.errors import (
    PartitionExistsError,
    PartitionNotFoundError,
    PartitionReleasedError,
    ProducerFailedError,
    ShuffleClosedError,
    ShuffleTimeoutError,
)
from protocol.shuffle import events
from protocol.shuffle.ids import ResultPartitionID
from tests.client.conftest import InThread


def test_slow_reader_holds_back_its_writer(partition: ResultPartitionID, in_thread: InThread) -> None:
    exchange = LocalExchange(buffers=4)
    highest = 0

    def write() -> None:
        nonlocal highest
        with exchange.writer(partition, 1) as writer:
            for number in range(500):
                writer.push(0, b"%d" % number)
                highest = max(highest, len(writer._partition.stored[0]))

    in_thread(write)
    with InputGate([(exchange, partition, 0)]) as gate:
        assert [b"%d" % number for number in range(500)] == [data for _, data in gate.buffers()]
    assert highest <= 4


def test_records_are_read_while_they_are_written(partition: ResultPartitionID, in_thread: InThread) -> None:
    exchange = LocalExchange()
    words = [f"word {number % 50}".encode() for number in range(5000)]

    def write() -> None:
        with exchange.writer(partition, 3) as writer, writer.records(hash_by_key(bytes)) as out:
            out.extend(words)

    with InputGate([(exchange, partition, index) for index in range(3)]) as gate:
        in_thread(write)
        assert sorted(words) == sorted(gate.records())


def test_blocking_partition_can_be_read_repeatedly(partition: ResultPartitionID) -> None:
    exchange = LocalExchange()
    with exchange.writer(partition, 2, "blocking") as writer:
        writer.push(0, b"a")
        writer.push(1, b"b")
        with InputGate([(exchange, partition, (0, 1))]) as early:
            assert early.poll(0.01) is None
    for _ in range(2):
        with InputGate([(exchange, partition, (0, 1))]) as gate:
            assert {b"a", b"b"} == {data for _, data in gate.buffers()}
    assert exchange.release(partition)
    assert not exchange.release(partition)
    with InputGate([(exchange, partition, 0)], partition_wait=0) as gate, pytest.raises(PartitionNotFoundError):
        gate.poll()


def test_pipelined_partition_is_read_once(partition: ResultPartitionID) -> None:
    exchange = LocalExchange()
    with exchange.writer(partition, 1) as writer:
        writer.push(0, b"a")
        with InputGate([(exchange, partition, 0)]) as gate:
            with (
                InputGate([(exchange, partition, 0)]) as second,
                pytest.raises(PartitionNotFoundError, match="already"),
            ):
                second.poll()
            assert gate.poll() is not None
        for _ in range(100):  # without a reader, pushes do not wait
            writer.push(0, b"b")
    assert 0 == len(exchange.partitions)


def write_and_fail(exchange: LocalExchange, partition: ResultPartitionID) -> None:
    with exchange.writer(partition, 1) as writer:
        writer.push(0, b"before")
        raise ZeroDivisionError("by nothing")


def test_failed_writer_is_reported_to_its_readers(partition: ResultPartitionID) -> None:
    exchange = LocalExchange()
    with InputGate([(exchange, partition, 0)]) as gate:
        with pytest.raises(ZeroDivisionError):
            write_and_fail(exchange, partition)
        item = gate.poll()
        assert item is not None
        assert item.data == b"before"
        with pytest.raises(ProducerFailedError, match="by nothing"):
            gate.poll()
        assert gate.finished


def test_barrier_stops_local_channel_until_resumed(partition: ResultPartitionID) -> None:
    exchange = LocalExchange()
    with exchange.writer(partition, 2, "blocking") as writer:
        writer.push_event(events.CheckpointBarrier(1, 0))
        writer.push(0, b"after")
        writer.push(1, b"after")
    with InputGate([(exchange, partition, 0), (exchange, partition, 1)]) as gate:
        assert [-1, 0, 1] == [item.channel for item in gate if item.is_event is (item.channel == -1)]


def test_early_release_of_blocking_partition_fails_readers(
    partition: ResultPartitionID,
) -> None:
    exchange = LocalExchange()
    writer = exchange.writer(partition, 1, "blocking")
    writer.open()
    writer.push(0, b"a")
    with InputGate([(exchange, partition, 0)]) as gate:
        assert gate.poll(0.01) is None
        exchange.release(partition)
        with pytest.raises(PartitionNotFoundError):
            gate.poll()
        assert gate.finished
    with pytest.raises(PartitionReleasedError):
        writer.push(0, b"b")
    writer.close()


def test_writer_closed_before_the_end_has_failed(partition: ResultPartitionID) -> None:
    exchange = LocalExchange()
    writer = exchange.writer(partition, 1, "blocking")
    writer.close()  # not open yet: no reader is told
    with pytest.raises(ShuffleClosedError, match="not open"):
        writer.push(0, b"a")
    other = exchange.writer(partition, 1, "blocking")
    other.open()
    with InputGate([(exchange, partition, 0)]) as gate:
        other.close()
        with pytest.raises(ProducerFailedError, match="closed before it had finished"):
            gate.poll()
    assert not other.finished


def test_invalid_calls_are_errors(partition: ResultPartitionID) -> None:
    exchange = LocalExchange(buffers=1)
    writer = exchange.writer(partition, 1)
    writer.open()
    with pytest.raises(PartitionExistsError):
        exchange.writer(partition, 1).open()
    writer.push(0, b"a")
    assert not writer.try_push(0, b"b")
    with pytest.raises(ShuffleTimeoutError):
        writer.push(0, b"b", timeout=0.01)
    with InputGate([(exchange, partition, 1)]) as gate, pytest.raises(PartitionNotFoundError, match="1 subpartitions"):
        gate.poll()
    exchange.release(partition)
    with pytest.raises(PartitionReleasedError):
        writer.push(0, b"c")
    writer.close()


def test_pushes_stop_without_room_locally_too(partition: ResultPartitionID) -> None:
    exchange = LocalExchange(buffers=4)
    with exchange.writer(partition, 1) as writer:
        assert writer.push_many(0, [b"x"] * 6, timeout=0.02) == 4
        with pytest.raises(ShuffleTimeoutError):
            writer.push_many(0, [b"x"], timeout=0.02)
        writer.fail("enough")
