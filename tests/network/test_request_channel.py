"""The bounded queue: order, bound, and the call when there is room."""

import threading
from typing import Any

import pytest

from broker.network.request_channel import Leave, RequestChannel
from broker.network.service import Request
from broker.network.work import ADMIN, BULK, INSPECTION, LOGIN, VALIDATION


def item(number: int) -> Any:
    request = Request()
    request.received_at = float(number)
    request.lane = None
    return None, request


def never() -> None:
    raise AssertionError("called")


def numbers(channel: RequestChannel, count: int) -> list[int]:
    taken = [channel.take(0) for _ in range(count)]
    return [int(each[1].received_at) for each in taken if isinstance(each, tuple)]


def test_requests_come_out_in_order() -> None:
    channel = RequestChannel(10)
    assert all(channel.offer(item(n), never) for n in range(5))
    assert len(channel) == 5
    assert numbers(channel, 6) == [0, 1, 2, 3, 4]
    assert len(channel) == 0


def test_full_channel_refuses_and_calls_waiters_once() -> None:
    channel = RequestChannel(2)
    assert channel.offer(item(0), never)
    assert channel.offer(item(1), never)
    calls: list[str] = []

    def one() -> None:
        calls.append("one")

    def two() -> None:
        calls.append("two")

    assert not channel.offer(item(2), one)
    assert not channel.offer(item(3), one)
    assert not channel.offer(item(4), two)
    assert len(channel) == 2
    assert numbers(channel, 1) == [0]
    assert calls == ["one", "two"]
    assert numbers(channel, 1) == [1]
    assert calls == ["one", "two"]


def test_wakeup_ends_one_wait_without_a_request() -> None:
    channel = RequestChannel(1)
    channel.wakeup()
    assert len(channel) == 0
    assert channel.offer(item(0), never)
    assert channel.take(None) is None
    assert numbers(channel, 1) == [0]


def test_take_returns_after_its_timeout() -> None:
    assert RequestChannel(1).take(0) is None
    assert RequestChannel(1).take(0.001) is None


def test_concurrent_producers_lose_nothing_and_respect_the_bound() -> None:
    channel = RequestChannel(4)
    producers, each = 4, 400
    taken: list[float] = []
    over: list[int] = []

    def produce(base: int) -> None:
        bell = threading.Event()
        for number in range(base, base + each):
            while not channel.offer(item(number), bell.set):
                assert bell.wait(10), "nobody called although there was room"
                bell.clear()
            if len(channel) > 4:
                over.append(len(channel))

    def consume() -> None:
        while True:
            got = channel.take(None)
            if got is None:
                return
            taken.append(got[1].received_at)

    takers = [threading.Thread(target=consume) for _ in range(3)]
    makers = [threading.Thread(target=produce, args=(n * each,)) for n in range(producers)]
    for thread in [*takers, *makers]:
        thread.start()
    for thread in makers:
        thread.join()
    for _ in takers:
        channel.wakeup()
    for thread in takers:
        thread.join()
    assert sorted(taken) == [float(n) for n in range(producers * each)]
    assert over == []


def laned(number: int, lane: str | None = "slow") -> Any:
    request = Request()
    request.received_at = float(number)
    request.lane = lane
    return None, request


def test_lane_limits_its_requests_with_handlers_in_order() -> None:
    channel = RequestChannel(10, lane_width=2)
    slow = [laned(n) for n in range(4)]
    assert all(channel.offer(each, never) for each in slow)
    assert channel.offer(item(10), never)
    assert len(channel) == 5
    assert numbers(channel, 5) == [0, 1, 10]
    assert len(channel) == 2
    channel.done((*slow[1], "slow"))
    assert numbers(channel, 2) == [2]
    channel.done((*slow[0], "slow"))
    channel.done((*slow[2], "slow"))
    assert numbers(channel, 2) == [3]
    channel.done((*slow[3], "slow"))
    assert len(channel) == 0
    assert channel.offer(laned(4), never)
    assert channel.offer(laned(5), never)
    assert channel.offer(laned(6), never)
    assert numbers(channel, 3) == [4, 5]


def test_wider_lanes_take_at_once_narrower_lanes_later() -> None:
    channel = RequestChannel(30, lane_width=1)
    slow = [laned(n) for n in range(6)]
    assert all(channel.offer(each, never) for each in slow)
    assert numbers(channel, 6) == [0]
    channel.resize_lanes(3)
    assert numbers(channel, 6) == [1, 2]
    channel.resize_lanes(1)
    channel.done((*slow[0], "slow"))
    channel.done((*slow[1], "slow"))
    assert numbers(channel, 6) == []
    channel.done((*slow[2], "slow"))
    assert numbers(channel, 6) == [3]
    channel.done((*slow[3], "slow"))
    assert numbers(channel, 6) == [4]


def test_excess_handlers_are_dismissed_after_earlier_requests() -> None:
    channel = RequestChannel(10)
    assert channel.offer(item(0), never)
    channel.dismiss(2)
    assert channel.offer(item(1), never)
    taken = [channel.take(0) for _ in range(5)]
    assert [type(each) for each in taken] == [tuple, Leave, Leave, tuple, type(None)]
    assert len(channel) == 0


def test_lanes_do_not_wait_for_each_other() -> None:
    channel = RequestChannel(10, lane_width=1)
    assert all(channel.offer(laned(n, lane), never) for n, lane in enumerate(["a", "a", "b", "b"]))
    assert numbers(channel, 4) == [0, 2]


def test_full_lanes_leave_handler_to_others() -> None:
    """Five lanes of two would occupy ten handlers."""
    channel = RequestChannel(100, lane_width=2, lanes_extra=2)
    lanes = [BULK, ADMIN, LOGIN, INSPECTION, VALIDATION]
    first = [laned(10 * n + k, lane) for n, lane in enumerate(lanes) for k in range(4)]
    assert all(channel.offer(each, never) for each in first)
    # Two of the first two lanes, which came first, and one of the others.
    assert sorted(numbers(channel, 20)) == [0, 1, 10, 11, 20, 30, 40]
    # Whose turn it is: a lane that had none of the places that are beyond one of each.
    channel.done((*first[0], BULK))
    assert numbers(channel, 20) == [21]
    channel.done((*first[12], INSPECTION))  # one at a time, whatever is free
    assert numbers(channel, 20) == [31]
    channel.done((*first[16], VALIDATION))
    channel.done((*laned(41, VALIDATION), VALIDATION))
    assert numbers(channel, 20) == [41, 42]


def test_two_lanes_leave_most_of_the_channel() -> None:
    channel = RequestChannel(20, lane_width=1)
    taken = 0
    for lane in ("a", "b"):
        while channel.offer(laned(taken, lane), lambda: None):
            taken += 1
    assert taken == 8  # of each lane one on its way to a handler, and three behind it
    assert all(channel.offer(item(n), never) for n in range(8))


@pytest.mark.parametrize(("before", "after"), [("a", None), (None, "a"), ("b", "a")])
def test_request_returning_in_another_lane_counts_once_each(before: str | None, after: str | None) -> None:
    channel = RequestChannel(10, lane_width=1)
    request = laned(0)
    request[1].lane = before
    assert channel.offer(request, never)
    first = channel.take(0)
    assert first is not None
    request[1].lane = after  # it was parked meanwhile, and goes to another handler
    assert channel.offer(request, never)
    channel.done(first)
    second = channel.take(0)
    assert second is not None
    channel.done(second)
    for lane in ("a", "b"):  # each has room for one, and for no more
        assert channel.offer(laned(1, lane), never)
        assert channel.offer(laned(2, lane), never)
        assert numbers(channel, 2) == [1]
        assert len(channel) == (1 if lane == "a" else 2)
