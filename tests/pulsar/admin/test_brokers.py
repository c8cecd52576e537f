"""What is said about the cluster and its broker."""

from tests.pulsar.admin.harness import Admin


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
