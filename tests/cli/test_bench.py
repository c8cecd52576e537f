"""`broker bench`: what it prints, and what it leaves behind. No test looks at how fast anything is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cli.bench import Load, Measured, produce
from broker.client import Broker
from broker.client.kafka import ClientConfig, Cluster
from tests.cli.conftest import Run


def test_all_three_are_measured_and_nothing_stays(run: Run) -> None:
    result = run("bench", "--seconds", "0.2", "--record-size", "50", "-z", "lz4", "-p", "2", "--output", "json")
    results = [json.loads(line) for line in result.stdout.splitlines()]
    assert ["produce", "consume", "end-to-end"] == [measured["test"] for measured in results]
    for measured in results:
        assert "own client" in measured["client"]
        assert measured["records"] > 0
        assert measured["requests"] > 0
        latency = measured["latency_ms"]
        assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"] <= latency["p99.9"] <= latency["max"]
    assert results[0]["records"] * 50 == results[0]["bytes"]
    assert b"broker-bench" not in run("topics", "list").stdout


def test_existing_topic_is_written_at_rate_and_kept(run: Run, topic: str) -> None:
    run("topics", "create", topic)
    arguments = ("--topic", topic, "--seconds", "0.5", "--rate", "1000", "--batch-size", "1k", "--acks", "1")
    (line,) = run("bench", "produce", *arguments).stdout.decode().splitlines()
    assert line.startswith("produce\t")
    (described,) = run("topics", "describe", topic, "--output", "json").stdout.splitlines()
    written = json.loads(described)["partitions"][0]["end_offset"]
    # With those of one batch that opens the connection; the rate is a bound.
    assert 0 < int(line.split("\t")[1]) <= written <= 1000
    assert b"There is no topic" in run("bench", "--topic", f"{topic}x", fails=1).stderr
    assert b"leave out --topic" in run("bench", "--topic", topic, "-p", "2", fails=2).stderr
    assert b"16k" in run("bench", "--batch-size", "big", fails=2).stderr


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_run_ends_on_request_or_after_enough(session_broker: Broker, topic: str, acks: str) -> None:
    config = ClientConfig.from_properties({"bootstrap.servers": session_broker.bootstrap_servers})
    with Cluster(config) as cluster:
        cluster.make_topics([topic])
        load = Load(10, 5, acks, bytes_max=1000)
        assert 100 == produce(cluster, topic, [0], load, 60, lambda: False).records
        assert 0 == produce(cluster, topic, [0], load, 60, lambda: True).records


@given(st.lists(st.floats(0, 10), min_size=1).map(sorted), st.floats(0.1, 100))
def test_percentile_is_the_smallest_latency_not_exceeded(latencies: list[float], percent: float) -> None:
    value = Measured("produce", 1, 1, 1.0, latencies).percentile_ms(percent)
    assert value is not None
    assert value / 1000 in [latency * 1000 / 1000 for latency in latencies]
    assert sum(latency * 1000 <= value for latency in latencies) >= len(latencies) * percent / 100 - 1e-9


def test_percentile_needs_latencies() -> None:
    assert Measured("produce", 1, 1, 1.0, []).percentile_ms(50) is None
