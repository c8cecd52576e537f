"""Passing on: to few subscriptions at once, to many on the waker's thread, within a bound."""

from collections.abc import Sequence

import attrs

from broker.pulsar.entry import Entry
from broker.pulsar.nonpersistent.topic import NonPersistentTopic
from broker.pulsar.subscriptions.waker import Waker
from broker.pulsar.topic_names import parse_topic


@attrs.define(eq=False)
class Taking:
    name: str
    has_consumers: bool = True
    consumer_count: int = 1
    closed: bool = False
    got: list[int] = attrs.Factory(list)

    def pass_on(self, entries: Sequence[Entry]) -> None:
        self.got += [entry.offset for entry in entries]

    def close(self) -> None:
        self.closed = True


def made(subscriptions: int) -> tuple[NonPersistentTopic, Waker, list[Taking]]:
    waker = Waker()
    topic = NonPersistentTopic(
        waker.line(), "pulsar.public.default.t", name=parse_topic("non-persistent://public/default/t")
    )
    taking = [Taking(str(number)) for number in range(subscriptions)]
    for one in taking:
        topic.add(one)
    return topic, waker, taking


def entries(topic: NonPersistentTopic, count: int, size: int = 1) -> list[Entry]:
    first = topic.take_ids(count)
    return [Entry(first + number, 1, size, b"") for number in range(count)]


def test_few_subscriptions_are_served_by_receiving_thread() -> None:
    topic, waker, taking = made(16)
    topic.publish(entries(topic, 3))
    assert all([0, 1, 2] == one.got for one in taking)
    assert not waker.step(0)
    assert (3, 3) == (topic.messages_in, topic.bytes_in)


def test_many_subscriptions_are_served_in_ordered_turns() -> None:
    topic, waker, taking = made(40)
    topic.publish(entries(topic, 1))
    topic.publish(entries(topic, 2))
    assert not any(one.got for one in taking)
    assert waker.step(0)
    assert 16 == sum(bool(one.got) for one in taking)
    topic.remove(taking[-1])
    topic.publish(entries(topic, 1))  # it waits behind the others, because there are still many subscriptions
    while waker.step(0):
        pass
    assert all([0, 1, 2, 3] == one.got for one in taking[:-1])
    assert 0 == topic._waiting_bytes


def test_waiting_messages_keep_order_when_subscriptions_leave() -> None:
    topic, waker, taking = made(17)
    topic.publish(entries(topic, 1))
    topic.remove(taking[0])
    topic.publish(entries(topic, 1))  # it waits although few are left, because an earlier one is under way
    assert not taking[1].got
    while waker.step(0):
        pass
    assert [0, 1] == taking[1].got
    topic.publish(entries(topic, 1))
    assert [0, 1, 2] == taking[1].got


def test_what_waits_for_the_waker_is_bounded() -> None:
    topic, waker, taking = made(17)
    for _ in range(20):
        topic.publish(entries(topic, 1, size=1 << 20))
    assert 5 == topic.dropped  # each also counts its overhead
    while waker.step(0):
        pass
    assert all(list(range(15)) == one.got for one in taking)
    topic.publish(entries(topic, 1))
    while waker.step(0):
        pass
    assert 20 == taking[0].got[-1]


def test_small_messages_waiting_for_waker_are_bounded() -> None:
    topic, waker, taking = made(17)
    for _ in range(100):
        topic.publish(entries(topic, 1000))
    assert topic.dropped > 50_000
    while waker.step(0):
        pass
    assert all(100_000 - topic.dropped == len(one.got) for one in taking)
    assert 0 == topic._waiting_bytes


def test_a_subscription_that_got_a_consumer_meanwhile_stays() -> None:
    topic, _, taking = made(2)
    topic.drop(taking[0])
    assert not taking[0].closed
    taking[0].has_consumers = False
    topic.drop(taking[0])
    assert taking[0].closed
    assert ["1"] == list(topic.subscriptions)
