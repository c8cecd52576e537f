"""Consumer groups of kafka-python members."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.compat.clients.kafka_python import consume, join, kafka
from tests.compat.test_groups_librdkafka import PARTITIONS, write

from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor  # isort: skip
from kafka.coordinator.assignors.range import RangePartitionAssignor  # isort: skip
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor  # isort: skip
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor  # isort: skip

ASSIGNORS = [
    RangePartitionAssignor,
    RoundRobinPartitionAssignor,
    StickyPartitionAssignor,
    CooperativeStickyAssignor,
]


class Group:
    def __init__(self, servers: str, topic: str) -> None:
        self.servers = servers
        self.topic = topic
        self.members: list[Any] = []

    def join(self, **settings: Any) -> Any:
        consumer = join(
            self.topic,
            bootstrap_servers=self.servers,
            group_id=f"group-of-{self.topic}",
            auto_offset_reset="earliest",
            session_timeout_ms=60_000,
            heartbeat_interval_ms=100,
            **settings,
        )
        self.members.append(consumer)
        return consumer

    def leave(self, member: Any) -> None:
        member.close()
        self.members.remove(member)

    def settle(self) -> None:
        """Until every partition has exactly one owner and every member has some. pytest's timeout is the limit."""
        while True:
            for member in self.members:
                member.poll(timeout_ms=50)
            owned = [partition.partition for member in self.members for partition in member.assignment()]
            if sorted(owned) == list(range(PARTITIONS)) and all(member.assignment() for member in self.members):
                return


@pytest.fixture
def group(name: str, make_topic: Callable[..., str], servers: str) -> Iterator[Group]:
    group = Group(servers, make_topic(name, partitions=PARTITIONS))
    yield group
    for member in group.members:
        member.close()


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: assignor.name)
def test_members_that_join_and_leave_share_all_partitions(assignor: Any, group: Group) -> None:
    first = group.join(partition_assignment_strategy=[assignor])
    group.settle()
    assert PARTITIONS == len(first.assignment())
    second = group.join(partition_assignment_strategy=[assignor])
    group.settle()
    assert [2, 2] == [len(first.assignment()), len(second.assignment())]
    group.leave(first)
    group.settle()
    assert PARTITIONS == len(second.assignment())


def test_a_static_member_comes_back_to_its_partitions(group: Group) -> None:
    staying = group.join(group_instance_id="staying")
    going = group.join(group_instance_id="going")
    group.settle()
    before, kept = going.assignment(), staying.assignment()
    group.leave(going)
    back = group.join(group_instance_id="going")
    group.settle()
    assert (before, kept) == (back.assignment(), staying.assignment())


def test_next_consumer_begins_at_the_committed_offset(group: Group) -> None:
    write(group.servers, group.topic, b"0", b"1", b"2", b"3")
    first = group.join(enable_auto_commit=False)
    assert [b"0", b"1"] == [record.value for record in consume(first, 2)]
    partition = kafka.TopicPartition(group.topic, 0)
    first.commit({partition: kafka.OffsetAndMetadata(2, "a note \u00fc", -1)})
    group.leave(first)
    second = group.join()
    assert [b"2", b"3"] == [record.value for record in consume(second, 2)]
    committed = second.committed(partition, metadata=True)
    assert (2, "a note \u00fc") == (committed.offset, committed.metadata)
    assert second.committed(kafka.TopicPartition(group.topic, 1)) is None
    group.leave(second)  # commits by itself
    third = group.join()
    assert 4 == third.committed(partition)


def test_reader_seeks_pauses_and_finds_offsets(topic: str, servers: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=servers)
    for number in range(10):
        producer.send(topic, b"%d" % number, timestamp_ms=1_700_000_000_000 + 1000 * number).get(30)
    producer.close()
    partition = kafka.TopicPartition(topic, 0)
    consumer = kafka.KafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
    consumer.assign([partition])
    assert 10 == len(consume(consumer, 10))
    consumer.seek(partition, 3)
    assert [b"3"] == [record.value for record in consume(consumer, 1)]
    assert 4 == consumer.position(partition)
    consumer.pause(partition)
    assert {} == consumer.poll(timeout_ms=300)
    consumer.resume(partition)
    assert [b"4"] == [record.value for record in consume(consumer, 1)]
    position = consumer.offsets_for_times({partition: 1_700_000_003_001})[partition]
    assert (4, 1_700_000_004_000) == (position.offset, position.timestamp)
    assert consumer.offsets_for_times({partition: 1_700_000_009_001})[partition] is None
    assert {partition: 0} == consumer.beginning_offsets([partition])
    assert {partition: 10} == consumer.end_offsets([partition])
    consumer.close()
