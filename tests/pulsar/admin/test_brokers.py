"""What is said about the cluster and its broker."""

import pytest

from broker.pulsar.admin import brokers
from tests.pulsar.admin.harness import PERSISTENT, Admin, admin_broker
from tests.pulsar.clients import client

CONFIGURATION = "/admin/v2/brokers/configuration"


def test_there_is_one_cluster_with_one_broker(admin: Admin) -> None:
    assert ["standalone"] == admin.get("/admin/v2/clusters")
    address = admin.broker.address("http")
    assert [address] == admin.get("/admin/v2/brokers") == admin.get("/admin/v2/brokers/standalone")
    assert admin.service_url == admin.get("/admin/v2/clusters/standalone")["brokerServiceUrl"]
    assert f"http://{address}" == admin.get("/admin/v2/brokers/leaderBroker")["serviceUrl"]
    assert 404 == admin.ask("GET", "/admin/v2/clusters/other")[0]
    assert 404 == admin.ask("GET", "/admin/v2/brokers/other")[0]


def test_no_other_cluster_is_made(admin: Admin) -> None:
    assert 409 == admin.ask("PUT", "/admin/v2/clusters/standalone", {"serviceUrl": "http://localhost:8080"})[0]
    assert 412 == admin.ask("PUT", "/admin/v2/clusters/other", {})[0]
    assert ["standalone"] == admin.get("/admin/v2/clusters")


def test_the_broker_is_healthy(admin: Admin) -> None:
    assert (200, b"ok") == (
        admin.raw("GET", "/admin/v2/brokers/health")[0],
        admin.raw("GET", "/admin/v2/brokers/health")[2],
    )
    assert b"ok" == admin.raw("GET", "/admin/v2/brokers/ready")[2]
    assert 200 == admin.raw("GET", "/admin/v2/brokers/version")[0]


def test_the_broker_has_all_namespaces(admin: Admin) -> None:
    address = admin.broker.address("http")
    found = admin.get(f"/admin/v2/brokers/standalone/{address}/ownedNamespaces")
    assert ["public/default/0x00000000_0xffffffff"] == [*found]
    for path in (f"other/{address}", "standalone/elsewhere:8080"):
        assert 404 == admin.ask("GET", f"/admin/v2/brokers/{path}/ownedNamespaces")[0]


def test_settings_are_shown_without_secrets() -> None:
    with admin_broker(pulsar_token_secret_key="c2VjcmV0" * 8, pulsar_deduplication=True) as admin:
        found = admin.get(CONFIGURATION + "/runtime")
        assert ("true", "public/default") == (found["pulsar_deduplication"], found["pulsar_namespaces"])
        assert all(isinstance(text, str) for text in found.values())
        assert "c2VjcmV0" not in str(found)


def test_settings_are_changed_while_the_broker_runs(admin: Admin) -> None:
    assert {} == admin.get(CONFIGURATION + "/values")
    names = admin.get(CONFIGURATION)
    assert "log.retention.ms" in names
    assert not [name for name in names if name.startswith("ssl")]
    admin.do("POST", CONFIGURATION + "/log.retention.ms/60000")
    assert {"log.retention.ms": "60000"} == admin.get(CONFIGURATION + "/values")
    assert "60000" == admin.get(CONFIGURATION + "/runtime")["log.retention.ms"]
    assert 60_000 == admin.context.live.in_force.log_retention_ms
    for path in ("log.retention.ms/soon", "log.retention.ms/NaN", "listeners/x", "no.such/1", "ssl.key.password/x"):
        assert 412 == admin.ask("POST", f"{CONFIGURATION}/{path}")[0], path
    admin.do("DELETE", CONFIGURATION + "/log.retention.ms")
    assert {} == admin.get(CONFIGURATION + "/values")
    assert 412 == admin.ask("DELETE", CONFIGURATION + "/listeners")[0]


def test_the_figures_of_the_broker(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    admin.do("PUT", f"{PERSISTENT}/t/subscription/s")
    with client(admin.service_url) as pulsar:
        pulsar.create_producer("t").send(b"x")
        pulsar.create_producer("non-persistent://public/default/n").send(b"x")
        for path in ("topics", "destinations"):
            found = admin.get(f"/admin/v2/broker-stats/{path}")["public/default"]["0x00000000_0xffffffff"]
            assert 1 == found["persistent"]["persistent://public/default/t"]["msgInCounter"]
            assert 1 == found["non-persistent"]["non-persistent://public/default/n"]["msgInCounter"]
        metrics = admin.get("/admin/v2/broker-stats/metrics")
        assert all(each["metrics"] and isinstance(each["dimensions"], dict) for each in metrics)
        assert [each for each in metrics if not each["dimensions"]]
    assert [] == admin.get("/admin/v2/broker-stats/mbeans")
    monkeypatch.setattr(brokers, "_FIGURES_MAX", 2)
    assert 413 == admin.ask("GET", "/admin/v2/broker-stats/topics")[0]
