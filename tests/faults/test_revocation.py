"""A right is revoked during something long: in every protocol, nothing more is delivered or taken.

Each case begins with its rights, yields when it continues by itself, loses a right there, and reports the results from then on.
``SECRET`` is written after that, by another client, and must not arrive.
"""

import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from typing import Any

import attrs
import pytest

from broker.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from broker.security.acl_authorizer import AclAuthorizer
from broker.security.acl_rules import AclFilter
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.batch import TRANSACTIONAL
from protocol.kafka.records.records import build_batch
from protocol.kafka.schema import control
from protocol.pulsar import pulsar_pb2 as pb
from protocol.shuffle import writer_frames as w
from protocol.shuffle.buffer_response import BufferResponse
from protocol.shuffle.errors import IO_EXCEPTION, ErrorResponse
from protocol.shuffle.writer_frames import WriterErrorCode
from tests.kafka.handlers import txn_client
from tests.kafka.handlers.kafka_client import Beside, Kafka
from tests.kafka.handlers.share_client import EARLIEST, Member
from tests.kafka_connection import fetch_fields
from tests.pulsar.wire import Type, Wire, send_frame
from tests.shuffle.harness import Client, new_id
from tests.waiting import wait_for

READ, WRITE, DESCRIBE, CREATE = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.CREATE
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LISTENERS = ("kafka://127.0.0.1:0", "pulsar://127.0.0.1:0", "shuffle://127.0.0.1:0", "http://127.0.0.1:0")
LONG_MS = 60_000
SECRET = b"a secret"
Right = tuple[Operation, ResourceType, str]


@attrs.define(eq=False)
class World:
    """``topic``: of this test only; its subscriptions, groups and owners have the same name."""

    kafka: Kafka
    authorizer: AclAuthorizer
    topic: str
    lost: Right

    def allow(self, *rights: Right) -> None:
        acls = [
            Acl(kind, name.replace("T", self.topic), PatternType.LITERAL, "User:ANONYMOUS", "*", op, Permission.ALLOW)
            for op, kind, name in rights
        ]
        assert self.authorizer.create(acls) == [None] * len(acls)

    def revoke(self) -> None:
        op, kind, name = self.lost
        matching = AclFilter(kind, name.replace("T", self.topic), operation=op)
        assert [1] == [len(matches) for matches in self.authorizer.delete([matching])]  # type: ignore[arg-type]

    def write(self, value: bytes = SECRET) -> None:
        self.kafka.inside.logs.get(self.topic, 0).append(memoryview(build_batch([(None, value, [], 1)])), now_ms=1)  # type: ignore[union-attr]

    def address(self, listener: str) -> tuple[str, int]:
        host, port = self.kafka.broker.address(listener).rsplit(":", 1)
        return host, int(port)

    @property
    def refused(self) -> ErrorCode:
        return {
            TOPIC: ErrorCode.topic_authorization_failed,
            GROUP: ErrorCode.group_authorization_failed,
            ResourceType.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
        }[self.lost[1]]


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with Kafka(listeners=LISTENERS, authorizer_class_name="acl", super_users="User:boss") as kafka:
        kafka.inside.share.settings = lambda _: EARLIEST
        yield kafka


# -- Kafka --------------------------------------------------------------------------------------------------------------


def parked_fetch(world: World, version: int) -> Iterator[None]:
    with Beside(world.kafka) as client:
        client.tell(ApiKey.FETCH, version, **fetch_fields(world.topic, max_wait=LONG_MS))
        wait_for(lambda: world.kafka.inside.watches.taken == 1)
        yield
        world.write()
        frame = client.frame()
        assert SECRET not in frame
        [topic] = control.parse_response(ApiKey.FETCH, version, frame)[1].responses
        assert [world.refused] == [partition.error_code for partition in topic.partitions]


def parked_fetch_by_name(world: World) -> Iterator[None]:
    yield from parked_fetch(world, 11)


def parked_fetch_by_id(world: World) -> Iterator[None]:
    yield from parked_fetch(world, 13)


def parked_share_fetch(world: World) -> Iterator[None]:
    sessions = world.kafka.inside.share.sessions
    with Member(world.kafka, world.topic, group=world.topic) as member:
        member.send_fetch(max_wait=LONG_MS)
        wait_for(
            lambda: any(session.group_id == world.topic and session.waiter is not None for session in sessions.all())
        )
        yield
        world.write()
        answer = member.receive_fetch()
        assert [] == answer.ranges()
        assert world.refused == (answer.error or answer.errors()[0])


def share_session(world: World) -> Iterator[None]:
    """Acquired records cannot be acknowledged any more, and go to others."""
    world.write(b"not yet")
    with Member(world.kafka, world.topic, group=world.topic) as member:
        assert [(0, 0, 1)] == member.fetch(max_wait=LONG_MS).ranges()
        yield
        world.write()
        answer = member.acknowledge({0: [(0, 0, [1])]})
        codes = [partition.error_code for topic in answer.responses for partition in topic.partitions]
        assert world.refused in (answer.error_code, *codes)
        answer = member.fetch()
        assert [] == answer.ranges()
        assert world.refused == (answer.error or answer.errors()[0])


def transaction(world: World) -> Iterator[None]:
    kafka, me = world.kafka, txn_client.begin(world.kafka, name=world.topic)
    assert [0] == txn_client.add_partitions(kafka, me, world.topic)
    assert 0 == txn_client.write(kafka, me, world.topic, b"x")
    yield
    assert [world.refused] == txn_client.add_partitions(kafka, me, world.topic)
    assert world.refused == txn_client.write(kafka, me, world.topic, SECRET, sequence=1, attributes=TRANSACTIONAL)
    ended = txn_client.end(kafka, me)
    assert ended == (ErrorCode.none if world.lost[1] is TOPIC else world.refused)  # as in Kafka


def member_of_a_group(world: World) -> Iterator[None]:
    def heartbeat(epoch: int, **fields: Any) -> Any:
        return world.kafka.ask(
            ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, group_id=world.topic, member_id="m", member_epoch=epoch, **fields
        )

    first = heartbeat(
        0, subscribed_topic_names=[world.topic], topic_partitions=[], rebalance_timeout=LONG_MS, rack_id=None
    )
    assert ErrorCode.none == first.error_code
    commit = {
        "group_id": world.topic,
        "generation_id_or_member_epoch": first.member_epoch,
        "member_id": "m",
        "topics": [
            {
                "name": world.topic,
                "partitions": [{"partition_index": 0, "committed_offset": 0}],
            }
        ],
    }
    yield
    if world.lost[1] is GROUP:
        assert world.refused == heartbeat(first.member_epoch).error_code
    answer = world.kafka.ask(ApiKey.OFFSET_COMMIT, 9, **commit)
    assert [world.refused] == [partition.error_code for topic in answer.topics for partition in topic.partitions]


# -- Pulsar -------------------------------------------------------------------------------------------------------------


def subscribed(world: World, name: str, **fields: Any) -> Wire:
    wire = Wire(world.kafka.broker.address("pulsar"))
    fields = {"subscription": world.topic, "subType": 0} | fields
    kind, answer = wire.ask(Type.SUBSCRIBE, pb.CommandSubscribe(topic=name, consumer_id=1, request_id=0, **fields))
    assert kind == Type.SUCCESS, answer
    wire.say(Type.FLOW, pb.CommandFlow(consumer_id=1, messagePermits=1000))
    return wire


def closes_consumer(world: World, wire: Wire, feed: Callable[[], object]) -> Iterator[None]:
    with closing(wire):
        wire.say(Type.PING, pb.CommandPing())
        assert Type.PONG == wire.hear()[0]
        yield
        feed()
        assert Type.CLOSE_CONSUMER == wire.hear()[0]  # no message before it
        wire.say(Type.PING, pb.CommandPing())
        assert Type.PONG == wire.hear()[0]  # nor after it


def pulsar_consumer(world: World) -> Iterator[None]:
    yield from closes_consumer(world, subscribed(world, world.topic), world.write)


def pulsar_reader(world: World) -> Iterator[None]:
    start = pb.MessageIdData(ledgerId=0, entryId=0)
    yield from closes_consumer(
        world, subscribed(world, world.topic, durable=False, start_message_id=start), world.write
    )


def consumer_without_log(world: World) -> Iterator[None]:
    name = f"non-persistent://public/default/{world.topic}"
    yield from closes_consumer(world, subscribed(world, name), lambda: None)


def producing(world: World, name: str) -> Iterator[None]:
    with closing(Wire(world.kafka.broker.address("pulsar"))) as wire:
        assert wire.produce(name).producer_ready
        wire.raw(send_frame(0))
        assert Type.SEND_RECEIPT == wire.hear()[0]
        yield
        wire.raw(send_frame(1, SECRET))
        kind, error = wire.hear()
        assert (Type.SEND_ERROR, pb.ServerError.AuthorizationError) == (kind, error.error)


def pulsar_producer(world: World) -> Iterator[None]:
    yield from producing(world, world.topic)


def producer_without_log(world: World) -> Iterator[None]:
    yield from producing(world, f"non-persistent://public/default/{world.topic}")


# -- the shuffle service ------------------------------------------------------------------------------------------------


def shuffle_reader(world: World) -> Iterator[None]:
    """It has given more credit than there are buffers."""
    with Client(world.address("shuffle")) as reader, Client(world.address("shuffle")) as writing:
        writer = writing.open(partition := new_id(), owner=world.topic)
        reader.request(partition, credit=1000)
        writer.push(b"x")
        assert b"x" == reader.next(BufferResponse).payload
        yield
        writer.push(SECRET)
        assert IO_EXCEPTION == reader.next(ErrorResponse).class_name
        writer.push(SECRET)
        assert [] == reader.sync()


def shuffle_writer(world: World) -> Iterator[None]:
    with Client(world.address("shuffle")) as client:
        writer = client.open(new_id(), owner=world.topic)
        writer.push(b"x")
        client.sync()
        yield
        writer.push(*[SECRET] * 20)  # a row
        assert WriterErrorCode.NOT_AUTHORIZED == client.writer_error().code
        assert [] == [each for each in client.sync() if not isinstance(each, w.WriterCredit)]


# -- HTTP ---------------------------------------------------------------------------------------------------------------


def followed(world: World, path: str) -> tuple[socket.socket, Iterable[str]]:
    client = socket.create_connection(world.address("http"), timeout=60)
    client.sendall(f"GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n".encode())
    lines = client.makefile("r", encoding="utf-8", newline="\n")
    assert " 200 " in lines.readline()
    return client, lines


def tail(world: World) -> Iterator[None]:
    client, lines = followed(world, f"/api/v1/topics/{world.topic}/tail")
    with client:
        world.write(b"public")
        assert any("public" in line for line in lines)
        yield
        world.write()
        assert [] == [line for line in lines if SECRET.decode() in line]  # to the end of the stream


def live(world: World) -> Iterator[None]:
    client, lines = followed(world, "/api/v1/live?reactor=true")
    with client:
        assert any(line.startswith("event: reactor") for line in lines)
        yield
        late = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
        assert len(late) <= 2  # those in flight


ON_TOPIC, ON_GROUP = (READ, TOPIC, "T"), (READ, GROUP, "T")
PULSAR_TOPIC = "pulsar.public.default.T"
CASES: list[tuple[Callable[[World], Iterator[None]], list[Right], list[Right]]] = [
    # the activity; the rights that it loses, one in each test; those that it keeps
    (parked_fetch_by_name, [ON_TOPIC], []),
    (parked_fetch_by_id, [ON_TOPIC], []),
    (parked_share_fetch, [ON_TOPIC, ON_GROUP], []),
    (share_session, [ON_TOPIC, ON_GROUP], []),
    (transaction, [(WRITE, TOPIC, "T"), (WRITE, ResourceType.TRANSACTIONAL_ID, "T")], []),
    (member_of_a_group, [ON_TOPIC, ON_GROUP], [(DESCRIBE, TOPIC, "T")]),
    (pulsar_consumer, [ON_TOPIC, ON_GROUP], []),
    (pulsar_reader, [ON_TOPIC, ON_GROUP], []),
    (consumer_without_log, [(READ, TOPIC, PULSAR_TOPIC), ON_GROUP], [(CREATE, TOPIC, PULSAR_TOPIC)]),
    (pulsar_producer, [(WRITE, TOPIC, "T")], []),
    (producer_without_log, [(WRITE, TOPIC, PULSAR_TOPIC)], [(CREATE, TOPIC, PULSAR_TOPIC)]),
    (shuffle_reader, [(READ, TOPIC, "shuffle:T")], [(WRITE, TOPIC, "shuffle:T"), ON_TOPIC]),
    (shuffle_writer, [(WRITE, TOPIC, "shuffle:T")], []),
    (tail, [ON_TOPIC], []),
    (live, [(DESCRIBE, ResourceType.CLUSTER, "kafka-cluster")], []),
]


@pytest.mark.parametrize(
    ("case", "lost", "kept"),
    [
        pytest.param(
            case, one, [*kept, *(other for other in lost if other != one)], id=f"{case.__name__}-{one[1].name}"
        )
        for case, lost, kept in CASES
        for one in lost
    ],
)
def test_nothing_more_comes_after_a_right_is_revoked(
    kafka: Kafka, case: Callable[[World], Iterator[None]], lost: Right, kept: list[Right]
) -> None:
    authorizer = kafka.broker.server.security.authorizer
    assert isinstance(authorizer, AclAuthorizer)
    world = World(kafka, authorizer, f"t{os.urandom(4).hex()}", lost)
    kafka.inside.logs.create_topic(world.topic, 1)
    world.allow(lost, *kept)
    going = case(world)
    next(going)
    world.revoke()
    with suppress(StopIteration):
        next(going)
