"""A writer, its broker, and lost connections between them."""

import threading
import time
from collections import deque

import pytest

from broker.client import InputGate, ShuffleWriter
from broker.client.shuffle.errors import (
    AnotherAttemptWonError,
    ConnectionFailedError,
    PartitionExistsError,
    PartitionLostError,
    ShuffleClosedError,
    ShuffleError,
    ShuffleTimeoutError,
    TransportError,
    WriterFencedError,
)
from broker.client.shuffle.writing.broker_link import LinkState
from protocol.shuffle import events
from protocol.shuffle.data_type import DataType
from protocol.shuffle.errors import IO_EXCEPTION, encode_error
from protocol.shuffle.ids import ResultPartitionID
from protocol.shuffle.writer_frames import WriterErrorCode, encode_writer_error
from tests.client.conftest import InThread
from tests.client.shuffle.reference_server import ReferenceServer
from tests.waiting import wait_for


def stored(server: ReferenceServer, partition: ResultPartitionID, subpartition: int = 0) -> list[bytes]:
    entries = server.call(lambda: list(server.partitions[partition].subpartitions[subpartition]))
    return [payload for data_type, _, payload in entries if data_type.is_buffer]


def test_finishing_ends_every_subpartition(server: ReferenceServer, partition: ResultPartitionID) -> None:
    with ShuffleWriter(server.address, partition, 2, "blocking") as writer:
        writer.push(1, b"data")
    assert server.partitions[partition].finished
    types = [[entry[0] for entry in entries] for entries in server.partitions[partition].subpartitions]
    ends = [DataType.END_OF_DATA, DataType.END_OF_PARTITION]
    assert [ends, [DataType.DATA_BUFFER, *ends]] == types


def test_writer_waits_for_credit(server: ReferenceServer, partition: ResultPartitionID) -> None:
    server.credit, server.give_credit = 3, False
    with ShuffleWriter(server.address, partition, 1) as writer:
        for number in range(3):
            writer.push(0, b"%d" % number)
        assert not writer.try_push(0, b"too much")
        with pytest.raises(ShuffleTimeoutError, match="no credit"):
            writer.push(0, b"too much", timeout=0.02)
        server.call(lambda: setattr(server, "give_credit", True))
        writer.fail("enough")
    assert [b"0", b"1", b"2"] == stored(server, partition)


def test_push_many_equals_push_one_by_one(server: ReferenceServer, partition: ResultPartitionID) -> None:
    changing = bytearray(b"changes")
    with ShuffleWriter(server.address, partition, 2) as writer:
        writer.push(0, b"0")
        assert writer.push_many(0, [b"1", changing, memoryview(b"3")]) == 3
        changing[:] = b"changed"
        assert (
            writer.push_many(1, [b"x"] * 500, DataType.DATA_BUFFER_WITH_CLEAR_END) == 500
        )  # more than there is credit for
        assert writer.push_many(1, []) == 0
        assert writer.push_many(1, deque([b"y", b"z"])) == 2
        writer.push(0, b"4")
        for wrong in (
            lambda: writer.push_many(2, [b"x"]),
            lambda: writer.push_many(0, [b"x", b""], DataType.EVENT_BUFFER),
        ):
            with pytest.raises(ValueError, match=r"subpartition 2 of 2|a buffer of 0 bytes"):
                wrong()
    assert stored(server, partition) == [b"0", b"1", b"changes", b"3", b"4"]
    assert stored(server, partition, 1) == [*[b"x"] * 500, b"y", b"z"]
    with pytest.raises(ShuffleClosedError):
        writer.push_many(0, [b"x"])


def test_push_many_stops_without_room(server: ReferenceServer, partition: ResultPartitionID) -> None:
    server.credit, server.give_credit = 3, False
    with ShuffleWriter(server.address, partition, 1) as writer:
        assert writer.push_many(0, [b"%d" % number for number in range(5)], timeout=0.02) == 3
        with pytest.raises(ShuffleTimeoutError, match="no credit"):
            writer.push_many(0, [b"too much"], timeout=0.02)
        writer.fail("enough")
    assert [b"0", b"1", b"2"] == stored(server, partition)


class Watched(bytearray):
    """Counts its copies and the requests for its length."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.copied = self.measured = 0

    def __bytes__(self) -> bytes:
        self.copied += 1
        return b"".join([self])

    def __len__(self) -> int:
        self.measured += 1
        return super().__len__()


def test_push_many_copies_when_there_is_room(server: ReferenceServer, partition: ResultPartitionID) -> None:
    server.credit, server.give_credit = 3, False
    payloads = [Watched(b"x") for _ in range(20)]
    with ShuffleWriter(server.address, partition, 1) as writer:
        assert writer.push_many(0, payloads, timeout=0.02) == 3
        writer.fail("enough")
    assert [payload.copied for payload in payloads] == [1] * 3 + [0] * 17


def test_push_many_costs_the_same_for_each_push(server: ReferenceServer, partition: ResultPartitionID) -> None:
    server.credit = 2
    payloads = [Watched(b"x") for _ in range(400)]
    with ShuffleWriter(server.address, partition, 1) as writer:
        assert writer.push_many(0, payloads, copy=False) == 400
    assert max(payload.measured for payload in payloads) < 20


@pytest.mark.parametrize("acknowledge", [True, False])
def test_lost_connection_loses_and_repeats_nothing(
    server: ReferenceServer, partition: ResultPartitionID, acknowledge: bool
) -> None:
    server.cut_after = {1, 10, 11, 200, 505}
    server.acknowledge = acknowledge
    expected = [b"%d" % number * 100 for number in range(1000)]
    with ShuffleWriter(server.address, partition, 2, "blocking") as writer:
        for number, payload in enumerate(expected):
            writer.push(number % 2, payload)
    assert expected[::2] == stored(server, partition, 0)
    assert expected[1::2] == stored(server, partition, 1)
    assert server.opens == 6


def test_lost_connection_keeps_many_pushes_exactly_once(server: ReferenceServer, partition: ResultPartitionID) -> None:
    server.cut_after = {1, 10, 11, 200, 505}
    expected = [b"%d" % number * 100 for number in range(1000)]
    with ShuffleWriter(server.address, partition, 2, "blocking") as writer:
        for begin in range(0, 1000, 70):
            for subpartition in range(2):
                writer.push_many(subpartition, expected[begin + subpartition : begin + 70 : 2])
    assert expected[::2] == stored(server, partition, 0)
    assert expected[1::2] == stored(server, partition, 1)
    assert server.opens == 6


def test_returning_writer_states_its_id_for_fencing(server: ReferenceServer, partition: ResultPartitionID) -> None:
    server.cut_after = {1}
    for _ in range(2):
        with ShuffleWriter(server.address, partition, 1, "blocking", writer_id=b"w" * 16) as writer:
            writer.push(0, b"data")
        server.partitions.clear()
    assert [False, True, False] == [opening.resumes for opening in server.openings]
    first, again, other = (opening.incarnation for opening in server.openings)
    assert first == again != other
    assert 0 not in (first, other)


@pytest.mark.parametrize("when", ["before", "after"])
def test_connection_loss_around_finish_is_no_failure(
    server: ReferenceServer, partition: ResultPartitionID, when: str
) -> None:
    server.cut_at_finish = when
    with ShuffleWriter(server.address, partition, 1, "blocking") as writer:
        writer.push(0, b"all")
    assert server.partitions[partition].finished


def test_returning_writer_continues_where_it_stopped(server: ReferenceServer, partition: ResultPartitionID) -> None:
    first = ShuffleWriter(server.address, partition, 2, "blocking", writer_id=b"w" * 16)
    first.open()
    first.push(0, b"one")
    first.push(0, b"two")
    while not first.all_acknowledged:
        time.sleep(0.001)
    first.close()
    with ShuffleWriter(server.address, partition, 2, "blocking", writer_id=b"w" * 16) as second:
        assert (2, 0) == second.next_sequences
        second.push(0, b"three")
    assert [b"one", b"two", b"three"] == stored(server, partition)
    assert server.detached == 1


def test_broker_that_forgot_acknowledged_data_is_error(server: ReferenceServer, partition: ResultPartitionID) -> None:
    writer = ShuffleWriter(server.address, partition, 1)
    writer.open()
    writer.push(0, b"gone")
    while not writer.all_acknowledged:
        time.sleep(0.001)
    server.call(server.partitions.clear)
    server.cut_connections()
    with pytest.raises(PartitionLostError):
        writer.finish()
    writer.close()


def test_writer_gives_up_on_absent_broker(partition: ResultPartitionID) -> None:
    with ReferenceServer() as server:
        writer = ShuffleWriter(server.address, partition, 1, reconnect_timeout=0.2)
        writer.open()
    with pytest.raises(TransportError):
        writer.finish()
    with pytest.raises(TransportError):
        writer.push(0, b"x")
    writer.close()


def test_full_broker_does_not_count_as_lost(server: ReferenceServer, partition: ResultPartitionID) -> None:
    """It may take longer than ``reconnect_timeout``, and connections may be lost in between."""
    server.acknowledge = False
    with ShuffleWriter(server.address, partition, 1, "blocking") as writer:
        writer.push(0, b"not taken")
        while not server.pushes:
            time.sleep(0.001)
        server.call(server.partitions[partition].subpartitions[0].clear)
        server.credit = 0
        server.cut_connections()
        while server.opens < 2:
            time.sleep(0.001)

        def is_open() -> bool:
            with writer._shared.changed:  # the answer is dealt with as a whole
                return writer._link.state is LinkState.OPEN

        wait_for(is_open)
        assert writer._link.reconnecting.lost_at is None
        server.credit, server.acknowledge = 16, True
        server.cut_connections()
    assert [b"not taken"] == stored(server, partition)


def test_missing_peer_is_an_error_at_once(partition: ResultPartitionID) -> None:
    with (
        pytest.raises(ConnectionFailedError, match=r"127\.0\.0\.1:1.*refused"),
        ShuffleWriter("127.0.0.1:1", partition, 1),
    ):
        pass


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (WriterErrorCode.EXISTS_WITH_OTHER_SHAPE, PartitionExistsError),
        (WriterErrorCode.ANOTHER_ATTEMPT_WON, AnotherAttemptWonError),
        (WriterErrorCode.STORAGE_ERROR, ShuffleError),
        (WriterErrorCode.FENCED, WriterFencedError),
    ],
)
def test_refusal_is_an_error_of_its_class(
    server: ReferenceServer, partition: ResultPartitionID, code: WriterErrorCode, expected: type[ShuffleError]
) -> None:
    server.refuse = (code, "so the broker says")
    with pytest.raises(expected, match="so the broker says"), ShuffleWriter(server.address, partition, 1):
        pass


def test_events_from_readers_come_to_the_writer(server: ReferenceServer, partition: ResultPartitionID) -> None:
    seen: list[tuple[object, int]] = []
    sizes: list[tuple[int, int]] = []
    writer = ShuffleWriter(server.address, partition, 1)
    writer.on_task_event = lambda event, subpartition: seen.append((event, subpartition))
    writer.on_buffer_size = lambda subpartition, size: sizes.append((subpartition, size))
    with writer:
        writer.push(0, b"x")
        with InputGate([(server.address, partition, 0)]) as gate:
            gate.poll()
            gate.send_event(events.OtherEvent("mine.Event", b"!"))
            gate.announce_buffer_size(1024)
            while not (seen and sizes):
                time.sleep(0.001)
    assert [(events.OtherEvent("mine.Event", b"!"), -1)] == seen
    assert [(0, 1024)] == sizes


def test_large_data_arrives_unchanged(server: ReferenceServer, partition: ResultPartitionID) -> None:
    server.credit = 2000
    expected = [bytes([number % 251]) * 32768 for number in range(1000)]
    with ShuffleWriter(server.address, partition, 1, "blocking") as writer:
        for payload in expected:
            writer.push(0, payload)
    assert expected == stored(server, partition)


def test_threads_may_share_a_writer(server: ReferenceServer, partition: ResultPartitionID, in_thread: InThread) -> None:
    with ShuffleWriter(server.address, partition, 4, "blocking") as writer:

        def push(subpartition: int) -> None:
            for number in range(300):
                writer.push(subpartition, b"%d" % number)

        threads = [in_thread(lambda index=index: push(index)) for index in range(4)]  # type: ignore[misc]
        for thread in threads:
            thread.join()
    expected = [b"%d" % number for number in range(300)]
    assert [expected] * 4 == [stored(server, partition, index) for index in range(4)]


def test_close_wakes_a_waiting_push(server: ReferenceServer, partition: ResultPartitionID, in_thread: InThread) -> None:
    server.credit = 0
    writer = ShuffleWriter(server.address, partition, 1)
    writer.open()
    started = threading.Event()

    def push() -> None:
        started.set()
        with pytest.raises(ShuffleClosedError):
            writer.push(0, b"x")

    thread = in_thread(push)
    started.wait()
    writer.close()
    thread.join(10)
    assert not thread.is_alive()


def test_invalid_arguments_are_refused(server: ReferenceServer, partition: ResultPartitionID) -> None:
    with pytest.raises(ValueError, match="0 subpartitions"):
        ShuffleWriter(server.address, partition, 0)
    with pytest.raises(ValueError, match="pipelined or blocking"):
        ShuffleWriter(server.address, partition, 1, "sideways")
    with pytest.raises(ValueError, match="host:port"):
        ShuffleWriter("nowhere", partition, 1)
    with pytest.raises(ShuffleClosedError, match="not open"):
        ShuffleWriter(server.address, partition, 1).push(0, b"")
    with ShuffleWriter(server.address, partition, 1) as writer:
        with pytest.raises(ValueError, match="subpartition 1 of 1"):
            writer.push(1, b"x")
        with pytest.raises(ValueError, match="0 bytes"):
            writer.push(0, b"", DataType.EVENT_BUFFER)


def test_mutable_payload_is_copied_unless_promised(server: ReferenceServer, partition: ResultPartitionID) -> None:
    copied, kept = bytearray(b"first" * 1000), bytearray(b"first" * 1000)
    server.credit, server.give_credit, server.acknowledge = 2, False, False  # acknowledged pushes are not kept
    with ShuffleWriter(server.address, partition, 1, "blocking") as writer:
        window = writer._window
        writer.push(0, copied)
        writer.push(0, memoryview(kept), copy=False)
        payloads = [payload for run in window._kept[0] for payload in run.payloads]
        server.call(lambda: setattr(server, "give_credit", True))
    copied[:5] = kept[:5] = b"later"
    assert [b"first" * 1000] * 2 == stored(server, partition)
    assert [b"first", b"later"] == [bytes(payload[:5]) for payload in payloads]


@pytest.mark.parametrize("fatal", [True, False])
def test_final_answer_of_broker_prevents_reconnecting(
    server: ReferenceServer, partition: ResultPartitionID, fatal: bool
) -> None:
    """The error of a writer, or of its whole connection; the connection may be closed right after it."""
    writer = ShuffleWriter(server.address, partition, 1, "blocking", reconnect_timeout=60.0)
    writer.open()
    writer.push(0, b"data")

    def end() -> None:
        connection = server.partitions[partition].connection
        (handle,) = connection.handles
        if fatal:
            connection.send(encode_error(IO_EXCEPTION, "the end", None))
        else:
            connection.send(encode_writer_error(writer.writer_id, handle, WriterErrorCode.RELEASED, "the end"))
        connection.out.close()

    server.call(end)
    for _ in range(2):
        with pytest.raises(ShuffleError, match="the end"):
            writer.commit(30)
    while server.connections:
        time.sleep(0.001)
    with pytest.raises(ShuffleError, match="the end"):
        writer.push(0, b"more")
    writer.close()
    assert 1 == server.opens
