"""What clients do while machines of a cluster are lost under them, and what must be true afterwards."""

import contextlib
import itertools
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

import psycopg
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from broker.client.kafka import ClientConfig, Cluster
from broker.client.kafka.errors import KafkaClientError
from broker.client.kafka.producer import Producer as OwnProducer
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.records.records import build_batch
from tests.durable.durable_broker import wait_until
from tests.elle import ABORTED, COMMITTED, KAFKA, UNKNOWN, Append, Read, Txn, anomalies
from tests.kafka_connection import KafkaConnection, produce_fields
from tests.process.broker_process import PATIENCE_S

PARTITIONS = 6
_COMMIT_EVERY = 20
_TRANSACTIONS_A_LIST = 100
_MOST_QUEUED_BYTES = 6_000_000


# Where a machine may stand still, and a group's coordinator may come to another machine (docs/SCALING.md). Of the second one,
# librdkafka takes a tenth while the coordinator is away.
SETTINGS = {"socket.timeout.ms": 10_000, "coordinator.query.interval.ms": 10_000}


class Served(Protocol):
    """Several nodes, on machines or on one."""

    @property
    def addresses(self) -> str:
        """Where Kafka's clients begin."""


def client(cluster: Served, **options: object) -> dict[str, object]:
    fields = {name.replace("_", "."): value for name, value in options.items()}
    return {"bootstrap.servers": cluster.addresses, "log_level": 0, **SETTINGS, **fields}


def make(cluster: Served, topic: str) -> None:
    admin = AdminClient(client(cluster))
    [made] = admin.create_topics([NewTopic(topic, PARTITIONS)]).values()
    made.result(PATIENCE_S)


class Writing(threading.Thread):
    """Writes numbers, in order in each partition, until it is told to finish."""

    def __init__(self, cluster: Served, topic: str, size: int = 0) -> None:
        """``size``: in bytes, of a record at least."""
        super().__init__(daemon=True)
        self._size = size
        self._producer = Producer(client(cluster, enable_idempotence=True))
        self._topic = topic
        self._finishing = threading.Event()
        self.acknowledged: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.failed: list[KafkaError] = []

    def run(self) -> None:
        number = 0
        while not self._finishing.is_set():
            self._producer.poll(0.005)
            if len(self._producer) * self._size > _MOST_QUEUED_BYTES:
                continue
            value = str(number).ljust(self._size)
            self._producer.produce(self._topic, value, partition=number % PARTITIONS, on_delivery=self._delivered)
            number += 1
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
        self.join(3 * PATIENCE_S)
        assert not self.is_alive()
        assert [] == self.failed, self.failed[:3]
        return self.acknowledged


class Reading(threading.Thread):
    """A member of a group that reads everything, commits, and remembers what it got."""

    def __init__(self, cluster: Served, topic: str, protocol: str = "classic") -> None:
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


def stored(cluster: Served, topic: str, isolation: str = "read_uncommitted") -> list[list[int]]:
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

    def __init__(self, cluster: Served, seed: int) -> None:
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


class Transacting:
    """Clients whose transactions append to lists and read them, until they are told to finish; then the checker after Elle
    (tests/elle.py) looks for what contradicts an order of the transactions.

    A list is what one partition has of one key. A transaction has read some lists as a consumer of committed records had them at
    its beginning, and appends to partitions that several nodes have.
    """

    def __init__(self, cluster: Served, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        lists = itertools.count()
        self._with_offsets = _WithOffsets("with-offsets", cluster, topic, lists)
        self._clients = [self._with_offsets, _Librdkafka("librdkafka", cluster, topic, lists)]

    def start(self) -> None:
        for each in self._clients:
            each.start()

    @property
    def count(self) -> int:
        """Of those that were committed."""
        return sum(each.committed for each in self._clients)

    def go_on(self) -> None:
        """Returns when each client has committed some transactions that were begun after the call."""
        before = [each.committed for each in self._clients]

        def got_on() -> bool:
            failures = [each.failure for each in self._clients if each.failure is not None]
            assert [] == failures, failures
            return all(each.committed > some + 3 for each, some in zip(self._clients, before, strict=True))

        wait_until(got_on, "no transaction comes through", 120)

    def finish(self) -> str:
        """What was checked. AssertionError if transactions contradict each other, or one is not whole, not once, or lost."""
        for each in self._clients:
            each.finishing.set()
        for each in self._clients:
            each.join(3 * PATIENCE_S)
            assert not each.is_alive(), each.name
            assert each.failure is None, each.failure
        for each in self._clients:  # all that is still open is aborted
            wait_until(each.begin, "no producer takes the place of this one")
        last = Lists(self._cluster, self._topic)
        last.take_all()
        history = [txn for each in self._clients for txn in each.history]
        wrong = anomalies(history, last.found, KAFKA)
        assert [] == wrong, wrong[:3]
        there = {element for elements in last.found.values() for element in elements}
        counted = [txn for txn in self._with_offsets.history if any(each.element in there for each in txn.appends)]
        assert len(counted) == self._with_offsets.stored_offset(), (
            "offsets and records are not of the same transactions"
        )
        self._with_offsets.close()
        reads = sum(bool(read.elements) for txn in history for read in txn.reads)
        fates = Counter(txn.fate for txn in history)
        return f"{', '.join(f'{fates[fate]} {fate}' for fate in sorted(fates))}, {reads} reads of lists with elements"


class Lists:
    """What a consumer of committed records has got of each list, by partition and key."""

    def __init__(self, cluster: Served, topic: str) -> None:
        self.found: dict[Hashable, list[str]] = {}
        options = {"enable_partition_eof": True, "enable_auto_commit": False, "auto_offset_reset": "error"}
        self._consumer = Consumer(client(cluster, group_id="lists", isolation_level="read_committed", **options))
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        self._ended: set[int] = set()

    def take(self, wait_s: float = 0.0) -> None:
        """What is there. AssertionError if there is less than there was."""
        for message in self._consumer.consume(1000, wait_s):
            error = message.error()
            if error is None:
                elements = self.found.setdefault((message.partition(), message.key().decode()), [])
                elements.append(message.value().decode())
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ended.add(message.partition())
            else:
                assert error.code() not in (KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION), error

    def take_all(self) -> None:
        """What there is in the end, when nobody writes any more."""

        def is_whole() -> bool:
            self.take(0.1)
            return len(self._ended) == PARTITIONS

        wait_until(is_whole, "the lists cannot be read to their end")
        self._consumer.close()


class _Appending(threading.Thread):
    """One of the clients of ``Transacting``."""

    def __init__(self, name: str, cluster: Served, topic: str, lists: "itertools.count[int]") -> None:
        """``lists`` counts the transactions of all clients: they go on to another list after a hundred."""
        super().__init__(name=name, daemon=True)
        self.cluster = cluster
        self.topic = topic
        self.finishing = threading.Event()
        self.history: list[Txn] = []
        self.committed = 0
        self.failure: BaseException | None = None
        self._lists = lists
        self._chance = random.Random(name)

    def run(self) -> None:
        lists = Lists(self.cluster, self.topic)
        try:
            while not self.finishing.is_set():
                # One that has failed is followed by another one of the same id, which ends what it has begun.
                goes_on = self.begin()
                while goes_on and not self.finishing.is_set():
                    lists.take()
                    goes_on = self._transact(lists)
        except BaseException as error:
            self.failure = error
            raise

    def begin(self) -> bool:
        """Make another producer of the same id. Returns whether it has been let in."""
        raise NotImplementedError

    def claims(self) -> list[Append | Read]:
        """What a transaction says of its offset, if it commits one."""
        return []

    def write(self, records: Mapping[int, Sequence[tuple[str, str]]], ending: str) -> tuple[str, bool]:
        """Write keys and values, by partition, in a transaction, and end it so. Returns how it has ended, and whether the
        producer can go on."""
        raise NotImplementedError

    def _transact(self, lists: Lists) -> bool:
        key = str(next(self._lists) // _TRANSACTIONS_A_LIST)
        name = f"{self.name}/{len(self.history)}"
        chance = self._chance
        partitions = chance.sample(range(PARTITIONS), PARTITIONS)
        count = chance.randint(1, PARTITIONS - 1)
        operations = self.claims()
        # It holds no lock on what it reads, so others may append to it meanwhile: it does not append there itself.
        for partition in partitions[count : count + 2]:
            operations.append(Read((partition, key), tuple(lists.found.get((partition, key), ()))))
        records = {
            partition: [(key, f"{name}/{partition}.{number}") for number in range(chance.randint(1, 2))]
            for partition in partitions[:count]
        }
        operations += [
            Append((partition, key), element) for partition, batch in records.items() for key, element in batch
        ]
        fate, goes_on = self.write(records, ABORTED if chance.random() < 0.2 else COMMITTED)
        self.history.append(Txn(name, fate, operations))
        self.committed += fate == COMMITTED
        return goes_on


class _Librdkafka(_Appending):
    """It commits no offsets: if it has asked for the coordinator of the group, and the node is away for a moment, librdkafka 2.16
    waits for ever for a connection that it has given up."""

    def begin(self) -> bool:
        options = {"transactional_id": self.name, "transaction_timeout_ms": 20_000, "linger_ms": 1}
        self._producer = Producer(client(self.cluster, **options))
        try:
            self._producer.init_transactions(20)
        except KafkaException:  # it is asked again
            return False
        return True

    def write(self, records: Mapping[int, Sequence[tuple[str, str]]], ending: str) -> tuple[str, bool]:
        producer = self._producer
        try:
            producer.begin_transaction()
            for partition, batch in records.items():
                for key, value in batch:
                    producer.produce(self.topic, value, key, partition=partition)
            # What is on its way when a transaction is aborted may be stored, and librdkafka 2.16 may give its sequence numbers
            # to records of the next transaction, which are then taken for repetitions.
            if producer.flush(20):
                return ABORTED, False
            if ending == ABORTED:
                producer.abort_transaction(20)
                return ABORTED, True
        except KafkaException:
            return ABORTED, False
        try:
            producer.commit_transaction(20)
        except KafkaException:
            return UNKNOWN, False
        return COMMITTED, True


class _WithOffsets(_Appending):
    """This project's client. Each of its transactions commits an offset, which counts them: from where one has begun, no other
    one may have begun, too."""

    def __init__(self, name: str, cluster: Served, topic: str, lists: "itertools.count[int]") -> None:
        super().__init__(name, cluster, topic, lists)
        times = {"request.timeout.ms": 10_000, "retry.backoff.ms": 20, "transaction.timeout.ms": 20_000}
        self._client = Cluster(ClientConfig.from_properties({"bootstrap.servers": cluster.addresses, **times}))
        self._producer: OwnProducer | None = None
        self._position = 0

    def begin(self) -> bool:
        if self._producer is not None:
            self._producer.close()
        self._producer = self._client.producer(transactional_id=self.name)
        try:
            self._producer.begin()
            self._producer.abort()
            self._position = self.stored_offset()
        except KafkaClientError:  # it is asked again
            return False
        return True

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()
        self._client.close()

    def stored_offset(self) -> int:
        found = self._client.committed(self.name, stable=True).get((self.topic, 0))
        return 0 if found is None else found.offset

    def claims(self) -> list[Append | Read]:
        claim = self.name, self._position
        return [Read(claim, ()), Append(claim, f"{self.name}/{len(self.history)}")]

    def write(self, records: Mapping[int, Sequence[tuple[str, str]]], ending: str) -> tuple[str, bool]:
        producer = self._producer
        assert producer is not None
        try:
            producer.begin()
            for partition, batch in records.items():
                of_batch = [(key.encode(), value.encode(), [], int(time.time() * 1000)) for key, value in batch]
                producer.send(self.topic, partition, build_batch(of_batch), len(batch))
            producer.commit_offsets(self.name, {(self.topic, 0): self._position + 1})
            producer.flush()
            if ending == ABORTED:
                producer.abort()
                return ABORTED, True
        except KafkaClientError:
            return ABORTED, False
        try:
            producer.commit()
        except KafkaClientError:
            return UNKNOWN, False
        self._position += 1
        return COMMITTED, True


class Late:
    """Sends to whoever stands still or is cut off by the time, a record each on a connection of its own, made before."""

    def __init__(self, topic: str, addresses: Mapping[int, str], count: int = 1) -> None:
        """``addresses``: of partitions' owners. ``count``: for each partition."""
        self._topic = topic
        self._connections = [
            (partition, KafkaConnection(address)) for partition, address in addresses.items() for _ in range(count)
        ]

    def send(self, *, acks: int = -1) -> None:
        for number, (partition, connection) in enumerate(self._connections):
            batch = build_batch([(None, b"%d" % number, [], int(time.time() * 1000))])
            connection.tell(ApiKey.PRODUCE, 9, **produce_fields(self._topic, batch, partition, acks=acks))

    def acknowledged(self) -> int:
        """Returns when all were answered or closed."""
        return sum(self._was_acknowledged(connection) for _, connection in self._connections)

    def _was_acknowledged(self, connection: KafkaConnection) -> bool:
        try:
            answer = connection.answer(ApiKey.PRODUCE, 9)
        except ConnectionError:
            return False
        finally:
            connection.close()
        return not answer.responses[0].partition_responses[0].error_code
