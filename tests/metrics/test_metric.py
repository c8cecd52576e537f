"""A figure that is kept for a while."""

import threading

from broker.metrics.metric import Cached


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_value_is_computed_again_when_too_old() -> None:
    clock, found = Clock(), iter(range(10))
    cached = Cached(lambda: next(found), clock.monotonic, 5.0)
    assert [0, 0] == [cached.get(), cached.get()]
    clock.now += 4.9
    assert 0 == cached.get()
    clock.now += 0.2
    assert [1, 1] == [cached.get(), cached.get()]


def test_concurrent_readers_get_the_previous_value() -> None:
    clock, finding, go_on = Clock(), threading.Event(), threading.Event()

    def find() -> str:
        if clock.now == 100.0:
            return "old"
        finding.set()
        assert go_on.wait(30)
        return "new"

    cached = Cached(find, clock.monotonic, 5.0)
    assert "old" == cached.get()
    clock.now += 10
    results: list[str] = []
    thread = threading.Thread(target=lambda: results.append(cached.get()))
    thread.start()
    assert finding.wait(30)
    assert "old" == cached.get()
    go_on.set()
    thread.join(30)
    assert (["new"], "new") == (results, cached.get())


def test_an_error_is_raised_and_not_kept() -> None:
    clock, outcomes = Clock(), iter([ZeroDivisionError(), 7])

    def find() -> int:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return int(outcome)

    cached = Cached(find, clock.monotonic, 5.0)
    try:
        cached.get()
    except ZeroDivisionError:
        pass
    else:
        raise AssertionError("nothing was raised")
    assert 7 == cached.get()
