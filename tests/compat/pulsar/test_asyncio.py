"""The client's asyncio interface."""

import asyncio
from collections.abc import AsyncIterator

import pulsar
import pulsar.asyncio
import pytest

from tests.compat.pulsar.helpers import PATIENCE_MS, SILENCE_MS, numbered


@pytest.fixture
def run() -> asyncio.Runner:
    runner = asyncio.Runner()
    yield runner  # type: ignore[misc]
    runner.close()


class Client:
    def __init__(self, url: str) -> None:
        self.url = url

    async def __aenter__(self) -> pulsar.asyncio.Client:
        self.client = pulsar.asyncio.Client(self.url, operation_timeout_seconds=10)
        return self.client

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()


async def receive(consumer: pulsar.asyncio.Consumer, count: int) -> AsyncIterator[pulsar.Message]:
    for _ in range(count):
        yield await asyncio.wait_for(consumer.receive(), PATIENCE_MS / 1000)


def test_messages_sent_at_once_are_one_batch(run: asyncio.Runner, service_url: str, name: str) -> None:
    async def check() -> None:
        async with Client(service_url) as client:
            producer = await client.create_producer(name, batching_enabled=True)
            ids = await asyncio.gather(*(producer.send(text.encode()) for text in numbered(5)))
            assert 1 == len({(message_id.ledger_id(), message_id.entry_id()) for message_id in ids})
            assert list(range(5)) == [message_id.batch_index() for message_id in ids]
            consumer = await client.subscribe(name, "sub", initial_position=pulsar.InitialPosition.Earliest)
            assert numbered(5) == [message.data().decode() async for message in receive(consumer, 5)]
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(consumer.receive(), SILENCE_MS / 1000)

    run.run(check())


def test_acknowledgements_last(run: asyncio.Runner, service_url: str, name: str) -> None:
    async def check() -> None:
        async with Client(service_url) as client:
            consumer = await client.subscribe(name, "sub", consumer_type=pulsar.ConsumerType.Shared)
            producer = await client.create_producer(name)
            for text in numbered(5):
                await producer.send(text.encode())
            messages = [message async for message in receive(consumer, 5)]
            for message in messages[::2]:
                await consumer.acknowledge(message)
            await consumer.close()
            consumer = await client.subscribe(name, "sub", consumer_type=pulsar.ConsumerType.Shared)
            texts = [message.data().decode() async for message in receive(consumer, 2)]
            assert ["message 1", "message 3"] == texts

    run.run(check())


def test_seeking_and_the_last_id(run: asyncio.Runner, service_url: str, name: str) -> None:
    async def check() -> None:
        async with Client(service_url) as client:
            producer = await client.create_producer(name)
            ids = [await producer.send(text.encode()) for text in numbered(5)]
            consumer = await client.subscribe(name, "sub", initial_position=pulsar.InitialPosition.Earliest)
            last = await consumer.get_last_message_id()
            assert last.entry_id() == ids[-1].entry_id()
            await consumer.seek(ids[2])
            assert ["message 3"] == [message.data().decode() async for message in receive(consumer, 1)]
            await consumer.unsubscribe()

    run.run(check())


def test_topic_of_a_missing_namespace(run: asyncio.Runner, service_url: str) -> None:
    async def check() -> None:
        async with Client(service_url) as client:
            with pytest.raises(pulsar.asyncio.PulsarException):
                await client.create_producer("nobody/nowhere/topic")

    run.run(check())
