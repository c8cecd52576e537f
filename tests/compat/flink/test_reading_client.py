"""Flink's own network client reads from our broker what our writer has written; one release of each generation.

Everything on the reading side is Flink's: the shuffle environment, SingleInputGate, RemoteInputChannel, the Netty client with its
credit-based handler, the deserializer of spanning records, the decompressor.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from broker.client import Broker, ShuffleWriter
from protocol.shuffle import events
from protocol.shuffle.ids import ResultPartitionID
from tests.compat.flink.flink_reader import FlinkReader, Gate, Sum, record
from tests.compat.flink.jars import RELEASES, missing
from tests.shuffle.harness import new_id
from tests.waiting import wait_for

# As Flink's defaults, but it asks again soon.
SETTINGS: dict[str, object] = {
    "memory.buffers-per-channel": 2,
    "memory.floating-buffers-per-gate": 8,
    "request-backoff.initial": 50,
    "partition-request-timeout": "50 ms",
}
# It gives up after the second time, and not after half a minute.
IMPATIENT = {**SETTINGS, "request-backoff.max": 100}
SHAPES = ("pipelined", "blocking")
END = ["EndOfData", "EndOfPartitionEvent"]
# A buffer with one record.
ONE = (12).to_bytes(4, "big") + record(0, b"data")
KINDS = {"pipelined": "PIPELINED_BOUNDED", "blocking": "BLOCKING"}


@pytest.fixture(scope="module", params=RELEASES)
def jvm(request: pytest.FixtureRequest) -> Iterator[FlinkReader]:
    reason = missing(request.param)
    if reason is not None:
        pytest.skip(reason)
    with FlinkReader(request.param) as reader:
        yield reader


@pytest.fixture(scope="module")
def broker(jvm: FlinkReader) -> Iterator[Broker]:
    listener = f"shuffle://127.0.0.1:0?generation={jvm.release}"
    with Broker(
        listeners=[listener], shuffle_partition_request_timeout_ms=300, shuffle_memory_bytes=8 << 20
    ) as running:
        yield running


@pytest.fixture
def flink(jvm: FlinkReader) -> Iterator[FlinkReader]:
    jvm.configure(SETTINGS)
    yield jvm
    wait_for(lambda: jvm.buffers_in_use == 0, "Flink's buffers are not all free again")


def contents(stream: int, count: int, largest: int) -> list[bytes]:
    drawn = random.Random(stream)
    return [drawn.randbytes(drawn.randrange(largest)) for _ in range(count)]


class Written:
    """A partition with ``contents`` in each of its subpartitions, written by a thread of its own."""

    def __init__(
        self,
        broker: Broker,
        release: str,
        kind: str,
        count: int,
        largest: int,
        *,
        subpartitions: int = 1,
        compression: str | None = None,
        partition: ResultPartitionID | None = None,
        flush_interval_ms: float | None = -1,
        on_open: Callable[[ShuffleWriter], None] = lambda writer: None,
    ) -> None:
        self.id = partition or new_id()
        self.kind = kind
        self.expected = [contents(index, count, largest) for index in range(subpartitions)]
        self.sums = {index: Sum.of(each) for index, each in enumerate(self.expected)}
        self.error: BaseException | None = None
        self._is_there = threading.Event()

        def write() -> None:
            try:
                writer = ShuffleWriter(broker.shuffle_address, self.id, subpartitions, kind, generation=release)
                on_open(writer)
                with writer, writer.records(compression=compression, flush_interval_ms=flush_interval_ms) as out:
                    if kind == "pipelined":
                        self._is_there.set()
                    for number in range(count):
                        for index, each in enumerate(self.expected):
                            out.write_to(index, record(index, each[number]))
            except BaseException as error:
                self.error = error
            finally:
                self._is_there.set()

        self._thread = threading.Thread(target=write)
        self._thread.start()

    def wait(self) -> None:
        """Until it can be read."""
        self._is_there.wait()

    def done(self) -> None:
        self._thread.join()
        assert self.error is None, self.error


@contextmanager
def reading(
    flink: FlinkReader, broker: Broker, *written: Written, first: int = 0, last: int | None = None
) -> Iterator[Gate]:
    for each in written:
        each.wait()
    gate = flink.gate(
        broker.shuffle_address, *(each.id for each in written), first=first, last=last, kind=KINDS[written[0].kind]
    )
    try:
        yield gate
    finally:
        gate.close()
        for each in written:
            each.done()


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize(("count", "largest"), [(0, 1), (1, 10), (2000, 2), (3000, 300), (600, 100_000)])
def test_every_record_comes_once_and_in_order(
    flink: FlinkReader, broker: Broker, kind: str, count: int, largest: int
) -> None:
    written = Written(broker, flink.release, kind, count, largest)
    with reading(flink, broker, written) as gate:
        (channel,), finished, error = gate.read()
    assert ({0: written.sums[0]} if count else {}, END, []) == (channel.streams, channel.events, error)
    assert finished


def test_gates_share_connection_and_borrow_floating_buffers(flink: FlinkReader, broker: Broker) -> None:
    """Slow gates: a backlog builds up, and Flink takes floating buffers for it and gives credit for them."""
    written = [Written(broker, flink.release, "pipelined", 1500, 10_000, subpartitions=3) for _ in range(4)]
    with ExitStack() as stack:
        gates = [stack.enter_context(reading(flink, broker, *written, first=index)) for index in range(3)]
        for gate in gates:
            gate.start(delay_us=300)
        results = [gate.result() for gate in gates]
        assert flink.connections == 1
    for index, (channels, finished, error) in enumerate(results):
        assert [{index: each.sums[index]} for each in written] == [channel.streams for channel in channels]
        assert (True, []) == (finished, error)
        assert any(channel.backlog > 0 for channel in channels)
        assert any(channel.floating > 0 for channel in channels)


@pytest.mark.parametrize("kind", SHAPES)
def test_credit_follows_backlog_without_exclusive_buffers(
    jvm: FlinkReader, flink: FlinkReader, broker: Broker, kind: str
) -> None:
    """An initial credit of 0: nothing comes but BacklogAnnouncements, until Flink has found floating buffers."""
    jvm.configure({**SETTINGS, "memory.buffers-per-channel": 0, "memory.floating-buffers-per-gate": 3})
    written = [Written(broker, flink.release, kind, 500, 20_000) for _ in range(5)]
    with reading(flink, broker, *written) as gate:
        channels, finished, error = gate.read()
    assert [each.sums for each in written] == [channel.streams for channel in channels]
    assert (True, []) == (finished, error)


@pytest.mark.parametrize("kind", SHAPES)
def test_a_range_of_subpartitions(flink: FlinkReader, broker: Broker, kind: str) -> None:
    """Flink 2 asks for them through one channel, as a union; before, it makes a channel for each."""
    written = Written(broker, flink.release, kind, 1000, 5000, subpartitions=6)
    with (
        reading(flink, broker, written) as first,
        reading(flink, broker, written, first=1, last=4) as inner,
        reading(flink, broker, written, first=5) as last,
    ):
        results = [gate.result() for gate in [each.start() for each in (first, inner, last)]]
    assert [(True, [])] * 3 == [(result.finished, result.error) for result in results]
    streams = [channel.streams for result in results for channel in result.channels]
    together = {stream: each for channel in streams for stream, each in channel.items()}
    assert written.sums == together
    assert (3 if flink.release.startswith("2.") else 6) == len(streams)
    # However many subpartitions there are behind a channel, it ends once.
    assert all(channel.events == END for result in results for channel in result.channels)


def test_compressed_partition_larger_than_memory(flink: FlinkReader, broker: Broker) -> None:
    written = Written(broker, flink.release, "blocking", 400, 100, subpartitions=2, compression="lz4")
    large = Written(broker, flink.release, "blocking", 600, 60_000, subpartitions=2, compression="lz4")
    for each in (written, large):
        with reading(flink, broker, each, first=1) as gate:
            (channel,), finished, error = gate.read()
        assert ({1: each.sums[1]}, END, True, []) == (channel.streams, channel.events, finished, error)


def test_blocking_partition_is_read_again_but_not_pipelined(
    jvm: FlinkReader, flink: FlinkReader, broker: Broker
) -> None:
    jvm.configure(IMPATIENT)
    blocking = Written(broker, flink.release, "blocking", 100, 1000)
    pipelined = Written(broker, flink.release, "pipelined", 100, 1000)
    for _ in range(3):
        with reading(flink, broker, blocking) as gate:
            assert blocking.sums == gate.read().channels[0].streams
    with reading(flink, broker, pipelined) as gate:
        assert pipelined.sums == gate.read().channels[0].streams
        with reading(flink, broker, pipelined) as again:
            assert "PartitionNotFoundException" in again.read().error[0]


# -- events -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_ms", [events.NO_TIMEOUT, 60_000])
def test_checkpoint_barriers_hold_channels_until_resumed(flink: FlinkReader, broker: Broker, timeout_ms: int) -> None:
    partitions = [new_id() for _ in range(3)]

    def write(number: int) -> None:
        with (
            ShuffleWriter(broker.shuffle_address, partitions[number], 1, generation=flink.release) as writer,
            writer.records() as out,
        ):
            for checkpoint in range(1, 5):
                for count in range(100 * (number + 1)):  # each at its own speed
                    out.write_to(0, record(0, b"%d" % count))
                out.emit(events.CheckpointBarrier(checkpoint, 0, aligned_timeout_ms=timeout_ms))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    gate = flink.gate(broker.shuffle_address, *partitions, kind=KINDS["pipelined"])
    channels, finished, error = gate.read()
    gate.close()
    for thread in threads:
        thread.join()
    assert (True, []) == (finished, error)
    for number, channel in enumerate(channels):
        barriers = [f"CheckpointBarrier {each} after {100 * (number + 1) * each}" for each in range(1, 5)]
        # Flink announces to itself a barrier that may overtake what is before it.
        assert ["EventAnnouncement"] * 4 * (timeout_ms < events.NO_TIMEOUT) == [
            event for event in channel.events if event == "EventAnnouncement"
        ]
        assert barriers + END == [event for event in channel.events if event != "EventAnnouncement"]


def test_flink_s_upstream_events_reach_the_writer(flink: FlinkReader, broker: Broker) -> None:
    told: list[object] = []
    partition = new_id()
    writer = ShuffleWriter(broker.shuffle_address, partition, 1, generation=flink.release)
    writer.on_task_event = lambda event, subpartition: told.append((event.class_name, subpartition))  # type: ignore[union-attr]
    writer.on_buffer_size = lambda subpartition, size: told.append((subpartition, size))
    writer.on_all_processed = lambda subpartition: told.append(("processed", subpartition))
    with writer:
        writer.push(0, ONE)
        gate = flink.gate(broker.shuffle_address, partition, kind=KINDS["pipelined"]).start()
        wait_for(lambda: gate.buffers == 1)
        gate.send_task_event()
        gate.announce_buffer_size(4096)
        wait_for(lambda: len(told) == 2)
        writer.push_event(events.EndOfData())
        wait_for(lambda: len(told) == 3)
        writer.push_event(events.EndOfPartition())
        writer.commit()
        assert END == gate.result().channels[0].events
    gate.close()
    assert [("org.apache.flink.runtime.iterative.event.TerminationEvent", -1), (0, 4096), ("processed", 0)] == told


# -- what goes wrong ----------------------------------------------------------------------------------------------------


def test_missing_partition_fails_only_its_gate(jvm: FlinkReader, flink: FlinkReader, broker: Broker) -> None:
    jvm.configure(IMPATIENT)
    written = Written(broker, flink.release, "pipelined", 3000, 3000)
    missing = flink.gate(broker.shuffle_address, unknown := new_id(), kind=KINDS["pipelined"])
    with reading(flink, broker, written) as gate:
        gate.start(delay_us=200)
        error = missing.read().error
        assert error[0].startswith("PartitionNotFoundException") and str(unknown) in error[0]
        missing.close()
        (channel,), finished, error = gate.result()
    assert (written.sums, True, []) == (channel.streams, finished, error)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("late_s", [0.1, 0.45])
def test_a_partition_that_comes_late_is_waited_for(
    flink: FlinkReader, broker: Broker, kind: str, late_s: float
) -> None:
    """Within the broker's patience of 0.3 s, and within that of Flink, which asks again."""
    partition = new_id()
    gate = flink.gate(broker.shuffle_address, partition, kind=KINDS[kind]).start()
    time.sleep(late_s)
    written = Written(broker, flink.release, kind, 50, 1000, partition=partition)
    (channel,), finished, error = gate.result()
    gate.close()
    written.done()
    assert (written.sums, True, []) == (channel.streams, finished, error)


@pytest.mark.parametrize("kind", SHAPES)
def test_failing_producer_fails_only_its_gate(flink: FlinkReader, broker: Broker, kind: str) -> None:
    healthy = Written(broker, flink.release, "pipelined", 3000, 3000)
    partition = new_id()
    with reading(flink, broker, healthy) as good:
        good.start(delay_us=200)
        writer = ShuffleWriter(broker.shuffle_address, partition, 1, kind, generation=flink.release)
        with writer:
            writer.push(0, ONE)
            gate = flink.gate(broker.shuffle_address, partition, kind=KINDS[kind]).start()
            if kind == "pipelined":
                wait_for(lambda: gate.buffers == 1)
            writer.fail("out of luck")
        result = gate.result()
        gate.close()
        assert [1 if kind == "pipelined" else 0] == [channel.buffers for channel in result.channels]
        assert "RemoteTransportException: Error at remote task manager" in result.error[0]
        assert result.error[-1] == "ProducerFailedException: out of luck"
        assert healthy.sums == good.result().channels[0].streams


@pytest.mark.parametrize("kind", SHAPES)
def test_cancelled_gate_leaves_others_alone(flink: FlinkReader, broker: Broker, kind: str) -> None:
    written = Written(broker, flink.release, kind, 3000, 10_000, subpartitions=2)
    with reading(flink, broker, written, first=1) as stays:
        stays.start(delay_us=200)
        cancelled = flink.gate(broker.shuffle_address, written.id, kind=KINDS[kind])
        result = cancelled.start(most=20).result()
        assert (20, False, []) == (result.channels[0].buffers, result.finished, result.error)
        cancelled.close()
        assert 1 == flink.connections
        assert {1: written.sums[1]} == stays.result().channels[0].streams
    if kind == "blocking":
        with reading(flink, broker, written) as again:
            assert {0: written.sums[0]} == again.read().channels[0].streams


def test_a_broker_that_goes_fails_every_gate(jvm: FlinkReader, flink: FlinkReader) -> None:
    with Broker(listeners=[f"shuffle://127.0.0.1:0?generation={jvm.release}"]) as doomed:
        writer = ShuffleWriter(doomed.shuffle_address, new_id(), 2, generation=jvm.release, reconnect_timeout=0)
        writer.open()
        gates = [
            flink.gate(doomed.shuffle_address, writer.partition, first=index, kind=KINDS["pipelined"]).start()
            for index in range(2)
        ]
        for index in range(2):
            writer.push(index, ONE)
        wait_for(lambda: [1, 1] == [gate.buffers for gate in gates])
    for gate in gates:
        result = gate.result()
        assert 1 == result.channels[0].buffers
        assert result.error[0].startswith("RemoteTransportException: ")
        assert "remote task manager" in result.error[0] or "Lost connection to task manager" in result.error[0]
        gate.close()
    writer.close()
