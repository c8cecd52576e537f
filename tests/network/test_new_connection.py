"""The bounded queue of new connections between the acceptor and a processor."""

from typing import Any

from broker.network.new_connection import _NEW_CONNECTIONS_MAX, NewConnection, NewConnectionQueue
from broker.network.service import Peer

ANYTHING: Any = None


def new(port: int = 1) -> NewConnection:
    return NewConnection(ANYTHING, Peer("127.0.0.1", port, "echo", ("127.0.0.1", 9)), ANYTHING, 100)


def test_connections_are_taken_in_order_of_offers() -> None:
    queue = NewConnectionQueue()
    for port in (1, 2, 3):
        assert queue.offer(new(port))
    assert [1, 2, 3] == [queue.waiting.popleft().peer.port for _ in range(3)]
    assert not queue.turned_away()


def test_full_queue_refuses_and_remembers_until_asked() -> None:
    queue = NewConnectionQueue()
    for _ in range(_NEW_CONNECTIONS_MAX):
        assert queue.offer(new())
    assert not queue.offer(new())
    assert len(queue.waiting) == _NEW_CONNECTIONS_MAX
    assert queue.turned_away()
    assert not queue.turned_away()
    queue.waiting.popleft()
    assert queue.offer(new())


def test_closed_queue_refuses_and_keeps_its_connections() -> None:
    queue = NewConnectionQueue()
    assert queue.offer(new())
    queue.close()
    assert not queue.offer(new())
    assert len(queue.waiting) == 1
