"""Transactions over several nodes of one machine: all of a transaction counts or nothing, whichever node has what."""

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from broker.cluster.nodes import coordinator_of
from protocol.kafka.api_keys import ApiKey
from tests.process.broker_process import PATIENCE_S
from tests.process.test_nodes import PARTITIONS, NodesInUse
from tests.waiting import wait_for

COUNT = 2


def name_at(place: int, stem: str) -> str:
    """A group or transactional id that the node at this place coordinates."""
    return next(name for number in range(100) if coordinator_of(name := f"{stem}-{number}", COUNT) == place)


class Cluster(NodesInUse):
    """With transactions."""

    def producer(self, transactional_id: str, **settings: object) -> Producer:
        producer = Producer({"bootstrap.servers": self.address, "transactional.id": transactional_id, **settings})
        producer.init_transactions(PATIENCE_S)
        return producer

    def consumer(self, group: str, isolation: str = "read_committed") -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": group,
                "enable.auto.commit": False,
                "isolation.level": isolation,
                "enable.partition.eof": True,
            }
        )

    def committed(self, topic: str) -> list[list[str]]:
        """What is in each partition, as far as it is committed."""
        consumer = self.consumer("reader")
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        found: list[list[str]] = [[] for _ in range(PARTITIONS)]
        ended: set[int] = set()
        while len(ended) < PARTITIONS:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, (found, ended)
            if message.error() is not None:
                assert "_PARTITION_EOF" == message.error().name()
                ended.add(message.partition())
            else:
                found[message.partition()].append(message.value().decode())
        consumer.close()
        return found

    def states(self, *node_ids: int) -> dict[str, str]:
        """Of all transactional ids, as these nodes, or all, list them."""
        listed = [
            self.ask(node_id, ApiKey.LIST_TRANSACTIONS, 0, state_filters=[], producer_id_filters=[]).transaction_states
            for node_id in node_ids or self.nodes()
        ]
        return {each.transactional_id: each.transaction_state for of_node in listed for each in of_node}


def repeat(call: Callable[[], object]) -> None:
    """As applications do: until it succeeds, or fails for good."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            call()
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


def write(producer: Producer, topic: str, value: str) -> None:
    """To each partition."""
    failed = []
    for partition in range(PARTITIONS):
        producer.produce(topic, value, partition=partition, on_delivery=lambda error, _: error and failed.append(error))
    assert 0 == producer.flush(PATIENCE_S)
    assert [] == failed


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    running = Cluster(tmp_path, count=COUNT)
    running.start()
    yield running
    running.stop()


@pytest.mark.parametrize("place", range(COUNT))
def test_records_at_all_nodes_are_committed_or_aborted_together(cluster: Cluster, place: int) -> None:
    cluster.make_topic("t")
    producer = cluster.producer(name_at(place, "writer"))
    for number in range(6):
        producer.begin_transaction()
        write(producer, "t", str(number))
        if number % 2:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    assert [["0", "2", "4"]] * PARTITIONS == cluster.committed("t")
    assert [] == cluster.errors


def test_nodes_need_no_rights_of_their_own(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "authorizer_class_name=acl", "super_users=User:ANONYMOUS", count=COUNT)
    cluster.start()
    cluster.make_topic("t")
    producer = cluster.producer("writer")
    producer.begin_transaction()
    write(producer, "t", "1")
    offsets = [TopicPartition("t", number, 1) for number in range(PARTITIONS)]
    for place in range(COUNT):
        consumer = cluster.consumer(name_at(place, "group"))
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), PATIENCE_S)
        consumer.close()
    producer.commit_transaction(PATIENCE_S)
    assert [["1"]] * PARTITIONS == cluster.committed("t")
    cluster.stop()


@pytest.mark.parametrize("group_place", range(COUNT))
@pytest.mark.parametrize("place", range(COUNT))
def test_offsets_of_a_group_at_any_node_are_committed_with_the_records(
    cluster: Cluster, place: int, group_place: int
) -> None:
    cluster.make_topic("t")
    group = name_at(group_place, "group")
    consumer = cluster.consumer(group)
    consumer.subscribe(["t"])
    while not consumer.assignment():
        consumer.poll(0.1)
    producer = cluster.producer(name_at(place, "writer"))
    for offset, commits in ((1, True), (2, False), (3, True), (4, False)):
        producer.begin_transaction()
        write(producer, "t", str(offset))
        offsets = [TopicPartition("t", number, offset) for number in range(PARTITIONS)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), PATIENCE_S)
        if commits:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)
        expected = offset if commits else offset - 1
        found = consumer.committed([TopicPartition("t", number) for number in range(PARTITIONS)], PATIENCE_S)
        assert [expected] * PARTITIONS == [each.offset for each in found]
    consumer.close()
    assert [["1", "3"]] * PARTITIONS == cluster.committed("t")


def test_a_node_that_is_killed_between_records_and_commit_keeps_the_transaction(cluster: Cluster) -> None:
    cluster.make_topic("t")
    for place in range(COUNT):
        for killed in cluster.nodes():
            producer = cluster.producer(name_at(place, f"writer-{killed}"))
            producer.begin_transaction()
            write(producer, "t", f"{place}-{killed}")
            cluster.crash_node(killed)
            repeat(lambda: producer.commit_transaction(5))  # noqa: B023
            cluster.wait_for_all()
    expected = [f"{place}-{killed}" for place in range(COUNT) for killed in cluster.nodes()]
    wait_for(lambda: [expected] * PARTITIONS == cluster.committed("t"))


def test_a_decision_reaches_a_node_that_stood_still_though_its_coordinator_is_killed(cluster: Cluster) -> None:
    cluster.make_topic("t")
    cluster.nodes()
    name = name_at(0, "writer")
    producer = cluster.producer(name)
    producer.begin_transaction()
    write(producer, "t", "1")
    with cluster.standing_still(2):
        with pytest.raises(KafkaException) as raised:
            producer.commit_transaction(1)
        assert raised.value.args[0].retriable()
        wait_for(lambda: {name: "PrepareCommit"} == cluster.states(1), "it is not decided")
        cluster.crash_node(1)
    cluster.wait_for_all()
    wait_for(lambda: {name: "CompleteCommit"} == cluster.states())
    repeat(lambda: producer.commit_transaction(5))
    assert [["1"]] * PARTITIONS == cluster.committed("t")
    producer.begin_transaction()
    write(producer, "t", "2")
    producer.commit_transaction(PATIENCE_S)
    assert [["1", "2"]] * PARTITIONS == cluster.committed("t")


@pytest.mark.parametrize("place", range(COUNT))
def test_a_new_producer_fences_the_one_before_at_all_nodes(cluster: Cluster, place: int) -> None:
    cluster.make_topic("t")
    name = name_at(place, "writer")
    for turn in range(3):
        old = cluster.producer(name)
        old.begin_transaction()
        write(old, "t", f"old {turn}")
        new = cluster.producer(name)
        failed: list[KafkaError] = []
        for partition in range(PARTITIONS):
            old.produce("t", "late", partition=partition, on_delivery=lambda error, _: failed.append(error))  # noqa: B023
        with pytest.raises(KafkaException) as raised:
            old.commit_transaction(PATIENCE_S)
        assert raised.value.args[0].fatal()
        new.begin_transaction()
        write(new, "t", f"new {turn}")
        new.commit_transaction(PATIENCE_S)
        old.purge()
        old.flush(PATIENCE_S)
        assert all(failed)
    assert [["new 0", "new 1", "new 2"]] * PARTITIONS == cluster.committed("t")


@pytest.mark.parametrize("place", range(COUNT))
def test_a_transaction_ends_at_all_nodes_when_its_time_is_over(cluster: Cluster, place: int) -> None:
    cluster.make_topic("t")
    name = name_at(place, "writer")
    slow = cluster.producer(name, **{"transaction.timeout.ms": 5000})
    slow.begin_transaction()
    write(slow, "t", "slow")
    other = cluster.producer(name_at(1 - place, "other"))
    other.begin_transaction()
    write(other, "t", "other")
    other.commit_transaction(PATIENCE_S)
    wait_for(lambda: "CompleteAbort" == cluster.states()[name])
    assert [["other"]] * PARTITIONS == cluster.committed("t")


def test_offsets_that_are_pending_survive_their_groups_node_and_the_coordinator(cluster: Cluster) -> None:
    cluster.make_topic("t")
    group = name_at(1, "group")
    consumer = cluster.consumer(group)
    consumer.subscribe(["t"])
    while not consumer.assignment():
        consumer.poll(0.1)
    for offset, killed in ((1, 2), (2, 1)):
        # Another one each time: librdkafka hangs in send_offsets_to_transaction after the loss of its node (issue 5511).
        producer = cluster.producer(name_at(0, "writer"))
        producer.begin_transaction()
        write(producer, "t", str(offset))
        offsets = [TopicPartition("t", number, offset) for number in range(PARTITIONS)]
        metadata = consumer.consumer_group_metadata()
        repeat(lambda: producer.send_offsets_to_transaction(offsets, metadata, 5))  # noqa: B023
        cluster.crash_node(killed)
        repeat(lambda: producer.commit_transaction(5))  # noqa: B023
        cluster.wait_for_all()

        def has_committed(expected: int = offset) -> bool:
            found = consumer.committed([TopicPartition("t", number) for number in range(PARTITIONS)], PATIENCE_S)
            return [expected] * PARTITIONS == [each.offset for each in found]

        wait_for(has_committed)
    consumer.close()


def test_only_transactions_as_a_whole_are_committed_while_nodes_are_killed(cluster: Cluster) -> None:
    chance = random.Random(5)
    cluster.make_topic("t")
    cluster.nodes()
    committed = []
    for number in range(6):  # a node that ends again and again is started later and later
        producer = cluster.producer(f"writer-{number % 3}")
        producer.begin_transaction()
        try:
            write(producer, "t", str(number))
            killed = chance.choice([*cluster.nodes()])
            cluster.crash_node(killed)
            if chance.random() < 0.3:
                repeat(lambda: producer.abort_transaction(5))  # noqa: B023
            else:
                repeat(lambda: producer.commit_transaction(5))  # noqa: B023
                committed.append(str(number))
        finally:
            cluster.wait_for_all()
    wait_for(lambda: {"CompleteCommit", "CompleteAbort"} >= set(cluster.states().values()))
    assert [committed] * PARTITIONS == cluster.committed("t")


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 1), (1, 2)])
def test_a_transaction_is_still_open_when_the_number_of_nodes_has_changed(
    tmp_path: Path, before: int, after: int
) -> None:
    cluster = Cluster(tmp_path, count=before)
    cluster.start()
    cluster.make_topic("t")
    for number in range(4):
        group, topic_offsets = f"group-{number}", [TopicPartition("t", each, 7) for each in range(PARTITIONS)]
        consumer = cluster.consumer(group)
        producer = cluster.producer(f"writer-{number}")
        producer.begin_transaction()
        write(producer, "t", str(number))
        producer.send_offsets_to_transaction(topic_offsets, consumer.consumer_group_metadata(), PATIENCE_S)
        consumer.close()
        if number == 3:
            break
        producer.commit_transaction(PATIENCE_S)
    cluster.stop()
    cluster.resize(after)
    cluster.start()
    consumer = cluster.consumer("group-3")
    asked = [TopicPartition("t", each) for each in range(PARTITIONS)]
    with pytest.raises(KafkaException):
        consumer.committed(asked, 0.5)  # they are not stable
    repeat(lambda: producer.commit_transaction(5))
    wait_for(lambda: [["0", "1", "2", "3"]] * PARTITIONS == cluster.committed("t"))
    assert [7] * PARTITIONS == [each.offset for each in consumer.committed(asked, PATIENCE_S)]
    consumer.close()
    cluster.stop()
