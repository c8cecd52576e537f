"""Which consumer gets what is not kept."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.pulsar.dispatch.dispatcher import Consumer, DispatchSettings
from broker.pulsar.dispatch.single_active import OneOfMany, OnlyOne
from broker.pulsar.entry import Entry
from broker.pulsar.nonpersistent.subscription import ByHash, Chooser, InTurn, OneServed
from broker.pulsar.refusals import ConsumerAssignError


def entry(key: int = 0, messages: int = 1) -> Entry:
    return Entry(0, messages, 1, b"x", key)


def choosers() -> list[Chooser]:
    settings = DispatchSettings()
    return [
        OneServed(OneOfMany("t", -1, 0.0)),
        OneServed(OneOfMany("t", 3, 0.0)),
        InTurn(),
        ByHash(settings, sticky=False),
        ByHash(DispatchSettings(consistent_hashing=False), sticky=False),
    ]


def test_exclusive_consumer_gets_messages_within_permits() -> None:
    chooser = OneServed(OnlyOne())
    assert chooser.take(entry()) is None
    consumer = Consumer(1, "a", permits=2)
    chooser.join(consumer)
    assert [consumer, consumer, None] == [chooser.take(entry()) for _ in range(3)]
    chooser.leave(consumer)
    assert chooser.active is None


def test_next_consumer_is_served_when_active_leaves() -> None:
    chooser = OneServed(OneOfMany("t", 0, 0.0))
    a, b = Consumer(1, "a", permits=9), Consumer(2, "b", permits=9)
    chooser.join(b)
    assert b is chooser.take(entry())
    chooser.join(a)
    assert a is chooser.take(entry())
    chooser.leave(a)
    assert b is chooser.take(entry()) is chooser.active


def test_shared_consumers_take_turns_and_batch_may_overdraw() -> None:
    chooser = InTurn()
    a, b = Consumer(1, "a", permits=2), Consumer(2, "b", permits=3)
    chooser.join(a)
    chooser.join(b)
    assert [a, b, a, b, b, None] == [chooser.take(entry()) for _ in range(6)]
    a.permits = 1
    chooser.offer(a)
    assert a is chooser.take(entry(messages=5))
    assert -4 == a.permits
    a.permits += 4
    chooser.offer(a)
    assert chooser.take(entry()) is None  # the permits are 0 again, so no more is sent


def test_key_is_delivered_only_to_its_owner() -> None:
    chooser = ByHash(DispatchSettings(), sticky=True)
    a, b = Consumer(1, "a", permits=1, ranges=((0, 10),)), Consumer(2, "b", permits=9, ranges=((11, 20),))
    chooser.join(a)
    chooser.join(b)
    with pytest.raises(ConsumerAssignError):
        chooser.join(Consumer(3, "c", ranges=((20, 30),)))
    assert [a, None, b, None] == [chooser.take(entry(key)) for key in (5, 5, 15, 25)]


@given(
    st.integers(0, 4),
    st.lists(st.tuples(st.sampled_from(("join", "leave", "flow", "full", "entry")), st.integers(0, 5)), max_size=60),
)
def test_full_and_departed_consumers_get_nothing(kind: int, events: list[tuple[Any, int]]) -> None:
    chooser = choosers()[kind]
    there: list[Consumer] = []
    for event, number in events:
        if event == "join":
            there.append(Consumer(len(there), f"c{number}", priority=number % 2, permits=0))
            chooser.join(there[-1])
        elif event == "entry":
            could = [one for one in there if one.available]
            got = chooser.take(entry(number * 7919, messages=1 + number % 2))
            assert got is None or got in could
            if isinstance(chooser, InTurn):
                assert (got is None) == (not could)
        elif there:
            consumer = there[number % len(there)]
            if event == "leave":
                there.remove(consumer)
                chooser.leave(consumer)
            else:
                consumer.permits += number * (event == "flow")
                consumer.writable = event == "flow"
                chooser.offer(consumer)
    assert chooser.active is None or chooser.active in there
