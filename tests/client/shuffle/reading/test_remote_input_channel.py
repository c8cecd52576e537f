"""Order and numbers of a channel's received items."""

import pytest

from broker.client.shuffle.errors import BufferReorderingError
from broker.client.shuffle.reading.remote_input_channel import ReceivedQueue


def test_priority_events_come_first_in_their_own_order() -> None:
    queue: ReceivedQueue[str] = ReceivedQueue()
    queue.add("a")
    queue.add_priority("p")
    queue.add("b")
    queue.add_priority("q")
    assert queue.has_priority
    assert ["p", "q", "a"] == [queue.pop() for _ in range(3)]
    assert not queue.has_priority
    assert len(queue) == 1


def test_sequence_numbers_have_no_gap() -> None:
    queue: ReceivedQueue[str] = ReceivedQueue()
    queue.check(0)
    queue.check(1, 3)
    queue.check(4)
    with pytest.raises(BufferReorderingError, match="number 5, but received 7") as raised:
        queue.check(7)
    assert (5, 7) == (raised.value.expected, raised.value.actual)
