"""Admin calls about topics, asked of a whole broker."""

from typing import Any

import pytest
from pulsar import MessageId

from tests.pulsar.admin.harness import PERSISTENT, Admin, admin_broker
from tests.pulsar.clients import client
from tests.waiting import wait_for

NAMESPACE = "/admin/v2/namespaces/public/default"


def test_a_partitioned_topic_is_made_grown_and_deleted(admin: Admin) -> None:
    path = f"{PERSISTENT}/orders/partitions"
    assert 404 == admin.ask("GET", path)[0]
    assert {"partitions": 0, "deleted": False} == admin.get(path + "?checkAllowAutoCreation=true")
    admin.do("PUT", path, 3)
    assert {"partitions": 3, "deleted": False} == admin.get(path)
    assert 409 == admin.ask("PUT", path, 3)[0]
    admin.do("POST", path, 5)
    assert 5 == admin.get(path)["partitions"]
    assert 409 == admin.ask("POST", path, 5)[0]
    names = [f"persistent://public/default/orders-partition-{number}" for number in range(5)]
    assert names == admin.get(PERSISTENT)
    assert names == admin.get(NAMESPACE + "/topics?mode=PERSISTENT")
    assert [] == admin.get(NAMESPACE + "/topics?mode=NON_PERSISTENT")
    assert ["persistent://public/default/orders"] == admin.get(PERSISTENT + "/partitioned")
    admin.do("DELETE", path)
    assert 404 == admin.ask("DELETE", path)[0]
    assert [] == admin.get(PERSISTENT)


def test_a_partitioned_topic_of_one_partition_stays_one(admin: Admin) -> None:
    admin.do("PUT", f"{PERSISTENT}/one/partitions", {"partitions": 1, "properties": {"team": "a"}})
    assert ["persistent://public/default/one-partition-0"] == admin.get(PERSISTENT)
    assert {"team": "a"} == admin.get(f"{PERSISTENT}/one/properties")
    assert 409 == admin.ask("DELETE", f"{PERSISTENT}/one")[0]


@pytest.mark.parametrize("body", [b"", b"{", b'"3"', b"true", b"null", b"-1", b"1.5", b'{"partitions": null}', b"[3]"])
def test_what_is_no_number_of_partitions_makes_nothing(admin: Admin, body: bytes) -> None:
    assert 400 == admin.raw("PUT", f"{PERSISTENT}/orders/partitions", body)[0]
    assert [] == admin.get(PERSISTENT)


def test_numbers_that_no_topic_can_have_are_refused(admin: Admin) -> None:
    assert 406 == admin.ask("PUT", f"{PERSISTENT}/orders/partitions", 0)[0]
    assert 409 == admin.ask("PUT", f"{PERSISTENT}/orders/partitions", 10**9)[0]
    assert 400 == admin.ask("PUT", f"{PERSISTENT}/orders/partitions", 10**30)[0]
    assert [] == admin.get(PERSISTENT)


def test_a_topic_without_partitions_is_made_and_deleted(admin: Admin) -> None:
    path = f"{PERSISTENT}/plain%2Fname"
    admin.do("PUT", path, {"a": "b"})
    assert 409 == admin.ask("PUT", path)[0]
    assert 409 == admin.ask("PUT", path + "/partitions", 2)[0]
    assert {"partitions": 0, "deleted": False} == admin.get(path + "/partitions")
    assert ["persistent://public/default/plain/name"] == admin.get(PERSISTENT)
    assert {"a": "b"} == admin.get(path + "/properties")
    assert 409 == admin.ask("POST", path + "/partitions", 2)[0]
    admin.do("DELETE", path)
    assert 404 == admin.ask("DELETE", path)[0]


def test_names_of_nothing_are_refused(admin: Admin) -> None:
    for method, path, body in [
        ("PUT", "/admin/v2/persistent/no/where/topic", None),
        ("PUT", "/admin/v2/persistent/no/where/topic/partitions", 3),
        ("GET", "/admin/v2/persistent/no/where", None),
        ("GET", "/admin/v2/persistent/no/where/topic/partitions?checkAllowAutoCreation=true", None),
        ("GET", f"{PERSISTENT}/topic/stats", None),
        ("GET", f"{PERSISTENT}/topic/lastMessageId", None),
        ("GET", f"{PERSISTENT}/topic/subscriptions", None),
        ("PUT", f"{PERSISTENT}/topic/unload", None),
        ("POST", f"{PERSISTENT}/topic/terminate", None),
        ("DELETE", f"{PERSISTENT}/topic", None),
    ]:
        assert 404 == admin.ask(method, path, body)[0], path
    for path in (f"{PERSISTENT}/{'x' * 3000}", "/admin/v2/persistent/a%20b/c/d"):
        assert 412 == admin.ask("PUT", path)[0], path
    assert [] == admin.get(PERSISTENT)


def test_topic_in_use_is_deleted_only_by_force(admin: Admin) -> None:
    with client(admin.service_url) as pulsar:
        producer = pulsar.create_producer("busy")
        assert 412 == admin.ask("DELETE", f"{PERSISTENT}/busy")[0]
        producer.send(b"still there")
        producer.close()
        admin.do("DELETE", f"{PERSISTENT}/busy?force=true")
    assert [] == admin.get(PERSISTENT)


def test_clients_reconnect_to_unloaded_topic(admin: Admin) -> None:
    with client(admin.service_url) as pulsar:
        consumer = pulsar.subscribe("moved", "s")
        producer = pulsar.create_producer("moved")
        producer.send(b"before")
        before = admin.context.topics.get(admin.topic("moved").name)
        admin.do("PUT", f"{PERSISTENT}/moved/unload")
        assert before is not None
        assert before.closed
        producer.send(b"after")
        got = {consumer.receive(30_000).data() for _ in range(2)}
        assert {b"before", b"after"} == got


def test_topic_reload_waits_until_all_subscriptions_left(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        admin.do("PUT", f"{PERSISTENT}/t/subscription/{name}")
    topic, store = admin.topic("t"), admin.context.subscriptions.store
    leave, found = store.leave, []

    def watched(*arguments: Any) -> None:
        found.append(admin.topic("t"))  # as a client does that subscribes now
        leave(*arguments)

    monkeypatch.setattr(store, "leave", watched)
    admin.do("PUT", f"{PERSISTENT}/t/unload")
    assert [topic, topic] == found
    assert {"a", "b"} == set(admin.topic("t").subscriptions)


def test_terminated_topic_refuses_messages_and_reports_its_end(admin: Admin) -> None:
    with client(admin.service_url) as pulsar:
        producer = pulsar.create_producer("ended")
        for number in range(3):
            producer.send(b"%d" % number)
    ledger = admin.topic("ended").ledger
    expected = {"ledgerId": ledger, "entryId": 2, "partitionIndex": -1, "batchIndex": -1}
    assert expected == admin.get(f"{PERSISTENT}/ended/lastMessageId")
    assert (200, expected) == admin.ask("POST", f"{PERSISTENT}/ended/terminate")
    assert admin.topic("ended").terminated
    assert "Terminated" == admin.get(f"{PERSISTENT}/ended/internalStats")["state"]
    admin.do("PUT", f"{PERSISTENT}/parts/partitions", 2)
    assert 405 == admin.ask("POST", f"{PERSISTENT}/parts/terminate")[0]
    assert {"0", "1"} == set(admin.ask("POST", f"{PERSISTENT}/parts/terminate/partitions")[1])


def test_empty_topic_has_no_last_message(admin: Admin) -> None:
    admin.do("PUT", f"{PERSISTENT}/empty")
    assert -1 == admin.get(f"{PERSISTENT}/empty/lastMessageId")["entryId"]


def test_a_topic_is_compacted_on_demand(admin: Admin) -> None:
    path = f"{PERSISTENT}/keyed/compaction"
    admin.do("PUT", f"{PERSISTENT}/keyed")
    assert "NOT_RUN" == admin.get(path)["status"]
    with client(admin.service_url) as pulsar:
        producer = pulsar.create_producer("keyed")
        for number in range(10):
            producer.send(b"%d" % number, partition_key="key")
        admin.do("PUT", path)
        wait_for(lambda: admin.get(path)["status"] != "RUNNING", "the compaction does not end")
        assert {"status": "SUCCESS", "lastError": ""} == admin.get(path)
        reader = pulsar.create_reader("keyed", MessageId.earliest, is_read_compacted=True)
        assert b"9" == reader.read_next(30_000).data()
    assert 404 == admin.ask("PUT", f"{PERSISTENT}/none/compaction")[0]


def test_topics_created_by_calls_survive_restart(tmp_path: object) -> None:
    with admin_broker(data_dir=str(tmp_path)) as admin:
        admin.do("PUT", f"{PERSISTENT}/one/partitions", 1)
        admin.do("PUT", f"{PERSISTENT}/s/subscription/kept")
        admin.do("PUT", "/admin/v2/tenants/shop")
        admin.do("PUT", "/admin/v2/namespaces/shop/eu")
        admin.do("POST", "/admin/v2/namespaces/shop/eu/messageTTL", 60)
    with admin_broker(data_dir=str(tmp_path)) as admin:
        assert ["persistent://public/default/one"] == admin.get(PERSISTENT + "/partitioned")
        assert ["kept"] == admin.get(f"{PERSISTENT}/s/subscriptions")
        assert ["shop/eu"] == admin.get("/admin/v2/namespaces/shop")
        assert 60 == admin.get("/admin/v2/namespaces/shop/eu/messageTTL")


def test_too_long_list_is_refused(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.pulsar.admin.topics.NAMES_MAX", 4)
    admin.do("PUT", f"{PERSISTENT}/wide/partitions", 4)
    assert 4 == len(admin.get(PERSISTENT))
    admin.do("PUT", f"{PERSISTENT}/one")
    status, answer = admin.ask("GET", PERSISTENT)
    assert 413 == status
    assert "more than 4 topics" in answer["reason"]


def test_huge_body_is_refused_before_reading(admin: Admin) -> None:
    assert 413 == admin.raw("PUT", f"{PERSISTENT}/orders/partitions", b"1" * 2_000_000)[0]


@pytest.mark.parametrize("partitions", [0, 2])
def test_properties_of_a_topic_are_merged_and_removed(admin: Admin, partitions: int) -> None:
    path = f"{PERSISTENT}/t"
    if partitions:
        admin.do("PUT", path + "/partitions", {"partitions": partitions, "properties": {"a": "1"}})
    else:
        admin.do("PUT", path, {"a": "1"})
    admin.do("PUT", path + "/properties", {"b": "2", "a": "3"})
    assert {"a": "3", "b": "2"} == admin.get(path + "/properties")
    admin.do("PUT", path + "/properties", {})
    admin.do("DELETE", path + "/properties?key=a")
    admin.do("DELETE", path + "/properties?key=unknown")
    assert {"b": "2"} == admin.get(path + "/properties")
    for wrong in ([], "a", {"a": 1}, {"a": None}, {"a": "x" * 16_400}, {"long": "x" * 16_383}):
        assert 400 == admin.ask("PUT", path + "/properties", wrong)[0], wrong
    for method, query in (("PUT", ""), ("DELETE", ""), ("DELETE", "?key=")):
        assert 400 == admin.ask(method, path + "/properties" + query)[0]
    assert {"b": "2"} == admin.get(path + "/properties")
    assert 404 == admin.ask("PUT", f"{PERSISTENT}/none/properties", {"a": "b"})[0]


def test_properties_are_there_after_a_restart(tmp_path: object) -> None:
    with admin_broker(data_dir=str(tmp_path)) as admin:
        admin.do("PUT", f"{PERSISTENT}/t")
        admin.do("PUT", f"{PERSISTENT}/t/properties", {"a": "1", "b": "2"})
        admin.do("DELETE", f"{PERSISTENT}/t/properties?key=a")
    with admin_broker(data_dir=str(tmp_path)) as admin:
        assert {"b": "2"} == admin.get(f"{PERSISTENT}/t/properties")


def test_no_partition_is_ever_missed(admin: Admin) -> None:
    admin.do("PUT", f"{PERSISTENT}/parts/partitions", 2)
    admin.do("POST", f"{PERSISTENT}/parts/createMissedPartitions")
    admin.do("PUT", f"{PERSISTENT}/plain")
    for name in ("plain", "none"):
        assert 404 == admin.ask("POST", f"{PERSISTENT}/{name}/createMissedPartitions")[0]


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_truncated_topic_begins_anew(admin: Admin, partitions: int) -> None:
    path = f"{PERSISTENT}/t"
    if partitions:
        admin.do("PUT", path + "/partitions", partitions)
    with client(admin.service_url) as pulsar:
        consumer = pulsar.subscribe("t", "s")
        producer = pulsar.create_producer("t", batching_enabled=False)
        for number in range(10):
            producer.send(b"%d" % number)
        consumer.close()
        admin.do("DELETE", path + "/truncate")
        names = [f"t-partition-{number}" for number in range(partitions)] or ["t"]
        for name in names:
            log = admin.topic(name).log
            assert log.log_start_offset == log.log_end_offset
            assert 0 == admin.get(f"{PERSISTENT}/{name}/stats")["subscriptions"]["s"]["msgBacklog"]
        consumer = pulsar.subscribe("t", "s")
        producer.send(b"after")
        assert b"after" == consumer.receive(30_000).data()
        if not partitions:
            assert b"after" == pulsar.create_reader("t", MessageId.earliest).read_next(30_000).data()


def test_what_is_only_compacted_is_not_truncated(admin: Admin) -> None:
    admin.context.logs.create_topic("compacted", 1, {"cleanup.policy": "compact"})
    assert 405 == admin.ask("DELETE", f"{PERSISTENT}/compacted/truncate")[0]
    assert 404 == admin.ask("DELETE", f"{PERSISTENT}/none/truncate")[0]


def test_a_topic_is_trimmed_at_once(tmp_path: object) -> None:
    path = f"{PERSISTENT}/t"
    with admin_broker(data_dir=str(tmp_path), log_segment_bytes=1024 * 1024) as admin:
        admin.do("PUT", path + "/subscription/s")
        admin.do("POST", path + "/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
        with client(admin.service_url) as pulsar:
            producer = pulsar.create_producer("t", batching_enabled=False)
            for _ in range(5):
                producer.send(bytes(400_000))
        admin.do("POST", path + "/trim")
        log = admin.topic("t").log
        assert 0 == log.log_start_offset  # the subscription needs all messages
        admin.do("POST", path + "/subscription/s/skip_all")
        admin.do("POST", path + "/trim")
        assert log.log_start_offset > 0
        assert 404 == admin.ask("POST", f"{PERSISTENT}/none/trim")[0]
