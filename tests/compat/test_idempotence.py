"""Idempotent producers: numbered, in order, never twice. What a crash does to them is in tests/process/test_kill.py."""

import asyncio
from pathlib import Path

import aiokafka
import pytest
from confluent_kafka import Producer

from broker.client import Broker
from protocol.kafka.records.batch import BatchHeader
from tests.compat.clients.kafka_python import kafka
from tests.compat.clients.librdkafka import Librdkafka, settings
from tests.compat.clients.node import Kafkajs, Platformatic
from tests.compat.clients.record import Record
from tests.compat.served import Served
from tests.compat.test_interchange import stored

VALUES = [b"%d" % number for number in range(200)]


def librdkafka(servers: str, topic: str) -> None:
    # Small batches, so that many are in flight at a time.
    producer = Producer(settings(servers, enable_idempotence=True, batch_num_messages=7, linger_ms=1))
    for value in VALUES:
        producer.produce(topic, value)
    assert 0 == producer.flush(30)


def kafka_python(servers: str, topic: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=servers, enable_idempotence=True, batch_size=200)
    futures = [producer.send(topic, value) for value in VALUES]
    for future in futures:
        future.get(30)
    producer.close()


def aiokafka_(servers: str, topic: str) -> None:
    async def produce() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True, max_batch_size=200)
        async with producer:
            await asyncio.gather(*[await producer.send(topic, value) for value in VALUES])

    asyncio.run(produce())


def node(client: Kafkajs | Platformatic, servers: str, topic: str) -> None:
    if reason := client.missing():
        pytest.skip(reason)
    records = client.encoded([Record(None, value) for value in VALUES])
    client.run(
        "produce",
        servers=servers,
        topic=topic,
        partition=0,
        records=records,
        codec="none",
        acks=-1,
        idempotent=True,
    )


PRODUCERS = {
    "confluent-kafka": librdkafka,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka_,
    "kafkajs": lambda servers, topic: node(Kafkajs(), servers, topic),
    "platformatic": lambda servers, topic: node(Platformatic(), servers, topic),
}


@pytest.mark.parametrize("client", PRODUCERS)
def test_idempotent_producer_writes_once_and_in_order(
    client: str, topic: str, servers: str, broker_process: Served
) -> None:
    PRODUCERS[client](servers, topic)
    consumed = Librdkafka().consume(servers, topic, len(VALUES))
    assert {0: [Record(None, value) for value in VALUES]} == consumed
    headers = list(stored(broker_process.partition_dir(topic)))
    assert len({header.producer_id for header in headers} - {-1}) == 1, "not an idempotent producer"
    assert [0] * len(headers) == [header.producer_epoch for header in headers]
    assert sequences(headers) == [header.base_sequence for header in headers]


def sequences(headers: list[BatchHeader]) -> list[int]:
    """What the base sequences have to be: each goes on where the one before has ended."""
    expected, at = [], 0
    for header in headers:
        expected.append(at)
        at += header.last_offset_delta + 1
    return expected


def test_two_producers_are_told_apart(topic: str, servers: str, broker_process: Served) -> None:
    for _ in range(2):
        producer = Producer(settings(servers, enable_idempotence=True))
        producer.produce(topic, b"value")
        assert 0 == producer.flush(30)
    producers = [header.producer_id for header in stored(broker_process.partition_dir(topic))]
    assert 2 == len(set(producers))


def test_broker_recognises_producer_after_a_restart(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path / "data") as broker:
        servers = broker.bootstrap_servers
        producer = Producer(settings(servers, enable_idempotence=True))
        for value in VALUES[:100]:
            producer.produce("t", value)
        assert 0 == producer.flush(30)
        broker.stop()
        broker.start()  # the port was kept for it
        for value in VALUES[100:]:
            producer.produce("t", value)
        assert 0 == producer.flush(30)
        consumed = Librdkafka().consume(servers, "t", len(VALUES))
        assert {0: [Record(None, value) for value in VALUES]} == consumed
