"""A writer's requests and their answers: the frames from 64 up, over real sockets."""

import errno
from typing import Any

import pytest

from broker.shuffle import partitions
from broker.shuffle.partition import holdings, result_partition
from broker.shuffle.partition.budget import IN_MEMORY_BYTES, PARTITION_BYTES, PLACE_BYTES, SUBPARTITION_BYTES
from protocol.shuffle import messages as m
from protocol.shuffle import writer_frames as w
from protocol.shuffle.buffer_response import BufferResponse
from protocol.shuffle.errors import PARTITION_NOT_FOUND_EXCEPTION, PRODUCER_FAILED_EXCEPTION
from protocol.shuffle.ids import ResultPartitionID
from protocol.shuffle.writer_frames import PartitionState, WriterErrorCode
from tests.shuffle.harness import BLOCKING, END, PIPELINED, Client, Served, Writer, new_id
from tests.shuffle.test_reading import payloads
from tests.waiting import wait_for

KINDS = [PIPELINED, BLOCKING]


def read(server: Served, partition: bytes, subpartition: int = 0) -> list[bytes]:
    reader = server.connect()
    receiver = reader.request(partition, subpartition)
    came = payloads(reader.read_to_end(receiver))
    reader.send(m.encode_cancel_partition_request(receiver))
    reader.close()
    return came[:-2]


@pytest.mark.parametrize("kind", KINDS)
def test_unended_subpartition_is_ended_for_its_writer(server: Served, kind: Any) -> None:
    client = server.connect()
    writer = client.open(partition := new_id(), 2, kind)
    writer.push(b"data").end()
    client.finish(writer)
    for index in range(2):
        reader = server.connect()
        came = reader.read_to_end(reader.request(partition, index))
        assert payloads(came) == [b"data", b"\0\0\0\x08\0", b"\0\0\0\0"][index:]


@pytest.mark.parametrize("kind", KINDS)
def test_a_resent_buffer_is_known_and_stored_once(server: Served, kind: Any) -> None:
    client = server.connect()
    writer = client.open(partition := new_id(), 1, kind)
    writer.push(b"0", b"1", b"2")
    writer.push(b"other", sequence=0).push(b"other", sequence=2)
    client.finish(writer)
    assert read(server, partition) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("kind", KINDS)
def test_returning_writer_continues_where_it_was(server: Served, kind: Any) -> None:
    first = server.connect()
    writer = first.open(partition := new_id(), 2, kind)
    writer.push(b"0", b"1").push(b"a", subpartition=1)
    first.sync()
    first.reset()
    second = server.connect()
    again = second.open(partition, 2, kind, writer=writer.writer)
    assert again.opened.next_sequences == (2, 1)
    again.push(b"1", sequence=1)  # it cannot know
    again.push(b"2").push(b"b", subpartition=1)
    second.finish(again)
    assert read(server, partition) == [b"0", b"1", b"2"]
    assert read(server, partition, 1) == [b"a", b"b"]


def test_end_of_old_connection_spares_the_new_one(serve: Any) -> None:
    server = serve(shuffle_writer_retention_ms=50)
    old = server.connect()
    writer = old.open(partition := new_id(), 1, BLOCKING)
    new = server.connect()
    again = new.open(partition, 1, BLOCKING, writer=writer.writer)
    old.reset()
    wait_for(lambda: server.connections == 1)
    lost = server.connect().open(new_id())  # its time begins after the other's
    lost.client.reset()
    wait_for(
        lambda: (
            any(info.state == PartitionState.FAILED for info in server.partitions.list(""))
            or len(server.partitions.list("")) == 1
        )
    )
    again.push(b"data")
    new.finish(again)
    assert read(server, partition) == [b"data"]


def test_a_writer_that_stays_away_has_failed(serve: Any) -> None:
    server = serve(shuffle_writer_retention_ms=50)
    client = server.connect()
    client.open(partition := new_id()).push(b"data")
    reader = server.connect()
    receiver = reader.request(partition)
    reader.take(1)
    client.reset()
    error = reader.error()
    assert error[::2] == (PRODUCER_FAILED_EXCEPTION, receiver)


def test_closing_a_writer_detaches_it(server: Served) -> None:
    client = server.connect()
    writer = client.open(partition := new_id(), 1, BLOCKING).push(b"0")
    client.send(w.encode_close_writer(writer.handle))
    assert client.next() == w.PushAcknowledged(writer.handle, ((0, 1),))
    again = client.open(partition, 1, BLOCKING, writer=writer.writer)
    assert again.opened.next_sequences == (1,)
    client.finish(again)
    assert read(server, partition) == [b"0"]


def test_reopening_on_same_connection_replaces_the_handle(serve: Any) -> None:
    server = serve(shuffle_writer_retention_ms=1)
    client = server.connect()
    first = client.open(partition := new_id(), 1, BLOCKING)
    second = client.open(partition, 1, BLOCKING, writer=first.writer)
    client.send(w.encode_close_writer(first.handle))
    first.push(b"ignored")
    second.push(b"0")
    client.finish(second)
    assert read(server, partition) == [b"0"]


def test_an_acknowledgement_says_what_is_expected_next(server: Served) -> None:
    client = server.connect()
    writer = client.open(new_id(), 2)
    x, y = b"x" * 10_000, b"y" * 10_000
    writer.push(*[x] * 10).push(*[y] * 5, subpartition=1).push(x, sequence=3)
    last: dict[int, int] = {}  # the first push is acknowledged at once, and a slow machine makes more of it
    while isinstance(message := client.next(), w.PushAcknowledged):
        last |= dict(message.next_sequences)
    assert {0: 10, 1: 5} == last
    assert message == w.WriterCredit(writer.handle, 16)


def test_who_pushes_small_buffers_may_be_further_ahead(server: Served) -> None:
    """Eight times as many of the smallest buffers, fewer of larger buffers, and the initial number after they are large again."""
    client = server.connect()
    writer = client.open(new_id(), kind=BLOCKING)
    assert writer.credit == 64
    for size, expected in ((1, 512), (2048, 256), (1024, 512), (16_000, 64), (4096, 128), (8192, 64)):
        # Until the size of the last pushes counts; a larger window shrinks as it is used.
        for _ in range(3):
            while writer.credit:
                writer.push(b"x" * size)
            came = client.sync()
            writer.credit += sum(message.credit for message in came if isinstance(message, w.WriterCredit))
        assert writer.credit + used(server, writer) == expected


def used(server: Served, writer: Writer) -> int:
    """The part of the last grant that has not been granted again."""
    connections = [c for p in server.sockets.processors for c in p.connections.copy() if c.data is not None]
    (used,) = [
        handle.used
        for connection in connections
        for handle in connection.data.writers._handles.values()
        if handle.number == writer.handle
    ]
    return int(used)


def test_gap_is_refused_and_writer_may_continue(server: Served) -> None:
    client = server.connect()
    writer = client.open(partition := new_id(), 1, BLOCKING)
    writer.push(b"0").push(b"2", sequence=2)
    error = client.writer_error()
    assert (error.handle, error.code) == (writer.handle, WriterErrorCode.SEQUENCE_GAP)
    writer.push(b"ignored, as it had been sent before it heard")
    writer.finish()
    again = client.open(partition, 1, BLOCKING, writer=writer.writer)
    assert again.opened.next_sequences == (1,)
    client.finish(again.push(b"1"))
    assert read(server, partition) == [b"0", b"1"]


@pytest.mark.parametrize("last", [b"\0\0\0\0", b"data"])
def test_nothing_can_be_pushed_behind_the_end(server: Served, last: bytes) -> None:
    client = server.connect()
    writer = client.open(new_id()).push(b"data").end()
    writer.push(last, data_type=END if last == b"\0\0\0\0" else 1)
    assert client.writer_error().code == WriterErrorCode.BAD_REQUEST


def test_a_subpartition_that_there_is_not_is_refused(server: Served) -> None:
    client = server.connect()
    writer = client.open(new_id(), 2)
    client.send(w.encode_push_buffer(writer.handle, 2, 0, 1, False, b"x"))
    assert client.writer_error().code == WriterErrorCode.BAD_REQUEST
    assert len(client.list()) == 1


def test_more_than_there_is_credit_for_is_refused(serve: Any) -> None:
    server = serve(shuffle_write_credit_buffers=4, shuffle_pipelined_bytes=1)
    client = server.connect()
    writer = client.open(new_id())
    assert writer.credit == 4
    writer.push(*[b"x"] * 4)
    client.sync()
    writer.push(b"y")
    assert client.writer_error().code == WriterErrorCode.BAD_REQUEST


def test_existing_partition_requires_its_writer_and_shape(server: Served) -> None:
    client = server.connect()
    writer = client.open(partition := new_id(), 2, BLOCKING)
    for subpartitions, kind, name in (
        (3, BLOCKING, writer.writer),
        (2, PIPELINED, writer.writer),
        (2, BLOCKING, b"x" * 16),
    ):
        client.send(w.encode_open_partition(name, partition, subpartitions, kind))
        error = client.writer_error()
        assert (error.writer, error.handle, error.code) == (name, -1, WriterErrorCode.EXISTS_WITH_OTHER_SHAPE)
    client.finish(writer)
    client.send(w.encode_open_partition(writer.writer, partition, 2, BLOCKING))
    assert client.writer_error().code == WriterErrorCode.FINISHED_ALREADY


def test_finishing_twice_is_finishing_once(server: Served) -> None:
    client = server.connect()
    writer = client.open(new_id(), 1, BLOCKING).finish().finish()
    client.wait_finished()
    writer.finish()
    assert client.sync() == []


# -- attempts -----------------------------------------------------------------------------------------------------------


def test_the_first_attempt_that_finishes_has_won(server: Served) -> None:
    base = new_id()
    ids = [base.with_attempt(n) for n in range(3)]
    clients = [server.connect() for _ in ids]
    writers = [client.open(i, 1, BLOCKING) for client, i in zip(clients, ids, strict=True)]
    for writer in writers:
        writer.push(b"from %d" % writer.handle)
    clients[1].finish(writers[1])
    # The first gets an error, the second continues, a third comes late.
    assert clients[0].writer_error().code == WriterErrorCode.ANOTHER_ATTEMPT_WON
    writers[2].push(b"more").finish()
    assert clients[2].writer_error().code == WriterErrorCode.ANOTHER_ATTEMPT_WON
    late = server.connect()
    late.send(w.encode_open_partition(b"w" * 16, base.with_attempt(7), 1, BLOCKING))
    assert late.writer_error().code == WriterErrorCode.ANOTHER_ATTEMPT_WON
    assert [info.partition for info in late.list()] == [ids[1]]
    assert read(server, ids[1]) == [b"from 1"]


def test_released_winner_lets_another_attempt_win(server: Served) -> None:
    first = new_id()
    client = server.connect()
    client.finish(client.open(first, 1, BLOCKING))
    client.release(first)
    client.finish(client.open(first.with_attempt(1), 1, BLOCKING).push(b"again"))
    assert read(server, first.with_attempt(1)) == [b"again"]


@pytest.mark.parametrize("subpartitions", [1, 3])
def test_large_blocking_partition_is_written_before_finishing(
    server: Served, monkeypatch: pytest.MonkeyPatch, subpartitions: int
) -> None:
    monkeypatch.setattr(result_partition, "_EARLY_BYTES", 20_000)
    monkeypatch.setattr(result_partition, "_EARLY_BYTES_OF_EACH", 10_000)
    client = server.connect()
    small = client.open(new_id(), subpartitions, BLOCKING).push(b"x" * 19_000)
    pipelined = client.open(new_id(), 1, PIPELINED).push(b"x" * 40_000)
    large = client.open(partition := new_id(), subpartitions, BLOCKING).push(b"x" * 19_000, b"y" * 11_000)
    wait_for(lambda: server.partitions.budget.disk == 30_000)
    client.finish(large.push(b"z"))
    assert read(server, partition) == [b"x" * 19_000, b"y" * 11_000, b"z"]
    assert server.partitions.budget.memory == 59_000
    for writer in (small, pipelined):
        client.finish(writer)


def test_unstored_attempt_has_not_won(server: Served) -> None:
    first = new_id()
    client, other = server.connect(), server.connect()
    writer = client.open(first, 1, BLOCKING).push(b"data")
    standby = other.open(first.with_attempt(1), 1, BLOCKING).push(b"standby")
    other.sync()
    server.disk.error = OSError(errno.EIO, "broken")
    writer.finish()
    assert client.writer_error().code == WriterErrorCode.STORAGE_ERROR
    server.disk.error = None
    other.finish(standby)
    assert read(server, first.with_attempt(1)) == [b"standby"]


# -- the end ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_releasing_frees_everything_and_tells_the_writer(server: Served, kind: Any) -> None:
    client, other = server.connect(), server.connect()
    client.open(partition := new_id(), 1, kind).push(b"x" * 1000)
    client.sync()
    assert other.release(partition)
    assert not other.release(partition)
    assert client.writer_error().code == WriterErrorCode.RELEASED
    assert server.partitions.budget.memory == 0


def test_released_data_set_loses_all_attempts_and_refuses(server: Served) -> None:
    client, other = server.connect(), server.connect()
    first, elsewhere = new_id(), new_id()
    stored = ResultPartitionID.of(first.data_set, 1)
    client.finish(client.open(stored, 1, BLOCKING).push(b"x" * 1000))
    writer = client.open(first, 1, BLOCKING).push(b"x" * 1000)
    client.finish(client.open(elsewhere, 1, BLOCKING).push(b"kept"))
    assert 2 == other.release_data_set(first.data_set)
    assert client.writer_error().code == WriterErrorCode.RELEASED
    for late in (first, first.with_attempt(1), stored):  # the first by its own writer, which does not know yet
        client.send(w.encode_open_partition(writer.writer, late, 1, BLOCKING))
        assert client.find(w.WriterError).code == WriterErrorCode.RELEASED
    assert [elsewhere] == [info.partition for info in other.list()]
    assert 0 == other.release_data_set(first.data_set)
    assert read(server, elsewhere) == [b"kept"]


def test_latest_released_data_sets_are_remembered(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "_RELEASED_DATA_SETS_MAX", 2)
    client = server.connect()
    old, new = new_id(), new_id()
    for data_set in (new, old, new, new_id()):
        client.release_data_set(data_set.data_set)
    client.open(old)
    client.send(w.encode_open_partition(bytes(range(16)), new, 1, BLOCKING))
    assert client.find(w.WriterError).code == WriterErrorCode.RELEASED


@pytest.mark.parametrize("how", ["cancelled", "consumed", "released"])
def test_returning_writer_hears_of_release_meanwhile(server: Served, how: str) -> None:
    """A new partition of the same id would have no readers, and its writer would wait for them for ever."""
    partition = new_id()

    def opening(name: bytes, resumes: bool) -> bytes:
        return w.encode_open_partition(name, partition, 1, PIPELINED, incarnation=1, resumes=resumes, attempt=resumes)

    name, other = b"w" * 16, b"o" * 16
    client, reader = server.connect().send(opening(name, False)), server.connect()
    writer = Writer(client, client.next(w.PartitionOpened)).push(b"data")
    if how == "consumed":
        writer.end()
    client.sync()
    client.reset()
    existing = server.partitions.find(partition)
    assert existing is not None
    wait_for(lambda: existing.lease.listener is None)
    if how == "released":
        assert reader.release(partition)
    else:
        receiver = reader.request(partition)
        reader.take(3 if how == "consumed" else 1)
        reader.send(m.encode_cancel_partition_request(receiver))
        reader.sync()
    again = server.connect()
    for _ in range(2):
        error = again.send(opening(name, True)).next(w.WriterError)
        assert (error.writer, error.handle) == (name, w.NO_HANDLE)
        assert error.code == (WriterErrorCode.RELEASED if how == "released" else WriterErrorCode.READERS_GONE)
    assert not server.partitions.list(partition.hex())
    # Another writer begins with a new partition.
    assert again.send(opening(other, True)).next(w.PartitionOpened).next_sequences == (0,)
    assert reader.release(partition)
    again.next(w.WriterError)
    assert again.send(opening(name, False)).next(w.PartitionOpened).next_sequences == (0,)


def test_latest_released_partitions_are_remembered(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "_RELEASED_PARTITIONS_MAX", 2)
    client = server.connect()
    ids = [new_id() for _ in range(3)]
    name = b"w" * 16
    for partition in ids:
        client.open(partition, writer=name)
        client.release(partition)
        assert client.find(w.WriterError).code == WriterErrorCode.RELEASED
    resumed = [w.encode_open_partition(name, partition, 1, PIPELINED, resumes=True, incarnation=1) for partition in ids]
    client.send(*resumed)
    assert client.find(w.PartitionOpened).next_sequences == (0,)
    assert [client.find(w.WriterError).code for _ in ids[1:]] == [WriterErrorCode.RELEASED] * 2
    assert [info.partition for info in client.list()] == ids[:1]


def test_partition_of_same_id_has_its_own_files(server: Served) -> None:
    """The files of the first are removed while the second is being stored, and may still be sent."""
    partition = new_id()
    client = server.connect()
    client.finish(client.open(partition, 1, BLOCKING).push(b"first" * 10_000))
    reader = server.connect(receive_buffer=4096)
    reader.request(partition)
    reader.sync()
    server.disk.gate.clear()
    client.release(partition)
    writer = client.open(partition, 1, BLOCKING).push(b"second").finish()
    server.disk.gate.set()
    client.wait_finished()
    assert writer
    assert read(server, partition) == [b"second"]
    wait_for(lambda: len(server.files) == 2)
    with_restart = server.shuffle.spiller.directory.read_index(server.files[0].partition(".")[0])
    assert [entry[4] for entry in with_restart.entries] == [6, 5, 4]


def test_a_finished_blocking_partition_expires(server: Served) -> None:
    client = server.connect()
    client.finish(client.open(new_id(), 1, BLOCKING, ttl_ms=20).push(b"data"))
    wait_for(lambda: client.list() == ())
    wait_for(lambda: server.files == [])


def test_a_pipelined_partition_that_nobody_reads_expires(server: Served) -> None:
    client = server.connect()
    client.finish(client.open(new_id(), ttl_ms=20).push(b"data"))
    wait_for(lambda: client.list() == ())


def test_partition_does_not_expire_while_it_is_read(server: Served) -> None:
    client = server.connect()
    client.finish(client.open(partition := new_id(), 1, BLOCKING).push(b"1", b"2"))
    reader = server.connect()
    receiver = reader.request(partition, credit=1)
    reader.take(1)
    server.partitions._expire(server.partitions._by_id[partition])  # its time to live has passed
    assert len(client.list()) == 1
    reader.add_credit(receiver, 1)
    assert len(reader.read_to_end(receiver)) == 3


def test_partitions_are_listed_as_they_are(server: Served) -> None:
    client = server.connect()
    stored = server.store(b"x" * 100)
    client.open(opened := new_id(), 3).push(b"y" * 10)
    reader = server.connect()
    reader.request(stored, credit=1)
    reader.sync()
    rows = {row.partition: row[1:] for row in client.list()}
    assert rows == {
        stored: (BLOCKING, PartitionState.FINISHED, 1, 109, 3, 1),
        opened: (PIPELINED, PartitionState.OPEN, 3, 10, 1, 0),
    }
    assert [row.partition for row in client.list(opened.hex()[:20])] == [opened]


# -- a reader that was lost, with a retention -----------------------------------------------------------------------------


@pytest.mark.parametrize("spilled", [False, True])
def test_a_lost_reader_begins_again_within_the_retention(serve: Any, spilled: bool) -> None:
    server = serve(shuffle_pipelined_retention_ms=60_000, **({"shuffle_memory_bytes": 1 << 20} if spilled else {}))
    size = 60_000 if spilled else 10
    buffers = [bytes([n]) * size for n in range(10)]
    client = server.connect()
    writer = client.open(partition := new_id()).push(*buffers)
    client.finish(writer)
    reader = server.connect()
    reader.request(partition, credit=3)
    assert payloads(reader.take(3)) == buffers[:3]
    reader.reset()
    wait_for(lambda: server.partitions.list("")[0].readers == 0)
    assert read(server, partition) == buffers
    # ... and that reader had everything.
    wait_for(lambda: server.partitions.list("") == [])


def test_last_sent_buffers_may_be_lost_with_connection(serve: Any) -> None:
    """Only the reader knows that it has everything: until it confirms that, or the retention is over, another may start over."""
    server = serve(shuffle_pipelined_retention_ms=60_000)
    client = server.connect()
    client.finish(client.open(partition := new_id()).push(b"1", b"2"))
    lost = server.connect()
    lost.read_to_end(lost.request(partition, 0))
    lost.reset()
    wait_for(lambda: server.partitions.list("")[0].readers == 0)
    assert read(server, partition) == [b"1", b"2"]
    wait_for(lambda: server.partitions.list("") == [])


def test_a_reader_that_cancels_does_not_come_back(serve: Any) -> None:
    server = serve(shuffle_pipelined_retention_ms=60_000)
    client = server.connect()
    client.open(partition := new_id()).push(b"1", b"2")
    reader = server.connect()
    receiver = reader.request(partition, credit=1)
    reader.take(1)
    reader.send(m.encode_cancel_partition_request(receiver))
    assert client.writer_error().code == WriterErrorCode.READERS_GONE


def test_after_the_retention_a_lost_reader_has_read(serve: Any) -> None:
    server = serve(shuffle_pipelined_retention_ms=30)
    client = server.connect()
    client.open(partition := new_id(), 2).push(b"1")
    lost, stays = server.connect(), server.connect()
    lost.request(partition, 0)
    lost.take(1)
    receiver = stays.request(partition, 1)
    stays.sync()
    lost.reset()
    wait_for(lambda: server.partitions.find(partition).part(0).abandoned)
    again = server.connect()
    again.request(partition, 0)
    assert again.error().class_name == PARTITION_NOT_FOUND_EXCEPTION
    assert len(client.list()) == 1
    stays.send(m.encode_cancel_partition_request(receiver))
    assert client.writer_error().code == WriterErrorCode.RELEASED


# -- what there is room for -----------------------------------------------------------------------------------------------


def granted(client: Client) -> int:
    """The credit granted in answer to pushes."""
    return sum(message.credit for message in client.sync() if isinstance(message, w.WriterCredit))


def test_a_pipelined_writer_waits_for_its_readers(serve: Any) -> None:
    size = 1000 + holdings.BUFFER_OVERHEAD
    server = serve(shuffle_write_credit_buffers=4, shuffle_pipelined_bytes=4 * size)
    client = server.connect()
    writer = client.open(partition := new_id())
    writer.push(*[b"x" * 1000] * 3)
    assert granted(client) == 3
    writer.push(b"x" * 1000)
    assert granted(client) == 0
    reader = server.connect()
    receiver = reader.request(partition, credit=1)
    reader.take(1)
    assert granted(client) == 0
    reader.add_credit(receiver)
    reader.take(1)
    assert client.next() == w.WriterCredit(writer.handle, 1)


def test_owner_beyond_quota_is_refused_and_partition_fails(serve: Any) -> None:
    structure = PARTITION_BYTES + PLACE_BYTES + SUBPARTITION_BYTES  # a partition that has failed is known for a while
    server = serve(shuffle_quota_bytes=1000 + IN_MEMORY_BYTES + 2 * structure)
    rich = server.connect()
    rich.open(new_id(), owner="rich").push(b"x" * 900)
    poor = server.connect()
    partition = new_id()
    writer = poor.open(partition, 1, BLOCKING, owner="poor").push(b"x" * 900)
    reader = server.connect()
    receiver = reader.request(partition)
    reader.sync()
    writer.push(b"x" * (structure + 101))
    assert poor.writer_error().code == WriterErrorCode.QUOTA_EXCEEDED
    assert reader.error()[::2] == (PRODUCER_FAILED_EXCEPTION, receiver)
    assert not [message for message in rich.sync() if not isinstance(message, w.PushAcknowledged)]
    # Its buffers count no more.
    poor.finish(poor.open(new_id(), 1, BLOCKING, owner="poor").push(b"x" * 1000))


@pytest.mark.parametrize("size", [1000, 30_000])
@pytest.mark.parametrize("kind", KINDS)
def test_partition_larger_than_memory_is_spilled_and_read(serve: Any, kind: Any, size: int) -> None:
    server = serve(shuffle_memory_bytes=1 << 20, shuffle_pipelined_bytes=1 << 30)
    buffers = [bytes([n % 256]) * size for n in range(4_000_000 // size)]
    client = server.connect()
    writer = client.open(partition := new_id(), 2, kind)
    for position, buffer in enumerate(buffers):
        writer.push_with_credit(buffer, position % 2)
    assert server.partitions.budget.memory <= (1 << 20) + 64 * size
    client.finish(writer)
    assert read(server, partition) == buffers[::2]
    if kind is BLOCKING:
        assert read(server, partition) == buffers[::2]
        assert server.partitions.budget.memory == 0
    assert read(server, partition, 1) == buffers[1::2]


def test_full_disk_makes_writers_wait_until_it_recovers(serve: Any) -> None:
    server = serve(shuffle_memory_bytes=1 << 20, shuffle_pipelined_bytes=1 << 30)
    server.disk.error = OSError(errno.ENOSPC, "full")
    client = server.connect()
    writer = client.open(partition := new_id(), 1, BLOCKING)
    pushed = 0
    while True:  # until the last credit is used up and none comes
        while writer.credit:
            writer.push(b"x" * 30_000)
            pushed += 1
        credit = granted(client)
        if not credit:
            break
        writer.credit += credit
    assert 900_000 < pushed * 30_000 <= 1 << 20
    server.disk.error = None
    writer.push_with_credit(b"last")
    client.finish(writer)
    assert len(read(server, partition)) == pushed + 1


def test_used_up_disk_blocks_only_blocking_writers(serve: Any) -> None:
    server = serve(shuffle_disk_bytes=50_000, shuffle_write_credit_buffers=4)
    stored = server.store(b"x" * 50_000)
    client, other = server.connect(), server.connect()
    writer = client.open(new_id(), 1, BLOCKING).push(b"x")
    assert granted(client) == 0
    other.open(new_id()).push(b"x")
    assert granted(other) == 1
    server.connect().release(stored)
    assert client.next() == w.WriterCredit(writer.handle, 1)


def test_blocked_writer_continues_when_other_partitions_are_read(serve: Any) -> None:
    server = serve(shuffle_memory_bytes=1 << 20, shuffle_write_credit_buffers=4)
    server.disk.error = OSError(errno.ENOSPC, "full")
    hog = server.connect()
    hog.open(partition := new_id()).push(*[b"x" * 340_000] * 3)
    hog.sync()
    client = server.connect()
    waits = client.open(new_id())
    assert waits.credit == granted(client) == 0
    reader = server.connect()
    reader.request(partition, credit=100)
    for _ in range(3):
        reader.next(BufferResponse)
    waits.push_with_credit(b"x")
    server.disk.error = None


def test_pushes_after_the_partition_failed_are_dropped(server: Served) -> None:
    client = server.connect()
    writer = client.open(partition := new_id())
    server.partitions.fail(server.partitions.find(partition), "because")
    writer.push(*[b"x" * 1000] * 10)
    error = client.writer_error()
    assert (error.code, error.message) == (WriterErrorCode.RELEASED, "because")
    assert client.sync() == []
    assert server.partitions.budget.memory == 0
