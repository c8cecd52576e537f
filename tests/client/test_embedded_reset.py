"""A broker goes back to an earlier state, or becomes empty, while its clients stay."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.client import Broker
from broker.client.kafka import ClientConfig, Cluster
from broker.errors import BrokerError, ConfigError


def contents(broker: Broker) -> dict[str, list[tuple[int, bytes | None]]]:
    return {
        info.name: [(record.offset, record.value) for record in broker.records(info.name)]
        for info in broker.server.kafka.logs.topics()
    }


def commit(broker: Broker, group: str, offset: int) -> None:
    with Cluster(ClientConfig.from_properties({"bootstrap.servers": broker.bootstrap_servers})) as cluster:
        cluster.commit(group, {("orders", 0): offset})


def test_snapshot_brings_everything_back() -> None:
    listeners = ["kafka://127.0.0.1:0", "kafka+sasl://127.0.0.1:0"]
    with Broker(listeners=listeners) as broker:
        broker.create_topic("orders", retention_ms=7)
        broker.produce("orders", ["0", "1"])
        broker.add_user("alice", "secret")
        commit(broker, "billing", 1)
        before = contents(broker), broker.committed("billing"), broker.server.listeners
        kept = broker.snapshot()
        assert before == (contents(broker), broker.committed("billing"), broker.server.listeners)
        for _ in range(2):
            broker.produce("orders", ["2"])
            broker.create_topic("other")
            commit(broker, "billing", 2)
            broker.reset(kept)
            assert before == (contents(broker), broker.committed("billing"), broker.server.listeners)
            info = broker.server.kafka.logs.topic("orders")
            assert info is not None and {"retention.ms": "7"} == info.configs
            assert ["alice"] == list(broker.server.security.credentials.users())


def test_reset_broker_is_empty_and_the_same() -> None:
    with Broker() as broker:
        before = broker.server.listeners, broker.server.kafka.cluster_id, broker.data_dir
        for _ in range(3):
            broker.produce("orders", ["0"])
            commit(broker, "billing", 1)
            broker.reset()
            assert ({}, {}) == (contents(broker), broker.committed("billing"))
            assert before == (broker.server.listeners, broker.server.kafka.cluster_id, broker.data_dir)
        broker.close()
        broker.start()
        broker.produce("orders", ["0"])
        broker.reset()
        assert {} == contents(broker)


def test_clients_go_on_after_a_reset() -> None:
    with Broker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
        settings: dict[str, Any] = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "billing"}
        consumer = Consumer({**settings, "auto.offset.reset": "earliest", "topic.metadata.refresh.interval.ms": 100})
        consumer.subscribe(["orders"])
        broker.create_topic("orders")
        kept = broker.snapshot()
        for value in (b"before", b"after"):
            producer.produce("orders", value)
            assert 0 == producer.flush(60)
            message = None
            while message is None or message.error():
                message = consumer.poll(60)
                assert message is not None
            assert value == message.value()
            broker.reset(kept)
        consumer.close()


def test_no_producer_id_comes_twice() -> None:
    with Broker() as broker:
        kept = broker.snapshot()
        ids = []
        for number in range(6):
            ids.append(broker.server.kafka.catalogue.allocate_producer_ids(1))
            broker.reset(kept if number % 2 else None)
        assert len(ids) == len(set(ids))


def test_stopped_broker_stays_stopped() -> None:
    with Broker() as broker:
        broker.produce("orders", ["0"])
        broker.stop()
        kept = broker.snapshot()
        broker.reset()
        assert "not running" in repr(broker)
        broker.start()
        assert {} == contents(broker)
        broker.stop()
        broker.reset(kept)
        assert "not running" in repr(broker)
        broker.start()
        assert {"orders": [(0, b"0")]} == contents(broker)
    with pytest.raises(BrokerError, match="not running"):
        broker.snapshot()


def test_directory_of_the_caller_is_not_emptied(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.produce("orders", ["0"])
        kept = broker.snapshot()
        for state in (None, kept):
            with pytest.raises(ConfigError, match="Leave out data_dir"):
                broker.reset(state)
        assert {"orders": [(0, b"0")]} == contents(broker)


def test_topics_without_records_are_still_there() -> None:
    with Broker() as broker:
        broker.create_topic("orders", 2, cleanup_policy="compact")
        broker.produce("orders", [("k", "0"), ("k", "1"), {"key": "k", "value": "2", "partition": 0}])
        commit(broker, "billing", 1)
        before = broker.server.kafka.logs.topics()
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
        producer.produce("orders", b"3", b"k", partition=0)
        assert 0 == producer.flush(60)
        broker.reset_topics()
        assert (before, {"orders": []}) == (broker.server.kafka.logs.topics(), contents(broker))
        assert {} == broker.committed("billing")
        assert 0 == broker.lag("billing", "orders")
        producer.produce("orders", b"4", b"k", partition=0)
        assert 0 == producer.flush(60)
        assert [(4, b"4")] == [(record.offset, record.value) for record in broker.wait_for("orders", 1)]
        broker.restart()
        assert ({"orders": [(4, b"4")]}, {}) == (contents(broker), broker.committed("billing"))


def test_coroutines_go_back_as_well() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await broker.aio.produce("orders", ["0"])
            kept = await broker.aio.snapshot()
            await broker.aio.reset_topics()
            assert [] == await broker.aio.records("orders")
            await broker.aio.reset(kept)
            assert 1 == len(await broker.aio.records("orders"))

    asyncio.run(main())


class States(RuleBasedStateMachine):
    """The broker has what a model has, whatever was kept, put back and deleted in between."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker(listeners=["kafka://127.0.0.1:0"]).start()
        self.model: dict[str, list[tuple[int, bytes | None]]] = {}
        self.ends: dict[str, int] = {}
        self.kept: list[tuple[Any, dict[str, list[tuple[int, bytes | None]]], dict[str, int]]] = []

    def teardown(self) -> None:
        self.broker.close()

    @rule(topic=st.sampled_from(["a", "b"]), values=st.lists(st.binary(max_size=2), min_size=1, max_size=3))
    def produce(self, topic: str, values: list[bytes]) -> None:
        offsets = self.broker.produce(topic, values)
        end = self.ends.get(topic, 0)
        assert list(range(end, end + len(values))) == offsets
        self.model[topic] = [*self.model.get(topic, []), *zip(offsets, values, strict=True)]
        self.ends[topic] = end + len(values)

    @rule()
    def reset_topics(self) -> None:
        self.broker.reset_topics()
        self.model = {topic: [] for topic in self.model}

    @rule()
    def restart(self) -> None:
        self.broker.restart()

    @precondition(lambda self: len(self.kept) < 3)
    @rule()
    def keep(self) -> None:
        self.kept.append((self.broker.snapshot(), dict(self.model), dict(self.ends)))

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def go_back(self, data: st.DataObject) -> None:
        kept, model, ends = data.draw(st.sampled_from(self.kept))
        self.broker.reset(kept)
        self.model, self.ends = dict(model), dict(ends)

    @rule()
    def empty(self) -> None:
        self.broker.reset()
        self.model, self.ends = {}, {}

    @invariant()
    def same(self) -> None:
        assert self.model == contents(self.broker)


TestStates = States.TestCase
TestStates.settings = settings(max_examples=12, stateful_step_count=12, deadline=None)
