"""Admin calls about tenants and namespaces, asked of a whole broker."""

from tests.pulsar.admin.harness import Admin, admin_broker
from tests.pulsar.clients import client


def test_tenants_and_namespaces_are_made_and_deleted(admin: Admin) -> None:
    assert ["public"] == admin.get("/admin/v2/tenants")
    body = {"adminRoles": ["anonymous"], "allowedClusters": ["standalone"]}
    admin.do("PUT", "/admin/v2/tenants/shop", body)
    assert 409 == admin.ask("PUT", "/admin/v2/tenants/shop", body)[0]
    assert body == admin.get("/admin/v2/tenants/shop")
    admin.do("POST", "/admin/v2/tenants/shop", {"adminRoles": ["me"]})
    assert ["me"] == admin.get("/admin/v2/tenants/shop")["adminRoles"]
    admin.do("PUT", "/admin/v2/namespaces/shop/eu", {"replication_clusters": ["standalone"]})
    admin.do("PUT", "/admin/v2/namespaces/shop/us?bundles=1")
    assert 409 == admin.ask("PUT", "/admin/v2/namespaces/shop/eu")[0]
    assert ["shop/eu", "shop/us"] == admin.get("/admin/v2/namespaces/shop")
    assert 409 == admin.ask("DELETE", "/admin/v2/tenants/shop")[0]
    admin.do("DELETE", "/admin/v2/namespaces/shop/eu")
    admin.do("DELETE", "/admin/v2/namespaces/shop/us")
    admin.do("DELETE", "/admin/v2/tenants/shop")
    assert 404 == admin.ask("GET", "/admin/v2/namespaces/shop")[0]
    assert 404 == admin.ask("GET", "/admin/v2/tenants/shop")[0]


def test_clients_use_a_namespace_from_when_it_is_made(admin: Admin) -> None:
    topic = "/admin/v2/persistent/public/other/t"
    assert 404 == admin.ask("PUT", topic)[0]
    admin.do("PUT", "/admin/v2/namespaces/public/other")
    with client(admin.service_url) as pulsar:
        pulsar.create_producer("persistent://public/other/t").send(b"x")
    assert ["persistent://public/other/t"] == admin.get("/admin/v2/persistent/public/other")
    assert 409 == admin.ask("DELETE", "/admin/v2/namespaces/public/other")[0]
    admin.do("DELETE", "/admin/v2/namespaces/public/other?force=true")
    assert 404 == admin.ask("PUT", topic)[0]


def test_namespaces_of_the_settings_stay() -> None:
    with admin_broker(pulsar_namespaces=["public/default", "private/auth"]) as admin:
        assert ["private", "public"] == admin.get("/admin/v2/tenants")
        assert 405 == admin.ask("DELETE", "/admin/v2/namespaces/private/auth?force=true")[0]
        assert ["private/auth"] == admin.get("/admin/v2/namespaces/private")


def test_a_namespace_is_unloaded(admin: Admin) -> None:
    topic = admin.topic("t")
    admin.do("PUT", "/admin/v2/namespaces/public/default/0x00000000_0xffffffff/unload")
    assert topic.closed
    topic = admin.topic("t")
    admin.do("PUT", "/admin/v2/namespaces/public/default/unload")
    assert topic.closed
    assert 1 == admin.get("/admin/v2/namespaces/public/default/bundles")["numBundles"]


def test_what_makes_no_sense_is_refused(admin: Admin) -> None:
    for method, path, body, status in [
        ("PUT", "/admin/v2/tenants/a%20b", None, 412),
        ("PUT", "/admin/v2/tenants/a%2Fb", None, 412),
        ("PUT", "/admin/v2/tenants/x", [1], 400),
        ("PUT", "/admin/v2/tenants/x", {"adminRoles": "me"}, 400),
        ("PUT", "/admin/v2/tenants/x", {"allowedClusters": ["us-west"]}, 412),
        ("PUT", "/admin/v2/namespaces/no/where", None, 404),
        ("PUT", "/admin/v2/namespaces/public/a%20b", None, 412),
        ("PUT", "/admin/v2/namespaces/public/x", {"replication_clusters": ["us-west"]}, 412),
        ("DELETE", "/admin/v2/namespaces/no/where", None, 404),
        ("DELETE", "/admin/v2/tenants/no", None, 404),
    ]:
        assert status == admin.ask(method, path, body)[0], (method, path, body)
    assert ["public"] == admin.get("/admin/v2/tenants")
