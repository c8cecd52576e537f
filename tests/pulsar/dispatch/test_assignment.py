"""Whose turn it is."""

from broker.pulsar.dispatch.assignment import Turns
from broker.pulsar.dispatch.dispatcher import Consumer


def consumer(name: str, permits: int, priority: int = 0) -> Consumer:
    return Consumer(name, name, priority=priority, permits=permits)


def served(turns: Turns) -> list[str]:
    """Who is served, one message a turn, until nobody has permits."""
    names = []
    while (turn := turns.first()) is not None:
        names.append(turn.name)
        turn.permits -= 1
        turns.end_turn(turn)
    return names


def test_the_order_is_the_documented_one() -> None:
    turns = Turns()
    for each in (consumer("C1", 2), consumer("C2", 1), consumer("C3", 1), consumer("C4", 2, 1), consumer("C5", 1, 1)):
        turns.offer(each)
    assert "C1 C2 C3 C1 C4 C5 C4".split() == served(turns)


def test_blocked_unwritable_and_departed_consumers_get_no_turn() -> None:
    turns = Turns()
    blocked, unwritable, left, served_last = (consumer(name, 1) for name in "abcd")
    for each in (blocked, unwritable, left, served_last):
        turns.offer(each)
    blocked.blocked = True
    unwritable.writable = False
    turns.remove(left)
    assert ["d"] == served(turns)
    assert turns.first() is None


def test_repeated_offer_keeps_place_of_queued_consumer() -> None:
    turns = Turns()
    first, second = consumer("a", 1), consumer("b", 1)
    for each in (first, second, first):
        turns.offer(each)
    assert ["a", "b"] == served(turns)


def test_room_is_at_least_one_entry_per_consumer() -> None:
    turns = Turns()
    assert 0 == turns.room(100, 1.0)
    turns.offer(consumer("a", 3))
    turns.offer(consumer("b", 1, 1))
    assert 4 == turns.room(100, 1.0)
    assert 2 == turns.room(100, 1000.0)
    assert 3 == turns.room(3, 1.0)
    turns.offer(consumer("c", 1 << 32))
    assert 100 == turns.room(100, 1.0)


def test_ten_thousand_priorities_leave_nothing_behind() -> None:
    turns = Turns()
    for number in range(10_000):
        each = consumer(str(number), 1, number)
        turns.offer(each)
        turns.offer(consumer("other", 1, number))
        turns.remove(each)
        others = turns.first()
        assert others is not None
        turns.remove(others)
    assert turns.first() is None
    assert turns._levels == {} and not turns._priorities


def test_one_alone_is_served_like_several() -> None:
    turns = Turns()
    alone = consumer("a", 2)
    turns.offer(alone)
    turns.offer(alone)
    assert 2 == turns.room(100, 1.0)
    turns.remove(consumer("b", 1))
    assert ["a", "a"] == served(turns)
    assert turns._levels is None  # there was never a second consumer
    alone.permits = 1
    turns.offer(alone)
    turns.offer(consumer("b", 1))
    assert ["a", "b"] == served(turns)
