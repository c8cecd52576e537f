"""kafka-python."""

import warnings
from typing import Any

from tests.compat.clients.record import CODECS, NO_LIMIT, TIMESTAMP, Record

with warnings.catch_warnings():
    # It reads its schemas in a way that is deprecated in Python 3.11 and was taken up again in 3.13.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka


class KafkaPython:
    name = "kafka-python"
    codecs = CODECS
    too_large = "MessageSizeTooLargeError"

    def missing(self) -> str | None:
        return None

    def can_write(self, record: Record) -> bool:
        nothing = record.key is None and record.value is None
        return not nothing and all(value is not None for _, value in record.headers)

    def produce(self, servers: str, topic: str, partition: int, records: list[Record], codec: str, acks: int) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=servers,
            compression_type=None if codec == "none" else codec,
            acks="all" if acks == -1 else acks,
            enable_idempotence=acks == -1,
            linger_ms=50,
            max_request_size=NO_LIMIT,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    key=record.key,
                    value=record.value,
                    headers=list(record.headers),
                    partition=partition,
                    timestamp_ms=TIMESTAMP + number,
                )
                for number, record in enumerate(records)
            ]
            for future in futures:
                future.get(30)
        finally:
            producer.close()

    def consume(self, servers: str, topic: str, count: int) -> dict[int, list[Record]]:
        consumer = kafka.KafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
        try:
            partitions = [kafka.TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
            consumer.assign(partitions)
            consumer.seek_to_beginning()
            consumed: dict[int, list[Record]] = {}
            for record in consume(consumer, count):
                headers = tuple((key, value) for key, value in record.headers)
                consumed.setdefault(record.partition, []).append(Record(record.key, record.value, headers))
            return consumed
        finally:
            consumer.close()


def join(topic: str, **settings: Any) -> Any:
    """A KafkaConsumer in a group that knows ``topic`` before it joins.

    kafka-python 3.0.12 may be elected leader before, and then joins again when it has heard of the partitions. If ``poll`` ends
    while the SyncGroup of that second time is on its way, it takes the join for done, never looks at the answer, and sends no
    heartbeats: its broker waits for the session to time out, and it for records.
    """
    consumer = kafka.KafkaConsumer(topic, **settings)
    while not consumer.partitions_for_topic(topic):
        pass
    return consumer


def consume(consumer: Any, count: int, timeout: float = 30) -> list[Any]:
    """The next ``count`` records; AssertionError when they do not come."""
    records: list[Any] = []
    while len(records) < count:
        batch = consumer.poll(timeout_ms=int(timeout * 1000), max_records=count - len(records))
        assert batch, f"{len(records)} of {count} records came"
        for some in batch.values():
            records += some
    return records
