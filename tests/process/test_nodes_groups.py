"""Groups over three nodes: the coordinator hears of what other nodes do with topics, and has its offsets after each kill."""

import random
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from protocol.kafka.api_keys import ApiKey
from tests.process.broker_process import PATIENCE_S
from tests.process.nodes import IDS, Nodes
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(300)
QUICK = {"topic.metadata.refresh.interval.ms": 300, "reconnect.backoff.max.ms": 200}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("nodes"), "group_min_session_timeout_ms=500") as running:
        yield running
        assert 0 == running.stop()
        assert {"node_ended"} >= {event["event"] for event in running.errors}


def member(cluster: Nodes, group: str, protocol: str, **settings: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.address,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **QUICK,
            **settings,
        }
    )


def grow(cluster: Nodes, node_id: int, topic: str, count: int) -> None:
    wanted = {"name": topic, "count": count, "assignments": None}
    response = cluster.ask(node_id, ApiKey.CREATE_PARTITIONS, 3, topics=[wanted], timeout=30_000, validate_only=False)
    assert 0 == response.results[0].error_code


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_partitions_that_are_added_anywhere_are_assigned(cluster: Nodes, protocol: str) -> None:
    topic = f"grown-{protocol}"
    cluster.make(1, topic, 1)
    consumers = [member(cluster, topic, protocol) for _ in range(2)]
    for consumer in consumers:
        consumer.subscribe([topic])

    def assigned() -> list[int]:
        for consumer in consumers:
            message = consumer.poll(0.05)
            assert message is None or message.error() is None, message.error()
        return sorted(each.partition for consumer in consumers for each in consumer.assignment())

    wait_for(lambda: assigned() == [0], "the first one was not assigned")
    for count, node_id in enumerate(IDS, start=2):
        grow(cluster, node_id, topic, count)
        expected = list(range(count))
        wait_for(lambda expected=expected: assigned() == expected, f"{expected} were not assigned")  # type: ignore[misc]
    for consumer in consumers:
        consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_static_member_and_its_offsets_outlive_each_node(cluster: Nodes, protocol: str) -> None:
    topic = f"kept-{protocol}"
    cluster.make(2, topic, 3)
    producer = Producer({"bootstrap.servers": cluster.address, "enable.idempotence": True, **QUICK})
    consumer = member(cluster, topic, protocol, **{"group.instance.id": "static"})
    consumer.subscribe([topic])
    drawn = random.Random(3)
    written, read = 0, set[int]()
    for node_id in drawn.sample(IDS, 3):
        for value in range(written, written + 30):
            producer.produce(topic, str(value).encode(), partition=value % 3)
        written += 30
        assert 0 == producer.flush(PATIENCE_S)

        def all_came() -> bool:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                value = int(message.value())
                assert value not in read
                read.add(value)
            return len(read) == written  # noqa: B023 - it is called before the next round

        wait_for(all_came, "not all came")
        consumer.commit(asynchronous=False)
        cluster.kill_node(node_id)
    expected = [TopicPartition(topic, number, written // 3) for number in range(3)]
    committed = consumer.committed([TopicPartition(topic, number) for number in range(3)], PATIENCE_S)
    assert [each.offset for each in expected] == [each.offset for each in committed]
    consumer.close()


def test_offsets_of_a_deleted_topic_are_gone_at_the_coordinator(cluster: Nodes) -> None:
    coordinator = cluster.coordinator("deleted")
    elsewhere = next(each for each in IDS if each != coordinator)
    offset = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": ""}
    for _ in range(3):
        cluster.make(elsewhere, "deleted", 1)
        fetched = cluster.ask(
            coordinator,
            ApiKey.OFFSET_FETCH,
            8,
            groups=[{"group_id": "deleted", "topics": None}],
            require_stable=False,
        )
        assert () == tuple(fetched.groups[0].topics)
        committed = cluster.ask(
            coordinator,
            ApiKey.OFFSET_COMMIT,
            8,
            group_id="deleted",
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=[{"name": "deleted", "partitions": [offset]}],
        )
        assert 0 == committed.topics[0].partitions[0].error_code
        gone = [{"name": "deleted", "topic_id": None}]
        response = cluster.ask(elsewhere, ApiKey.DELETE_TOPICS, 6, topics=gone, timeout=30_000)
        assert 0 == response.responses[0].error_code
