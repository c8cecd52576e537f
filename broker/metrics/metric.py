"""The declaration of a metric, and two ways to read a figure that is expensive or that only makes sense over time.

`Metric` is pure. `Cached` keeps an expensive figure for a while, so that many readers cost no more than one. `Ratio` is
the share of time that threads spent at something over the last minute or so. Any thread may read either; no thread of
their own measures anything.

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
        """The name in Prometheus's queries."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


T = TypeVar("T")


class Cached(Generic[T]):
    """One reader computes the value; readers meanwhile get the previous value, or wait if there is none yet."""

    def __init__(self, find: Callable[[], T], monotonic: Callable[[], float], age_s: float) -> None:
        """``age_s``: how old the value may be, counted from when it was computed."""
        self._find = find
        self._monotonic = monotonic
        self._age_s = age_s
        self._lock = Lock()
        self._found: tuple[float, T] | None = None

    def get(self) -> T:
        cached = self._found
        if cached is not None and self._monotonic() - cached[0] < self._age_s:
            return cached[1]
        if not self._lock.acquire(blocking=cached is None):
            assert cached is not None
            return cached[1]
        try:
            latest = self._found
            if latest is None or latest is cached:
                value = self._find()
                latest = self._found = (self._monotonic(), value)
            return latest[1]
        finally:
            self._lock.release()


# Readings that follow each other faster than this (s) are not remembered.
_LEAST_S = 1.0

Spent = Mapping[object, float]


class Ratio:
    """Each reading is kept and compared with the oldest reading within the window."""

    def __init__(self, spent: Callable[[], Spent], monotonic: Callable[[], float], window_s: float) -> None:
        """``spent``: how much time (s) each thread has spent altogether; the keys identify threads."""
        self._spent = spent
        self._monotonic = monotonic
        self._window_s = window_s
        self._lock = Lock()
        self._readings: deque[tuple[float, Spent]] = deque([(monotonic(), spent())])

    def read(self) -> float:
        """The mean of the present threads: 0 to 1; 0 without threads."""
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
