"""Who may ask the HTTP API what."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer

from broker.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from broker.security.acl_authorizer import AclAuthorizer
from broker.web.routes import Route
from tests.http.api.harness import Api, api_broker

LISTENERS = ("kafka://127.0.0.1:0", "kafka+sasl://127.0.0.1:0", "shuffle://127.0.0.1:0", "http://127.0.0.1:0")
SECURED: dict[str, Any] = {
    "listeners": LISTENERS,
    "authorizer_class_name": "acl",
    "super_users": "User:root;User:ANONYMOUS",
    "connection_failed_authentication_delay_ms": 1,
    "faults_enabled": True,
}
# Of those that need more than the cluster, and of lists: the rest answers 403 to a client without rights.
LISTS = {"/topics": "topics", "/groups": "groups", "/transactions": "transactions", "/shuffle": "partitions"}


def as_user(name: str, password: str = "secret") -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


@pytest.fixture(scope="module", params=["PLAIN", "SCRAM-SHA-256"])
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    with api_broker(**SECURED, sasl_enabled_mechanisms=request.param) as made:
        for user in ("root", "alice", "nobody"):
            made.broker.add_user(user, "secret")
        for topic in ("orders", "secrets"):
            made.kafka.logs.create_topic(topic, 1)
            made.produce(topic, b"x")
            made.commit(f"reads-{topic}", topic, 0)
        made.commit("reads-both", "orders", 0)
        made.commit("reads-both", "secrets", 0)
        authorizer = made.broker.server.security.authorizer
        assert isinstance(authorizer, AclAuthorizer)
        rights = [
            (ResourceType.TOPIC, "orders", Operation.DESCRIBE),
            (ResourceType.GROUP, "reads-orders", Operation.DESCRIBE),
            (ResourceType.GROUP, "reads-both", Operation.DESCRIBE),
        ]
        acls = [
            Acl(kind, name, PatternType.LITERAL, "User:alice", "*", operation, Permission.ALLOW)
            for kind, name, operation in rights
        ]
        assert [None] * len(acls) == authorizer.create(acls)
        made.broker.faults.add("observe")
        yield made


def paths(api: Api) -> list[str]:
    routes: list[Route] = [
        each
        for each in api.http.routes()
        if each.method == "GET" and (each.pattern.startswith("/api/") or each.pattern == "/metrics")
    ]
    assert len(routes) >= 16
    return [
        each.pattern.replace("{topic}", "orders").replace("{group}", "reads-orders").replace("{number}", "1")
        + ("?topic=orders" if each.pattern.endswith("/producers") else "")
        for each in routes
    ]


def status(api: Api, path: str, headers: dict[str, str]) -> int:
    if path.endswith(("/live", "/tail")):  # they do not end
        connection = api.connection()
        connection.request("GET", path, headers=headers)
        found = connection.getresponse().status
        connection.close()
        return found
    return api.raw(path, headers)[0]


def test_every_call_asks_who_the_client_is(api: Api) -> None:
    for path in paths(api):
        assert 401 == status(api, path, {}), path
        assert 401 == status(api, path, as_user("root", "wrong")), path
        assert 401 == status(api, path, {"Authorization": "Basic !"}), path


def test_the_page_and_health_checks_ask_nobody(api: Api) -> None:
    for path in ("/healthz", "/readyz", "/"):
        assert 200 == status(api, path, {})


def test_a_client_that_may_do_everything_gets_everything(api: Api) -> None:
    for path in paths(api):
        assert 200 == status(api, path, as_user("root")), path


def test_a_client_without_rights_gets_nothing(api: Api) -> None:
    for path in paths(api):
        name = path.removeprefix("/api/v1")
        if name in LISTS:
            assert [] == api.get(name, **as_user("nobody"))[LISTS[name]]
        elif name == "/history":
            assert {} == api.get(name, **as_user("nobody"))["series"]
        else:
            assert 403 == status(api, path, as_user("nobody")), path


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_only_those_who_may_alter_the_cluster_drain_a_machine(api: Api, method: str) -> None:
    authorizer = api.broker.server.security.authorizer
    assert isinstance(authorizer, AclAuthorizer)
    api.broker.add_user("carol", "secret")
    cluster = (ResourceType.CLUSTER, "kafka-cluster", PatternType.LITERAL)
    authorizer.create([Acl(*cluster, "User:carol", "*", Operation.DESCRIBE, Permission.ALLOW)])
    for user, expected in (("nobody", 403), ("carol", 403), ("root", 404)):
        connection = api.connection()
        connection.request(method, "/api/v1/cluster/machines/m/drain", headers=as_user(user))
        assert expected == connection.getresponse().status, user
        connection.close()


@pytest.mark.parametrize("extra", ["", "partition=0", "partition=7&offset=99999", "limit=1"])
def test_client_without_rights_cannot_probe_names(api: Api, extra: str) -> None:
    known = {"{group}": "reads-orders", "{topic}": "orders", "{number}": "1", "{machine}": "m"}
    missing = dict.fromkeys(known, "no-such-thing")
    patterns = [each.pattern for each in api.http.routes() if "{" in each.pattern and each.pattern.startswith("/api/")]
    assert len(patterns) >= 4
    patterns += ["/api/v1/producers?topic={topic}", "/api/v1/history?series=topic:{topic}:bytes_in,group:{group}:lag"]

    def answer(path: str, names: dict[str, str]) -> tuple[int, bytes]:
        names = {place: name for place, name in names.items() if place in path}
        for place, name in names.items():
            path = path.replace(place, name)
        assert "{" not in path, "say which names there are"
        status, body = api.raw(f"{path}{'&' if '?' in path else '?'}{extra}", as_user("nobody"))
        for name in names.values():
            body = body.replace(name.encode(), b"NAME")
        return status, body

    assert {} == {path: told for path in patterns if (told := answer(path, known)) != answer(path, missing)}


def test_lists_omit_resources_without_describe_right(api: Api) -> None:
    alice = as_user("alice")
    (orders,) = api.get("/topics", **alice)["topics"]
    assert ("orders", ["reads-both", "reads-orders"]) == (
        orders["name"],
        sorted(each["group"] for each in orders["groups"]),
    )
    both, own = api.get("/groups", **alice)["groups"]
    assert (["orders"], 1) == (both["topics"], both["lag"])
    assert "reads-orders" == own["group"]
    assert ["orders"] == [each["topic"] for each in api.get("/groups/reads-both", **alice)["partitions"]]
    for path in ("/topics/secrets", "/groups/reads-secrets", "/topics/nothing", "/topics/orders/records"):
        assert 403 == api.ask(f"/api/v1{path}", **alice)[0], path


def test_assignments_omit_topics_without_describe_right(api: Api) -> None:
    settings = {"bootstrap.servers": api.broker.bootstrap_servers, "group.id": "reads-both"}
    member = Consumer({**settings, "enable.auto.commit": False})
    member.subscribe(["orders", "secrets"])
    while not member.assignment():
        member.poll(0.1)

    def seen(user: str) -> list[str]:
        (found,) = api.get("/groups/reads-both", **as_user(user))["members"]
        return [each["topic"] for each in found["assignment"]]

    assert (["orders", "secrets"], ["orders"]) == (seen("root"), seen("alice"))
    member.close()


def test_topic_settings_need_a_right_of_their_own(api: Api) -> None:
    assert api.get("/topics/orders", **as_user("alice"))["settings"] is None
    assert api.get("/topics/orders", **as_user("root"))["settings"]


def test_tokens_that_nobody_accepts_are_refused(api: Api) -> None:
    assert 401 == api.ask("/api/v1/topics", Authorization="Bearer x.y.z")[0]


def test_everybody_may_ask_without_logins_and_acls() -> None:
    with api_broker() as made:
        assert 200 == made.ask("/api/v1/overview")[0]


def test_a_page_of_another_site_gets_nothing() -> None:
    with api_broker() as made:
        for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "evil.example"}):
            for path in ("/", "/page/main.js", "/api/v1/overview", "/api/v1/live", "/metrics"):
                assert 403 == status(made, path, headers), (path, headers)


def test_a_link_of_another_site_leads_to_the_page_and_nowhere_else() -> None:
    followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    with api_broker() as made:
        assert 200 == status(made, "/", followed)
        for path in ("/page/main.js", "/api/v1/overview", "/api/v1/live", "/metrics", "/healthz"):
            assert 403 == status(made, path, followed), path
