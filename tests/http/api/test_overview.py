"""The overview, and the sampler's figures in it."""

import pytest

from broker.http.assembly import Sampler
from broker.runtime import system_runtime
from broker.web.history import Figures
from tests.http.api.harness import api_broker, differences, documented
from tests.waiting import wait_for


def test_the_overview_has_the_figures_of_the_broker() -> None:
    with api_broker() as api:
        api.kafka.logs.create_topic("orders", 3)
        api.produce("orders", *[b"value"] * 10)
        api.commit("billing", "orders", 4)
        api.http.sampler.sample()  # too early after the first: left out
        wait_for(lambda: api.get("/overview")["groups"] == 1)
        overview = api.get("/overview")
        assert [] == differences(documented("/api/v1/overview"), overview)
        assert (1, 3, 0) == (overview["topics"], overview["partitions"], overview["offline_partitions"])
        assert {"status": "ok", "reasons": []} == overview["health"]
        assert ["kafka", "http"] == [each["name"] for each in overview["listeners"]]
        assert 0 < overview["log_bytes"]
        assert overview["started_ms"] <= overview["now_ms"]


def test_rates_are_those_of_the_last_sample() -> None:
    figures = Figures()
    counted = {"requests": 0.0}
    figures.counters["requests"] = lambda: counted["requests"]
    figures.sample(100.0, 100_000)
    counted["requests"] = 50
    figures.sample(105.0, 105_000)
    assert {"requests": 10.0} == figures.values


def test_offline_partition_is_reason_for_bad_health() -> None:
    with api_broker() as api:
        api.kafka.logs.create_topic("orders", 2)
        api.kafka.logs.partitions["orders", 1].state.go_offline("the disk has failed")
        wait_for(lambda: api.get("/overview")["offline_partitions"] == 1)
        expected = {"status": "degraded", "reasons": ["1 partition is offline: orders-1."]}
        assert expected == api.get("/overview")["health"]
        # The other one is served.
        assert (200, b"ok\n1 partition is offline: orders-1.\n") == api.raw("/readyz")
        assert (503, b"1 partition is offline: orders-1.\n") == api.raw("/readyz?strict=true")
        assert 400 == api.raw("/readyz?strict=perhaps")[0]
        api.kafka.logs.partitions["orders", 0].state.go_offline("the disk has failed")
        wait_for(lambda: api.raw("/readyz") == (503, b"2 partitions are offline: orders-0, orders-1.\n"))
        assert (200, b"ok\n") == api.raw("/healthz")


def test_unreadable_figure_does_not_end_the_sampler(capsys: pytest.CaptureFixture[str]) -> None:
    figures = Figures()
    figures.whole["broken"] = lambda: 1 // 0
    sampler = Sampler(figures, system_runtime().clock)
    assert sampler.step(0)
    assert "sample_failed" in capsys.readouterr().err
    assert not sampler.step(0)  # not due yet
