"""Counters, gauges and histograms: cells per thread, summed when read, in Prometheus's format."""

import pytest

from broker.metrics import Registry


def test_a_counter_is_the_sum_of_the_cells_of_each_label() -> None:
    counter = Registry().counter("broker_requests", "Requests.", ("api",))
    one, other, fetch = counter.cell("produce"), counter.cell("produce"), counter.cell("fetch")
    one.value += 2
    other.value += 3
    fetch.value += 1
    assert {("produce",): 5, ("fetch",): 1} == counter.read()


def test_a_histogram_counts_values_up_to_and_including_each_bound() -> None:
    histogram = Registry().histogram("broker_seconds", "Time.", (0.1, 1.0))
    one, other = histogram.cell(), histogram.cell()
    for value in (0.05, 0.1, 0.2):
        one.observe(value)
    other.observe(5)
    assert {(): ([2, 1, 1], 5.35)} == histogram.read()


def test_all_metrics_are_rendered_for_prometheus() -> None:
    registry = Registry()
    registry.counter("broker_requests", "Requests.", ("api",)).cell('pro"duce').value += 2
    registry.gauge("broker_connections", "Open connections.", lambda: {("kafka",): 3}, ("listener",))
    registry.histogram("broker_seconds", "Time.", (0.1, 1)).cell().observe(0.5)
    lines = registry.render().decode().splitlines()
    for line in (
        r'broker_requests_total{api="pro\"duce"} 2.0',
        'broker_connections{listener="kafka"} 3.0',
        'broker_seconds_bucket{le="0.1"} 0.0',
        'broker_seconds_bucket{le="1"} 1.0',
        'broker_seconds_bucket{le="+Inf"} 1.0',
        "broker_seconds_count 1.0",
        "broker_seconds_sum 0.5",
        "# HELP broker_connections Open connections.",
    ):
        assert line in lines


def test_two_metrics_of_one_name_are_a_bug() -> None:
    registry = Registry()
    registry.counter("broker_requests", "Requests.")
    with pytest.raises(AssertionError, match="broker_requests"):
        registry.gauge("broker_requests", "Requests.", dict)


def test_a_cell_has_a_value_for_every_label() -> None:
    with pytest.raises(AssertionError):
        Registry().counter("broker_requests", "Requests.", ("api",)).cell()


def test_what_is_counted_elsewhere_is_read_when_it_is_rendered() -> None:
    registry = Registry()
    counted = {("0",): 1.0}
    registry.read_counter("broker_requests", "Requests.", lambda: counted, ("processor",))
    counted["0",] = 7
    assert 'broker_requests_total{processor="0"} 7.0' in registry.render().decode().splitlines()
