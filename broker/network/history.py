"""An hour of figures in memory: a value every 5 s for ten minutes, and one every 20 s for the hour.

Every figure is a *series*. Those of the whole broker are always kept; of the others, for example of topics, each kind has a
number of places, which the busiest get: a new series takes the place of the one that has had the least to show lately. A series
takes 2.4 KB, so all of them together take at most 5 MB, whatever the number of topics and groups.

The sampler's thread writes, any thread reads; the lock is held for the copy of some arrays.

Tests: tests/network/test_history.py.
"""

import heapq
from array import array
from collections.abc import Iterable, Mapping
from math import isnan, nan
from typing import Final

import attrs

from broker.runtime.threads import Lock

STEP_S: Final = 5
FINE: Final = 120  # samples: ten minutes
_PER_COARSE: Final = 4
COARSE_STEP_S: Final = STEP_S * _PER_COARSE
COARSE: Final = 180  # an hour
# Series of one kind, beside those of the whole broker.
KIND_MAX: Final = 400
# The whole broker's: kept from their first sample on.
WHOLE: Final = ""
_WHOLE_MAX = 100
# What a series had to show counts for less by this factor with each sample: half of it after three minutes.
_FADING = 0.98


@attrs.define(eq=False)
class _Series:
    kind: str
    fine: "array[float]" = attrs.Factory(lambda: array("d", [nan]) * FINE)
    coarse: "array[float]" = attrs.Factory(lambda: array("d", [nan]) * COARSE)
    score: float = 0.0


@attrs.frozen
class Extract:
    """``series``: by name, values from ``start_ms`` on, every ``step_s``; None where there is none."""

    step_s: int
    start_ms: int
    series: Mapping[str, list[float | None]]


class History:
    def __init__(self, kind_max: int = KIND_MAX) -> None:
        self._kind_max = kind_max
        self._lock = Lock()
        self._series: dict[str, _Series] = {}
        self._counts: dict[str, int] = {}  # of series, by kind
        self._first = 0  # the number of the first sample
        self._next = 0  # the number of the next sample: wall clock in steps
        # The sums of the present coarse step.
        self._sums: dict[str, tuple[float, int]] = {}

    def __len__(self) -> int:
        return len(self._series)

    def record(self, now_ms: int, values: Mapping[str, tuple[str, float]]) -> None:
        """A sample: (kind, value) by the name of the series. One within the same step as the one before is left out."""
        number = now_ms // (STEP_S * 1000)
        with self._lock:
            if not self._next:
                self._first = self._next = number
            if number < self._next - FINE or number > self._next + COARSE * _PER_COARSE:
                self._start_again(number)  # the clock was set
            elif number < self._next:
                return
            while self._next < number:
                self._write(self._next, {})
                self._next += 1
            self._write(number, values)
            self._next = number + 1

    def _start_again(self, number: int) -> None:
        self._series, self._counts, self._sums = {}, {}, {}
        self._first = self._next = number

    def _write(self, number: int, values: Mapping[str, tuple[str, float]]) -> None:
        place, coarse_place = number % FINE, number // _PER_COARSE % COARSE
        begins = number % _PER_COARSE == 0
        if begins:
            self._sums = {}
        self._admit(values)
        for name, series in self._series.items():
            known = values.get(name)
            value = nan if known is None else known[1]
            series.fine[place] = value
            series.score *= _FADING
            if begins:
                series.coarse[coarse_place] = nan
            if not isnan(value):
                series.score = max(series.score, abs(value))
                total, count = self._sums.get(name, (0.0, 0))
                self._sums[name] = total + value, count + 1
                series.coarse[coarse_place] = (total + value) / (count + 1)

    def _admit(self, values: Mapping[str, tuple[str, float]]) -> None:
        """Give the new series places. The busiest come first, and each takes a free place or that of a less busy one."""
        new: dict[str, list[tuple[float, str]]] = {}
        for name, (kind, value) in values.items():
            if name not in self._series:
                new.setdefault(kind, []).append((abs(value), name))
        for kind, candidates in new.items():
            places = _WHOLE_MAX if kind == WHOLE else self._kind_max
            free = places - self._counts.get(kind, 0)
            candidates = heapq.nlargest(places, candidates)
            for score, name in candidates[:free]:
                self._series[name] = _Series(kind, score=score)
            idlest = sorted((series.score, name) for name, series in self._series.items() if series.kind == kind)
            taken = max(0, min(free, len(candidates)))
            for (score, name), (least, other) in zip(candidates[taken:], idlest, strict=False):
                if score <= least:
                    break
                del self._series[other]
                self._sums.pop(other, None)
                self._series[name] = _Series(kind, score=score)
            self._counts[kind] = self._counts.get(kind, 0) + taken

    # -- reading ------------------------------------------------------------------------------------------------------

    def names(self, kind: str) -> list[str]:
        with self._lock:
            return [name for name, series in self._series.items() if series.kind == kind]

    def last(self, names: Iterable[str]) -> dict[str, float | None]:
        """The values of the last sample."""
        with self._lock:
            place = (self._next - 1) % FINE
            found = {name: self._series[name].fine[place] for name in names if name in self._series}
        return {name: None if isnan(value) else round(value, 3) for name, value in found.items()}

    def read(self, names: Iterable[str], since_ms: int) -> Extract:
        """The samples since then, every 5 s if that is at most ten minutes ago, else every 20 s. Without the series that are not
        kept."""
        with self._lock:
            end = self._next
            wanted = max(self._first, since_ms // (STEP_S * 1000))
            is_fine = wanted >= end - FINE
            per = 1 if is_fine else _PER_COARSE
            length = FINE if is_fine else COARSE
            last = (end - 1) // per
            first = min(max(wanted // per, last - length + 1), last + 1)
            if not end:
                first, last = 0, -1
            found = {}
            for name in names:
                series = self._series.get(name)
                if series is not None:
                    ring = series.fine if is_fine else series.coarse
                    found[name] = [ring[number % length] for number in range(first, last + 1)]
        shown = {
            name: [None if isnan(value) else round(value, 3) for value in ring_values]
            for name, ring_values in found.items()
        }
        return Extract(STEP_S * per, first * STEP_S * per * 1000, shown)
