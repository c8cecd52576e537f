"""aiokafka."""

import asyncio
from typing import Any

import aiokafka

from tests.compat.clients.record import CODECS, NO_LIMIT, TIMESTAMP, Record


class Aiokafka:
    name = "aiokafka"
    codecs = CODECS
    too_large = "MessageSizeTooLargeError"

    def missing(self) -> str | None:
        return None

    def can_write(self, record: Record) -> bool:
        return record.key is not None or record.value is not None

    def produce(self, servers: str, topic: str, partition: int, records: list[Record], codec: str, acks: int) -> None:
        async def produce() -> None:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=servers,
                compression_type=None if codec == "none" else codec,
                acks="all" if acks == -1 else acks,
                enable_idempotence=acks == -1,
                linger_ms=50,
                max_request_size=NO_LIMIT,
            )
            async with producer:
                futures = [
                    await producer.send(
                        topic,
                        key=record.key,
                        value=record.value,
                        headers=list(record.headers),
                        partition=partition,
                        timestamp_ms=TIMESTAMP + number,
                    )
                    for number, record in enumerate(records)
                ]
                async with asyncio.timeout(30):
                    await asyncio.gather(*futures)

        asyncio.run(produce())

    def consume(self, servers: str, topic: str, count: int) -> dict[int, list[Record]]:
        async def read() -> dict[int, list[Record]]:
            consumer = aiokafka.AIOKafkaConsumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest")
            async with consumer:
                consumed: dict[int, list[Record]] = {}
                for record in await consume(consumer, count):
                    consumed.setdefault(record.partition, []).append(
                        Record(record.key, record.value, tuple(record.headers))
                    )
                return consumed

        return asyncio.run(read())


async def consume(consumer: Any, count: int, timeout: float = 30) -> list[Any]:
    """The next ``count`` records; AssertionError when they do not come."""
    records: list[Any] = []
    while len(records) < count:
        batch = await consumer.getmany(timeout_ms=int(timeout * 1000), max_records=count - len(records))
        assert batch, f"{len(records)} of {count} records came"
        for some in batch.values():
            records += some
    return records
