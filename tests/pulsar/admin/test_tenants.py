"""Admin calls about tenants and namespaces, asked of a whole broker."""

import pytest
from pulsar import PulsarException

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


def test_namespace_is_usable_as_soon_as_created(admin: Admin) -> None:
    topic = "/admin/v2/persistent/public/other/t"
    assert 404 == admin.ask("PUT", topic)[0]
    admin.do("PUT", "/admin/v2/namespaces/public/other")
    with client(admin.service_url) as pulsar:
        pulsar.create_producer("persistent://public/other/t").send(b"x")
    assert ["persistent://public/other/t"] == admin.get("/admin/v2/persistent/public/other")
    assert 409 == admin.ask("DELETE", "/admin/v2/namespaces/public/other")[0]
    admin.do("DELETE", "/admin/v2/namespaces/public/other?force=true")
    assert 404 == admin.ask("PUT", topic)[0]


def test_a_namespace_is_made_with_its_policies(admin: Admin) -> None:
    path = "/admin/v2/namespaces/public/other"
    body = {
        "replication_clusters": ["standalone"],
        "encryption_required": True,
        "schema_validation_enforced": False,
        "max_producers_per_topic": 10,
        "message_ttl_in_seconds": None,
        "topicDispatchRate": {"standalone": {"dispatchThrottlingRateInMsg": 5}},
        "subscriptionDispatchRate": {},
        "backlog_quota_map": {
            "destination_storage": {"limitSize": 1000, "policy": "producer_exception"},
            "message_age": {"limitTime": 60, "policy": "producer_exception"},
        },
        "some_new_policy": {"unknown": 1},
    }
    for wrong in ({"max_producers_per_topic": "many"}, {"topicDispatchRate": 5}, {"backlog_quota_map": [1]}):
        assert admin.ask("PUT", path, wrong)[0] in (400, 412)
    admin.do("PUT", path, body)
    assert 409 == admin.ask("PUT", path, {"encryption_required": False})[0]
    policies = admin.context.policies.namespace("public/other")
    assert (True, 10, None) == (
        policies.encryption_required,
        policies.max_producers,
        policies.schema_validation_enforced,
    )
    assert admin.get(path + "/encryptionRequired") is True
    shown = admin.get(path)
    assert (True, 10) == (shown["encryption_required"], shown["max_producers_per_topic"])
    assert 5 == shown["topicDispatchRate"]["standalone"]["dispatchThrottlingRateInMsg"]
    assert (1000, 60) == tuple(shown["backlog_quota_map"]["message_age"][key] for key in ("limitSize", "limitTime"))
    # PUT accepts what GET shows.
    admin.do("PUT", path + "-2", shown)
    assert shown == admin.get(path + "-2")
    assert policies == admin.context.policies.namespace("public/other-2")
    with client(admin.service_url, operation_timeout_seconds=3) as pulsar, pytest.raises(PulsarException):
        pulsar.create_producer("persistent://public/other/t")


def test_namespace_is_created_with_java_client_policies(admin: Admin) -> None:
    body = {
        "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
        "replication_clusters": ["standalone"],
        "bundles": None,
        "backlog_quota_map": {},
        "clusterDispatchRate": {},
        "clusterSubscribeRate": {},
        "persistence": None,
        "deduplicationEnabled": None,
        "autoTopicCreationOverride": {
            "allowAutoTopicCreation": True,
            "topicType": "partitioned",
            "defaultNumPartitions": 2,
        },
        "autoSubscriptionCreationOverride": None,
        "subscription_auth_mode": "None",
        "max_topics_per_namespace": 7,
        "inactive_topic_policies": None,
        "offload_threshold": -1,
        "schema_compatibility_strategy": "UNDEFINED",
        "subscription_types_enabled": [],
        "properties": {"team": "a"},
    }
    path = "/admin/v2/namespaces/public/java"
    admin.do("PUT", path, body)
    policies = admin.context.policies.namespace("public/java")
    assert (7, None, {"team": "a"}) == (policies.max_topics, policies.subscription_types, policies.properties)
    shown = admin.get(path)
    assert body["autoTopicCreationOverride"] == shown["autoTopicCreationOverride"]
    admin.do("PUT", path + "-2", shown)
    assert shown == admin.get(path + "-2")


def test_new_namespace_does_not_inherit_policies_of_deleted(admin: Admin) -> None:
    admin.context.policies.set_namespace("public/other", encryption_required=True)
    admin.do("PUT", "/admin/v2/namespaces/public/other")
    assert (204, None) == admin.ask("GET", "/admin/v2/namespaces/public/other/encryptionRequired")


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
