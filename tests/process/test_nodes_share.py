"""Share groups over three nodes: the group is with one of them, each partition's records with its owner."""

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer, ShareConsumer

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.process.broker_process import PATIENCE_S
from tests.process.nodes import IDS, NOT_LEADER, Nodes
from tests.process.test_nodes_admin import GROUP, set_config
from tests.waiting import wait_for

PARTITIONS = 6
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("nodes"), "group_share_min_record_lock_duration_ms=1000") as running:
        yield running
        assert 0 == running.stop()
        assert {"node_ended"} >= {event["event"] for event in running.errors}


def make(cluster: Nodes, topic: str) -> None:
    """A topic, and a group of that name that begins with its first record."""
    assert 0 == cluster.make(1, topic, PARTITIONS).error_code
    assert 0 == set_config(cluster, 1, GROUP, topic, "share.auto.offset.reset", "earliest")
    assert 0 == set_config(cluster, 1, GROUP, topic, "share.record.lock.duration.ms", "2000")


def write(cluster: Nodes, topic: str, values: range) -> None:
    producer = Producer({"bootstrap.servers": cluster.address, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, str(value).encode(), partition=value % PARTITIONS)
        producer.poll(0)
    assert 0 == producer.flush(PATIENCE_S)


class Worker(threading.Thread):
    """A member. ``done`` counts what the broker has taken as accepted."""

    def __init__(self, cluster: Nodes, topic: str) -> None:
        super().__init__()
        self.done: Counter[int] = Counter()
        self.unknown: set[int] = set()
        self.stopping = threading.Event()
        self._consumer = ShareConsumer(
            {"bootstrap.servers": cluster.address, "group.id": topic, "share.acknowledgement.mode": "implicit"}
        )
        self._consumer.subscribe([topic])

    def run(self) -> None:
        while not self.stopping.is_set():
            values = []
            for message in self._consumer.poll(0.2):
                assert message.error() is None, message.error()
                values.append((message.topic(), message.partition(), int(message.value())))
            if values:
                results = self._consumer.commit_sync(PATIENCE_S)
                failed = {
                    (topic_partition.topic, topic_partition.partition)
                    for topic_partition, error in results.items()
                    if error
                }
                for topic, partition, value in values:
                    if (topic, partition) in failed:
                        self.unknown.add(value)
                    else:
                        self.done[value] += 1
        self._consumer.close()

    def stop(self) -> None:
        self.stopping.set()
        self.join(PATIENCE_S)


def offsets(cluster: Nodes, group: str) -> dict[int, int]:
    """The start offset in each partition, as the coordinator says."""
    asked = {"group_id": group, "topics": [{"topic_name": group, "partitions": list(range(PARTITIONS))}]}
    response = cluster.ask(cluster.coordinator(group), ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, groups=[asked])
    [described] = response.groups
    assert 0 == described.error_code
    return {each.partition_index: each.start_offset for each in described.topics[0].partitions}


def test_members_get_each_record_once_from_all_nodes(cluster: Nodes) -> None:
    make(cluster, "shared")
    assert set(IDS) == set(cluster.leaders(1, "shared").values())
    write(cluster, "shared", range(600))
    workers = [Worker(cluster, "shared") for _ in range(2)]
    for worker in workers:
        worker.start()
    wait_for(lambda: sum(len(worker.done) for worker in workers) >= 600, "not all came")
    for worker in workers:
        worker.stop()
    assert Counter(range(600)) == workers[0].done + workers[1].done
    assert dict.fromkeys(range(PARTITIONS), 100) == offsets(cluster, "shared")


def test_what_was_acknowledged_stays_so_when_an_owner_is_killed(cluster: Nodes) -> None:
    make(cluster, "killed")
    written = 0
    worker = Worker(cluster, "killed")
    worker.start()
    for node_id in IDS:
        write(cluster, "killed", range(written, written + 300))
        written += 300
        wait_for(lambda: len(worker.done) > 50, "nothing came")
        cluster.kill_node(node_id)
    wait_for(lambda: len({*worker.done, *worker.unknown}) == written, f"{len(worker.done)} of {written} came")
    worker.stop()
    assert {} == {value: times for value, times in worker.done.items() if times > 1}


def test_offsets_are_set_and_forgotten_at_the_coordinator_whoever_has_the_partitions(cluster: Nodes) -> None:
    make(cluster, "altered")
    write(cluster, "altered", range(60))
    coordinator = cluster.coordinator("altered")
    wanted = [{"partition_index": number, "start_offset": number} for number in range(PARTITIONS)]
    fields: Any = {"group_id": "altered", "topics": [{"topic_name": "altered", "partitions": wanted}]}
    altered = cluster.ask(coordinator, ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, **fields)
    assert [0] * PARTITIONS == [each.error_code for each in altered.responses[0].partitions]
    assert {number: number for number in range(PARTITIONS)} == offsets(cluster, "altered")
    worker = Worker(cluster, "altered")
    worker.start()
    left = {value for value in range(60) if value // PARTITIONS >= value % PARTITIONS}
    wait_for(lambda: len(worker.done) >= len(left), "not all came")
    worker.stop()
    assert Counter(left) == worker.done

    def deleted() -> bool:  # its session has to end first
        response = cluster.ask(
            coordinator, ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, group_id="altered", topics=[{"topic_name": "altered"}]
        )
        assert response.error_code in (0, ErrorCode.non_empty_group)
        return not response.error_code and not response.responses[0].error_code

    wait_for(deleted, "the member has not left")
    assert dict.fromkeys(range(PARTITIONS), -1) == offsets(cluster, "altered")
    worker = Worker(cluster, "altered")
    worker.start()
    wait_for(lambda: len(worker.done) >= 60, "not all came again")
    worker.stop()
    assert Counter(range(60)) == worker.done

    def group_deleted() -> bool:
        response = cluster.ask(coordinator, ApiKey.DELETE_GROUPS, 2, groups_names=["altered"])
        assert response.results[0].error_code in (0, ErrorCode.non_empty_group)
        return not response.results[0].error_code

    wait_for(group_deleted, "the member has not left")
    assert dict.fromkeys(range(PARTITIONS), -1) == offsets(cluster, "altered")


def test_a_node_without_the_partition_names_its_leader(cluster: Nodes) -> None:
    make(cluster, "hinted")
    described = cluster.ask(
        1, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[{"name": "hinted"}], response_partition_limit=9, cursor=None
    )
    topic_id = described.topics[0].topic_id
    leaders = cluster.leaders(1, "hinted")
    addresses = cluster.nodes()
    for node_id in IDS:
        partitions = [{"partition_index": number, "acknowledgement_batches": []} for number in range(PARTITIONS)]
        response = cluster.ask(
            node_id,
            ApiKey.SHARE_FETCH,
            1,
            group_id="hinted",
            member_id=f"m{node_id}",
            share_session_epoch=0,
            max_wait=0,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=10,
            batch_size=10,
            topics=[{"topic_id": topic_id, "partitions": partitions}],
            forgotten_topics_data=[],
        )
        told = {each.partition_index: each for each in response.responses[0].partitions}
        elsewhere = {number: leader for number, leader in leaders.items() if leader != node_id}
        assert elsewhere == {
            number: each.current_leader.leader_id for number, each in told.items() if each.error_code == NOT_LEADER
        }
        endpoints = {each.node_id: f"{each.host}:{each.port}" for each in response.node_endpoints}
        assert {each: addresses[each] for each in set(elsewhere.values())} == endpoints
