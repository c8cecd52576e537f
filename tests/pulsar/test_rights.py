"""What a client may do, over a real socket, with an authorizer that allows what a test says."""

from collections.abc import Callable

import pytest

from broker.client.embedded import Broker
from broker.security.acl import Operation, ResourceType
from protocol.pulsar import pulsar_pb2 as pb
from tests.pulsar.wire import Type, Wire, send_frame
from tests.security.grants import Grant, Grants

READ, WRITE, CREATE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DESCRIBE
NOT_AUTHORIZED = pb.ServerError.AuthorizationError
Connect = Callable[..., Wire]


def topic(operation: Operation, name: str = "t") -> Grant:
    return operation, ResourceType.TOPIC, name


def group(name: str) -> Grant:
    return READ, ResourceType.GROUP, name


@pytest.fixture
def grants(broker: Broker) -> Grants:
    grants = Grants()
    broker.server.part("pulsar").context.authorizer = grants  # type: ignore[union-attr]
    return grants


def subscribe(wire: Wire, name: str = "t") -> int:
    command = pb.CommandSubscribe(topic=name, subscription="s", subType=0, consumer_id=1, request_id=0)
    kind, answer = wire.ask(Type.SUBSCRIBE, command)
    return 0 if kind == Type.SUCCESS else int(answer.error)


def test_to_produce_a_client_needs_write_and_for_a_new_topic_create(
    broker: Broker, connect: Connect, grants: Grants
) -> None:
    wire = connect()
    for allowed in ([], [topic(WRITE)], [topic(CREATE)]):
        with grants.only(*allowed):
            assert NOT_AUTHORIZED == wire.produce("t").error
    assert broker.server.kafka.logs.topic("t") is None
    with grants.only(topic(WRITE), topic(CREATE)):
        assert wire.produce("t").producer_ready
    with grants.only(topic(WRITE)):
        assert connect().produce("t").producer_ready


def test_a_right_that_is_taken_away_ends_the_producer(connect: Connect, grants: Grants) -> None:
    wire = connect()
    with grants.only(topic(WRITE), topic(CREATE)):
        wire.produce("t")
        wire.raw(send_frame(0))
        assert Type.SEND_RECEIPT == wire.hear()[0]
    with grants.only():
        wire.raw(send_frame(1))
        kind, error = wire.hear()
        assert (Type.SEND_ERROR, NOT_AUTHORIZED) == (kind, error.error)


def test_to_consume_a_client_needs_read_on_the_topic_and_on_the_subscription(
    broker: Broker, connect: Connect, grants: Grants
) -> None:
    broker.server.kafka.logs.create_topic("t", 1)
    for allowed in ([], [topic(READ)], [group("s")]):
        with grants.only(*allowed):
            assert NOT_AUTHORIZED == subscribe(connect())
    with grants.only(topic(READ), group("s")):
        assert 0 == subscribe(connect())


def test_to_look_a_topic_up_a_client_needs_describe(connect: Connect, grants: Grants) -> None:
    wire = connect()
    lookup = pb.CommandLookupTopic(topic="t", request_id=0)
    metadata = pb.CommandPartitionedTopicMetadata(topic="t", request_id=0)
    with grants.only():
        assert NOT_AUTHORIZED == wire.ask(Type.LOOKUP, lookup)[1].error
        assert NOT_AUTHORIZED == wire.ask(Type.PARTITIONED_METADATA, metadata)[1].error
    with grants.only(topic(DESCRIBE)):
        assert wire.ask(Type.LOOKUP, lookup)[1].brokerServiceUrl
        assert 0 == wire.ask(Type.PARTITIONED_METADATA, metadata)[1].partitions


def test_rights_are_asked_for_by_the_name_that_the_topic_has_in_kafka(connect: Connect, grants: Grants) -> None:
    wire = connect()
    lookup = pb.CommandLookupTopic(topic="persistent://public/default/a_b-partition-3", request_id=0)
    with grants.only(topic(DESCRIBE, "a_b")):
        assert wire.ask(Type.LOOKUP, lookup)[1].brokerServiceUrl


def test_topics_that_a_client_may_not_describe_are_not_listed(broker: Broker, connect: Connect, grants: Grants) -> None:
    for name in ("seen", "hidden"):
        broker.server.kafka.logs.create_topic(name, 1)
    ask = pb.CommandGetTopicsOfNamespace(namespace="public/default", request_id=0)
    with grants.only(topic(DESCRIBE, "seen")):
        _, answer = connect().ask(Type.GET_TOPICS_OF_NAMESPACE, ask)
    assert ["persistent://public/default/seen"] == list(answer.topics)
