"""The memory of the shuffle service, whatever its clients do: each row of the table of bounds in docs/BOUNDS.md."""

import os
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest

from broker.client import ShuffleWriter
from broker.shuffle.partition import budget as budget_module
from broker.shuffle.partition.budget import IN_FILE_BYTES, PARTITION_BYTES, READER_BYTES, SUBPARTITION_BYTES, Budget
from protocol.shuffle import messages as m
from protocol.shuffle import writer_frames as w
from protocol.shuffle.errors import IO_EXCEPTION, ErrorResponse
from protocol.shuffle.writer_frames import WriterErrorCode
from tests.shuffle.harness import BLOCKING, Writer, new_id
from tests.shuffle.test_writing import KINDS, read
from tests.waiting import wait_for

MiB = 1 << 20


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The peak of the budget, in one item."""
    most = [0]
    take = Budget.take

    def noting(self: Budget, *args: Any, **options: Any) -> bool:
        taken = take(self, *args, **options)
        most[0] = max(most[0], self.memory + self.index)
        return taken

    monkeypatch.setattr(Budget, "take", noting)
    return most


def test_writers_of_large_buffers_get_affordable_credit(serve: Any, held: list[int]) -> None:
    """Ten writers that use all their credit, with buffers of 250 KB, have 4 MiB, and the disk takes no writes."""
    server = serve(shuffle_memory_bytes=4 * MiB, shuffle_pipelined_bytes=1 << 30)
    server.disk.error = OSError(28, "full")
    writers = []
    for _ in range(10):
        client = server.connect()
        writers.append(client.open(new_id(), 1, BLOCKING))
        # It shows the size of its buffers before the next push.
        if writers[-1].credit:
            writers[-1].push(b"x" * 250_000)
            client.sync()
    budget = server.partitions.budget
    assert 0 < held[0] <= 4 * MiB
    assert budget.memory + budget.index <= 4 * MiB
    server.disk.error = None


def test_oversized_pusher_is_cut_off_and_loses_nothing(serve: Any, held: list[int]) -> None:
    server = serve(shuffle_memory_bytes=2 * MiB)
    server.disk.gate.clear()
    client = server.connect()
    writer = client.open(partition := new_id(), 1, BLOCKING)
    with suppress(OSError):
        for number in range(writer.credit):
            writer.push(bytes([number]) * 300_000)
    with suppress(OSError):
        client.closed()
    assert held[0] <= 2 * MiB
    other = server.connect()
    again = other.open(partition, 1, BLOCKING, writer=writer.writer)
    (taken,) = again.opened.next_sequences
    assert 1 <= taken < 7
    assert again.credit == 0
    server.disk.gate.set()
    for number in range(taken, 20):
        again.push_with_credit(bytes([number]) * 300_000)
    other.finish(again)
    assert read(server, partition) == [bytes([number]) * 300_000 for number in range(20)]
    assert held[0] <= 2 * MiB


def test_cut_off_writer_waits_and_gets_unrequested_credit(serve: Any) -> None:
    """However much room there is by then: a writer without new credit does not count the lost connection."""
    server = serve(shuffle_memory_bytes=2 * MiB)
    server.disk.gate.clear()
    client = server.connect()
    writer = client.open(partition := new_id(), 1, BLOCKING)
    with suppress(OSError):
        for _ in range(writer.credit):
            writer.push(b"x" * 300_000)
    with suppress(OSError):
        client.closed()
    server.disk.gate.set()
    wait_for(lambda: not server.partitions.budget.memory_scarce)
    other = server.connect()
    again = other.open(partition, 1, BLOCKING, writer=writer.writer)
    assert again.credit == 0
    assert other.find(w.WriterCredit).credit > 0


def test_own_writers_succeed_with_buffers_of_any_size(serve: Any, held: list[int]) -> None:
    server = serve(shuffle_memory_bytes=2 * MiB)
    host, port = server.sockets.address("2.0")
    partitions = [new_id() for _ in range(4)]
    sizes = [10, 400_000, 0, 70_000, 1_500_000, 5_000] * 6
    writers = [ShuffleWriter(f"{host}:{port}", partition, 1, "blocking") for partition in partitions]
    for writer in writers:
        writer.start()
    for number, size in enumerate(sizes):
        for writer in writers:
            writer.push(0, bytes([number]) * size)
    for writer in writers:
        writer.commit()
        writer.close()
    for partition in partitions:
        came = [bytes(payload) for payload in read_large(server, partition)]
        assert came == [bytes([number]) * size for number, size in enumerate(sizes)]
    assert held[0] <= 2 * MiB


def push_many(writer: Writer, payload: bytes, count: int) -> None:
    for _ in range(count):
        writer.push_with_credit(payload)


def read_large(server: Any, partition: bytes) -> list[bytes]:
    reader = server.connect()
    reader.decoder = type(reader.decoder)(reader.generation, max_payload=1 << 21)
    came = reader.read_to_end(reader.request(partition))
    reader.close()
    return [response.payload for response in came[:-2]]


def test_idle_writers_keep_nobody_from_writing(serve: Any) -> None:
    """Their promised room is unused; others still get credit, a buffer at a time."""
    server = serve(shuffle_memory_bytes=MiB)
    client = server.connect()
    idle = [client.open(new_id(), 1, BLOCKING) for _ in range(60)]
    assert 0 < idle[-1].credit < idle[0].credit
    late = server.connect()
    writer = late.open(partition := new_id(), 1, BLOCKING)
    for number in range(200):
        writer.push_with_credit(bytes([number]) * 20_000)
    late.finish(writer)
    assert len(read(server, partition)) == 200


def test_opening_is_charged_and_refused_beyond_the_bound(serve: Any) -> None:
    server = serve(shuffle_memory_bytes=16 * MiB)
    client = server.connect()
    client.open(new_id(), w.MAX_SUBPARTITIONS)
    client.sync()
    budget = server.partitions.budget
    structure = budget.index
    assert structure == PARTITION_BYTES + 8 * w.MAX_SUBPARTITIONS
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        opened = 0
        for _ in range(146):
            client.send(w.encode_open_partition(b"w" * 16, new_id(), w.MAX_SUBPARTITIONS, BLOCKING))
            answer: Any = client.find((w.PartitionOpened, w.WriterError))
            opened += isinstance(answer, w.PartitionOpened)
            del answer
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert opened == (12 * MiB) // structure - 1
    assert after - before < 1.2 * opened * structure
    client.send(w.encode_open_partition(b"w" * 16, new_id(), w.MAX_SUBPARTITIONS, BLOCKING))
    error = client.find(w.WriterError)
    assert (error.code, "shuffle_memory_bytes" in error.message) == (WriterErrorCode.STORAGE_ERROR, True)
    other = server.connect()
    assert other.release(other.list()[0].partition)
    other.open(new_id(), w.MAX_SUBPARTITIONS)


def test_subpartition_is_charged_on_its_first_use(serve: Any) -> None:
    server = serve()
    client = server.connect()
    writer = client.open(new_id(), 1000)
    client.sync()
    budget = server.partitions.budget
    before = budget.index
    writer.push(b"x", subpartition=7).push(b"x", subpartition=7).push(b"x", subpartition=8)
    client.sync()
    assert budget.index - before == 2 * SUBPARTITION_BYTES + 3 * budget_module.IN_MEMORY_BYTES


@pytest.mark.parametrize("kind", KINDS)
def test_finishing_ends_all_subpartitions_or_is_refused(serve: Any, kind: Any) -> None:
    server = serve(shuffle_memory_bytes=8 * MiB)
    client = server.connect()
    writers = [client.open(new_id(), 10_000, kind) for _ in range(4)]
    answers = []
    for writer in writers:
        client.send(w.encode_finish_partition(writer.handle))
        answers.append(client.find((w.PartitionFinished, w.WriterError)))
    assert isinstance(answers[0], w.PartitionFinished)
    error = answers[-1]
    assert isinstance(error, w.WriterError)
    assert (error.code, "shuffle_memory_bytes" in error.message) == (WriterErrorCode.STORAGE_ERROR, True)
    assert server.partitions.budget.index <= 8 * MiB
    for info in client.list():
        client.release(info.partition)


@pytest.mark.parametrize("end", [0, 9_999])
def test_receiver_of_subpartitions_without_room_is_refused(serve: Any, end: int) -> None:
    server = serve(shuffle_memory_bytes=MiB)
    client = server.connect()
    client.open(partition := new_id(), 10_000)
    budget = server.partitions.budget
    if not end:
        budget.charge("", MiB * 3 // 4 - budget.index)
    before = budget.index
    refused = client.request(partition, 0, end)
    assert client.find(ErrorResponse)[::2] == (IO_EXCEPTION, refused)
    assert budget.index == before
    if not end:
        budget.give_back("", 0, 0, MiB * 3 // 4 - PARTITION_BYTES - 8 * 10_000)


@pytest.mark.parametrize("kind", KINDS)
def test_quota_counts_the_index(serve: Any, kind: Any) -> None:
    server = serve(shuffle_quota_bytes=100_000)
    client = server.connect()
    writer = client.open(new_id(), 1, kind, owner="somebody")
    with pytest.raises(AssertionError, match="QUOTA_EXCEEDED"):
        push_many(writer, b"", 2 * 100_000 // budget_module.IN_MEMORY_BYTES)
    client.send(w.encode_open_partition(b"w" * 16, new_id(), 100_000 // 8, BLOCKING, -1, "somebody else"))
    assert client.find(w.WriterError).code == WriterErrorCode.QUOTA_EXCEEDED


def test_partition_of_too_many_small_buffers_fails_alone(serve: Any) -> None:
    server = serve(shuffle_memory_bytes=MiB)
    client, other = server.connect(), server.connect()
    writer = client.open(new_id(), 1, BLOCKING)
    with pytest.raises(AssertionError, match="QUOTA_EXCEEDED"):
        push_many(writer, b"x", 2 * MiB // 4 // IN_FILE_BYTES)
    second = other.open(partition := new_id(), 1, BLOCKING)
    for _ in range(100):
        second.push_with_credit(b"y" * 10_000)
    other.finish(second)
    assert len(read(server, partition)) == 100


def test_receivers_are_bounded_and_free_room_on_leaving(serve: Any) -> None:
    server = serve(shuffle_memory_bytes=MiB)
    most = MiB // 2 // READER_BYTES
    reader, other = server.connect(), server.connect()
    ids = [os.urandom(16) for _ in range(most)]
    for receiver in ids:
        reader.request(new_id(), receiver=receiver)
    reader.sync()
    refused = other.request(new_id())
    error = other.error()
    assert error[::2] == (IO_EXCEPTION, refused)
    reader.send(m.encode_cancel_partition_request(ids[0]))
    reader.sync()
    other.request(new_id())
    assert other.sync() == []
    reader.close()
    wait_for(lambda: server.partitions.budget._readers == READER_BYTES)


def test_receiver_of_finished_subpartitions_is_charged_for_each(serve: Any) -> None:
    server = serve(shuffle_memory_bytes=2 * MiB)
    client = server.connect()
    client.finish(client.open(partition := new_id(), 1000, BLOCKING))
    budget = server.partitions.budget
    reader = server.connect()
    granted = [reader.request(partition, 0, 999, credit=1) for _ in range(9)]
    reader.sync()
    assert budget._readers == 9 * (READER_BYTES + 1000 * budget_module.CURSOR_BYTES)
    refused = reader.request(partition, 0, 999)
    assert reader.find(ErrorResponse)[::2] == (IO_EXCEPTION, refused)
    reader.send(*map(m.encode_cancel_partition_request, granted))
    wait_for(lambda: budget._readers == 0)


def test_leaving_writer_frees_room_for_waiting_writers(serve: Any) -> None:
    """It has not used its promised room, and nothing else changes."""
    server = serve(shuffle_memory_bytes=MiB)
    holder, waiting = server.connect(), server.connect()
    budget = server.partitions.budget
    assert holder.open(new_id(), 1, BLOCKING).credit
    filled = MiB - budget.index - budget.reserved - 20_000
    assert budget.take("", filled)
    assert waiting.open(new_id(), 1, BLOCKING).credit == 0
    holder.close()
    assert waiting.find(w.WriterCredit).credit > 0
    budget.give_back("", filled, 0)
