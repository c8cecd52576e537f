"""What nodes of several machines tell each other through PostgreSQL."""

import threading
import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import attrs
import psycopg
import pytest

from broker.cluster.lease import LeaseState
from broker.cluster.nodes import Nodes
from broker.cluster.owner import Callbacks, Owner
from broker.errors import Fenced, StorageError
from broker.metadata import postgres_feed
from broker.metadata.catalogue import StoredOffset, TopicRow
from broker.metadata.postgres import PostgresCatalogue
from broker.metadata.postgres_cluster import ClusterSession
from broker.metadata.postgres_connection import Address
from broker.metadata.postgres_database import PostgresDatabase
from broker.metadata.postgres_feed import FeedListener, PostgresFeed
from broker.metadata.postgres_owner import OwnerSession
from broker.part import Reloads
from broker.runtime.clock import SystemClock
from broker.runtime.disk import SystemDisk
from broker.server import BrokerServer, engine
from broker.server.engine import Seat
from broker.server.seat import FeedWatch, SeatMember
from protocol.kafka.api_keys import ApiKey
from tests.durable.postgres import fresh_schema, shared_server
from tests.durable.proxy import Proxy
from tests.durable.servers import Place, stop
from tests.kafka_connection import KafkaConnection
from tests.waiting import DEADLINE_S, wait_for

NODES = 2


class OneNode:
    """It has its node, and serves."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.session = OwnerSession(address, 5.0)
        assert self.session.lock(5.0)
        self.epoch = self.session.take("somebody", "", 60.0).epoch
        self.database = PostgresDatabase(address)
        self.database.epoch = self.epoch
        self.feed = PostgresFeed(self.database, NODES, SystemClock())
        self.catalogue = PostgresCatalogue(address, self.database, self.feed)

    def make(self, topic: str) -> None:
        lock = self.feed.lock_topics(5.0)
        try:
            self.catalogue.put_topic(TopicRow(topic, uuid.uuid4(), 1))
        finally:
            lock.close()

    def close(self) -> None:
        self.catalogue.close()
        self.session.close()


@pytest.fixture
def nodes() -> Iterator[list[OneNode]]:
    address = Address(shared_server().url, fresh_schema())
    cluster = ClusterSession(address, 5.0)
    cluster.prepare(NODES, "id", "secret")
    cluster.close()
    made = [OneNode(attrs.evolve(address, node=node)) for node in range(NODES)]
    yield made
    for each in made:
        each.close()


def test_a_change_raises_the_number_of_its_table_only(nodes: list[OneNode]) -> None:
    first, second = nodes
    first.make("a")
    before = second.feed.versions()
    first.catalogue.alter_broker_configs({"x": "1"})
    after = second.feed.versions()
    assert before["topics"] == after["topics"]
    assert before[""] < after["broker_configs"] == after[""]


def test_frequent_changes_are_not_told(nodes: list[OneNode]) -> None:
    before = nodes[0].feed.versions()
    nodes[0].catalogue.restore_offsets([StoredOffset("g", "t", 0, 1, -1, None, 0, -1)])
    nodes[0].catalogue.save_group("g", b"")
    assert before == nodes[0].feed.versions()


def test_documents_are_told_by_their_kind(nodes: list[OneNode]) -> None:
    before = nodes[0].feed.versions()
    nodes[0].catalogue.alter_documents([("share-partition", "a", b"1"), ("group-rows", "b", b"2")])
    assert before == nodes[1].feed.versions()
    nodes[0].catalogue.add_documents([("share-orders", "a", b"1"), ("share-partition", "b", b"2")])
    after = nodes[1].feed.versions()
    assert {"", "documents/share-orders"} == {name for name, version in after.items() if before.get(name) != version}
    nodes[0].catalogue.delete_other_documents("share-orders", ["a"], b"2")
    assert after["documents/share-orders"] < nodes[1].feed.versions()["documents/share-orders"]
    nodes[0].catalogue.delete_documents("share-orders", "a")
    assert [] == list(nodes[1].catalogue.load_documents("share-orders"))


def test_topics_that_have_changed_since_are_named(nodes: list[OneNode]) -> None:
    first, second = nodes
    before, _ = second.feed.changed_topics(-1)
    first.make("a")
    first.make("b")
    now, names = second.feed.changed_topics(before)
    assert ["a", "b"] == sorted(names or ())
    assert (now, []) == second.feed.changed_topics(now)
    assert not [name for name in second.feed.versions() if name.startswith("topics/")]


def test_who_has_missed_too_many_changes_reads_all_topics(
    nodes: list[OneNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_feed, "CHANGES_KEPT", 4)
    first, second = nodes
    first.make("a")
    now, _ = second.feed.changed_topics(-1)
    for name in "bcde":  # two numbers each: that of the lock, and that of the change
        first.make(name)
    assert second.feed.changed_topics(now)[1] is None
    rows = second.database.read("SELECT name FROM feed WHERE name LIKE %s ORDER BY name", ("topics/%",))
    assert [("topics/c",), ("topics/d",), ("topics/e",)] == rows


def test_a_node_that_names_no_topics_has_others_read_all(nodes: list[OneNode]) -> None:
    first, second = nodes
    first.make("a")
    now, _ = second.feed.changed_topics(-1)
    with psycopg.connect(shared_server().url, autocommit=True) as connection:  # as the version before did
        connection.execute(
            f"UPDATE {first.address.schema}.feed SET version = version + 1 WHERE name IN ('', 'topics')".encode()
        )
        connection.execute(
            f"UPDATE {first.address.schema}.feed SET version = (SELECT max(version) FROM {first.address.schema}.feed) "
            "WHERE name = 'topics'".encode()
        )
    assert second.feed.changed_topics(now)[1] is None


def test_a_change_that_is_undone_is_not_told(nodes: list[OneNode]) -> None:
    before = nodes[0].feed.versions()
    nodes[0].database.epoch = nodes[0].epoch + 1
    with pytest.raises(Fenced):
        nodes[0].catalogue.alter_broker_configs({"x": "1"})
    assert before == nodes[1].feed.versions()


def test_who_listens_is_woken_by_a_change(nodes: list[OneNode]) -> None:
    listener = FeedListener(nodes[1].feed)
    try:
        assert not listener.wait(0.01)
        nodes[0].catalogue.alter_broker_configs({"x": "1"})
        assert listener.wait(30.0)
    finally:
        listener.close()


def test_a_node_counts_while_its_owner_is_the_same_and_has_the_lease(nodes: list[OneNode]) -> None:
    first, second = nodes
    first.feed.register({"who": "first"}, 1)
    second.feed.register({"who": "second"}, 1)
    assert [0, 1] == [each.node for each in first.feed.living()]
    second.session.take("another", "", 60.0)
    assert [{"who": "first"}] == [each.about for each in first.feed.living()]
    first.session.release(first.epoch, lease=True)
    assert [] == second.feed.living()


def test_a_node_has_what_was_changed_before_the_others_knew_it(
    nodes: list[OneNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = nodes
    register = second.feed.register

    def late(about: Mapping[str, Any], applied: int) -> None:
        if not first.catalogue.topics():  # it has looked, and nobody waits for it yet
            first.make("t")
            assert first.feed.settle(0.0, 0)
        register(about, applied)

    monkeypatch.setattr(second.feed, "register", late)
    logs = SimpleNamespace(nodes=Nodes(1, NODES, 1, "", SystemDisk(), SimpleNamespace()), generation=0)  # type: ignore[arg-type]
    image: set[str] = set()
    reloads: Reloads = {"topics": [lambda: image.update(row.name for row in second.catalogue.topics())]}
    about = {"node_id": 2, "endpoints": {}, "rack": None}
    FeedWatch(second.feed, logs, reloads, about, second.feed.versions(), SystemClock(), Callbacks())  # type: ignore[arg-type]
    assert {"t"} == image
    assert [second.feed.versions()[""]] == [each.applied for each in second.feed.living() if each.node == 1]


def test_a_node_whose_lease_had_run_out_answers_nobody_before_it_has_caught_up(
    place: Place, running: list[BrokerServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut off, is not waited for, and reaches the engine again."""
    monkeypatch.setattr(engine, "Owner", partial(Owner, lease_s=3.0, answers_s=1.0, renew_s=0.2))
    monkeypatch.setattr(engine, "LEASE_S", 3.0)
    address = Address(place.url, place.schema)
    cluster = ClusterSession(address, 5.0)
    cluster.prepare(NODES, "id", "secret")
    cluster.close()
    proxy = Proxy(place.server.port)
    members = [SeatMember(Seat(number, NODES, f"machine-{number}", number), {}) for number in range(NODES)]
    for number, member in enumerate(members):
        config = place.durable(f"machine-{number}", listeners=("kafka://127.0.0.1:0",), nodes=NODES)
        if number:
            config = attrs.evolve(config, catalogue=place.url.replace(f":{place.server.port}/", f":{proxy.port}/"))
        server = BrokerServer(config, open_engine=member.open_engine, member=member)
        server.start()
        running.append(server)
    lease = running[1]._taken.durable.engine.owner.lease  # type: ignore[union-attr]
    feed = members[1]._feed
    assert feed is not None
    versions, late = feed.versions, threading.Event()

    def late_versions() -> dict[str, int]:
        found = versions()
        assert late.wait(DEADLINE_S)
        return found

    proxy.refusing = True
    proxy.cut()
    wait_for(lambda: lease.state is LeaseState.SUSPENDED)
    with KafkaConnection(running[0].listeners["kafka"]) as connection:
        topic = {"name": "t", "num_partitions": 1, "replication_factor": 1}
        made: Any = connection.ask(ApiKey.CREATE_TOPICS, 5, topics=[topic])
    assert 0 == made.topics[0].error_code
    monkeypatch.setattr(feed, "versions", late_versions)
    answers: list[set[str]] = []
    asking = threading.Thread(target=lambda: wait_for(lambda: answers.extend(topics_of(running[1])) or answers))
    asking.start()
    proxy.refusing = False
    now = running[1].runtime.clock.monotonic
    for _ in range(3):  # renewals
        until = max(now(), lease.until)
        wait_for(lambda until=until: lease.until > until)
    monkeypatch.setattr(feed, "versions", versions)
    late.set()
    asking.join()
    assert [{"t"}] == answers
    for server in running.copy():
        stop(server, running)
    proxy.close()


def topics_of(server: BrokerServer) -> list[set[str]]:
    """An answer to the question which topics there are, if there is one."""
    try:
        with KafkaConnection(server.listeners["kafka"]) as connection:
            answer: Any = connection.ask(ApiKey.METADATA, 9, topics=None)
            return [{topic.name for topic in answer.topics}]
    except ConnectionError:
        return []


def test_settling_waits_for_the_others_and_not_for_who_is_gone(nodes: list[OneNode]) -> None:
    first, second = nodes
    first.feed.register({}, 0)
    second.feed.register({}, 0)
    first.catalogue.alter_broker_configs({"x": "1"})
    version = first.feed.versions()[""]
    assert not first.feed.settle(0.0, 0)
    settled: list[bool] = []
    waiting = threading.Thread(target=lambda: settled.append(first.feed.settle(30.0, 0)))
    waiting.start()
    second.feed.register({}, version)
    waiting.join()
    assert [True] == settled
    second.feed.register({}, 0)
    second.session.release(second.epoch, lease=True)
    assert first.feed.settle(0.0, 0)


def test_settling_waits_for_an_engine_that_is_away(nodes: list[OneNode], monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = nodes
    proxy = Proxy(shared_server().port)
    url = first.address.url.replace(f":{shared_server().port}/", f":{proxy.port}/")
    database = PostgresDatabase(attrs.evolve(first.address, url=url), retry_s=0.1)
    feed = PostgresFeed(database, NODES, SystemClock())
    proxy.refusing = True
    proxy.cut()
    assert not feed.settle(0.0, 0)
    versions, asked = feed.versions, list[None]()
    monkeypatch.setattr(feed, "versions", lambda: asked.append(None) or versions())  # type: ignore[func-returns-value]
    settled: list[bool] = []
    waiting = threading.Thread(target=lambda: settled.append(feed.settle(DEADLINE_S, 0)))
    waiting.start()
    wait_for(lambda: len(asked) > 1)
    proxy.refusing = False
    waiting.join()
    assert [True] == settled
    database.close()
    proxy.close()


def test_topics_are_changed_by_one_node_at_a_time(nodes: list[OneNode]) -> None:
    first, second = nodes
    lock = first.feed.lock_topics(5.0)
    with pytest.raises(StorageError, match="Another node is changing topics"):
        second.feed.lock_topics(0.05)
    lock.close()
    wait_for(lambda: not _is_locked(second))
    second.make("t")
    assert ["t"] == [row.name for row in first.catalogue.topics()]


def _is_locked(node: OneNode) -> bool:
    try:
        node.feed.lock_topics(0.05).close()
    except StorageError:
        return True
    return False


def test_a_take_over_ends_the_lock_of_the_owner_before(nodes: list[OneNode]) -> None:
    first, second = nodes
    kept = first.feed.lock_topics(5.0)  # and then it stands still
    assert _is_locked(second)
    second.feed.end_earlier()
    assert _is_locked(second), "another node's lock is not ended"
    taken_over = PostgresFeed(first.database, NODES, SystemClock())
    taken_over.end_earlier()
    wait_for(lambda: not _is_locked(second))
    kept.close()


def test_who_has_lost_the_lock_unnoticed_changes_no_topic(nodes: list[OneNode]) -> None:
    first, second = nodes
    first.feed.lock_topics(5.0).close()  # as if the server had ended the session
    second.make("t")
    kept = second.catalogue.topics()
    with pytest.raises(StorageError, match="another node has begun to change topics meanwhile"):
        first.catalogue.put_topic(TopicRow("t", uuid.uuid4(), 1))
    assert kept == first.catalogue.topics()


def test_a_node_alone_makes_no_backup_of_the_catalogue(nodes: list[OneNode]) -> None:
    with pytest.raises(StorageError, match="A node of several has only a part of the partitions"):
        nodes[0].catalogue.copy(lambda: None)
