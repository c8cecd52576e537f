"""Exclusive: one consumer, and no second one."""

import pytest

from broker.pulsar.dispatch.dispatcher import Consumer, DispatchSettings, Now, Read
from broker.pulsar.dispatch.single_active import Exclusive
from broker.pulsar.refusals import ConsumerBusy
from broker.pulsar.subscriptions.cursor import Cursor

NOW = Now(0.0, 0)


def test_second_consumer_is_refused_and_first_continues() -> None:
    exclusive = Exclusive(Cursor(), DispatchSettings())
    first = Consumer(1, "first")
    assert [] == exclusive.add(first, NOW)
    with pytest.raises(ConsumerBusy):
        exclusive.add(Consumer(2, "second"), NOW)
    assert [first] == list(exclusive.consumers)
    assert [Read(0, 11, 5 * 1024 * 1024, 1)] == exclusive.flow(first, 10, NOW)


def test_another_consumer_may_join_after_first_left() -> None:
    exclusive = Exclusive(Cursor(), DispatchSettings())
    first, second = Consumer(1, "first"), Consumer(2, "second")
    exclusive.add(first, NOW)
    exclusive.remove(first, NOW)
    exclusive.add(second, NOW)
    assert second is exclusive.active
