"""What a client may do, over a real socket, with an authorizer that allows what a test says."""

from collections.abc import Callable
from contextlib import closing

import attrs
import pytest

from broker.client.embedded import Broker
from broker.pulsar.topic_names import parse_topic
from broker.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from broker.security.acl_authorizer import AclAuthorizer
from broker.security.acl_rules import AclFilter
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


def test_producing_needs_write_and_create_for_new_topic(broker: Broker, connect: Connect, grants: Grants) -> None:
    wire = connect()
    for allowed in ([], [topic(WRITE)], [topic(CREATE)]):
        with grants.only(*allowed):
            assert NOT_AUTHORIZED == wire.produce("t").error
    assert broker.server.kafka.logs.topic("t") is None
    with grants.only(topic(WRITE), topic(CREATE)):
        assert wire.produce("t").producer_ready
    with grants.only(topic(WRITE)):
        assert connect().produce("t").producer_ready


def test_revoked_right_ends_producer(connect: Connect, grants: Grants) -> None:
    wire = connect()
    with grants.only(topic(WRITE), topic(CREATE)):
        wire.produce("t")
        wire.raw(send_frame(0))
        assert Type.SEND_RECEIPT == wire.hear()[0]
    with grants.only():
        wire.raw(send_frame(1))
        kind, error = wire.hear()
        assert (Type.SEND_ERROR, NOT_AUTHORIZED) == (kind, error.error)


def test_consuming_needs_read_on_topic_and_subscription(broker: Broker, connect: Connect, grants: Grants) -> None:
    broker.server.kafka.logs.create_topic("t", 1)
    for allowed in ([], [topic(READ)], [group("s")]):
        with grants.only(*allowed):
            assert NOT_AUTHORIZED == subscribe(connect())
    with grants.only(topic(READ), group("s")):
        assert 0 == subscribe(connect())


def test_topic_lookup_needs_describe(connect: Connect, grants: Grants) -> None:
    wire = connect()
    lookup = pb.CommandLookupTopic(topic="t", request_id=0)
    metadata = pb.CommandPartitionedTopicMetadata(topic="t", request_id=0)
    with grants.only():
        assert NOT_AUTHORIZED == wire.ask(Type.LOOKUP, lookup)[1].error
        assert NOT_AUTHORIZED == wire.ask(Type.PARTITIONED_METADATA, metadata)[1].error
    with grants.only(topic(DESCRIBE)):
        assert wire.ask(Type.LOOKUP, lookup)[1].brokerServiceUrl
        assert 0 == wire.ask(Type.PARTITIONED_METADATA, metadata)[1].partitions


@pytest.mark.parametrize(
    ("exists", "opened"),
    [
        ({"a_b": 4}, "a_b"),
        ({"a_b": 3}, "a_b-partition-3"),
        ({"a_b": 1}, "a_b-partition-3"),
        ({"a_b": 3, "a_b-partition-3": 1}, "a_b-partition-3"),
        ({"a_b": 4, "a_b-partition-3": 1}, "a_b"),
        ({}, "a_b-partition-3"),
    ],
)
def test_rights_are_checked_by_opened_topics_kafka_name(
    broker: Broker, connect: Connect, grants: Grants, exists: dict[str, int], opened: str
) -> None:
    for name, partitions in exists.items():
        broker.server.kafka.logs.create_topic(name, partitions)
    lookup = pb.CommandLookupTopic(topic="persistent://public/default/a_b-partition-3", request_id=0)
    for name in ("a_b", "a_b-partition-3"):
        with grants.only(topic(DESCRIBE, name)):
            answer = connect().ask(Type.LOOKUP, lookup)[1]
        assert (name == opened) == bool(answer.brokerServiceUrl)
        assert (name != opened) == (answer.error == NOT_AUTHORIZED)


@pytest.mark.parametrize(("partitions", "opened"), [(0, "t-partition-3"), (3, "t-partition-3"), (4, "t")])
def test_nonpersistent_rights_are_checked_by_kafka_name(
    broker: Broker, connect: Connect, grants: Grants, partitions: int, opened: str
) -> None:
    topics = broker.server.part("pulsar").context.nonpersistent  # type: ignore[union-attr]
    whole = "non-persistent://public/default/t"
    if partitions:
        topics.create_partitioned(parse_topic(whole), partitions)
    lookup = pb.CommandLookupTopic(topic=f"{whole}-partition-3", request_id=0)
    for name in ("t", "t-partition-3"):
        with grants.only(topic(DESCRIBE, f"pulsar.public.default.{name}")):
            answer = connect().ask(Type.LOOKUP, lookup)[1]
        assert (name == opened) == bool(answer.brokerServiceUrl)


def test_topic_becoming_partition_has_other_rights(broker: Broker, connect: Connect, grants: Grants) -> None:
    topics = broker.server.part("pulsar").context.nonpersistent  # type: ignore[union-attr]
    whole, wire = "non-persistent://public/default/t", connect()
    own, others = "pulsar.public.default.t-partition-3", "pulsar.public.default.t"
    with grants.only(topic(WRITE, own), topic(CREATE, own)):
        assert wire.produce(f"{whole}-partition-3").producer_ready
    topics.create_partitioned(parse_topic(whole), 4)
    assert Type.CLOSE_PRODUCER == wire.hear()[0]
    for name in (own, others):
        with grants.only(topic(WRITE, name), topic(CREATE, name)):
            answer = connect().produce(f"{whole}-partition-3")
        assert (name != others) == (getattr(answer, "error", None) == NOT_AUTHORIZED)


def test_revoked_read_right_ends_consumer(broker: Broker, connect: Connect, grants: Grants) -> None:
    broker.server.kafka.logs.create_topic("t", 1)
    flow = pb.CommandFlow(consumer_id=1, messagePermits=10)
    again = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1)
    for right in (topic(READ), group("s")):
        left = [one for one in (topic(READ), group("s")) if one != right]
        for command, body in ((Type.FLOW, flow), (Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, again)):
            wire = connect()
            with grants.only(topic(READ), group("s")):
                assert 0 == subscribe(wire)
            with grants.only(*left):
                wire.say(command, body)
                assert Type.CLOSE_CONSUMER == wire.hear()[0]
                assert NOT_AUTHORIZED == subscribe(wire)
        for command, body in (
            (Type.SEEK, pb.CommandSeek(consumer_id=1, request_id=0, message_publish_time=1)),
            (Type.UNSUBSCRIBE, pb.CommandUnsubscribe(consumer_id=1, request_id=0)),
            (Type.GET_LAST_MESSAGE_ID, pb.CommandGetLastMessageId(consumer_id=1, request_id=0)),
        ):
            wire = connect()
            with grants.only(topic(READ), group("s")):
                assert 0 == subscribe(wire)
            with grants.only(*left):
                wire.say(command, body)
                assert Type.CLOSE_CONSUMER == wire.hear()[0]
                assert NOT_AUTHORIZED == wire.hear()[1].error


def test_topics_without_describe_right_are_not_listed(broker: Broker, connect: Connect, grants: Grants) -> None:
    for name in ("seen", "hidden"):
        broker.server.kafka.logs.create_topic(name, 1)
    ask = pb.CommandGetTopicsOfNamespace(namespace="public/default", request_id=0)
    with grants.only(topic(DESCRIBE, "seen")):
        _, answer = connect().ask(Type.GET_TOPICS_OF_NAMESPACE, ask)
    assert ["persistent://public/default/seen"] == list(answer.topics)


@pytest.mark.parametrize(
    ("name", "resource"),
    [("persistent://public/default/t", "t"), ("non-persistent://public/default/t", "pulsar.public.default.t")],
)
@pytest.mark.parametrize("change", ["topic", "group", "denial"])
def test_acl_change_closes_consumers_without_rights(name: str, resource: str, change: str) -> None:
    """Also those that wait with permits: what comes next is not for them."""
    settings = {"authorizer_class_name": "acl", "super_users": "User:boss"}
    with Broker(listeners=["kafka://127.0.0.1:0", "pulsar://127.0.0.1:0"], **settings) as broker:
        authorizer = broker.server.part("pulsar").context.authorizer
        assert isinstance(authorizer, AclAuthorizer)
        reading = Acl(ResourceType.TOPIC, resource, PatternType.LITERAL, "User:ANONYMOUS", "*", READ, Permission.ALLOW)
        rights = [
            reading,
            attrs.evolve(reading, operation=CREATE),
            attrs.evolve(reading, resource_type=ResourceType.GROUP, name="s"),
        ]
        assert authorizer.create(rights) == [None] * 3
        with closing(Wire(broker.address("pulsar"))) as wire:
            assert 0 == subscribe(wire, name)
            wire.say(Type.FLOW, pb.CommandFlow(consumer_id=1, messagePermits=10))
            authorizer.create([attrs.evolve(reading, principal="User:other", permission=Permission.DENY)])
            wire.say(Type.PING, pb.CommandPing())
            assert Type.PONG == wire.hear()[0]
            if change == "denial":
                authorizer.create([attrs.evolve(reading, permission=Permission.DENY)])
            else:
                authorizer.delete([AclFilter(ResourceType.TOPIC if change == "topic" else ResourceType.GROUP)])
            assert Type.CLOSE_CONSUMER == wire.hear()[0]
            assert NOT_AUTHORIZED == subscribe(wire, name)
