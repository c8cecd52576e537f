import pytest

from broker.kafka.groups.group_worker import GroupWorker, Task
from broker.runtime.timers import Timer
from tests.kafka.groups.group_harness import TestClock


class Work:
    """A worker whose tasks take a given time."""

    def __init__(self) -> None:
        self.clock = TestClock()
        self.timer = Timer(self.clock)
        self.pauses: list[float] = []
        self.worker = GroupWorker(self.clock, self.timer, self.pauses.append)
        self.done: list[str] = []

    def submit(self, key: str, cost: int, slices: int = 1, takes_s: float = 0.001, name: str = "") -> None:
        left = [slices]

        def run() -> bool:
            self.clock.now += takes_s
            left[0] -= 1
            return not left[0]

        self.worker.submit(Task(key, cost, run, lambda: self.done.append(name or key)))

    def run(self) -> None:
        while self.worker.step(0):
            pass


@pytest.fixture
def work() -> Work:
    return Work()


def test_cheapest_task_is_done_first(work: Work) -> None:
    for key, cost in (("large", 100_000), ("small", 1_000), ("middle", 10_000)):
        work.submit(key, cost)
    work.run()
    assert work.done == ["small", "middle", "large"]


def test_large_task_is_not_overtaken_for_ever(work: Work) -> None:
    work.submit("large", 10_000)  # 40 ms
    for number in range(100):
        work.submit(f"small-{number}", 100)
        work.worker.step(0)
    work.run()
    assert 5 < work.done.index("large") < 60


def test_task_of_many_slices_lets_others_pass(work: Work) -> None:
    work.submit("sliced", 100, slices=20)
    for _ in range(5):
        work.worker.step(0)
    work.submit("other", 100)
    work.run()
    assert work.done == ["other", "sliced"]


def test_group_has_thread_for_fifth_of_the_time(work: Work) -> None:
    work.submit("greedy", 100, takes_s=0.1, name="first")
    work.run()
    began = work.clock.now
    work.submit("greedy", 100, takes_s=0.1, name="second")
    work.submit("other", 100)
    work.run()
    assert work.done == ["first", "other"]
    work.clock.now = began + 0.39
    work.timer.step(0)
    work.run()
    assert work.done == ["first", "other"]
    work.clock.now = began + 0.41
    work.timer.step(0)
    work.run()
    assert work.done == ["first", "other", "second"]


def test_worker_pauses_as_long_as_it_worked(work: Work) -> None:
    for number in range(20):
        work.submit(f"g{number}", 100)
    work.run()
    assert 0.015 <= sum(work.pauses) <= 0.021
    work.submit("long", 100, takes_s=3.0)
    work.run()
    assert work.pauses[-1] == 0.1


def test_failing_task_does_not_end_the_thread(work: Work) -> None:
    work.worker.submit(Task("bad", 1, lambda: 1 / 0 > 0, lambda: None))
    work.submit("good", 1)
    work.run()
    assert work.done == ["good"]


def test_wakeup_is_no_work(work: Work) -> None:
    work.worker.wakeup()
    assert not work.worker.step(0)
    assert work.worker.waiting == 0
