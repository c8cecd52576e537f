"""A broker in a process of its own: what a kill leaves, and what the program's end leaves."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from broker.client import Broker, ProcessBroker
from broker.client.broker_calls import NotRunning
from broker.errors import BrokerError, ConfigError, Refusal, StorageError
from tests.waiting import wait_for

InThread = Callable[[Callable[[], object]], threading.Thread]


@pytest.fixture
def broker() -> Iterator[ProcessBroker]:
    with ProcessBroker(listeners=("kafka://127.0.0.1:0",)) as running:
        yield running


def has_ended(pid: int) -> bool:
    """Also if nobody has asked for its status yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def values(broker: Broker, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.records(topic)]


def producer(broker: Broker, **settings: Any) -> Producer:
    return Producer({**broker.client_settings, "acks": "all", "retry.backoff.ms": 20, "log_level": 0, **settings})


def test_acknowledged_records_survive_a_kill(broker: ProcessBroker) -> None:
    before = broker.pid, broker.bootstrap_servers, broker.data_dir
    acknowledged: list[bytes] = []
    writing = producer(broker)

    def told(error: Any, message: Any) -> None:
        if error is None:
            acknowledged.append(message.value())

    reading = Consumer(
        {**broker.client_settings, "group.id": "g", "auto.offset.reset": "earliest", "log_level": 0}
        | {"reconnect.backoff.max.ms": 100, "topic.metadata.refresh.interval.ms": 1000}
    )
    reading.subscribe(["orders"])
    got: set[bytes] = set()
    broker.create_topic("orders")
    for number in range(3):
        for part in range(50):
            writing.produce("orders", b"%d-%d" % (number, part), on_delivery=told)
        wait_for(lambda enough=50 * number + 1: writing.poll(0.01) and len(acknowledged) >= enough)
        broker.kill()  # with requests in flight
        assert before[1:] == (broker.bootstrap_servers, broker.data_dir)
        broker.start()
        assert set(acknowledged) <= set(values(broker, "orders"))
    assert 0 == writing.flush(60)
    assert 150 == len(acknowledged)
    while len(got) < 150:
        message = reading.poll(60)
        assert message is not None
        if not message.error():
            got.add(message.value())
    reading.close()
    assert set(acknowledged) == got
    assert before != (broker.pid, broker.bootstrap_servers, broker.data_dir)


def test_kill_ends_the_calls_of_other_threads(broker: ProcessBroker, in_thread: InThread) -> None:
    written: list[int] = []

    def write() -> None:
        try:
            while True:
                written.extend(broker.produce("orders", [b"%d" % len(written)]))
        except NotRunning:
            pass

    writing = in_thread(write)
    wait_for(lambda: len(written) > 3)
    broker.kill()
    writing.join(60)
    broker.start()
    assert [b"%d" % offset for offset in written] == values(broker, "orders")[: len(written)]


def test_kill_is_seen_by_nobody_else(broker: ProcessBroker) -> None:
    with ProcessBroker() as other:
        other.produce("orders", ["one"])
        broker.kill()
        broker.kill()
        with pytest.raises(NotRunning):
            broker.records("orders")
        with pytest.raises(NotRunning):
            _ = broker.pid
        assert "<ProcessBroker, not running" in repr(broker)
        assert [b"one"] == values(other, "orders")
        broker.stop()
        broker.restart()
        assert parent_of(broker.pid) == parent_of(other.pid)


def test_process_that_ended_by_itself_is_noticed(broker: ProcessBroker) -> None:
    broker.produce("orders", ["one"])
    os.kill(broker.pid, signal.SIGKILL)
    with pytest.raises(NotRunning, match="process has ended"):
        broker.records("orders")
    broker.start()
    os.kill(broker.pid, signal.SIGKILL)
    broker.start()
    os.kill(broker.pid, signal.SIGKILL)
    broker.stop()
    broker.start()
    assert [b"one"] == values(broker, "orders")


def test_it_has_the_calls_of_a_broker(broker: ProcessBroker) -> None:
    broker.create_topic("orders", 2, retention_ms=60_000)
    with pytest.raises(Refusal, match="orders"):
        broker.create_topic("orders")
    empty = broker.snapshot()
    assert [0, 0] == broker.produce("orders", [{"value": "a", "headers": {"n": "1"}}, "b"])
    assert [b"a", b"b"] == [record.value for record in broker.wait_for("orders", 2)]
    assert [("n", b"1")] == broker.records("orders")[0].headers
    assert ({}, 2) == (broker.committed("g"), broker.lag("g", "orders"))
    broker.reset(empty)
    assert [] == broker.records("orders")
    broker.produce("orders", ["c"])
    broker.reset_topics()
    assert [] == broker.records("orders")
    broker.reset()
    with pytest.raises(BrokerError, match="no topic"):
        broker.records("orders")
    with pytest.raises(BrokerError, match="another process"):
        _ = broker.server


def test_coroutines_and_logins() -> None:
    async def main() -> None:
        async with ProcessBroker(listeners=("kafka+sasl://127.0.0.1:0",)) as broker:
            await broker.aio.produce("orders", ["one"])
            await broker.aio.kill()
            await broker.aio.start()
            broker.add_user("alice", "s3cret")
            broker.login = "alice", "s3cret"
            metadata = await asyncio.to_thread(producer(broker).list_topics, timeout=30)
            assert "orders" in metadata.topics
            assert [b"one"] == [record.value for record in await broker.aio.wait_for("orders")]

    asyncio.run(main())


def test_faults_stay_until_the_process_ends(broker: ProcessBroker) -> None:
    broker.create_topic("orders")
    with pytest.raises(ConfigError, match="no kind 'eror'"):
        broker.faults.add("eror")
    with pytest.raises(ConfigError, match="Leave out when"):
        broker.faults.add("observe", when=lambda _: True)
    fault = broker.faults.add("error", api="Produce", error="NOT_LEADER_OR_FOLLOWER", count=2)
    seen = broker.faults.add("observe", api="PRODUCE", topic="orders", count=None)
    broker.restart()
    writing = producer(broker)
    writing.produce("orders", b"one")
    fault.wait(2)
    assert 0 == writing.flush(60)
    seen.wait(3)
    assert ("PRODUCE", 2, 0, None) == (fault.fault.api, fault.hits, fault.left, seen.left)
    assert ["orders"] == [entity.topic for entity in seen.passed[0].entities]
    assert [fault, seen] == broker.faults.list()
    assert seen is broker.faults.get(seen.number)
    with pytest.raises(TimeoutError):
        fault.wait(3, timeout=0)
    with fault:
        pass
    assert (2, 0, [seen]) == (fault.hits, fault.left, broker.faults.list())
    broker.kill()
    assert (0, []) == (seen.left, broker.faults.list())
    assert seen.hits <= 3
    with pytest.raises(NotRunning):
        seen.wait(100)
    seen.remove()
    broker.start()
    assert [] == broker.faults.list()
    broker.faults.add("observe")
    broker.faults.clear()
    assert [] == broker.faults.list()


def test_faults_happen_by_hand_in_the_process(broker: ProcessBroker) -> None:
    broker.create_topic("orders")
    broker.faults.trigger("partitions_added", topic="orders", partitions=2)
    broker.produce("orders", ["one"], partition=2)
    assert [2] == [record.partition for record in broker.records("orders")]
    with pytest.raises(ConfigError, match="no kind"):
        broker.faults.trigger("eror")


def test_machine_of_the_process_has_faults(broker: ProcessBroker) -> None:
    broker.create_topic("orders")
    pid = broker.pid
    with broker.faults.add("disk_full") as full, pytest.raises(StorageError):
        broker.produce("orders", ["lost"])
    assert full.hits > 0
    restart = broker.faults.add("restart", api="PRODUCE")
    writing = producer(broker)
    writing.produce("orders", b"one")
    assert 0 == writing.flush(60)
    restart.wait()
    assert [b"one"] == values(broker, "orders")
    broker.restart()
    assert ([b"one"], pid) == (values(broker, "orders"), broker.pid)


def test_faults_can_be_added_before_the_start() -> None:
    broker = ProcessBroker()
    fault = broker.faults.add("observe", api="METADATA", count=None)
    with broker:
        producer(broker).list_topics(timeout=30)
        fault.wait()


def test_processes_are_forked_by_one_without_threads() -> None:
    with ProcessBroker(
        listeners=[f"{scheme}://127.0.0.1:0" for scheme in ("kafka", "shuffle", "pulsar", "http")]
    ) as it:
        nursery = parent_of(it.pid)
        assert os.getpid() == parent_of(nursery)
        assert [str(nursery)] == os.listdir(f"/proc/{nursery}/task")


def test_broken_off_call_ends_the_process(broker: ProcessBroker) -> None:
    """An answer that comes later must not be taken for the answer of the next call."""
    broker.produce("orders", ["one"])
    channel = broker._process.channel  # type: ignore[union-attr]
    interrupt = KeyboardInterrupt()

    def interrupted(_size: int) -> bytes:
        raise interrupt

    channel._read = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        broker.records("orders")
    del channel._read  # type: ignore[method-assign]
    with pytest.raises(NotRunning):
        broker.lag("g", "orders")
    broker.start()
    assert [b"one"] == values(broker, "orders")


def test_failed_start_leaves_no_process(tmp_path: Path) -> None:
    with ProcessBroker(tmp_path / "data") as first:
        pid = first.pid
        second = ProcessBroker(tmp_path / "data")
        with pytest.raises(ConfigError, match=r"in use|another"):
            second.start()
        second.close()
        assert not has_ended(pid)
    assert has_ended(pid)
    assert ["data"] == os.listdir(tmp_path)


def test_broker_in_the_program_says_what_can_be_killed() -> None:
    with Broker() as broker, pytest.raises(BrokerError, match=r"use ProcessBroker\(\)"):
        broker.kill()


# -- the end of the program -------------------------------------------------------------------------------------------

PROGRAM = """
import os, signal, sys, time
from broker.client import ProcessBroker
broker = ProcessBroker({arguments}).start()
broker.produce("orders", ["one"])
{before}
with open(f"/proc/{{broker.pid}}/stat") as stat:
    print(broker.pid, stat.read().rpartition(")")[2].split()[1], flush=True)
"""


def end_of_program(
    directory: Path, end: str, arguments: str = "", how: signal.Signals | None = None, before: str = ""
) -> None:
    """Run a program that ends this way, and wait until its broker has ended, and the process that forked it."""
    command = [sys.executable, "-c", PROGRAM.format(arguments=arguments, before=before) + end]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(directory)}
    ) as it:
        assert it.stdout is not None
        pids = [int(pid) for pid in it.stdout.readline().split()]
        assert 2 == len(pids)
        if how is not None:
            it.send_signal(how)
        it.communicate(timeout=60)
    for pid in pids:
        if how is None:
            assert has_ended(pid)
        wait_for(lambda pid=pid: has_ended(pid))


@pytest.mark.parametrize("end", ["input()", "raise ValueError", "broker.stop()", "broker.kill()", "broker.close()"])
def test_ending_program_leaves_nothing(tmp_path: Path, end: str) -> None:
    end_of_program(tmp_path, "try: input()\nexcept EOFError: pass" if end == "input()" else end)
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_killed_program_leaves_nothing(tmp_path: Path, how: signal.Signals) -> None:
    end_of_program(tmp_path, "time.sleep(600)", how=how)
    assert [] == list(tmp_path.iterdir())


def test_children_of_a_killed_program_keep_no_broker(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    before = f"""
child = os.fork()
if child == 0:
    os.close(1)
    time.sleep(600)
with open({str(pid_file)!r}, "w") as file:
    file.write(str(child))
"""
    try:
        end_of_program(tmp_path, "time.sleep(600)", how=signal.SIGKILL, before=before)
    finally:
        os.kill(int(pid_file.read_text()), signal.SIGKILL)


@pytest.mark.parametrize("how", [None, signal.SIGKILL])
def test_given_directory_stays(tmp_path: Path, how: signal.Signals | None) -> None:
    given = tmp_path / "broker-given"
    end_of_program(tmp_path, "time.sleep(600)" if how else "", repr(str(given)), how)
    assert [given] == list(tmp_path.iterdir())
    with Broker(given) as broker:
        assert [b"one"] == values(broker, "orders")


def test_forked_process_leaves_the_broker_alone(broker: ProcessBroker) -> None:
    broker.produce("orders", ["one"])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            broker.kill()
            broker.close()
            status = 0
        finally:
            os._exit(status)
    assert 0 == os.waitpid(child, 0)[1]
    assert [b"one"] == values(broker, "orders")


def test_dropped_stopped_broker_leaves_nothing() -> None:
    running = ProcessBroker().start()
    path, pid = running.data_dir, running.pid
    running.stop()
    del running
    gc.collect()
    wait_for(lambda: has_ended(pid))
    assert not os.path.exists(path)
