"""What all scenarios share: options, the CPU of a piece of work, variants in turns, and the table.

A scenario is a module of this package with ``SECTIONS``: by name, a function that takes the ``Options`` and yields rows while it
measures. ``add_options``, if it has one, declares further options. ``python -m tests.bench SCENARIO`` runs it.

A row's figure ``CPU us`` is the broker's cost of a request, buffer or message, in us of CPU. ``check`` compares these.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, Self

CPU = "CPU us"
RATIO = " ratio"

Figures = dict[str, float]
Runs = list[Figures]


class Row(NamedTuple):
    name: str
    figures: Figures


class Options(argparse.Namespace):
    """Those of every scenario. A scenario's own are attributes as well."""

    sections: list[str]
    rounds: int
    scale: float
    seconds: float
    only: str
    directory: str | None
    json: bool

    def count(self, usual: int, least: int = 1) -> int:
        """``usual`` times the scale."""
        return max(least, int(usual * self.scale))

    def wants(self, name: str) -> bool:
        return self.only in name


Section = Callable[[Options], Iterator[Row]]


class Process(Protocol):
    """Whoever spends CPU."""

    def cpu_s(self) -> float: ...


class Meter:
    """``with Meter(process) as meter``: then the CPU of the process and the time that the body took, in seconds."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def __enter__(self) -> Self:
        self._cpu, self._began = self._process.cpu_s(), time.perf_counter()
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.took_s = time.perf_counter() - self._began
        self.cpu_s = self._process.cpu_s() - self._cpu

    def figures(self, count: float, size: float = 0) -> Figures:
        """For ``count`` requests of ``size`` bytes each."""
        rate = count / self.took_s
        figures = {CPU: self.cpu_s / count * 1e6, "per s": rate}
        return figures | {"MB/s": rate * size / 1e6} if size else figures


def in_turns(rounds: int, variants: Mapping[str, Callable[[], Figures]]) -> dict[str, Runs]:
    """Measure each variant once a round, beginning with another each time, so that all have the same neighbours."""
    runs: dict[str, Runs] = {name: [] for name in variants}
    names = list(variants)
    for number in range(rounds):
        turn = number % len(names)
        for name in [*names[turn:], *names[:turn]]:
            runs[name].append(variants[name]())
    return runs


def medians(runs: Runs) -> Figures:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def ratios(runs: Runs, others: Runs) -> Figures:
    """The medians of the ratios of each round, because the machine's speed changes between rounds."""
    common = [key for key in runs[0] if all(other.get(key) for other in others)]
    pairs = list(zip(runs, others, strict=True))
    return {f"{key}{RATIO}": statistics.median(run[key] / other[key] for run, other in pairs) for key in common}


def compared(rounds: int, variants: Mapping[str, Callable[[], Figures]], name: str = "") -> Iterator[Row]:
    """A row for each variant; those after the first with ratios to the first."""
    runs = in_turns(rounds, variants)
    first, *_ = runs
    for variant, figures in runs.items():
        beside = ratios(figures, runs[first]) if variant != first else {}
        yield Row(f"{name}{variant}", medians(figures) | beside)


def least_us(work: Callable[[], object], calls: int, rounds: int = 7) -> float:
    """The CPU of this thread for one call, in us: the best of the rounds."""
    best = float("inf")
    for _ in range(rounds):
        began = time.thread_time()
        for _ in range(calls):
            work()
        best = min(best, time.thread_time() - began)
    return best / calls * 1e6


def percentiles(name: str, values_s: Sequence[float]) -> Figures:
    """Median and 99th percentile of times, in ms."""
    ordered = sorted(values_s)
    at = {share: ordered[min(len(ordered) - 1, len(ordered) * share // 100)] * 1e3 for share in (50, 99)}
    return {f"{name}p{share} ms": value for share, value in at.items()}


def note(name: str, figures: Figures) -> None:
    """Append the row's cost to the file that ``check`` reads."""
    if CPU in figures and (path := os.environ.get("BROKER_BENCH_FIGURES")):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps([name, figures[CPU]]) + "\n")


def line(name: str, figures: Figures) -> str:
    texts = []
    for key, value in figures.items():
        if not key.endswith(RATIO):
            ratio = figures.get(key + RATIO)
            texts.append(f"{key} {value:,.4g}" + (f" ({ratio:.2f}x)" if ratio is not None else ""))
    return f"{name:54} " + "  ".join(texts)


def run(sections: Mapping[str, Section], options: Options) -> list[Row]:
    """Run those that are asked for, and print each row as soon as it is known, or all of them as JSON at the end."""
    rows = []
    for section in options.sections or sections:
        for name, figures in sections[section](options):
            rows.append(Row(name, figures))
            note(name, figures)
            if not options.json:
                print(line(name, figures), flush=True)
    if options.json:
        print(json.dumps({"load": os.getloadavg()[0], "rows": dict(rows)}, indent=1))
    return rows
