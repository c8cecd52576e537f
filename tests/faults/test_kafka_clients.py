"""Clients that stall, disconnect, come in crowds or ask for everything at once: the others hardly notice."""

import random
import socket
import threading
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from broker.network import expiry
from broker.network import processor as processor_module
from broker.network.service import Handover
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.schema import control
from tests.faults.raw import API_VERSIONS, Faults, Raw, fetch, produce, with_settings
from tests.kafka_connection import LENGTH
from tests.waiting import wait_for

MIB = 1 << 20


def test_byte_by_byte_senders_slow_nobody_down(faults: Faults) -> None:
    request = produce(faults.topic, b"slowly", acks=-1)
    clients = [faults.connect() for _ in range(30)]
    for position in range(len(request)):
        for client in clients:
            client.send(request[position : position + 1])
        if position % 40 == 0:
            assert faults.serves()
    for client in clients:
        assert client.frame()
        client.close()


@with_settings(queued_max_request_bytes=8 * MIB)
def test_stopped_senders_holding_all_memory_are_dropped(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "_MEASURED_S", 0.2)
    monkeypatch.setattr(processor_module, "_NAP_S", 0.1)
    clients = [faults.connect() for _ in range(20)]
    for client in clients:
        client.socket.setblocking(False)
        try:
            client.socket.send(LENGTH.pack(50 * MIB) + b"\0" * 600_000)
        except BlockingIOError:
            pass
    memory = faults.broker.server.sockets.memory
    wait_for(lambda: memory.exhausted or not memory.in_use)
    assert faults.serves()
    with faults.connect() as large:
        large.send(produce(faults.topic, b"v" * 900_000))
        assert large.frame()
    for client in clients:
        client.close()


@with_settings(queued_max_request_bytes=64 * MIB)
def test_slow_uploads_with_all_memory_spare_small_requests(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "_MEASURED_S", 3600.0)  # no connection is dropped: it must work anyway
    uploads = [faults.connect() for _ in range(8)]
    memory = faults.broker.server.sockets.memory
    for client in uploads:
        client.socket.setblocking(False)
        client.try_send(LENGTH.pack(90 * MIB))
    piece = bytes(MIB)

    def all_is_held() -> bool:
        for client in uploads:
            try:
                client.socket.send(piece)
            except BlockingIOError:
                pass
        return memory.exhausted and memory.short

    wait_for(all_is_held)
    for _ in range(5):
        assert faults.serves()
    with faults.connect() as drips:  # a request in two packets is small, too
        request = produce(faults.topic, b"v" * 1000, acks=-1)
        drips.send(request[:100])
        assert faults.serves()
        drips.send(request[100:])
        assert drips.frame()
    assert memory.exhausted


@with_settings(queued_max_request_bytes=32 * MIB)
def test_many_megabyte_uploads_and_small_requests_all_succeed(faults: Faults) -> None:
    # More than twice the available memory. All send at the same pace, so all hold a part at the same time.
    clients = [faults.connect() for _ in range(80)]
    request = produce(faults.topic, b"v" * 900_000)
    left = {client: memoryview(request) for client in clients}
    for client in clients:
        client.socket.setblocking(False)

    def upload() -> bool:
        for client, data in left.items():
            try:
                left[client] = data[client.socket.send(data[:50_000]) :] if data else data
            except BlockingIOError:
                pass
        return not any(left.values())

    for _ in range(15):
        upload()
    assert faults.serves()
    wait_for(upload)
    for client in clients:
        client.socket.setblocking(True)
        client.socket.settimeout(30)
        assert client.frame()


@pytest.mark.parametrize("acks", [1, -1])
def test_half_closed_client_hears_of_writes_and_offsets(faults: Faults, acks: int) -> None:
    offsets = {
        "replica_id": -1,
        "topics": [{"name": faults.topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}],
    }
    with faults.connect() as client:
        client.send(
            produce(faults.topic, b"1", acks=acks)
            + control.encode_request(ApiKey.LIST_OFFSETS, 1, 2, "raw", offsets)
            + produce(faults.topic, b"2", acks=acks, correlation_id=3)
            + control.encode_request(ApiKey.LIST_OFFSETS, 1, 4, "raw", offsets)
            + API_VERSIONS[:7]
        )
        client.finish()
        answers = client.rest()
    numbers = []
    while answers:
        size = 4 + LENGTH.unpack(answers[:4])[0]
        numbers.append(LENGTH.unpack(answers[4:8])[0])
        answers = answers[size:]
    assert numbers == [1, 2, 3, 4]


def test_waiting_fetch_is_answered_when_client_half_closes(faults: Faults) -> None:
    with faults.connect() as client:
        client.send(fetch(faults.topic, max_wait_ms=3_600_000) + API_VERSIONS)
        client.finish()
        answers = client.rest()
    first = 4 + LENGTH.unpack(answers[:4])[0]
    assert len(answers) == first + 4 + LENGTH.unpack(answers[first : first + 4])[0]


def test_disk_fetch_of_gone_client_watches_nothing(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    from broker.kafka.fetches import Reading
    from broker.kafka.handlers import fetch as handler

    warm, begun, gone = Reading.warm, threading.Event(), threading.Event()
    prepare = handler._prepare

    def cold(context: Any, request: Any) -> Handover:
        parsed, reading = prepare(context, request)
        reading.resident = False
        return Handover(None, (parsed, reading))

    def slow_disk(reading: Any, context: Any) -> None:
        begun.set()
        assert gone.wait(30)
        warm(reading, context)

    kafka = faults.broker.server.kafka
    apis = faults.broker.server.part("kafka").apis
    api = apis[ApiKey.FETCH]
    monkeypatch.setitem(apis, ApiKey.FETCH, attrs.evolve(api, prepare=cold))
    monkeypatch.setattr(Reading, "warm", slow_disk)
    client = faults.connect()
    client.send(fetch(faults.topic, max_wait_ms=3_600_000))
    assert begun.wait(30)
    client.abort()
    wait_for(lambda: faults.connections == 0)
    handlers = faults.broker.server.sockets.planes[0].handlers
    handled = sum(handler.handled for handler in handlers)
    gone.set()
    wait_for(lambda: sum(handler.handled for handler in handlers) > handled)
    wait_for(lambda: not any(processor._inbox for processor in faults.broker.server.sockets.processors))
    assert not kafka.logs.partitions[faults.topic, 0].watchers.callbacks
    monkeypatch.undo()


@with_settings(fetch_max_bytes=256 * MIB)
def test_reader_of_unread_hundred_megabytes_slows_nobody(faults: Faults) -> None:
    log_of = faults.broker.server.kafka.logs
    log_of.create_topic("large", 1, {})
    with faults.connect() as producer:
        request = produce("large", random.Random(3).randbytes(1_000_000))
        for _ in range(105):
            producer.send(request)
            producer.frame()
    readers = [faults.connect(receive_buffer=4096) for _ in range(3)]
    for reader in readers:
        reader.send(fetch("large", max_bytes=200 * MIB))
    wait_for(
        lambda: (
            sum(
                c.outgoing_bytes > 90 * MIB
                for p in faults.broker.server.sockets.processors
                for c in p.connections.copy()
            )
            == 3
        )
    )
    for _ in range(5):
        assert faults.serves()
    # The first begins to read after all, the second closes properly, the third resets.
    size = LENGTH.unpack(readers[0].exactly(4))[0]
    assert size > 100_000_000
    left = size
    while left:
        left -= len(readers[0].socket.recv(min(left, MIB)))
    readers[0].close()
    readers[1].close()
    readers[2].abort()


def test_two_thousand_connections_opened_and_dropped(faults: Faults) -> None:
    request = produce(faults.topic, b"x")
    for batch in range(20):
        clients = [faults.connect() for _ in range(100)]
        for n, client in enumerate(clients):
            kind = (batch + n) % 5
            if kind == 1:
                client.send(request[:9])
            elif kind == 2:
                client.send(API_VERSIONS * 3)
            elif kind == 3:
                client.send(fetch(faults.topic, offset=10_000_000, max_wait_ms=60_000))
        for n, client in enumerate(clients):
            if n % 2:
                client.close()
            else:
                client.abort()


def test_half_closed_client_gets_its_answers(faults: Faults) -> None:
    with faults.connect() as client:
        client.send(API_VERSIONS * 10)
        client.finish()
        answers = client.rest()
    whole = LENGTH.unpack(answers[:4])[0] + 4
    assert len(answers) == 10 * whole


def test_half_closed_client_gets_a_whole_large_answer(faults: Faults) -> None:
    with faults.connect() as producer:
        for _ in range(12):
            producer.send(produce(faults.topic, b"x" * 1_000_000))
            producer.frame()
    with faults.connect(receive_buffer=4096) as client:
        client.send(fetch(faults.topic, max_bytes=64 * MIB))
        client.finish()
        answer = client.rest()
    assert len(answer) == LENGTH.unpack(answer[:4])[0] + 4 > 12_000_000


@pytest.mark.parametrize("leave", [Raw.finish, Raw.close, Raw.abort])
def test_long_poll_is_forgotten_when_its_client_leaves(faults: Faults, leave: Callable[[Raw], None]) -> None:
    target = faults.broker.server.kafka.logs.partitions[faults.topic, 0]
    clients = [faults.connect() for _ in range(10)]
    for client in clients:
        client.send(fetch(faults.topic, offset=target.log_end_offset, max_wait_ms=3_600_000))
    wait_for(
        lambda: (
            sum(c.in_flight is not None for p in faults.broker.server.sockets.processors for c in p.connections.copy())
            == 10
        )
    )
    for client in clients:
        leave(client)
    wait_for(lambda: faults.connections == 0)
    for client in clients:
        client.close()


def test_client_leaving_before_its_answer_costs_nothing(faults: Faults) -> None:
    for n in range(100):
        with faults.connect() as client:
            client.send(produce(faults.topic, b"gone", acks=-1 if n % 2 else 1))
            if n % 3 == 0:
                client.abort()
    wait_for(lambda: faults.connections == 0)


def test_pipelined_requests_of_every_kind_keep_order(faults: Faults) -> None:
    rng = random.Random(4)
    kinds: list[Callable[[int], bytes]] = [
        lambda n: produce(faults.topic, b"v" * rng.randrange(2000), acks=1, correlation_id=n),
        lambda n: produce(faults.topic, b"v", acks=-1, correlation_id=n),
        lambda n: control.encode_request(ApiKey.METADATA, 5, n, "raw", {"topics": None}),
        lambda n: control.encode_request(ApiKey.LIST_GROUPS, 0, n, "raw", {}),
        lambda n: control.encode_request(ApiKey.API_VERSIONS, 3, n, "raw", {}),
        lambda n: control.encode_request(ApiKey.FIND_COORDINATOR, 1, n, "raw", {"key": "g"}),
    ]
    clients = [faults.connect() for _ in range(4)]
    for client in clients:
        client.socket.settimeout(60)
        client.send(b"".join(rng.choice(kinds)(n) for n in range(300)))
    for client in clients:
        for n in range(300):
            assert int.from_bytes(client.frame()[4:8], "big") == n
        client.close()


def test_endless_requester_that_never_reads_is_held_back(faults: Faults) -> None:
    client = faults.connect(receive_buffer=4096)
    client.socket.setblocking(False)
    request = control.encode_request(ApiKey.METADATA, 5, 1, "raw", {"topics": None}) * 1000
    sent, refused = 0, 0
    while refused < 50 and sent < 1 << 30:
        try:
            sent += client.socket.send(request)
            refused = 0
        except BlockingIOError:
            refused += 1
            assert faults.serves()
    assert refused == 50
    high = faults.broker.server.config.outgoing_high_water_bytes
    waiting = [c.outgoing_bytes for p in faults.broker.server.sockets.processors for c in p.connections.copy()]
    assert max(waiting) < high + MIB
    client.close()


def test_broker_stops_in_time_whatever_its_clients_do(errors: list[str]) -> None:
    from broker.client import Broker

    broker = Broker(shutdown_timeout_ms=500).start()
    faults = Faults(broker)
    clients = [faults.connect() for _ in range(8)]
    clients[0].send(produce(faults.topic, b"x")[:20])
    clients[1].send(fetch(faults.topic, offset=0, max_wait_ms=3_600_000, min_bytes=1000))
    clients[2].send(LENGTH.pack(50 * MIB) + b"x" * 500_000)
    clients[3].send(API_VERSIONS * 100)
    address = broker.server.sockets.address("kafka")
    broker.stop()
    for client in clients:
        client.rest()
        client.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    assert errors == []
