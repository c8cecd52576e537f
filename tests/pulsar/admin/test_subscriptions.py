"""Admin calls about subscriptions, asked of a whole broker."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.pulsar.admin.harness import PERSISTENT, Admin, admin_broker
from tests.pulsar.clients import client

TOPIC = f"{PERSISTENT}/t"
SUB = f"{TOPIC}/subscription/s"


@pytest.fixture(scope="module")
def shared() -> Iterator[Admin]:
    with admin_broker() as made:
        yield made


@pytest.fixture
def filled(admin: Admin) -> Admin:
    """A topic of ten messages, and a subscription that has read none of them."""
    admin.do("PUT", SUB)
    with client(admin.service_url) as pulsar:
        producer = pulsar.create_producer("t")
        for number in range(10):
            producer.send(b"m%d" % number, properties={"number": str(number)}, partition_key="key")
    return admin


def backlog(admin: Admin) -> int:
    return int(admin.get(TOPIC + "/stats")["subscriptions"]["s"]["msgBacklog"])


def first(admin: Admin) -> bytes:
    status, _, body = admin.raw("GET", SUB + "/position/1")
    assert status == 200
    return body


def test_a_subscription_is_made_listed_and_deleted(admin: Admin) -> None:
    admin.do("PUT", SUB)  # and the topic with it
    assert ["s"] == admin.get(TOPIC + "/subscriptions")
    assert 409 == admin.ask("PUT", SUB)[0]
    admin.do("DELETE", SUB)
    assert [] == admin.get(TOPIC + "/subscriptions")
    assert 404 == admin.ask("DELETE", SUB)[0]


def test_a_new_subscription_starts_where_the_body_says(filled: Admin) -> None:
    ledger = filled.topic("t").ledger
    for name, body, expected in [
        ("latest", None, 0),
        ("earliest", {"ledgerId": -1, "entryId": -1}, 10),
        ("middle", {"ledgerId": ledger, "entryId": 7}, 3),
        ("before", {"ledgerId": ledger - 1, "entryId": 7}, 10),
    ]:
        filled.do("PUT", f"{TOPIC}/subscription/{name}", body)
        assert expected == filled.get(TOPIC + "/stats")["subscriptions"][name]["msgBacklog"], name


def test_a_subscription_of_a_partitioned_topic_is_on_every_partition(admin: Admin) -> None:
    admin.do("PUT", TOPIC + "/partitions", 3)
    admin.do("PUT", SUB)
    for number in range(3):
        assert ["s"] == admin.get(f"{TOPIC}-partition-{number}/subscriptions")
    assert ["s"] == admin.get(TOPIC + "/subscriptions")
    admin.do("POST", SUB + "/skip_all")
    assert 405 == admin.ask("GET", SUB + "/position/1")[0]
    admin.do("DELETE", SUB)
    assert [] == admin.get(TOPIC + "/subscriptions")


def test_one_with_consumers_is_deleted_by_force_only(admin: Admin) -> None:
    with client(admin.service_url) as pulsar:
        consumer = pulsar.subscribe("t", "s")
        assert 412 == admin.ask("DELETE", SUB)[0]
        consumer.close()
        admin.do("DELETE", SUB + "?force=true")


def test_messages_are_skipped(filled: Admin) -> None:
    filled.do("POST", SUB + "/skip/3")
    assert 7 == backlog(filled)
    assert b"m3" == first(filled)
    filled.do("POST", SUB + "/skip/100")
    assert 0 == backlog(filled)
    assert 404 == filled.ask("GET", SUB + "/position/1")[0]


def test_all_messages_are_skipped_and_a_consumer_gets_only_the_next(filled: Admin) -> None:
    with client(filled.service_url) as pulsar:
        consumer = pulsar.subscribe("t", "s")
        assert b"m0" == consumer.receive(30_000).data()
        filled.do("POST", SUB + "/skip_all")
        assert 0 == backlog(filled)
        consumer.close()
        consumer = pulsar.subscribe("t", "s")
        pulsar.create_producer("t").send(b"next")
        assert b"next" == consumer.receive(30_000).data()


def test_old_messages_expire(filled: Admin) -> None:
    filled.do("POST", SUB + "/expireMessages/3600")
    assert 10 == backlog(filled)
    filled.do("POST", SUB + "/expireMessages", {"ledgerId": filled.topic("t").ledger, "entryId": 4})
    assert 6 == backlog(filled)
    filled.do("PUT", TOPIC + "/subscription/other", {"ledgerId": -1, "entryId": -1})
    filled.do("POST", TOPIC + "/all_subscription/expireMessages/0")
    stats = filled.get(TOPIC + "/stats")["subscriptions"]
    assert {"s": 0, "other": 0} == {name: each["msgBacklog"] for name, each in stats.items()}


def test_a_cursor_is_reset_to_a_time_and_to_a_message(filled: Admin) -> None:
    filled.do("POST", SUB + "/skip_all")
    filled.do("POST", SUB + "/resetcursor/0")
    assert 10 == backlog(filled)
    body = {"ledgerId": filled.topic("t").ledger, "entryId": 4}
    filled.do("POST", SUB + "/resetcursor", body)
    assert b"m4" == first(filled)
    filled.do("POST", SUB + "/resetcursor", {**body, "isExcluded": True})
    assert b"m5" == first(filled)
    filled.do("POST", SUB + "/resetcursor", {"ledgerId": -1, "entryId": -1})
    assert b"m0" == first(filled)


def test_a_message_is_shown_with_what_its_metadata_says(filled: Admin) -> None:
    status, headers, body = filled.raw("GET", SUB + "/position/3")
    assert (200, b"m2") == (status, body)
    assert f"{filled.topic('t').ledger}:2" == headers["x-pulsar-message-id"]
    assert "2" == headers["x-pulsar-property-number"]
    assert "key" == headers["x-pulsar-partition-key"]
    assert 10 == backlog(filled)


def test_records_of_kafka_are_shown_as_messages(admin: Admin) -> None:
    from kafka import KafkaProducer

    admin.do("PUT", SUB)
    producer = KafkaProducer(bootstrap_servers=admin.broker.bootstrap_servers)
    producer.send("t", b"from kafka", key=b"k")
    producer.close()
    status, headers, body = admin.raw("GET", SUB + "/position/1")
    assert status == 200
    assert b"from kafka" in body
    assert headers["x-pulsar-message-id"].endswith(":0")
    assert 1 == backlog(admin)


def test_the_backlogs_of_a_namespace_are_cleared(filled: Admin) -> None:
    earliest = {"ledgerId": -1, "entryId": -1}
    filled.do("PUT", TOPIC + "/subscription/other", earliest)
    filled.do("POST", "/admin/v2/namespaces/public/default/clearBacklog/s")
    stats = filled.get(TOPIC + "/stats")["subscriptions"]
    assert {"s": 0, "other": 10} == {name: each["msgBacklog"] for name, each in stats.items()}
    filled.do("POST", "/admin/v2/namespaces/public/default/clearBacklog")
    assert 0 == filled.get(TOPIC + "/stats")["subscriptions"]["other"]["msgBacklog"]


def test_messages_are_found_by_time_and_by_id(filled: Admin) -> None:
    ledger = filled.topic("t").ledger
    assert 0 == filled.get(TOPIC + "/messageid/0")["entryId"]
    assert 10 == filled.get(TOPIC + "/messageid/9999999999999")["entryId"]
    status, headers, body = filled.raw("GET", f"{TOPIC}/ledger/{ledger}/entry/7")
    assert (200, b"m7", f"{ledger}:7") == (status, body, headers["x-pulsar-message-id"])
    for path in (f"/ledger/{ledger + 1}/entry/7", f"/ledger/{ledger}/entry/10"):
        assert 404 == filled.ask("GET", TOPIC + path)[0], path


def test_properties_that_are_no_headers_break_nothing(admin: Admin) -> None:
    admin.do("PUT", SUB)
    with client(admin.service_url) as pulsar:
        pulsar.create_producer("t").send(b"x", properties={"a\r\nb: c": "d\r\ne", "é" * 500: "é" * 5000})
    status, headers, body = admin.raw("GET", SUB + "/position/1")
    assert (200, b"x") == (status, body)
    assert "d??e" == headers["x-pulsar-property-a--b--c"]
    assert "b" not in headers


def test_properties_of_a_subscription_are_set_and_shown(filled: Admin) -> None:
    filled.do("PUT", SUB + "/properties", {"owner": "me"})
    assert {"owner": "me"} == filled.get(SUB + "/properties")
    assert 400 == filled.ask("PUT", SUB + "/properties", {"owner": 1})[0]
    assert 400 == filled.ask("PUT", SUB + "/properties", {"owner": "x" * 20_000})[0]
    assert {"owner": "me"} == filled.get(SUB + "/properties")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/skip/x", None, 400),
        ("POST", "/skip/0", None, 400),
        ("POST", "/skip/-1", None, 400),
        ("POST", "/skip/99999999999999999999", None, 400),
        ("POST", "/skip/²", None, 400),
        ("POST", "/expireMessages/x", None, 400),
        ("POST", "/resetcursor/x", None, 400),
        ("POST", "/resetcursor", {}, 400),
        ("POST", "/resetcursor", {"ledgerId": "1", "entryId": 0}, 400),
        ("POST", "/resetcursor", {"ledgerId": 2**70, "entryId": 0}, 400),
        ("POST", "/resetcursor", [1], 400),
        ("GET", "/position/0", None, 400),
        ("GET", "/position/999999999", None, 400),
    ],
)
def test_what_makes_no_sense_is_refused(shared: Admin, method: str, path: str, body: Any, status: int) -> None:
    shared.ask("PUT", SUB)
    encoded = path.replace("²", "%C2%B2")
    assert status == shared.ask(method, SUB + encoded, body)[0]


def test_a_subscription_that_does_not_exist_is_not_found(shared: Admin) -> None:
    for path in ("/skip/1", "/skip_all", "/resetcursor/0", "/expireMessages/0"):
        assert 404 == shared.ask("POST", f"{TOPIC}/subscription/unknown{path}")[0], path
    assert 412 == shared.ask("PUT", f"{TOPIC}/subscription/{'x' * 2000}")[0]
