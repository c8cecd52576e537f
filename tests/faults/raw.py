"""Raw Kafka connections for misbehaving clients, and checks that they leave nothing behind in the broker."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from broker.client import Broker
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages import backup, own_apis
from protocol.kafka.records.records import build_batch
from protocol.kafka.schema import control
from tests.kafka_connection import KafkaConnection, fetch_fields, produce_fields
from tests.waiting import wait_for

_numbers = itertools.count()

API_VERSIONS = control.encode_request(ApiKey.API_VERSIONS, 0, 77, "good", {})


def with_settings(**values: Any) -> Any:
    """A decorator of a test whose broker has these settings."""
    return pytest.mark.parametrize("settings", [values], indirect=True, ids=["-".join(values)])


class Raw(KafkaConnection):
    """A connection to one of the broker's listeners; ``listener``: its name."""

    def __init__(self, broker: Broker, *, listener: str = "kafka", receive_buffer: int = 0) -> None:
        host, port = broker.server.sockets.address(listener)
        super().__init__((host, int(port)), receive_buffer=receive_buffer)

    def asks_for_versions(self, version: int) -> bool:
        """Whether they are told."""
        software = {"client_software_name": "raw", "client_software_version": "1"}
        return not self.ask(ApiKey.API_VERSIONS, version, **software).error_code


def produce(topic: str, value: bytes, *, partition: int = 0, acks: int = 1, correlation_id: int = 1) -> bytes:
    """A whole Produce request of one record."""
    batch = build_batch([(b"key", value, [], 1_700_000_000_000)])
    fields = produce_fields(topic, batch, partition, acks=acks)
    return control.encode_request(ApiKey.PRODUCE, 7, correlation_id, "raw", fields)


def fetch(topic: str, *, offset: int = 0, max_wait_ms: int = 0, max_bytes: int = 1 << 20, min_bytes: int = 1) -> bytes:
    """A whole Fetch request of one partition."""
    fields = fetch_fields(topic, offset=offset, max_bytes=max_bytes, max_wait=max_wait_ms, min_bytes=min_bytes)
    return control.encode_request(ApiKey.FETCH, 11, 2, "raw", fields)


class Faults:
    """A broker under attack."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.topic = f"healthy-{next(_numbers)}"
        broker.server.kafka.logs.create_topic(self.topic, 1, {})
        self._served = 0
        self._raws: list[Raw] = []

    def connect(self, **options: Any) -> Raw:
        self._raws.append(Raw(self.broker, **options))
        return self._raws[-1]

    def close(self) -> None:
        """Every client leaves."""
        for raw in self._raws:
            raw.close()

    def serves(self) -> bool:
        """Another client: handshake, produce in both ways of acknowledging, fetch, an administrative call."""
        with self.connect() as client:
            assert client.asks_for_versions(3)
            value = b"value %d" % self._served
            self._served += 1
            for acks in (1, -1):
                client.send(produce(self.topic, value, acks=acks))
                client.frame()
            end = self.broker.server.kafka.logs.partitions[self.topic, 0].log_end_offset
            client.send(fetch(self.topic, offset=end - 1))
            assert value in client.frame()
            groups = client.ask(ApiKey.LIST_GROUPS, 4)
            assert groups.error_code == 0
        return True

    @property
    def connections(self) -> int:
        return sum(len(processor.connections) for processor in self.broker.server.sockets.processors)

    def assert_nothing_is_left(self) -> None:
        """All clients have left, and everything that they held is freed."""
        sockets = self.broker.server.sockets
        wait_for(lambda: self.connections == 0, "connections are left")
        wait_for(lambda: sockets.quotas.total == 0, "connections are counted that are gone")
        wait_for(lambda: sockets.memory.in_use == 0, "request memory is left")
        assert self.broker.server.crash is None
        assert self.serves()
        wait_for(lambda: self.connections == 0)

    def all_requests(self) -> Iterator[tuple[ApiKey, int, bytes]]:
        """A plain request for every served API and version."""
        for api in self.broker.server.part("kafka").apis.values():
            for version in range(api.min_version, api.max_version + 1):
                if api.key is ApiKey.END_TXNS:
                    yield api.key, version, own_apis.request(9, "raw", [], False)
                elif api.key is ApiKey.BACKUP:
                    yield api.key, version, backup.request(9, "raw", backup.Action.END, "none")
                else:
                    yield api.key, version, control.encode_request(api.key, version, 9, "raw", {})
