"""Counters, gauges and histograms of one broker, and their text. Counting is one statement: ``cell.value += 1``.

Each thread counts in cells of its own, which no other thread writes, and a reader sums the cells of the same labels. So no lock
is needed, with the GIL or without it: a cell has one writer, and its value is replaced as a whole. Cells stay in their registry
when their thread has ended, so that sums never go down. ``names.py`` declares the names of metrics and their meaning.

`render` writes a registry in Prometheus's text format, or in OpenMetrics if the client asks for it. prometheus-client
writes the same, but takes three times as long and does not let other threads run meanwhile; `render` pauses between
pieces.

`Chosen` and `BoundedCounter` bound the number of series. Clients choose how many topics and groups there are, and every
series costs memory here and in whatever stores it. So only the busiest have series of their own, and one series sums
the others. A thing keeps its series until another has become much busier, because series that come and go are of little
use. These two are not thread-safe.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Final, TypeVar

import attrs

from broker.metrics.metric import Kind, Metric
from broker.metrics.names import OTHER

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
        self.counts = [0] * (len(bounds) + 1)  # the last counts values above every bound
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
        """The counts and sums, by label values."""
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
        """The counts and sums of a histogram, by label values; none if this broker does not have it."""
        family = self._families.get(metric.name)
        assert family is None or isinstance(family, Histogram | ReadHistogram), metric.name
        return {} if family is None else family.read()


PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
# Samples that are written between two checks of whether anybody still waits for them: less than 1 ms.
_PIECE = 500


def _nothing() -> None:
    """The default of ``pause``."""


def negotiate(accept: str) -> str:
    """The content type for the value of an Accept header: OpenMetrics if the header names it, as Prometheus does, else
    the text format, which every scraper reads."""
    for media_range in accept.split(","):
        name, *parameters = [part.strip().lower() for part in media_range.split(";")]
        version = next((each.partition("=")[2] for each in parameters if each.startswith("version=")), "1.0.0")
        unwanted = any(each.replace(" ", "") in ("q=0", "q=0.0") for each in parameters)
        if name == "application/openmetrics-text" and version in ("1.0.0", "0.0.1") and not unwanted:
            return OPENMETRICS
    return PROMETHEUS


def render(registry: Registry, content_type: str = PROMETHEUS, pause: Callable[[], None] = _nothing) -> bytes:
    """All metrics that have a value. ``pause`` is called every 500 samples, and may raise an exception to give up."""
    openmetrics = content_type == OPENMETRICS
    pieces: list[bytes] = []
    lines: list[str] = []
    for family in registry:
        for line in _family(family, openmetrics):
            lines.append(line)
            if len(lines) >= _PIECE:
                pieces.append("".join(lines).encode())
                lines.clear()
                pause()
    if openmetrics:
        lines.append("# EOF\n")
    pieces.append("".join(lines).encode())
    return b"".join(pieces)


def _family(family: Family, openmetrics: bool) -> Iterator[str]:
    metric = family.metric
    name = metric.name if openmetrics else metric.sample_name
    if isinstance(family, Histogram | ReadHistogram):
        samples = _ranges(metric.name, metric.labels, metric.bounds, family.read())
    else:
        samples = _values(metric.sample_name, metric.labels, family.read())
    first = True
    for sample in samples:
        if first:
            first = False
            doc = metric.doc.replace("\\", "\\\\").replace("\n", "\\n")
            if openmetrics:
                doc = doc.replace('"', '\\"')
            yield f"# HELP {name} {doc}\n"
            yield f"# TYPE {name} {metric.kind.value}\n"
        yield sample


def _values(name: str, labels: Labels, values: Mapping[Labels, float]) -> Iterator[str]:
    for key, value in sorted(values.items()):
        yield f"{name}{_labels(labels, key)} {_number(value)}\n"


def _ranges(name: str, labels: Labels, bounds: Iterable[float], values: Mapping[Labels, Ranges]) -> Iterator[str]:
    ends = [*(_number(bound) for bound in bounds), "+Inf"]
    for key, (counts, total) in sorted(values.items()):
        own = _labels(labels, key)
        before = f"{own[:-1]}," if own else "{"
        running = 0.0
        for end, count in zip(ends, counts, strict=True):
            running += count
            yield f'{name}_bucket{before}le="{end}"}} {_number(running)}\n'
        yield f"{name}_count{own} {_number(running)}\n"
        yield f"{name}_sum{own} {_number(total)}\n"


def _labels(names: Labels, values: Labels) -> str:
    if not names:
        return ""
    return "{" + ",".join([f'{name}="{escaped(value)}"' for name, value in zip(names, values, strict=True)]) + "}"


def escaped(value: str) -> str:
    """A label's value between its quotes."""
    if value.isascii() and '"' not in value and "\\" not in value and "\n" not in value:
        return value
    # Text that is not Unicode cannot be sent.
    value = value.encode("utf-8", "replace").decode()
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if -inf < value < inf:
        return repr(float(value))
    return "NaN" if value != value else "+Inf" if value > 0 else "-Inf"


# How often (s) series are given to things that have become busier.
_REVIEW_S = 60.0
# How much busier a thing must be than the thing that loses its series to it.
_BUSIER = 2.0


class Chosen:
    """Chooses the things that have series of their own: at most ``most``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.names: frozenset[str] = frozenset()
        self._before: Mapping[str, float] = {}
        self._reviewed_at = float("-inf")

    def choose(self, totals: Mapping[str, float], now: float) -> frozenset[str]:
        """``totals``: by thing, a total that only goes up, such as bytes. ``now``: monotonic s."""
        if len(totals) <= self._most:
            self.names = frozenset(totals)
            return self.names
        names = {name for name in self.names if name in totals}
        if now - self._reviewed_at >= _REVIEW_S or not names:
            before, self._before, self._reviewed_at = self._before, dict(totals), now
            activity = {name: total - before.get(name, 0.0) for name, total in totals.items()}
            candidates = sorted((name for name in totals if name not in names), key=lambda name: -activity[name])
            for name in candidates[: self._most]:
                if len(names) < self._most:
                    names.add(name)
                    continue
                least = min(names, key=lambda member: activity[member])
                if activity[name] <= _BUSIER * activity[least]:
                    break
                names.remove(least)
                names.add(name)
        self.names = frozenset(names)
        return self.names


class BoundedCounter:
    """A counter by thing. The sum of the others never goes down, whatever gains or loses a series or is deleted."""

    def __init__(self) -> None:
        # By thing, how much of its total belongs to the series of the others; and the same for all deleted things
        # together.
        self._hidden: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._gone = 0.0

    def split(self, totals: Mapping[str, float], chosen: frozenset[str]) -> dict[str, float]:
        """By name: the total of each chosen thing, and the sum of the others under ``OTHER``."""
        shown: dict[str, float] = {}
        for name, total in totals.items():
            last = self._last.get(name, 0.0)
            if total < last:  # another thing of the same name
                self._gone += self._hidden.pop(name, 0.0)
                last = 0.0
            if name in chosen:
                shown[name] = total
            elif total > last:
                self._hidden[name] = self._hidden.get(name, 0.0) + total - last
        for name in self._last.keys() - totals.keys():
            self._gone += self._hidden.pop(name, 0.0)
        self._last = dict(totals)
        others = self._gone + sum(self._hidden.values())
        if others:
            shown[OTHER] = shown.get(OTHER, 0.0) + others
        return shown


def summed(values: Mapping[str, float], chosen: frozenset[str]) -> dict[str, float]:
    """By name: the gauge of each chosen thing, and the sum of the others under ``OTHER``."""
    shown: dict[str, float] = {}
    for name, value in values.items():
        key = name if name in chosen else OTHER
        shown[key] = shown.get(key, 0.0) + value
    return shown
