"""WATCH_TOPIC_LIST over a real socket."""

import random
from collections.abc import Callable

import attrs
import pytest

from broker import expressions
from broker.client.embedded import Broker
from broker.pulsar.topic_names import topics_hash
from broker.pulsar.topics import watches
from broker.pulsar.topics.watches import TopicWatches
from broker.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from broker.security.acl_authorizer import AclAuthorizer
from broker.security.acl_rules import AclFilter
from protocol.pulsar import pulsar_pb2 as pb
from protocol.pulsar.frames import write_command
from tests.pulsar.wire import Type, Wire
from tests.waiting import wait_for

Connect = Callable[..., Wire]
pytestmark = pytest.mark.skipif(not expressions.available(), reason="google-re2 is not installed")


def texts(*names: str, namespace: str = "public/default") -> set[str]:
    return {f"persistent://{namespace}/{name}" for name in names}


class Watcher:
    """What a client knows of the topics."""

    def __init__(self, wire: Wire, pattern: str = "public/default/.*", number: int = 7, hash: str = "") -> None:
        self.wire = wire
        self.number = number
        ask = pb.CommandWatchTopicList(
            request_id=0, watcher_id=number, namespace="public/default", topics_pattern=pattern, topics_hash=hash
        )
        kind, answer = wire.ask(Type.WATCH_TOPIC_LIST, ask)
        self.error = answer.error if kind == Type.ERROR else None
        if self.error is None:
            assert (Type.WATCH_TOPIC_LIST_SUCCESS, number) == (kind, answer.watcher_id)
            self.known, self.hash = set(answer.topic), answer.topics_hash
        self.updates = 0

    def hear(self) -> None:
        kind, update = self.wire.hear()
        assert (Type.WATCH_TOPIC_UPDATE, self.number) == (kind, update.watcher_id)
        new, deleted = set(update.new_topics), set(update.deleted_topics)
        assert new.isdisjoint(self.known) and deleted <= self.known
        self.known = (self.known | new) - deleted
        self.hash = update.topics_hash
        self.updates += 1

    def hear_until(self, known: set[str]) -> None:
        while self.known != known:
            self.hear()
        assert topics_hash(known) == self.hash

    def hears_nothing(self) -> bool:
        self.wire.say(Type.PING, pb.CommandPing())
        return self.wire.hear()[0] == Type.PONG


def watches_of(broker: Broker) -> TopicWatches:
    return broker.server.part("pulsar").context.watches  # type: ignore[union-attr]


def test_the_hash_is_that_of_java() -> None:
    # The value is from Guava's tests for crc32c().
    assert "04046222" == topics_hash(["The quick brown fox jumps over the lazy dog"])
    assert topics_hash(["a", "b"]) == topics_hash(["b", "a"]) != topics_hash(["ab"])


def test_topics_that_are_made_and_deleted_are_told(broker: Broker, connect: Connect) -> None:
    logs = broker.server.kafka.logs
    logs.create_topic("old", 1)
    logs.create_topic("pulsar.other.place.x", 1)
    wire = connect()
    assert wire.connected.feature_flags.supports_topic_watchers
    watcher = Watcher(wire)
    assert (texts("old"), topics_hash(texts("old"))) == (watcher.known, watcher.hash)
    logs.create_topic("new", 2)
    watcher.hear_until(texts("old", "new-partition-0", "new-partition-1"))
    connect().produce("persistent://public/default/of_pulsar")
    watcher.hear_until(texts("old", "of_pulsar", "new-partition-0", "new-partition-1"))
    logs.delete_topic("new")
    watcher.hear_until(texts("old", "of_pulsar"))
    logs.create_topic("pulsar.other.place.y", 1)
    assert watcher.hears_nothing()


def test_partitions_that_are_added_are_told(broker: Broker, connect: Connect) -> None:
    logs = broker.server.kafka.logs
    logs.create_topic("grows", 1)
    watcher = Watcher(connect())
    for partitions in (2, 5):
        logs.add_partitions("grows", partitions)
        watcher.hear_until(texts(*(f"grows-partition-{number}" for number in range(partitions))))


@pytest.mark.parametrize(
    "pattern",
    ["persistent://public/default/a.*", "^persistent://public/default/a.*$", "non-persistent://public/.*/a[0-9]*"],
)
def test_expressions_are_matched_as_a_whole(broker: Broker, connect: Connect, pattern: str) -> None:
    watcher = Watcher(connect(), pattern)
    for name in ("ba", "b", "a1"):
        broker.server.kafka.logs.create_topic(name, 1)
    watcher.hear_until(texts("a1"))
    assert watcher.hears_nothing()


def test_client_with_current_list_gets_only_hash(broker: Broker, connect: Connect) -> None:
    broker.server.kafka.logs.create_topic("t", 1)
    assert set() == Watcher(connect(), hash=topics_hash(texts("t"))).known
    assert texts("t") == Watcher(connect(), hash="00000000").known


def test_a_watch_ends_when_it_is_closed(broker: Broker, connect: Connect) -> None:
    wire, other = connect(), connect()
    watcher, second = Watcher(wire), Watcher(other)
    close = pb.CommandWatchTopicListClose(request_id=0, watcher_id=7)
    for _ in range(2):
        assert Type.SUCCESS == wire.ask(Type.WATCH_TOPIC_LIST_CLOSE, close)[0]
    broker.server.kafka.logs.create_topic("t", 1)
    second.hear_until(texts("t"))
    assert watcher.hears_nothing()
    other.close()
    wait_for(lambda: not watches_of(broker)._watches)


def test_a_number_that_is_watched_again_begins_anew(broker: Broker, connect: Connect) -> None:
    wire = connect()
    Watcher(wire, ".*/b")
    watcher = Watcher(wire, ".*/a")
    for name in "ba":
        broker.server.kafka.logs.create_topic(name, 1)
    watcher.hear_until(texts("a"))
    assert watcher.hears_nothing()


@pytest.mark.parametrize("pattern", ["(", "(?=a)", "(((a{100}){100}){100})", "a" * 1001, "ftp://public/default/a"])
def test_expressions_that_cannot_be_watched_are_refused(broker: Broker, connect: Connect, pattern: str) -> None:
    assert pb.ServerError.NotAllowedError == Watcher(connect(), pattern).error
    assert not watches_of(broker)._watches


def test_without_re2_clients_are_told_to_poll(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expressions, "_INSTALLED", False)
    wire = connect()
    assert not wire.connected.feature_flags.supports_topic_watchers
    assert pb.ServerError.NotAllowedError == Watcher(wire).error


def test_watches_are_bounded(broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "_OF_CONNECTION_MAX", 2)
    monkeypatch.setattr(watches, "_MAX", 3)
    monkeypatch.setattr(watches, "_TOLD_MAX", 2)
    too_many = pb.ServerError.TooManyRequests
    wire, other = connect(), connect()
    assert [None, None, too_many] == [Watcher(wire, number=number).error for number in range(3)]
    assert [None, too_many] == [Watcher(other, number=number).error for number in range(2)]
    for each in (wire, other):
        each.close()
    wait_for(lambda: not watches_of(broker)._watches)
    for name in "ab":
        broker.server.kafka.logs.create_topic(name, 1)
    wire = connect()
    assert [None, too_many] == [Watcher(wire, number=number).error for number in range(2)]


def test_watch_has_only_topics_client_may_describe() -> None:
    settings = {"authorizer_class_name": "acl", "super_users": "User:boss"}
    with Broker(listeners=["pulsar://127.0.0.1:0", "kafka://127.0.0.1:0"], **settings) as broker:
        authorizer = broker.server.part("pulsar").context.authorizer  # type: ignore[union-attr]
        assert isinstance(authorizer, AclAuthorizer)
        logs = broker.server.kafka.logs
        wire = Wire(broker.address("pulsar"))
        right = Acl(
            ResourceType.TOPIC, "a", PatternType.PREFIXED, "User:ANONYMOUS", "*", Operation.DESCRIBE, Permission.ALLOW
        )
        assert [None] == authorizer.create([right])
        for name in ("a1", "b1"):
            logs.create_topic(name, 1)
        watcher = Watcher(wire)
        assert texts("a1") == watcher.known
        for name in ("b2", "a2"):
            logs.create_topic(name, 1)
        watcher.hear_until(texts("a1", "a2"))
        authorizer.create([attrs.evolve(right, name="b1", pattern=PatternType.LITERAL)])
        watcher.hear_until(texts("a1", "a2", "b1"))
        authorizer.delete([AclFilter(ResourceType.TOPIC, "a")])
        watcher.hear_until(texts("b1"))
        namespaces = broker.server.part("pulsar").context.namespaces  # type: ignore[union-attr]
        for roles, seen in ((["ANONYMOUS"], texts("a1", "a2", "b1", "b2")), ([], texts("b1"))):
            namespaces.put_tenant("public", {"adminRoles": roles}, new=False)
            watcher.hear_until(seen)
        for name in ("a1", "b2"):
            logs.delete_topic(name)
        assert watcher.hears_nothing()
        wire.close()


def test_a_connection_that_takes_nothing_is_told_later(broker: Broker, connect: Connect) -> None:
    watcher = Watcher(connect())
    (state,) = watches_of(broker)._watches
    (watch,) = watches_of(broker)._watches[state].values()
    fill = pb.CommandError(request_id=0, error=pb.ServerError.UnknownError, message="x" * 1_000_000)
    frame = write_command(Type.ERROR, fill)
    for _ in range(64):
        state.push(frame)
    wait_for(lambda: not state.connection.writable)
    names = [f"t{number}" for number in range(watches._UNSEEN_MAX + 5)]
    for name in names[:3]:
        broker.server.kafka.logs.create_topic(name, 1)
    assert watch.unseen == set(names[:3])
    for name in names[3:]:
        broker.server.kafka.logs.create_topic(name, 1)
    assert watch.unseen is None
    broker.server.kafka.logs.delete_topic(names[0])
    for _ in range(64):
        assert Type.ERROR == watcher.wire.hear()[0]
    watcher.hear_until(texts(*names[1:]))


def test_constantly_changing_topics_are_eventually_reported(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is told at once is told in few updates."""
    monkeypatch.setattr(watches, "_SLICE", 7)
    logs = broker.server.kafka.logs
    watcher = Watcher(connect(), ".*/[ac]-.*")
    chance = random.Random(7)
    partitions: dict[str, int] = {}
    changes = 0
    for _ in range(300):
        name = f"{chance.choice('abc')}-{chance.randrange(20)}"
        changes += 1
        if name not in partitions:
            partitions[name] = chance.randrange(1, 4)
            logs.create_topic(name, partitions[name])
        elif chance.random() < 0.5:
            partitions[name] += 1
            logs.add_partitions(name, partitions[name])
        else:
            del partitions[name]
            logs.delete_topic(name)
    wanted = {
        text
        for name, count in partitions.items()
        if name[0] != "b"
        for text in (texts(name) if count == 1 else texts(*(f"{name}-partition-{each}" for each in range(count))))
    }
    watcher.hear_until(wanted)
    assert watcher.updates < changes
    ask = pb.CommandGetTopicsOfNamespace(namespace="public/default", request_id=0)
    listed = watcher.wire.ask(Type.GET_TOPICS_OF_NAMESPACE, ask)[1].topics
    assert wanted == {text for text in listed if "/b-" not in text}


def test_failing_watch_does_not_stop_others(broker: Broker, connect: Connect) -> None:
    failing, other = connect(), connect()
    first = Watcher(failing)
    second = Watcher(other)

    def fail(_: str) -> bool:
        raise RuntimeError("a defect")

    state = next(iter(watches_of(broker)._watches))
    (watch,) = watches_of(broker)._watches[state].values()
    may_see, watch.may_see = watch.may_see, fail
    broker.server.kafka.logs.create_topic("a", 1)
    second.hear_until(texts("a"))
    watch.may_see = may_see
    broker.server.kafka.logs.create_topic("b", 1)
    second.hear_until(texts("a", "b"))
    first.hear_until(texts("b"))
