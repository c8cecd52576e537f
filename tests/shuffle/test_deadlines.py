"""Deadlines of partitions: one of each kind, and none for a released partition."""

from broker.runtime.timers import Timer
from broker.shuffle.deadlines import Deadline, Deadlines
from broker.shuffle.partition.budget import Budget
from broker.shuffle.partition.result_partition import ResultPartition
from tests.clocks import ManualClock
from tests.shuffle.harness import BLOCKING, new_id


class Setup:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timer = Timer(self.clock)
        self.partition = ResultPartition(new_id(), BLOCKING, 1, Budget(1 << 30, -1, -1))
        self.known = {self.partition}
        self.deadlines = Deadlines(self.clock, self.timer, self.known.__contains__)
        self.told: list[str] = []

    def set(self, kind: Deadline, seconds: float, text: str) -> None:
        self.deadlines.set(self.partition, kind, seconds, lambda partition: self.told.append(text))

    def wait(self, seconds: float) -> list[str]:
        self.clock.now += seconds
        self.timer.step(0)
        told, self.told = self.told, []
        return told


def test_each_deadline_comes_once_at_its_time() -> None:
    setup = Setup()
    setup.set(Deadline.EXPIRY, 10, "expired")
    setup.set(Deadline.WRITER_RETURN, 5, "no writer")
    assert len(setup.deadlines) == 2
    assert [setup.wait(4), setup.wait(1), setup.wait(5), setup.wait(10)] == [[], ["no writer"], ["expired"], []]
    assert len(setup.deadlines) == 0


def test_deadline_of_same_kind_replaces_the_previous() -> None:
    setup = Setup()
    setup.set(Deadline.EXPIRY, 5, "first")
    setup.set(Deadline.EXPIRY, 10, "second")
    assert [setup.wait(5), setup.wait(5)] == [[], ["second"]]


def test_what_is_cancelled_does_not_come() -> None:
    setup = Setup()
    setup.set(Deadline.READER_RETURN, 1, "no reader")
    setup.set(Deadline.EXPIRY, 1, "expired")
    setup.deadlines.cancel(setup.partition, Deadline.READER_RETURN)
    setup.deadlines.cancel(setup.partition, Deadline.WRITER_RETURN)
    assert setup.wait(1) == ["expired"]


def test_a_released_partition_has_none_and_gets_none() -> None:
    setup = Setup()
    setup.set(Deadline.EXPIRY, 1, "expired")
    setup.known.clear()
    setup.deadlines.cancel_all(setup.partition)
    setup.set(Deadline.EXPIRY, 1, "expired")
    assert setup.wait(1) == []
    assert len(setup.deadlines) == 0


def test_closing_cancels_all() -> None:
    setup = Setup()
    setup.set(Deadline.EXPIRY, 1, "expired")
    setup.deadlines.close()
    assert setup.wait(1) == []
