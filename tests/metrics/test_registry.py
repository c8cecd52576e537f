"""Counters, gauges and histograms: cells per thread, summed when read."""

import pytest

from broker.metrics import Registry
from broker.metrics.metric import Kind, Metric

REQUESTS = Metric("broker_requests", Kind.COUNTER, "Requests.", ("api",))
CONNECTIONS = Metric("broker_connections", Kind.GAUGE, "Open connections.", ("listener",))
SECONDS = Metric("broker_seconds", Kind.HISTOGRAM, "Time.", bounds=(0.1, 1.0))


def test_counter_sums_the_cells_of_each_label() -> None:
    counter = Registry().counter(REQUESTS)
    one, other, fetch = counter.cell("produce"), counter.cell("produce"), counter.cell("fetch")
    one.value += 2
    other.value += 3
    fetch.value += 1
    assert {("produce",): 5, ("fetch",): 1} == counter.read()


def test_histogram_bounds_are_inclusive() -> None:
    histogram = Registry().histogram(SECONDS)
    one, other = histogram.cell(), histogram.cell()
    for value in (0.05, 0.1, 0.2):
        one.observe(value)
    other.observe(5)
    assert {(): ([2, 1, 1], 5.35)} == histogram.read()


def test_two_metrics_of_one_name_are_a_bug() -> None:
    registry = Registry()
    registry.counter(REQUESTS)
    with pytest.raises(AssertionError, match="broker_requests"):
        registry.counter(REQUESTS)


def test_metric_of_undeclared_kind_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="broker_requests is declared as a counter"):
        Registry().gauge(REQUESTS, dict)


def test_a_cell_has_a_value_for_every_label() -> None:
    with pytest.raises(AssertionError):
        Registry().counter(REQUESTS).cell()


def test_the_present_values_can_be_read_by_metric() -> None:
    registry = Registry()
    registry.gauge(CONNECTIONS, lambda: {("kafka",): 3})
    registry.histogram(SECONDS).cell().observe(0.5)
    assert {("kafka",): 3} == registry.values(CONNECTIONS)
    assert {} == registry.values(REQUESTS)
    assert {(): ([0, 1, 0], 0.5)} == registry.ranges(SECONDS)


def test_bounds_ascend_and_belong_to_histograms() -> None:
    with pytest.raises(AssertionError):
        Metric("broker_seconds", Kind.HISTOGRAM, "Time.", bounds=(1.0, 0.1))
    with pytest.raises(AssertionError):
        Metric("broker_seconds", Kind.HISTOGRAM, "Time.")
    with pytest.raises(AssertionError):
        Metric("broker_requests", Kind.COUNTER, "Requests.", bounds=(1.0,))
