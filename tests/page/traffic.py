"""Real clients of all kinds against one broker, so that every view of the page has something to show.

Some of what they send is hostile: names, keys and values that are markup, values that are huge, numbers that JavaScript rounds.
"""

import json
import os
import threading
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self

import pulsar
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from broker.client import InputGate, ResultPartitionID, ShuffleWriter

MARKUP = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
HUGE_BYTES = 600_000
# JavaScript would make ...992 of it.
LONG_NUMBER = 9007199254740993
ORDERS, STRANGE, PAYMENTS = "orders", "strange", "payments"
BEHIND, HOSTILE_GROUP = "billing", f"group {MARKUP}"
PULSAR_TOPIC = "persistent://public/default/readings"


class Traffic:
    """``kafka``, ``shuffle``, ``pulsar``: addresses. Producers go on until the end of the ``with`` block."""

    def __init__(self, kafka: str, shuffle: str, pulsar: str) -> None:
        self._kafka = kafka
        self._shuffle = shuffle
        self._pulsar = pulsar
        self._stop = threading.Event()
        self._stack = ExitStack()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._topics()
        self._orders()
        self._strange()
        self._groups()
        self._transaction()
        self._subscription()
        self._result_partition()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=30)
        self._stack.close()

    def _run(self, body: "threading.Thread") -> None:
        self._threads.append(body)
        body.start()

    def _topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._kafka})
        names = [(ORDERS, 3), (STRANGE, 1), (PAYMENTS, 2), *((f"clicks-{number:02}", 1) for number in range(12))]
        settings = {ORDERS: {"retention.ms": "86400000", "compression.type": "zstd"}}
        topics = [NewTopic(name, partitions, config=settings.get(name, {})) for name, partitions in names]
        for future in admin.create_topics(topics).values():
            future.result(timeout=30)

    def _orders(self) -> None:
        """A producer that goes on: some hundred records a second, as JSON."""
        producer = Producer({"bootstrap.servers": self._kafka, "client.id": "shop", "linger.ms": 20})

        def produce() -> None:
            number = 0
            while not self._stop.wait(0.05):
                for _ in range(20):
                    order = {"order": number, "customer": f"c-{number % 97}", "items": [{"sku": "tea", "count": 2}]}
                    producer.produce(ORDERS, json.dumps(order), key=f"c-{number % 97}")
                    number += 1
                producer.poll(0)
            producer.flush(30)

        self._run(threading.Thread(target=produce))

    def _strange(self) -> None:
        producer = Producer({"bootstrap.servers": self._kafka, "message.max.bytes": 2_000_000})
        for key, value in (
            (MARKUP, MARKUP),
            (b"\xff\x00\x01", bytes(range(256))),
            ("number", json.dumps({"id": LONG_NUMBER, "text": MARKUP, "none": None, "list": [1.50, True, []]})),
            ("huge", json.dumps({"words": "x" * HUGE_BYTES})),
            ("long", "line of words " * 2000),
            (None, None),
            ("", ""),
            ("deep", "[" * 500 + "]" * 500),
        ):
            producer.produce(STRANGE, value, key=key, headers=[(MARKUP, MARKUP.encode()), ("bytes", b"\xff\x00")])
        producer.flush(30)

    def _groups(self) -> None:
        settings = {"bootstrap.servers": self._kafka, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        slow = Consumer({**settings, "group.id": BEHIND, "client.id": "billing-1"})
        slow.subscribe([ORDERS])

        def consume() -> None:
            """One record at a time, and so further and further behind."""
            while not self._stop.is_set():
                message = slow.poll(0.1)
                if message is not None and message.error() is None:
                    slow.commit(message, asynchronous=True)
                    self._stop.wait(0.05)
            slow.close()

        self._run(threading.Thread(target=consume))
        hostile = Consumer({**settings, "group.id": HOSTILE_GROUP})
        hostile.commit(offsets=[TopicPartition(STRANGE, 0, 1)], asynchronous=False)
        hostile.close()

    def _transaction(self) -> None:
        """One that stays open and holds the last stable offset."""
        producer = Producer(
            {"bootstrap.servers": self._kafka, "transactional.id": "settlement", "transaction.timeout.ms": 600_000}
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(PAYMENTS, b"not committed yet")
        producer.flush(30)
        # After ten minutes the broker aborts it.
        self._stack.enter_context(suppress(KafkaException))
        self._stack.callback(producer.abort_transaction, 30)

    def _subscription(self) -> None:
        client = pulsar.Client(f"pulsar://{self._pulsar}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        self._stack.callback(client.close)
        consumer = client.subscribe(
            PULSAR_TOPIC, "meters", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=5
        )
        producer = client.create_producer(PULSAR_TOPIC)
        for number in range(50):
            producer.send_async(f'{{"meter": {number}}}'.encode(), lambda *_: None)
        producer.flush()
        for _ in range(3):
            consumer.acknowledge(consumer.receive(timeout_millis=30_000))

    def _result_partition(self) -> None:
        """Four channels. The reader of the first takes one buffer and then nothing, so its writer is blocked."""
        job = os.urandom(16)
        partition = ResultPartitionID.of(job, 0)
        channels = 4

        def write() -> None:
            try:
                with ShuffleWriter(self._shuffle, partition, channels) as writer:
                    for number in range(4000):
                        if self._stop.is_set():
                            break
                        writer.push(number % channels, b"x" * 32768)
            except OSError:
                pass  # the broker has ended before us

        def read(channel: int) -> None:
            try:
                with InputGate([(self._shuffle, partition, channel)]) as gate:
                    for _ in gate.buffers():
                        if channel == 0:
                            self._stop.wait()
                        if self._stop.is_set():
                            break
            except OSError:
                pass

        for channel in range(channels):
            self._run(threading.Thread(target=read, args=(channel,), daemon=True))
        self._run(threading.Thread(target=write, daemon=True))
