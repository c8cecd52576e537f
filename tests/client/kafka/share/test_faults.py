"""Connections that break anywhere: every record is delivered, and not again once its acknowledgement was answered."""

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from broker.client import Broker, ShareConsumer
from broker.client.kafka import ClientConfig, Cluster
from broker.client.kafka.admin.configs import GROUP, alter_configs
from broker.client.kafka.errors import KafkaClientError
from tests.client.kafka.logs import append
from tests.client.kafka.proxy import Cut, CuttingProxy

LIMIT_S = 60.0
COUNT = 60


@pytest.fixture(scope="module")
def proxied() -> Iterator[tuple[Broker, CuttingProxy, str]]:
    """The address that nothing cuts."""
    with CuttingProxy() as proxy:
        listeners = (f"kafka://127.0.0.1:0?advertised={proxy.address}", "kafka://127.0.0.1:0?name=direct")
        with Broker(listeners=listeners, group_share_min_record_lock_duration_ms=1000) as broker:
            addresses = broker.server.listeners
            proxy.forward_to(addresses["kafka"])
            yield broker, proxy, addresses["direct"]


@pytest.mark.parametrize("seed", range(12))
def test_acknowledged_records_do_not_return_after_any_fault(
    proxied: tuple[Broker, CuttingProxy, str], seed: int
) -> None:
    broker, proxy, direct = proxied
    name, chance = f"jobs-{seed}", random.Random(seed)
    broker.server.kafka.logs.create_topic(name, 1, {})
    with Cluster(ClientConfig.from_properties({"bootstrap.servers": direct})) as cluster:
        changes = {"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": "2000"}
        assert alter_configs(cluster.routing, {(GROUP, name): changes})[GROUP, name].code == 0
    append(broker, name, [b"%d" % number for number in range(COUNT)])
    counted: Counter[int] = Counter()
    unknown: set[int] = set()

    def note(_topic: str, _partition: int, offsets: list[int], error: KafkaClientError | None) -> None:
        if error is None:
            counted.update(offsets)
        else:
            unknown.update(offsets)

    proxy.cut(
        Cut(chance.randrange(1500), None) if chance.random() < 0.5 else Cut(None, chance.randrange(3000))
        for _ in range(20)
    )
    settings = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 20, "request.timeout.ms": 10_000}
    with ShareConsumer(proxy.address, name, [name], settings=settings, on_acknowledged=note) as jobs:
        for _ in range(int(LIMIT_S)):
            records = jobs.poll(1.0, max_records=5)
            for record in records:
                assert record.offset not in counted, "its acknowledgement was answered"
                assert record.value == b"%d" % record.offset
            if not records and counted.keys() | unknown == set(range(COUNT)):
                break
        else:
            raise AssertionError(f"{COUNT - len(counted)} were not acknowledged")
    assert set(counted.values()) == {1}
    assert len(proxy.cuts) <= 18  # connections were cut
