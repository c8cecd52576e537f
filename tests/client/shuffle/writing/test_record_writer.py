"""Records into buffers."""

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client import InputGate, LocalExchange, RecordWriter, ShuffleWriter, broadcast, custom
from broker.client.shuffle.errors import LocalTransportError, ShuffleClosedError
from broker.client.shuffle.local_exchange import LocalWriter
from broker.client.shuffle.writing.flusher import Flusher
from broker.runtime.clock import SystemClock
from protocol.shuffle import events
from protocol.shuffle.data_type import DataType
from protocol.shuffle.ids import Generation, ResultPartitionID
from protocol.shuffle.writer_frames import PartitionType
from tests.client.shuffle.reference_server import ReferenceServer
from tests.waiting import wait_for

PARTITION = ResultPartitionID.of(b"records of a set")


@pytest.fixture
def exchange() -> LocalExchange:
    return LocalExchange()


@pytest.fixture
def writer(exchange: LocalExchange) -> Iterator[LocalWriter]:
    with exchange.writer(PARTITION, 2, "blocking") as writer:
        yield writer


def buffers(writer: LocalWriter, subpartition: int = 0) -> list[tuple[DataType, bytes]]:
    return [(entry.data_type, entry.payload) for entry in writer._partition.stored[subpartition]]


def test_full_buffers_are_cut_with_their_types(writer: LocalWriter) -> None:
    with writer.records(custom(lambda _value, _count: 0), buffer_size=8) as out:
        out.write(b"abcd")
        out.write(b"efghij")
        out.write(b"k")
    expected = [
        (DataType.DATA_BUFFER_WITH_CLEAR_END, b"\0\0\0\4abcd"),
        (DataType.DATA_BUFFER, b"\0\0\0\6efgh"),
        (DataType.DATA_BUFFER_WITH_CLEAR_END, b"ij\0\0\0\1k"),
    ]
    assert expected == buffers(writer)


def test_old_releases_get_only_known_types(exchange: LocalExchange) -> None:
    with exchange.writer(PARTITION, 1, "blocking", generation=Generation.V1_16) as writer:
        with writer.records() as out:
            out.write(b"abcd")
        assert [DataType.DATA_BUFFER] == [data_type for data_type, _ in buffers(writer)]


@given(st.lists(st.tuples(st.integers(0, 1), st.binary(max_size=40)), max_size=60), st.integers(1, 50), st.booleans())
def test_written_records_are_read(records: list[tuple[int, bytes]], size: int, compressed: bool) -> None:
    exchange = LocalExchange()
    with (
        exchange.writer(PARTITION, 2, "blocking") as writer,
        writer.records(
            custom(lambda value, _count: value[0]),
            serializer=lambda value: value[1],
            buffer_size=size,
            compression="lz4" if compressed else None,
        ) as out,
    ):
        out.extend(records)
    received: list[list[bytes]] = [[], []]
    with InputGate([(exchange, PARTITION, 0), (exchange, PARTITION, 1)]) as gate:
        for channel, record in gate.records_by_channel():
            received[channel].append(record)
    assert [[record for index, record in records if index == channel] for channel in (0, 1)] == received


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_blocking_partitions_may_be_compressed(
    server: ReferenceServer, partition: ResultPartitionID, codec: str
) -> None:
    expected = [b"word " * 1000] * 50
    with ShuffleWriter(server.address, partition, 1, "blocking") as writer, writer.records(compression=codec) as out:
        out.extend(expected)
    size = server.call(lambda: sum(len(entry[2]) for entry in server.partitions[partition].subpartitions[0]))
    assert size < sum(map(len, expected)) / 10
    with InputGate([(server.address, partition, 0)], codec=codec) as gate:
        assert expected == list(gate.records())


def test_pipelined_partitions_are_not_compressed(exchange: LocalExchange) -> None:
    with pytest.raises(ValueError, match="only blocking"):
        RecordWriter(exchange.writer(PARTITION, 1), compression="lz4")


def test_broadcast_goes_to_all(writer: LocalWriter) -> None:
    with writer.records(broadcast()) as out:
        out.write(b"all")
    assert buffers(writer, 0) == buffers(writer, 1) != []


def test_waiting_record_is_flushed_in_time(server: ReferenceServer, partition: ResultPartitionID) -> None:
    with (
        ShuffleWriter(server.address, partition, 1) as writer,
        writer.records(flush_interval_ms=1) as out,
        InputGate([(server.address, partition, 0)]) as gate,
    ):
        out.write(b"now")
        assert next(gate.records()) == b"now"


def test_no_interval_flushes_every_record_at_once(writer: LocalWriter) -> None:
    with writer.records(custom(lambda _value, _count: 0), flush_interval_ms=0) as out:
        out.write(b"a")
        out.write(b"b")
        assert [b"\0\0\0\1a", b"\0\0\0\1b"] == [payload for _, payload in buffers(writer)]


def test_flusher_waits_for_nobody(server: ReferenceServer, partition: ResultPartitionID) -> None:
    """A writer without credit does not keep the flusher from the others."""
    held, free = partition, ResultPartitionID.of(b"free of all that")
    server.credit, server.give_credit = 0, False
    stuck = ShuffleWriter(server.address, held, 1)
    stuck.open()
    server.call(lambda: (setattr(server, "credit", 16), setattr(server, "give_credit", True)))
    out = stuck.records(flush_interval_ms=1)
    out.write(b"held back")
    with (
        ShuffleWriter(server.address, free, 1) as writer,
        writer.records(flush_interval_ms=1) as quick,
        InputGate([(server.address, free, 0)]) as gate,
    ):
        quick.write(b"through")
        assert next(gate.records()) == b"through"
    out.close(discard=True)
    stuck.close()


def test_events_come_behind_the_records_before_them(writer: LocalWriter) -> None:
    with writer.records(custom(lambda _value, _count: 0)) as out:
        out.write(b"before")
        out.emit(events.CheckpointBarrier(1, 0))
        out.write(b"after")
    types = [data_type for data_type, _ in buffers(writer)]
    assert types == [
        DataType.DATA_BUFFER_WITH_CLEAR_END,
        DataType.ALIGNED_CHECKPOINT_BARRIER,
        DataType.DATA_BUFFER_WITH_CLEAR_END,
    ]
    assert [DataType.ALIGNED_CHECKPOINT_BARRIER] == [data_type for data_type, _ in buffers(writer, 1)]


def test_readers_that_ask_for_smaller_buffers_get_them(writer: LocalWriter) -> None:
    with writer.records(custom(lambda _value, _count: 0), buffer_size=4096) as out:
        assert writer.on_buffer_size is not None
        writer.on_buffer_size(0, 1024)
        out.write(bytes(2044))
        assert [1024, 1024] == [len(payload) for _, payload in buffers(writer)]
        writer.on_buffer_size(0, 1)
        out.write(bytes(252))
        assert 256 == len(buffers(writer)[-1][1])


def test_exception_discards_unflushed_records(writer: LocalWriter) -> None:
    out = writer.records()
    out.write(b"half a thought")
    with pytest.raises(KeyError), out:
        raise KeyError
    assert [] == buffers(writer)
    with pytest.raises(ShuffleClosedError):
        out.write(b"more")


def test_stream_ending_inside_a_record_is_an_error(exchange: LocalExchange) -> None:
    with exchange.writer(PARTITION, 1, "blocking") as writer:
        writer.push(0, b"\0\0\0\5ab")
    with InputGate([(exchange, PARTITION, 0)]) as gate, pytest.raises(LocalTransportError, match="too early"):
        list(gate.records())


def test_flusher_error_is_reported_to_its_writer_only(exchange: LocalExchange, writer: LocalWriter) -> None:
    class Broken(LocalWriter):
        def has_room(self, subpartition: int, size: int) -> bool:
            raise MemoryError("no room to look for room")

    broken = Broken(exchange.partitions, PARTITION.with_attempt(1), 1, PartitionType.PIPELINED, "2.0", 16)
    out = broken.records(flush_interval_ms=1)
    with broken, writer.records(flush_interval_ms=1) as healthy:
        out.write(b"never")
        wait_for(lambda: out._failed is not None)
        for use in (lambda: out.write(b"more"), lambda: out.write_to(0, b"more"), out.flush, out.close):
            with pytest.raises(MemoryError, match="no room"):
                use()
        healthy.write(b"in time")
        wait_for(lambda: any(writer._partition.stored))
        broken.fail("it is broken")


def test_failing_flusher_tells_all_its_writers() -> None:
    class Unwell(SystemClock):
        def monotonic(self) -> float:
            if told:
                raise OSError("no time")
            return super().monotonic()

    told: list[Exception] = []
    flusher = Flusher(Unwell())
    for _ in range(2):
        flusher.add(lambda: None, 10.0, told.append)
    told.append(OSError())
    with pytest.raises(OSError, match="no time") as raised:
        flusher.step(0)
    flusher.crashed(raised.value)
    assert ["the flusher's thread has failed: OSError('no time')"] * 2 == [str(error) for error in told[1:]]


def test_unused_flusher_ends(exchange: LocalExchange) -> None:
    with exchange.writer(PARTITION, 1) as writer, writer.records(flush_interval_ms=1000):
        assert "shuffle-flusher" in [thread.name for thread in threading.enumerate()]
    assert "shuffle-flusher" not in [thread.name for thread in threading.enumerate()]
