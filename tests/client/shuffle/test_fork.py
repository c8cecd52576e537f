"""A forked child and its parent's objects: copies of locks and descriptors, and no I/O thread."""

import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable

import pytest

from broker.client import Broker, InputGate, ResultPartitionID, ShuffleAdmin, ShuffleWriter
from broker.client.shuffle.errors import ShuffleClosedError
from broker.runtime import forks

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here"),
    # Python warns of forks beside threads, from 3.12 on: these tests fork on purpose.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def in_child(function: Callable[[], object]) -> None:
    """Run it in a forked child; fail if it raises or hangs."""
    child = os.fork()
    if not child:
        status = 1
        try:
            function()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    watch = threading.Timer(60, os.kill, (child, 9))
    watch.start()
    _, status = os.waitpid(child, 0)
    watch.cancel()
    assert status == 0


def test_child_closes_its_copies_and_parent_continues(broker: Broker, partition: ResultPartitionID) -> None:
    address = broker.shuffle_address
    with (
        ShuffleWriter(address, partition, 1) as writer,
        writer.records() as records,
        InputGate([(address, partition, 0)]) as gate,
        ShuffleAdmin(address) as admin,
    ):
        reader = gate.records()
        records.write(b"before")
        records.flush()
        assert b"before" == next(reader)

        def child() -> None:
            uses = [
                lambda: writer.push(0, b"child"),
                lambda: writer.try_push(0, b"child"),
                writer.commit,
                writer.open,
                lambda: records.write(b"child"),
                records.flush,
                lambda: gate.poll(1),
                admin.partitions,
            ]
            for use in uses:
                with pytest.raises(ShuffleClosedError, match="process that this one was forked from"):
                    use()
            writer.fail("from the child")
            for copy in (gate, writer, admin):
                copy.close()

        in_child(child)
        for number in range(200):
            records.write(b"%d" % number)
            records.flush()
            assert b"%d" % number == next(reader)
        assert 1 == len(admin.partitions())


def test_child_has_its_own_loop(broker: Broker, partition: ResultPartitionID) -> None:
    address, other = broker.shuffle_address, ResultPartitionID.of(os.urandom(16))
    with ShuffleWriter(address, partition, 1, "blocking") as writer:
        writer.push(0, b"parent")

        def child() -> None:
            with ShuffleWriter(address, other, 1, "blocking") as own:
                own.push(0, b"child")
            # And the child of a child.
            in_child(read)

        def read() -> None:
            with InputGate([(address, other, 0)]) as gate:
                assert [b"child"] == [bytes(data) for _, data in gate.buffers()]

        in_child(child)
        read()
        writer.push(0, b"goes on")


def test_connection_ends_when_the_parent_ends_it(broker: Broker, partition: ResultPartitionID) -> None:
    """A copy of its descriptor in a surviving child would keep it open."""
    address = broker.shuffle_address
    writer = ShuffleWriter(address, partition, 1)
    writer.open()
    opened, close = os.pipe()
    child = os.fork()
    if not child:
        os.close(close)
        os.read(opened, 1)  # until the parent ends
        os._exit(0)
    os.close(opened)
    try:
        with ShuffleAdmin(address) as admin:
            assert 1 == len(admin.partitions())
            writer.close()
            connections = [
                connection for processor in broker.server.sockets.processors for connection in processor.connections
            ]
            for _ in range(3000):
                if sum(not connection.closed for connection in connections) == 1:
                    break
                threading.Event().wait(0.01)
            else:
                raise AssertionError("the broker still has a connection")
    finally:
        os.close(close)
        os.waitpid(child, 0)


def test_lock_held_at_the_fork_blocks_no_child(broker: Broker, partition: ResultPartitionID) -> None:
    writer = ShuffleWriter(broker.shuffle_address, partition, 1)
    gate = InputGate([(broker.shuffle_address, partition, 0)])
    writer.open()
    records = writer.records()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with writer._shared.changed, gate.lock, records._lock, gate.loop.poller._alarm._lock:  # type: ignore[attr-defined]
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)

    def child() -> None:
        records.close(discard=True)
        writer.close()
        gate.close()

    try:
        in_child(child)
    finally:
        done.set()
        thread.join()
    records.close(discard=True)
    writer.close()
    gate.close()


def test_fork_notifies_the_registered_objects() -> None:
    class One:
        forks = 0

        def forked(self) -> None:
            self.forks += 1

    counting = One()
    forks.tell(counting)
    before = forks.count()

    def child() -> None:
        assert (1, before + 1) == (counting.forks, forks.count())

    in_child(child)
    assert (0, before) == (counting.forks, forks.count())


def test_exit_function_runs_only_in_its_process() -> None:
    script = """
import os, sys
from broker.client.shuffle.blocks import AtExit

for name in ("done", "cancelled"):
    one = AtExit(lambda name=name: print(name, os.getpid() == parent, flush=True))
one.cancel()
parent = os.getpid()
child = os.fork()
if child:
    os.waitpid(child, 0)
sys.exit()
"""
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert "done True\n" == output.stdout
