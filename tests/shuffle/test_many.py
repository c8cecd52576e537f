"""Many receivers and partitions, slow receivers, and receivers that never give credit."""

import threading
from random import Random
from typing import Any

import pytest

from broker.shuffle import service
from protocol.shuffle import messages as m
from protocol.shuffle import writer_frames as w
from protocol.shuffle.buffer_response import BufferResponse
from protocol.shuffle.ids import ResultPartitionID
from protocol.shuffle.writer_frames import PartitionType
from tests.shuffle.harness import BLOCKING, END, PIPELINED, Served, new_id
from tests.waiting import wait_for


def test_receiver_without_credit_stalls_none_of_256(server: Served) -> None:
    count, each = 256, 10
    client = server.connect()
    writer = client.open(partition := new_id(), count)
    reader = server.connect()
    receivers = [reader.request(partition, index, credit=1 if index else 0) for index in range(count)]
    for number in range(each):
        for index in range(count):
            writer.push_with_credit(b"%d-%d" % (index, number), index)
    writer.finish()
    came: dict[bytes, list[BufferResponse]] = {receiver: [] for receiver in receivers}
    done = 0
    while done < count - 1:
        message: Any = reader.next()
        if isinstance(message, m.BacklogAnnouncement):
            assert message.receiver == receivers[0]
            continue
        came[message.receiver].append(message)
        done += message.data_type is END
        if message.data_type.is_buffer:
            reader.add_credit(message.receiver)
    assert came.pop(receivers[0]) == []
    for index, receiver in enumerate(receivers[1:], 1):
        assert [b.sequence for b in came[receiver]] == list(range(each + 2))
        assert [bytes(b.payload) for b in came[receiver][:each]] == [b"%d-%d" % (index, n) for n in range(each)]


def test_1000_partitions_at_once(serve: Any) -> None:
    server = serve(shuffle_memory_bytes=1 << 23)
    client = server.connect()
    ids = [new_id() for _ in range(1000)]
    for number, partition in enumerate(ids):
        writer = client.open(partition, 2, BLOCKING if number % 2 else PIPELINED)
        writer.push(b"%d" % number, subpartition=1)
        writer.finish()
    for _ in ids:
        client.wait_finished()
    assert len(client.list()) == 1000
    reader = server.connect()
    receivers = {reader.request(partition, 1): b"%d" % number for number, partition in enumerate(ids)}
    received = {}
    for _ in range(3000):
        buffer = reader.next(BufferResponse)
        if buffer.sequence == 0:
            received[buffer.receiver] = bytes(buffer.payload)
    assert received == receivers
    client.send(*[w.encode_release_partition(number, partition) for number, partition in enumerate(ids)])
    wait_for(lambda: server.partitions.list("") == [])
    wait_for(lambda: server.files == [])


def test_prefix_lists_the_partitions_that_begin_with_it(server: Served) -> None:
    client = server.connect()
    random = Random(5)
    data_sets = [bytes([first]) + random.randbytes(15) for first in (0x00, 0x0A, 0xAB, 0xAB, 0xFF)]
    ids = [ResultPartitionID.of(data_set, number) for data_set in data_sets for number in (0, 1, 255, 256)]
    for partition in random.sample(ids, len(ids)):
        client.open(partition)
    assert client.release(ids.pop(7))
    assert client.release_data_set(data_sets.pop(2)) == 4
    ids = sorted(partition_id for partition_id in ids if partition_id[:16] in data_sets)
    prefixes = {partition_id.hex()[:digits] for partition_id in ids for digits in range(121)}
    for prefix in sorted({*prefixes, "c", "ab0", "g", "0" * 121, ids[0].hex() + "0"}):
        matching = [partition_id for partition_id in ids if partition_id.hex().startswith(prefix)]
        assert [info.partition for info in server.partitions.list(prefix)] == matching
        assert server.partitions.count(prefix) == len(matching)
    assert [info.partition for info in client.list("AB")] == [
        partition_id for partition_id in ids if partition_id[0] == 0xAB
    ]


def test_a_long_list_occupies_no_processor(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_LISTED_INLINE", 3)
    server = serve(network_threads=1)
    client, other = server.connect(), server.connect()
    ids = [new_id() for _ in range(5)]
    for partition in ids:
        client.open(partition)
    go_on = threading.Event()
    list_them = server.partitions.list

    def slow(prefix: str, rights: Any = None) -> Any:
        if not prefix:
            assert go_on.wait(60)
        return list_them(prefix, rights)

    monkeypatch.setattr(server.partitions, "list", slow)
    client.send(w.encode_list_partitions(1))
    assert [info.partition for info in other.list(ids[0].hex())] == [ids[0]]
    go_on.set()
    assert {info.partition for info in client.next(w.PartitionList).partitions} == set(ids)


def test_reader_that_never_reads_costs_a_bounded_amount(server: Served) -> None:
    partition = server.store(*[b"x" * 32_000] * 400)
    lazy = server.connect(receive_buffer=4096)
    lazy.request(partition, credit=1000)
    wait_for(lambda: any(not c.writable for p in server.sockets.processors for c in p.connections.copy()))
    others = [server.connect() for _ in range(3)]
    for other in others:
        assert len(other.read_to_end(other.request(partition))) == 402
    queued = [c.outgoing_bytes for p in server.sockets.processors for c in p.connections.copy()]
    assert max(queued) < (1 << 20) + 40_000
    # When it reads, it gets everything.
    assert len(lazy.take(402)) == 402


def test_cancelled_receiver_gets_only_buffers_in_flight(server: Served) -> None:
    partition = server.store(*[b"x" * 32_000] * 400)
    reader = server.connect()
    receiver = reader.request(partition, credit=1)
    reader.take(1)
    reader.send(m.encode_cancel_partition_request(receiver), m.encode_add_credit(receiver, 1000))
    assert reader.sync() == []


def test_a_million_credits_are_no_burden(server: Served) -> None:
    partition = server.store(b"1", b"2")
    reader = server.connect()
    receiver = reader.request(partition, credit=2**31 - 1)
    reader.send(*[m.encode_add_credit(receiver, 2**31 - 1)] * 1000)
    assert len(reader.take(4)) == 4


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("kind", [PIPELINED, BLOCKING])
def test_one_receiver_of_5000_subpartitions(server: Served, kind: PartitionType, lost: bool) -> None:
    """Opened and closed in steps; it gets everything, and leaves nothing behind."""
    count = 5000
    client = server.connect()
    writer = client.open(partition := new_id(), count, kind)
    for index in range(0, count, 7):
        writer.push_with_credit(b"%d" % index, index)
    client.finish(writer)
    reader = server.connect()
    receiver = reader.request(partition, 0, count - 1, credit=1)
    came = reader.read_to_end(receiver, ends=count)
    data = {buffer.subpartition: bytes(buffer.payload) for buffer in came if buffer.data_type.is_buffer}
    assert data == {index: b"%d" % index for index in range(0, count, 7)}
    if lost:
        reader.reset()
    else:
        reader.send(m.encode_cancel_partition_request(receiver))
    if kind is PIPELINED:
        wait_for(lambda: server.partitions.list("") == [])
    else:
        wait_for(lambda: server.partitions.list("")[0].readers == 0)


def test_receiver_of_5000_subpartitions_cancels_at_once(server: Served) -> None:
    client, reader = server.connect(), server.connect()
    client.open(partition := new_id(), 5000).push(b"x", subpartition=4999)
    client.sync()
    receiver = reader.request(partition, 0, 4999)
    reader.send(m.encode_cancel_partition_request(receiver))
    assert client.writer_error().code == w.WriterErrorCode.READERS_GONE
    assert server.partitions.budget.memory == 0
