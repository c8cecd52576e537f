"""Commands over a real socket, one at a time."""

import struct
import time
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest

from broker.client.embedded import Broker
from broker.pulsar import handlers
from protocol.pulsar import pulsar_pb2 as pb
from protocol.pulsar.deliveries import PONG
from protocol.pulsar.frames import write_command
from tests.pulsar.wire import Type, Wire, send_frame

Connect = Callable[..., Wire]


def test_a_message_arrives_at_a_real_consumer(broker: Broker) -> None:
    client = pulsar.Client(f"pulsar://{broker.address('pulsar')}")
    consumer = client.subscribe("topic", "subscription")
    producer = client.create_producer("topic")
    sent = producer.send(b"value")
    message = consumer.receive(30_000)
    consumer.acknowledge(message)
    client.close()
    assert (b"value", str(sent)) == (message.data(), str(message.message_id()))


def test_protocol_version_is_minimum_of_client_and_broker(broker: Broker, connect: Connect) -> None:
    answer = connect().connected
    assert (20, 5 << 20) == (answer.protocol_version, answer.max_message_size)
    newer = Wire(broker.address("pulsar"), connect=False)
    newer.say(Type.CONNECT, pb.CommandConnect(client_version="test", protocol_version=99))
    assert 21 == newer.hear()[1].protocol_version
    newer.close()


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(write_command(Type.PING, pb.CommandPing()), id="a command"),
        pytest.param(send_frame(), id="a SEND"),
        pytest.param(b"\x00\x00\x00\x02ab", id="no frame"),
    ],
)
def test_whatever_comes_before_connect_closes_the_connection(broker: Broker, frame: bytes) -> None:
    wire = Wire(broker.address("pulsar"), connect=False)
    wire.raw(frame)
    assert wire.is_closed()
    wire.close()


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        pytest.param(Type.CONNECT, pb.CommandConnect(client_version="again"), id="CONNECT again"),
        pytest.param(Type.SUCCESS, pb.CommandSuccess(request_id=1), id="an answer of brokers"),
        pytest.param(Type.ACTIVE_CONSUMER_CHANGE, pb.CommandActiveConsumerChange(consumer_id=1), id="news of brokers"),
    ],
)
def test_forbidden_command_closes_the_connection(connect: Connect, kind: int, command: object) -> None:
    wire = connect()
    wire.say(kind, command)
    assert wire.frame() is None  # the broker has closed it without an answer


def test_a_send_without_a_producer_closes_the_connection(connect: Connect) -> None:
    wire = connect()
    wire.raw(send_frame(producer_id=5))
    assert wire.is_closed()


def test_large_commands_are_parsed_by_handlers(connect: Connect) -> None:
    wire = connect()
    properties = [pb.KeyValue(key="k" * 100, value="v" * 100) for _ in range(1000)]
    command = pb.CommandProducer(topic="large", producer_id=1, metadata=properties)
    kind, answer = wire.ask(Type.PRODUCER, command)
    assert kind in (Type.PRODUCER_SUCCESS, Type.ERROR), answer
    ids = [pb.MessageIdData(ledgerId=1, entryId=number) for number in range(50_000)]
    wire.say(
        Type.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=ids),
    )
    wire.say(Type.PING, pb.CommandPing())
    assert Type.PONG == wire.hear()[0]


def test_large_invalid_frame_closes_the_connection(connect: Connect) -> None:
    wire = connect()
    data = bytes([0x08, Type.PRODUCER]) + b"\xff" * 20_000
    wire.raw(struct.pack(">II", len(data) + 4, len(data)) + data)
    assert wire.is_closed()


def test_many_consumers_leave_connection_without_delaying_others(connect: Connect) -> None:
    many = connect()
    for number in range(40):
        command = pb.CommandSubscribe(topic="t", subscription="s", subType=2, consumer_id=number, consumer_name="c")
        many.ask(Type.SUBSCRIBE, command)
    many.close()
    last = connect()
    # An exclusive consumer may join only after all others have left.
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        kind, _ = last.ask(Type.SUBSCRIBE, pb.CommandSubscribe(topic="t", subscription="s", subType=0, consumer_id=1))
        if kind == Type.SUCCESS:
            return
    pytest.fail("they have not left")


def test_ping_is_answered(connect: Connect) -> None:
    wire = connect()
    wire.say(Type.PING, pb.CommandPing())
    wire.say(Type.PONG, pb.CommandPong())  # PONG has no answer
    wire.say(Type.PING, pb.CommandPing())
    assert [PONG, PONG] == [wire.frame(), wire.frame()]


def test_lookup_says_the_listeners_own_address(broker: Broker, connect: Connect) -> None:
    _, answer = connect().ask(Type.LOOKUP, pb.CommandLookupTopic(topic="persistent://public/default/t", request_id=0))
    assert (f"pulsar://{broker.address('pulsar')}", "") == (answer.brokerServiceUrl, answer.brokerServiceUrlTls)
    assert answer.HasField("response")
    assert (answer.LookupType.Connect, True) == (answer.response, answer.authoritative)


def test_lookup_over_a_listener_that_the_client_names(tmp_path: Path) -> None:
    listeners = [
        "pulsar://127.0.0.1:0",
        "pulsar://127.0.0.1:0?name=outside&advertised=broker.example:7000",
        "kafka://127.0.0.1:0",
    ]
    with Broker(str(tmp_path), listeners=listeners) as broker:
        wire = Wire(broker.address("pulsar"))
        lookup = pb.CommandLookupTopic(topic="t", request_id=0, advertised_listener_name="outside")
        assert "pulsar://broker.example:7000" == wire.ask(Type.LOOKUP, lookup)[1].brokerServiceUrl
        lookup = pb.CommandLookupTopic(topic="t", request_id=0, advertised_listener_name="test")
        _, answer = wire.ask(Type.LOOKUP, lookup)
        assert (answer.LookupType.Failed, pb.ServerError.ServiceNotReady) == (answer.response, answer.error)
        assert "the broker do not have test listener" in answer.message
        wire.close()


@pytest.mark.parametrize("topic", ["persistent://a/b", "queue://a/b/c"])
def test_invalid_topic_name_is_refused_in_answer(connect: Connect, topic: str) -> None:
    wire = connect()
    _, answer = wire.ask(Type.LOOKUP, pb.CommandLookupTopic(topic=topic, request_id=0))
    assert (answer.LookupType.Failed, pb.ServerError.InvalidTopicName) == (answer.response, answer.error)
    _, answer = wire.ask(Type.PARTITIONED_METADATA, pb.CommandPartitionedTopicMetadata(topic=topic, request_id=0))
    assert (answer.LookupType.Failed, pb.ServerError.InvalidTopicName) == (answer.response, answer.error)
    assert pb.ServerError.InvalidTopicName == wire.produce(topic).error


def test_the_partitions_of_topics_of_both_worlds(broker: Broker, connect: Connect) -> None:
    logs = broker.server.kafka.logs
    logs.create_topic("of-kafka", 3)
    logs.create_topic("alone", 1)
    wire = connect()

    def partitions(topic: str) -> int:
        _, answer = wire.ask(Type.PARTITIONED_METADATA, pb.CommandPartitionedTopicMetadata(topic=topic, request_id=0))
        assert answer.HasField("response")
        assert answer.LookupType.Success == answer.response
        return int(answer.partitions)

    assert [3, 0, 0, 0] == [partitions(each) for each in ("of-kafka", "of-kafka-partition-1", "alone", "new")]
    absent = pb.CommandPartitionedTopicMetadata(topic="new", request_id=0, metadata_auto_creation_enabled=False)
    _, answer = wire.ask(Type.PARTITIONED_METADATA, absent)
    assert (answer.LookupType.Failed, pb.ServerError.TopicNotFound) == (answer.response, answer.error)
    assert logs.topic("new") is None


def test_topics_are_created_with_configured_partitions(tmp_path: Path) -> None:
    with Broker(str(tmp_path), listeners=["pulsar://127.0.0.1:0"], pulsar_auto_topic_partitions=1) as broker:
        wire = Wire(broker.address("pulsar"))
        ask = pb.CommandPartitionedTopicMetadata(topic="t", request_id=0)
        assert [1, 1] == [wire.ask(Type.PARTITIONED_METADATA, ask)[1].partitions for _ in range(2)]
        assert "name" == wire.produce("t-partition-0", producer_name="name").producer_name
        assert pb.ServerError.NotAllowedError == wire.produce("t", 1).error
        wire.close()


def test_settings_can_forbid_topic_creation(tmp_path: Path) -> None:
    with Broker(str(tmp_path), listeners=["pulsar://127.0.0.1:0"], pulsar_auto_create_topics=False) as broker:
        wire = Wire(broker.address("pulsar"))
        assert pb.ServerError.TopicNotFound == wire.produce("t").error
        assert broker.server.kafka.logs.topics() == []
        wire.close()


def test_the_topics_of_a_namespace(broker: Broker, connect: Connect) -> None:
    logs = broker.server.kafka.logs
    logs.create_topic("two", 2)
    logs.create_topic("one", 1)
    logs.create_topic("pulsar.other.place.x", 1)
    wire = connect()
    ask = pb.CommandGetTopicsOfNamespace(namespace="public/default", request_id=0, topics_pattern=".*")
    _, answer = wire.ask(Type.GET_TOPICS_OF_NAMESPACE, ask)
    expected = ["one", "two-partition-0", "two-partition-1"]
    assert [f"persistent://public/default/{each}" for each in expected] == sorted(answer.topics)
    assert not answer.filtered
    ask.topics_hash = "00"
    _, changed = wire.ask(Type.GET_TOPICS_OF_NAMESPACE, ask)
    assert (True, 3) == (changed.changed, len(changed.topics))
    ask.topics_hash = changed.topics_hash
    _, unchanged = wire.ask(Type.GET_TOPICS_OF_NAMESPACE, ask)
    assert (False, 0) == (unchanged.changed, len(unchanged.topics))
    ask = pb.CommandGetTopicsOfNamespace(namespace="public/default", request_id=0, mode=1)
    assert [] == list(wire.ask(Type.GET_TOPICS_OF_NAMESPACE, ask)[1].topics)


def test_transactions_are_refused(connect: Connect) -> None:
    wire = connect()
    answers = [
        wire.ask(Type.TC_CLIENT_CONNECT_REQUEST, pb.CommandTcClientConnectRequest(request_id=0)),
        wire.ask(Type.NEW_TXN, pb.CommandNewTxn(request_id=0)),
        wire.ask(Type.ADD_PARTITION_TO_TXN, pb.TxnRequest(request_id=0)),
        wire.ask(Type.ADD_SUBSCRIPTION_TO_TXN, pb.TxnRequest(request_id=0)),
        wire.ask(Type.END_TXN, pb.TxnRequest(request_id=0)),
    ]
    assert [63, 51, 53, 55, 57] == [kind for kind, _ in answers]
    assert {pb.ServerError.NotAllowedError} == {answer.error for _, answer in answers}


def test_closing_unknown_producer_or_consumer_succeeds(connect: Connect) -> None:
    wire = connect()
    close = pb.CommandCloseProducer(producer_id=9, request_id=0)
    assert Type.SUCCESS == wire.ask(Type.CLOSE_PRODUCER, close)[0]


def test_deletion_over_kafka_is_told_to_producers(broker: Broker, connect: Connect) -> None:
    wire = connect()
    wire.produce("t", producer_name="first")
    wire.raw(send_frame(0))
    first = wire.hear()[1].message_id
    broker.server.kafka.logs.delete_topic("t")
    kind, command = wire.hear()
    assert (Type.CLOSE_PRODUCER, 0, 2**64 - 1) == (kind, command.producer_id, command.request_id)
    wire.raw(send_frame(1))  # the client has sent this before it knew
    assert "first" == wire.produce("t", producer_name="first").producer_name
    wire.raw(send_frame(1))
    again = wire.hear()[1].message_id
    assert again.ledgerId > first.ledgerId
    assert 0 == again.entryId


def test_an_unloaded_topic_is_looked_up_again(broker: Broker, connect: Connect) -> None:
    wire = connect()
    wire.produce("t")
    context = broker.server.part("pulsar").context  # type: ignore[union-attr]
    (topic,) = context.topics.loaded()
    context.topics.unload(topic)
    assert Type.CLOSE_PRODUCER == wire.hear()[0]
    assert [] == context.topics.loaded()
    wire.produce("t")
    wire.raw(send_frame(0))
    assert (topic.ledger, 0) == (lambda id: (id.ledgerId, id.entryId))(wire.hear()[1].message_id)


def test_nothing_is_written_to_a_terminated_topic(broker: Broker, connect: Connect) -> None:
    wire = connect()
    wire.produce("t")
    context = broker.server.part("pulsar").context  # type: ignore[union-attr]
    (topic,) = context.topics.loaded()
    context.topics.terminate(topic, lambda error: None)
    wire.raw(send_frame(0))
    kind, error = wire.hear()
    assert (Type.SEND_ERROR, pb.ServerError.TopicTerminatedError) == (kind, error.error)
    assert pb.ServerError.TopicTerminatedError == connect().produce("t").error


def test_every_handler_has_a_command_of_its_own() -> None:
    commands = handlers.load()
    assert 20 <= len(commands)
    assert all(command.type == kind for kind, command in commands.items())
    assert [Type.CONNECT] == [kind for kind, command in commands.items() if command.before_connect]
