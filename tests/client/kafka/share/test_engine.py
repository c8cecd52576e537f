"""A lock in the order of arrival."""

import threading

import pytest

from broker.client.kafka.share.engine import Turns


def test_turns_are_taken_in_order_of_arrival() -> None:
    turns, order, inside = Turns(), [], []

    def work(number: int) -> None:
        with turns:
            inside.append(number)
            order.append(number)
            assert len(inside) == 1
            inside.remove(number)

    with turns:
        threads = []
        for number in range(8):
            thread = threading.Thread(target=work, args=(number,))
            thread.start()
            threads.append(thread)
            while turns._next_ticket < number + 2:
                threading.Event().wait(0.001)
    for thread in threads:
        thread.join(30)
    assert order == list(range(8))


def test_loop_of_turns_lets_others_in() -> None:
    turns, done = Turns(), threading.Event()

    def other() -> None:
        with turns:
            done.set()

    with turns:
        thread = threading.Thread(target=other)
        thread.start()
        while turns._next_ticket < 2:
            threading.Event().wait(0.001)
    with turns:  # after the other thread, which came first
        assert done.is_set()
    thread.join(30)


def test_interrupted_waiter_does_not_block_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns()
    with turns, monkeypatch.context() as patch:

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(turns._condition, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt), turns:
            raise AssertionError("not its turn")
    with turns:
        pass
