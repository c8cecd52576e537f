"""Clients' rights on the partitions of an owner: over real sockets, with an authorizer that each test configures."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from broker.security.acl import Operation, ResourceType
from broker.security.principal import Principal
from broker.shuffle.rights import Rights
from protocol.shuffle import messages as m
from protocol.shuffle import writer_frames as w
from protocol.shuffle.buffer_response import BufferResponse
from protocol.shuffle.errors import ILLEGAL_ARGUMENT_EXCEPTION, IO_EXCEPTION, PARTITION_NOT_FOUND_EXCEPTION
from protocol.shuffle.ids import ResultPartitionID
from protocol.shuffle.writer_frames import WriterErrorCode
from tests.security.grants import Grant, Grants
from tests.shuffle.harness import BLOCKING, PIPELINED, Client, Served, new_id

READ, WRITE, DELETE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DELETE, Operation.DESCRIBE
KINDS = pytest.mark.parametrize("kind", [PIPELINED, BLOCKING])
# How long a reader waits for a partition that does not come. One that comes may take a while on a busy machine.
PATIENCE_MS = 1500


def grant(operation: Operation, owner: str) -> Grant:
    return operation, ResourceType.TOPIC, f"shuffle:{owner}"


@pytest.fixture
def grants() -> Grants:
    return Grants()


@pytest.fixture
def server(serve: Callable[..., Served], grants: Grants) -> Served:
    return serve(authorizer=grants, shuffle_partition_request_timeout_ms=PATIENCE_MS)


def open_answer(client: Client, partition: bytes, owner: str, writer: bytes | None = None) -> Any:
    client.send(w.encode_open_partition(writer or os.urandom(16), partition, 1, BLOCKING, -1, owner))
    return client.find((w.PartitionOpened, w.WriterError))


def refusal(answer: w.WriterError) -> tuple[int, int, str]:
    return answer.handle, answer.code, answer.message


NOT_AUTHORIZED = (w.NO_HANDLE, WriterErrorCode.NOT_AUTHORIZED, "Not authorized.")


def test_writer_opens_only_partitions_of_permitted_owners(server: Served, grants: Grants) -> None:
    with grants.only(grant(WRITE, "alice")):
        client = server.connect()
        client.finish(client.open(new_id(), owner="alice"))
        assert refusal(open_answer(client, new_id(), "bob")) == NOT_AUTHORIZED
        assert refusal(open_answer(client, new_id(), "")) == NOT_AUTHORIZED
        assert grants.denied == [grant(WRITE, "bob"), grant(WRITE, "")]
    with grants.only(grant(WRITE, "")):
        client.finish(client.open(new_id()))


def test_foreign_partition_is_neither_taken_over_nor_described(server: Served, grants: Grants) -> None:
    theirs = server.connect().open(partition := new_id(), 7, PIPELINED, owner="bob")
    finished = server.store(b"data", owner="bob")
    with grants.only(grant(WRITE, "alice")):
        client = server.connect()
        for named in (partition, finished):
            assert refusal(open_answer(client, named, "alice", theirs.writer)) == NOT_AUTHORIZED
    theirs.push(b"data").finish()
    theirs.client.wait_finished()


def test_an_attempt_of_another_owner_wins_against_nobody(server: Served) -> None:
    first = new_id()
    client = server.connect()
    ours = client.open(first, 1, BLOCKING, owner="alice")
    theirs = server.connect().open(first.with_attempt(1), 1, BLOCKING, owner="bob")
    theirs.client.finish(theirs)
    client.finish(ours.push(b"data"))
    assert len(client.list()) == 2


def test_without_acls_the_attempts_of_different_owners_compete(serve: Callable[..., Served]) -> None:
    first, client = new_id(), serve().connect()
    client.finish(client.open(first, 1, BLOCKING, owner="alice"))
    assert open_answer(client, first.with_attempt(1), "bob").code is WriterErrorCode.ANOTHER_ATTEMPT_WON


@KINDS
@pytest.mark.parametrize("action", ["push", "finish", "fail"])
def test_writer_that_loses_its_right_is_stopped(server: Served, grants: Grants, kind: Any, action: str) -> None:
    with grants.only(grant(WRITE, "alice")):
        client = server.connect()
        writer = client.open(partition := new_id(), 1, kind, owner="alice")
        writer.push(b"0")
        client.sync()
    with grants.only():
        if action == "push":
            writer.push(b"1")
        elif action == "finish":
            writer.finish()
        else:
            client.send(w.encode_fail_partition(writer.handle, "no"))
        error = client.writer_error()
        assert (error.handle, error.code) == (writer.handle, WriterErrorCode.NOT_AUTHORIZED)
        writer.push(b"2")  # sent before it heard: ignored
        assert client.sync() == []
    again = server.connect().open(partition, 1, kind, writer=writer.writer, owner="alice")
    assert again.opened.next_sequences == (1,)


# -- readers ------------------------------------------------------------------------------------------------------------


def told(client: Client, receiver: bytes) -> tuple[str, str | None]:
    error = client.error()
    assert error.receiver == receiver
    return error.class_name, error.message


def test_reader_reads_only_partitions_of_permitted_owners(server: Served, grants: Grants) -> None:
    partition = server.store(b"data", owner="alice")
    with grants.only(grant(READ, "alice")):
        client = server.connect()
        assert client.read_to_end(client.request(partition))[0].payload == b"data"


@pytest.mark.parametrize("kind", [PIPELINED, BLOCKING])
def test_forbidden_partition_never_comes(server: Served, grants: Grants, kind: Any) -> None:
    writer = server.connect().open(partition := new_id(), 1, kind, owner="alice")
    if kind is BLOCKING:
        writer.client.finish(writer)
    missing = new_id()
    with grants.only(grant(READ, "bob")):
        client = server.connect()
        for named in (partition, missing):
            receiver = client.request(named)
            assert told(client, receiver) == (PARTITION_NOT_FOUND_EXCEPTION, f"Partition {named} not found.")
        assert grants.denied == [grant(READ, "alice")]


def test_waiting_reader_is_checked_when_partition_comes(server: Served, grants: Grants) -> None:
    mine, theirs = new_id(), new_id()
    with grants.only(grant(READ, "alice"), grant(WRITE, "alice"), grant(WRITE, "bob")):
        client = server.connect()
        hidden, shown = client.request(theirs), client.request(mine)
        client.sync()
        writer = server.connect()
        for partition, owner in ((theirs, "bob"), (mine, "alice")):
            writer.open(partition, 1, PIPELINED, owner=owner).push(b"data")
        assert client.find(BufferResponse).receiver == shown
        assert told(client, hidden)[0] == PARTITION_NOT_FOUND_EXCEPTION
        # Nor does the hidden reader learn how the partition ended.
        assert grants.denied == [grant(READ, "bob")]


@KINDS
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("end", ["fail", "release"])
def test_hidden_reader_hears_nothing_of_partition_end(
    server: Served, grants: Grants, kind: Any, early: bool, end: str
) -> None:
    partition, missing = new_id(), new_id()
    with grants.only(grant(READ, "bob"), *(grant(operation, "alice") for operation in (WRITE, DELETE))):
        client, other = server.connect(), server.connect()
        waiting = client.request(missing)
        hidden = client.request(partition) if early else b""
        client.sync()
        writer = other.open(partition, 1, kind, owner="alice")
        hidden = hidden or client.request(partition)
        client.sync()
        if end == "fail":
            other.send(w.encode_fail_partition(writer.handle, "no"))
        else:
            assert other.release(partition)
        # In the order of their requests: both have waited until their timeout.
        for receiver in (waiting, hidden):
            assert told(client, receiver)[0] == PARTITION_NOT_FOUND_EXCEPTION


def test_a_hidden_reader_can_cancel(server: Served, grants: Grants) -> None:
    partition = server.store(b"data", owner="alice")
    with grants.only(grant(READ, "bob")):
        client = server.connect()
        receiver = client.request(partition)
        client.send(m.encode_cancel_partition_request(receiver))
        assert client.sync() == []
        assert len(server.partitions.waiting) == 0


def test_client_without_read_rights_is_told_at_once(serve: Callable[..., Served], grants: Grants) -> None:
    server = serve(authorizer=grants)  # with the default timeout
    partition = server.store(b"data", owner="alice")
    with grants.only():
        client = server.connect()
        for named in (partition, new_id()):
            assert told(client, client.request(named)) == (IO_EXCEPTION, "Not authorized.")


def test_reader_that_loses_its_right_is_stopped(server: Served, grants: Grants) -> None:
    partition = server.store(b"0", b"1", b"2", owner="alice")
    with grants.only(grant(READ, "alice")):
        client = server.connect()
        receiver = client.request(partition, credit=1)
        assert client.next(BufferResponse).payload == b"0"
    with grants.only():
        client.add_credit(receiver)
        assert told(client, receiver) == (IO_EXCEPTION, "Not authorized.")
        client.add_credit(receiver, 5)
        assert client.sync() == []
    client.read_to_end(client.request(partition))


def test_events_reach_producers_only_from_permitted_readers(server: Served, grants: Grants) -> None:
    writer = server.connect().open(partition := new_id(), 1, PIPELINED, owner="alice")
    client = server.connect()
    with grants.only(grant(READ, "bob")):
        for named in (partition, new_id()):
            client.send(m.encode_task_event_request(b"\0\0\0\2", ResultPartitionID(named), receiver := os.urandom(16)))
            assert told(client, receiver) == (ILLEGAL_ARGUMENT_EXCEPTION, "Task event receiver not found.")
    assert writer.client.sync() == []


# -- releasing and listing ----------------------------------------------------------------------------------------------


def test_unreleasable_partition_looks_like_a_missing_one(server: Served, grants: Grants) -> None:
    partition = server.store(b"data", owner="alice")
    client = server.connect()
    with grants.only(grant(DELETE, "bob")):
        assert client.release(partition) is client.release(new_id()) is False
        assert grants.denied == [grant(DELETE, "alice")]
    with grants.only(grant(DELETE, "alice")):
        assert client.release(partition) is True


def test_data_set_is_released_for_permitted_owners(server: Served, grants: Grants) -> None:
    alices = new_id()
    bobs = ResultPartitionID.of(alices.data_set, 1)
    later = {owner: ResultPartitionID.of(alices.data_set, number) for number, owner in enumerate(("alice", "bob"), 2)}
    client = server.connect()
    for partition, owner in ((alices, "alice"), (bobs, "bob")):
        client.finish(client.open(partition, 1, BLOCKING, owner=owner))
    writes = grant(WRITE, "alice"), grant(WRITE, "bob")
    with grants.only(*writes):
        assert client.release_data_set(alices.data_set) == 0
    with grants.only(*writes, grant(DELETE, "alice")):
        assert client.release_data_set(alices.data_set) == 1
        assert refusal(open_answer(client, later["alice"], "alice"))[1] == WriterErrorCode.RELEASED
        client.finish(client.open(later["bob"], owner="bob"))
    # Another client's release is beside it.
    others = Grants()
    others.rules = frozenset({grant(DELETE, "bob")})
    assert server.partitions.release_data_set(alices.data_set, Rights(others, Principal("User", "bob"), "host")) == 2
    with grants.only(*writes, grant(DELETE, "alice")):
        for owner in later:
            assert refusal(open_answer(client, later[owner], owner))[1] == WriterErrorCode.RELEASED


def test_a_list_has_what_one_may_know_of(server: Served, grants: Grants) -> None:
    kept = {owner: server.store(b"data", owner=owner) for owner in ("alice", "bob", "")}
    client = server.connect()
    with grants.only(grant(DESCRIBE, "bob")):
        assert [info.partition for info in client.list()] == [kept["bob"]]
        assert client.list(kept["alice"].hex()) == client.list(new_id().hex()) == ()
        assert grants.denied == []
    assert len(client.list()) == 3
