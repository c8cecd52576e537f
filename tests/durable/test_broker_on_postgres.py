"""A whole broker whose catalogue is in PostgreSQL, with real clients, while the server is killed."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from broker.config import load
from broker.errors import ConfigError
from broker.metadata.postgres import PostgresCatalogue
from broker.metadata.postgres_connection import Address
from broker.server import BrokerServer
from tests.compat.clients.librdkafka import settings
from tests.durable.postgres import PostgresServer


class Brokers:
    """Starts a broker on the database again and again."""

    def __init__(self, directory: Path, url: str) -> None:
        self._directory = directory
        self._url = url
        self.now: BrokerServer | None = None

    def start(self) -> str:
        """Returns its address."""
        config = load(data_dir=str(self._directory), listeners=["kafka://127.0.0.1:0"])
        self.now = BrokerServer(config, open_catalogue=lambda _: PostgresCatalogue(Address.parse(self._url)))
        self.now.start()
        (address,) = self.now.listeners.values()
        return address

    def stop(self) -> None:
        if self.now is not None:
            self.now.stop()
            self.now = None


@pytest.fixture
def brokers(tmp_path: Path, postgres: PostgresServer) -> Iterator[Brokers]:
    brokers = Brokers(tmp_path, postgres.url)
    yield brokers
    brokers.stop()


def make_topic(address: str) -> None:
    admin = AdminClient(settings(address))
    for done in admin.create_topics([NewTopic("t", 2, config={"retention.ms": "-1"})]).values():
        done.result(30)


def commit(address: str, offset: int) -> None:
    """Outside of a transaction."""
    consumer = Consumer(settings(address, group_id="g"))
    consumer.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
    consumer.close()


def commit_in_transaction(address: str, offset: int) -> None:
    """A transaction with a record and an offset."""
    consumer = Consumer(settings(address, group_id="h"))
    producer = Producer(settings(address, transactional_id="x"))
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("t", str(offset), partition=0)
    producer.send_offsets_to_transaction([TopicPartition("t", 0, offset)], consumer.consumer_group_metadata(), 60)
    producer.commit_transaction(60)
    consumer.close()


def committed(address: str, group: str) -> int:
    consumer = Consumer(settings(address, group_id=group))
    try:
        return int(consumer.committed([TopicPartition("t", 0)], timeout=30)[0].offset)
    finally:
        consumer.close()


def test_broker_finds_again_what_it_has_put_into_postgres(brokers: Brokers, tmp_path: Path) -> None:
    address = brokers.start()
    make_topic(address)
    commit(address, 5)
    commit_in_transaction(address, 7)
    brokers.stop()
    address = brokers.start()
    assert (5, 7) == (committed(address, "g"), committed(address, "h"))
    topic = AdminClient(settings(address)).list_topics("t", 30).topics["t"]
    assert [0, 1] == sorted(topic.partitions)
    commit_in_transaction(address, 8)  # by the same transactional id, with a newer epoch
    assert 8 == committed(address, "h")
    assert not [path.name for path in tmp_path.iterdir() if "sqlite" in path.name]


def test_clients_notice_nothing_when_the_server_is_killed_and_comes_back(
    brokers: Brokers, postgres: PostgresServer
) -> None:
    address = brokers.start()
    make_topic(address)
    with ThreadPoolExecutor(1) as pool:
        for number in range(1, 5):
            postgres.kill()
            waiting = pool.submit(commit_in_transaction if number % 2 else commit, address, number)
            postgres.start()
            waiting.result()
            assert number == committed(address, "h" if number % 2 else "g")
    brokers.stop()
    address = brokers.start()
    assert (4, 3) == (committed(address, "g"), committed(address, "h"))


def test_broker_does_not_start_without_its_database(brokers: Brokers, postgres: PostgresServer) -> None:
    postgres.kill()
    with pytest.raises(ConfigError, match=r"cannot be used: .*refused"):
        brokers.start()
