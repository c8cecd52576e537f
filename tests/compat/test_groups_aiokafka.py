"""Consumer groups of aiokafka members."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiokafka
import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from tests.compat.clients.aio import consume
from tests.compat.test_groups_librdkafka import PARTITIONS, write

ASSIGNORS = [RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor]


class Group:
    def __init__(self, servers: str, topic: str) -> None:
        self.servers = servers
        self.topic = topic
        self.members: list[Any] = []

    async def join(self, **settings: Any) -> Any:
        consumer = aiokafka.AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.servers,
            group_id=f"group-of-{self.topic}",
            auto_offset_reset="earliest",
            session_timeout_ms=60_000,
            heartbeat_interval_ms=100,
            **settings,
        )
        await consumer.start()
        self.members.append(consumer)
        return consumer

    async def leave(self, member: Any) -> None:
        await member.stop()
        self.members.remove(member)

    async def settle(self) -> None:
        """Until every partition has exactly one owner and every member has some. pytest's timeout is the limit."""
        while True:
            await asyncio.sleep(0.02)
            owned = [partition.partition for member in self.members for partition in member.assignment()]
            if sorted(owned) == list(range(PARTITIONS)) and all(member.assignment() for member in self.members):
                return


@pytest.fixture
def group(name: str, make_topic: Callable[..., str], servers: str) -> Group:
    return Group(servers, make_topic(name, partitions=PARTITIONS))


def run(group: Group, test: Callable[[], Awaitable[None]]) -> None:
    async def and_leave() -> None:
        try:
            await test()
        finally:
            for member in list(group.members):
                await group.leave(member)

    asyncio.run(and_leave())


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: assignor.name)
def test_members_that_join_and_leave_share_all_partitions(assignor: Any, group: Group) -> None:
    async def test() -> None:
        first = await group.join(partition_assignment_strategy=[assignor])
        await group.settle()
        assert PARTITIONS == len(first.assignment())
        second = await group.join(partition_assignment_strategy=[assignor])
        await group.settle()
        assert [2, 2] == [len(first.assignment()), len(second.assignment())]
        await group.leave(first)
        await group.settle()
        assert PARTITIONS == len(second.assignment())

    run(group, test)


def test_a_static_member_comes_back_to_its_partitions(group: Group) -> None:
    async def test() -> None:
        staying = await group.join(group_instance_id="staying")
        going = await group.join(group_instance_id="going")
        await group.settle()
        before, kept = going.assignment(), staying.assignment()
        await group.leave(going)
        back = await group.join(group_instance_id="going")
        await group.settle()
        assert (before, kept) == (back.assignment(), staying.assignment())

    run(group, test)


def test_next_consumer_begins_at_the_committed_offset(group: Group) -> None:
    write(group.servers, group.topic, b"0", b"1", b"2", b"3")
    partition = aiokafka.TopicPartition(group.topic, 0)

    async def test() -> None:
        first = await group.join(enable_auto_commit=False)
        assert [b"0", b"1"] == [record.value for record in await consume(first, 2)]
        await first.commit({partition: (2, "a note \u00fc")})
        await group.leave(first)
        second = await group.join()
        assert [b"2", b"3"] == [record.value for record in await consume(second, 2)]
        assert await second.committed(aiokafka.TopicPartition(group.topic, 1)) is None
        await group.leave(second)  # commits by itself
        third = await group.join()
        assert 4 == await third.committed(partition)

    run(group, test)


def test_reader_seeks_pauses_and_finds_offsets(topic: str, servers: str) -> None:
    partition = aiokafka.TopicPartition(topic, 0)

    async def test() -> None:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=servers) as producer:
            for number in range(10):
                await producer.send_and_wait(topic, b"%d" % number, timestamp_ms=1_700_000_000_000 + 1000 * number)
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([partition])
            assert 10 == len(await consume(consumer, 10))
            consumer.seek(partition, 3)
            assert [b"3"] == [record.value for record in await consume(consumer, 1)]
            assert 4 == await consumer.position(partition)
            consumer.pause(partition)
            assert {} == await consumer.getmany(timeout_ms=300)
            consumer.resume(partition)
            assert [b"4"] == [record.value for record in await consume(consumer, 1)]
            position = (await consumer.offsets_for_times({partition: 1_700_000_003_001}))[partition]
            assert (4, 1_700_000_004_000) == (position.offset, position.timestamp)
            assert (await consumer.offsets_for_times({partition: 1_700_000_009_001}))[partition] is None
            assert {partition: 0} == await consumer.beginning_offsets([partition])
            assert {partition: 10} == await consumer.end_offsets([partition])

    asyncio.run(test())
