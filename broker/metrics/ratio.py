"""The share of time that threads spent at something, over the last minute or so: from what each has spent altogether.

There is no thread that measures at regular times: each reading remembers what it has found, and compares it with the oldest that
is not too old. Any thread may read.
"""

from collections import deque
from collections.abc import Callable, Mapping

from broker.runtime.threads import Lock

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
