"""A reader's requests and their answers: every message of Flink's client, in all three generations, over real sockets."""

import threading
from pathlib import Path
from typing import Any

import pytest

from broker.shuffle.partition.life import LifeState
from broker.shuffle.partition.result_partition import ResultPartition
from protocol.shuffle import messages as m
from protocol.shuffle import writer_frames as w
from protocol.shuffle.buffer_response import BufferResponse
from protocol.shuffle.data_type import AS_KNOWN_BY, DataType
from protocol.shuffle.errors import (
    ILLEGAL_ARGUMENT_EXCEPTION,
    PARTITION_NOT_FOUND_EXCEPTION,
    PRODUCER_FAILED_EXCEPTION,
)
from protocol.shuffle.ids import Generation
from protocol.shuffle.messages import BacklogAnnouncement
from tests.shuffle.harness import (
    BLOCKING,
    CLEAR_END,
    DATA,
    END,
    END_OF_DATA,
    EVENT,
    V1_16,
    V2_0,
    Client,
    Served,
    new_id,
    serving,
)
from tests.waiting import wait_for

BARRIER = DataType.ALIGNED_CHECKPOINT_BARRIER
PRIORITY = DataType.PRIORITIZED_EVENT_BUFFER


def payloads(buffers: list[BufferResponse]) -> list[bytes]:
    return [bytes(buffer.payload) for buffer in buffers]


@pytest.mark.parametrize("generation", list(Generation))
def test_subpartition_is_read_from_first_buffer_to_end(server: Served, generation: Generation) -> None:
    partition = server.store(b"one", b"two", b"three")
    reader = server.connect(generation)
    receiver = reader.request(partition)
    came = reader.read_to_end(receiver)
    assert payloads(came) == [b"one", b"two", b"three", b"\0\0\0\x08\0", b"\0\0\0\0"]
    assert [buffer.sequence for buffer in came] == [0, 1, 2, 3, 4]
    assert [buffer.backlog for buffer in came] == [2, 1, 0, 0, 0]
    assert {buffer.receiver for buffer in came} == {receiver}
    known = AS_KNOWN_BY[generation]
    assert [b.data_type for b in came] == [known[t] for t in (CLEAR_END, CLEAR_END, CLEAR_END, END_OF_DATA, END)]
    assert {buffer.subpartition for buffer in came} == ({-1} if generation is V1_16 else {0})


@pytest.mark.parametrize("credit", [1, 2, 5])
def test_data_is_bounded_by_credit_and_events_free(server: Served, credit: int) -> None:
    writer = server.connect().open(partition := new_id())
    writer.push(b"event", data_type=EVENT).push(*[b"data"] * 8).push(b"event", data_type=EVENT)
    writer.client.sync()
    reader = server.connect()
    receiver = reader.request(partition, credit=credit)
    assert [b.data_type for b in reader.sync()] == [EVENT, *[CLEAR_END] * credit]
    reader.add_credit(receiver, 1)
    assert [b.data_type for b in reader.sync()] == [CLEAR_END]
    reader.add_credit(receiver, 100)
    assert [b.data_type for b in reader.sync()] == [*[CLEAR_END] * (7 - credit), EVENT]


def test_backlog_is_announced_to_receiver_without_any_credit(server: Served) -> None:
    writer = server.connect().open(partition := new_id())
    writer.push(b"1", b"2", b"3")
    writer.client.sync()
    reader = server.connect()
    receiver = reader.request(partition, credit=0)
    assert reader.sync() == [BacklogAnnouncement(receiver, 3)]
    reader.add_credit(receiver, 3)
    assert payloads(reader.take(3)) == [b"1", b"2", b"3"]
    assert reader.sync() == []
    writer.push(b"4")
    assert reader.next() == BacklogAnnouncement(receiver, 1)


def test_backlog_is_not_announced_after_initial_credit(server: Served) -> None:
    writer = server.connect().open(partition := new_id())
    reader = server.connect()
    reader.request(partition, credit=1)
    reader.sync()
    writer.push(b"1", b"2", b"3")
    assert payloads(reader.take(1)) == [b"1"]
    assert reader.sync() == []


@pytest.mark.parametrize("blocking", [BARRIER, 5, 6, 12])
def test_nothing_follows_blocking_event_until_receiver_resumes(server: Served, blocking: int) -> None:
    writer = server.connect().open(partition := new_id())
    writer.push(b"before").push(b"barrier", data_type=blocking).push(b"after", b"after")
    writer.client.sync()
    reader = server.connect()
    receiver = reader.request(partition, credit=10)
    came = reader.sync()
    assert payloads(came) == [b"before", b"barrier"]
    assert came[-1].backlog == 0
    reader.add_credit(receiver, 5)
    assert reader.sync() == []
    reader.send(m.encode_resume_consumption(receiver))
    assert payloads(reader.take(2)) == [b"after", b"after"]


def test_resuming_drops_credit_without_initial_credit(server: Served) -> None:
    writer = server.connect().open(partition := new_id())
    writer.push(b"barrier", data_type=BARRIER).push(b"after")
    writer.client.sync()
    reader = server.connect()
    receiver = reader.request(partition, credit=0)
    reader.add_credit(receiver, 5)
    came = reader.sync()
    assert [type(message) for message in came] == [BacklogAnnouncement, BufferResponse]
    reader.send(m.encode_resume_consumption(receiver))
    assert reader.sync() == [BacklogAnnouncement(receiver, 1)]
    reader.add_credit(receiver, 1)
    assert payloads(reader.take(1)) == [b"after"]


def test_priority_event_takes_next_number_and_no_credit(server: Served) -> None:
    writer = server.connect().open(partition := new_id())
    writer.push(b"data").push(b"priority", data_type=PRIORITY).push(b"data")
    writer.client.sync()
    reader = server.connect()
    reader.request(partition, credit=1)
    came = reader.sync()
    assert [(b.sequence, b.data_type) for b in came] == [(0, CLEAR_END), (1, PRIORITY)]


def test_empty_data_buffer_takes_credit_and_number(server: Served) -> None:
    partition = server.store(b"", b"x", b"")
    reader = server.connect()
    receiver = reader.request(partition, credit=2)
    assert [(b.sequence, b.size) for b in reader.sync()] == [(0, 0), (1, 1)]
    reader.add_credit(receiver)
    assert [(b.sequence, b.size) for b in reader.sync()] == [(2, 0), (3, 5), (4, 4)]


def test_range_switches_subpartitions_only_at_record_ends(server: Served) -> None:
    writer = server.connect().open(partition := new_id(), 3, BLOCKING)
    for index in range(3):
        name = b"abc"[index : index + 1]
        writer.push(name + b"1", subpartition=index, data_type=DATA)
        writer.push(name + b"2", name + b"3", subpartition=index)
    writer.client.finish(writer)
    reader = server.connect()
    came = reader.read_to_end(reader.request(partition, 0, 2, credit=3), ends=3)
    assert [b.sequence for b in came] == list(range(15))
    data = [b for b in came if b.data_type.is_buffer]
    assert payloads(data) == [b"a1", b"a2", b"b1", b"b2", b"c1", b"c2", b"a3", b"b3", b"c3"]
    assert [b.subpartition for b in data] == [0, 0, 1, 1, 2, 2, 0, 1, 2]
    assert [b.backlog for b in data] == [8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert [b.data_type for b in came if b.subpartition == 1][-2:] == [END_OF_DATA, END]


def test_range_waits_inside_a_record_despite_other_data(server: Served) -> None:
    writer = server.connect().open(partition := new_id(), 2)
    reader = server.connect()
    reader.request(partition, 0, 1, credit=100)
    writer.push(b"half", data_type=DATA).push(b"other", subpartition=1)
    writer.client.sync()
    # The reader is on another processor, which may answer a `sync` before it learns of the pushes.
    assert payloads(reader.take(1)) == [b"half"]
    assert reader.sync() == []
    writer.push(b"half")
    assert payloads(reader.take(2)) == [b"half", b"other"]


def test_receiver_without_credit_blocks_nobody(server: Served) -> None:
    partition = server.store(b"1", b"2")
    reader = server.connect()
    silent = reader.request(partition, credit=0)
    assert reader.sync() == [BacklogAnnouncement(silent, 2)]
    other = reader.request(partition)
    assert len(reader.read_to_end(other)) == 4


# -- what is not there ------------------------------------------------------------------------------------------------


def test_reader_waits_for_its_partition(server: Served) -> None:
    reader = server.connect()
    receiver = reader.request(partition := new_id())
    assert reader.sync() == []
    server.connect().open(partition).push(b"at last")
    assert reader.next(BufferResponse).payload == b"at last"
    assert receiver


def test_a_blocking_partition_comes_when_it_is_finished(server: Served) -> None:
    writer = server.connect().open(partition := new_id(), 1, BLOCKING)
    reader = server.connect()
    receiver = reader.request(partition)
    writer.push(b"data")
    writer.client.sync()
    assert reader.sync() == []
    writer.finish()
    assert len(reader.read_to_end(receiver)) == 3


def test_missing_partition_is_not_found_for_one_receiver(serve: Any) -> None:
    server = serve(shuffle_partition_request_timeout_ms=50)
    there = server.store(b"data")
    reader = server.connect()
    lost = reader.request(missing := new_id())
    error = reader.error()
    assert (error.class_name, error.receiver) == (PARTITION_NOT_FOUND_EXCEPTION, lost)
    assert error.message == f"Partition {missing} not found."
    assert len(reader.read_to_end(reader.request(there))) == 3


def test_a_cancelled_wait_ends_without_an_answer(serve: Any) -> None:
    server = serve(shuffle_partition_request_timeout_ms=3000)
    reader = server.connect()
    receiver = reader.request(partition := new_id())
    reader.send(m.encode_cancel_partition_request(receiver))
    assert reader.sync() == []  # it was cancelled in time
    other = reader.request(new_id())
    assert reader.error().receiver == other  # the other receiver's timeout came later
    writer = server.connect().open(partition)
    writer.push(b"data")
    writer.client.sync()
    assert reader.sync() == []


def test_receiver_may_make_another_request_while_waiting(server: Served) -> None:
    there = server.store(b"there")
    reader = server.connect()
    receiver = reader.request(late := new_id())
    reader.request(there, receiver=receiver)
    assert payloads(reader.read_to_end(receiver))[0] == b"there"
    server.connect().open(late).push(b"late")
    assert reader.sync() == []


def test_waiting_readers_hear_of_release_at_once(server: Served) -> None:
    writer = server.connect().open(partition := new_id(), 1, BLOCKING)
    reader = server.connect()
    receiver = reader.request(partition)
    reader.sync()
    assert server.connect().release(partition)
    assert reader.error()[::2] == (PARTITION_NOT_FOUND_EXCEPTION, receiver)
    assert writer.client.writer_error().code == w.WriterErrorCode.RELEASED


def test_missing_subpartitions_are_an_error_of_that_receiver(server: Served) -> None:
    partition = server.store(b"data")
    reader = server.connect()
    receiver = reader.request(partition, 0, 1)
    assert reader.error()[::2] == (ILLEGAL_ARGUMENT_EXCEPTION, receiver)
    assert len(reader.read_to_end(reader.request(partition))) == 3


def test_row_of_credits_reaches_all_its_receivers(server: Served) -> None:
    """More than are taken at once, for existing receivers and others, cut anywhere."""
    writer = server.connect().open(partition := new_id(), 3)
    for index in range(3):
        writer.push(*[b"%d" % index] * 100, subpartition=index)
    writer.client.sync()
    reader = server.connect()
    receivers = [reader.request(partition, index, credit=1) for index in range(3)]
    reader.take(3)
    credits = [m.encode_add_credit(receivers[number % 3], 1) for number in range(200)]
    credits[100:100] = [m.encode_add_credit(b"nobody's receive", 7)]
    frames = b"".join(credits)
    reader.send(frames[:777]).send(frames[777:3000]).send(frames[3000:])
    came = reader.take(200)
    assert [sum(b.receiver == receiver for b in came) for receiver in receivers] == [67, 67, 66]
    assert reader.sync() == []


def test_trailing_bytes_after_a_credit_are_skipped(server: Served) -> None:
    """Even if it looks like another credit."""
    writer = server.connect().open(partition := new_id(), 2)
    writer.push(b"0", b"0").push(b"1", b"1", subpartition=1)
    writer.client.sync()
    reader = server.connect()
    first, second = reader.request(partition, 0, credit=1), reader.request(partition, 1, credit=1)
    reader.take(2)
    one = m.encode_add_credit(first, 1)
    reader.send((58).to_bytes(4, "big") + one[4:] + m.encode_add_credit(second, 1))
    assert [b.receiver for b in reader.sync()] == [first]


# -- what a pipelined partition is --------------------------------------------------------------------------------------


def test_a_pipelined_subpartition_is_read_once(server: Served) -> None:
    writer = server.connect().open(partition := new_id(), 2)
    writer.push(b"data")
    reader = server.connect()
    reader.request(partition)
    assert payloads(reader.take(1)) == [b"data"]
    second = server.connect()
    receiver = second.request(partition)
    assert second.error()[::2] == (PARTITION_NOT_FOUND_EXCEPTION, receiver)


def test_a_pipelined_partition_that_was_read_is_released(server: Served) -> None:
    client = server.connect()
    writer = client.open(partition := new_id(), 2)
    writer.push(b"0").push(b"1", subpartition=1)
    client.finish(writer)
    reader = server.connect()
    for index in range(2):
        receiver = reader.request(partition, index)
        assert len(reader.read_to_end(receiver)) == 3
        assert len(client.list(partition.hex())) == 1
        reader.send(m.encode_cancel_partition_request(receiver))
        reader.sync()
    assert client.list(partition.hex()) == ()


@pytest.mark.parametrize("how", ["cancel", "close", "connection"])
def test_leaving_reader_has_read_a_pipelined_partition(server: Served, how: str) -> None:
    """As in Flink, there is no second reader. The writer is told, and whether a reader may miss buffers."""
    client = server.connect()
    writer = client.open(partition := new_id())
    writer.push(b"1", b"2", b"3")
    reader = server.connect()
    receiver = reader.request(partition, credit=1)
    reader.take(1)
    if how == "cancel":
        reader.send(m.encode_cancel_partition_request(receiver))
    elif how == "close":
        reader.send(m.encode_close_request())
        assert reader.closed() == []
    else:
        reader.reset()
    wanted = w.WriterErrorCode.RELEASED if how == "connection" else w.WriterErrorCode.READERS_GONE
    assert client.writer_error().code == wanted
    assert client.list(partition.hex()) == ()


@pytest.mark.parametrize("how", ["cancel", "connection"])
@pytest.mark.parametrize("retention_ms", [0, 1])
def test_a_reader_that_has_gone_holds_nobody_back(tmp_path: Path, how: str, retention_ms: int) -> None:
    """As in Flink's producers, pushes to its subpartition are dropped, and the others continue."""
    with serving(
        tmp_path,
        shuffle_pipelined_bytes=100_000,
        shuffle_memory_bytes=1 << 21,
        shuffle_pipelined_retention_ms=retention_ms,
    ) as server:
        client = server.connect()
        writer = client.open(partition := new_id(), 2)
        writer.push(*[b"x" * 1000] * 30)
        gone = server.connect()
        receiver = gone.request(partition, 0, credit=1)
        gone.take(1)
        other = server.connect()
        stays = other.request(partition, 1)
        other.sync()
        if how == "cancel":
            gone.send(m.encode_cancel_partition_request(receiver))
            gone.sync()
        else:
            gone.reset()
        wait_for(lambda: server.partitions.find(partition).part(0).abandoned)  # type: ignore[union-attr]
        if not retention_ms:
            assert client.list(partition.hex())[0].bytes == 0
        came = []

        def read() -> None:
            came.extend(other.read_to_end(stays))

        reading = threading.Thread(target=read)
        reading.start()
        for number in range(2000):
            writer.push_with_credit(b"y" * 1000, number % 2)
        writer.end(1)
        reading.join()
        assert payloads(came) == [b"y" * 1000] * 1000 + [b"\0\0\0\x08\0", b"\0\0\0\0"]
        writer.finish()
        if how == "cancel":
            client.wait_finished()
        else:
            assert client.writer_error().code == w.WriterErrorCode.RELEASED


def test_finishing_does_not_repeat_consumed_end_of_data(server: Served) -> None:
    client = server.connect()
    writer = client.open(partition := new_id())
    writer.push(b"\0\0\0\x08\0", data_type=END_OF_DATA)
    reader = server.connect()
    receiver = reader.request(partition)
    reader.take(1)
    writer.finish()
    assert [buffer.data_type for buffer in reader.read_to_end(receiver)] == [END]


def test_finishing_after_all_was_read_succeeds(server: Served) -> None:
    """Its readers may finish before its last frame."""
    client = server.connect()
    writer = client.open(partition := new_id())
    writer.push(b"data").end()
    reader = server.connect()
    receiver = reader.request(partition)
    assert len(reader.read_to_end(receiver)) == 3
    reader.send(m.encode_cancel_partition_request(receiver))
    reader.sync()
    wait_for(lambda: server.partitions.list("") == [])
    client.finish(writer)


def test_resent_push_after_all_was_read_is_accepted(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader is on another processor, and may leave before the writer's processor continues."""
    append = ResultPartition.append

    def slow(self: ResultPartition, subpartition: int, sequence: int, data_type: DataType, *rest: Any) -> int:
        expected = append(self, subpartition, sequence, data_type, *rest)
        if data_type is END:
            wait_for(lambda: self.life is LifeState.CONSUMED)
        return expected

    monkeypatch.setattr(ResultPartition, "append", slow)
    client, reader = server.connect(), server.connect()
    writer = client.open(partition := new_id())
    receiver = reader.request(partition)
    writer.push(b"data").end()
    assert len(reader.read_to_end(receiver)) == 3
    reader.send(m.encode_cancel_partition_request(receiver))
    client.finish(writer)


# -- late, twice, unknown -----------------------------------------------------------------------------------------------


def test_late_messages_for_gone_receiver_are_ignored(server: Served) -> None:
    partition = server.store(b"data")
    reader = server.connect()
    receiver = reader.request(partition)
    reader.read_to_end(receiver)
    late = [
        m.encode_add_credit(receiver, 1),
        m.encode_resume_consumption(receiver),
        m.encode_ack_all_user_records_processed(receiver),
        m.encode_new_buffer_size(receiver, 1024),
        m.encode_segment_id(receiver, 0, 1),
        m.encode_cancel_partition_request(receiver),
    ]
    reader.send(*late)
    reader.send(*late)
    assert reader.sync() == []
    assert len(reader.read_to_end(reader.request(partition))) == 3


def test_a_receiver_that_asks_twice_begins_again(server: Served) -> None:
    partition = server.store(b"1", b"2", b"3")
    reader = server.connect()
    receiver = reader.request(partition, credit=1)
    assert [b.sequence for b in reader.take(1)] == [0]
    reader.request(partition, credit=1, receiver=receiver)
    assert [(b.sequence, b.payload) for b in reader.sync()] == [(0, b"1")]
    assert server.partitions.list("")[0].readers == 1


def test_a_close_request_closes_the_connection(server: Served) -> None:
    reader = server.connect()
    reader.send(m.encode_close_request())
    assert reader.closed() == []


# -- upstream -----------------------------------------------------------------------------------------------------------


def test_a_task_event_reaches_the_writer(server: Served) -> None:
    client = server.connect()
    writer = client.open(partition := new_id())
    reader = server.connect()
    receiver = reader.request(partition)
    reader.send(m.encode_task_event_request(b"\0\0\0\x02", partition, receiver))
    assert client.next() == w.WriterTaskEvent(writer.handle, -1, b"\0\0\0\x02")
    assert reader.sync() == []


@pytest.mark.parametrize("there", [True, False])
def test_task_event_without_producer_is_an_error(server: Served, there: bool) -> None:
    partition = server.store(b"data") if there else new_id()
    reader = server.connect()
    receiver = b"r" * 16
    reader.send(m.encode_task_event_request(b"\0\0\0\x02", partition, receiver))
    error = reader.error()
    assert error == (ILLEGAL_ARGUMENT_EXCEPTION, "Task event receiver not found.", receiver)


def test_new_buffer_size_reaches_writer_as_hint(server: Served) -> None:
    client = server.connect()
    writer = client.open(partition := new_id(), 3)
    reader = server.connect()
    receiver = reader.request(partition, 1, 2)
    reader.send(m.encode_new_buffer_size(receiver, 4096))
    assert client.next() == w.BufferSizeHint(writer.handle, 1, 4096)
    assert client.next() == w.BufferSizeHint(writer.handle, 2, 4096)


def test_writer_hears_once_that_all_was_processed(server: Served) -> None:
    client = server.connect()
    writer = client.open(partition := new_id(), 2)
    reader = server.connect()
    receivers = [reader.request(partition, index) for index in range(2)]
    reader.send(*[m.encode_ack_all_user_records_processed(receiver) for receiver in receivers])
    reader.send(m.encode_ack_all_user_records_processed(receivers[0]))
    reader.sync()
    assert client.next() == w.AllRecordsProcessed(writer.handle, 0)
    assert client.next() == w.AllRecordsProcessed(writer.handle, 1)
    assert client.sync() == []


# -- failures -----------------------------------------------------------------------------------------------------------


def test_failed_producer_is_an_error_of_its_receivers(server: Served) -> None:
    other = server.store(b"1", b"2", b"3")
    client = server.connect()
    writer = client.open(partition := new_id(), 2)
    writer.push(b"data")
    reader = server.connect()
    receivers = {reader.request(partition, index) for index in range(2)}
    healthy = reader.request(other, credit=1)
    reader.take(2)
    client.send(w.encode_fail_partition(writer.handle, "the dog ate it"))
    errors = [reader.error(), reader.error()]
    assert {error.receiver for error in errors} == receivers
    assert {error[:2] for error in errors} == {(PRODUCER_FAILED_EXCEPTION, "the dog ate it")}
    reader.add_credit(healthy, 2)
    assert len(reader.read_to_end(healthy)) == 4


def test_late_reader_of_failed_partition_gets_the_reason(server: Served) -> None:
    client = server.connect()
    writer = client.open(partition := new_id(), 1, BLOCKING)
    waiting = server.connect()
    first = waiting.request(partition)
    waiting.sync()
    client.send(w.encode_fail_partition(writer.handle, "no"))
    assert waiting.error() == (PRODUCER_FAILED_EXCEPTION, "no", first)
    late = server.connect()
    receiver = late.request(partition)
    assert late.error() == (PRODUCER_FAILED_EXCEPTION, "no", receiver)


def test_reader_with_all_data_ignores_later_failure(server: Served) -> None:
    client = server.connect()
    writer = client.open(partition := new_id(), 2)
    writer.push(b"data").end()
    reader = server.connect()
    reader.read_to_end(reader.request(partition))
    client.send(w.encode_fail_partition(writer.handle, "no"))
    client.sync()
    assert reader.sync() == []


def test_released_partition_is_an_error_of_its_readers(server: Served) -> None:
    partition = server.store(b"1", b"2", b"3")
    reader = server.connect()
    receiver = reader.request(partition, credit=1)
    reader.take(1)
    assert server.connect().release(partition)
    assert reader.error()[::2] == (PARTITION_NOT_FOUND_EXCEPTION, receiver)
    assert reader.sync() == []


def test_data_of_any_size_is_read_back(server: Served) -> None:
    buffers = [bytes([size % 251]) * size for size in (0, 1, 2, 100, 1023, 8191, 8192, 32768, 100_000, 1, 0)]
    partition = server.store(*buffers)
    reader: Client = server.connect(V2_0)
    assert payloads(reader.read_to_end(reader.request(partition)))[:-2] == buffers
