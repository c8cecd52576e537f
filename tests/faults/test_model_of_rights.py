"""Authorization by every entry point follows one model: the opened topic decides, and no other name.

A broker with all its protocols has topics with names like those of others' partitions. For random ACLs and names, every entry
point is tried and compared with the model: which Kafka topic a name opens, and what the ACLs say about it.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote

import attrs
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from broker.pulsar.topic_names import kafka_name, long_name, parse_topic, subscription_name
from broker.security.acl import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from broker.security.acl_authorizer import AclAuthorizer
from broker.security.acl_rules import AclFilter
from protocol.kafka.records.records import build_batch
from protocol.pulsar import pulsar_pb2 as pb
from protocol.shuffle import writer_frames as w
from protocol.shuffle.buffer_response import BufferResponse
from protocol.shuffle.errors import ErrorResponse
from tests.kafka.handlers.kafka_client import Kafka
from tests.kafka.required_rights import ROWS, Names
from tests.kafka.test_authorization_matrix import DENIALS, codes
from tests.pulsar.wire import Type, Wire
from tests.security.acls import IMPLIED_BY, covers, is_allowed
from tests.shuffle.harness import Client, new_id

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
READ, WRITE, CREATE, DELETE, DESCRIBE = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.DESCRIBE,
)
WHO, HOST = "User:ANONYMOUS", "127.0.0.1"
LISTENERS = ("kafka://127.0.0.1:0", "pulsar://127.0.0.1:0", "shuffle://127.0.0.1:0", "http://127.0.0.1:0")
ROW = {row.id: row for row in ROWS}
# Number of partitions, by the name in Kafka.
TOPICS = {
    "one": 1,
    "one-partition-0": 1,
    "wide": 3,
    "wide-partition-1": 1,  # unreachable by Pulsar's protocol, where the name means the partition
    "wide-partition-5": 1,
    "wide-partition-05": 1,
    "wide-partition-1-partition-0": 1,
    "w.i_de": 2,
    "pulsar.shop.eu.wide": 3,
    "pulsar.shop.eu.wide-partition-5": 1,
    "pulsar.public.default.caf__c3__a9__20bar": 1,
}
LOCALS = ["one", "wide", "w.i_de", "café bar", "pulsar.shop.eu.wide", "missing", "a%2F:b"]
SUFFIXES = ["", *(f"-partition-{number}" for number in ("0", "1", "2", "3", "5", "05", "1-partition-0"))]
NAMESPACES = ["public/default", "shop/eu"]
OWNERS = ["", "o", "owner"]


@attrs.frozen
class Named:
    """A topic as a client of Pulsar names it."""

    namespace: str
    local: str
    domain: str = "persistent"

    @property
    def text(self) -> str:
        return f"{self.domain}://{self.namespace}/{self.local}"

    @property
    def path(self) -> str:
        return f"{self.domain}/{self.namespace}/{quote(self.local, safe='')}"


NAMED = st.builds(
    lambda namespace, local, suffix, domain: Named(namespace, local + suffix, domain),
    st.sampled_from(NAMESPACES),
    st.sampled_from(LOCALS) | st.text("ab-._/é", min_size=1, max_size=4).filter(lambda text: "/" not in text),
    st.sampled_from(SUFFIXES),
    st.sampled_from(["persistent", "persistent", "persistent", "non-persistent"]),
)
ALIASES = ["pulsar.public.default.wide", "pulsar.public.default.wide-partition-5", "pulsar.public.default.one"]
PATTERNS = st.sampled_from(
    [
        *((name, PatternType.LITERAL) for name in ("*", *TOPICS, *ALIASES, "shuffle:o", "shuffle:", "missing")),
        *(
            (name, PatternType.PREFIXED)
            for name in (
                "w",
                "wide-partition-",
                "one",
                "pulsar.",
                "pulsar.public.default.",
                "pulsar.shop.eu.wide-",
                "shuffle:",
            )
        ),
    ]
)
GROUPS = st.sampled_from(
    [
        *((name, PatternType.LITERAL) for name in ("s", "*", "pulsar.public.default.wide/s", "other")),
        *((name, PatternType.PREFIXED) for name in ("pulsar.", "pulsar.shop.eu.wide-partition-5/", "s")),
    ]
)


def acls(kind: ResourceType, where: Any) -> st.SearchStrategy[Acl]:
    return st.builds(
        lambda name, who, host, operation, permission: Acl(kind, *name, who, host, operation, permission),
        where,
        st.sampled_from([WHO, WHO, "User:*", "User:other"]),
        st.sampled_from(["*", "*", HOST, "10.0.0.1"]),
        st.sampled_from([READ, WRITE, DESCRIBE, CREATE, DELETE, Operation.ALL, Operation.ALTER]),
        st.sampled_from([Permission.ALLOW, Permission.ALLOW, Permission.ALLOW, Permission.DENY]),
    )


@attrs.frozen
class Model:
    acls: Sequence[Acl]
    existing: set[str]

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Kafka's decision."""
        return is_allowed(self.acls, WHO, HOST, operation, kind, name, False)

    def may_by(self, operation: Operation, kind: ResourceType, name: str, alias: str | None) -> bool:
        """For a topic that Pulsar's clients know by two names: at least one allows and neither denies."""
        names = [name] if alias is None else [name, alias]
        concerned = [
            acl
            for acl in self.acls
            if acl.principal in (WHO, "User:*")
            and acl.host in ("*", HOST)
            and any(covers(acl, kind, known_name) for known_name in names)
        ]
        sufficient = {operation, Operation.ALL, *IMPLIED_BY.get(operation, ())}
        allows = any(acl.permission is Permission.ALLOW and acl.operation in sufficient for acl in concerned)
        denies = any(
            acl.permission is Permission.DENY and acl.operation in (operation, Operation.ALL) for acl in concerned
        )
        return allows and not denies

    def may_with(self, operation: Operation, topic: str) -> bool:
        return self.may_by(operation, TOPIC, topic, long_name(topic))

    def may_subscribe(self, topic: str, subscription: str) -> bool:
        return self.may_with(READ, topic) and self.may_by(
            READ, GROUP, subscription, subscription_name(topic, subscription)
        )

    def may_create(self, topic: str) -> bool:
        return self.may_with(CREATE, topic) or self.may(CREATE, CLUSTER, CLUSTER_NAME)

    def opened(self, named: Named) -> tuple[str, int]:
        """The topic of Kafka and its partition; -1: none can be opened."""
        name = parse_topic(named.text)
        match = re.fullmatch(r"(.+)-partition-(0|[1-9][0-9]*)", named.local)
        if named.domain != "persistent":
            return kafka_name(name.as_local), -1
        if match is not None:
            whole, number = kafka_name(name.whole), int(match[2])
            if whole in self.existing and 1 < TOPICS[whole] > number:
                return whole, number
        alone = kafka_name(name.as_local)
        return alone, 0 if alone in self.existing and TOPICS[alone] == 1 else -1


class World:
    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.inside = kafka.inside
        authorizer = kafka.broker.server.security.authorizer
        assert isinstance(authorizer, AclAuthorizer)
        self.authorizer = authorizer
        part = kafka.broker.server.part("pulsar")
        self.pulsar: Any = part.context  # type: ignore[union-attr]
        self.pulsar.namespaces.put_tenant("shop", {}, new=True)
        self.pulsar.namespaces.create("shop/eu")
        self.http = HTTPConnection(*self._address("http"), timeout=60)
        self.shuffle = self._address("shuffle")
        self.tidy()
        with self.acls([Acl(TOPIC, "*", PatternType.LITERAL, WHO, "*", Operation.ALL, Permission.ALLOW)]):
            with Client(self.shuffle) as client:
                for owner in OWNERS:
                    writer = client.open(new_id(), owner=owner, kind=w.PartitionType.BLOCKING)
                    writer.push(b"x").end()
                    client.finish(writer)
            self.partitions = {
                partition.owner: partition.id for partition in kafka.broker.server.part("shuffle").partitions.present()
            }  # type: ignore[union-attr]

    def _address(self, listener: str) -> tuple[str, int]:
        host, port = self.kafka.broker.address(listener).rsplit(":", 1)
        return host, int(port)

    @contextmanager
    def acls(self, acls: Sequence[Acl]) -> Iterator[None]:
        assert [None] * len(acls) == self.authorizer.create(acls)
        try:
            yield
        finally:
            self.authorizer.delete([AclFilter()])

    def tidy(self) -> None:
        """Restores the topics, each with a record that names it."""
        names = {info.name for info in self.inside.logs.topics()}
        for name in names - TOPICS.keys():
            self.inside.logs.delete_topic(name)
        for name in TOPICS.keys() - names:
            self.inside.logs.create_topic(name, TOPICS[name])
            for number in range(TOPICS[name]):
                log = self.inside.logs.get(name, number)
                assert log is not None
                log.append(memoryview(build_batch([(None, marker(name, number), [], 1)])), now_ms=1)
        for topic in self.pulsar.nonpersistent.loaded():
            self.pulsar.nonpersistent.close(topic)

    def names(self) -> set[str]:
        return {info.name for info in self.inside.logs.topics()}

    # -- the ways in: whether it was allowed ----------------------------------------------------------------------------

    def ask(self, api: str, version: int, topic: str, group: str = "s") -> bool:
        fields = ROW[api].fields(Names(topic, group, ""))
        answer = self.kafka.ask(ROW[api].key, version, **fields)
        return not set(codes(answer)) & DENIALS

    def get(self, path: str, method: str = "GET") -> tuple[int, bytes]:
        self.http.request(method, path)
        with self.http.getresponse() as answer:
            return answer.status, b"" if path.endswith("/tail") else answer.read()

    def permits(self, path: str, method: str = "GET") -> bool:
        return self.get(path, method)[0] != 403

    def follows(self, topic: str) -> bool:
        try:
            return self.permits(f"/api/v1/topics/{quote(topic, safe='')}/tail")
        finally:
            self.http.close()  # it does not end

    def opens(self, owner: str) -> bool:
        with Client(self.shuffle) as client:
            client.send(w.encode_open_partition(os.urandom(16), new_id(), 1, w.PartitionType.PIPELINED, -1, owner))
            return isinstance(client.find((w.PartitionOpened, w.WriterError)), w.PartitionOpened)

    def reads(self, owner: str) -> bool:
        with Client(self.shuffle) as client:
            client.request(self.partitions[owner], credit=10)
            return isinstance(client.find((BufferResponse, ErrorResponse)), BufferResponse)


def marker(topic: str, partition: int) -> bytes:
    return f"<{topic}|{partition}>".encode()


def refused(answer: tuple[int, Any]) -> bool:
    return getattr(answer[1], "error", None) == pb.ServerError.AuthorizationError and (
        answer[0] != Type.LOOKUP_RESPONSE or answer[1].response == pb.CommandLookupTopicResponse.Failed
    )


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    chosen: dict[str, Any] = {
        "authorizer_class_name": "acl",
        "super_users": "User:boss",
        "shuffle_partition_request_timeout_ms": 50,
        "auto_create_topics_enable": False,
    }
    with Kafka(listeners=LISTENERS, **chosen) as kafka:
        world = World(kafka)
        yield world
        world.http.close()


RIGHTS = st.lists(
    acls(TOPIC, PATTERNS)
    | acls(TOPIC, PATTERNS)
    | acls(GROUP, GROUPS)
    | acls(CLUSTER, st.just((CLUSTER_NAME, PatternType.LITERAL))),
    max_size=10,
    unique=True,
)
EXAMPLES = 100
examples = settings(
    deadline=None,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def valid(acl: Acl) -> bool:
    supported = {
        GROUP: {READ, DESCRIBE, DELETE, Operation.ALL},
        CLUSTER: {CREATE, DESCRIBE, Operation.ALTER, Operation.ALL},
    }
    return acl.resource_type is TOPIC or acl.operation in supported[acl.resource_type]


def allow(operation: Operation, name: str, permission: Permission = Permission.ALLOW) -> Acl:
    return Acl(TOPIC, name, PatternType.LITERAL, WHO, "*", operation, permission)


@examples
@given(RIGHTS, st.sampled_from([*TOPICS, "missing"]), st.sampled_from(OWNERS))
def test_kafka_http_and_shuffle_decide_by_the_model(world: World, rights: list[Acl], topic: str, owner: str) -> None:
    rights = list(filter(valid, rights))
    model = Model(rights, set(TOPICS))
    exists = topic in TOPICS
    reads, writes, sees = (model.may(operation, TOPIC, topic) for operation in (READ, WRITE, DESCRIBE))
    ways: list[tuple[Callable[[], bool], bool]] = [
        (lambda: world.ask("fetch", 11, topic), reads),
        (lambda: world.ask("produce", 9, topic), writes),
        (lambda: world.ask("fetch", 13, topic), reads or not exists),
        (lambda: world.ask("produce", 13, topic), writes or not exists),
        (lambda: world.ask("list_offsets", 5, topic), sees),
        (lambda: world.ask("share_fetch", 2, topic), model.may(READ, GROUP, "s") and (reads or not exists)),
        (lambda: world.permits(f"/api/v1/topics/{topic}/records?partition=0&offset=0"), reads),
        (lambda: world.follows(topic), reads),
        (lambda: world.permits(f"/api/v1/topics/{topic}"), sees),
        (lambda: world.opens(owner), model.may(WRITE, TOPIC, f"shuffle:{owner}")),
        (lambda: world.reads(owner), model.may(READ, TOPIC, f"shuffle:{owner}")),
    ]
    with world.acls(rights):
        assert [expected for _, expected in ways] == [way() for way, _ in ways]


@examples
@given(RIGHTS, NAMED)
@example(
    [allow(Operation.ALL, "wide"), allow(Operation.ALL, "wide-partition-5", Permission.DENY)],
    Named("public/default", "wide-partition-5"),
)
@example([allow(Operation.ALL, "wide-partition-1")], Named("public/default", "wide-partition-1"))
@example(
    [allow(Operation.ALL, "*"), allow(DESCRIBE, "pulsar.public.default.one", Permission.DENY)],
    Named("public/default", "one"),
)
@example(
    [allow(Operation.ALL, "*"), allow(Operation.ALL, "pulsar.shop.eu.one-partition-3", Permission.DENY)],
    Named("shop/eu", "one-partition-3", "non-persistent"),
)
def test_pulsar_and_its_admin_api_follow_the_model(world: World, rights: list[Acl], named: Named) -> None:
    rights = list(filter(valid, rights))
    model = Model(rights, set(TOPICS))
    topic, partition = model.opened(named)
    sees, writes = model.may_with(DESCRIBE, topic), model.may_with(WRITE, topic)
    exists = partition >= 0
    can_come = exists or model.may_create(topic)
    subscribe = pb.CommandSubscribe(
        topic=named.text, subscription="s", subType=0, consumer_id=1, request_id=0, durable=False, initialPosition=1
    )
    with world.acls(rights):
        try:
            with closing(Wire(world.kafka.broker.address("pulsar"))) as wire:
                lookup = wire.ask(Type.LOOKUP, pb.CommandLookupTopic(topic=named.text, request_id=0))
                assert sees != refused(lookup)
                metadata = pb.CommandPartitionedTopicMetadata(
                    topic=named.text, request_id=0, metadata_auto_creation_enabled=True
                )
                assert sees != refused(wire.ask(Type.PARTITIONED_METADATA, metadata))
                kind, answer = wire.ask(Type.SUBSCRIBE, subscribe)
                assert (model.may_subscribe(topic, "s") and can_come) != refused((kind, answer)), topic
                if kind == Type.SUCCESS and exists:
                    wire.say(Type.FLOW, pb.CommandFlow(consumer_id=1, messagePermits=1))
                    frame = wire.frame()
                    assert frame is not None and marker(topic, partition) in frame
            with closing(Wire(world.kafka.broker.address("pulsar"))) as wire:
                fields = pb.CommandProducer(topic=named.text, producer_id=1, request_id=0)
                came = topic in world.names() or (
                    named.domain != "persistent" and bool(world.pulsar.nonpersistent.loaded())
                )
                assert (writes and (can_come or came)) != refused(wire.ask(Type.PRODUCER, fields)), topic
            assert sees == world.permits(f"/lookup/v2/topic/{named.path}")
            assert sees == world.permits(f"/admin/v2/{named.path}/stats")
            before = world.names()
            assert model.may_with(DELETE, topic) == world.permits(f"/admin/v2/{named.path}?force=true", "DELETE")
            assert before - world.names() <= {topic}
            if not model.may_with(DELETE, topic):
                assert before == world.names()
        finally:
            world.tidy()
