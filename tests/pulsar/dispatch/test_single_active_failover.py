"""Which consumer of a Failover subscription is served, with values of Pulsar's own hash, and when."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.pulsar.dispatch.dispatcher import Activate, Consumer, DispatchSettings, Now, Read, WakeAt
from broker.pulsar.dispatch.single_active import Failover, OneOfMany
from broker.pulsar.subscriptions.cursor import Cursor
from protocol.pulsar.murmur3 import murmur3_32

TOPIC = "persistent://public/default/my-topic"


def consumers(*names: str, priority: int = 0) -> list[Consumer]:
    return [Consumer(name, name, priority=priority) for name in names]


def chosen(topic: str, partition: int, among: list[Consumer]) -> str:
    choice = OneOfMany(topic, partition, 1.0)
    for consumer in among:
        choice.join(consumer)
    return choice.active().name


def test_partitions_are_spread_over_consumers_by_name() -> None:
    assert ["a", "b", "c", "a"] == [chosen(TOPIC, partition, consumers("c", "a", "b")) for partition in range(4)]


@pytest.mark.parametrize("partition", [-1, 0, 1, 2])
def test_a_better_priority_comes_first(partition: int) -> None:
    among = consumers("a", "b", priority=2) + consumers("z", priority=1)
    assert "z" == chosen(TOPIC, partition, among)


NAMES = st.lists(st.text("abcdefg", min_size=1, max_size=3), min_size=1, max_size=6, unique=True)


@given(st.text(max_size=20), NAMES)
def test_without_partitions_the_ring_of_hashes_decides(topic: str, names: list[str]) -> None:
    # The ring as Pulsar makes it: a sorted map of points, in which the later of two equal points stays.
    ring = {}
    for name in sorted(names):
        for number in range(100):
            ring[murmur3_32(f"{name}{number}".encode()) & 0x7FFFFFFF] = name
    point = murmur3_32(topic.encode()) & 0x7FFFFFFF
    expected = ring[min((at for at in ring if at >= point), default=min(ring))]
    assert expected == chosen(topic, -1, consumers(*names))


def test_later_consumer_wins_equal_hash_points() -> None:
    # "a1" + "1" and "a" + "11" are the same point.
    for topic in range(1000):
        choice = OneOfMany(f"t{topic}", -1, 0)
        if choice._distance("a") == choice._distance("a1"):
            assert "a1" == chosen(f"t{topic}", -1, consumers("a", "a1"))
            assert "a1" == chosen(f"t{topic}", -1, consumers("a1", "a"))
            return
    raise AssertionError("no topic has such a point")


def test_topics_are_spread_over_consumers() -> None:
    among = consumers("a", "b", "c", "d")
    counts = Counter(chosen(f"persistent://public/default/t{number}", -1, among) for number in range(400))
    assert 4 == len(counts) and min(counts.values()) > 40


MEMBERS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 2), st.booleans()), max_size=30)


@given(MEMBERS, st.integers(-1, 3))
def test_active_consumer_depends_only_on_present_consumers(events: list[tuple[str, int, bool]], partition: int) -> None:
    choice = OneOfMany(TOPIC, partition, 0)
    there: list[Consumer] = []
    for name, priority, leaves in events:
        if leaves and there:
            choice.leave(there.pop(priority % len(there)))
        else:
            there.append(Consumer(name, name, priority=priority))
            choice.join(there[-1])
        if there:
            expected = sorted((one.priority, one.name) for one in there)
            best = [name for priority, name in expected if priority == expected[0][0]]
            if partition >= 0:
                assert best[partition % len(best)] == choice.active().name
            else:
                assert chosen(TOPIC, -1, consumers(*set(best))) == choice.active().name
    for consumer in there:
        choice.leave(consumer)
    assert not choice._places and not choice._place_of


def at(seconds: float) -> Now:
    return Now(seconds, int(seconds * 1000))


def test_active_consumer_is_served_after_delay_and_announced() -> None:
    failover = Failover(Cursor(), TOPIC, 0, DispatchSettings())
    a, b = consumers("a", "b")
    assert [WakeAt(1.0)] == failover.add(b, at(0))
    assert [] == failover.flow(b, 10, at(0.1))
    assert [] == failover.add(a, at(0.5))  # a better choice, which is served when the first would have been
    assert [WakeAt(1.0)] == failover.tick(at(0.9))
    effects = failover.tick(at(1.0))
    assert {a: True, b: False} == {e.consumer: e.active for e in effects if isinstance(e, Activate)}
    read = failover.flow(a, 1, at(1.1))
    assert isinstance(read[0], Read)


def test_joining_standby_consumer_is_told_immediately() -> None:
    failover = Failover(Cursor(), TOPIC, 0, DispatchSettings())
    a, b = consumers("a", "b")
    failover.add(a, at(0))
    failover.tick(at(1))
    assert [Activate(b, active=False)] == failover.add(b, at(2))


def test_successive_joins_do_not_postpone_service_forever() -> None:
    failover = Failover(Cursor(), TOPIC, 0, DispatchSettings())
    for number in range(20, 0, -1):
        failover.add(Consumer(number, f"{number:02}"), at(0.9 - number / 30))
    effects = failover.tick(at(1.3))
    assert "01" == next(e.consumer.name for e in effects if isinstance(e, Activate) and e.active)


def test_permits_of_inactive_consumer_count_once_active() -> None:
    failover = Failover(Cursor(), TOPIC, 0, DispatchSettings())
    a, b = consumers("a", "b")
    failover.add(a, at(0))
    failover.tick(at(1))
    failover.add(b, at(2))
    assert [] == failover.flow(b, 7, at(2))
    assert [WakeAt(4.0)] == failover.remove(a, at(3))
    effects = failover.tick(at(4))
    assert [Activate(b, active=True)] == effects[:1]
    assert isinstance(effects[1], Read) and 8 == effects[1].max_entries
