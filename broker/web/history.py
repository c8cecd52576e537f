"""An hour of figures in memory, and the figures that services contribute to it.

`History` keeps a value every 5 s for ten minutes, and a mean every 20 s for the hour. Every figure is a *series*.
Series of the whole broker are always kept. For the others, for example those of topics, each kind has a number of
places, which the busiest get: a new series takes the place of the series that had the lowest values lately. A series
takes 2.4 KB, so all of them together take at most 5 MB, whatever the number of topics and groups. The sampler's thread
writes, any thread reads; the lock is held only to copy some arrays.

`Figures` collects numbers from services for the overview, for rates and for the history. A service adds its figures
while it is assembled. The sampler of the HTTP service (`broker/http/assembly.py`) reads them every 5 s on its own
thread, computes rates, and writes the history; without an http:// listener nothing is read.

Tests: tests/web/test_history.py,
tests/web/test_history_figures.py.
"""

import heapq
from array import array
from collections.abc import Callable, Iterable, Mapping
from math import isnan, nan
from typing import Any, Final, NamedTuple

import attrs

from broker.runtime.threads import Lock

STEP_S: Final = 5
FINE: Final = 120  # samples: ten minutes
_PER_COARSE: Final = 4
COARSE_STEP_S: Final = STEP_S * _PER_COARSE
COARSE: Final = 180  # an hour
# The number of series of one kind, besides those of the whole broker.
KIND_MAX: Final = 400
# The kind of the whole broker's series, which are kept from their first sample on.
WHOLE: Final = ""
_WHOLE_MAX = 100
# Each sample multiplies the score of a series by this factor, so that it halves in three minutes.
_FADING = 0.98


@attrs.define(eq=False)
class _Series:
    kind: str
    fine: "array[float]" = attrs.Factory(lambda: array("d", [nan]) * FINE)
    coarse: "array[float]" = attrs.Factory(lambda: array("d", [nan]) * COARSE)
    score: float = 0.0


@attrs.frozen
class Extract:
    """``series``: by name, values from ``start_ms`` on, every ``step_s``; None where a value is missing."""

    step_s: int
    start_ms: int
    series: Mapping[str, list[float | None]]


class History:
    def __init__(self, kind_max: int = KIND_MAX) -> None:
        self._kind_max = kind_max
        self._lock = Lock()
        self._series: dict[str, _Series] = {}
        self._counts: dict[str, int] = {}  # the number of series, by kind
        self._first = 0  # the number of the first sample
        self._next = 0  # the number of the next sample: wall clock in steps
        # The sums of the present coarse step.
        self._sums: dict[str, tuple[float, int]] = {}

    def __len__(self) -> int:
        return len(self._series)

    def record(self, now_ms: int, values: Mapping[str, tuple[str, float]]) -> None:
        """Add a sample: (kind, value) by the name of the series. A second sample within the same step is dropped."""
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
        """Give the new series places. The busiest come first, and each takes a free place or that of a less busy
        series."""
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
            latest = {name: self._series[name].fine[place] for name in names if name in self._series}
        return {name: None if isnan(value) else round(value, 3) for name, value in latest.items()}

    def read(self, names: Iterable[str], since_ms: int) -> Extract:
        """The samples since ``since_ms``, every 5 s if that is at most ten minutes ago, else every 20 s. Series that
        are not kept are left out."""
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
            extracted = {}
            for name in names:
                series = self._series.get(name)
                if series is not None:
                    ring = series.fine if is_fine else series.coarse
                    extracted[name] = [ring[number % length] for number in range(first, last + 1)]
        shown = {
            name: [None if isnan(value) else round(value, 3) for value in ring_values]
            for name, ring_values in extracted.items()
        }
        return Extract(STEP_S * per, first * STEP_S * per * 1000, shown)


class Field(NamedTuple):
    """A figure that exists for each thing of a kind: ``Field("topic", "messages_in", counter=True)``. Its series are
    called ``kind:thing:name``."""

    kind: str
    name: str
    counter: bool = False  # it only goes up, and its rate per second is shown


# The present values, by field and by the name of the thing.
Read = Callable[[], Mapping[Field, Mapping[str, float]]]


def series_name(field: Field, thing: str) -> str:
    return f"{field.kind}:{thing}:{field.name}"


@attrs.define(eq=False)
class Figures:
    """Filled on the thread that starts the broker, before the first request. ``health``: each function returns short
    sentences that say why the broker is not healthy."""

    whole: dict[str, Callable[[], float]] = attrs.Factory(dict)  # of the whole broker: gauges
    counters: dict[str, Callable[[], float]] = attrs.Factory(dict)  # of the whole broker: shown as rates per second
    sources: list[Read] = attrs.Factory(list)
    health: list[Callable[[], list[str]]] = attrs.Factory(list)
    # The subscriptions that another service has on a topic, by its name in Kafka: for the view of the topic.
    subscriptions: Callable[[str], list[dict[str, Any]]] = lambda _topic: []
    history: History = attrs.Factory(History)
    # The results of the last sample; replaced as a whole.
    values: Mapping[str, float] = attrs.Factory(dict)  # of the whole broker: gauges and rates
    reasons: tuple[str, ...] = ()  # why it is not healthy
    _rates: Mapping[Field, Mapping[str, float]] = attrs.Factory(dict)
    # The counters of the previous sample, and when it was taken (monotonic, s).
    _before: Mapping[str, float] = attrs.Factory(dict)
    _before_of: Mapping[Field, Mapping[str, float]] = attrs.Factory(dict)
    _sampled_at: float | None = None

    def rate(self, field: Field, thing: str) -> float:
        """The rate of a counter (1/s) over the last sample."""
        rates = self._rates.get(field)
        return 0.0 if rates is None else rates.get(thing, 0.0)

    def sample(self, now: float, now_ms: int) -> None:
        """Read everything. On the sampler's thread."""
        elapsed_s = None if self._sampled_at is None else now - self._sampled_at
        if elapsed_s is not None and elapsed_s < STEP_S / 2:
            return
        self._sampled_at = now
        counters = {name: read() for name, read in self.counters.items()}
        values = {name: read() for name, read in self.whole.items()}
        of_things: dict[Field, Mapping[str, float]] = {}
        for source in self.sources:
            of_things.update(source())
        rates: dict[Field, Mapping[str, float]] = {}
        if elapsed_s:
            values |= _rates(counters, self._before, elapsed_s, keep_zero=True)
            for field, by_thing in of_things.items():
                if field.counter and field in self._before_of:
                    rates[field] = _rates(by_thing, self._before_of[field], elapsed_s)
        else:
            values |= dict.fromkeys(counters, 0.0)
        recorded = {name: (WHOLE, value) for name, value in values.items()}
        for field, by_thing in of_things.items():
            shown = rates.get(field, {}) if field.counter else by_thing
            kind = f"{field.kind}:{field.name}"
            recorded |= {series_name(field, thing): (kind, value) for thing, value in shown.items()}
            if field.counter:  # a counter that did not grow has the rate 0 while its thing exists
                for name in self.history.names(kind):
                    if name not in recorded and name[len(field.kind) + 1 : -len(field.name) - 1] in by_thing:
                        recorded[name] = kind, 0.0
        self._before = counters
        self._before_of = {field: by_thing for field, by_thing in of_things.items() if field.counter}
        self._rates = rates
        self.values = values
        self.reasons = tuple(reason for check in self.health for reason in check())
        self.history.record(now_ms, recorded)


def _rates(
    present: Mapping[str, float], before: Mapping[str, float], elapsed_s: float, *, keep_zero: bool = False
) -> dict[str, float]:
    """How much each counter has grown per second; without counters that did not grow, unless ``keep_zero``."""
    rates = {}
    for name, value in present.items():
        counted = max(0.0, value - before.get(name, 0.0))
        if counted or keep_zero:
            rates[name] = counted / elapsed_s
    return rates
