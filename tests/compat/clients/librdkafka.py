"""confluent-kafka: librdkafka with a Python face."""

from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from tests.compat.clients.record import CODECS, NO_LIMIT, TIMESTAMP, Record


def settings(servers: str, **more: Any) -> dict[str, Any]:
    """A client's settings, ``more`` with underscores for dots. It says nothing on standard error but that it is lost."""
    return {
        "bootstrap.servers": servers,
        "log_level": 2,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


class Librdkafka:
    name = "confluent-kafka"
    codecs = CODECS
    too_large = "MSG_SIZE_TOO_LARGE"

    def missing(self) -> str | None:
        return None

    def can_write(self, record: Record) -> bool:
        return True

    def produce(self, servers: str, topic: str, partition: int, records: list[Record], codec: str, acks: int) -> None:
        producer = Producer(
            settings(servers, compression_type=codec, acks=acks, linger_ms=50, message_max_bytes=NO_LIMIT)
        )
        errors = []
        for number, record in enumerate(records):
            producer.produce(
                topic,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                partition=partition,
                timestamp=TIMESTAMP + number,
                on_delivery=lambda error, _message: errors.append(error),
            )
        assert 0 == producer.flush(30)
        assert len(records) == len(errors)
        for error in errors:
            if error is not None:
                raise KafkaException(error)

    def consume(self, servers: str, topic: str, count: int) -> dict[int, list[Record]]:
        consumer = Consumer(settings(servers, group_id="unused", enable_auto_commit=False))
        try:
            partitions = consumer.list_topics(topic, 30).topics[topic].partitions
            consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
            consumed: dict[int, list[Record]] = {}
            for message in consume(consumer, count):
                headers = tuple(message.headers() or ())
                consumed.setdefault(message.partition(), []).append(Record(message.key(), message.value(), headers))
            return consumed
        finally:
            consumer.close()


def consume(consumer: Consumer, count: int, timeout: float = 30) -> list[Message]:
    """The next ``count`` messages; AssertionError when they do not come."""
    messages: list[Message] = []
    while len(messages) < count:
        batch = consumer.consume(count - len(messages), timeout)
        assert batch, f"{len(messages)} of {count} messages came"
        for message in batch:
            assert message.error() is None, message.error()
        messages += batch
    return messages
