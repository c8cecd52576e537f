"""What a client may do over HTTP, and who it is."""

import base64
import hashlib
import hmac
import http.client
import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker.pulsar.assembly import admin_routes
from broker.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from broker.security.acl_authorizer import AclAuthorizer
from protocol.pulsar import pulsar_pb2 as pb
from tests import certificates
from tests.pulsar.admin.harness import PERSISTENT, Admin, admin_broker
from tests.pulsar.wire import Type, Wire, send_frame

KEY = b"k" * 32
LISTENERS = ("pulsar+sasl://127.0.0.1:0", "http://127.0.0.1:0")
SETTINGS: dict[str, Any] = {
    "listeners": LISTENERS,
    "pulsar_token_secret_key": base64.b64encode(KEY).decode(),
    "authorizer_class_name": "acl",
    "super_users": "User:root",
    "connection_failed_authentication_delay_ms": 1,
}


def token(user: str, key: bytes = KEY) -> str:
    def part(value: bytes) -> str:
        return base64.urlsafe_b64encode(value).decode().rstrip("=")

    head = f"{part(json.dumps({'alg': 'HS256'}).encode())}.{part(json.dumps({'sub': user}).encode())}"
    return f"{head}.{part(hmac.digest(key, head.encode(), hashlib.sha256))}"


def as_user(user: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(user)}"}


@pytest.fixture(scope="module")
def secured() -> Iterator[Admin]:
    with admin_broker(**SETTINGS) as made:
        for path in ("t/subscription/s", "other"):
            assert 204 == made.ask("PUT", f"{PERSISTENT}/{path}", **as_user("root"))[0]
        assert 204 == made.ask("PUT", f"{PERSISTENT}/parts/partitions", 2, **as_user("root"))[0]
        yield made


def allow(admin: Admin, user: str, *rights: tuple[ResourceType, str, Operation]) -> None:
    authorizer = admin.context.authorizer
    assert isinstance(authorizer, AclAuthorizer)
    acls = [
        Acl(kind, name, PatternType.LITERAL, f"User:{user}", "*", op, Permission.ALLOW) for kind, name, op in rights
    ]
    assert [None] * len(acls) == authorizer.create(acls)


FILLED = {
    "{domain}": "persistent",
    "{tenant}": "public",
    "{namespace}": "default",
    "{topic}": "t",
    "{subscription}": "s",
    "{bundle}": "0x00000000_0xffffffff",
    "{role}": "me",
    "{cluster}": "standalone",
    "{count}": "1",
    "{seconds}": "1",
    "{timestamp}": "1",
    "{position}": "1",
    "{version}": "1",
    "{ledger}": "1",
    "{entry}": "1",
    "{key}": "team",
    "{value}": "a",
    "{setting}": "log.retention.ms",
    "{broker}": "localhost:8080",
}
# Every authenticated user may call these. Lists omit what the user may not see.
OPEN = {
    ("GET", "/admin/v2/clusters"),
    ("GET", "/admin/v2/brokers/health"),
    ("GET", "/admin/v2/brokers/ready"),
    ("GET", "/admin/v2/brokers/version"),
    ("GET", "/admin/v2/persistent/{tenant}/{namespace}"),
    ("GET", "/admin/v2/persistent/{tenant}/{namespace}/partitioned"),
    ("GET", "/admin/v2/non-persistent/{tenant}/{namespace}"),
    ("GET", "/admin/v2/non-persistent/{tenant}/{namespace}/partitioned"),
    ("GET", "/admin/v2/namespaces/{tenant}/{namespace}/topics"),
}


def paths(admin: Admin, **names: str) -> Iterator[tuple[str, str, str]]:
    filled = FILLED | {f"{{{name}}}": value for name, value in names.items()}
    for route in admin_routes(admin.context):
        path = route.pattern
        for name, value in filled.items():
            path = path.replace(name, value)
        assert "{" not in path
        yield route.method, route.pattern, path


def test_every_call_asks_who_the_client_is(secured: Admin) -> None:
    for method, pattern, path in paths(secured):
        status = secured.raw(method, path)[0]
        healthy = pattern.startswith("/admin/v2/brokers/") and pattern.rpartition("/")[2] in (
            "health",
            "ready",
            "version",
        )
        assert (200 if healthy else 401) == status, (method, path)


def test_every_call_asks_what_the_client_may_do(secured: Admin) -> None:
    before = secured.ask("GET", PERSISTENT, **as_user("root"))
    for method, pattern, path in paths(secured):
        status = secured.raw(method, path, headers=as_user("stranger"))[0]
        assert (200 if (method, pattern) in OPEN else 403) == status, (method, path)
    assert before == secured.ask("GET", PERSISTENT, **as_user("root"))
    assert (200, []) == secured.ask("GET", PERSISTENT, **as_user("stranger"))


@pytest.mark.parametrize("kind", ["topic", "subscription", "namespace", "tenant"])
def test_who_may_do_nothing_cannot_tell_what_exists(secured: Admin, kind: str) -> None:
    known = {"topic": ["t", "other", "parts"], "subscription": ["s"], "namespace": ["default"], "tenant": ["public"]}[
        kind
    ]
    answers: dict[tuple[str, str], set[tuple[int, bytes]]] = {}
    loaded = len(secured.context.topics.loaded())
    for name in (*known, "no-such-thing"):
        for method, pattern, path in paths(secured, **{kind: name}):
            if f"{{{kind}}}" in pattern and (method, pattern) not in OPEN:
                status, _, body = secured.raw(method, path, headers=as_user("stranger"))
                answers.setdefault((method, pattern), set()).add(
                    (status, re.sub(rf"\b{name}\b".encode(), b"NAME", body))
                )
    assert {call: each for call, each in answers.items() if len(each) > 1} == {}
    assert loaded == len(secured.context.topics.loaded())


def test_a_list_has_what_the_client_may_describe(secured: Admin) -> None:
    allow(secured, "reader", (ResourceType.TOPIC, "t", Operation.DESCRIBE))
    names = ["persistent://public/default/t"]
    assert (200, names) == secured.ask("GET", PERSISTENT, **as_user("reader"))
    assert 200 == secured.ask("GET", f"{PERSISTENT}/t/stats", **as_user("reader"))[0]
    assert 403 == secured.ask("POST", f"{PERSISTENT}/t/subscription/s/skip_all", **as_user("reader"))[0]


def test_subscription_needs_right_on_its_group(secured: Admin) -> None:
    allow(secured, "consumer", (ResourceType.TOPIC, "t", Operation.READ))
    path = f"{PERSISTENT}/t/subscription/s/skip_all"
    assert 403 == secured.ask("POST", path, **as_user("consumer"))[0]
    allow(secured, "consumer", (ResourceType.GROUP, "s", Operation.READ))
    assert 204 == secured.ask("POST", path, **as_user("consumer"))[0]


def test_subscription_of_missing_topic_needs_create_right(secured: Admin) -> None:
    domains = PERSISTENT, PERSISTENT.replace("persistent", "non-persistent")
    kafka_names = "new", "pulsar.public.default.new"
    allow(secured, "maker", *((ResourceType.TOPIC, name, Operation.READ) for name in kafka_names))
    allow(secured, "maker", (ResourceType.GROUP, "s", Operation.READ))
    for base in domains:
        assert 403 == secured.ask("PUT", f"{base}/new/subscription/s", **as_user("maker"))[0]
        assert 404 == secured.ask("GET", f"{base}/new/stats", **as_user("root"))[0]
    allow(secured, "maker", *((ResourceType.TOPIC, name, Operation.CREATE) for name in kafka_names))
    for base in domains:
        assert 204 == secured.ask("PUT", f"{base}/new/subscription/s", **as_user("maker"))[0]
        assert 204 == secured.ask("DELETE", f"{base}/new", **as_user("root"))[0]


@pytest.mark.parametrize(
    "header",
    [
        "Bearer",
        "Bearer x",
        "Bearer a.b.c",
        f"Bearer {token('root', b'x' * 32)}",
        "Bearer " + "x" * 10_000,
        "Basic !",
        "Basic cm9vdA==",
        "Basic " + base64.b64encode(b"root:guess").decode(),
        "Digest x",
        "\xe9",
    ],
)
def test_malformed_credentials_are_refused_and_not_logged(
    secured: Admin, header: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, headers, body = secured.raw("GET", "/admin/v2/tenants", headers={"Authorization": header})
    assert 401 == status
    assert "www-authenticate" in headers
    assert b"reason" in body
    assert token("root", b"x" * 32) not in capsys.readouterr().err


def test_script_request_triggers_no_browser_password_prompt(secured: Admin) -> None:
    _, headers, _ = secured.raw("GET", "/admin/v2/tenants", headers={"X-Requested-With": "XMLHttpRequest"})
    assert headers["www-authenticate"].startswith("Bearer ")
    assert "Basic" not in str(headers)
    assert "Basic" in str(secured.raw("GET", "/admin/v2/tenants")[1])


def test_permissions_of_a_topic_are_acls(secured: Admin) -> None:
    path = f"{PERSISTENT}/t/permissions"
    produce = (ResourceType.TOPIC, "t", Operation.WRITE)
    authorizer = secured.context.authorizer
    assert isinstance(authorizer, AclAuthorizer)
    assert 204 == secured.ask("POST", path + "/worker", ["produce", "consume"], **as_user("root"))[0]
    assert {"worker": ["produce", "consume"]}.items() <= secured.ask("GET", path, **as_user("root"))[1].items()
    from broker.security.principal import Principal

    worker = Principal("User", "worker")
    assert authorizer.allows(worker, "127.0.0.1", produce[2], produce[0], produce[1])
    assert not authorizer.allows(worker, "127.0.0.1", Operation.READ, ResourceType.GROUP, "any")
    skip = f"{PERSISTENT}/t/subscription/s/skip_all"
    assert 204 == secured.ask("POST", skip, **as_user("worker"))[0]
    assert not authorizer.allows(worker, "127.0.0.1", produce[2], produce[0], "other")
    assert 204 == secured.ask("DELETE", path + "/worker", **as_user("root"))[0]
    assert "worker" not in secured.ask("GET", path, **as_user("root"))[1]
    assert not authorizer.allows(worker, "127.0.0.1", produce[2], produce[0], produce[1])
    assert not [acl for acl in authorizer.rules if acl.principal == "User:worker"]


def test_consume_permission_covers_subscriptions_of_one_topic(secured: Admin) -> None:
    assert 204 == secured.ask("PUT", f"{PERSISTENT}/other/subscription/s", **as_user("root"))[0]
    assert 204 == secured.ask("POST", f"{PERSISTENT}/t/permissions/taster", ["consume"], **as_user("root"))[0]
    # The user may also read the other topic, as a consumer of Kafka's may.
    allow(secured, "taster", (ResourceType.TOPIC, "other", Operation.READ))
    assert 204 == secured.ask("POST", f"{PERSISTENT}/t/subscription/s/skip_all", **as_user("taster"))[0]
    assert 403 == secured.ask("POST", f"{PERSISTENT}/other/subscription/s/skip_all", **as_user("taster"))[0]
    # An ACL can deny a single subscription.
    authorizer = secured.context.authorizer
    assert isinstance(authorizer, AclAuthorizer)
    deny = Acl(ResourceType.GROUP, "s", PatternType.LITERAL, "User:taster", "*", Operation.READ, Permission.DENY)
    assert [None] == authorizer.create([deny])
    assert 403 == secured.ask("POST", f"{PERSISTENT}/t/subscription/s/skip_all", **as_user("taster"))[0]


def test_namespace_permissions_cover_only_its_topics(secured: Admin) -> None:
    from broker.security.principal import Principal

    for path in ("tenants/shop", "namespaces/shop/eu", "namespaces/shop/eu2"):
        assert 204 == secured.ask("PUT", f"/admin/v2/{path}", {}, **as_user("root"))[0]
    path = "/admin/v2/namespaces/shop/eu/permissions"
    assert 204 == secured.ask("POST", path + "/clerk", ["produce"], **as_user("root"))[0]
    assert (200, {"clerk": ["produce"]}) == secured.ask("GET", path, **as_user("root"))
    topics = {
        "persistent/shop/eu/orders": 200,
        "persistent/shop/eu2/orders": 403,
        "persistent/public/default/t": 403,
    }
    for topic, status in topics.items():
        assert status == secured.ask("GET", f"/lookup/v2/topic/{topic}", **as_user("clerk"))[0], topic
    authorizer = secured.context.authorizer
    assert authorizer is not None
    clerk = Principal("User", "clerk")
    assert not authorizer.allows(clerk, "127.0.0.1", Operation.READ, ResourceType.TOPIC, "pulsar.shop.eu.orders")


def test_what_is_no_permission_is_refused(secured: Admin) -> None:
    path = f"{PERSISTENT}/t/permissions/me"
    for body in ("produce", ["fly"], [["produce"]], {}, 1):
        assert 412 == secured.ask("POST", path, body, **as_user("root"))[0], body
    path = "/admin/v2/namespaces/shop/refused"
    secured.ask("PUT", "/admin/v2/tenants/shop", {}, **as_user("root"))
    for found in ("x", ["x"], {"namespace_auth": []}, {"namespace_auth": {"me": ["fly"]}}):
        assert secured.ask("PUT", path, {"auth_policies": found}, **as_user("root"))[0] in (400, 412), found
        assert 404 == secured.ask("GET", path + "/permissions", **as_user("root"))[0]
    for role in ("half a character \ud800", "x" * 2000):
        found = {"namespace_auth": {role: ["produce"]}}
        assert 412 == secured.ask("PUT", path, {"auth_policies": found}, **as_user("root"))[0]
        assert 404 == secured.ask("GET", path + "/permissions", **as_user("root"))[0]


def looks_up(secured: Admin, user: str, topic: str) -> int:
    return secured.ask("GET", f"/lookup/v2/topic/{topic}", **as_user(user))[0]


def test_default_namespace_permissions_cover_topics_of_pulsar_clients(secured: Admin) -> None:
    path = "/admin/v2/namespaces/public/default/permissions"
    assert 403 == looks_up(secured, "guest", "persistent/public/default/t")
    assert 204 == secured.ask("POST", path + "/guest", ["produce", "consume"], **as_user("root"))[0]
    assert {"guest": ["produce", "consume"]}.items() <= secured.ask("GET", path, **as_user("root"))[1].items()
    for topic in ("persistent/public/default/t", "persistent/public/default/a%20b", "non-persistent/public/default/n"):
        assert 200 == looks_up(secured, "guest", topic), topic
    assert 403 == looks_up(secured, "other", "persistent/public/default/t")
    for path_, body in ((f"{PERSISTENT}/made", None), (f"{PERSISTENT}/pulsar.shop.x.made", None)):
        status = secured.ask("PUT", path_, body, **as_user("guest"))[0]
        assert status in (204, 409)
    secured.ask("PUT", "/admin/v2/tenants/shop", {}, **as_user("root"))
    secured.ask("PUT", "/admin/v2/namespaces/shop/eu", {}, **as_user("root"))
    assert 403 == looks_up(secured, "guest", "persistent/shop/eu/orders")
    # An ACL that denies the own name still applies.
    authorizer = secured.context.authorizer
    assert isinstance(authorizer, AclAuthorizer)
    deny = Acl(ResourceType.TOPIC, "t", PatternType.LITERAL, "User:guest", "*", Operation.ALL, Permission.DENY)
    assert [None] == authorizer.create([deny])
    assert 403 == looks_up(secured, "guest", "persistent/public/default/t")
    assert 200 == looks_up(secured, "guest", "persistent/public/default/u")
    assert 204 == secured.ask("DELETE", path + "/guest", **as_user("root"))[0]
    assert 403 == looks_up(secured, "guest", "persistent/public/default/u")


def test_tenant_administrators_administer_only_their_tenant(secured: Admin) -> None:
    def ask(method: str, path: str, body: Any = None, user: str = "manager") -> int:
        return secured.ask(method, f"/admin/v2/{path}", body, **as_user(user))[0]

    for tenant, roles in (("firm", ["manager"]), ("rival", ["other"])):
        assert 204 == ask("PUT", f"tenants/{tenant}", {"adminRoles": roles}, "root")
    for tenant, status in (("firm", 204), ("rival", 403), ("nobody", 403)):
        assert (200 if status == 204 else 403) == ask("GET", f"tenants/{tenant}")
        for method, path, body in (
            ("PUT", f"namespaces/{tenant}/eu", {}),
            ("POST", f"namespaces/{tenant}/eu/messageTTL", 60),
            ("PUT", f"persistent/{tenant}/eu/orders", None),
            ("PUT", f"persistent/{tenant}/eu/orders/subscription/s", None),
            ("POST", f"persistent/{tenant}/eu/orders/subscription/s/skip_all", None),
            ("POST", f"namespaces/{tenant}/eu/permissions/clerk2", ["produce"]),
            ("POST", f"namespaces/{tenant}/eu/clearBacklog", None),
            ("PUT", f"namespaces/{tenant}/eu/unload", None),
        ):
            assert status == ask(method, path, body), (method, path)
        assert (200 if status == 204 else 403) == looks_up(secured, "clerk2", f"persistent/{tenant}/eu/orders")
        # The tenant itself belongs to the cluster, so its administrators may not change it.
        for method, path in (("POST", f"tenants/{tenant}"), ("DELETE", f"tenants/{tenant}"), ("GET", "tenants")):
            assert 403 == ask(method, path, {}), (method, path)
    assert 204 == ask("DELETE", "namespaces/firm/eu?force=true")


def test_denying_acl_overrules_tenant_administrator(secured: Admin) -> None:
    def ask(method: str, path: str, body: Any = None, user: str = "steward") -> int:
        return secured.ask(method, f"/admin/v2/{path}", body, **as_user(user))[0]

    assert 204 == ask("PUT", "tenants/mill", {"adminRoles": ["steward"]}, "root")
    for path in ("namespaces/mill/eu", "persistent/mill/eu/kept/subscription/s"):
        assert 204 == ask("PUT", path)
    authorizer = secured.context.authorizer
    assert isinstance(authorizer, AclAuthorizer)
    denied = Acl(
        ResourceType.TOPIC, "pulsar.mill.eu.", PatternType.PREFIXED, "User:steward", "*", Operation.ALL, Permission.DENY
    )
    assert [None] == authorizer.create([denied])
    for method, path, body in (
        ("DELETE", "persistent/mill/eu/kept", None),
        ("DELETE", "namespaces/mill/eu?force=true", None),
        ("POST", "namespaces/mill/eu/clearBacklog", None),
        ("POST", "persistent/mill/eu/kept/subscription/s/skip_all", None),
    ):
        assert 403 == ask(method, path, body), (method, path)
    # Nor can the administrator remove the ACL that denies.
    assert 204 == ask("DELETE", "namespaces/mill/eu/permissions/steward")
    assert 403 == ask("DELETE", "persistent/mill/eu/kept")
    assert 200 == ask("GET", "persistent/mill/eu/kept/stats", user="root")


def test_former_tenant_administrator_can_no_longer_consume(secured: Admin) -> None:
    def appoint(*roles: str) -> None:
        method = "PUT" if secured.context.namespaces.tenant("farm") is None else "POST"
        assert 204 == secured.ask(method, "/admin/v2/tenants/farm", {"adminRoles": roles}, **as_user("root"))[0]

    appoint("farmer")
    assert 204 == secured.ask("PUT", "/admin/v2/namespaces/farm/eu", {}, **as_user("farmer"))[0]
    topic = "persistent://farm/eu/t"
    subscribe = pb.CommandSubscribe(topic=topic, subscription="s", subType=0, consumer_id=1, request_id=0)
    proof = {"auth_method_name": "token", "auth_data": token("farmer").encode()}
    with closing(Wire(secured.broker.address("pulsar+sasl"), **proof)) as wire:
        assert Type.SUCCESS == wire.ask(Type.SUBSCRIBE, subscribe)[0]
        assert wire.produce(topic).producer_ready
        wire.say(Type.FLOW, pb.CommandFlow(consumer_id=1, messagePermits=10))
        appoint("farmer", "another")
        wire.say(Type.PING, pb.CommandPing())
        assert Type.PONG == wire.hear()[0]
        appoint("another")
        assert Type.CLOSE_CONSUMER == wire.hear()[0]
        wire.raw(send_frame(0))
        assert pb.ServerError.AuthorizationError == wire.hear()[1].error


def test_denying_acl_applies_to_both_topic_names(secured: Admin) -> None:
    allow(secured, "pat", (ResourceType.TOPIC, "t", Operation.DESCRIBE))
    assert 200 == looks_up(secured, "pat", "persistent/public/default/t")
    authorizer = secured.context.authorizer
    assert isinstance(authorizer, AclAuthorizer)
    prefix = "pulsar.public.default."
    denied = Acl(ResourceType.TOPIC, prefix, PatternType.PREFIXED, "User:pat", "*", Operation.DESCRIBE, Permission.DENY)
    assert [None] == authorizer.create([denied])
    assert 403 == looks_up(secured, "pat", "persistent/public/default/t")


def test_namespace_permissions_come_and_go_with_policies(
    secured: Admin,
) -> None:
    path = "/admin/v2/namespaces/shop/staffed"
    secured.ask("PUT", "/admin/v2/tenants/shop", {}, **as_user("root"))
    body = {"auth_policies": {"namespace_auth": {"clerk2": ["produce"], "boss": ["produce", "consume"]}, "other": 1}}
    assert 204 == secured.ask("PUT", path, body, **as_user("root"))[0]
    granted = {"clerk2": ["produce"], "boss": ["produce", "consume"]}
    assert (200, granted) == secured.ask("GET", path + "/permissions", **as_user("root"))
    assert 200 == looks_up(secured, "clerk2", "persistent/shop/staffed/t")
    assert 409 == secured.ask("PUT", path, {}, **as_user("root"))[0]
    assert (200, granted) == secured.ask("GET", path + "/permissions", **as_user("root"))
    assert 204 == secured.ask("DELETE", path, **as_user("root"))[0]
    assert 204 == secured.ask("PUT", path, {}, **as_user("root"))[0]
    assert (200, {}) == secured.ask("GET", path + "/permissions", **as_user("root"))


def test_permissions_without_authorizer_change_nothing(admin: Admin) -> None:
    for path in (f"{PERSISTENT}/t/permissions", "/admin/v2/namespaces/public/default/permissions"):
        admin.ask("PUT", f"{PERSISTENT}/t")
        admin.do("POST", path + "/me", ["produce"])
        assert {} == admin.get(path)
        admin.do("DELETE", path + "/me")


def test_a_certificate_is_a_proof_too(tmp_path: Path) -> None:
    files = certificates.server().write(tmp_path, "server")
    settings = {
        **SETTINGS,
        "listeners": ("pulsar+sasl://127.0.0.1:0", "http+ssl://127.0.0.1:0"),
        "ssl_keystore_location": str(files.both),
        "ssl_truststore_location": str(files.authority),
        "ssl_client_auth": "requested",
        "super_users": "User:CN=alice",
    }

    def status(admin: Admin, identity: certificates.Identity | None) -> int:
        context = certificates.client_context(identity, directory=tmp_path)
        host, port = admin.broker.address("http+ssl").split(":")
        connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=60)
        try:
            connection.request("GET", "/admin/v2/tenants")
            return connection.getresponse().status
        finally:
            connection.close()

    with admin_broker(**settings) as admin:
        assert 401 == status(admin, None)
        assert 200 == status(admin, certificates.client("alice"))
        assert 403 == status(admin, certificates.client("bob"))
