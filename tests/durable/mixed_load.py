"""What clients of all kinds do while brokers are lost under them, and what must be true afterwards.

Each part runs in threads of its own, says how far it is (``count``), finishes when the last broker stays (``finish``), and then
compares what it was told with what is there (``check``, which returns what it has counted). The clients and most of the rules are
those of the tests that kill a broker which keeps its disk (``tests/process``).
"""

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from broker.client.kafka import ClientConfig, Cluster
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.records import build_batch
from tests.durable.durable_broker import wait_until
from tests.kafka_connection import KafkaConnection, parts, produce_fields
from tests.process import test_kill as kafka
from tests.process import test_pulsar_kill as pulsar
from tests.process import test_share_kill as share
from tests.process import test_shuffle_kill as shuffle
from tests.process import test_transactions_kill as transactions
from tests.process.broker_process import PATIENCE_S

SETTINGS = (
    "log_segment_bytes=1000000",
    "group_min_session_timeout_ms=500",
    "log_retention_check_interval_ms=200",
    "log_retention_ms=-1",  # the share group's records say that they are of 1970
    "log_cleaner_backoff_ms=200",
    "remote_log_manager_task_interval_ms=500",
    "log_local_retention_ms=1000",
    "shuffle_partition_request_timeout_ms=200",
    "shuffle_memory_bytes=67108864",
)
SCHEMES = ("kafka", "pulsar", "shuffle", "http")
PROBE = "probe"
PARTITIONS = kafka.PARTITIONS


class Part(Protocol):
    """``threads`` are started by the ``MixedLoad``."""

    name: str
    threads: list[threading.Thread]

    def count(self) -> int: ...

    def failure(self) -> object:
        """What is wrong already, if anything."""

    def finish(self) -> None: ...

    def check(self) -> str: ...


class Served(Protocol):
    """One broker or several, as clients find them."""

    @property
    def address(self) -> str:
        """Of Kafka's listener, or of one of them."""

    @property
    def addresses(self) -> dict[str, str]:
        """By scheme."""


class MixedLoad:
    """``with MixedLoad(broker) as load``: all parts at the same time."""

    def __init__(self, broker: Served, seed: int, only: tuple[str, ...] = (), crowd: tuple[int, ...] = ()) -> None:
        """``only`` parts of these names; none: all. ``crowd``: more producers, ``crowd-0`` and so on, of records of these sizes;
        each has up to 6 MB or 100 records under way."""
        self.broker = broker
        crowded = {f"crowd-{number}": size for number, size in enumerate(crowd)}
        make_topics(broker.address, *crowded)
        address, once = broker.address, {"enable.idempotence": True}
        makers: dict[str, Callable[[], Part]] = {
            "idempotent": lambda: Records(address, "idempotent", 100, 100, readers=True, **once),
            # Batches that go into objects of their own, as they are too large for rows of the journal.
            "large": lambda: Records(address, "large", 300_000, 2, **once),
            "leader": lambda: Records(address, "leader", 100, 50, **{"acks": 1, "max.in.flight": 1}),
            "compacted": lambda: Compacted(address),
            "transactions": lambda: Transactions(address),
            "transactor": lambda: Transactor(address, seed),
            "share": lambda: Shared(address),
            "pulsar": lambda: Pulsar(broker.addresses["pulsar"]),
            "shuffle": lambda: Shuffle(broker.addresses["shuffle"], seed),
            **{
                name: partial(Records, address, name, size, min(100, 6_000_000 // size), **once)
                for name, size in crowded.items()
            },
        }
        self.parts = [make() for name, make in makers.items() if name in (only or makers)]

    def __enter__(self) -> "MixedLoad":
        for part in self.parts:
            for thread in part.threads:
                thread.daemon = True  # a test that fails ends all the same
                thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for part in self.parts:
            for thread in part.threads:
                stopping = getattr(thread, "stopping", None)
                if isinstance(stopping, threading.Event):
                    stopping.set()

    def go_on(self, steps: int = 3) -> None:
        """Returns when each part has come further by so many steps."""
        before = {part.name: part.count() for part in self.parts}

        def behind() -> list[str]:
            for part in self.parts:
                assert not part.failure(), (part.name, part.failure())
            return [part.name for part in self.parts if part.count() < before[part.name] + steps]

        deadline = time.monotonic() + 2 * PATIENCE_S
        while left := behind():
            assert time.monotonic() < deadline, f"no progress: {left}"
            time.sleep(0.02)

    def finish(self) -> None:
        for part in self.parts:
            part.finish()

    def check(self) -> dict[str, str]:
        """By part: what was found to be as it should be."""
        found = {}
        for part in self.parts:
            assert not part.failure(), (part.name, part.failure())
            found[part.name] = part.check()
        return found


def make_topics(servers: str, *more: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers, **kafka.CLIENT})
    compact = {"cleanup.policy": "compact", "segment.bytes": "4000", "min.cleanable.dirty.ratio": "0"}
    plain = ("idempotent", "large", "leader", transactions.TOPIC, "transactor", PROBE, *more)
    topics = [NewTopic(name, PARTITIONS, 1) for name in plain]
    for made in admin.create_topics([*topics, NewTopic("compacted", PARTITIONS, 1, config=compact)]).values():
        made.result(30)


class Records:
    """A producer; with ``readers``, a classic group and one of KIP-848 that read and commit."""

    def __init__(
        self, servers: str, topic: str, size: int, queued: int, *, readers: bool = False, **settings: object
    ) -> None:
        self.name = topic
        self._servers = servers
        self._is_idempotent = "enable.idempotence" in settings
        self.load = kafka.Load(servers, topic, size, queued, **settings)
        self.readers: list[kafka.Reader] = []
        if readers:
            self.readers = [
                kafka.Reader(servers, topic, "classic"),
                kafka.Reader(servers, topic, "consumer-protocol", **{"group.protocol": "consumer"}),
            ]
        self.threads: list[threading.Thread] = [self.load, *self.readers]

    def count(self) -> int:
        return min([self.load.count, *(sum(reader.committed.values()) for reader in self.readers)])

    def failure(self) -> object:
        return self.load.failed[:3]

    def finish(self) -> None:
        self.load.stopping.set()
        self.load.join()
        for reader in self.readers:
            least = self.load.sent // PARTITIONS
            wait_until(
                lambda: min(reader.committed.values()) >= least,  # noqa: B023
                f"{reader.group} does not come to the end",
                2 * PATIENCE_S,
            )
            reader.stopping.set()
            reader.join()

    def check(self) -> str:
        load = self.load
        assert load.sent == load.count, f"{load.sent} were sent, {load.count} acknowledged"
        found = kafka.in_the_log(self._servers, self.name)
        for partition, acked in load.acked.items():
            there = [(offset, found[partition][offset]) for offset, _ in acked if offset < len(found[partition])]
            assert acked == there, first_difference(acked, there)
            expected = list(range(partition, load.sent, PARTITIONS))
            # Without idempotence what was not acknowledged is written again, so batches may repeat, but nothing is left out.
            stored = found[partition] if self._is_idempotent else list(dict.fromkeys(found[partition]))
            assert expected == stored, first_difference(expected, stored)
        for reader in self.readers:
            for partition, acked in load.acked.items():
                missed = {offset for offset, _ in acked} ^ set(reader.seen[partition])
                assert not missed, f"{reader.group} and the producer do not agree: {sorted(missed)[:10]}"
            self._check_committed(reader)
        return f"{load.count} records"

    def _check_committed(self, reader: kafka.Reader) -> None:
        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": reader.group, **kafka.CLIENT})
        wanted = [TopicPartition(self.name, partition) for partition in range(PARTITIONS)]
        found = {one.partition: one.offset for one in consumer.committed(wanted, 30)}
        consumer.close()
        assert reader.committed == found, reader.group


class Compacted:
    """A producer whose newest value of each key is there, whatever became of the older ones."""

    name = "compacted"

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self.load = kafka.Load(servers, self.name, 100, 20, 60, **{"enable.idempotence": True})
        self.threads: list[threading.Thread] = [self.load]

    def count(self) -> int:
        return self.load.count

    def failure(self) -> object:
        return self.load.failed[:3]

    def finish(self) -> None:
        """When there has been something to compact, and it was compacted."""
        load = self.load
        wait_until(lambda: load.count > 240, "compacted: no progress")
        load.stopping.set()
        load.join()
        wait_until(lambda: len(read_all(self._servers, self.name)) < load.sent, "nothing was compacted")

    def check(self) -> str:
        load = self.load
        assert load.sent == load.count
        acked = {(partition, offset): number for partition, of in load.acked.items() for offset, number in of}
        newest: dict[int, int] = {}
        offsets = dict.fromkeys(range(PARTITIONS), -1)
        kept = 0
        for partition, offset, value in read_all(self._servers, self.name):
            number = kafka.number(value)
            assert offset > offsets[partition], "out of order"
            offsets[partition] = offset
            assert acked[partition, offset] == number
            assert number > newest.get(number % load.keys, -1)
            newest[number % load.keys] = number
            kept += 1
        assert {number % load.keys: number for number in range(load.sent)} == newest
        return f"{load.count} records, {kept} kept"


class Transactions:
    """A raw producer of transactions version 2 that asks again whatever was not answered: each is committed once."""

    name = "transactions"

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._producer = transactions.Producer(servers, 5 * PATIENCE_S, ErrorCode.request_timed_out)
        self.threads = [threading.Thread(target=self._producer.run, name=self.name)]

    def count(self) -> int:
        return self._producer.committed

    def failure(self) -> object:
        return self._producer.failure

    def finish(self) -> None:
        self._producer.stop.set()
        self.threads[0].join(2 * PATIENCE_S)

    def check(self) -> str:
        count = self._producer.committed
        with Cluster(ClientConfig.from_properties({"bootstrap.servers": self._servers})) as cluster:
            for partition in range(transactions.PARTITIONS):
                expected = [number for number in range(count) if partition <= number % transactions.PARTITIONS]
                found = transactions.seen(cluster, partition)
                assert expected == found, first_difference(expected, found)
            committed = cluster.committed(transactions.GROUP, stable=True)[transactions.TOPIC, 0].offset
        assert count - 1 == committed
        return f"{count} transactions"


class Transactor(threading.Thread):
    """librdkafka's transactions, of which some are aborted: records of three partitions and an offset, whole or not at all."""

    name = "transactor"
    records = 2  # in each partition
    _group = "transactor-group"

    def __init__(self, servers: str, seed: int) -> None:
        super().__init__(name="transactor")
        self.threads: list[threading.Thread] = [self]
        self.stopping = threading.Event()
        self.outcomes: dict[int, str] = {}
        self._random = random.Random(f"{seed} transactor")
        self._servers = servers
        self._error: BaseException | None = None
        member = Consumer({"bootstrap.servers": servers, "group.id": self._group, **kafka.CLIENT})
        self._metadata = member.consumer_group_metadata()
        member.close()

    def run(self) -> None:
        number = 0
        try:
            while not self.stopping.is_set():
                producer = Producer(
                    {
                        "bootstrap.servers": self._servers,
                        "transactional.id": "transactor",
                        "transaction.timeout.ms": 60_000,
                        "linger.ms": 1,
                        # With "rebootstrap", librdkafka 2.16 may wait for ever for a group's coordinator: it asks by way of a
                        # connection that it has given up.
                        "metadata.recovery.strategy": "none",
                        **kafka.CLIENT,
                    }
                )
                try:
                    self._again(lambda: producer.init_transactions(30))  # noqa: B023
                    outcome = ""
                    while not self.stopping.is_set() and outcome != "given up":
                        self.outcomes[number] = "unknown"
                        self.outcomes[number] = outcome = self._transact(producer, number)
                        number += 1
                except KafkaException as error:
                    if not error.args[0].fatal():
                        raise
                    number += 1
        except BaseException as error:
            self._error = error
            raise

    def _transact(self, producer: Producer, number: int) -> str:
        producer.begin_transaction()
        try:
            for partition in range(PARTITIONS):
                for _ in range(self.records):
                    producer.produce("transactor", b"%d" % number, partition=partition)
            offsets = [TopicPartition("idempotent", 0, number)]
            self._again(lambda: producer.send_offsets_to_transaction(offsets, self._metadata, 30))
            if self._random.random() < 0.2:
                # What is on its way when a transaction is aborted may be stored, and librdkafka 2.16 may give its sequence
                # numbers to records of the next transaction, which are then taken for repetitions.
                producer.flush(2 * PATIENCE_S)
                self._again(lambda: producer.abort_transaction(30))
                return "aborted"
            self._again(lambda: producer.commit_transaction(30))
            return "committed"
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            return "given up"

    def _again(self, call: Callable[[], object]) -> None:
        deadline = time.monotonic() + 2 * PATIENCE_S
        while True:
            try:
                call()
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def count(self) -> int:
        return sum(outcome == "committed" for outcome in self.outcomes.copy().values())

    def failure(self) -> object:
        return self._error

    def finish(self) -> None:
        self.stopping.set()
        self.join(2 * PATIENCE_S)

    def check(self) -> str:
        found: dict[int, list[int]] = {}
        for partition, _, value in read_all(self._servers, "transactor", **{"isolation.level": "read_committed"}):
            found.setdefault(int(value), []).append(partition)
        whole = sorted([*range(PARTITIONS)] * self.records)
        for number, outcome in self.outcomes.items():
            there = sorted(found.pop(number, []))
            assert there in ([], whole), f"a part of transaction {number} ({outcome}) is there: {there}"
            assert outcome != "committed" or there, f"transaction {number} was committed, and is not there"
            assert outcome not in ("aborted", "given up") or not there, (
                f"transaction {number} was {outcome}, and is there"
            )
            if there:
                last = number
        assert {} == found
        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": self._group, **kafka.CLIENT})
        (committed,) = consumer.committed([TopicPartition("idempotent", 0)], 30)
        consumer.close()
        assert last == committed.offset
        outcomes = [*self.outcomes.values()]
        return ", ".join(f"{outcomes.count(one)} {one}" for one in ("committed", "aborted", "given up", "unknown"))


class Shared:
    """A share group: what it was answered to have finished does not come again, and nothing is lost."""

    name = "share"

    def __init__(self, servers: str) -> None:
        address = parts(servers)
        topic_id = share.make_topic(address)
        with share.Member(address, topic_id, share.PARTITIONS) as member:
            assert not member.fetch().error  # the group begins here, at the end of an empty log
        self._log = share.Log()
        self._writer = share.Writer(self._log, address, topic_id, "writer")
        self._consumers = [share.Consumer(self._log, address, topic_id, f"consumer-{number}") for number in range(2)]
        self.threads: list[threading.Thread] = [self._writer, *self._consumers]

    def count(self) -> int:
        return min(len(self._log.written), len(self._log.finished))

    def failure(self) -> object:
        return self._log.wrong

    def finish(self) -> None:
        self._writer.stopping.set()
        self._writer.join(PATIENCE_S)
        wait_until(
            lambda: self._log.wrong or self._log.written <= self._log.sent,
            "records of the share group are lost",
            2 * PATIENCE_S,
        )
        for consumer in self._consumers:
            consumer.stopping.set()
        for consumer in self._consumers:
            consumer.join(PATIENCE_S)

    def check(self) -> str:
        return f"{len(self._log.written)} records, {len(self._log.finished)} finished"


class Pulsar:
    """Producers, singly and in batches, and subscriptions whose acknowledgements stay."""

    name = "pulsar"

    class _Writer(pulsar.Writer):
        most = 10

    def __init__(self, address: str) -> None:
        self._address = address
        self._writers = [
            self._Writer("single", address, batched=False),
            self._Writer("batched", address, batched=True),
        ]
        exclusive = pulsar.Subscription("exclusive", pulsar.EXCLUSIVE)
        shared = pulsar.Subscription("shared", pulsar.SHARED)
        self._subscriptions = [exclusive, shared]
        self._workers = [
            pulsar.Worker("exclusive", address, exclusive),
            pulsar.Worker("shared 1", address, shared),
            pulsar.Worker("shared 2", address, shared),
        ]
        self._peers: list[Any] = [*self._writers, *self._workers]
        self.threads: list[threading.Thread] = [*self._peers]

    def count(self) -> int:
        receipts = [len(writer.receipts) for writer in self._writers]
        return min(receipts + [len(one.durable) for one in self._subscriptions])

    def failure(self) -> object:
        return [one for peer in self._peers for one in peer.wrong]

    def finish(self) -> None:
        for writer in self._writers:
            writer.stopping.set()
        for writer in self._writers:
            writer.join(PATIENCE_S)
        for one in self._subscriptions:
            wait_until(
                lambda: self.failure() or self._promised().keys() <= one.acknowledged,  # noqa: B023
                f"{one.name}: messages are not acknowledged",
                2 * PATIENCE_S,
            )
        for worker in self._workers:
            worker.stopping.set()
        for worker in self._workers:
            worker.join(PATIENCE_S)

    def _promised(self) -> dict[int, bytes]:
        return {offset: value for writer in self._writers for offset, value in writer.receipts.items()}

    def check(self) -> str:
        promised = self._promised()
        reader = pulsar.Reader(self._address, max(promised))
        reader.start()
        reader.join(2 * PATIENCE_S)
        reader.stopping.set()
        assert [] == reader.wrong
        assert promised.items() <= reader.found.items(), "a receipt was given for what is not there"
        return f"{len(promised)} messages"


class Shuffle:
    """Blocking partitions: those that are finished can be read."""

    name = "shuffle"

    class _Load(shuffle.Load):
        def _written(self, partition: Any, name: bytes) -> bool:
            time.sleep(0.1)
            return super()._written(partition, name)

    def __init__(self, address: str, seed: int) -> None:
        self._address = parts(address)
        self._load = self._Load(self._address)
        self._random = random.Random(f"{seed} shuffle")
        self.threads: list[threading.Thread] = [self._load]

    def count(self) -> int:
        return len(self._load.finished)

    def failure(self) -> object:
        return self._load.failed

    def finish(self) -> None:
        self._load.stopping = True
        self._load.join(2 * PATIENCE_S)

    def check(self) -> str:
        for partition in self._load.finished:
            shuffle.assert_reads_back(self._address, partition, 60)
        return f"{len(self._load.finished)} result partitions"


def read_all(servers: str, topic: str, **settings: object) -> list[tuple[int, int, bytes]]:
    """Partition, offset and value of all records, in the order of offsets within a partition."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "check", "enable.partition.eof": True, **kafka.CLIENT, **settings}
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: list[tuple[int, int, bytes]] = []
    ended = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None, f"{topic} cannot be read to its end"
        if message.error() is None:
            found.append((message.partition(), message.offset(), message.value()))
        else:
            assert KafkaError._PARTITION_EOF == message.error().code(), message.error()
            ended.add(message.partition())
    consumer.close()
    return found


def first_acknowledged(servers: str, patience_s: float = PATIENCE_S) -> None:
    """Returns when a send that began after the call is acknowledged."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            with KafkaConnection(servers, timeout_s=5) as connection:
                batch = build_batch([(None, b"?", [], int(time.time() * 1000))])
                answer = connection.ask(ApiKey.PRODUCE, 9, **produce_fields(PROBE, batch))
                if not answer.responses[0].partition_responses[0].error_code:
                    return
        except OSError:
            pass
        assert time.monotonic() < deadline, "nothing is acknowledged"
        time.sleep(0.005)


def first_difference(expected: list[Any], actual: list[Any]) -> str:
    """Of lists that are too long to be shown."""
    pairs = zip(expected, actual, strict=False)
    at = next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(expected), len(actual)))
    return f"{len(expected)} and {len(actual)}; at {at}: {expected[at : at + 5]} and {actual[at : at + 5]}"
