"""Admin calls about subscriptions, asked of a whole broker."""

import http.client
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from pulsar import CompressionType

from protocol.errors import ProtocolError
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
    admin.do("PUT", SUB)  # this creates the topic, too
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


def test_subscription_of_partitioned_topic_covers_every_partition(admin: Admin) -> None:
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


def test_consumer_gets_only_messages_after_skip_all(filled: Admin) -> None:
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


def test_cursor_reset_to_time_and_to_message(filled: Admin) -> None:
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


def test_message_is_shown_with_its_metadata(filled: Admin) -> None:
    status, headers, body = filled.raw("GET", SUB + "/position/3")
    assert (200, b"m2") == (status, body)
    assert f"{filled.topic('t').ledger}:2" == headers["x-pulsar-message-id"]
    assert "2" == headers["x-pulsar-property-number"]
    assert "key" == headers["x-pulsar-partition-key"]
    assert 10 == backlog(filled)


def test_message_headers_are_readable_by_java_client(filled: Admin) -> None:
    connection = http.client.HTTPConnection(filled.broker.address("http"), timeout=60)
    connection.request("GET", SUB + "/position/3")
    headers = dict(connection.getresponse().getheaders())
    connection.close()
    assert "2" == headers["X-Pulsar-PROPERTY-number"]  # the client finds only this letter case
    moment = datetime.fromisoformat(headers["X-Pulsar-publish-time"])
    assert abs(moment.timestamp() - time.time()) < 600
    assert "false" == headers["X-Pulsar-Is-Encrypted"]


@pytest.mark.parametrize(
    "codec", [CompressionType.LZ4, CompressionType.ZLib, CompressionType.ZSTD, CompressionType.SNAPPY]
)
def test_what_is_compressed_is_shown_decompressed(admin: Admin, codec: Any) -> None:
    with client(admin.service_url) as pulsar:
        producer = pulsar.create_producer("t", compression_type=codec, batching_enabled=False)
        producer.send(b"text" * 1000)
    status, headers, body = admin.raw("GET", TOPIC + "/examinemessage")
    assert (200, b"text" * 1000, "4000") == (status, body, headers["x-pulsar-uncompressed-size"])


def test_what_cannot_be_decompressed_is_refused(filled: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_: object) -> bytes:
        raise ProtocolError("not as long as it says")

    monkeypatch.setattr("broker.pulsar.admin.subscriptions.decompressed", damaged)
    assert 422 == filled.ask("GET", SUB + "/position/3")[0]


def test_a_message_is_examined_by_its_place(filled: Admin) -> None:
    path = TOPIC + "/examinemessage"
    for query, expected in [
        ("", b"m9"),
        ("?initialPosition=latest&messagePosition=1", b"m9"),
        ("?initialPosition=latest&messagePosition=3", b"m7"),
        ("?initialPosition=latest&messagePosition=100", b"m0"),
        ("?initialPosition=earliest&messagePosition=3", b"m2"),
        ("?initialPosition=earliest&messagePosition=-5", b"m0"),
        ("?initialPosition=earliest&messagePosition=0", b"m0"),
    ]:
        assert (200, expected) == filled.raw("GET", path + query)[::2], query
    for query, status in [
        ("?initialPosition=earliest&messagePosition=11", 404),
        ("?initialPosition=earliest&messagePosition=999999999999999999", 404),
        ("?messagePosition=99999999999999999999999", 400),
        ("?messagePosition=1e3", 400),
        ("?messagePosition=NaN", 400),
        ("?initialPosition=middle", 400),
    ]:
        assert status == filled.ask("GET", path + query)[0], query
    filled.do("PUT", f"{PERSISTENT}/empty")
    assert 412 == filled.ask("GET", f"{PERSISTENT}/empty/examinemessage")[0]
    filled.do("PUT", f"{PERSISTENT}/parts/partitions", 2)
    assert 405 == filled.ask("GET", f"{PERSISTENT}/parts/examinemessage")[0]
    assert 412 == filled.ask("GET", f"{PERSISTENT}/parts-partition-1/examinemessage")[0]
    assert 404 == filled.ask("GET", f"{PERSISTENT}/none/examinemessage")[0]


def test_a_backlog_is_analyzed(filled: Admin) -> None:
    ledger = filled.topic("t").ledger
    filled.do("POST", SUB + "/skip/2")
    status, found = filled.ask("POST", SUB + "/analyzeBacklog")
    assert (200, 8, 8, 8) == (status, found["entries"], found["messages"], found["filterAcceptedEntries"])
    assert (f"{ledger}:2", f"{ledger}:9", False) == (found["firstMessageId"], found["lastMessageId"], found["aborted"])
    body = {"ledgerId": ledger, "entryId": 7, "partitionIndex": -1, "isExcluded": False, "properties": None}
    assert 3 == filled.ask("POST", SUB + "/analyzeBacklog", body)[1]["entries"]
    filled.do("POST", SUB + "/skip_all")
    assert "firstMessageId" not in filled.ask("POST", SUB + "/analyzeBacklog")[1]
    for wrong in ([1], {"ledgerId": "1", "entryId": 1}, {"ledgerId": 2**70, "entryId": 1}):
        assert 400 == filled.ask("POST", SUB + "/analyzeBacklog", wrong)[0], wrong
    assert 404 == filled.ask("POST", TOPIC + "/subscription/none/analyzeBacklog")[0]
    filled.do("PUT", f"{PERSISTENT}/parts/partitions", 2)
    filled.do("PUT", f"{PERSISTENT}/parts/subscription/s")
    assert 405 == filled.ask("POST", f"{PERSISTENT}/parts/subscription/s/analyzeBacklog")[0]


@pytest.mark.parametrize("bundle", ["", "/0x00000000_0xffffffff"])
def test_a_namespace_is_unsubscribed_from(filled: Admin, bundle: str) -> None:
    path = f"/admin/v2/namespaces/public/default{bundle}/unsubscribe/s"
    filled.do("PUT", f"{PERSISTENT}/parts/partitions", 2)
    for topic in ("parts", "t"):
        filled.ask("PUT", f"{PERSISTENT}/{topic}/subscription/s")
        filled.do("PUT", f"{PERSISTENT}/{topic}/subscription/other")
    with client(filled.service_url) as pulsar:
        consumer = pulsar.subscribe("non-persistent://public/default/n", "s")
        assert 412 == filled.ask("POST", path)[0]
        assert ["s", "other"] == filled.get(TOPIC + "/subscriptions")
        consumer.close()
        filled.do("POST", path)
    for topic in ("parts", "t"):
        assert ["other"] == filled.get(f"{PERSISTENT}/{topic}/subscriptions")
    filled.do("POST", path)  # no subscription of this name is left
    filled.do("POST", f"/admin/v2/namespaces/public/default{bundle}/clearBacklog")
    assert 404 == filled.ask("POST", "/admin/v2/namespaces/no/where/unsubscribe/s")[0]


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


def test_missing_subscription_is_not_found(shared: Admin) -> None:
    for path in ("/skip/1", "/skip_all", "/resetcursor/0", "/expireMessages/0"):
        assert 404 == shared.ask("POST", f"{TOPIC}/subscription/unknown{path}")[0], path
    assert 412 == shared.ask("PUT", f"{TOPIC}/subscription/{'x' * 2000}")[0]
