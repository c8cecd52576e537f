"""Every scenario runs, in its smallest form. What it measures is looked at by hand: ``make bench``."""

import importlib.util
import json
import subprocess
import sys

import pytest

from tests.bench.__main__ import SCENARIOS, listing
from tests.bench.connections import compiler
from tests.bench.frame import Options, compared
from tests.bench.process import ROOT
from tests.durable.postgres import PostgresServer

# By scenario: its cheapest section. Spark and Flink take long to start; tests/spark and tests/compat/flink run what they use.
_CHEAPEST = {
    "kafka": "produce",
    "connections": "3-small",
    "fsync": "latency",
    "durable": "takeover",
    "cluster": "topics",
    "scale": "idle",
    "rest": "start",
    "pieces": "share",
    "shuffle": "latency",
    "pulsar": "exclusive",
    "groups": "heartbeat",
    "queues": "acknowledge",
    "security": "handshake",
    "parts": "http",
}
_SMALLEST = ("--scale", "0.0004", "--rounds", "1", "--seconds", "0.05", "--json")


@pytest.mark.parametrize("scenario", _CHEAPEST)
def test_scenario_measures_in_its_smallest_form(scenario: str) -> None:
    if scenario == "queues" and importlib.util.find_spec("confluent_kafka") is None:
        pytest.skip("needs confluent-kafka")
    if scenario in ("durable", "cluster") and not (PostgresServer.installed() and importlib.util.find_spec("obstore")):
        pytest.skip("needs PostgreSQL and obstore")
    if scenario == "connections" and compiler() is None:
        pytest.skip("needs a C compiler")
    command = [sys.executable, "-m", "tests.bench", scenario, _CHEAPEST[scenario], *_SMALLEST]
    answer = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert json.loads(answer)["rows"]


def test_scenario_is_in_the_listing() -> None:
    assert {*_CHEAPEST, "flink", "spark", "check"} == set(SCENARIOS)
    assert list(SCENARIOS) == [line.split()[0] for line in listing().splitlines()]


def test_variants_are_compared_round_by_round() -> None:
    figures = iter([{"s": 1.0}, {"s": 2.0}, {"s": 40.0}, {"s": 10.0}, {"s": 2.0}, {"s": 6.0}])
    rows = list(compared(3, {"before": lambda: next(figures), "now": lambda: next(figures)}, "x "))
    # The second round begins with the second variant.
    assert [("x before", {"s": 2.0}), ("x now", {"s": 6.0, "s ratio": 3.0})] == [tuple(row) for row in rows]


def test_scale_keeps_the_least_count() -> None:
    options = Options(scale=0.001)
    assert (10, 5, 1) == (options.count(10_000), options.count(10, 5), options.count(1))
