"""``GET /metrics`` of a whole broker."""

import http.client
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from broker.client.embedded import Broker
from broker.config import load
from broker.metrics import names
from broker.metrics.registry import OPENMETRICS, PROMETHEUS
from broker.security.acl import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from broker.server import BrokerServer


class Reply(NamedTuple):
    status: int
    content_type: str
    body: str


def fetch(server: BrokerServer, **headers: str) -> Reply:
    connection = http.client.HTTPConnection(server.listeners["http"], timeout=30)
    connection.request("GET", "/metrics", headers=headers)
    reply = connection.getresponse()
    body = reply.read().decode()
    connection.close()
    return Reply(reply.status, reply.headers["content-type"], body)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BrokerServer]:
    made = BrokerServer(load(data_dir=str(tmp_path), listeners=["http://127.0.0.1:0", "kafka://127.0.0.1:0"]))
    made.start()
    yield made
    made.stop()


def test_prometheus_reads_all_metrics(server: BrokerServer) -> None:
    reply = fetch(server)
    assert (200, PROMETHEUS) == (reply.status, reply.content_type)
    families = {family.name: family for family in parse_prometheus(reply.body)}
    assert "counter" == families[names.NETWORK_REQUESTS.name].type
    assert {"http", "kafka"} >= {
        sample.labels["listener"] for sample in families["broker_listener_connections"].samples
    }


def test_openmetrics_is_sent_on_request(server: BrokerServer) -> None:
    reply = fetch(server, accept="application/openmetrics-text;version=1.0.0")
    assert (200, OPENMETRICS) == (reply.status, reply.content_type)
    families = {family.name: family for family in parse_openmetrics(reply.body)}
    assert names.NETWORK_REQUESTS.doc == families[names.NETWORK_REQUESTS.name].documentation


def test_metrics_need_describe_cluster_with_an_authorizer() -> None:
    with Broker(listeners=["http://127.0.0.1:0"], authorizer_class_name="acl") as broker:
        assert 403 == fetch(broker.server).status
        authorizer = broker.server.security.authorizer
        assert authorizer is not None
        acl = Acl(
            ResourceType.CLUSTER,
            CLUSTER_NAME,
            PatternType.LITERAL,
            "User:ANONYMOUS",
            "*",
            Operation.DESCRIBE,
            Permission.ALLOW,
        )
        assert [None] == authorizer.create([acl])
        assert 200 == fetch(broker.server).status


def test_a_page_of_another_site_gets_nothing(server: BrokerServer) -> None:
    assert 403 == fetch(server, host="evil.example").status
    assert 403 == fetch(server, origin="https://evil.example").status
