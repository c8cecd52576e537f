"""The commands of consumers over real sockets, byte by byte: what real clients never say, and what they say at bad moments."""

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.client.embedded import Broker
from protocol.pulsar import pulsar_pb2 as pb
from protocol.pulsar.deliveries import read_delivery
from protocol.pulsar.frames import command_type, write_command
from protocol.pulsar.pulsar_pb2 import CommandAck, CommandSubscribe, MessageIdData
from tests.pulsar.wire import Type, Wire, send_frame

Connect = Callable[..., Wire]
SubType = CommandSubscribe.SubType
EARLIEST = CommandSubscribe.InitialPosition.Earliest
MINUS_1 = 2**64 - 1


def subscribe(wire: Wire, topic: str = "t", name: str = "s", consumer_id: int = 0, **fields: Any) -> tuple[int, Any]:
    command = CommandSubscribe(
        topic=topic,
        subscription=name,
        subType=fields.pop("kind", SubType.Exclusive),
        consumer_id=consumer_id,
        request_id=0,
        initialPosition=fields.pop("position", EARLIEST),
        **fields,
    )
    return wire.ask(Type.SUBSCRIBE, command)


def flow(wire: Wire, permits: int, consumer_id: int = 0) -> None:
    wire.say(Type.FLOW, pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits))


def produce(wire: Wire, count: int, first: int = 0, topic: str = "t") -> None:
    if first == 0:
        assert wire.produce(topic).producer_name
    for number in range(first, first + count):
        wire.raw(send_frame(number, b"%d" % number))
        kind, _ = wire.hear()
        assert kind == Type.SEND_RECEIPT


def messages(wire: Wire, count: int) -> list[Any]:
    found = []
    for _ in range(count):
        frame = wire.frame()
        assert frame is not None and command_type(frame) == Type.MESSAGE
        found.append(read_delivery(frame).command)
    return found


def offsets(wire: Wire, count: int) -> list[int]:
    return [one.message_id.entryId for one in messages(wire, count)]


def ack(wire: Wire, ledger: int, *entries: int, request_id: int | None = None, **fields: Any) -> None:
    ids = [MessageIdData(ledgerId=ledger, entryId=entry) for entry in entries]
    wire.say(
        Type.ACK,
        CommandAck(
            consumer_id=0,
            ack_type=fields.pop("ack_type", CommandAck.AckType.Individual),
            message_id=ids,
            request_id=request_id,
            **fields,
        ),
    )


def is_silent(wire: Wire) -> bool:
    """Nothing comes before the answer to a PING."""
    wire.say(Type.PING, pb.CommandPing())
    return wire.hear()[0] == Type.PONG


def test_nothing_comes_before_success_and_permits(connect: Connect) -> None:
    produce(connect(), 3)
    wire = connect()
    assert Type.SUCCESS == subscribe(wire)[0]
    assert is_silent(wire)
    flow(wire, 2)
    assert [0, 1] == offsets(wire, 2)
    assert is_silent(wire)
    flow(wire, 2**32 - 1)
    assert [2] == offsets(wire, 1)


def test_ack_with_request_id_is_answered_once_durable(tmp_path: Path) -> None:
    with Broker(str(tmp_path), listeners=["pulsar://127.0.0.1:0"]) as broker:
        producer, wire = Wire(broker.address("pulsar")), Wire(broker.address("pulsar"))
        produce(producer, 4)
        subscribe(wire)
        flow(wire, 10)
        ledger = messages(wire, 4)[0].message_id.ledgerId
        ack(wire, ledger, 0, 2, request_id=5)
        kind, answer = wire.hear()
        assert (Type.ACK_RESPONSE, 5, False) == (kind, answer.request_id, answer.HasField("error"))
        ack(wire, ledger, 1, request_id=0)  # 0 is a legal request id
        assert 0 == wire.hear()[1].request_id
        producer.close()
        wire.close()
    with Broker(str(tmp_path), listeners=["pulsar://127.0.0.1:0"]) as broker:
        wire = Wire(broker.address("pulsar"))
        subscribe(wire)
        flow(wire, 10)
        assert [3] == offsets(wire, 1)
        wire.close()


def test_commands_for_unknown_consumers_are_answered_when_due(connect: Connect) -> None:
    wire = connect()
    flow(wire, 1, consumer_id=9)
    wire.say(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, pb.CommandRedeliverUnacknowledgedMessages(consumer_id=9))
    ack(wire, 1, 1)
    assert is_silent(wire)
    ack(wire, 1, 1, request_id=3)
    kind, answer = wire.hear()
    assert (Type.ACK_RESPONSE, pb.ServerError.ConsumerNotFound) == (kind, answer.error)
    for type_, command in (
        (Type.UNSUBSCRIBE, pb.CommandUnsubscribe(consumer_id=9, request_id=0)),
        (Type.SEEK, pb.CommandSeek(consumer_id=9, request_id=0, message_publish_time=1)),
        (Type.GET_LAST_MESSAGE_ID, pb.CommandGetLastMessageId(consumer_id=9, request_id=0)),
    ):
        kind, answer = wire.ask(type_, command)
        assert (Type.ERROR, pb.ServerError.ConsumerNotFound) == (kind, answer.error)
    kind, answer = wire.ask(Type.CONSUMER_STATS, pb.CommandConsumerStats(consumer_id=9, request_id=0))
    assert (Type.CONSUMER_STATS_RESPONSE, pb.ServerError.ConsumerNotFound) == (kind, answer.error_code)
    assert Type.SUCCESS == wire.ask(Type.CLOSE_CONSUMER, pb.CommandCloseConsumer(consumer_id=9, request_id=0))[0]


def test_a_flow_without_permits_closes_the_connection(connect: Connect) -> None:
    wire = connect()
    subscribe(wire)
    flow(wire, 0)
    assert wire.is_closed()


def test_repeated_subscribe_returns_same_consumer(connect: Connect) -> None:
    """A client that has waited for the answer in vain asks again."""
    wire = connect()
    assert [Type.SUCCESS, Type.SUCCESS] == [subscribe(wire)[0] for _ in range(2)]
    kind, answer = subscribe(wire, name="another")
    assert (Type.ERROR, pb.ServerError.NotAllowedError) == (kind, answer.error)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        pytest.param({"name": ""}, pb.ServerError.MetadataError, id="no name"),
        pytest.param({"name": "x" * 2000}, pb.ServerError.MetadataError, id="a long name"),
        pytest.param({"consumer_name": "x" * 2000}, pb.ServerError.MetadataError, id="a consumer's long name"),
        pytest.param(
            {"metadata": [pb.KeyValue(key=f"{number}", value="x" * 100) for number in range(500)]},
            pb.ServerError.MetadataError,
            id="much metadata",
        ),
        pytest.param(
            {"subscription_properties": [pb.KeyValue(key="k", value="x" * 20_000)]},
            pb.ServerError.MetadataError,
            id="a long property",
        ),
        pytest.param(
            {"read_compacted": True, "kind": SubType.Shared}, pb.ServerError.NotAllowedError, id="compacted and shared"
        ),
        pytest.param(
            {
                "kind": SubType.Key_Shared,
                "keySharedMeta": pb.KeySharedMeta(keySharedMode=pb.KeySharedMode.STICKY),
            },
            pb.ServerError.ConsumerAssignError,
            id="sticky without ranges",
        ),
        pytest.param({"topic": "persistent://nobody/nowhere/t"}, pb.ServerError.TopicNotFound, id="no namespace"),
        pytest.param({"force_topic_creation": False}, pb.ServerError.TopicNotFound, id="no topic"),
    ],
)
def test_what_is_refused_leaves_nothing_behind(connect: Connect, fields: dict[str, Any], error: int) -> None:
    wire = connect()
    kind, answer = subscribe(wire, **fields)
    assert (Type.ERROR, error) == (kind, answer.error)
    assert Type.SUCCESS == subscribe(wire)[0]


def test_second_exclusive_consumer_is_refused_after_liveness_check(connect: Connect) -> None:
    first, second = connect(), connect()
    subscribe(first)
    command = CommandSubscribe(topic="t", subscription="s", subType=0, consumer_id=0, request_id=7)
    second.say(Type.SUBSCRIBE, command)
    assert Type.PING == first.hear()[0]  # the broker asks whether the first still lives
    first.say(Type.PONG, pb.CommandPong())
    kind, answer = second.hear()
    assert (Type.ERROR, pb.ServerError.ConsumerBusy) == (kind, answer.error)


def test_exclusive_consumer_failing_liveness_check_makes_room(connect: Connect) -> None:
    first, second = connect(), connect()
    subscribe(first)
    second.say(Type.SUBSCRIBE, CommandSubscribe(topic="t", subscription="s", subType=0, consumer_id=0, request_id=7))
    assert Type.PING == first.hear()[0]
    first.close()
    assert Type.SUCCESS == second.hear()[0]


def test_seek_closes_the_consumer_and_goes_on_there(connect: Connect) -> None:
    produce(connect(), 5)
    wire = connect()
    subscribe(wire)
    flow(wire, 10)
    ledger = messages(wire, 5)[0].message_id.ledgerId
    wire.say(
        Type.SEEK,
        pb.CommandSeek(consumer_id=0, request_id=1, message_id=MessageIdData(ledgerId=ledger, entryId=3)),
    )
    assert {Type.CLOSE_CONSUMER, Type.SUCCESS} == {wire.hear()[0] for _ in range(2)}
    assert is_silent(wire)
    subscribe(wire)
    flow(wire, 10)
    assert [3, 4] == offsets(wire, 2)


@pytest.mark.parametrize(
    ("ledger", "entry", "expected"),
    [
        (MINUS_1, MINUS_1, [0, 1, 2]),
        (None, MINUS_1, [0, 1, 2]),
        (0, 2, [0, 1, 2]),
        (2**63 - 1, 2**63 - 1, []),
        (None, 2**63, []),
        (MINUS_1 - 1, 0, []),
        (None, 3, []),
    ],
)
def test_seek_to_ids_that_no_message_has(connect: Connect, ledger: int | None, entry: int, expected: list[int]) -> None:
    produce(connect(), 3)
    wire = connect()
    subscribe(wire)
    flow(wire, 10)
    own = messages(wire, 3)[0].message_id.ledgerId
    target = MessageIdData(ledgerId=own if ledger is None else ledger, entryId=entry)
    wire.say(Type.SEEK, pb.CommandSeek(consumer_id=0, request_id=1, message_id=target))
    assert {Type.CLOSE_CONSUMER, Type.SUCCESS} == {wire.hear()[0] for _ in range(2)}
    subscribe(wire)
    flow(wire, 10)
    assert expected == offsets(wire, len(expected))
    assert is_silent(wire)


def test_a_seek_that_names_nothing_is_refused(connect: Connect) -> None:
    wire = connect()
    subscribe(wire)
    kind, answer = wire.ask(Type.SEEK, pb.CommandSeek(consumer_id=0, request_id=0))
    assert (Type.ERROR, pb.ServerError.MetadataError) == (kind, answer.error)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        pytest.param({"entryId": 1}, [1, 2, 3], id="a message"),
        pytest.param({"entryId": 1, "batch_index": 0}, [1, 2, 3], id="within a batch"),
        pytest.param({"entryId": MINUS_1}, [0, 1, 2, 3], id="before the first"),
        pytest.param({"entryId": 2**63}, [], id="beyond the end"),
    ],
)
def test_reader_starts_at_named_message(connect: Connect, start: dict[str, int], expected: list[int]) -> None:
    produce(connect(), 4)
    wire = connect()
    subscribe(wire)
    flow(wire, 1)
    ledger = messages(wire, 1)[0].message_id.ledgerId
    reader = connect()
    subscribe(reader, name="reader", durable=False, start_message_id=MessageIdData(ledgerId=ledger, **start))
    flow(reader, 10)
    assert expected == offsets(reader, len(expected))
    assert is_silent(reader)


def test_the_last_id_of_an_empty_topic(connect: Connect) -> None:
    wire = connect()
    subscribe(wire)
    _, answer = wire.ask(Type.GET_LAST_MESSAGE_ID, pb.CommandGetLastMessageId(consumer_id=0, request_id=0))
    assert (MINUS_1, MINUS_1) == (answer.last_message_id.ledgerId, answer.last_message_id.entryId)
    assert answer.HasField("consumer_mark_delete_position")


def test_the_last_id_and_what_is_acknowledged(connect: Connect) -> None:
    producer, wire = connect(), connect()
    produce(producer, 2)
    producer.raw(send_frame(2, b"", batch=3))
    subscribe(wire)
    flow(wire, 10)
    found = []
    ledger = messages(wire, 2)[0].message_id.ledgerId
    for acked in ((), (0,), (1,), (2,)):
        ack(wire, ledger, *acked, request_id=1) if acked else None
        while acked and wire.hear()[0] != Type.ACK_RESPONSE:
            pass
        _, answer = wire.ask(Type.GET_LAST_MESSAGE_ID, pb.CommandGetLastMessageId(consumer_id=0, request_id=0))
        found.append(answer.consumer_mark_delete_position.entryId)
    assert [MINUS_1, 0, 1] == found[:3]
    assert answer.last_message_id.entryId >= 1


@pytest.mark.parametrize(("batch", "index"), [(None, -1), (1, 0), (3, 2)])
def test_last_id_of_batch_has_batch_index(connect: Connect, batch: int | None, index: int) -> None:
    """A batch of one message is a batch: clients compare its index with that of the message which they have read last."""
    producer, wire = connect(), connect()
    produce(producer, 1)
    producer.raw(send_frame(1, b"x" * 30, batch=batch))
    while producer.hear()[1].sequence_id != 1:
        pass
    subscribe(wire)
    _, answer = wire.ask(Type.GET_LAST_MESSAGE_ID, pb.CommandGetLastMessageId(consumer_id=0, request_id=0))
    assert index == answer.last_message_id.batch_index


def test_a_sticky_flood_of_acknowledgements_holds_up_nobody(connect: Connect) -> None:
    """A frame of 30,000 ids that mean nothing, again and again, while a neighbour pings."""
    producer, wire, neighbour = connect(), connect(), connect()
    produce(producer, 3)
    subscribe(wire)
    ids = [MessageIdData(ledgerId=1, entryId=number) for number in range(30_000)]
    flood = write_command(
        Type.ACK, CommandAck(consumer_id=0, ack_type=CommandAck.AckType.Individual, message_id=ids, request_id=1)
    )
    stop = threading.Event()

    def pour() -> None:
        wire.socket.settimeout(30)
        while not stop.is_set():
            wire.raw(flood)
            while (frame := wire.frame()) is not None and command_type(frame) != Type.ACK_RESPONSE:
                pass

    thread = threading.Thread(target=pour)
    thread.start()
    try:
        for _ in range(50):
            assert is_silent(neighbour)
    finally:
        stop.set()
        thread.join()


def test_consumers_not_reading_sockets_delay_nobody(connect: Connect) -> None:
    producer, reader = connect(), connect()
    deaf = [connect() for _ in range(5)]
    for number, wire in enumerate(deaf):
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        subscribe(wire, name=f"deaf-{number}")
        flow(wire, 2**31)
    subscribe(reader, name="reads")
    flow(reader, 10_000)
    assert producer.produce("t").producer_name
    payload = b"x" * 100_000
    for number in range(200):
        producer.raw(send_frame(number, payload))
    for number in range(200):
        frame = reader.frame()
        assert frame is not None
        assert number == read_delivery(frame).command.message_id.entryId


def test_last_consumer_is_served_after_churn(connect: Connect) -> None:
    """Churn with real sockets and threads: reads in flight at each disconnection."""
    producer = connect()
    produce(producer, 50)
    for kind in (SubType.Exclusive, SubType.Shared, SubType.Failover, SubType.Key_Shared):
        name = SubType.Name(kind)
        for round in range(15):
            wire = connect()
            assert Type.SUCCESS == subscribe(wire, name=name, kind=kind)[0]
            flow(wire, 1000)
            if round % 3 == 0:
                frame = wire.frame()
                assert frame is not None
            wire.close()
            _until_free(connect, name, kind)
        last = connect()
        assert Type.SUCCESS == subscribe(last, name=name, kind=kind)[0]
        flow(last, 1000)
        found = set()
        while len(found) < 50:
            frame = last.frame()
            assert frame is not None
            if command_type(frame) == Type.MESSAGE:
                found.add(read_delivery(frame).command.message_id.entryId)
        assert set(range(50)) == found
        last.close()


def _until_free(connect: Connect, name: str, kind: int) -> None:
    """The broker has noticed that the last consumer is gone: an exclusive one could come."""
    if kind != SubType.Exclusive:
        return
    wire = connect()
    assert Type.SUCCESS == subscribe(wire, name=name)[0]  # the broker asks the old consumer, whose connection is closed
    wire.ask(Type.CLOSE_CONSUMER, pb.CommandCloseConsumer(consumer_id=0, request_id=0))


def test_unsubscribing_deletes_the_subscription(connect: Connect) -> None:
    produce(connect(), 2)
    wire = connect()
    subscribe(wire)
    flow(wire, 10)
    ledger = messages(wire, 2)[0].message_id.ledgerId
    ack(wire, ledger, 0, 1)
    assert Type.SUCCESS == wire.ask(Type.UNSUBSCRIBE, pb.CommandUnsubscribe(consumer_id=0, request_id=0))[0]
    subscribe(wire)
    flow(wire, 10)
    assert [0, 1] == offsets(wire, 2)


def test_subscription_in_use_is_deleted_only_by_force(connect: Connect) -> None:
    first, second = connect(), connect()
    subscribe(first, kind=SubType.Shared)
    subscribe(second, kind=SubType.Shared)
    kind, answer = first.ask(Type.UNSUBSCRIBE, pb.CommandUnsubscribe(consumer_id=0, request_id=0))
    assert (Type.ERROR, pb.ServerError.ConsumerBusy) == (kind, answer.error)
    first.say(Type.UNSUBSCRIBE, pb.CommandUnsubscribe(consumer_id=0, request_id=1, force=True))
    assert Type.SUCCESS == first.hear()[0]
    assert Type.CLOSE_CONSUMER == second.hear()[0]


def test_the_statistics_of_a_consumer(connect: Connect) -> None:
    produce(connect(), 5)
    wire = connect()
    subscribe(wire, kind=SubType.Shared, consumer_name="name")
    flow(wire, 7)
    messages(wire, 5)
    _, answer = wire.ask(Type.CONSUMER_STATS, pb.CommandConsumerStats(consumer_id=0, request_id=0))
    assert ("name", 2, 5, 5, "Shared", False) == (
        answer.consumerName,
        answer.availablePermits,
        answer.unackedMessages,
        answer.msgBacklog,
        answer.type,
        answer.blockedConsumerOnUnackedMsgs,
    )
