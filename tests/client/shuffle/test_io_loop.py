"""The I/O thread serves all writers and gates of the process: the error of one must not affect the others."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from broker.client import Broker, InputGate, ResultPartitionID, ShuffleAdmin, ShuffleWriter
from broker.client.shuffle import io_loop
from broker.client.shuffle.errors import LocalTransportError, ProducerFailedError, ShuffleError
from broker.client.shuffle.local_exchange import LocalExchange
from broker.runtime import process
from protocol.shuffle import writer_frames
from protocol.shuffle.events import EndOfSuperstep, OtherEvent, UnknownEvent
from tests.client.shuffle.reference_server import ReferenceServer
from tests.waiting import wait_for


class Unlucky(Exception):
    pass


def unlucky(*_: object) -> None:
    raise Unlucky("as it is")


def leave(*_: object) -> None:
    raise SystemExit(1)


def tell_event(gate: InputGate) -> None:
    gate.send_event(OtherEvent("some.Event"))


def tell_size(gate: InputGate) -> None:
    gate.announce_buffer_size(1000)


def raises_soon(writer: ShuffleWriter, expected: type[Exception], text: str) -> None:
    """The I/O thread calls the callback at some time."""
    with pytest.raises(expected, match=text):
        push_on(writer)


def push_on(writer: ShuffleWriter) -> None:
    for _ in range(30_000):
        writer.push(0, b"x", timeout=30)


@pytest.mark.parametrize(
    ("callback", "news"),
    [("on_task_event", tell_event), ("on_buffer_size", tell_size)],
)
@pytest.mark.parametrize(
    ("function", "expected", "text"), [(unlucky, Unlucky, "as it is"), (leave, ShuffleError, "SystemExit")]
)
def test_error_of_a_callback_fails_only_its_writer(
    broker: Broker,
    partition: ResultPartitionID,
    callback: str,
    news: Callable[[InputGate], None],
    function: Callable[..., None],
    expected: type[Exception],
    text: str,
) -> None:
    address, other = broker.shuffle_address, partition.with_attempt(7)
    with (
        InputGate([(address, partition, 0)]) as gate,
        InputGate([(address, other, 0)]) as other_gate,
        ShuffleWriter(address, other, 1) as good,
    ):
        bad = ShuffleWriter(address, partition, 1)
        setattr(bad, callback, function)
        bad.open()
        bad.push(0, b"first")
        assert gate.poll(30) is not None
        news(gate)

        def read() -> None:
            while True:
                gate.poll(30)

        wait_for(lambda: bad._shared.error is not None)
        raises_soon(bad, expected, text)
        with pytest.raises(expected, match=text):
            bad.commit(30)
        # Its readers know, without waiting for the writer to be closed.
        with pytest.raises(ProducerFailedError, match=text):
            read()
        bad.close()
        good.push(0, b"goes on")
        item = other_gate.poll(30)
        assert item is not None
        assert b"goes on" == item.data


def test_callback_of_local_writer_spares_its_reader(partition: ResultPartitionID) -> None:
    exchange = LocalExchange()
    writer = exchange.writer(partition, 1)
    writer.on_task_event = unlucky
    writer.open()
    writer.push(0, b"data")
    with InputGate([(exchange, partition, 0)]) as gate:
        assert gate.poll(30) is not None
        tell_event(gate)
        with pytest.raises(Unlucky):
            writer.push(0, b"more")
        with pytest.raises(ProducerFailedError, match="Unlucky: as it is"):
            gate.poll(30)
    writer.close()


@pytest.mark.parametrize(
    ("event", "why"), [(b"\0\0\0\x63rest", "unknown tag 99"), (b"\0\0\0\x01short", "end"), (b"\0", "end")]
)
def test_undecodable_task_event_is_passed_on_unchanged(
    server: ReferenceServer, partition: ResultPartitionID, event: bytes, why: str
) -> None:
    """A reader of a later release may know events that this side does not."""
    came: list[Any] = []
    writer = ShuffleWriter(server.address, partition, 1)
    writer.on_task_event = lambda *news: came.append(news)
    with writer:

        def send() -> None:
            connection = server.partitions[partition].connection
            (handle,) = connection.handles
            for sent in (event, b"\0\0\0\x02"):
                connection.send(writer_frames.encode_writer_task_event(handle, 0, sent))

        server.call(send)
        wait_for(lambda: len(came) == 2)
        (unknown, subpartition), known = came
        assert isinstance(unknown, UnknownEvent)
        assert (event, 0) == (unknown.data, subpartition)
        assert why in unknown.error
        assert (EndOfSuperstep(), 0) == known
        writer.push(0, b"goes on")


def test_failing_connection_takes_no_other_with_it(
    server: ReferenceServer, partition: ResultPartitionID, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = partition.with_attempt(7)
    with ShuffleWriter(server.address, other, 1) as good:
        bad = ShuffleWriter(server.address, partition, 1)
        bad.open()
        monkeypatch.setattr(bad._link, "_on_message", unlucky)
        bad.push(0, b"data")
        with pytest.raises(LocalTransportError, match="Unlucky"):
            bad.commit(30)
        bad.close()
        good.push(0, b"goes on")


def test_call_belongs_to_its_methods_owner(
    server: ReferenceServer, partition: ResultPartitionID, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = partition.with_attempt(7)
    with ShuffleWriter(server.address, other, 1) as good:
        bad = ShuffleWriter(server.address, partition, 1)
        bad.open()
        monkeypatch.setattr(bad._window, "_unsent_pushes", None)  # sending fails
        bad._link.schedule_send()
        with pytest.raises(TypeError):
            bad.commit(30)
        bad.close()
        good.push(0, b"goes on")


def test_error_of_run_is_raised_at_the_caller(server: ReferenceServer) -> None:
    with ShuffleAdmin(server.address) as admin:
        with pytest.raises(Unlucky):
            io_loop.run(admin._loop, unlucky)
        assert () == admin.partitions()


def test_ownerless_error_ends_the_loop_for_all(server: ReferenceServer, partition: ResultPartitionID) -> None:
    writer = ShuffleWriter(server.address, partition, 1)
    writer.open()
    assert writer._loop is not None
    writer._loop.call(leave)
    with pytest.raises(LocalTransportError, match="I/O thread has failed: SystemExit"):
        push_on(writer)
    writer.close()
    with ShuffleWriter(server.address, partition.with_attempt(1), 1) as another:
        another.push(0, b"on a thread of its own")


FAULTS = """
import resource
from broker.client.shuffle import io_loop

loop = io_loop.acquire()
for rounds in (50, 500):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        pieces = [bytes(32768) for _ in range(64)]
        del pieces
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
io_loop.release(loop)
"""


@pytest.mark.skipif(process._mallopt is None, reason="the C library has no mallopt")
def test_memory_of_dropped_payloads_is_reused() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    run = subprocess.run(
        [sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True, timeout=60, env=environment
    )
    assert int(run.stdout) < 1000  # of 256,000 pages
