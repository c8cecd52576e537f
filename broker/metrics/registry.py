"""Counters, gauges and histograms. Counting is one statement on an attribute: ``cell.value += 1``.

Each thread counts in cells of its own, which no other thread writes, and a reader sums the cells of the same labels. So no lock
is needed, with the GIL or without it: a cell has one writer, and its value is replaced as a whole. Cells stay in their registry
when their thread has ended, so that sums never go down.

What the metrics are called and what they mean is declared in ``names.py``.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import attrs

from broker.metrics.metric import Kind, Metric

Labels = tuple[str, ...]
# The present values, by label values.
Read = Callable[[], Mapping[Labels, float]]
# Of a histogram: how many values each range has (the last range has no upper end), and the sum of all values.
Ranges = tuple[Sequence[float], float]
ReadRanges = Callable[[], Mapping[Labels, Ranges]]


class Cell:
    """One thread's share of a counter: ``cell.value += n``, on that thread only."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class HistogramCell:
    """One thread's share of a histogram."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last one is for what lies above every bound
        self.sum: float = 0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value


class Counter:
    """Only goes up."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self._cells: list[tuple[Labels, Cell]] = []

    def cell(self, *values: str) -> Cell:
        """A new cell for the calling thread and these label values. Keep it: cells are not looked up by label."""
        assert len(values) == len(self.metric.labels), (self.metric.labels, values)
        cell = Cell()
        self._cells.append((values, cell))
        return cell

    def read(self) -> dict[Labels, float]:
        """The sums, by label values."""
        sums: dict[Labels, float] = {}
        for values, cell in list(self._cells):
            sums[values] = sums.get(values, 0) + cell.value
        return sums


@attrs.frozen(eq=False)
class ReadCounter:
    """Only goes up, like a ``Counter``, for numbers that a thread counts in fields of its own. ``read`` as for a ``Gauge``."""

    metric: Metric
    read: Read


@attrs.frozen(eq=False)
class Gauge:
    """Goes up and down. ``read`` is called when metrics are read, on the thread that reads them."""

    metric: Metric
    read: Read


class Histogram:
    """Counts values by range."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self._cells: list[tuple[Labels, HistogramCell]] = []

    def cell(self, *values: str) -> HistogramCell:
        """A new cell for the calling thread and these label values. Keep it: cells are not looked up by label."""
        assert len(values) == len(self.metric.labels), (self.metric.labels, values)
        cell = HistogramCell(self.metric.bounds)
        self._cells.append((values, cell))
        return cell

    def read(self) -> dict[Labels, Ranges]:
        """By label values."""
        totals: dict[Labels, Ranges] = {}
        for values, cell in list(self._cells):
            counts, total = totals.get(values, ([0] * len(cell.counts), 0))
            totals[values] = ([a + b for a, b in zip(counts, cell.counts, strict=True)], total + cell.sum)
        return totals


@attrs.frozen(eq=False)
class ReadHistogram:
    """A histogram whose values a thread counts in fields of its own. ``read`` is called when metrics are read."""

    metric: Metric
    read: ReadRanges


Family = Counter | ReadCounter | Gauge | Histogram | ReadHistogram
T = TypeVar("T", bound=Family)


class Registry:
    """All metrics of one broker. Create metrics when the broker is put together, and cells on the threads that use them."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}

    def counter(self, metric: Metric) -> Counter:
        return self._add(Counter(metric), Kind.COUNTER)

    def read_counter(self, metric: Metric, read: Read) -> ReadCounter:
        return self._add(ReadCounter(metric, read), Kind.COUNTER)

    def gauge(self, metric: Metric, read: Read) -> Gauge:
        return self._add(Gauge(metric, read), Kind.GAUGE)

    def histogram(self, metric: Metric) -> Histogram:
        return self._add(Histogram(metric), Kind.HISTOGRAM)

    def read_histogram(self, metric: Metric, read: ReadRanges) -> ReadHistogram:
        return self._add(ReadHistogram(metric, read), Kind.HISTOGRAM)

    def _add(self, family: T, kind: Kind) -> T:
        name = family.metric.name
        assert family.metric.kind is kind, f"{name} is declared as a {family.metric.kind.value}"
        assert name not in self._families, f"two metrics are called {name}"
        self._families[name] = family
        return family

    def __iter__(self) -> Iterator[Family]:
        return iter(list(self._families.values()))

    def values(self, metric: Metric) -> Mapping[Labels, float]:
        """The present values of a counter or gauge, by label values; none if this broker does not have it."""
        family = self._families.get(metric.name)
        assert not isinstance(family, Histogram | ReadHistogram), metric.name
        return {} if family is None else family.read()

    def ranges(self, metric: Metric) -> Mapping[Labels, Ranges]:
        """The same of a histogram."""
        family = self._families.get(metric.name)
        assert family is None or isinstance(family, Histogram | ReadHistogram), metric.name
        return {} if family is None else family.read()
