"""Our gate reads from Flink's own NettyServer."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.client import BufferOrEvent, InputGate
from broker.client.shuffle.errors import PartitionNotFoundError, ProducerFailedError, RemoteTransportError
from protocol.shuffle import events
from protocol.shuffle.ids import ResultPartitionID
from tests.compat.flink import jars

RELEASE = "2.3.0"
SOURCE = Path(__file__).parent / "java" / "ServeRecords.java"
MAIN = "org.apache.flink.runtime.io.network.partition.ServeRecords"

pytestmark = pytest.mark.skipif(jars.missing(RELEASE) is not None, reason=str(jars.missing(RELEASE)))


class Flink:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        assert process.stdout is not None
        port, partition = process.stdout.readline().split()
        self.address = f"127.0.0.1:{port}"
        self.partition = ResultPartitionID.from_hex(partition)

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def flink(subpartitions: int, records: int, largest: int, every: int = 0, end: str = "finish") -> Iterator[Flink]:
    arguments = [str(number) for number in (subpartitions, records, largest, every)]
    command = ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", jars.classpath(RELEASE, SOURCE), MAIN]
    with subprocess.Popen(
        [*command, *arguments, end],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
    ) as process:
        try:
            yield Flink(process)
        finally:
            process.kill()  # it may wait for somebody to read


def expected(records: int, largest: int) -> list[bytes]:
    return [bytes([number % 256]) * (number * 37 % largest) for number in range(records)]


@pytest.mark.parametrize(("credit", "floating"), [(2, 8), (0, 8), (1, 0)])
def test_flink_task_s_records_arrive_in_order(credit: int, floating: int) -> None:
    with flink(4, 4000, 20_000) as server:
        records: list[list[bytes]] = [[], [], [], []]
        channels = [(server.address, server.partition, index) for index in range(4)]
        with InputGate(channels, credit=credit, floating_buffers=floating) as gate:
            for channel, record in gate.records_by_channel():
                records[channel].append(record)
        assert [expected(4000, 20_000)[index::4] for index in range(4)] == records
        assert server.said() == "processed"


def test_barriers_of_flink_are_aligned() -> None:
    with flink(3, 3000, 2000, every=500) as server:
        records = 0
        at: list[tuple[int, int]] = []

        def on_event(item: BufferOrEvent) -> None:
            if isinstance(item.event, events.CheckpointBarrier):
                at.append((item.event.checkpoint_id, records))

        with InputGate([(server.address, server.partition, index) for index in range(3)]) as gate:
            for _ in gate.records(on_event):
                records += 1
        assert [(number, 500 * number) for number in range(1, 7)] == at
        assert records == 3000


def test_partition_missing_in_flink_is_not_found() -> None:
    with flink(1, 0, 1) as server:
        unknown = server.partition.with_attempt(99)
        with (
            InputGate([(server.address, unknown, 0)], partition_wait=0.5) as gate,
            pytest.raises(PartitionNotFoundError, match="not found"),
        ):
            gate.poll()


def test_a_failed_flink_task_fails_its_channel() -> None:
    with flink(1, 10, 100, end="fail") as server, InputGate([(server.address, server.partition, 0)]) as gate:
        with pytest.raises((ProducerFailedError, PartitionNotFoundError, RemoteTransportError)):
            list(gate)
        assert gate.finished
