"""Pushes that arrive together are taken together, with the same result as one by one."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.shuffle.partition.budget import IN_MEMORY_BYTES, PARTITION_BYTES, PLACE_BYTES, SUBPARTITION_BYTES
from broker.shuffle.partition.result_partition import ResultPartition
from protocol.shuffle import writer_frames as w
from protocol.shuffle.writer_frames import PartitionState, WriterErrorCode
from tests.shuffle.harness import CLEAR_END, DATA, END, EVENT, PIPELINED, Client, Served, new_id
from tests.waiting import wait_for

SUBPARTITIONS = 3
# (subpartition, distance from the right number, type, payload): most are valid.
PUSHES = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1, 2, SUBPARTITIONS]),
        st.sampled_from([0] * 12 + [-1, 1]),
        st.sampled_from([DATA, CLEAR_END] * 8 + [EVENT, END]),
        st.sampled_from([b"x", b"small", bytes(5000)]),
    ),
    max_size=30,
)


def frames_of(handle: int, pushes: list[tuple[int, int, int, bytes]]) -> list[bytes]:
    next_of = [0] * (SUBPARTITIONS + 1)
    frames = []
    for subpartition, distance, data_type, payload in pushes:
        number = max(0, next_of[subpartition] + distance)
        next_of[subpartition] += distance == 0
        frames.append(w.encode_push_buffer(handle, subpartition, number, data_type, False, payload))
    return frames


def outcome(client: Client, server: Served, frames: list[bytes], together: bool) -> tuple[Any, Any]:
    """The buffers that the broker keeps of these frames, and its error."""
    opened = client.open(partition := new_id(), SUBPARTITIONS, PIPELINED)
    frames = [frame[:9] + opened.handle.to_bytes(4, "big") + frame[13:] for frame in frames]
    answers: list[Any] = []
    for part in [b"".join(frames)] if together else frames:
        client.send(part)
        answers += client.sync()
    answers += client.sync()
    errors = [(each.code, each.message) for each in answers if isinstance(each, w.WriterError)]
    kept = server.partitions.find(partition)
    assert kept is not None
    content = [None if part is None else [part.at(position) for position in part.kept] for part in kept.subpartitions]
    budget = server.partitions.budget
    held = kept.holdings
    assert held.memory == budget.memory
    assert held.memory == sum(each.size for part in content if part for each in part if each)
    assert held.in_memory == sum(len(part) for part in content if part)
    client.release(partition)
    return content, errors


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(pushes=PUSHES)
def test_pushes_in_a_row_act_like_single_pushes(server: Served, pushes: list[tuple[int, int, int, bytes]]) -> None:
    frames = frames_of(0, pushes)
    outcomes = []
    for together in (True, False):
        with server.connect() as client:
            outcomes.append(outcome(client, server, frames, together))
        wait_for(lambda: not server.connections)
    assert outcomes[0] == outcomes[1]


def test_a_row_is_taken_under_one_lock(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    singles: list[int] = []
    append = ResultPartition.append

    def counted(self: ResultPartition, subpartition: int, *arguments: Any) -> int:
        singles.append(subpartition)
        return append(self, subpartition, *arguments)

    monkeypatch.setattr(ResultPartition, "append", counted)
    client = server.connect()
    writer = client.open(partition := new_id(), 1)
    writer.push(*[b"x" * 100] * 30)
    client.sync()
    assert not singles
    kept = server.partitions.find(partition)
    assert kept is not None
    assert kept.holdings.in_memory == 30


def test_row_beyond_credit_is_refused_at_first_excess(serve: Any) -> None:
    server = serve(shuffle_write_credit_buffers=8, shuffle_pipelined_bytes=1024)
    client = server.connect()
    writer = client.open(partition := new_id(), 1, PIPELINED)
    writer.push(b"x" * 1024)  # from now on no credit is granted
    client.sync()
    writer.push(*[b"x"] * 100)
    assert client.writer_error().code is WriterErrorCode.BAD_REQUEST
    kept = server.partitions.find(partition)
    assert kept is not None
    assert kept.holdings.in_memory == writer.opened.credit


def test_row_over_quota_is_refused_with_subpartition_counted(serve: Any) -> None:
    structure = PARTITION_BYTES + PLACE_BYTES + SUBPARTITION_BYTES
    server = serve(shuffle_quota_bytes=structure + 2 * (100 + IN_MEMORY_BYTES) - 1)
    client = server.connect()
    writer = client.open(partition := new_id(), 1, owner="poor")
    writer.push(b"x" * 100, b"x" * 100)
    assert client.writer_error().code is WriterErrorCode.QUOTA_EXCEEDED
    failed = server.partitions.find(partition)
    assert failed is not None
    assert failed.state is PartitionState.FAILED


def test_readers_are_told_of_a_row(server: Served) -> None:
    client, reader = server.connect(), server.connect()
    writer = client.open(partition := new_id(), 2)
    receiver = reader.request(partition, 0, 1, credit=100)
    writer.push(b"0", subpartition=0).push(b"1", subpartition=1)
    assert {each.payload for each in reader.take(2)} == {b"0", b"1"}
    frames = [
        w.encode_push_buffer(writer.handle, index % 2, 1 + index // 2, CLEAR_END, False, b"x") for index in range(20)
    ]
    client.send(*frames)
    came = reader.take(20)
    assert sorted(each.subpartition for each in came) == [0] * 10 + [1] * 10
    assert came[-1].backlog == 0
    assert receiver == came[0].receiver
