"""Subscriptions without cursors, with clients whose sockets are lists."""

import pytest

from broker.pulsar.dispatch.dispatcher import DispatchSettings, KeySharedPolicy, SubType
from broker.pulsar.entry import Entry
from broker.pulsar.nonpersistent.subscription import NonPersistentSubscription, PassingConsumer
from broker.pulsar.nonpersistent.topic import NonPersistentTopic
from broker.pulsar.refusals import ConsumerBusy, NotAllowed, ServiceNotReady
from broker.pulsar.subscriptions.subscriptions import Busy, Join
from broker.pulsar.subscriptions.waker import Waker
from broker.pulsar.topic_names import parse_topic
from protocol.pulsar.pulsar_pb2 import BaseCommand
from tests.pulsar.subscriptions.stage import Client, Stage


class Scene:
    def __init__(self, stage: Stage, durable: bool = True) -> None:
        self.stage = stage
        self.waker = Waker()
        self.topic = NonPersistentTopic(
            self.waker.line(), "pulsar.public.default.t", name=parse_topic("non-persistent://public/default/t")
        )
        self.subscription = NonPersistentSubscription(self.topic, "s", durable, 0)
        self.topic.add(self.subscription)

    def join(
        self, kind: int = SubType.Exclusive, name: str = "c", durable: bool = True
    ) -> tuple[Client, PassingConsumer]:
        client = Client(self.stage)
        policy = KeySharedPolicy() if kind == SubType.Key_Shared else None
        join = Join(subscription="s", kind=kind, consumer_id=0, consumer_name=name, durable=durable, policy=policy)
        connected = self.subscription.join(client.state, join, DispatchSettings(), None, 0)
        client.state.add_consumer(0, connected)
        return client, connected

    def publish(self, count: int = 1, size: int = 10) -> None:
        first = self.topic.take_ids(count)
        self.topic.publish([Entry(first + number, 1, size, bytes(size), 1) for number in range(count)])

    def run(self) -> None:
        while self.waker.step(0):
            pass


@pytest.fixture
def scene(stage: Stage) -> Scene:
    return Scene(stage)


def ids(client: Client) -> list[int]:
    return [message.message_id.entryId for message in client.messages()]


def test_without_permits_messages_are_dropped_and_counted(scene: Scene) -> None:
    scene.publish()
    client, connected = scene.join()
    scene.publish()
    scene.subscription.flow(connected, 2)
    scene.publish(3)
    assert [2, 3] == ids(client)
    assert (2, 3) == (scene.subscription.messages_out, scene.subscription.dropped)


def test_markers_of_the_server_are_left_out(scene: Scene) -> None:
    client, connected = scene.join()
    scene.subscription.flow(connected, 9)
    scene.topic.publish([Entry(0, 1, 1, b"x", marker=True)])
    assert [] == ids(client)


def test_reading_consumer_gets_all_messages_of_a_burst(scene: Scene) -> None:
    client, connected = scene.join()
    scene.subscription.flow(connected, 100_000)
    for _ in range(50):
        scene.publish(100, size=1000)
    scene.run()
    assert list(range(5000)) == ids(client)
    assert 0 == scene.subscription.dropped


def test_stalled_consumer_takes_bounded_memory(scene: Scene) -> None:
    client, connected = scene.join()
    client.link.reads = False
    scene.subscription.flow(connected, 100_000)
    for _ in range(100):
        scene.publish(10, size=10_000)
    scene.run()
    assert client.link.bytes_queued < 2_300_000
    assert scene.subscription.dropped > 700
    assert connected.paused
    got = len(ids(client))
    client.drained()
    scene.run()
    scene.publish()
    assert 1 == len(ids(client))
    assert scene.subscription.messages_out == got + 1


def test_stalled_connection_memory_is_independent_of_consumers(scene: Scene) -> None:
    client = Client(scene.stage)
    client.link.reads = False
    joined = []
    for number in range(100):
        join = Join(subscription="s", kind=SubType.Shared, consumer_id=number, consumer_name=f"c{number}")
        joined.append(scene.subscription.join(client.state, join, DispatchSettings(), None, 0))
        scene.subscription.flow(joined[-1], 1000)
    for _ in range(100):
        scene.publish(size=100_000)
    scene.run()
    assert client.link.bytes_queued < 2_300_000
    assert 100 == scene.subscription.messages_out + scene.subscription.dropped
    client.link.reads = True
    for connected in joined:
        connected.writable()
    assert 100_000 - scene.subscription.messages_out == sum(each.consumer.permits for each in joined)
    scene.publish(100)
    assert 100 <= scene.subscription.messages_out < 200


def test_join_rules_match_persistent_topics(scene: Scene) -> None:
    _, first = scene.join()
    with pytest.raises(Busy) as busy:
        scene.join()
    assert busy.value.holder is first
    with pytest.raises(ConsumerBusy):
        scene.join(SubType.Shared)
    with pytest.raises(NotAllowed):
        scene.join(durable=False)
    scene.subscription.leave(first)
    scene.join(SubType.Key_Shared)
    with pytest.raises(NotAllowed):
        NonPersistentSubscription(scene.topic, "x", True, 0).join(
            Client(scene.stage).state,
            Join(subscription="x", kind=9, consumer_id=0, consumer_name="c"),
            DispatchSettings(),
            None,
            0,
        )
    scene.subscription.close()
    with pytest.raises(ServiceNotReady):
        scene.join(SubType.Key_Shared)


def test_failover_tells_who_is_served(scene: Scene) -> None:
    def told(client: Client) -> list[bool]:
        return [body.is_active for kind, body in client.commands() if kind == BaseCommand.Type.ACTIVE_CONSUMER_CHANGE]

    first, connected = scene.join(SubType.Failover, "a")
    assert [True] == told(first)
    second, other = scene.join(SubType.Failover, "b")
    found = told(first), told(second)
    assert found in (([], [False]), ([False], [True]))
    active = connected if found[0] == [] else other
    scene.subscription.leave(active)
    assert [True] == told(second if active is connected else first)


def test_failover_notifies_only_consumers_whose_role_changes(scene: Scene) -> None:
    joined = []
    for priority in range(20, 0, -1):
        client = Client(scene.stage)
        join = Join(
            subscription="s", kind=SubType.Failover, consumer_id=0, consumer_name=f"c{priority}", priority=priority
        )
        joined.append((client, scene.subscription.join(client.state, join, DispatchSettings(), None, 0)))
    assert [2] * 19 + [1] == [len(client.commands()) for client, _ in joined]  # active, then no longer active
    for _, connected in reversed(joined[10:]):
        scene.subscription.leave(connected)
    assert [0] * 9 + [1] + [1] * 9 + [0] == [len(client.commands()) for client, _ in joined]


def test_nondurable_subscription_ends_with_its_last_consumer(stage: Stage) -> None:
    scene = Scene(stage, durable=False)
    _, connected = scene.join(durable=False)
    scene.subscription.leave(connected)
    scene.subscription.leave(connected)  # the second call has no effect
    assert not scene.topic.subscriptions
    assert scene.subscription.closed


def test_closing_has_consumers_subscribe_again(scene: Scene) -> None:
    client, _ = scene.join()
    scene.subscription.close()
    assert [BaseCommand.Type.CLOSE_CONSUMER] == [kind for kind, _ in client.commands()]
    assert not scene.subscription.has_consumers
    assert not client.state.consumers
