"""Counters, gauges and histograms, made so that counting costs an attribute and a bytecode: ``cell.value += 1``.

Each thread counts in cells of its own, which no other thread writes; reading sums the cells of the same labels. So nothing
here takes a lock, and nothing depends on the GIL: a cell has one writer, and its value is replaced as a whole.
A cell lives as long as its registry, and what a thread that ended has counted stays counted.

Names are Prometheus's: unit last, ``_total`` is added to counters in the exposition.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import Metric

Labels = tuple[str, ...]


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

    def __init__(self, name: str, doc: str, labels: Labels = ()) -> None:
        self.name = name
        self.doc = doc
        self.labels = labels
        self._cells: list[tuple[Labels, Cell]] = []

    def cell(self, *values: str) -> Cell:
        """A new cell for the calling thread and these label values. Keep it: there is no look-up."""
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

        family = CounterMetricFamily(self.name, self.doc, labels=self.labels)
        for values, total in sorted(self.read().items()):
            family.add_metric(values, total)
        return family


class Gauge:
    """Goes up and down; asked for when somebody looks, from the looking thread."""

    def __init__(self, name: str, doc: str, read: Callable[[], Mapping[Labels, float]], labels: Labels = ()) -> None:
        self.name = name
        self.doc = doc
        self.labels = labels
        self.read = read

    def collect(self) -> "Metric":
        from prometheus_client.core import GaugeMetricFamily

        family = GaugeMetricFamily(self.name, self.doc, labels=self.labels)
        for values, value in sorted(self.read().items()):
            family.add_metric(values, value)
        return family


class Histogram:
    """How often a value fell into which range. ``bounds`` are the upper ends, inclusive and rising."""

    def __init__(self, name: str, doc: str, bounds: Sequence[float], labels: Labels = ()) -> None:
        assert list(bounds) == sorted(set(bounds)), bounds
        self.name = name
        self.doc = doc
        self.bounds = tuple(bounds)
        self.labels = labels
        self._cells: list[tuple[Labels, HistogramCell]] = []

    def cell(self, *values: str) -> HistogramCell:
        """A new cell for the calling thread and these label values. Keep it: there is no look-up."""
        assert len(values) == len(self.labels), (self.labels, values)
        cell = HistogramCell(self.bounds)
        self._cells.append((values, cell))
        return cell

    def read(self) -> dict[Labels, tuple[list[int], float]]:
        """By label values: how many fell into each range (the last one has no upper end), and the sum of all."""
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
    """All metrics of one broker. Make metrics when the broker is put together, cells on the threads that use them."""

    def __init__(self) -> None:
        self._metrics: dict[str, Counter | Gauge | Histogram] = {}

    def counter(self, name: str, doc: str, labels: Labels = ()) -> Counter:
        counter = Counter(name, doc, labels)
        self._add(counter)
        return counter

    def gauge(self, name: str, doc: str, read: Callable[[], Mapping[Labels, float]], labels: Labels = ()) -> Gauge:
        gauge = Gauge(name, doc, read, labels)
        self._add(gauge)
        return gauge

    def histogram(self, name: str, doc: str, bounds: Sequence[float], labels: Labels = ()) -> Histogram:
        histogram = Histogram(name, doc, bounds, labels)
        self._add(histogram)
        return histogram

    def _add(self, metric: "Counter | Gauge | Histogram") -> None:
        assert metric.name not in self._metrics, f"two metrics are called {metric.name}"
        self._metrics[metric.name] = metric

    def collect(self) -> "Iterable[Metric]":
        for metric in list(self._metrics.values()):
            yield metric.collect()

    def render(self) -> bytes:
        """Prometheus's text format."""
        # Imported when somebody asks: it takes 40 ms that a start need not wait for.
        from prometheus_client.exposition import generate_latest

        return generate_latest(self)
