"""What is declared of a metric: its name, its kind, what it means, its labels, and of a histogram its ranges. Pure.

A figure that takes long to find is kept for a while, so that many who ask cost no more than one.

Any thread may ask. One of them finds the figure out; those who ask meanwhile get the last one, or wait if there is none yet.

The share of time that threads spent at something, over the last minute or so: from what each has spent altogether.

There is no thread that measures at regular times: each reading remembers what it has found, and compares it with the oldest that
is not too old. Any thread may read.

Tests: tests/metrics/test_names.py.
"""

from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Generic, TypeVar

import attrs

from broker.runtime.threads import Lock


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@attrs.frozen
class Metric:
    """``name``: without the ``_total`` that the samples of a counter get. ``bounds``: the upper ends of a histogram's ranges,
    inclusive and ascending. ``section``: the heading under which docs/MONITORING.md lists it."""

    name: str
    kind: Kind
    doc: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    section: str = ""

    def __attrs_post_init__(self) -> None:
        assert list(self.bounds) == sorted(set(self.bounds)), self.bounds
        assert bool(self.bounds) == (self.kind is Kind.HISTOGRAM), self.name

    @property
    def sample_name(self) -> str:
        """As Prometheus knows it, in queries."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


T = TypeVar("T")


class Cached(Generic[T]):
    def __init__(self, find: Callable[[], T], monotonic: Callable[[], float], age_s: float) -> None:
        """``age_s``: how old it may be, from when it was found."""
        self._find = find
        self._monotonic = monotonic
        self._age_s = age_s
        self._lock = Lock()
        self._found: tuple[float, T] | None = None

    def get(self) -> T:
        found = self._found
        if found is not None and self._monotonic() - found[0] < self._age_s:
            return found[1]
        if not self._lock.acquire(blocking=found is None):
            assert found is not None
            return found[1]
        try:
            latest = self._found
            if latest is None or latest is found:
                value = self._find()
                latest = self._found = (self._monotonic(), value)
            return latest[1]
        finally:
            self._lock.release()


# Readings that follow each other faster than this (s) are not remembered.
_LEAST_S = 1.0

Spent = Mapping[object, float]


class Ratio:
    def __init__(self, spent: Callable[[], Spent], monotonic: Callable[[], float], window_s: float) -> None:
        """``spent``: how much time (s) each thread has spent altogether, by whatever identifies the thread."""
        self._spent = spent
        self._monotonic = monotonic
        self._window_s = window_s
        self._lock = Lock()
        self._readings: deque[tuple[float, Spent]] = deque([(monotonic(), spent())])

    def read(self) -> float:
        """Of the threads that there are: 0 to 1. 0 where there are none."""
        with self._lock:
            now, spent = self._monotonic(), self._spent()
            readings = self._readings
            while len(readings) > 1 and readings[1][0] <= now - self._window_s:
                readings.popleft()
            then, before = readings[0]
            if now - readings[-1][0] >= _LEAST_S:
                readings.append((now, spent))
        if not spent or now <= then:
            return 0.0
        grown = sum(value - before.get(thread, 0.0) for thread, value in spent.items())
        return min(1.0, max(0.0, grown / len(spent) / (now - then)))
