"""Topics for tests, created and filled by another client."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

_names = itertools.count()


class Topics:
    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._settings: dict[str, Any] = {"bootstrap.servers": bootstrap_servers, "log_level": 0}

    def _admin(self) -> AdminClient:
        """A new one each time: these objects may live as long as all tests, and a client must not outlive a file of them. It has
        to live until its futures are done."""
        return AdminClient(self._settings)

    def make(self, partitions: int = 2, name: str | None = None) -> str:
        """Create a topic with this name, or with a name of its own."""
        name = name or f"made-{next(_names)}"
        # Records here are of 1970, and the broker deletes expired records every five minutes.
        admin = self._admin()
        self._done(admin.create_topics([NewTopic(name, partitions, config={"retention.ms": "-1"})]))
        return name

    def fill(self, partitions: int, each: int, start_ms: int = 1000) -> str:
        """A topic with ``each`` records in each partition: ``<partition>:<offset>``, at 1000, 1001, ... ms."""
        name = self.make(partitions)
        for partition in range(partitions):
            self.put(name, partition, range(each), start_ms)
        return name

    def put(self, name: str, partition: int, numbers: Iterable[int], start_ms: int = 1000) -> None:
        self.send(name, partition, [(f"k{n}".encode(), f"{partition}:{n}".encode(), start_ms + n, []) for n in numbers])

    def send(self, name: str, partition: int, records: Sequence[tuple[Any, Any, int, list[Any]]], **more: Any) -> None:
        """Key, value, timestamp in ms, headers."""
        producer = Producer(self._settings | {"linger.ms": 5} | more)
        for key, value, timestamp_ms, headers in records:
            producer.produce(name, value, key, partition, timestamp=timestamp_ms, headers=headers)
        assert 0 == producer.flush(30)

    def send_and_abort(self, name: str, partition: int, values: Sequence[bytes]) -> None:
        producer = Producer(self._settings | {"transactional.id": f"aborts-{name}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce(name, value, partition=partition)
        producer.flush(30)
        producer.abort_transaction(30)

    def grow(self, name: str, partitions: int) -> None:
        admin = self._admin()
        self._done(admin.create_partitions([NewPartitions(name, partitions)]))

    def delete(self, name: str) -> None:
        admin = self._admin()
        self._done(admin.delete_topics([name]))

    def delete_before(self, name: str, partition: int, offset: int) -> None:
        admin = self._admin()
        self._done(admin.delete_records([TopicPartition(name, partition, offset)]))

    @staticmethod
    def _done(futures: dict[Any, Any]) -> None:
        for future in futures.values():
            future.result(30)
