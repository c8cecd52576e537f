"""Which topics there are whose messages are not kept, over sockets: what real clients never say is here, too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.client.embedded import Broker
from broker.pulsar.nonpersistent import topics
from broker.pulsar.nonpersistent.topics import NonPersistentTopics
from broker.pulsar.refusals import NotAllowed, TooManyRequests, TopicNotFound
from broker.pulsar.topic_names import parse_topic
from broker.storage.refusals import TopicExists
from protocol.pulsar import pulsar_pb2 as pb
from protocol.pulsar.deliveries import read_delivery
from protocol.pulsar.pulsar_pb2 import CommandSubscribe, ServerError
from tests.pulsar.wire import Type, Wire, send_frame

Connect = Callable[..., Wire]
NAME = "non-persistent://public/default/t"


def of(broker: Broker) -> NonPersistentTopics:
    found: NonPersistentTopics = broker.server.part("pulsar").context.nonpersistent  # type: ignore[union-attr]
    return found


def subscribe(wire: Wire, topic: str = NAME, **fields: Any) -> tuple[int, Any]:
    command = CommandSubscribe(
        topic=topic,
        subscription="s",
        subType=fields.pop("kind", CommandSubscribe.SubType.Exclusive),
        consumer_id=fields.pop("consumer_id", 0),
        request_id=0,
        **fields,
    )
    return wire.ask(Type.SUBSCRIBE, command)


def ping(wire: Wire) -> None:
    wire.say(Type.PING, pb.CommandPing())
    assert Type.PONG == wire.hear()[0]


def test_receipts_leave_immediately_with_message_ids(broker: Broker, connect: Connect) -> None:
    wire, consumer = connect(), connect()
    wire.produce(NAME)
    assert Type.SUCCESS == subscribe(consumer)[0]
    consumer.say(Type.FLOW, pb.CommandFlow(consumer_id=0, messagePermits=1000))
    ping(consumer)
    wire.raw(b"".join(send_frame(number) for number in range(50)) + send_frame(50, bytes(60), batch=3))
    for number in range(51):
        kind, receipt = wire.hear()
        assert (Type.SEND_RECEIPT, number, 0, number) == (
            kind,
            receipt.sequence_id,
            receipt.message_id.ledgerId,
            receipt.message_id.entryId,
        )
        frame = consumer.frame()
        assert frame is not None
        assert number == read_delivery(frame).command.message_id.entryId
    assert 53 == of(broker).loaded()[0].messages_in
    assert [] == broker.server.part("pulsar").context.topics.loaded()  # type: ignore[union-attr]


def test_a_damaged_message_fails_alone(connect: Connect) -> None:
    wire = connect()
    wire.produce(NAME)
    wire.raw(send_frame(0) + send_frame(1, spoil=True) + send_frame(2))
    assert [Type.SEND_RECEIPT, Type.SEND_ERROR, Type.SEND_RECEIPT] == [wire.hear()[0] for _ in range(3)]


def test_what_means_nothing_here_is_answered(connect: Connect) -> None:
    wire = connect()
    subscribe(wire)
    ids = [pb.MessageIdData(ledgerId=2**64 - 1, entryId=number) for number in range(5)]
    for kind in (pb.CommandAck.AckType.Individual, pb.CommandAck.AckType.Cumulative):
        wire.say(Type.ACK, pb.CommandAck(consumer_id=0, ack_type=kind, message_id=ids, request_id=7))
        answer, body = wire.hear()
        assert (Type.ACK_RESPONSE, 7, False) == (answer, body.request_id, body.HasField("error"))
    wire.say(
        Type.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        pb.CommandRedeliverUnacknowledgedMessages(consumer_id=0, message_ids=ids),
    )
    ping(wire)
    assert Type.SUCCESS == wire.ask(Type.SEEK, pb.CommandSeek(consumer_id=0, request_id=0, message_publish_time=1))[0]
    kind, error = wire.ask(Type.GET_LAST_MESSAGE_ID, pb.CommandGetLastMessageId(consumer_id=0, request_id=0))
    assert (Type.ERROR, ServerError.NotAllowedError) == (kind, error.error)
    stats = wire.ask(Type.CONSUMER_STATS, pb.CommandConsumerStats(consumer_id=0, request_id=0))[1]
    assert ("Exclusive", 0) == (stats.type, stats.msgBacklog)
    assert Type.SUCCESS == wire.ask(Type.UNSUBSCRIBE, pb.CommandUnsubscribe(consumer_id=0, request_id=0))[0]


def test_compacted_view_needs_persistent_topic(connect: Connect) -> None:
    kind, error = subscribe(connect(), read_compacted=True)
    assert (Type.ERROR, ServerError.NotAllowedError) == (kind, error.error)


def test_a_dead_letter_topic_gets_its_subscription(broker: Broker, connect: Connect) -> None:
    connect().produce(NAME, initial_subscription_name="first")
    assert ["first"] == list(of(broker).loaded()[0].subscriptions)


def test_exclusive_producers_have_their_epochs_in_memory(connect: Connect) -> None:
    first, second = connect(), connect()
    assert 0 == first.produce(NAME, producer_access_mode=1).topic_epoch
    refused = second.produce(NAME, producer_access_mode=1)
    assert ServerError.ProducerFenced == refused.error
    assert 1 == second.produce(NAME, producer_access_mode=3).topic_epoch
    assert Type.CLOSE_PRODUCER == first.hear()[0]


def test_schema_commands_report_no_schemas(connect: Connect) -> None:
    wire = connect()
    kind, answer = wire.ask(Type.GET_SCHEMA, pb.CommandGetSchema(topic=NAME, request_id=0))
    assert (Type.GET_SCHEMA_RESPONSE, ServerError.TopicNotFound) == (kind, answer.error_code)


def test_missing_namespace_has_no_topics(connect: Connect) -> None:
    wire = connect()
    assert ServerError.TopicNotFound == wire.produce("non-persistent://no/where/t").error
    assert ServerError.TopicNotFound == subscribe(wire, "non-persistent://no/where/t")[1].error


def test_the_client_may_ask_that_nothing_is_made(broker: Broker, connect: Connect) -> None:
    assert ServerError.TopicNotFound == subscribe(connect(), force_topic_creation=False)[1].error
    assert [] == of(broker).loaded()


def test_partitions_survive_a_restart_and_nothing_else_does(tmp_path: Path) -> None:
    name = parse_topic("non-persistent://public/default/odd/na me-partition-x")
    for count in (3, 5):
        with Broker(str(tmp_path), listeners=["pulsar://127.0.0.1:0"]) as broker:
            if count == 3:
                of(broker).create_partitioned(name, 3)
                with pytest.raises(TopicExists):
                    of(broker).create_partitioned(name, 3)
                with pytest.raises(NotAllowed):
                    of(broker).add_partitions(name, 3)
                of(broker).add_partitions(name, 5)
            assert 5 == of(broker).partitions(name)
            assert 5 == len(of(broker).topics("public/default"))
            assert 0 == of(broker).partitions(name.of_partition(4))
            assert of(broker).partitions(name.of_partition(5)) is None
            with pytest.raises(NotAllowed):
                of(broker).get_or_create(name)
            with pytest.raises(TopicNotFound):
                of(broker).get_or_create(name.of_partition(5))
            of(broker).get_or_create(name.of_partition(4))
    with Broker(str(tmp_path), listeners=["pulsar://127.0.0.1:0"]) as broker:
        of(broker).get_or_create(name.of_partition(4))
        of(broker).delete_namespace("public/default")
        assert [] == of(broker).loaded() == of(broker).topics("public/default")
        with pytest.raises(TopicNotFound):
            of(broker).delete_partitioned(name)


def test_there_are_so_many_and_no_more(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "TOPICS_MAX", 2)
    monkeypatch.setattr(topics, "PARTITIONED_MAX", 1)
    monkeypatch.setattr(topics, "PARTITIONS_MAX", 9)
    all_of_them = of(broker)
    for number in range(2):
        all_of_them.get_or_create(parse_topic(f"{NAME}{number}"))
    with pytest.raises(TooManyRequests):
        all_of_them.get_or_create(parse_topic(f"{NAME}2"))
    with pytest.raises(NotAllowed):
        all_of_them.create_partitioned(parse_topic("non-persistent://public/default/p"), 10)
    all_of_them.create_partitioned(parse_topic("non-persistent://public/default/p"), 9)
    with pytest.raises(TooManyRequests):
        all_of_them.create_partitioned(parse_topic("non-persistent://public/default/q"), 1)
    monkeypatch.setattr(topics, "PARTITIONED_MAX", 2)
    monkeypatch.setattr(topics, "ALL_PARTITIONS_MAX", 11)
    with pytest.raises(TooManyRequests):
        all_of_them.create_partitioned(parse_topic("non-persistent://public/default/q"), 3)
    all_of_them.create_partitioned(parse_topic("non-persistent://public/default/q"), 1)
    all_of_them.add_partitions(parse_topic("non-persistent://public/default/q"), 2)
    with pytest.raises(TooManyRequests):
        all_of_them.add_partitions(parse_topic("non-persistent://public/default/q"), 3)


def test_a_topic_that_nobody_uses_is_forgotten(broker: Broker, connect: Connect) -> None:
    wire = connect()
    wire.produce(NAME)
    subscribe(wire)
    all_of_them = of(broker)
    (topic,) = all_of_them.loaded()
    topic.idle_since = -1e9
    all_of_them._topics._sweep()
    assert [topic] == all_of_them.loaded()
    wire.ask(Type.CLOSE_PRODUCER, pb.CommandCloseProducer(producer_id=0, request_id=0))
    wire.ask(Type.CLOSE_CONSUMER, pb.CommandCloseConsumer(consumer_id=0, request_id=0))
    topic.idle_since = -1e9
    all_of_them._topics._sweep()
    assert [] == all_of_them.loaded()
    assert topic.closed
