"""Consume, transform, produce, exactly once: a process that can be killed at any time. Run by test_transactions.py.

Reads numbers from one topic, writes each one's negative to another, and commits the offsets in the same transaction.
"""

import os
import sys

from confluent_kafka import Consumer, KafkaException, Producer

# When its only broker goes away, librdkafka (2.16) forgets what it knew of the cluster and begins again with the bootstrap
# servers, and send_offsets_to_transaction waits for ever for the coordinator that was forgotten: confluentinc/librdkafka#5511.
# So it is told to keep what it knows.
KEEP: dict[str, str | int | float | bool] = {"metadata.recovery.strategy": "none"}


def main(servers: str, source: str, target: str, group: str, total: int) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 200,
            **KEEP,
        }
    )
    producer = Producer({"bootstrap.servers": servers, "transactional.id": f"{group}-producer", "linger.ms": 1, **KEEP})
    producer.init_transactions(30)
    consumer.subscribe([source])
    while True:
        messages = consumer.consume(7, 0.2)
        if not messages:
            ends = [consumer.get_watermark_offsets(assigned)[1] for assigned in consumer.assignment()]
            # A partition of which this process has consumed nothing has no position. An earlier process may have done all of it.
            committed = consumer.committed(consumer.assignment(), 30)
            positions = [
                max(position.offset, before.offset)
                for position, before in zip(consumer.position(consumer.assignment()), committed, strict=True)
            ]
            if ends and sum(ends) == total and ends == positions:
                return
            continue
        producer.begin_transaction()
        for message in messages:
            assert message.error() is None, message.error()
            producer.produce(target, b"-" + message.value(), partition=message.partition())
        try:
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 30
            )
            producer.commit_transaction(30)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(30)
            for start in consumer.committed(consumer.assignment(), 30):
                start.offset = max(start.offset, 0)
                consumer.seek(start)
        print(len(messages), flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:5], int(sys.argv[5]))
    except KafkaException as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)  # not by way of the destructors, which may wait for a broker that went away
