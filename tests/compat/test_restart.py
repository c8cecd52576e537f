"""The broker goes and comes back, in good order or by kill -9, and clients that live through it go on."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.clients import aio, kafka_python, librdkafka
from tests.compat.clients.kafka_python import kafka
from tests.compat.clients.librdkafka import settings
from tests.compat.conftest import SETTINGS
from tests.compat.served import Served
from tests.compat.test_groups_librdkafka import PARTITIONS, Group, write


@pytest.fixture(scope="module")
def restarting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("restart"), *SETTINGS) as broker:
        yield broker
        assert broker.stop() == 0
        assert [] == broker.errors


def stopped_in_good_order(broker: Served) -> None:
    assert broker.stop() == 0
    broker.start()


def killed(broker: Served) -> None:
    broker.kill()
    broker.start()


restarts = pytest.mark.parametrize("restart", [stopped_in_good_order, killed])
Restart = Callable[[Served], None]


@restarts
def test_producers_go_on(restart: Restart, restarting: Served, name: str) -> None:
    errors: list[Any] = []
    confluent = Producer(settings(restarting.address))
    python = kafka.KafkaProducer(bootstrap_servers=restarting.address)
    confluent.produce(name, b"before", on_delivery=lambda error, _message: errors.append(error))
    confluent.flush(30)
    python.send(name, b"before").get(30)
    restart(restarting)
    confluent.produce(name, b"after", on_delivery=lambda error, _message: errors.append(error))
    confluent.flush(30)
    python.send(name, b"after").get(30)
    python.close()
    assert [None, None] == errors
    consumed = librdkafka.Librdkafka().consume(restarting.address, name, 4)
    assert [b"before", b"before", b"after", b"after"] == [record.value for record in consumed[0]]


@restarts
def test_a_consumer_goes_on_where_it_was(restart: Restart, restarting: Served, name: str) -> None:
    servers = restarting.address
    write(servers, name, b"0", b"1")
    consumer = Consumer(settings(servers, group_id=name, auto_offset_reset="earliest", heartbeat_interval_ms=100))
    consumer.subscribe([name])
    assert [b"0", b"1"] == [message.value() for message in librdkafka.consume(consumer, 2)]
    restart(restarting)
    write(servers, name, b"2")
    assert [b"2"] == [message.value() for message in librdkafka.consume(consumer, 1)]
    consumer.commit(asynchronous=False)
    restart(restarting)
    (position,) = consumer.committed([TopicPartition(name, 0)], 30)
    assert 3 == position.offset
    consumer.close()


@restarts
def test_new_consumer_begins_at_the_committed_offset(restart: Restart, restarting: Served, name: str) -> None:
    servers = restarting.address
    write(servers, name, b"0", b"1", b"2")
    consumer = kafka_python.join(
        name, bootstrap_servers=servers, group_id=name, auto_offset_reset="earliest", enable_auto_commit=False
    )
    kafka_python.consume(consumer, 2)
    consumer.commit({kafka.TopicPartition(name, 0): kafka.OffsetAndMetadata(2, "kept", -1)})
    consumer.close()
    restart(restarting)

    async def read() -> None:
        async with aiokafka.AIOKafkaConsumer(name, bootstrap_servers=servers, group_id=name) as consumer:
            assert [b"2"] == [record.value for record in await aio.consume(consumer, 1)]

    asyncio.run(read())


@restarts
def test_an_aiokafka_client_goes_on(restart: Restart, restarting: Served, name: str) -> None:
    servers = restarting.address

    async def test() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            name,
            bootstrap_servers=servers,
            group_id=name,
            auto_offset_reset="earliest",
            session_timeout_ms=60_000,  # it is not told to begin anew, however long the start takes
            heartbeat_interval_ms=100,
        )
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True) as producer:
            await producer.send_and_wait(name, b"before")
            async with consumer:
                assert [b"before"] == [record.value for record in await aio.consume(consumer, 1)]
                restart(restarting)
                await producer.send_and_wait(name, b"after")
                assert [b"after"] == [record.value for record in await aio.consume(consumer, 1)]
                await consumer.commit()

    asyncio.run(test())


@restarts
def test_members_keep_their_places_without_a_rebalance(restart: Restart, restarting: Served, name: str) -> None:
    servers = restarting.address
    group = Group(servers, name)
    admin = AdminClient(settings(servers))
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)
    static = group.join(group_instance_id="static")
    dynamic = group.join()
    group.settle()
    before = (set(static.owned), static.rebalances, set(dynamic.owned), dynamic.rebalances)
    restart(restarting)
    write(servers, name, *[b"%d" % number for number in range(5)])
    for member in group.members:
        member.consumer.commit(offsets=[TopicPartition(name, min(member.owned), 1)], asynchronous=False)
    group.settle()
    assert before == (set(static.owned), static.rebalances, set(dynamic.owned), dynamic.rebalances)
    for member in group.members:
        member.consumer.close()
