"""A consumer's slices: when it is paused, and when it goes on."""

import pytest

from protocol.pulsar.pulsar_pb2 import BaseCommand
from tests.pulsar.subscriptions.stage import Stage


@pytest.mark.parametrize(("count", "size"), [(10, 60_000), (1000, 1)])
def test_a_slice_has_so_many_bytes_and_entries(stage: Stage, count: int, size: int) -> None:
    client = stage.client()
    client.link.reads = False
    member = client.subscribe()
    member.flow(1_000_000)
    while not member.connected.paused:
        stage.produce(1, size)
        assert len(client.link.frames) <= count
    assert not client.link.writable
    client.drained()
    stage.run()
    assert not member.connected.paused


def test_what_a_consumer_was_sent_is_counted(stage: Stage) -> None:
    stage.produce(2)
    stage.produce_batch(5)
    member = stage.client().subscribe()
    member.flow(10)
    stage.run()
    connected = member.connected
    assert (7, 0) == (connected.messages_out, connected.redelivered)
    assert connected.bytes_out > 0


def test_small_entries_leave_in_one_piece_and_large_ones_in_their_place(stage: Stage) -> None:
    client = stage.client()
    pushed: list[list[int]] = []
    push = client.state.outbox.push

    def note(connection: object, parts: list[bytes]) -> None:
        pushed.append([len(part) for part in parts])
        push(connection, parts)  # type: ignore[arg-type]

    client.state.outbox.push = note  # type: ignore[method-assign, assignment]
    member = client.subscribe()
    for size in (10, 20, 50_000, 30, 40, 60_000):
        stage.produce(1, size)
    pushed.clear()
    member.flow(10)
    stage.run()
    (sizes,) = pushed
    assert [True, False, True, False] == [size < 10_000 for size in sizes]
    assert [0, 1, 2, 3, 4, 5] == member.offsets()


def test_a_closed_consumer_is_forgotten_by_its_connection(stage: Stage) -> None:
    client = stage.client()
    member = client.subscribe()
    member.connected.close()
    assert {} == client.state.consumers
    ((kind, command),) = client.commands()
    assert (BaseCommand.Type.CLOSE_CONSUMER, 0, 2**64 - 1) == (kind, command.consumer_id, command.request_id)
