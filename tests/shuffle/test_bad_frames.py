"""Damaged and wrong frames: the peer gets an error and its connection is closed; other connections do not notice."""

import os
import struct
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from protocol.shuffle import messages as m
from protocol.shuffle import writer_frames as w
from protocol.shuffle.errors import IO_EXCEPTION, ErrorResponse
from protocol.shuffle.frame import HEADER, MAGIC
from protocol.shuffle.ids import Generation, IndexSet
from tests.shuffle.harness import V2_0, Served, new_id
from tests.waiting import wait_for


def frame(kind: int, body: bytes = b"") -> bytes:
    return HEADER.pack(9 + len(body), MAGIC, kind) + body


RECEIVER = b"r" * 16
BAD = {
    "a wrong magic number": struct.pack(">iIB", 9, 0xBADC0FFD, 5),
    "a wrong beginning of the magic number": struct.pack(">i", 9) + b"\xbb",
    "too short a length": struct.pack(">iIB", 8, MAGIC, 5),
    "a negative length": struct.pack(">i", -1),
    "a huge length": struct.pack(">iIB", 2**31 - 1, MAGIC, 65),
    "an unknown id": frame(12),
    "an unknown id of writers": frame(71),
    "a message of a server": m.encode_backlog_announcement(RECEIVER, 1),
    "a buffer of a server": frame(0, bytes(38)),
    "an answer of ours": w.encode_partition_finished(1),
    "a request cut short": frame(2, bytes(87)),
    "a negative credit": frame(2, bytes(60) + struct.pack(">ii16si", 0, 0, RECEIVER, -1)),
    "a range that ends before it begins": frame(2, bytes(60) + struct.pack(">ii16si", 1, 0, RECEIVER, 1)),
    "no credit added": frame(6, struct.pack(">i16s", 0, RECEIVER)),
    "no credit added, behind one that is": m.encode_add_credit(RECEIVER, 1)
    + frame(6, struct.pack(">i16s", 0, RECEIVER)),
    "a task event longer than its frame": frame(3, struct.pack(">i", 1000) + bytes(76)),
    "a push of another size": frame(65, struct.pack(">iiiBBi", 1, 0, 0, 1, 0, 10) + b"x"),
    "a push of an unknown type": frame(65, struct.pack(">iiiBBi", 1, 0, 0, 14, 0, 1) + b"x"),
    "an event of no bytes": frame(65, struct.pack(">iiiBBi", 1, 0, 0, 2, 0, 0)),
    "a push to a handle that was never given": w.encode_push_buffer(77, 0, 0, 1, False, b"x"),
    "a finish of a handle that was never given": w.encode_finish_partition(77),
    "no subpartitions": frame(64, bytes(16) + bytes(60) + struct.pack(">iBqH", 0, 0, -1, 0)),
    "too many subpartitions": frame(64, bytes(16) + bytes(60) + struct.pack(">iBqH", 2**30, 0, -1, 0)),
    "an unknown kind of partition": frame(64, bytes(16) + bytes(60) + struct.pack(">iBqH", 1, 2, -1, 0)),
    "an owner that is no text": frame(64, bytes(16) + bytes(60) + struct.pack(">iBqH", 1, 0, -1, 2) + b"\xff\xff"),
    "somebody else's protocol": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("case", BAD)
def test_nonsense_gets_a_fatal_error_and_disconnection(server: Served, case: str) -> None:
    partition = server.store(b"data")
    victim, bystander = server.connect(), server.connect()
    receiver = bystander.request(partition, credit=0)
    bystander.sync()
    victim.request(partition)
    victim.take(3)
    victim.send(BAD[case])
    (error,) = victim.closed()
    assert isinstance(error, ErrorResponse)
    assert (error.class_name, error.receiver) == (IO_EXCEPTION, None)
    bystander.add_credit(receiver)
    assert len(bystander.take(3)) == 3
    wait_for(lambda: server.partitions.list("")[0].readers == 1)


def test_a_frame_may_come_byte_by_byte(server: Served) -> None:
    partition = server.store(b"data")
    reader = server.connect()
    for byte in m.encode_partition_request(V2_0, partition, IndexSet(0, 0), RECEIVER, 1):
        reader.send(bytes([byte]))
    assert len(reader.take(3)) == 3


@pytest.mark.parametrize("extra", [1, 1000])
def test_trailing_bytes_in_a_frame_are_ignored(server: Served, extra: int) -> None:
    """As Flink's decoder does."""
    partition = server.store(b"data")
    reader = server.connect()
    request = bytearray(m.encode_partition_request(V2_0, partition, IndexSet(0, 0), RECEIVER, 1)) + bytes(extra)
    request[:4] = struct.pack(">i", len(request))
    reader.send(bytes(request))
    assert len(reader.take(3)) == 3


VALID = [
    m.encode_partition_request(V2_0, new_id(), IndexSet(0, 3), RECEIVER, 2),
    m.encode_add_credit(RECEIVER, 1),
    m.encode_resume_consumption(RECEIVER),
    m.encode_task_event_request(b"\0\0\0\x02", new_id(), RECEIVER),
    w.encode_open_partition(b"w" * 16, new_id(), 3, 0),
    w.encode_push_buffer(1, 0, 0, 1, False, b"payload"),
    w.encode_finish_partition(1),
    w.encode_fail_partition(1, "why"),
    w.encode_list_partitions(1, "ab"),
    w.encode_release_partition(1, new_id()),
    w.encode_release_data_set(1, new_id().data_set),
]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(VALID), min_size=1, max_size=6), st.data())
def test_mutations_harm_nobody_else(server: Served, frames: list[bytes], data: st.DataObject) -> None:
    stream = bytearray(b"".join(frames))
    for _ in range(data.draw(st.integers(0, 3))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(stream)))
    mutant = server.connect()
    mutant.send(bytes(stream[:end]))
    mutant.close()
    other = server.connect()
    assert other.sync() == []
    other.close()
    server.clients.clear()


@pytest.mark.parametrize("generation", list(Generation))
def test_peer_leaving_inside_a_frame_leaves_nothing(server: Served, generation: Generation) -> None:
    client = server.connect(generation)
    writer = client.open(new_id())
    client.send(w.encode_push_buffer(writer.handle, 0, 0, 1, False, os.urandom(100_000))[:50_000])
    client.reset()
    wait_for(lambda: server.connections == 0)
    assert server.partitions.budget.memory == 0
    info: Any = server.partitions.list("")[0]
    assert info.buffers == 0
