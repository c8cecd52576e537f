"""Readers that wait for a partition: each is answered once, whichever event comes first."""

from broker.runtime.timers import Timer
from broker.shuffle.deadlines import WaitingReader, WaitingReaders, answer
from broker.shuffle.partition.budget import Budget
from broker.shuffle.partition.result_partition import ResultPartition
from tests.clocks import ManualClock
from tests.shuffle.harness import PIPELINED, new_id


class Setup:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timer = Timer(self.clock)
        self.partition = ResultPartition(new_id(), PIPELINED, 1, Budget(1 << 30, -1, -1))
        self.readable: dict[bytes, ResultPartition] = {}
        self.waiting = WaitingReaders(self.clock, self.timer, 10.0, self.readable.get)
        self.answers: list[ResultPartition | None] = []

    def add(self) -> WaitingReader:
        reader = WaitingReader(self.answers.append)
        self.waiting.add(self.partition.id, reader)
        return reader

    def pass_s(self, seconds: float) -> None:
        self.clock.now += seconds
        self.timer.step(0)


def test_readable_partition_is_the_immediate_answer() -> None:
    setup = Setup()
    setup.readable[setup.partition.id] = setup.partition
    setup.add()
    assert setup.answers == [setup.partition]
    assert len(setup.waiting) == 0


def test_waiting_readers_get_partition_and_no_timeout_afterwards() -> None:
    setup = Setup()
    setup.add()
    setup.add()
    assert (setup.answers, len(setup.waiting)) == ([], 1)
    answer(setup.waiting.take(setup.partition.id), setup.partition)
    setup.pass_s(100)
    assert setup.answers == [setup.partition] * 2
    assert setup.waiting.take(setup.partition.id) == []


def test_reader_gets_nothing_after_the_timeout() -> None:
    setup = Setup()
    setup.add()
    setup.pass_s(9)
    later = setup.add()
    setup.pass_s(1)
    assert setup.answers == [None]
    assert setup.waiting.take(setup.partition.id) == [later]


def test_a_reader_that_stops_waiting_is_not_answered() -> None:
    setup = Setup()
    reader = setup.add()
    assert setup.waiting.remove(setup.partition.id, reader)
    assert not setup.waiting.remove(setup.partition.id, reader)
    setup.pass_s(100)
    assert (setup.answers, len(setup.waiting)) == ([], 0)


def test_closing_answers_nobody() -> None:
    setup = Setup()
    setup.add()
    setup.waiting.close()
    setup.pass_s(100)
    assert (setup.answers, len(setup.waiting)) == ([], 0)
