"""Three nodes: a node that does not have a partition names the one that has, and epochs rise when partitions move."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.records import build_batch
from tests.kafka_connection import KafkaConnection, fetch_fields, produce_fields
from tests.process.broker_process import PATIENCE_S
from tests.process.nodes import IDS, NOT_LEADER, Nodes

# A client that looks around soon after each restart.
QUICK = {"enable.auto.commit": False, "topic.metadata.refresh.interval.ms": 200, "reconnect.backoff.max.ms": 200}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("nodes"), more_listeners=["kafka://127.0.0.1:0?name=second"]) as running:
        yield running
        assert 0 == running.stop()


def metadata_epochs(connection: KafkaConnection, topic: str) -> set[int]:
    response = connection.ask(ApiKey.METADATA, 9, topics=[{"name": topic}], allow_auto_topic_creation=False)
    return {each.leader_epoch for each in response.topics[0].partitions}


@pytest.mark.parametrize("version", [9, 10, 12])
def test_a_producer_is_told_who_leads(cluster: Nodes, version: int) -> None:
    topic = f"produced-{version}"
    cluster.make(1, topic, 3)
    records = build_batch([(None, b"value", [], 1_000)])
    addresses = cluster.nodes()
    for number, leader in cluster.leaders(1, topic).items():
        for node_id in IDS:
            response = cluster.ask(node_id, ApiKey.PRODUCE, version, **produce_fields(topic, records, number))
            [result] = response.responses[0].partition_responses
            if node_id == leader:
                assert 0 == result.error_code
                continue
            assert NOT_LEADER == result.error_code
            if version < 10:
                continue
            assert (leader, 1) == (result.current_leader.leader_id, result.current_leader.leader_epoch)
            assert {leader: addresses[leader]} == {
                each.node_id: f"{each.host}:{each.port}" for each in response.node_endpoints
            }


def test_a_consumer_is_told_who_leads_also_when_it_knows_an_old_epoch(cluster: Nodes) -> None:
    cluster.make(1, "fetched", 3)
    described = cluster.ask(
        1, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[{"name": "fetched"}], response_partition_limit=9, cursor=None
    )
    topic_id = described.topics[0].topic_id
    leaders = {each.partition_index: each.leader_id for each in described.topics[0].partitions}
    wanted = [
        {"partition": number, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": epoch}
        for number, epoch in ((0, -1), (1, 0), (2, 2))
    ]
    for node_id in IDS:
        fields = fetch_fields("", [], session_id=0, session_epoch=-1, rack_id="", forgotten_topics_data=[])
        fields["topics"] = [{"topic_id": topic_id, "partitions": wanted}]
        response = cluster.ask(node_id, ApiKey.FETCH, 16, **fields)
        errors = [0, ErrorCode.fenced_leader_epoch, ErrorCode.unknown_leader_epoch]
        for data in response.responses[0].partitions:
            number, is_here = data.partition_index, leaders[data.partition_index] == node_id
            assert (errors[number] if is_here else NOT_LEADER) == data.error_code
            told = data.current_leader.leader_id
            assert (leaders[number] if not is_here or number == 1 else -1) == told
    response = cluster.ask(
        leaders[1],
        ApiKey.LIST_OFFSETS,
        7,
        replica_id=-1,
        isolation_level=0,
        topics=[
            {"name": "fetched", "partitions": [{"partition_index": 1, "current_leader_epoch": 0, "timestamp": -1}]}
        ],
    )
    assert ErrorCode.fenced_leader_epoch == response.topics[0].partitions[0].error_code


def test_endpoints_are_those_of_the_listener_that_was_asked(cluster: Nodes) -> None:
    cluster.make(1, "listened", 3)
    leaders = cluster.leaders(1, "listened")
    records = build_batch([(None, b"value", [], 1_000)])
    number = next(number for number, leader in leaders.items() if leader != 1)
    with KafkaConnection(cluster.addresses["second"]) as connection:
        brokers = connection.ask(ApiKey.DESCRIBE_CLUSTER, 1, endpoint_type=1).brokers
        ports = {broker.broker_id: broker.port for broker in brokers}
        response = connection.ask(ApiKey.PRODUCE, 10, **produce_fields("listened", records, number))
    assert [(leaders[number], ports[leaders[number]])] == [
        (each.node_id, each.port) for each in response.node_endpoints
    ]
    assert not set(ports.values()) & {int(each.rpartition(":")[2]) for each in cluster.nodes().values()}


def test_each_change_of_the_number_of_nodes_raises_the_epoch(tmp_path: Path) -> None:
    """One client lives through all of it, and never reads anything twice or not at all."""
    broker = Nodes(tmp_path)
    consumer: Consumer | None = None
    read: list[int] = []
    for expected, count in enumerate((1, 3, 3, 2, 1)):
        broker.resize(count)
        broker.start()
        with KafkaConnection(broker.address) as connection:
            if consumer is None:
                wanted = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
                connection.ask(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout=30_000, validate_only=False)
            epoch = {0: 0, 1: 1, 2: 1, 3: 2, 4: 3}[expected]
            assert {epoch} == metadata_epochs(connection, "t")
        if consumer is None:
            settings = {"bootstrap.servers": broker.address, "group.id": "g", "auto.offset.reset": "error"}
            settings |= QUICK
            consumer = Consumer(settings)
            consumer.assign([TopicPartition("t", 0, 0)])
        producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True})
        for value in range(10 * expected, 10 * expected + 10):
            producer.produce("t", str(value).encode(), partition=0)
        assert 0 == producer.flush(PATIENCE_S)
        while len(read) < 10 * expected + 10:
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            if message.error() is None:
                read.append(int(message.value()))
        broker.stop()
    assert list(range(50)) == read
    assert consumer is not None
    consumer.close()
