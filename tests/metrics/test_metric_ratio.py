"""The share of time that threads spend at something."""

from broker.metrics.metric import Ratio


class World:
    def __init__(self) -> None:
        self.now = 1000.0
        self.spent: dict[object, float] = {"a": 10.0, "b": 0.0}

    def pass_time(self, seconds: float, **spent: float) -> None:
        self.now += seconds
        for thread, share in spent.items():
            self.spent[thread] = self.spent.get(thread, 0.0) + share * seconds

    def ratio(self) -> Ratio:
        return Ratio(lambda: dict(self.spent), lambda: self.now, 60.0)


def test_ratio_is_the_mean_of_threads_over_window() -> None:
    world = World()
    ratio = world.ratio()
    world.pass_time(10, a=1.0, b=0.5)
    assert 0.75 == ratio.read()


def test_readings_older_than_the_window_do_not_count() -> None:
    world = World()
    ratio = world.ratio()
    for _ in range(12):
        world.pass_time(10, a=1.0, b=1.0)
        ratio.read()
    for _ in range(6):
        world.pass_time(10)
        ratio.read()
    assert 0.0 == ratio.read()


def test_frequent_readings_do_not_shorten_the_window() -> None:
    world = World()
    ratio = world.ratio()
    world.pass_time(30, a=1.0, b=1.0)
    for _ in range(1000):
        world.pass_time(0.001)
        ratio.read()
    assert 0.95 < ratio.read() < 1.0


def test_threads_count_from_start_to_end() -> None:
    world = World()
    ratio = world.ratio()
    del world.spent["b"]
    world.pass_time(10, a=0.0, c=1.0)
    assert 0.5 == ratio.read()


def test_there_is_none_without_threads_or_time() -> None:
    world = World()
    assert 0.0 == world.ratio().read()
    world.spent.clear()
    world.pass_time(10)
    assert 0.0 == world.ratio().read()
