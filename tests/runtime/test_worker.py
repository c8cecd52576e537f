"""Threads with an inbox."""

import pytest

from broker.runtime.threads import Event, SystemThreads
from broker.runtime.worker import Inbox, Worker, in_order


def filled(*items: int) -> Inbox[int]:
    inbox: Inbox[int] = Inbox()
    for item in items:
        inbox.put(item)
    return inbox


def test_items_are_taken_in_order() -> None:
    inbox = filled(1, 2)
    assert [1, 2, None] == [inbox.take(0), inbox.take(0), inbox.take(0)]


def test_an_empty_inbox_is_waited_for() -> None:
    assert filled().take(0.001) is None
    assert [] == filled().take_all(0.001)


def test_all_items_are_taken_at_once() -> None:
    inbox = filled(*range(5))
    assert [0, 1, 2] == inbox.take_all(None, 3)
    assert [3, 4] == inbox.take_all(None)
    assert 0 == len(inbox)


def test_wake_ups_are_no_items() -> None:
    inbox = filled(1)
    inbox.wakeup()
    inbox.put(2)
    assert 3 == len(inbox)
    assert [1, 2] == inbox.take_all(None)


@pytest.mark.parametrize("waiting", [(), (1, 2)])
def test_a_wake_up_ends_the_wait(waiting: tuple[int, ...]) -> None:
    inbox = filled()
    inbox.wakeup()
    for item in waiting:
        inbox.put(item)
    assert list(waiting) == inbox.take_all(None)


def test_a_worker_handles_one_item_a_step() -> None:
    done: list[int] = []
    worker = Worker(done.append)
    worker.submit(1)
    worker.submit(2)
    assert worker.step(None)
    assert [1] == done
    assert worker.step(0)
    assert not worker.step(0)
    assert [1, 2] == done


def test_errors_are_told_and_stop_nothing() -> None:
    done: list[float] = []
    errors: list[Exception] = []
    worker = Worker(lambda item: done.append(1 / item), errors.append)
    for item in (0, 1):
        worker.submit(item)
    assert worker.step(0) and worker.step(0)
    assert ([1.0], [ZeroDivisionError]) == (done, [type(error) for error in errors])


def test_an_unhandled_error_leaves_the_step() -> None:
    worker: Worker[int] = Worker(lambda item: 1 // item)
    worker.submit(0)
    with pytest.raises(ZeroDivisionError):
        worker.step(0)


def test_a_thread_of_its_own_works_and_ends() -> None:
    handled = Event()
    worker: Worker[str] = Worker(lambda item: handled.set())
    thread = SystemThreads().spawn("worker", worker, lambda error: None)
    worker.submit("item")
    assert handled.wait(10)
    assert thread.stop(10)


def test_results_come_in_the_order_of_items() -> None:
    first, second = Event(), Event()

    def call(item: int) -> int:
        if item == 0:
            assert second.wait(30)
            first.set()
        elif item == 1:
            second.set()
            assert first.wait(30)
        return item * 10

    assert [0, 10, 20] == list(in_order(call, range(3), 2))
    assert [] == list(in_order(call, [], 2))


def test_error_of_a_call_is_raised_in_its_turn() -> None:
    def call(item: int) -> int:
        if item == 1:
            raise ValueError(item)
        return item

    results = in_order(call, range(3), 2)
    assert 0 == next(results)
    with pytest.raises(ValueError, match="1"):
        next(results)
