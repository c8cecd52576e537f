"""Pulsar at several nodes: whichever its client asks, it is sent to the node that has the topic, and nothing is lost when a node
is killed."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pulsar
import pytest
from confluent_kafka import Producer
from pulsar import ConsumerType, InitialPosition, PartitionsRoutingMode
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String

from tests.process.broker_process import PATIENCE_S
from tests.process.nodes import Nodes
from tests.waiting import wait_for

PATIENCE_MS = int(PATIENCE_S * 1000)
TOPICS = "/admin/v2/persistent/public/default"
EARLIEST = InitialPosition.Earliest


class PulsarNodes(Nodes):
    @contextmanager
    def client(self, node_id: int | None = None, **options: Any) -> Iterator[pulsar.Client]:
        """``node_id``: the node that it knows at first."""
        address = self.addresses["pulsar"] if node_id is None else self.endpoints("pulsar")[node_id]
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        made = pulsar.Client(f"pulsar://{address}", operation_timeout_seconds=30, logger=logger, **options)
        try:
            yield made
        finally:
            with suppress(pulsar.AlreadyClosed):  # a fenced producer is closed, or just being so
                made.close()

    def do(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        status, answer = self.call(method, path, body, **options)
        assert status in (200, 204), (status, answer)
        return answer

    def make_partitioned(self, topic: str, partitions: int) -> None:
        self.do("PUT", f"{TOPICS}/{topic}/partitions", partitions)

    def owners(self, *topics: str) -> dict[str, str]:
        """Pulsar's address of the node that has each topic, as every node says."""
        found = {}
        for topic in topics:
            path = f"/lookup/v2/topic/persistent/public/default/{topic}"
            answers = {self.do("GET", path, at=at)["brokerUrl"] for at in self.endpoints("http").values()}
            [found[topic]] = answers
        return found


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarNodes]:
    running = PulsarNodes(tmp_path_factory.mktemp("nodes"), schemes=["http", "pulsar"])
    running.start()
    yield running
    assert 0 == running.stop()


def taken(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    """The next messages, which are acknowledged."""
    found = []
    for _ in range(count):
        message = consumer.receive(PATIENCE_MS)
        found.append(message.data())
        consumer.acknowledge(message)
    return found


def test_topics_are_found_from_every_node(nodes: PulsarNodes) -> None:
    names = [f"plain-{number}" for number in range(6)]
    for node_id in (1, 2, 3):
        with nodes.client(node_id) as client:
            for name in names:  # the first client makes them
                consumer = client.subscribe(name, f"s{node_id}", initial_position=EARLIEST)
                producer = client.create_producer(name)
                producer.send(f"{node_id}".encode())
                assert [f"{each}".encode() for each in range(1, node_id + 1)] == taken(consumer, node_id)
    assert 3 == len(set(nodes.owners(*names).values()))


def test_partitions_are_on_all_nodes_and_each_has_its_consumers(nodes: PulsarNodes) -> None:
    nodes.make_partitioned("spread", 6)
    parts = [f"spread-partition-{number}" for number in range(6)]
    owners = nodes.owners(*parts)
    assert [2, 2, 2] == [list(owners.values()).count(url) for url in set(owners.values())]
    routing = PartitionsRoutingMode.RoundRobinDistribution
    with nodes.client(1) as writing, nodes.client(2) as reading, nodes.client(3) as beside:
        assert [f"persistent://public/default/{part}" for part in parts] == beside.get_topic_partitions("spread")
        kinds = [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.Failover, ConsumerType.KeyShared]
        consumers = [
            reading.subscribe("spread", str(kind), consumer_type=kind, initial_position=EARLIEST) for kind in kinds
        ]
        producer = writing.create_producer("spread", message_routing_mode=routing, batching_enabled=False)
        for number in range(120):
            producer.send(b"%d" % number, partition_key=str(number % 30))
        for consumer in consumers:
            assert list(range(120)) == sorted(map(int, taken(consumer, 120)))


def test_a_topic_of_kafka_is_read_by_pulsar_wherever_it_is(nodes: PulsarNodes) -> None:
    producer = Producer({"bootstrap.servers": nodes.address})
    names = [f"kafkas-{number}" for number in range(4)]
    for name in names:
        producer.produce(name, "from Kafka")
    assert 0 == producer.flush(PATIENCE_S)
    with nodes.client(2) as client:
        for name in names:
            reader = client.create_reader(name, pulsar.MessageId.earliest)
            assert b"from Kafka" == reader.read_next(PATIENCE_MS).data()
    # Two nodes must not give two topics the same ledger.
    ledgers = [nodes.do("GET", f"{TOPICS}/{name}/lastMessageId")["ledgerId"] for name in names]
    assert len(names) == len(set(ledgers))


def test_ledgers_are_never_given_twice(nodes: PulsarNodes) -> None:
    at = list(nodes.endpoints("http").values())
    for number in range(150):  # more than a node takes at a time
        nodes.do("PUT", f"{TOPICS}/ledger-{number}", at=at[number % 3])
    ledgers = {
        nodes.do("GET", f"{TOPICS}/ledger-{number}/internalStats")["ledgers"][0]["ledgerId"] for number in range(150)
    }
    assert 150 == len(ledgers)


def test_regular_expressions_find_topics_of_all_nodes(nodes: PulsarNodes) -> None:
    names = [f"matched-{number}" for number in range(5)]
    for name in names:
        nodes.do("PUT", f"{TOPICS}/{name}")
    with nodes.client(3) as client:
        pattern = re.compile("persistent://public/default/matched-.*")
        consumer = client.subscribe(pattern, "s", initial_position=EARLIEST)
        for name in names:
            client.create_producer(name).send(name.encode())
        assert sorted(names) == sorted(each.decode() for each in taken(consumer, 5))


def test_cursors_outlive_the_node(nodes: PulsarNodes) -> None:
    nodes.make_partitioned("kept", 3)
    routing = PartitionsRoutingMode.RoundRobinDistribution
    with nodes.client(1) as client:
        consumer = client.subscribe("kept", "s", initial_position=EARLIEST)
        producer = client.create_producer("kept", message_routing_mode=routing, batching_enabled=False)
        for number in range(30):
            producer.send(b"%d" % number)
        first = taken(consumer, 12)
        consumer.close()
    for node_id in (2, 3):
        nodes.kill_node(node_id)
    with nodes.client(1) as client:
        consumer = client.subscribe("kept", "s")
        # What was acknowledged in the last second before the end may come again.
        rest: set[int] = set()
        while len(rest | set(map(int, first))) < 30:
            rest.add(int(taken(consumer, 1)[0]))
        consumer.unsubscribe()


def test_schemas_are_the_same_on_all_nodes(nodes: PulsarNodes) -> None:
    class Person(Record):  # type: ignore[misc]
        name = String()
        age = Integer()

    class Stranger(Record):  # type: ignore[misc]
        name = Integer(required=True)
        street = String(required=True)

    nodes.make_partitioned("people", 3)
    with nodes.client(1) as here, nodes.client(2) as there:
        consumer = here.subscribe("people", "s", schema=AvroSchema(Person), initial_position=EARLIEST)
        producer = there.create_producer("people", schema=AvroSchema(Person))
        producer.send(Person(name="Ada", age=36))
        assert "Ada" == consumer.receive(PATIENCE_MS).value().name
        for client in (here, there):
            with pytest.raises(pulsar.IncompatibleSchema):
                client.create_producer("people", schema=JsonSchema(Stranger))
    schemas = [
        nodes.do("GET", "/admin/v2/schemas/public/default/people/schemas", at=at)["getSchemaResponses"]
        for at in nodes.endpoints("http").values()
    ]
    assert [[0]] * 3 == [[each["version"] for each in schema] for schema in schemas]


def test_policies_and_tenants_are_changed_at_any_node(nodes: PulsarNodes) -> None:
    addresses = list(nodes.endpoints("http").values())
    for turn, at in enumerate(addresses):
        other = addresses[turn - 1]
        tenant, namespace = f"shop{turn}", f"shop{turn}/eu"
        nodes.do("PUT", f"/admin/v2/tenants/{tenant}", {"allowedClusters": ["standalone"]}, at=at)
        nodes.do("PUT", f"/admin/v2/namespaces/{namespace}", {"message_ttl_in_seconds": 60 + turn}, at=other)
        assert 60 + turn == nodes.do("GET", f"/admin/v2/namespaces/{namespace}/messageTTL", at=at)
        with nodes.client(1 + turn) as client:
            client.create_producer(f"persistent://{namespace}/paid").send(b"x")
        path = f"/admin/v2/persistent/{namespace}/paid/maxProducers"
        nodes.do("POST", path, 7, at=other)
        assert [7] * 3 == [nodes.do("GET", path, at=each) for each in addresses]
        nodes.do("DELETE", f"/admin/v2/namespaces/{namespace}?force=true", at=at)
        assert 404 == nodes.call("GET", f"/admin/v2/namespaces/{namespace}/messageTTL", at=other)[0]


def test_admin_calls_go_to_the_node_that_has_the_topic(nodes: PulsarNodes) -> None:
    with nodes.client(1) as client:
        client.subscribe("managed", "s")
        for number in range(5):
            client.create_producer("managed").send(b"%d" % number)
    sent_on = 0
    for at in nodes.endpoints("http").values():
        sent_on += 307 == nodes.call("GET", f"{TOPICS}/managed/stats", at=at, follow=False)[0]
        assert 5 == nodes.do("GET", f"{TOPICS}/managed/stats", at=at)["subscriptions"]["s"]["msgBacklog"]
        assert ["s"] == nodes.do("GET", f"{TOPICS}/managed/subscriptions", at=at)
    assert 2 == sent_on
    for turn, at in enumerate(nodes.endpoints("http").values()):
        nodes.do("POST", f"{TOPICS}/managed/subscription/s/skip/1", at=at)
        assert 4 - turn == nodes.do("GET", f"{TOPICS}/managed/stats")["subscriptions"]["s"]["msgBacklog"]


def test_calls_about_a_partitioned_topic_reach_all_nodes(nodes: PulsarNodes) -> None:
    for turn, at in enumerate(nodes.endpoints("http").values()):
        topic = f"whole-{turn}"
        nodes.make_partitioned(topic, 6)
        path = f"{TOPICS}/{topic}"
        nodes.do("PUT", f"{path}/subscription/s", at=at)
        assert 409 == nodes.call("PUT", f"{path}/subscription/s", at=at)[0]
        with nodes.client(2) as client:
            routing = PartitionsRoutingMode.RoundRobinDistribution
            producer = client.create_producer(topic, message_routing_mode=routing, batching_enabled=False)
            for number in range(24):
                producer.send(b"%d" % number)
            assert 412 == nodes.call("DELETE", f"{path}/partitions", at=at)[0]  # it is used
            producer.close()
        stats = nodes.do("GET", f"{path}/partitioned-stats", at=at)
        assert (6, 24, 24) == (stats["metadata"]["partitions"], stats["msgInCounter"], _backlog(stats))
        assert [4] * 6 == [_backlog(part) for part in stats["partitions"].values()]
        assert 6 == len(nodes.do("GET", f"{path}/partitioned-internalStats", at=at)["partitions"])
        nodes.do("POST", f"{path}/subscription/s/skip/1", at=at)
        assert 18 == _backlog(nodes.do("GET", f"{path}/partitioned-stats", at=at))
        nodes.do("POST", f"{path}/subscription/s/skip_all", at=at)
        assert 0 == _backlog(nodes.do("GET", f"{path}/partitioned-stats", at=at))
        assert ["s"] == nodes.do("GET", f"{path}/subscriptions", at=at)
        nodes.do("PUT", f"{path}/unload", at=at)
        nodes.do("DELETE", f"{path}/truncate", at=at)
        nodes.do("DELETE", f"{path}/subscription/s", at=at)
        assert 404 == nodes.call("DELETE", f"{path}/subscription/s", at=at)[0]
        assert [] == nodes.do("GET", f"{path}/subscriptions", at=at)
        nodes.do("DELETE", f"{path}/partitions", at=at)
        assert [404] * 3 == [
            nodes.call("GET", f"{path}/partitions", at=each)[0] for each in nodes.endpoints("http").values()
        ]


def _backlog(stats: Any) -> int:
    return int(stats["subscriptions"]["s"]["msgBacklog"])


def test_properties_of_a_topic_are_set_at_any_node(nodes: PulsarNodes) -> None:
    nodes.make_partitioned("described", 3)
    at = list(nodes.endpoints("http").values())
    nodes.do("PUT", f"{TOPICS}/described/properties", {"team": "a"}, at=at[0])
    nodes.do("PUT", f"{TOPICS}/described/properties", {"floor": "2"}, at=at[1])
    assert {"team": "a", "floor": "2"} == nodes.do("GET", f"{TOPICS}/described/properties", at=at[2])


def test_calls_about_topics_of_several_nodes_do_nothing_to_some_of_them(nodes: PulsarNodes) -> None:
    nodes.make_partitioned("cleared", 3)
    with nodes.client(2) as client:
        client.subscribe("cleared", "s", initial_position=EARLIEST).close()
        client.create_producer("cleared-partition-0").send(b"x")
    for at in nodes.endpoints("http").values():
        for method, call in (("POST", "clearBacklog"), ("POST", "unsubscribe/s"), ("PUT", "unload")):
            assert 501 == nodes.call(method, f"/admin/v2/namespaces/public/default/{call}", at=at)[0], call
        assert 501 == nodes.call("POST", f"{TOPICS}/cleared/terminate/partitions", at=at)[0]
    assert 1 == _backlog(nodes.do("GET", f"{TOPICS}/cleared-partition-0/stats"))


def test_a_topic_with_subscriptions_is_deleted_and_made_again(nodes: PulsarNodes) -> None:
    addresses = list(nodes.endpoints("http").values())
    for turn in range(3):
        with nodes.client(1 + turn) as client:
            consumer = client.subscribe("again", "s", initial_position=EARLIEST)
            client.create_producer("again").send(b"%d" % turn)
            assert [b"%d" % turn] == taken(consumer, 1)  # nothing of the topic that it had before
            assert 412 == nodes.call("DELETE", f"{TOPICS}/again", at=addresses[turn])[0]  # it is used
        nodes.do("DELETE", f"{TOPICS}/again?force=true", at=addresses[turn])


def test_messages_that_are_not_kept_go_through_the_node_of_their_topic(nodes: PulsarNodes) -> None:
    nodes.do("PUT", "/admin/v2/non-persistent/public/default/passing/partitions", 3)
    names = [f"non-persistent://public/default/{name}" for name in ("passing", "p-1", "p-2", "p-3")]

    def may_be_sent(name: str) -> bool:
        """The consumer has asked for messages: what another connection has sent before is dropped."""
        local = name.rpartition("/")[2]
        stats = [
            nodes.do("GET", f"/admin/v2/non-persistent/public/default/{part}/stats")["subscriptions"]["s"]
            for part in ([f"passing-partition-{number}" for number in range(3)] if local == "passing" else [local])
        ]
        return all(consumer["availablePermits"] for of in stats for consumer in of["consumers"])

    with nodes.client(1) as writing, nodes.client(3) as reading:
        consumers = []
        for name in names:
            consumers.append(reading.subscribe(name, "s"))
            wait_for(lambda: may_be_sent(name))  # noqa: B023 - it is called before the next round
            writing.create_producer(name).send(name.encode())
            assert [name.encode()] == taken(consumers[-1], 1)
        for at in nodes.endpoints("http").values():
            path = "/admin/v2/non-persistent/public/default/passing"
            assert ["s"] == nodes.do("GET", f"{path}/subscriptions", at=at)
            assert 1 == nodes.do("GET", f"{path}/partitioned-stats", at=at)["msgInCounter"]
            assert 412 == nodes.call("DELETE", f"{path}/partitions", at=at)[0]
    nodes.do("DELETE", f"{path}/partitions")


def test_exclusive_producers_are_fenced_wherever_they_connect(nodes: PulsarNodes) -> None:
    nodes.make_partitioned("fenced", 3)
    access = pulsar.ProducerAccessMode
    with nodes.client(1) as one, nodes.client(2) as two:
        first = one.create_producer("fenced-partition-1", access_mode=access.Exclusive)
        first.send(b"a")
        with pytest.raises(pulsar.PulsarException):
            two.create_producer("fenced-partition-1", access_mode=access.Exclusive)
        second = two.create_producer("fenced-partition-1", access_mode=access.ExclusiveWithFencing)
        second.send(b"b")
        with pytest.raises(pulsar.PulsarException):
            first.send(b"c")


def test_nothing_is_lost_when_nodes_are_killed_under_load(nodes: PulsarNodes) -> None:
    nodes.make_partitioned("load", 6)
    receipts: list[int] = []
    seen: set[int] = set()
    stopping = threading.Event()

    def write() -> None:
        with nodes.client(1) as client:
            routing = PartitionsRoutingMode.RoundRobinDistribution
            producer = client.create_producer("load", message_routing_mode=routing, send_timeout_millis=0)
            number = 0
            while not stopping.is_set():
                producer.send(b"%d" % number)
                receipts.append(number)
                number += 1

    def read(client: pulsar.Client, consumer: pulsar.Consumer, is_over: Callable[[], bool]) -> None:
        while not is_over():
            try:
                message = consumer.receive(500)
            except pulsar.Timeout:
                continue
            seen.add(int(message.data()))
            consumer.acknowledge(message)

    with nodes.client(1) as client:
        consumer = client.subscribe("load", "s", ConsumerType.Shared, initial_position=EARLIEST)
        threads = [
            threading.Thread(target=write),
            threading.Thread(target=read, args=(client, consumer, lambda: stopping.is_set() and seen >= set(receipts))),
        ]
        for thread in threads:
            thread.start()
        for node_id in (3, 2, 1):
            before = len(receipts)
            nodes.kill_node(node_id)
            while len(receipts) < before + 200:
                assert threads[0].is_alive()
                stopping.wait(0.02)
        stopping.set()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), (len(receipts), len(set(receipts) - seen))
    assert set() == set(receipts) - seen
