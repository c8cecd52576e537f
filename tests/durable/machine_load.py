"""What clients do while machines of a cluster are lost under them, and what must be true afterwards."""

import contextlib
import random
import threading
import uuid
from concurrent.futures import Future

import psycopg
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.durable.durable_broker import wait_until
from tests.durable.machines import Cluster
from tests.process.broker_process import PATIENCE_S

PARTITIONS = 6
_COMMIT_EVERY = 20


# Where a machine may stand still, and a group's coordinator may come to another machine (docs/SCALING.md). Of the second one,
# librdkafka takes a tenth while the coordinator is away.
SETTINGS = {"socket.timeout.ms": 10_000, "coordinator.query.interval.ms": 10_000}


def client(cluster: Cluster, **options: object) -> dict[str, object]:
    fields = {name.replace("_", "."): value for name, value in options.items()}
    return {"bootstrap.servers": cluster.addresses, "log_level": 0, **SETTINGS, **fields}


def make(cluster: Cluster, topic: str) -> None:
    admin = AdminClient(client(cluster))
    [made] = admin.create_topics([NewTopic(topic, PARTITIONS)]).values()
    made.result(PATIENCE_S)


class Writing(threading.Thread):
    """Writes numbers, in order in each partition, until it is told to finish."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer(client(cluster, enable_idempotence=True))
        self._topic = topic
        self._finishing = threading.Event()
        self.acknowledged: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.failed: list[KafkaError] = []

    def run(self) -> None:
        number = 0
        while not self._finishing.is_set():
            self._producer.produce(self._topic, str(number), partition=number % PARTITIONS, on_delivery=self._delivered)
            number += 1
            self._producer.poll(0.005)
        assert 0 == self._producer.flush(2 * PATIENCE_S)

    def _delivered(self, error: KafkaError | None, message: object) -> None:
        if error is not None:
            self.failed.append(error)
        else:
            self.acknowledged[message.partition()].append(int(message.value()))  # type: ignore[attr-defined]

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged))

    def go_on(self) -> None:
        """Returns when something was acknowledged in each partition that was sent after the call."""
        before = [len(each) for each in self.acknowledged]
        wait_until(
            lambda: all(len(each) > 20 + some for each, some in zip(self.acknowledged, before, strict=True)),
            f"no progress: {before}, {[len(each) for each in self.acknowledged]}",
            2 * PATIENCE_S,
        )

    def finish(self) -> list[list[int]]:
        self._finishing.set()
        self.join(2 * PATIENCE_S)
        assert [] == self.failed
        return self.acknowledged


class Reading(threading.Thread):
    """A member of a group that reads everything, commits, and remembers what it got."""

    def __init__(self, cluster: Cluster, topic: str, protocol: str = "classic") -> None:
        super().__init__(daemon=True)
        options = {"group_id": f"readers-{protocol}", "group_protocol": protocol, "auto_offset_reset": "earliest"}
        self._consumer = Consumer(client(cluster, enable_auto_commit=False, **options))
        self._consumer.subscribe([topic])
        self._stopping = threading.Event()
        self.seen: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.committed = 0

    def run(self) -> None:
        read = 0
        while not self._stopping.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            self.seen[message.partition()].append(int(message.value()))
            read += 1
            if read % _COMMIT_EVERY:
                continue
            try:
                self._consumer.commit(asynchronous=False)
                self.committed += 1
            except KafkaException:  # the coordinator is on its way
                pass
        self._consumer.close()

    def go_on(self) -> None:
        """Returns when it has committed what it has read after the call."""
        before = self.committed
        wait_until(lambda: self.committed > before + 1, f"no commit comes through after {before}", 120)

    def has_read(self, expected: list[list[int]]) -> bool:
        return [set(each) for each in expected] == [set(each) for each in self.seen]

    def stop(self) -> list[list[int]]:
        """What it got, in order, without what it got again."""
        self._stopping.set()
        self.join(PATIENCE_S)
        return [list(dict.fromkeys(each)) for each in self.seen]


def stored(cluster: Cluster, topic: str, isolation: str = "read_uncommitted") -> list[list[int]]:
    """What is in each partition, in the order of the offsets."""
    options = {"enable_partition_eof": True, "isolation_level": isolation}
    consumer = Consumer(client(cluster, group_id="checker", enable_auto_commit=False, **options))
    found: list[list[int]] = []
    for partition in range(PARTITIONS):
        consumer.assign([TopicPartition(topic, partition, 0)])
        values: list[int] = []
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, (partition, len(values))
            if message.error() is not None:
                assert KafkaError._PARTITION_EOF == message.error().code()
                break
            values.append(int(message.value()))
        found.append(values)
    consumer.close()
    return found


class Changing(threading.Thread):
    """Makes and deletes topics all the time, and writes to each that it has made."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._admin = AdminClient(client(cluster))
        self._producer = Producer(client(cluster))
        self._chance = random.Random(seed)
        self._finishing = threading.Event()
        self.there: dict[str, bool] = {}  # by name: whether it is there
        # A change whose outcome is unknown may still come to pass, after later ones: nothing is known of these any more.
        self.unknown: set[str] = set()
        self.changes = 0

    def run(self) -> None:
        while not self._finishing.is_set():
            name = f"changing-{self._chance.randrange(30)}"
            if self.there.get(name):
                self._change(name, False, self._admin.delete_topics([name])[name])
            else:
                self._change(name, True, self._admin.create_topics([NewTopic(name, PARTITIONS)])[name])
                self._write(name)
            self._finishing.wait(0.05)

    def _write(self, name: str) -> None:
        try:
            for partition in range(PARTITIONS):
                self._producer.produce(name, uuid.uuid4().bytes, partition=partition)
        except KafkaException:  # it still takes the topic for the one before, which is deleted
            pass
        self._producer.poll(0)

    def _change(self, name: str, there: bool, change: Future[None]) -> None:
        try:
            change.result(PATIENCE_S)
        except KafkaException:
            self.unknown.add(name)
            self.there[name] = not self.there.get(name)
            with contextlib.suppress(psycopg.Error):  # the addresses that it knows may all be old
                self._admin = AdminClient(client(self._cluster))
            return
        self.there[name] = there
        self.changes += 1

    def finish(self) -> None:
        """AssertionError if a topic is not there, or there again."""
        self._finishing.set()
        self.join(2 * PATIENCE_S)
        for broker in AdminClient(client(self._cluster)).list_topics(timeout=PATIENCE_S).brokers.values():
            node = AdminClient({"bootstrap.servers": f"{broker.host}:{broker.port}"})
            there = node.list_topics(timeout=PATIENCE_S).topics
            wrong = [name for name, is_there in self.there.items() if is_there != (name in there)]
            assert [] == [name for name in wrong if name not in self.unknown], (str(broker), wrong, sorted(there))


class Transacting(threading.Thread):
    """Writes a number to all partitions in each transaction, until it is told to finish."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._topic = topic
        self._finishing = threading.Event()
        self.committed: list[int] = []
        self.unknown: set[int] = set()
        self.failure: BaseException | None = None

    def run(self) -> None:
        producer: Producer | None = None
        number = 0
        try:
            while not self._finishing.is_set():
                if producer is None:
                    producer = self._begin()
                    if producer is None:
                        continue
                if not self._transact(producer, number):
                    producer = None  # another one of the same id ends what this one has begun
                number += 1
        except BaseException as error:
            self.failure = error
            raise

    def _begin(self) -> Producer | None:
        producer = Producer(client(self._cluster, transactional_id="transacting", transaction_timeout_ms=20_000))
        try:
            producer.init_transactions(20)
        except KafkaException:  # it is asked again
            return None
        return producer

    def _transact(self, producer: Producer, number: int) -> bool:
        try:
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce(self._topic, str(number), partition=partition)
            producer.flush(20)
        except KafkaException:
            return False
        try:
            producer.commit_transaction(20)
        except KafkaException:
            self.unknown.add(number)
            return False
        self.committed.append(number)
        return True

    def go_on(self) -> None:
        before = len(self.committed)
        wait_until(
            lambda: self.failure is not None or len(self.committed) > before + 3, "no transaction comes through", 120
        )
        assert self.failure is None

    def finish(self) -> None:
        """AssertionError if a transaction is not whole, or not once, or was lost."""
        self._finishing.set()
        self.join(2 * PATIENCE_S)
        last = Transacting(self._cluster, self._topic)
        wait_until(lambda: last._begin() is not None, "no producer takes the place of this one")
        first, *others = stored(self._cluster, self._topic, "read_committed")
        assert [first] * len(others) == others, "transactions that are not whole"
        assert sorted(set(first)) == first
        assert set(self.committed) <= set(first) <= set(self.committed) | self.unknown
