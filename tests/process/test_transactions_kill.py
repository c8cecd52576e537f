"""kill -9 under a producer of transactions version 2 (KIP-890), which asks once more whatever was not answered.

It never begins anew, so each of its transactions is committed, once, with its offset: whether the broker died before or after it
added a partition, stored a batch, decided or wrote markers, the copy of the request must get the answer of the first.

``BROKER_KILL_CYCLES`` says how often (5); ``BROKER_KILL_SEED`` when (drawn anew each time, and shown when it fails).
"""

import os
import random
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from broker.client.kafka import ClientConfig, Cluster
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.batch import TRANSACTIONAL
from protocol.kafka.records.records import build_batch
from tests.client.kafka.logs import values
from tests.kafka_connection import KafkaConnection, produce_fields
from tests.process.broker_process import BrokerProcess

CYCLES = int(os.environ.get("BROKER_KILL_CYCLES", "5"))
SEED = int(os.environ.get("BROKER_KILL_SEED", random.SystemRandom().randrange(2**32)))
TOPIC, GROUP, NAME, PARTITIONS = "t", "g", "version-2", 3
_AGAIN = frozenset(
    {
        ErrorCode.concurrent_transactions,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_enough_replicas,
        ErrorCode.kafka_storage_error,
        ErrorCode.unknown_topic_or_partition,
    }
)


class Producer:
    """Commits the transactions 0, 1, 2, ... until it is told to stop: a record in each of some partitions, and an offset."""

    def __init__(self, address: str, patience_s: float = 60, *more: ErrorCode) -> None:
        """``more`` errors that pass."""
        self.address = address
        self._patience_s = patience_s  # with one request
        self._again = _AGAIN.union(more)
        self.stop = threading.Event()
        self.committed = 0
        self.failure: BaseException | None = None
        self._connection: KafkaConnection | None = None

    def run(self) -> None:
        try:
            answer = self.ask(ApiKey.INIT_PRODUCER_ID, 5, transactional_id=NAME, transaction_timeout=600_000)
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
            while not self.stop.is_set():
                self.transact(self.committed)
                self.committed += 1
        except BaseException as error:
            self.failure = error
        finally:
            self.disconnect()

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def transact(self, number: int) -> None:
        for partition in range(1 + number % PARTITIONS):
            batch = build_batch(
                [(None, b"%d" % number, [], int(time.time() * 1000))],
                producer_id=self.id,
                producer_epoch=self.epoch,
                base_sequence=0,
                attributes=TRANSACTIONAL,
            )
            self.ask(ApiKey.PRODUCE, 12, **produce_fields(TOPIC, batch, partition, transactional_id=NAME))
        me = {"transactional_id": NAME, "producer_id": self.id, "producer_epoch": self.epoch}
        topics = [{"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": number}]}]
        self.ask(ApiKey.TXN_OFFSET_COMMIT, 5, **me, group_id=GROUP, topics=topics)
        answer = self.ask(ApiKey.END_TXN, 5, **me, committed=True)
        self.id, self.epoch = answer.producer_id, answer.producer_epoch

    def ask(self, key: ApiKey, version: int, **fields: Any) -> Any:
        """Until it is answered without an error that passes."""
        deadline = time.monotonic() + self._patience_s
        while True:
            assert time.monotonic() < deadline, f"no answer to {key.name}"
            try:
                if self._connection is None:
                    self._connection = KafkaConnection(self.address)
                answer = self._connection.ask(key, version, **fields)
            except OSError:
                self.disconnect()
                time.sleep(0.01)
                continue
            error = error_of(key, answer)
            if not error:
                return answer
            assert error in self._again, f"{ErrorCode(error).name} for {key.name}"
            time.sleep(0.01)


def error_of(key: ApiKey, answer: Any) -> int:
    if key is ApiKey.PRODUCE:
        return int(answer.responses[0].partition_responses[0].error_code)
    if key is ApiKey.TXN_OFFSET_COMMIT:
        return int(answer.topics[0].partitions[0].error_code)
    return int(answer.error_code)


def seen(cluster: Cluster, partition: int) -> list[int]:
    end = cluster.offsets({(TOPIC, partition): -1}, "read_committed")[TOPIC, partition]
    with cluster.fetcher(TOPIC, partition, 0, end, isolation="read_committed") as fetcher:
        return [int(value or b"") for fetched in fetcher for value in values(fetched.data, fetched.aborted)]


def test_every_transaction_is_committed_once_over_kills(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    with BrokerProcess(tmp_path) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
            future.result(30)
        producer = Producer(broker.address)
        thread = threading.Thread(target=producer.run)
        thread.start()
        for _ in range(CYCLES):
            done = producer.committed
            deadline = time.monotonic() + 60
            while producer.committed < done + 3 and producer.failure is None:
                assert time.monotonic() < deadline, f"seed {SEED}"
                time.sleep(0.001)
            time.sleep(rng.random() * 0.02)  # a transaction takes about so long on an idle machine
            broker.kill()
            broker.start()
        producer.stop.set()
        thread.join(120)
        assert producer.failure is None, f"seed {SEED}: {producer.failure}"
        count = producer.committed
        assert count >= 3 * CYCLES
        with Cluster(ClientConfig.from_properties({"bootstrap.servers": broker.address})) as cluster:
            for partition in range(PARTITIONS):
                expected = [number for number in range(count) if partition <= number % PARTITIONS]
                assert seen(cluster, partition) == expected, f"seed {SEED}"
            assert cluster.committed(GROUP, stable=True)[TOPIC, 0].offset == count - 1, f"seed {SEED}"
