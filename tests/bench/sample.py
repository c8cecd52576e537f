"""A minute's comparison of two trees, for CI: fails only where the broker is dearer beyond doubt.

Brokers of both trees run at the same time and are measured in turns, in pairs of short runs, so that both meet the same machine.
The figure is the CPU of the broker's threads for each request, which a busy machine changes less than times. A pair's ratio
still jumps, so its median counts less the spread of the pairs: on a noisy machine less is found, and nothing is found that is
not there. ``make bench-check`` measures more, in a quarter of an hour.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.bench import connections
from tests.bench.frame import CPU, Meter
from tests.bench.process import ROOT, BrokerProcess
from tests.bench.wire import Wire, batch, fetch_all, produce, produce_frame

# A larger ratio is a regression.
LIMIT = 1.15
PAIRS = 15
# Seconds of a run, and those that the whole may take: on a slow machine there are fewer pairs.
RUN_S = 0.4
BUDGET_S = 60.0
_LEAST_PAIRS = 5
# Records of the topic that is fetched again and again.
_FETCHED = 2000
_TOPIC = "bench-0"


class Finding(NamedTuple):
    name: str
    before_us: float
    now_us: float
    ratio: float  # the median
    spread: float  # half of what lies between the quartiles of the ratios

    @property
    def is_dearer(self) -> bool:
        return self.ratio - self.spread > LIMIT

    def __str__(self) -> str:
        verdict = "  DEARER" if self.is_dearer else "  too noisy to tell" if self.spread > LIMIT - 1 else ""
        costs = f"{self.before_us:7.1f} {self.now_us:7.1f} us  {self.ratio:5.2f} +- {self.spread:.2f}"
        return f"{self.name:24} {costs}{verdict}"


def found(name: str, pairs: Sequence[tuple[float, float]]) -> Finding:
    """Of a case. ``pairs``: us of CPU before and now; two or more."""
    ratios = [now / before for before, now in pairs]
    low, ratio, high = statistics.quantiles(ratios, n=4, method="inclusive")
    before_us, now_us = (statistics.median(each) for each in zip(*pairs, strict=True))
    return Finding(name, before_us, now_us, ratio, (high - low) / 2)


def _pipelined(broker: BrokerProcess, wire: Wire, frame: bytes) -> float:
    count = 2000
    with Meter(broker) as meter:
        produce(wire, frame, _TOPIC, count, 50)
    return meter.cpu_s / count * 1e6


def _fetched(broker: BrokerProcess, wire: Wire) -> float:
    with Meter(broker) as meter:
        end, requests = time.perf_counter() + RUN_S / 2, 0
        while time.perf_counter() < end:
            requests += fetch_all(wire, _TOPIC, 0, _FETCHED, 4096)[1]
    return meter.cpu_s / requests * 1e6


def _closed_loop(broker: BrokerProcess) -> float:
    return connections.measure(broker, 1, [connections.SMALL], RUN_S)[CPU]


def cases(broker: BrokerProcess) -> Mapping[str, Callable[[], float]]:
    """By name, what measures it once."""
    wire = Wire(broker.address)
    wire.create_topic(_TOPIC)
    frame = produce_frame(_TOPIC, batch(1, 100))
    produce(wire, frame, _TOPIC, _FETCHED, 50)
    every = {
        "produce, 50 in flight": partial(_pipelined, broker, wire, frame),
        "fetch": partial(_fetched, broker, wire),
    }
    if connections.compiler() is None:
        return every
    return every | {"10 connections": partial(_closed_loop, broker)}


def measure(base: Path) -> Iterator[Finding]:
    with ExitStack() as stack:
        try:
            old = stack.enter_context(BrokerProcess(tree=str(base)))
        except AssertionError as error:
            raise OSError(f"an earlier one may need packages that are not here: {error}") from error
        before, now = cases(old), cases(stack.enter_context(BrokerProcess(tree=str(ROOT))))
        for work in (*before.values(), *now.values()):  # the first run of each does not count
            work()
        pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in now}
        ends = time.perf_counter() + BUDGET_S
        for number in range(PAIRS):
            if number >= _LEAST_PAIRS and time.perf_counter() > ends:
                break
            for name, taken in pairs.items():
                if number % 2:
                    cost = now[name]()
                    taken.append((before[name](), cost))
                else:
                    cost = before[name]()
                    taken.append((cost, now[name]()))
        for name, taken in pairs.items():
            yield found(name, taken)
