"""A gate's handling of servers' messages, valid and invalid."""

import threading
from collections.abc import Callable

import pytest

from broker.client import InputGate, ShuffleWriter, UnionInputGate
from broker.client.shuffle.errors import (
    BufferReorderingError,
    ConnectionFailedError,
    LocalTransportError,
    NoBufferError,
    PartitionNotFoundError,
    RemoteTransportError,
    ShuffleClosedError,
)
from broker.client.shuffle.reading.buffer_or_event import BufferRun
from broker.client.shuffle.reading.credit import FLOATING
from broker.client.shuffle.reading.input_channel import ChannelState
from broker.client.shuffle.reading.remote_input_channel import RemoteInputChannel
from protocol.shuffle import errors, events
from protocol.shuffle.buffer_response import header
from protocol.shuffle.compression import Codec, compress
from protocol.shuffle.data_type import DataType
from protocol.shuffle.ids import Generation, ResultPartitionID
from protocol.shuffle.messages import (
    AckAllUserRecordsProcessed,
    AddCredit,
    CancelPartitionRequest,
    CloseRequest,
    NewBufferSize,
    PartitionRequest,
    ResumeConsumption,
)
from tests.client.conftest import InThread
from tests.client.shuffle.reference_server import Connection, ReferenceServer
from tests.waiting import wait_for

OTHER = ResultPartitionID.of(b"another set.....")
END = events.encode(events.EndOfPartition())
DATA_END = events.encode(events.EndOfData())


def script(server: ReferenceServer, *answers: Callable[[Connection, bytes], None]) -> None:
    """The n-th request is answered by the n-th of these, with its receiver id; later requests are not answered."""
    left = list(answers)

    def on_request(connection: Connection, request: PartitionRequest) -> None:
        if left:
            left.pop(0)(connection, request.receiver)

    server.on_request = on_request


def end(connection: Connection, receiver: bytes, sequence: int) -> None:
    connection.buffer(receiver, sequence, DATA_END, DataType.END_OF_DATA)
    connection.buffer(receiver, sequence + 1, END, DataType.END_OF_PARTITION)


def test_gate_closed_before_its_request_cancels_too(
    server: ReferenceServer, partition: ResultPartitionID, in_thread: InThread
) -> None:
    """Otherwise chance would decide whether its writer learns of that, or waits for a reader for ever."""
    with InputGate([(server.address, partition, 0)]) as other:  # has the connection that both use
        wait_for(lambda: any(isinstance(message, PartitionRequest) for message in server.received))
        goes_on = threading.Event()
        other.loop.call(goes_on.wait)
        gate = InputGate([(server.address, partition, 1)])
        channel = gate._channels[0]
        assert isinstance(channel, RemoteInputChannel)
        in_thread(gate.close)
        wait_for(lambda: channel._state is ChannelState.RELEASED)
        goes_on.set()
        wait_for(lambda: CancelPartitionRequest(channel.receiver) in server.received)
        (request,) = [
            message
            for message in server.received
            if isinstance(message, PartitionRequest) and message.receiver == channel.receiver
        ]
        assert request.subpartitions == (1, 1)


def test_wrong_number_fails_only_its_channel(server: ReferenceServer, partition: ResultPartitionID) -> None:
    def bad(connection: Connection, receiver: bytes) -> None:
        connection.buffer(receiver, 0, b"first")
        connection.buffer(receiver, 2, b"third")

    def good(connection: Connection, receiver: bytes) -> None:
        connection.buffer(receiver, 0, b"fine")
        end(connection, receiver, 1)

    script(server, bad, good)
    received: list[tuple[int, bytes]] = []
    failures: list[BufferReorderingError] = []
    with InputGate([(server.address, partition, 0), (server.address, OTHER, 0)]) as gate:
        while not gate.finished:
            try:
                for channel, data in gate.buffers():
                    received.append((channel, bytes(data)))
            except BufferReorderingError as error:
                failures.append(error)
        wait_for(lambda: any(isinstance(message, CancelPartitionRequest) for message in server.received))
    assert [(0, b"first"), (1, b"fine")] == sorted(received)
    assert [(1, 2, 0)] == [(error.expected, error.actual, error.channel) for error in failures]  # type: ignore[attr-defined]


def test_data_beyond_the_credit_fails_its_channel(server: ReferenceServer, partition: ResultPartitionID) -> None:
    def greedy(connection: Connection, receiver: bytes) -> None:
        for sequence in range(3):
            connection.buffer(receiver, sequence, b"x")

    script(server, greedy)
    with InputGate([(server.address, partition, 0)], credit=2, floating_buffers=0) as gate:
        for _ in range(2):
            item = gate.poll()
            assert item is not None
            item.hold()
        with pytest.raises(NoBufferError):
            gate.poll()


def test_error_for_a_receiver_spares_the_others(server: ReferenceServer, partition: ResultPartitionID) -> None:
    script(
        server,
        lambda connection, receiver: connection.send(
            errors.encode_error(errors.IO_EXCEPTION, "disk on fire", receiver)
        ),
        lambda connection, receiver: end(connection, receiver, 0),
    )
    with InputGate([(server.address, partition, 0), (server.address, OTHER, 0)]) as gate:
        with pytest.raises(RemoteTransportError, match="disk on fire") as raised:
            list(gate)
        assert raised.value.class_name == "java.io.IOException"
        list(gate)
        assert gate.finished


def test_fatal_error_fails_all_channels(server: ReferenceServer, partition: ResultPartitionID) -> None:
    script(
        server,
        lambda _connection, _receiver: None,
        lambda connection, _receiver: connection.send(errors.encode_error(errors.IO_EXCEPTION, "all is lost", None)),
    )
    with InputGate([(server.address, partition, 0), (server.address, OTHER, 0)]) as gate:
        for _ in range(2):
            with pytest.raises(RemoteTransportError, match="all is lost"):
                gate.poll()
        assert gate.finished


def test_closed_connection_is_reported_to_every_channel(server: ReferenceServer, partition: ResultPartitionID) -> None:
    script(server, lambda _connection, _receiver: None, lambda connection, _receiver: connection.cut())
    with InputGate([(server.address, partition, 0), (server.address, OTHER, 0)]) as gate:
        for _ in range(2):
            with pytest.raises(RemoteTransportError):
                gate.poll()
        assert gate.finished


@pytest.mark.parametrize("garbage", [b"\0\0\0\x09\xba\xdc\x0f\xfe\x63", b"HTTP/1.1 400 Bad Request\r\n", bytes(100)])
def test_unreadable_message_fails_the_connection(
    server: ReferenceServer, partition: ResultPartitionID, garbage: bytes
) -> None:
    script(server, lambda connection, _receiver: connection.send(garbage))
    with (
        InputGate([(server.address, partition, 0)]) as gate,
        pytest.raises(LocalTransportError, match="cannot be read"),
    ):
        gate.poll()


def test_too_large_buffer_fails_the_connection(server: ReferenceServer, partition: ResultPartitionID) -> None:
    script(server, lambda connection, receiver: connection.buffer(receiver, 0, bytes(4097)))
    with (
        InputGate([(server.address, partition, 0)], buffer_size=4096) as gate,
        pytest.raises(LocalTransportError, match="4097"),
    ):
        gate.poll()


def test_buffer_for_unknown_receiver_is_cancelled(server: ReferenceServer, partition: ResultPartitionID) -> None:
    stranger = b"s" * 16

    def answer(connection: Connection, receiver: bytes) -> None:
        connection.buffer(stranger, 7, b"x")
        end(connection, receiver, 0)

    script(server, answer)
    with InputGate([(server.address, partition, 0)]) as gate:
        assert len(list(gate)) == 2
        wait_for(lambda: CancelPartitionRequest(stranger) in server.received)


def test_late_partition_is_asked_for_again(
    server: ReferenceServer, partition: ResultPartitionID, in_thread: InThread
) -> None:
    asked: list[bytes] = []

    def late(connection: Connection, request: PartitionRequest) -> None:
        asked.append(request.receiver)
        if len(asked) < 3:
            connection.send(errors.partition_not_found(request.partition, request.receiver))
        else:
            end(connection, request.receiver, 0)

    server.on_request = late
    with InputGate([(server.address, partition, 0)]) as gate:
        assert [events.EndOfData(), events.EndOfPartition()] == [item.event for item in gate]
    assert 1 == len(set(asked))


def test_absent_partition_is_an_error(server: ReferenceServer, partition: ResultPartitionID) -> None:
    with (
        InputGate([(server.address, partition, 0)], partition_wait=0) as gate,
        pytest.raises(PartitionNotFoundError, match="not found"),
    ):
        gate.poll()


def test_missing_peer_is_an_error(partition: ResultPartitionID) -> None:
    with InputGate([("127.0.0.1:1", partition, 0)]) as gate, pytest.raises(ConnectionFailedError, match="refused"):
        gate.poll()


def test_all_channels_and_gates_share_one_connection(server: ReferenceServer, partition: ResultPartitionID) -> None:
    channels = [(server.address, partition, index) for index in range(20)]
    with InputGate(channels), InputGate(channels):
        wait_for(lambda: sum(isinstance(message, PartitionRequest) for message in server.received) == 40)
        assert 1 == server.call(lambda: len(server.connections))
    wait_for(lambda: server.call(lambda: len(server.connections)) == 0)
    assert isinstance(server.received[-1], CloseRequest)


def test_slices_of_packed_frame_share_one_credit(server: ReferenceServer, partition: ResultPartitionID) -> None:
    def packed(connection: Connection, receiver: bytes) -> None:
        connection.buffer(receiver, 0, b"onetwothree", partial_sizes=(3, 3, 5), subpartition=-1, backlog=1)
        connection.buffer(receiver, 3, b"four")

    script(server, packed)
    with InputGate([(server.address, partition, 0)], credit=2, floating_buffers=0) as gate:
        items = [gate.poll() for _ in range(4)]
        assert [b"one", b"two", b"three", b"four"] == [bytes(item.data or b"") for item in items if item]
        assert gate.poll(0) is None
        gate.announce_buffer_size(1)  # all credit is sent before it
        wait_for(lambda: any(isinstance(message, NewBufferSize) for message in server.received))
        given = [message.credit for message in server.received if isinstance(message, AddCredit)]
        assert sum(given) == 2


def test_empty_buffer_returns_its_credit_at_once(server: ReferenceServer, partition: ResultPartitionID) -> None:
    script(server, lambda connection, receiver: connection.buffer(receiver, 0, b""))
    with InputGate([(server.address, partition, 0)], floating_buffers=0) as gate:
        receiver = gate._channels[0].receiver  # type: ignore[attr-defined]
        wait_for(lambda: AddCredit(receiver, 1) in server.received)
        assert gate.poll(0) is None


def test_credit_returns_when_a_buffer_is_released(server: ReferenceServer, partition: ResultPartitionID) -> None:
    script(server, lambda connection, receiver: connection.buffer(receiver, 0, b"x"))
    with InputGate([(server.address, partition, 0)], floating_buffers=0) as gate:
        item = gate.poll()
        assert item is not None
        item.hold()
        assert gate.poll(0.02) is None
        assert not any(isinstance(message, AddCredit) for message in server.received)
        item.recycle()
        wait_for(lambda: any(isinstance(message, AddCredit) for message in server.received))


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_compressed_buffers_are_restored(server: ReferenceServer, partition: ResultPartitionID, codec: Codec) -> None:
    block = compress(codec, b"abc" * 1000)
    assert block is not None

    def answer(connection: Connection, receiver: bytes) -> None:
        connection.buffer(receiver, 0, block, compressed=True)
        connection.buffer(receiver, 1, block[:-1], compressed=True)

    script(server, answer)
    with InputGate([(server.address, partition, 0)], codec=codec.value.lower()) as gate:
        item = gate.poll()
        assert item is not None
        assert item.data == b"abc" * 1000
        with pytest.raises(LocalTransportError, match="channel 0"):
            gate.poll()


def test_priority_events_overtake_data(server: ReferenceServer, partition: ResultPartitionID) -> None:
    cancel = events.encode(events.CancelCheckpointMarker(1))

    def answer(connection: Connection, receiver: bytes) -> None:
        connection.buffer(receiver, 0, b"data")
        connection.buffer(receiver, 1, cancel, DataType.PRIORITIZED_EVENT_BUFFER)

    script(server, answer)
    with InputGate([(server.address, partition, 0)]) as gate:
        wait_for(gate._channels[0].has_priority)
        assert [events.CancelCheckpointMarker(1), None] == [item.event for item in (gate.poll(), gate.poll()) if item]


def test_range_shows_only_the_last_end(server: ReferenceServer, partition: ResultPartitionID) -> None:
    with ShuffleWriter(server.address, partition, 3, "blocking") as writer, writer.records() as out:
        for number in range(30):
            out.write(b"%d" % number * 5000)
    with InputGate([(server.address, partition, (0, 2))]) as gate:
        seen: list[events.Event | None] = []
        received = sorted(gate.records(lambda item: seen.append(item.event)), key=lambda record: (len(record), record))
    assert sorted((b"%d" % number * 5000 for number in range(30)), key=lambda record: (len(record), record)) == received
    assert [events.EndOfData(), events.EndOfPartition()] == seen


def barriers(connection: Connection, receiver: bytes, number: int, sequence: int) -> None:
    barrier = events.encode(events.CheckpointBarrier(number, 0))
    connection.buffer(receiver, sequence, barrier + bytes(4), DataType.ALIGNED_CHECKPOINT_BARRIER)


def test_barrier_on_all_channels_resumes_them(server: ReferenceServer, partition: ResultPartitionID) -> None:
    lines: dict[bytes, Connection] = {}

    def on_request(connection: Connection, request: PartitionRequest) -> None:
        lines[request.receiver] = connection
        if len(lines) == 2:
            first, second = lines
            barriers(connection, first, 1, 0)
            connection.buffer(second, 0, b"before")
            barriers(connection, second, 1, 1)

    server.on_request = on_request
    with InputGate([(server.address, partition, 0), (server.address, OTHER, 0)]) as gate:
        reader = gate.aligned()
        item = reader.poll()
        assert item is not None and item.data == b"before"
        item = reader.poll()
        assert item is not None and item.event == events.CheckpointBarrier(1, 0) and item.channel == -1
        assert not any(isinstance(message, ResumeConsumption) for message in server.received)
        assert reader.poll(0.01) is None
        wait_for(lambda: {ResumeConsumption(receiver) for receiver in lines} <= set(server.received))


def test_data_behind_a_barrier_waits_for_the_snapshot(server: ReferenceServer, partition: ResultPartitionID) -> None:
    """Not even from a sender that does not wait."""
    lines: list[tuple[Connection, bytes]] = []

    def impatient(connection: Connection, receiver: bytes) -> None:
        barriers(connection, receiver, 1, 0)
        connection.buffer(receiver, 1, b"behind")

    script(server, impatient, lambda connection, receiver: lines.append((connection, receiver)))
    with InputGate([(server.address, partition, 0), (server.address, OTHER, 0)]) as gate:
        reader = gate.aligned()
        assert reader.poll(0.05) is None
        wait_for(gate._channels[0].has_next)
        assert reader.poll(0) is None
        server.call(lambda: barriers(*lines[0], 1, 0))
        items = [reader.poll(), reader.poll()]
        assert [events.CheckpointBarrier(1, 0), None] == [item.event for item in items if item]
        assert [None, b"behind"] == [item.data for item in items if item]


def test_cancelled_checkpoint_resumes_the_channels(server: ReferenceServer, partition: ResultPartitionID) -> None:
    def first(connection: Connection, receiver: bytes) -> None:
        barriers(connection, receiver, 1, 0)

    def second(connection: Connection, receiver: bytes) -> None:
        connection.buffer(receiver, 0, events.encode(events.CancelCheckpointMarker(1)), DataType.EVENT_BUFFER)

    script(server, first, second)
    with InputGate([(server.address, partition, 0), (server.address, OTHER, 0)]) as gate:
        reader = gate.aligned()
        item = reader.poll()
        assert item is not None and item.event == events.CancelCheckpointMarker(1)
        assert reader.poll(0.01) is None
        wait_for(lambda: any(isinstance(message, ResumeConsumption) for message in server.received))


def test_producer_learns_when_all_records_are_processed(server: ReferenceServer, partition: ResultPartitionID) -> None:
    script(server, lambda connection, receiver: connection.buffer(receiver, 0, DATA_END, DataType.END_OF_DATA))
    with InputGate([(server.address, partition, 0)]) as gate:
        item = gate.poll()
        assert item is not None and item.event == events.EndOfData()
        assert not any(isinstance(message, AckAllUserRecordsProcessed) for message in server.received)
        assert gate.poll(0.01) is None
        wait_for(lambda: any(isinstance(message, AckAllUserRecordsProcessed) for message in server.received))


def test_union_reads_several_gates_as_one(server: ReferenceServer, partition: ResultPartitionID) -> None:
    for number, written in enumerate((partition, OTHER)):
        with ShuffleWriter(server.address, written, 2, "blocking") as writer, writer.records() as out:
            out.write(b"%d.0" % number)
            out.write(b"%d.1" % number)
    gates = [
        InputGate([(server.address, partition, 0), (server.address, partition, 1)]),
        InputGate([(server.address, OTHER, 0), (server.address, OTHER, 1)]),
    ]
    with UnionInputGate(gates) as union:
        received = sorted(union.records_by_channel())
        assert union.finished
    assert [(0, b"0.0"), (1, b"0.1"), (2, b"1.0"), (3, b"1.1")] == received


def test_union_aligns_barriers_over_all_its_gates(server: ReferenceServer, partition: ResultPartitionID) -> None:
    script(server, *[lambda connection, receiver: barriers(connection, receiver, 5, 0)] * 2)
    gates = [InputGate([(server.address, partition, 0)]), InputGate([(server.address, OTHER, 0)])]
    with UnionInputGate(gates) as union:
        item = union.aligned().poll()
        assert item is not None and item.event == events.CheckpointBarrier(5, 0)


def test_close_wakes_a_waiting_reader(
    server: ReferenceServer, partition: ResultPartitionID, in_thread: InThread
) -> None:
    gate = InputGate([(server.address, partition, 0)])
    waiting = threading.Event()

    def read() -> None:
        waiting.set()
        with pytest.raises(ShuffleClosedError):
            gate.poll()

    thread = in_thread(read)
    waiting.wait()
    gate.close()
    gate.close()
    thread.join(10)
    assert not thread.is_alive()


def test_buffer_sizes_are_asked_for(server: ReferenceServer, partition: ResultPartitionID) -> None:
    with InputGate([(server.address, partition, 0)]) as gate:
        receiver = gate._channels[0].receiver  # type: ignore[attr-defined]
        wait_for(lambda: any(isinstance(message, PartitionRequest) for message in server.received))
        gate.announce_buffer_size(4096)
        wait_for(lambda: NewBufferSize(receiver, 4096) in server.received)


@pytest.mark.parametrize("generation", [Generation.V1_16, Generation.V1_19])
def test_older_flinks_are_understood(partition: ResultPartitionID, generation: Generation) -> None:
    with ReferenceServer(generation=generation) as server:
        with (
            ShuffleWriter(server.address, partition, 1, "blocking", generation=generation) as writer,
            writer.records() as out,
        ):
            out.write(b"old")
        with InputGate([(server.address, partition, 0)], generation=generation.value) as gate:
            assert [b"old"] == list(gate.records())


def test_gate_without_buffers_is_refused(partition: ResultPartitionID) -> None:
    with pytest.raises(ValueError, match="needs buffers"):
        InputGate([("h:1", partition, 0)], credit=0, floating_buffers=0)


def together(connection: Connection, receiver: bytes, *payloads: bytes, first: int = 0, backlog: int = 0) -> None:
    """Send data buffers as one piece."""
    connection.send(
        b"".join(
            header(
                Generation.V2_0, receiver, 0, number, backlog, DataType.DATA_BUFFER_WITH_CLEAR_END, False, len(payload)
            )
            + payload
            for number, payload in enumerate(payloads, first)
        )
    )


def row_and_end(connection: Connection, receiver: bytes) -> None:
    together(connection, receiver, *ROW)
    end(connection, receiver, len(ROW))


ROW = [b"%d" % number for number in range(10)]


def test_buffers_are_taken_singly_or_as_lists(server: ReferenceServer, partition: ResultPartitionID) -> None:
    for as_lists in (False, True):
        script(server, row_and_end)
        with InputGate([(server.address, partition, 0)], credit=10, floating_buffers=0) as gate:
            if as_lists:
                lists = [list(data) for _, data in gate.buffer_lists()]
                assert all(len(each) <= 5 for each in lists), "half of the credit"
                received = [data for each in lists for data in each]
            else:
                received = [data for _, data in gate.buffers()]
        assert received == ROW


def test_runs_and_single_buffers_may_be_mixed(server: ReferenceServer, partition: ResultPartitionID) -> None:
    script(server, row_and_end)
    with InputGate([(server.address, partition, 0)], credit=10, floating_buffers=2) as gate:
        channel = gate._channels[0]
        wait_for(channel.has_next)
        received, numbers = [], []
        while not gate.finished:
            item = gate.poll_run() if len(received) % 2 else gate.poll()
            assert item is not None
            if isinstance(item, BufferRun):
                received += item.data
                numbers += range(item.sequence, item.sequence + len(item))
                assert list(item.data_types) == [DataType.DATA_BUFFER_WITH_CLEAR_END] * len(item)
            elif item.data is not None:
                received.append(bytes(item.data))
                numbers.append(item.sequence)
        assert received == ROW
        assert numbers == list(range(10))


def test_credit_of_a_run_returns_at_next_poll(server: ReferenceServer, partition: ResultPartitionID) -> None:
    script(server, lambda connection, receiver: together(connection, receiver, *ROW))
    with InputGate([(server.address, partition, 0)], credit=10, floating_buffers=0) as gate:
        got = 0
        while got < 10:
            run = gate.poll_run()
            assert run is not None
            got += len(run) if isinstance(run, BufferRun) else 1
            if isinstance(run, BufferRun):
                run.data.clear()  # it belongs to the user
        assert gate.poll_run(0) is None
        wait_for(lambda: sum(each.credit for each in server.received if isinstance(each, AddCredit)) == 10)


def test_rest_of_run_is_freed_with_channel(server: ReferenceServer, partition: ResultPartitionID) -> None:
    script(server, lambda connection, receiver: together(connection, receiver, *ROW, backlog=3))
    gate = InputGate([(server.address, partition, 0)], credit=10, floating_buffers=3)
    item = gate.poll()
    assert item is not None
    item.hold()
    gate.poll()
    gate.close()
    assert gate.pool.free == 3 - (item._kind == FLOATING)
    item.recycle()
    assert gate.pool.free == 3


def found_data(gate: InputGate) -> object:
    item = gate.poll()
    assert item is not None
    return item.hold().data


def test_row_beyond_credit_fails_after_fitting_buffers(server: ReferenceServer, partition: ResultPartitionID) -> None:
    script(server, lambda connection, receiver: together(connection, receiver, *ROW))
    received: list[object] = []
    with InputGate([(server.address, partition, 0)], credit=3, floating_buffers=0) as gate:
        with pytest.raises(NoBufferError):
            received.extend(iter(lambda: found_data(gate), None))
        assert gate.finished
    assert received == ROW[:3]


def test_priority_event_overtakes_rest_of_a_run(server: ReferenceServer, partition: ResultPartitionID) -> None:
    requests: list[tuple[Connection, bytes]] = []

    def answer(connection: Connection, receiver: bytes) -> None:
        requests.append((connection, receiver))
        together(connection, receiver, *ROW)

    script(server, answer)
    marker = events.CancelCheckpointMarker(1)
    with InputGate([(server.address, partition, 0)], credit=10) as gate:
        channel = gate._channels[0]
        wait_for(channel.has_next)
        first = gate.poll()
        assert first is not None
        (connection, receiver) = requests[0]
        arguments = (receiver, 10, events.encode(marker), DataType.PRIORITIZED_EVENT_BUFFER)
        server.call(lambda: connection.buffer(*arguments))
        wait_for(channel.has_priority)
        event, second = gate.poll(), gate.poll()
        assert event is not None
        assert second is not None
        assert (first.data, event.event, second.data) == (ROW[0], marker, ROW[1])
