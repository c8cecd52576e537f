"""Requests that wait too long for an fsync time out; a single timer serves all, and none runs while nothing waits."""

from broker.kafka.ack_deadlines import AckDeadlines
from broker.runtime.timers import Timer
from tests.clocks import ManualClock


class Produce:
    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.expired = 0

    def expire(self) -> None:
        self.expired += 1


def test_expired_requests_are_told_once_and_answered_never() -> None:
    clock = ManualClock()
    timer = Timer(clock)
    deadlines = AckDeadlines(clock, timer)
    start = clock.now
    soon, late, answered = Produce(start + 1), Produce(start + 5), Produce(start + 1)
    for one in (soon, late, answered):
        deadlines.add(one)
    deadlines.remove(answered)
    assert len(timer) == 1  # for all of them
    told = []
    for _ in range(30):
        clock.now += 0.25
        timer.step(0)
        told.append((soon.expired, late.expired, answered.expired))
    assert told[2] == (0, 0, 0)
    assert told[5] == (1, 0, 0)
    assert told[-1] == (1, 1, 0)
    assert len(deadlines) == len(timer) == 0
    deadlines.add(again := Produce(clock.now))
    clock.now += 1
    timer.step(0)
    assert again.expired == 1


def test_request_answered_during_expiry_is_not_told() -> None:
    clock = ManualClock()
    timer = Timer(clock)
    deadlines = AckDeadlines(clock, timer)
    other = Produce(clock.now + 1)

    class First(Produce):
        def expire(self) -> None:
            super().expire()
            assert deadlines.remove(other)  # another thread answers it meanwhile
            assert not deadlines.remove(other)

    first = First(clock.now + 1)
    deadlines.add(first)
    deadlines.add(other)
    clock.now += 2
    timer.step(0)
    assert (first.expired, other.expired) == (1, 0)


def test_one_that_fails_keeps_no_other_waiting() -> None:
    clock = ManualClock()
    timer = Timer(clock)
    deadlines = AckDeadlines(clock, timer)

    class Failing(Produce):
        def expire(self) -> None:
            super().expire()
            raise RuntimeError("nothing can be sent")

    failing, beside, late = Failing(clock.now + 1), Produce(clock.now + 1), Produce(clock.now + 3)
    for one in (failing, beside, late):
        deadlines.add(one)
    told = []
    for _ in range(2):
        clock.now += 2
        timer.step(0)
        told.append((failing.expired, beside.expired, late.expired))
    assert told == [(1, 1, 0), (1, 1, 1)]
    deadlines.add(again := Produce(clock.now + 1))
    clock.now += 2
    timer.step(0)
    assert again.expired == 1
    assert len(deadlines) == len(timer) == 0
