"""SENDs over a real socket."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.client.embedded import Broker
from broker.errors import StorageError
from broker.pulsar.policies.policies import Rate
from broker.pulsar.producers import publishing
from broker.security.client_quotas import Kind, parse_entity
from broker.storage.log.durability import Durability
from protocol.pulsar import pulsar_pb2 as pb
from tests.pulsar.wire import Type, Wire, send_frame
from tests.waiting import wait_for

Connect = Callable[..., Wire]


def topic_of(broker: Broker) -> Any:
    (topic,) = broker.server.part("pulsar").context.topics.loaded()  # type: ignore[union-attr]
    return topic


def props(size: int) -> list[pb.KeyValue]:
    return [pb.KeyValue(key="k", value="v" * size)]


def ping(wire: Wire) -> None:
    wire.say(Type.PING, pb.CommandPing())
    assert Type.PONG == wire.hear()[0]


def receipts(wire: Wire, count: int) -> Iterator[tuple[int, int]]:
    """Sequence id and entry id of each."""
    for _ in range(count):
        kind, receipt = wire.hear()
        assert kind == Type.SEND_RECEIPT, receipt
        yield receipt.sequence_id, receipt.message_id.entryId


def test_receipts_come_in_order_and_have_the_offsets(broker: Broker, connect: Connect) -> None:
    wire = connect()
    wire.produce("t")
    wire.raw(b"".join(send_frame(number) for number in range(300)))
    assert [(number, number) for number in range(300)] == list(receipts(wire, 300))
    assert 300 == topic_of(broker).log.durable_offset


def test_batch_takes_one_offset_per_message(broker: Broker, connect: Connect) -> None:
    wire = connect()
    wire.produce("t")
    wire.raw(send_frame(0, bytes(100), batch=10) + send_frame(10))
    assert [(0, 0), (10, 10)] == list(receipts(wire, 2))
    assert 11 == topic_of(broker).log.log_end_offset


def test_sends_are_grouped_by_producer_and_topic(connect: Connect) -> None:
    wire = connect()
    wire.produce("a", 1)
    wire.produce("b", 2)
    wire.produce("b", 3)
    wire.raw(b"".join(send_frame(number, producer_id=1 + number % 3) for number in range(9)))
    found: dict[int, list[tuple[int, int]]] = {}
    for _ in range(9):
        _, receipt = wire.hear()
        found.setdefault(receipt.producer_id, []).append((receipt.sequence_id, receipt.message_id.entryId))
    assert {1: [(0, 0), (3, 1), (6, 2)], 2: [(1, 0), (4, 2), (7, 4)], 3: [(2, 1), (5, 3), (8, 5)]} == found


def test_damaged_message_fails_alone_in_order(connect: Connect) -> None:
    wire = connect()
    wire.produce("t", 4)
    wire.raw(b"".join(send_frame(number, producer_id=4, spoil=number == 1) for number in range(3)))
    assert [(0, 0)] == list(receipts(wire, 1))
    kind, error = wire.hear()
    assert (Type.SEND_ERROR, pb.ServerError.ChecksumError) == (kind, error.error)
    assert (4, 1) == (error.producer_id, error.sequence_id)
    assert [(2, 1)] == list(receipts(wire, 1))


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(send_frame(1, b"short", batch=1_000_000), id="more messages than bytes"),
        pytest.param(send_frame(1, b"short", batch=-1), id="a negative number of messages"),
        pytest.param(send_frame(1, b"x", batch=2**31 - 1, uncompressed_size=2**32 - 1, compression=1), id="compressed"),
    ],
)
def test_batch_with_false_message_count_ends_producer(broker: Broker, connect: Connect, frame: bytes) -> None:
    wire = connect()
    wire.produce("t")
    wire.raw(send_frame(0) + frame + send_frame(2))
    assert [(0, 0)] == list(receipts(wire, 1))
    kind, error = wire.hear()
    assert (Type.SEND_ERROR, 1, pb.ServerError.MetadataError) == (kind, error.sequence_id, error.error)
    # The SEND after the failed one is not stored, because the client sends both again.
    ping(wire)
    assert 1 == topic_of(broker).log.log_end_offset


def test_full_disk_acknowledges_nothing_and_keeps_order(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = connect()
    wire.produce("t")
    log = topic_of(broker).log
    append = log.append

    def full(*args: Any, **kwargs: Any) -> None:
        raise StorageError("no space left on device")

    monkeypatch.setattr(log, "append", full)
    wire.raw(send_frame(0))
    kind, error = wire.hear()
    assert (Type.SEND_ERROR, 0, pb.ServerError.PersistenceError) == (kind, error.sequence_id, error.error)
    monkeypatch.setattr(log, "append", append)
    wire.raw(send_frame(1))
    wire.close()
    again = connect()
    again.produce("t")
    again.raw(send_frame(0) + send_frame(1))
    assert [(0, 0), (1, 1)] == list(receipts(again, 2))


def test_hanging_fsync_withholds_receipts_and_bounds_input(broker: Broker, connect: Connect) -> None:
    wire = connect()
    wire.produce("t")
    log = topic_of(broker).log
    with log.durability.sync_lock:  # as while an fsync runs
        wire.raw(b"".join(send_frame(number) for number in range(4500)))
        other = connect()
        other.produce("t", producer_name="other")  # other connections are served
        state = next(iter(topic_of(broker).producers)).connection.data
        while state.parked is None:
            ping(other)
        assert 0 == log.durable_offset
        assert 4000 < state.owed <= 4000 + 128
    assert [(number, number) for number in range(4500)] == list(receipts(wire, 4500))
    while state.owed:
        ping(other)
    assert state.parked is None


def test_failed_fsync_causes_error_instead_of_receipt(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = connect()
    wire.produce("t")

    def failing(durability: Durability, offset: int) -> None:
        raise durability._state.go_offline("fsync failed")

    monkeypatch.setattr(Durability, "flush_to", failing)
    wire.raw(send_frame(0) + send_frame(1))
    kind, error = wire.hear()
    assert (Type.SEND_ERROR, 0, pb.ServerError.PersistenceError) == (kind, error.sequence_id, error.error)
    ping(wire)  # the broker sends nothing else
    while next(iter(topic_of(broker).producers)).connection.data.owed:
        ping(wire)


def test_sends_go_to_handlers_after_slow_write(broker: Broker, connect: Connect) -> None:
    wire = connect()
    wire.produce("t")
    context = broker.server.part("pulsar").context  # type: ignore[union-attr]
    context.appends_slow_until = context.clock.monotonic() + 60
    wire.raw(b"".join(send_frame(number) for number in range(200)))
    assert [(number, number) for number in range(200)] == list(receipts(wire, 200))


def test_long_metadata_is_parsed_on_a_handler(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[tuple[int, str]] = []
    read = publishing.read_metadata

    def noted(data: Any) -> Any:
        threads.append((len(data) >> 10, threading.current_thread().name))
        return read(data)

    monkeypatch.setattr(publishing, "read_metadata", noted)
    wire = connect()
    wire.produce("t")
    for number, size in enumerate((10, 100_000, 10)):
        wire.raw(send_frame(number, properties=props(size)))
        assert [(number, number)] == list(receipts(wire, 1))
    (small, first), (large, second), (_, third) = threads
    assert (0, 97) == (small, large)
    assert first.startswith("processor") and third.startswith("processor")
    assert not second.startswith("processor")
    wire.raw(send_frame(3, properties=props(1 << 20)) + send_frame(4))
    kind, error = wire.hear()
    assert (Type.SEND_ERROR, 3, pb.ServerError.NotAllowedError) == (kind, error.sequence_id, error.error)
    assert [(4, 3)] == list(receipts(wire, 1))  # the producer continues


def test_sends_exceeding_segment_are_appended_separately(broker: Broker, connect: Connect) -> None:
    wire = connect()
    wire.produce("t")
    topic = topic_of(broker)
    broker.server.kafka.logs.alter_topic_configs("t", {"segment.bytes": "2000"})
    wire.raw(b"".join(send_frame(number, bytes(500)) for number in range(50)))
    assert [(number, number) for number in range(50)] == list(receipts(wire, 50))
    assert 50 == topic.log.log_end_offset
    wire.raw(send_frame(50, bytes(5000)) + send_frame(51))
    kind, error = wire.hear()
    assert (Type.SEND_ERROR, 50, pb.ServerError.NotAllowedError) == (kind, error.sequence_id, error.error)
    assert [(51, 50)] == list(receipts(wire, 1))


def test_client_over_quota_is_throttled_without_loss(broker: Broker, connect: Connect) -> None:
    quotas = broker.server.security.quotas
    quotas.alter([(parse_entity("user=ANONYMOUS"), Kind.PRODUCE, 100.0)])
    wire = connect()
    wire.produce("t")
    context = broker.server.part("pulsar").context  # type: ignore[union-attr]
    wire.raw(send_frame(0, bytes(2000)))
    assert [(0, 0)] == list(receipts(wire, 1))
    wire.raw(send_frame(1))
    while not len(context.throttling):
        ping(connect())
    assert 1 == quotas.throttled()
    assert 1 == topic_of(broker).log.log_end_offset
    quotas.alter([(parse_entity("user=ANONYMOUS"), Kind.PRODUCE, None)])
    assert [(1, 1)] == list(receipts(wire, 1))
    assert 0 == len(context.throttling)


def test_command_time_counts_for_user_quota(broker: Broker, connect: Connect) -> None:
    quotas = broker.server.security.quotas
    wire = connect()
    quotas.alter([(parse_entity("user=ANONYMOUS"), Kind.REQUEST, 1e-6)])
    assert wire.produce("t").producer_ready
    wait_for(lambda: quotas.throttled() == 1)
    wire.raw(send_frame(0))  # this SEND waits
    assert 0 == topic_of(broker).log.log_end_offset
    quotas.alter([(parse_entity("user=ANONYMOUS"), Kind.REQUEST, None)])
    assert [(0, 0)] == list(receipts(wire, 1))


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_publish_rate_holds_connection_without_loss(broker: Broker, connect: Connect, domain: str) -> None:
    context = broker.server.part("pulsar").context  # type: ignore[union-attr]
    context.policies.set_namespace("public/default", publish_rate=Rate(messages=1))
    wire, other = connect(), connect()
    wire.produce(f"{domain}://public/default/t")
    other.produce(f"{domain}://public/default/other")
    wire.raw(b"".join(send_frame(number) for number in range(100)))
    assert list(range(100)) == [sequence_id for sequence_id, _ in receipts(wire, 100)]
    while not len(context.throttling):
        ping(connect())
    wire.raw(send_frame(100))
    ping(other)  # no other connection waits
    other.raw(send_frame(0))
    assert 1 == len(list(receipts(other, 1)))
    context.policies.set_namespace("public/default", publish_rate=None)  # the waiting connection continues at once
    assert [100] == [sequence_id for sequence_id, _ in receipts(wire, 1)]
    while len(context.throttling):
        ping(other)


def test_publish_rate_of_bytes_covers_all_producers(broker: Broker, connect: Connect) -> None:
    context = broker.server.part("pulsar").context  # type: ignore[union-attr]
    wires = [connect(), connect()]
    for wire in wires:
        wire.produce("t")
    context.policies.set_topic(topic_of(broker).topic_id, publish_rate=Rate(bytes=1000))
    wires[0].raw(send_frame(0, bytes(50_000)))
    assert 1 == len(list(receipts(wires[0], 1)))
    wires[1].raw(send_frame(0))  # it is accepted, although the other producer has left a debt
    assert 1 == len(list(receipts(wires[1], 1)))
    while len(context.throttling) < 2:
        ping(connect())
