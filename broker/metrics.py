"""Counters, gauges and histograms. Counting is one statement on an attribute: ``cell.value += 1``.

Each thread counts in cells of its own, which no other thread writes, and a reader sums the cells of the same labels. So no lock
is needed, with the GIL or without it: a cell has one writer, and its value is replaced as a whole. Cells stay in their registry
when their thread has ended, so that sums never go down.

Names follow Prometheus: the unit comes last, and ``_total`` is added to counters when they are rendered.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

Labels = tuple[str, ...]
# The present values, by label values.
Read = Callable[[], Mapping[Labels, float]]


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


def _filled(family: "CounterMetricFamily | GaugeMetricFamily", values: Mapping[Labels, float]) -> "Metric":
    for labels, value in sorted(values.items()):
        family.add_metric(labels, value)
    return family


class Counter:
    """Only goes up."""

    def __init__(self, name: str, doc: str, labels: Labels = ()) -> None:
        self.name = name
        self.doc = doc
        self.labels = labels
        self._cells: list[tuple[Labels, Cell]] = []

    def cell(self, *values: str) -> Cell:
        """A new cell for the calling thread and these label values. Keep it: cells are not looked up by label."""
        assert len(values) == len(self.labels), (self.labels, values)
        cell = Cell()
        self._cells.append((values, cell))
        return cell

    def read(self) -> dict[Labels, float]:
        """The sums, by label values."""
        sums: dict[Labels, float] = {}
        for values, cell in list(self._cells):
            sums[values] = sums.get(values, 0) + cell.value
        return sums

    def collect(self) -> "Metric":
        from prometheus_client.core import CounterMetricFamily

        return _filled(CounterMetricFamily(self.name, self.doc, labels=self.labels), self.read())


@attrs.frozen(eq=False)
class ReadCounter:
    """Only goes up, like a ``Counter``, for numbers that a thread counts in fields of its own. ``read`` as for a ``Gauge``."""

    name: str
    doc: str
    read: Read
    labels: Labels = ()

    def collect(self) -> "Metric":
        from prometheus_client.core import CounterMetricFamily

        return _filled(CounterMetricFamily(self.name, self.doc, labels=self.labels), self.read())


@attrs.frozen(eq=False)
class Gauge:
    """Goes up and down. ``read`` is called when metrics are read, on the thread that reads them."""

    name: str
    doc: str
    read: Read
    labels: Labels = ()

    def collect(self) -> "Metric":
        from prometheus_client.core import GaugeMetricFamily

        return _filled(GaugeMetricFamily(self.name, self.doc, labels=self.labels), self.read())


class Histogram:
    """Counts values by range. ``bounds`` are the upper ends of the ranges: inclusive and ascending."""

    def __init__(self, name: str, doc: str, bounds: Sequence[float], labels: Labels = ()) -> None:
        assert list(bounds) == sorted(set(bounds)), bounds
        self.name = name
        self.doc = doc
        self.bounds = tuple(bounds)
        self.labels = labels
        self._cells: list[tuple[Labels, HistogramCell]] = []

    def cell(self, *values: str) -> HistogramCell:
        """A new cell for the calling thread and these label values. Keep it: cells are not looked up by label."""
        assert len(values) == len(self.labels), (self.labels, values)
        cell = HistogramCell(self.bounds)
        self._cells.append((values, cell))
        return cell

    def read(self) -> dict[Labels, tuple[list[int], float]]:
        """By label values: how many values each range has (the last range has no upper end), and the sum of all values."""
        totals: dict[Labels, tuple[list[int], float]] = {}
        for values, cell in list(self._cells):
            counts, total = totals.get(values, ([0] * (len(self.bounds) + 1), 0))
            totals[values] = ([a + b for a, b in zip(counts, cell.counts, strict=True)], total + cell.sum)
        return totals

    def collect(self) -> "Metric":
        from prometheus_client.core import HistogramMetricFamily

        family = HistogramMetricFamily(self.name, self.doc, labels=self.labels)
        for values, (counts, total) in sorted(self.read().items()):
            running = 0
            buckets = []
            for bound, count in zip((*map(str, self.bounds), "+Inf"), counts, strict=True):
                running += count
                buckets.append((bound, running))
            family.add_metric(values, buckets, total)
        return family


class Registry:
    """All metrics of one broker. Create metrics when the broker is put together, and cells on the threads that use them."""

    def __init__(self) -> None:
        self._metrics: dict[str, Counter | ReadCounter | Gauge | Histogram] = {}

    def counter(self, name: str, doc: str, labels: Labels = ()) -> Counter:
        counter = Counter(name, doc, labels)
        self._add(counter)
        return counter

    def read_counter(self, name: str, doc: str, read: Read, labels: Labels = ()) -> ReadCounter:
        counter = ReadCounter(name, doc, read, labels)
        self._add(counter)
        return counter

    def gauge(self, name: str, doc: str, read: Read, labels: Labels = ()) -> Gauge:
        gauge = Gauge(name, doc, read, labels)
        self._add(gauge)
        return gauge

    def histogram(self, name: str, doc: str, bounds: Sequence[float], labels: Labels = ()) -> Histogram:
        histogram = Histogram(name, doc, bounds, labels)
        self._add(histogram)
        return histogram

    def _add(self, metric: Counter | ReadCounter | Gauge | Histogram) -> None:
        assert metric.name not in self._metrics, f"two metrics are called {metric.name}"
        self._metrics[metric.name] = metric

    def collect(self) -> "Iterable[Metric]":
        for metric in list(self._metrics.values()):
            yield metric.collect()

    def render(self) -> bytes:
        """Prometheus's text format."""
        # Imported when metrics are first rendered: the import takes 40 ms, which would delay every start.
        from prometheus_client.exposition import generate_latest

        return generate_latest(self)
