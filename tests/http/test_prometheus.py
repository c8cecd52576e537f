"""Prometheus itself, where it is installed: it scrapes a broker, and promtool reads metrics, queries and configuration.

Prometheus asks for OpenMetrics, promtool reads the text format.
"""

import http.client
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, Producer

from broker.client.embedded import Broker
from tests.compat.clients.librdkafka import settings
from tests.waiting import wait_for

DOCKER = Path(__file__).parents[2] / "docker"
LISTENERS = ("kafka://127.0.0.1:0", "shuffle://127.0.0.1:0", "pulsar://127.0.0.1:0", "http://127.0.0.1:0")


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"there is no {name} (apt install prometheus)")
    return path


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """With a topic, and a group that is behind."""
    with Broker(listeners=LISTENERS) as broker:
        producer = Producer(settings(broker.bootstrap_servers))
        for _ in range(10):
            producer.produce("orders", b"x")
        assert 0 == producer.flush(30)
        consumer = Consumer(settings(broker.bootstrap_servers, group_id="billing", auto_offset_reset="earliest"))
        consumer.subscribe(["orders"])
        wait_for(lambda: consumer.poll(0.1))
        consumer.commit(asynchronous=False)
        consumer.close()
        yield broker


def test_promtool_complains_of_kafka_and_pulsar_names_only(broker: Broker) -> None:
    connection = http.client.HTTPConnection(broker.address("http"), timeout=60)
    connection.request("GET", "/metrics")
    metrics = connection.getresponse().read()
    connection.close()
    checked = subprocess.run(
        [tool("promtool"), "check", "metrics"], check=False, input=metrics, capture_output=True, timeout=60
    )
    said = checked.stderr.decode().splitlines() + checked.stdout.decode().splitlines()
    # These are their names, which dashboards read.
    theirs = re.compile(
        r'(kafka|pulsar)_\w+_(count|sum) non-histogram and non-summary metrics should not have "_(count|sum)"'
    )
    assert [] == [line for line in said if line and not theirs.match(line)]


def test_prometheus_scrapes_the_broker(broker: Broker, tmp_path: Path) -> None:
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "broker", "static_configs": [{"targets": [broker.address("http")]}]}],
    }
    (tmp_path / "prometheus.yaml").write_text(json.dumps(config))  # YAML, too
    arguments = ["--web.listen-address=127.0.0.1:0", f"--storage.tsdb.path={tmp_path / 'data'}", "--log.level=info"]
    process = subprocess.Popen(
        [tool("prometheus"), f"--config.file={tmp_path / 'prometheus.yaml'}", *arguments],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        said = []
        address = None
        for line in process.stderr:
            said.append(line)
            found = re.search(r"msg=\"Listening on\" address=([^ ]+)", line)
            if found:
                address = found[1].strip()
                break
        assert address is not None, "".join(said)

        def get(path: str) -> bytes | None:
            connection = http.client.HTTPConnection(address, timeout=30)
            try:
                connection.request("GET", path)
                reply = connection.getresponse()
                return reply.read() if reply.status == 200 else None
            finally:
                connection.close()

        def ask(path: str) -> Any:
            return json.loads(get(f"/api/v1/{path}") or b"{}")["data"]

        def value(query: str) -> float | None:
            result = ask(f"query?query={quote(query)}")["result"]
            return float(result[0]["value"][1]) if result else None

        wait_for(lambda: get("/-/ready"))
        wait_for(lambda: value("up") is not None)
        (target,) = ask("targets")["activeTargets"]
        assert ("up", "") == (target["health"], target["lastError"])
        assert 1.0 == value("up")
        assert 9.0 == value('sum(kafka_consumergroup_lag{consumergroup="billing",topic="orders"})')
        assert 10.0 == value('sum(kafka_server_brokertopicmetrics_messagesin_total{topic="orders"})')
    finally:
        process.kill()
        process.communicate()


def test_dashboard_queries_and_configuration_are_valid(tmp_path: Path) -> None:
    promtool = tool("promtool")
    subprocess.run(
        [promtool, "check", "config", str(DOCKER / "prometheus" / "prometheus.yaml")], check=True, timeout=60
    )
    dashboard = json.loads((DOCKER / "grafana" / "dashboards" / "broker.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(queries) > 10
    rules = [
        {"record": f"query:{number}", "expr": re.sub(r"\$__rate_interval|\$__range|\$__interval", "1m", query)}
        for number, query in enumerate(queries)
    ]
    (tmp_path / "rules.yaml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    subprocess.run([promtool, "check", "rules", str(tmp_path / "rules.yaml")], check=True, timeout=60)
