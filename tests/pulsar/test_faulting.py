from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest

from broker.client.embedded import Broker
from broker.errors import BrokerError, ConfigError
from broker.faults.fault import Entity
from protocol.pulsar.pulsar_pb2 import CommandFlow, CommandPing, CommandSubscribe
from tests.pulsar.clients import client as real_client
from tests.pulsar.wire import Type, Wire, send_frame
from tests.waiting import wait_for

MS = 60_000  # longer than any test takes that passes
TOPIC = "orders"
WHOLE = f"persistent://public/default/{TOPIC}"


@pytest.fixture
def client(broker: Broker) -> Iterator[Any]:
    with real_client(f"pulsar://{broker.address('pulsar')}", operation_timeout_seconds=60) as client:
        yield client


def values(broker: Broker, topic: str = TOPIC) -> list[bytes]:
    """The messages in the log."""
    with real_client(f"pulsar://{broker.address('pulsar')}") as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(MS).data())
        return found


# -- which commands ----------------------------------------------------------------------------------------------------


def test_commands_say_what_they_are_about(broker: Broker, client: Any) -> None:
    seen = {
        api: broker.faults.add("observe", api=api, topic=WHOLE, count=None)
        for api in ("LOOKUP", "PRODUCER", "SUBSCRIBE", "SEND", "FLOW", "ACK")
    }
    consumer = client.subscribe(TOPIC, "billing", consumer_name="clerk")
    client.create_producer(TOPIC, producer_name="till").send(b"one")
    consumer.acknowledge(consumer.receive(MS))
    for handle in seen.values():
        handle.wait(timeout=60)
    about = Entity(TOPIC), Entity(TOPIC, subscription="billing")
    expected = {
        "LOOKUP": (about[0], None),
        "PRODUCER": (about[0], "till"),
        "SEND": (about[0], "till"),
        **dict.fromkeys(("SUBSCRIBE", "FLOW", "ACK"), (about[1], "clerk")),
    }
    passed = {api: handle.passed[-1] for api, handle in seen.items()}
    assert expected == {api: (each.entities[0], each.client_id) for api, each in passed.items()}
    assert {("pulsar", "User:ANONYMOUS")} == {(each.protocol, each.principal) for each in passed.values()}
    assert [0] == [broker.faults.add("observe", subscription="other").hits]


def test_partitions_are_told_apart(broker: Broker, client: Any) -> None:
    broker.create_topic(TOPIC, partitions=3)
    seen = broker.faults.add("observe", api="PRODUCER", topic=TOPIC, partition=1, count=None)
    client.create_producer(TOPIC, lazy_start_partitioned_producers=False)
    assert [(Entity(TOPIC, 1),)] == [each.entities for each in seen.passed]


def test_sends_that_arrive_together_are_met_one_by_one(broker: Broker, client: Any) -> None:
    producer = client.create_producer(TOPIC)
    seen = broker.faults.add("observe", api="SEND", count=None)
    broker.faults.add("lost", api="SEND", skip=150)  # the client then sends again what follows
    for number in range(200):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    assert seen.hits >= 200
    assert [b"%d" % number for number in range(200)] == list(dict.fromkeys(values(broker)))


def test_nothing_is_asked_without_a_fault(broker: Broker, client: Any) -> None:
    context = broker.server.part("pulsar").context  # type: ignore[union-attr]
    assert context.faults is None
    with broker.faults.add("observe"):
        assert context.faults is broker.faults
    assert context.faults is None


# -- errors ------------------------------------------------------------------------------------------------------------


def test_an_error_of_a_command_reaches_the_application(broker: Broker, client: Any) -> None:
    broker.faults.add("error", api="SUBSCRIBE", topic=TOPIC, subscription="s", error="ConsumerBusy")
    broker.faults.add("error", api="PRODUCER", topic=TOPIC, error="TopicTerminatedError")
    broker.faults.add("error", api="LOOKUP", topic="other", error="AuthorizationError")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(TOPIC, "s")
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer(TOPIC)
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer("other")
    client.subscribe(TOPIC, "s")  # each was for once
    client.create_producer(TOPIC).send(b"one")
    assert [] == [each for each in broker.faults.list() if each.left]


@pytest.mark.parametrize(("kind", "times"), [("error", 1), ("error_after", 2)])
def test_a_message_with_an_error_is_sent_again(broker: Broker, client: Any, kind: str, times: int) -> None:
    producer = client.create_producer(TOPIC)
    fault = broker.faults.add(kind, api="SEND", topic=TOPIC, error="PersistenceError", skip=1)
    producer.send(b"one")
    producer.send(b"two")
    producer.send(b"three")
    assert 1 == fault.hits
    assert [b"one", *[b"two"] * times, b"three"] == values(broker)


def test_a_retriable_error_is_only_a_delay(broker: Broker, client: Any) -> None:
    fault = broker.faults.add("error", api="PRODUCER", error="ServiceNotReady", count=2)
    client.create_producer(TOPIC).send(b"one")
    assert 2 == fault.hits


# -- answers that come late or never --------------------------------------------------------------------------------------


def test_a_lost_receipt_is_a_timeout_and_the_message_is_there(broker: Broker, client: Any) -> None:
    producer = client.create_producer(TOPIC, send_timeout_millis=2000)
    broker.faults.add("lost", api="SEND", topic=TOPIC)
    with pytest.raises(pulsar.Timeout):
        producer.send(b"one")
    assert [b"one"] == values(broker)


def test_a_receipt_after_a_lost_one_has_both_sent_again(broker: Broker, client: Any) -> None:
    producer = client.create_producer(TOPIC)
    lost = broker.faults.add("lost", api="SEND")
    producer.send_async(b"one", lambda *_: None)
    lost.wait(timeout=60)
    producer.send(b"two")
    assert [b"one", b"two"] * 2 == values(broker)


def test_a_late_receipt_holds_back_those_behind_it(broker: Broker, client: Any) -> None:
    producer = client.create_producer(TOPIC)
    broker.faults.add("delay", api="SEND", delay_ms=300)
    done: list[bytes] = []
    for value in (b"one", b"two"):
        producer.send_async(value, lambda *_, value=value: done.append(value))
    producer.flush()
    assert [b"one", b"two"] == done == values(broker)


def test_a_lost_acknowledgement_brings_the_message_again(broker: Broker, client: Any) -> None:
    consumer = client.subscribe(TOPIC, "s")
    producer = client.create_producer(TOPIC)
    for value in (b"one", b"two"):
        producer.send(value)
    lost = broker.faults.add("lost", api="ACK", subscription="s")
    taken = broker.faults.add("observe", api="ACK", subscription="s", skip=1)
    for _ in range(2):
        consumer.acknowledge(consumer.receive(MS))
        lost.wait(timeout=60)
    taken.wait(timeout=60)
    consumer.close()
    assert b"one" == client.subscribe(TOPIC, "s").receive(MS).data()


def test_an_acknowledgement_with_an_error_fails_where_the_client_asks(broker: Broker, client: Any) -> None:
    consumer = client.subscribe(TOPIC, "s", batch_index_ack_enabled=True)
    client.create_producer(TOPIC).send(b"one")
    message = consumer.receive(MS)
    broker.faults.add("error", api="ACK", error="MetadataError")
    consumer.acknowledge(message)
    broker.faults.list()[0].wait(timeout=60)
    consumer.close()
    assert b"one" == client.subscribe(TOPIC, "s").receive(MS).data()


class HeldTimer:
    """Keeps (deadline, callback)."""

    def __init__(self) -> None:
        self.held: list[tuple[float, Callable[[], None]]] = []

    def at(self, deadline: float, callback: Callable[[], None]) -> None:
        self.held.append((deadline, callback))


def test_a_late_flow_is_not_taken_before_its_time(broker: Broker, connect: Callable[..., Wire]) -> None:
    context = broker.server.part("pulsar").context  # type: ignore[union-attr]
    wire = connect()
    wire.ask(Type.SUBSCRIBE, CommandSubscribe(topic=TOPIC, subscription="s", subType=0, consumer_id=3, request_id=0))
    [connected] = context.topics.loaded()[0].subscriptions["s"].connected
    timer, context.timer = context.timer, HeldTimer()
    broker.faults.add("delay", api="FLOW", delay_ms=1000)
    wire.say(Type.FLOW, CommandFlow(consumer_id=3, messagePermits=7))
    wait_for(lambda: context.timer.held)
    assert 0 == connected.consumer.permits
    [(_, go_on)] = context.timer.held
    go_on()
    wait_for(lambda: connected.consumer.permits == 7)
    context.timer = timer
    wire.say(Type.PING, CommandPing())
    assert Type.PONG == wire.hear()[0]  # the connection is read again


def test_late_commands_of_a_consumer(broker: Broker, client: Any) -> None:
    client.create_producer(TOPIC).send(b"one")
    late = [broker.faults.add("delay", api=api, delay_ms=200) for api in ("SUBSCRIBE", "FLOW", "ACK")]
    consumer = client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
    consumer.acknowledge(consumer.receive(MS))
    for each in late:
        each.wait(timeout=60)
    consumer.close()  # behind the ACK
    with pytest.raises(pulsar.Timeout):
        client.subscribe(TOPIC, "s").receive(500)


# -- lost connections --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "times"), [("reset", 1), ("reset_after", 2)])
def test_a_connection_lost_at_a_message(broker: Broker, client: Any, kind: str, times: int) -> None:
    producer = client.create_producer(TOPIC)
    broker.faults.add(kind, api="SEND", skip=1)
    producer.send(b"one")
    producer.send(b"two")
    producer.send(b"three")
    assert [b"one", *[b"two"] * times, b"three"] == values(broker)


@pytest.mark.parametrize(("kind", "written"), [("reset", 1), ("reset_after", 2)])
def test_messages_behind_a_lost_connection_are_not_taken(
    broker: Broker, connect: Callable[..., Wire], kind: str, written: int
) -> None:
    wire = connect()
    wire.produce(TOPIC)
    broker.faults.add(kind, api="SEND", skip=1)
    wire.raw(b"".join(send_frame(number, b"%d" % number) for number in range(4)))
    assert wire.is_closed()
    broker.restart()  # which waits for what is under way
    assert [b"0", b"1"][:written] == values(broker)


@pytest.mark.parametrize("api", ["LOOKUP", "SUBSCRIBE", "FLOW", "ACK"])
def test_a_connection_lost_at_a_command_of_a_consumer(broker: Broker, client: Any, api: str) -> None:
    producer = client.create_producer(TOPIC)
    fault = broker.faults.add("reset", api=api, topic=TOPIC)
    consumer = client.subscribe(TOPIC, "s")
    producer.send(b"one")
    received = [consumer.receive(MS)]
    consumer.acknowledge(received[0])
    fault.wait(timeout=60)
    producer.send(b"two")
    while received[-1].data() != b"two":
        received.append(consumer.receive(MS))
    assert [b"one", b"two"] == list(dict.fromkeys(each.data() for each in received))


# -- changes -----------------------------------------------------------------------------------------------------------


def received(consumer: Any, count: int) -> list[bytes]:
    """The values of the next ``count`` messages, each acknowledged."""
    values = []
    for _ in range(count):
        message = consumer.receive(MS)
        consumer.acknowledge(message)
        values.append(message.data())
    return values


def test_a_disconnected_consumer_comes_back_and_gets_what_it_has_not_acknowledged(broker: Broker, client: Any) -> None:
    kept, other = client.subscribe(TOPIC, "kept"), client.subscribe(TOPIC, "other")
    producer = client.create_producer(TOPIC)
    producer.send(b"one")
    for consumer in (kept, other):
        assert b"one" == consumer.receive(MS).data()
    again = broker.faults.add("observe", api="SUBSCRIBE", count=None)
    broker.faults.trigger("consumer_disconnected", topic=TOPIC, subscription="kept")
    again.wait(timeout=60)
    producer.send(b"two")
    assert [b"one", b"two"] == received(kept, 2)
    assert [b"two"] == received(other, 1)
    assert [(Entity(TOPIC, subscription="kept"),)] == [each.entities for each in again.passed]


def test_a_consumer_is_disconnected_at_its_acknowledgement(broker: Broker, client: Any) -> None:
    consumer = client.subscribe(TOPIC, "s")
    other = client.subscribe(TOPIC, "t")
    client.create_producer(TOPIC).send(b"one")
    fault = broker.faults.add("consumer_disconnected", api="ACK", subscription="s")
    again = broker.faults.add("observe", api="SUBSCRIBE", count=None)
    assert [b"one"] == received(consumer, 1)
    assert [b"one", b"one"] == received(consumer, 1) + received(other, 1)
    assert (1, 1) == (fault.hits, again.hits)


def test_only_the_consumer_of_the_command_is_disconnected(broker: Broker, client: Any) -> None:
    first, second = (
        client.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared, consumer_name=name) for name in ("first", "second")
    )
    client.create_producer(TOPIC).send(b"one")
    again = broker.faults.add("observe", api="SUBSCRIBE", count=None)
    broker.faults.add("consumer_disconnected", api="GET_LAST_MESSAGE_ID")
    with pytest.raises(pulsar.PulsarException):
        first.get_last_message_id()  # of a consumer that is just gone
    again.wait(timeout=60)
    second.get_last_message_id()
    assert ["first"] == [each.client_id for each in again.passed]


def test_consumers_are_disconnected_when_a_message_comes(broker: Broker, client: Any) -> None:
    consumers = [client.subscribe(TOPIC, name) for name in ("s", "t")]
    fault = broker.faults.add("consumer_disconnected", api="SEND", topic=TOPIC, subscription="t", skip=1)
    again = broker.faults.add("observe", api="SUBSCRIBE", count=None)
    producer = client.create_producer(TOPIC)
    for value in (b"one", b"two"):
        producer.send(value)
    again.wait(timeout=60)
    assert [[b"one", b"two"]] * 2 == [received(each, 2) for each in consumers]
    assert (1, {"t"}) == (fault.hits, {each.entities[0].subscription for each in again.passed})


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_closed_producer_comes_back_and_nothing_is_lost_or_twice(broker: Broker, client: Any, by_hand: bool) -> None:
    producer = client.create_producer(TOPIC, producer_name="till")
    other = client.create_producer(TOPIC, producer_name="other")
    producer.send(b"one")
    again = broker.faults.add("observe", api="PRODUCER", count=None)
    if by_hand:
        broker.faults.trigger("producer_closed", topic=WHOLE, client_id="till")
        again.wait(timeout=60)
    else:
        broker.faults.add("producer_closed", api="SEND", topic=TOPIC, client_id="till")
    producer.send(b"two")
    other.send(b"three")
    assert [b"one", b"two", b"three"] == values(broker)
    assert ["till"] == [each.client_id for each in again.passed]


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.Exclusive])
def test_what_is_not_acknowledged_is_delivered_again(broker: Broker, client: Any, kind: Any) -> None:
    consumer = client.subscribe(TOPIC, "s", kind)
    producer = client.create_producer(TOPIC)
    for value in (b"one", b"two", b"three"):
        producer.send(value)
    acked = broker.faults.add("observe", api="ACK")
    messages = [consumer.receive(MS) for _ in range(3)]
    consumer.acknowledge(messages[1])
    acked.wait(timeout=60)
    broker.faults.trigger("redelivery", topic=TOPIC, subscription="s")
    again = [consumer.receive(MS) for _ in range(2)]
    assert [b"one", b"three"] == [each.data() for each in again]
    if kind == pulsar.ConsumerType.Shared:
        assert [1, 1] == [each.redelivery_count() for each in again]


def test_what_is_not_acknowledged_comes_again_with_the_next_message(broker: Broker, client: Any) -> None:
    consumer = client.subscribe(TOPIC, "s")
    producer = client.create_producer(TOPIC)
    broker.faults.add("redelivery", api="SEND", topic=TOPIC, skip=1)
    producer.send(b"one")
    assert b"one" == consumer.receive(MS).data()
    producer.send(b"two")
    assert [b"one", b"two"] == received(consumer, 2)


def test_what_is_not_there_cannot_change(broker: Broker, client: Any) -> None:
    client.subscribe(TOPIC, "s", consumer_name="clerk")
    for kind, fields in (
        ("redelivery", {"topic": "other"}),
        ("redelivery", {"topic": TOPIC, "subscription": "t"}),
        ("redelivery", {"topic": TOPIC, "partition": 0}),
        ("consumer_disconnected", {"topic": TOPIC, "client_id": "till"}),
        ("producer_closed", {"topic": TOPIC}),
    ):
        with pytest.raises(BrokerError, match="nothing to which this could happen"):
            broker.faults.trigger(kind, **fields)
    with pytest.raises(ConfigError, match="Give topic for a fault of the kind 'redelivery'"):
        broker.faults.trigger("redelivery", subscription="s")
    with pytest.raises(ConfigError, match="no GET_TOPICS_OF_NAMESPACE request names one"):
        broker.faults.add("redelivery", api="GET_TOPICS_OF_NAMESPACE")


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"kind": "error", "api": "FLOW", "error": "ConsumerBusy"},
            "'error' never meets FLOW, only: SUBSCRIBE, PRODUCER,",
        ),
        ({"kind": "error", "error": "ProducerFenced"}, "ProducerFenced: give protocol='kafka' or protocol='pulsar'."),
        ({"kind": "error", "api": "SEND", "error": "NOT_COORDINATOR"}, "For pulsar: There is no error"),
        ({"kind": "throttle", "api": "SEND", "delay_ms": 1}, "For pulsar: There is no kind 'throttle'"),
        ({"kind": "observe", "api": "SENT"}, "There is no api 'SENT'. Did you mean SEND?"),
        ({"kind": "observe", "protocol": "http"}, "There is no protocol 'http'."),
        ({"kind": "observe", "protocol": "pulsar", "api": "PRODUCE"}, "Did you mean PRODUCER?"),
        ({"kind": "observe", "topic": f"{WHOLE}-partition-1"}, "topic='orders', partition=1."),
        ({"kind": "observe", "topic": "a/b"}, "Invalid topic name"),
    ],
)
def test_what_cannot_be_carried_out_is_refused(broker: Broker, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        broker.faults.add(**fields)
    assert says in str(error.value)


def test_a_fault_without_a_protocol_s_own_names_is_of_all(broker: Broker, client: Any) -> None:
    everything, of_pulsar = (
        broker.faults.add("observe", topic=TOPIC, count=None, **fields) for fields in ({}, {"protocol": "pulsar"})
    )
    client.create_producer(TOPIC).send(b"one")
    assert everything.hits == of_pulsar.hits >= 2
    assert b"one" in broker.records(TOPIC)[0].value  # not through a listener
    broker.faults.add("error", error="ProducerFenced", protocol="pulsar", api="SEND")
    broker.faults.add("error", error="PRODUCER_FENCED", api="PRODUCE")
