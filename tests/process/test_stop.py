"""SIGTERM while clients wait, write and rebalance: it ends in good order and in time, and nothing acknowledged is lost."""

import ctypes
import os
import platform
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.schema import control
from tests.compat.clients.librdkafka import Librdkafka, settings
from tests.kafka_connection import LENGTH, KafkaConnection, fetch_fields
from tests.process.broker_process import PATIENCE_S, BrokerProcess
from tests.process.test_disk import end_of

# Docker kills after 10 s; `shutdown_timeout_ms` stays well below by default.
IN_TIME_S = 10


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as broker:
        yield broker


def ends_in_time(broker: BrokerProcess, unfinished: bool = False) -> None:
    """``unfinished``: not everything that was begun can be finished, because a client does not let it."""
    broker.process.terminate()
    assert 0 == broker.wait(IN_TIME_S)
    assert [] == broker.errors
    assert unfinished == ("requests_abandoned" in [event["event"] for event in broker.events])


def write(servers: str, topic: str, count: int) -> None:
    producer = Producer(settings(servers))
    for number in range(count):
        producer.produce(topic, b"%d" % number)
    assert 0 == producer.flush(30)


def test_fetches_that_wait_are_answered(broker: BrokerProcess) -> None:
    write(broker.address, "topic", 1)
    waits = {"fetch_wait_max_ms": 300_000, "socket_timeout_ms": 300_000, "enable_auto_commit": False}
    consumer = Consumer(settings(broker.address, group_id="group", auto_offset_reset="earliest", **waits))
    consumer.assign([TopicPartition("topic", 0, 0)])
    assert consumer.poll(30) is not None  # the next fetch waits for a record that never comes
    assert consumer.poll(0.3) is None
    ends_in_time(broker)
    consumer.close()


def test_waiting_rebalance_is_given_up(broker: BrokerProcess) -> None:
    servers = broker.address
    write(servers, "topic", 1)
    idle = Consumer(settings(servers, group_id="group"))
    idle.subscribe(["topic"])
    while not idle.assignment():
        idle.poll(0.1)
    joining = Consumer(settings(servers, group_id="group"))
    joining.subscribe(["topic"])
    admin = AdminClient(settings(servers))
    # The idle one does not poll, so it does not give its partition back: the other one's JoinGroup waits.
    state = None
    while state != ConsumerGroupState.PREPARING_REBALANCING:
        joining.poll(0.05)
        state = admin.describe_consumer_groups(["group"])["group"].result(30).state
    ends_in_time(broker)
    joining.close()
    idle.close()


@pytest.mark.parametrize("acks", [1, -1])
def test_records_acknowledged_during_a_stop_are_kept(acks: int, broker: BrokerProcess) -> None:
    acked: list[bytes] = []
    producer = Producer(settings(broker.address, acks=acks, linger_ms=0, message_timeout_ms=2000))
    sent = 0
    broker_stops = False
    while broker.process.poll() is None:
        if len(producer) < 1000:
            producer.produce(
                "topic", b"%d" % sent, on_delivery=lambda error, message: error or acked.append(message.value())
            )
            sent += 1
        producer.poll(0)
        if len(acked) > 2000 and not broker_stops:
            broker_stops = True
            broker.process.terminate()
    assert 0 == broker.process.returncode
    assert [] == broker.errors
    producer.purge()
    producer.flush(30)
    broker.start()
    # There may be others before the last of them, whose answers did not come.
    count = end_of(broker.address, "topic")
    found = [record.value for record in Librdkafka().consume(broker.address, "topic", count)[0]]
    assert set(acked) <= set(found)


def test_client_that_never_reads_does_not_delay_stop(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "shutdown_timeout_ms=1000") as broker:
        producer = Producer(settings(broker.address))
        for _ in range(50):
            producer.produce("topic", b"v" * 900_000)
        assert 0 == producer.flush(30)
        with KafkaConnection(broker.address) as connection:
            # Far more than fits into the sockets' buffers.
            connection.tell(ApiKey.FETCH, 4, **fetch_fields("topic", max_bytes=50_000_000))
            (size,) = LENGTH.unpack(connection.exactly(LENGTH.size))
            assert size > 40_000_000
            ends_in_time(broker, unfinished=True)


def test_incomplete_frame_does_not_delay_stop(broker: BrokerProcess) -> None:
    with KafkaConnection(broker.address) as connection:
        connection.send(LENGTH.pack(1000) + b"the beginning of a request")
        write(broker.address, "topic", 1)
        ends_in_time(broker)


def stuck(tmp_path: Path, how: str, *settings: str) -> BrokerProcess:
    return BrokerProcess(tmp_path, *settings, module="tests.process.stuck_broker", environment={"STUCK": how})


def get_stuck(broker: BrokerProcess, times: int = 1) -> list[socket.socket]:
    host, port = broker.address.split(":")
    connections = [socket.create_connection((host, int(port))) for _ in range(times)]
    for connection in connections:
        connection.sendall(control.encode_request(ApiKey.LIST_GROUPS, 0, 1, "stuck", {}))
    until_stuck(broker, times)
    return connections


def until_stuck(broker: BrokerProcess, times: int = 1) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while [event["event"] for event in broker.events].count("stuck") < times:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("client", ["waits", "has gone"])
@pytest.mark.parametrize("how", ["computes", "waits"])
def test_endless_handlers_do_not_delay_stop(tmp_path: Path, how: str, client: str) -> None:
    with stuck(tmp_path, how, "shutdown_timeout_ms=3000") as broker:
        write(broker.address, "topic", 1)
        connections = get_stuck(broker, 2)  # no more of a lane are with the handlers
        if client == "has gone":
            for connection in connections:
                connection.close()
        broker.process.terminate()
        if broker.wait() == 0:
            assert [] == broker.errors
            left_behind = [event["left_behind"] for event in broker.events if event["event"] == "broker_stopped"]
            assert left_behind[0] >= 2
        else:  # on a busy machine these two may leave nothing for who stops the broker: then the time itself ends it
            assert how == "computes"
            assert "broker: not stopped within 3 s" in broker.output
        for connection in connections:
            connection.close()
        broker.start()
        assert 1 == len(Librdkafka().consume(broker.address, "topic", 1)[0])


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    # An hour is what it may take: without the second signal it would take it.
    with stuck(tmp_path, "waits", "shutdown_timeout_ms=3600000") as broker:
        write(broker.address, "topic", 1)
        (connection,) = get_stuck(broker)
        broker.process.terminate()
        while "broker_stopping" not in [event["event"] for event in broker.events]:
            time.sleep(0.01)
        assert broker.process.poll() is None
        broker.process.terminate()
        assert 128 + signal.SIGTERM == broker.wait()
        connection.close()
        broker.start()
        assert 1 == len(Librdkafka().consume(broker.address, "topic", 1)[0])


def test_stuck_stop_still_ends_in_time(tmp_path: Path) -> None:
    with stuck(tmp_path, "waits for ever at the end", "shutdown_timeout_ms=1000") as broker:
        write(broker.address, "topic", 1)
        broker.process.terminate()
        assert 1 == broker.wait()
        assert "broker: not stopped within 1 s" in broker.output
        broker.start()
        assert 1 == len(Librdkafka().consume(broker.address, "topic", 1)[0])


def test_stop_during_the_start_ends_in_time(tmp_path: Path) -> None:
    broker = stuck(tmp_path, "waits for ever at the start", "shutdown_timeout_ms=1000")
    broker.launch()
    try:
        until_stuck(broker)
        broker.process.terminate()
        assert 1 == broker.wait()
        assert "broker: not stopped within 1 s" in broker.output
    finally:
        if broker.process.poll() is None:
            broker.kill()


def test_storm_of_requests_does_not_delay_stop(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "shutdown_timeout_ms=30000") as broker:
        write(broker.address, "topic", 1)
        host, port = broker.address.split(":")
        stop = threading.Event()
        requests = control.encode_request(ApiKey.LIST_GROUPS, 0, 1, "storm", {}) * 200

        def storm() -> None:
            while not stop.is_set():
                try:
                    with socket.create_connection((host, int(port)), timeout=1) as connection:
                        connection.sendall(requests)
                        connection.recv(100)
                except OSError:
                    pass

        threads = [threading.Thread(target=storm) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            time.sleep(0.5)
            broker.process.terminate()
            assert 0 == broker.wait()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert [] == broker.errors
        assert "broker_stopped" in [event["event"] for event in broker.events]


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="takes Linux's /proc")
def test_signal_to_another_thread_ends_it(broker: BrokerProcess) -> None:
    pid = broker.process.pid
    while "broker_started" not in [event["event"] for event in broker.events]:
        time.sleep(0.05)
    time.sleep(0.5)  # the first thread sleeps by now
    # There is no other way to choose the thread of another process.
    tgkill = {"x86_64": 234, "aarch64": 131}.get(platform.machine())
    if tgkill is None:
        pytest.skip(f"the number of tgkill on {platform.machine()} is not known here")
    call = ctypes.CDLL(None).syscall
    others = [int(task) for task in os.listdir(f"/proc/{pid}/task") if int(task) != pid]
    assert any(call(tgkill, pid, another, signal.SIGTERM) == 0 for another in others)  # some have ended meanwhile
    assert 0 == broker.wait(IN_TIME_S)
