"""Lookup over HTTP, and the real client that works with an http:// URL."""

import pytest

from tests.pulsar.admin.harness import PERSISTENT, Admin, admin_broker
from tests.pulsar.clients import client

LOOKUP = "/lookup/v2/topic/persistent/public/default/t"


def test_client_works_with_url_of_admin_listener(admin: Admin) -> None:
    admin.do("PUT", f"{PERSISTENT}/parts/partitions", 3)
    with client(admin.http_url) as pulsar:
        assert 3 == len(pulsar.get_topic_partitions("parts"))
        consumer = pulsar.subscribe("parts", "s")
        pulsar.create_producer("parts").send(b"x")
        assert b"x" == consumer.receive(30_000).data()
        assert ["persistent://public/default/plain"] == pulsar.get_topic_partitions("plain")
        pulsar.create_producer("plain").send(b"y")


def test_the_answer_has_the_keys_that_clients_need(admin: Admin) -> None:
    found = admin.get(LOOKUP)
    assert {
        "brokerUrl": admin.service_url,
        "brokerUrlTls": "",
        "httpUrl": admin.http_url,
        "httpUrlTls": "",
        "nativeUrl": admin.service_url,
    } == found
    assert [] == admin.get(PERSISTENT)  # a lookup creates no topic


def test_a_listener_can_be_named() -> None:
    listeners = [
        "pulsar://127.0.0.1:0",
        "pulsar://127.0.0.1:0?name=outside&advertised=broker.example:6650",
        "http://127.0.0.1:0",
    ]
    with admin_broker(listeners=listeners) as admin:
        assert admin.service_url == admin.get(LOOKUP)["brokerUrl"]
        assert "pulsar://broker.example:6650" == admin.get(LOOKUP + "?listenerName=outside")["brokerUrl"]
        status, answer = admin.ask("GET", LOOKUP + "?listenerName=unknown")
        assert 503 == status
        assert "do not have unknown listener" in answer["reason"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/lookup/v2/topic/persistent/no/where/t", 404),
        ("/lookup/v2/topic/non-persistent/no/where/t", 404),
        ("/lookup/v2/topic/imaginary/public/default/t", 412),
        ("/lookup/v2/topic/persistent/public/default", 404),
    ],
)
def test_what_is_no_topic_here_is_refused(admin: Admin, path: str, status: int) -> None:
    assert status == admin.ask("GET", path)[0]
