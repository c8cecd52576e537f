"""TTL, backlog quotas, bounds and rates, on a broker with the real client."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pulsar
import pytest

from broker.client.embedded import Broker
from broker.pulsar.assembly import PulsarPart
from broker.pulsar.context import PulsarContext
from broker.pulsar.dispatch.many_consumers import ManyConsumers
from broker.pulsar.policies.policies import BacklogQuota, DeleteWhen, Inactivity, Rate, Retention, WhenFull
from broker.pulsar.policies.upkeep import bytes_from, offset_with
from broker.pulsar.subscriptions.subscription import Subscription
from broker.pulsar.topic_names import parse_topic
from broker.pulsar.topics.topic import Topic
from tests.waiting import wait_for

NAMESPACE = "public/default"


class Running:
    """A broker, its client, and what the tests look at inside."""

    def __init__(self, broker: Broker, client: Any) -> None:
        self.broker = broker
        self.client = client
        part = broker.server.part("pulsar")
        self.context: PulsarContext = cast(PulsarPart, part).context

    def topic(self, name: str) -> Topic:
        topic = self.context.topics.get(parse_topic(name))
        assert topic is not None
        return topic

    def subscription(self, topic: str, name: str) -> Subscription:
        found = self.context.subscriptions.find(self.topic(topic), name)
        assert found is not None
        return found

    def send(self, topic: str, count: int, size: int = 10) -> None:
        producer = self.client.create_producer(topic, batching_enabled=False)
        for number in range(count):
            producer.send(b"%d" % number + bytes(size))
        producer.close()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with Broker(str(tmp_path), listeners=["pulsar://127.0.0.1:0"], log_segment_bytes=1024 * 1024) as broker:
        client = pulsar.Client(f"pulsar://{broker.address('pulsar')}", operation_timeout_seconds=10)
        try:
            yield Running(broker, client)
        finally:
            client.close()


def test_messages_older_than_ttl_are_acknowledged(running: Running) -> None:
    consumer = running.client.subscribe("ttl", "s")
    running.send("ttl", 3)
    running.context.policies.set_namespace(NAMESPACE, message_ttl_s=1000)
    running.context.upkeep.run_now("expire_messages")
    assert 0 == running.subscription("ttl", "s").cursor.acknowledged_before
    running.context.policies.set_topic(running.topic("ttl").log.topic_id, message_ttl_s=1)
    time.sleep(1.1)  # the age of a message is measured by the wall clock
    running.context.upkeep.run_now("expire_messages")
    subscription = running.subscription("ttl", "s")
    assert (3, 3) == (subscription.cursor.acknowledged_before, subscription.expired)
    consumer.close()


def test_backlog_over_quota_keeps_producers_out_until_consumed(running: Running) -> None:
    consumer = running.client.subscribe("full", "s")
    connected = running.client.create_producer("full", batching_enabled=False)
    running.send("full", 5, 1000)
    topic = running.topic("full")
    for policy in (WhenFull.HOLD, WhenFull.EXCEPTION):
        quota = BacklogQuota(limit_bytes=2000, policy=policy)
        running.context.policies.set_topic(topic.log.topic_id, backlog_quota=quota)
        with pytest.raises(pulsar.PulsarException):
            running.client.create_producer("full")
    running.context.upkeep.run_now("enforce_backlog_quota")
    assert 0 == len(topic.producers)
    for _ in range(5):
        consumer.acknowledge(consumer.receive(60_000))
    wait_for(lambda: running.subscription("full", "s").cursor.acknowledged_before == 5)
    running.client.create_producer("full").close()
    assert connected is not None


def test_an_eviction_leaves_the_latest_messages(running: Running) -> None:
    slow = running.client.subscribe("evict", "slow")
    running.client.subscribe("evict", "other")
    running.send("evict", 20, 1000)
    topic = running.topic("evict")
    quota = BacklogQuota(limit_bytes=10_000, policy=WhenFull.EVICT)
    running.context.policies.set_topic(topic.log.topic_id, backlog_quota=quota)
    running.context.upkeep.run_now("enforce_backlog_quota")
    cursors = [running.subscription("evict", name).cursor for name in ("slow", "other")]
    wait_for(lambda: all(cursor.acknowledged_before > 0 for cursor in cursors))
    for cursor in cursors:
        assert 9 <= cursor.acknowledged_before <= 14
        assert bytes_from(topic.log, cursor.acknowledged_before) <= 10_000
    running.client.create_producer("evict").close()
    slow.close()


def test_a_quota_of_time_evicts_what_is_older(running: Running) -> None:
    running.client.subscribe("old", "s")
    running.send("old", 3)
    time.sleep(1.1)  # the age of a message is measured by the wall clock
    topic = running.topic("old")
    quota = BacklogQuota(limit_s=1, policy=WhenFull.EVICT)
    running.context.policies.set_topic(topic.log.topic_id, backlog_quota=quota)
    running.context.upkeep.run_now("enforce_backlog_quota")
    wait_for(lambda: running.subscription("old", "s").cursor.acknowledged_before == 3)


def test_unused_subscription_expires(running: Running) -> None:
    consumer = running.client.subscribe("unused", "used")
    running.client.subscribe("unused", "left").close()
    topic = running.topic("unused")
    running.context.policies.set_topic(topic.log.topic_id, subscription_expiration_minutes=1)
    running.context.upkeep.run_now("expire_subscriptions")
    assert {"used", "left"} == set(topic.subscriptions)
    for key in running.context.upkeep._unused_since:
        running.context.upkeep._unused_since[key] -= 60
    running.context.upkeep.run_now("expire_subscriptions")
    assert {"used"} == set(topic.subscriptions)
    consumer.close()


def look_for_inactive_topics(running: Running, later_s: float = 0) -> None:
    """As if so much time had passed since the last look."""
    seen = running.context.upkeep.inactive._seen
    for key, value in seen.items():
        seen[key] = value._replace(since=value.since - later_s)
    running.context.upkeep.run_now("delete_inactive_topics")


def test_topics_that_nobody_uses_are_deleted(running: Running) -> None:
    context, client = running.context, running.client
    context.topics.create_partitioned(parse_topic("parts"), 2)
    context.logs.create_topic("of-kafka", 1)
    producer = client.create_producer("used")
    client.subscribe("subscribed", "s").close()
    for topic in ("written", "left"):
        running.send(topic, 1)
    client.create_producer("parts").close()
    context.policies.set_namespace(NAMESPACE, inactivity=Inactivity(True, 60))
    look_for_inactive_topics(running)
    look_for_inactive_topics(running, 30)
    running.send("written", 1)
    assert {"parts", "used", "subscribed", "written", "left", "of-kafka"} == {one.name for one in context.logs.topics()}
    look_for_inactive_topics(running, 31)
    assert {"used", "subscribed", "written", "of-kafka"} == {one.name for one in context.logs.topics()}
    producer.close()
    wait_for(lambda: not running.topic("used").in_use)
    look_for_inactive_topics(running)
    look_for_inactive_topics(running, 61)
    assert {"subscribed", "of-kafka"} == {one.name for one in context.logs.topics()}
    assert {} == context.upkeep.inactive._seen


def test_recently_written_topic_is_kept(running: Running) -> None:
    running.send("t", 1)
    (info,) = running.context.logs.topics()
    producer = running.client.create_producer("t")
    assert not running.context.topics.delete_unused(info, [0])  # the producer connects again
    producer.send(b"x")
    assert running.context.topics.delete_unused(info, [2])
    producer.send(b"y")  # this creates another topic of that name
    assert [1] == [log.log_end_offset for log in running.context.logs.partitions.values()]


def test_topics_whose_subscriptions_have_caught_up_are_deleted(running: Running) -> None:
    context, client = running.context, running.client
    consumers = [client.subscribe(topic, "s") for topic in ("done", "behind", "unloaded")]
    for topic in ("done", "behind", "unloaded"):
        running.send(topic, 2)
    context.policies.set_namespace(NAMESPACE, inactivity=Inactivity(True, 60, DeleteWhen.CAUGHT_UP))
    for consumer, count in zip(consumers, (2, 1, 2), strict=True):
        for _ in range(count):
            consumer.acknowledge(consumer.receive(60_000))
    wait_for(lambda: running.subscription("done", "s").cursor.acknowledged_before == 2)
    wait_for(lambda: running.subscription("unloaded", "s").cursor.acknowledged_before == 2)
    look_for_inactive_topics(running)
    look_for_inactive_topics(running, 61)
    assert 3 == len(context.logs.topics())  # topics with consumers are kept
    for consumer in consumers:
        consumer.close()
    wait_for(lambda: not any(topic.in_use for topic in context.topics.loaded()))
    context.topics.unload(running.topic("unloaded"))
    look_for_inactive_topics(running)
    look_for_inactive_topics(running, 61)
    assert {"behind"} == {one.name for one in context.logs.topics()}


def test_bounds_of_producers_consumers_and_subscriptions_are_policies(running: Running) -> None:
    client = running.client
    running.context.policies.set_namespace(NAMESPACE, max_producers=1, max_subscriptions=1, max_consumers=2)
    producer = client.create_producer("bounds")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer("bounds")
    shared = pulsar.ConsumerType.Shared
    consumers = [client.subscribe("bounds", "s", consumer_type=shared) for _ in range(2)]
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe("bounds", "s", consumer_type=shared)
    with pytest.raises(pulsar.PulsarException):
        client.subscribe("bounds", "other")
    running.context.policies.set_topic(running.topic("bounds").log.topic_id, max_subscriptions=2, max_consumers=0)
    client.subscribe("bounds", "other")
    assert producer is not None and consumers


def test_topic_dispatch_rate_holds_until_removed(running: Running) -> None:
    running.context.policies.set_namespace(NAMESPACE, dispatch_rate=Rate(messages=2, period_s=36_000))
    consumer = running.client.subscribe("rate", "s")
    running.send("rate", 6)
    subscription = running.subscription("rate", "s")
    wait_for(lambda: subscription.cursor.read_offset == 2)
    assert [b"0", b"1"] == [consumer.receive(60_000).data()[:1] for _ in range(2)]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(200)
    running.context.policies.set_namespace(NAMESPACE, dispatch_rate=None)
    assert b"2" == consumer.receive(60_000).data()[:1]


def test_broker_dispatch_rate_is_shared_by_all_topics(tmp_path: Path) -> None:
    with Broker(str(tmp_path), listeners=["pulsar://127.0.0.1:0"], pulsar_dispatch_rate_bytes=1) as broker:
        client = pulsar.Client(f"pulsar://{broker.address('pulsar')}")
        running = Running(broker, client)
        first, second = (client.subscribe(topic, "s") for topic in ("a", "b"))
        running.send("a", 1, 100)
        assert b"0" == first.receive(60_000).data()[:1]
        # This debt lasts for more than a minute. A read that has waited since before still gets its entry.
        running.send("b", 2)
        assert b"0" == second.receive(60_000).data()[:1]
        with pytest.raises(pulsar.Timeout):
            second.receive(300)
        client.close()


def test_unacknowledged_messages_are_exempt_from_retention(running: Running) -> None:
    consumer = running.client.subscribe("kept", "s")
    running.send("kept", 4)
    topic = running.topic("kept")
    running.context.policies.set_topic(topic.log.topic_id, retention=Retention(0, 0))
    time.sleep(0.01)  # records of this millisecond are not older than 0 ms
    list(running.context.logs.housekeeper.apply_retention())
    assert 0 == topic.log.log_start_offset
    for _ in range(4):
        consumer.acknowledge(consumer.receive(60_000))
    wait_for(lambda: running.subscription("kept", "s").cursor.acknowledged_before == 4)
    list(running.context.logs.housekeeper.apply_retention())
    assert 4 == topic.log.log_start_offset


def test_idle_topic_is_kept_for_its_subscriptions(tmp_path: Path) -> None:
    for number in range(2):
        with Broker(str(tmp_path), listeners=["pulsar://127.0.0.1:0"], log_retention_ms=1) as broker:
            client = pulsar.Client(f"pulsar://{broker.address('pulsar')}", operation_timeout_seconds=10)
            running = Running(broker, client)
            try:
                if number == 0:
                    client.subscribe("away", "s").close()
                    running.send("away", 3)
                else:
                    for _ in range(3):
                        list(running.context.logs.housekeeper.apply_retention())
                    log = running.context.logs.get("away", 0)
                    assert log is not None and (0, 3) == (log.log_start_offset, log.log_end_offset)
            finally:
                client.close()


def test_estimates_of_bytes_and_offsets_are_inverse(running: Running) -> None:
    running.send("bytes", 50, 1000)
    log = running.topic("bytes").log
    size = sum(segment.size for segment in log.view.segments)
    assert (size, 0) == (bytes_from(log, 0), bytes_from(log, 50))
    for offset in range(51):
        assert abs(offset_with(log, bytes_from(log, offset)) - offset) <= 1
    assert 0 == offset_with(log, size + 1)


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared])
def test_unacknowledged_limits_reach_connected_consumers(running: Running, kind: Any) -> None:
    consumer = running.client.subscribe("limited", "s", kind, receiver_queue_size=1000)
    policies, topic = running.context.policies, running.topic("limited")

    def set_to(**limits: int) -> None:
        policies.set_topic(topic.log.topic_id, **limits)

    def unacked() -> int:
        dispatcher = running.subscription("limited", "s").dispatcher
        assert isinstance(dispatcher, ManyConsumers)
        return dispatcher.in_flight.unacked

    set_to(max_unacked_per_consumer=100)
    running.send("limited", 500)
    wait_for(lambda: unacked() == 100)
    set_to(max_unacked_per_consumer=200)
    wait_for(lambda: unacked() == 200)
    set_to(max_unacked_per_consumer=0, max_unacked_per_subscription=300)
    wait_for(lambda: unacked() == 300)
    set_to(max_unacked_per_subscription=50)
    for _ in range(260):
        consumer.acknowledge(consumer.receive(60_000))
    wait_for(lambda: unacked() == 40)  # 40 are still too many for the consumer to get more
    set_to(max_unacked_per_subscription=0)
    wait_for(lambda: unacked() == 240)
