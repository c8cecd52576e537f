"""The reactor and its connections over HTTP."""

import socket
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from broker.config.server_settings import default_processors
from broker.http.api.connections import reasons
from broker.network.mute import CLOSING, THROTTLED, Hold
from tests.http.api.harness import Api, api_broker, differences, documented
from tests.waiting import wait_for


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with api_broker() as made:
        made.kafka.logs.create_topic("orders", 1)
        yield made


def test_connection_shows_client_software_and_bytes(api: Api) -> None:
    producer = Producer({"bootstrap.servers": api.broker.bootstrap_servers, "client.id": "me"})
    producer.produce("orders", b"x" * 1000)
    assert 0 == producer.flush(30)
    answer = api.get("/connections")
    assert [] == differences(documented("/api/v1/connections?limit=1"), answer)
    found = [each for each in answer["connections"] if each["client_id"] == "me"]
    assert {("kafka", "confluent-kafka-python", "User:ANONYMOUS")} == {
        (each["listener"], each["software"], each["principal"]) for each in found
    }
    assert any(each["bytes_in"] > 1000 and each["bytes_out"] > 0 and each["requests"] > 1 for each in found)
    assert all(answer["connections"][0]["since_ms"] > api.get("/overview")["started_ms"] - 60_000 for _ in found)


def test_the_reactor_has_processors_channel_handlers_and_memory(api: Api) -> None:
    reactor = api.get("/connections")["reactor"]
    assert default_processors() == len(reactor["processors"])
    assert (500, 8) == (reactor["channel"]["capacity"], reactor["handlers"]["threads"])
    assert 0 < reactor["acceptor"]["accepted"]

    def of_processors() -> int:
        return sum(each["connections"] for each in api.get("/connections")["reactor"]["processors"])

    # Each question has a connection, which the broker may miss a moment later.
    wait_for(lambda: of_processors() == api.get("/overview")["connections"])


def test_pages_have_every_connection_once(api: Api) -> None:
    kept = [socket.create_connection(api.broker.bootstrap_servers.split(":"), timeout=30) for _ in range(7)]
    try:
        own = {f"127.0.0.1:{each.getsockname()[1]}" for each in kept}

        def peers() -> list[str]:
            return [each["peer"] for each in api.pages("/connections", "connections")]

        wait_for(lambda: own <= set(peers()), "connections that are not shown")  # they may not be accepted yet
        shown = peers()
        assert len(shown) == len(set(shown))
    finally:
        for each in kept:
            each.close()


def test_control_listener_has_its_own_plane() -> None:
    with api_broker(listeners=["kafka://127.0.0.1:0"], control_listener="http://127.0.0.1:0?name=http") as api:
        answer = api.get("/connections")
        assert ["control-processor-0"] == [each["id"] for each in answer["control"]["processors"]]
        (connection,) = answer["connections"]
        assert "control-processor-0" == connection["processor"]


def test_control_plane_serves_http_if_it_exists() -> None:
    with api_broker(control_listener="kafka://127.0.0.1:0?name=control") as api:
        http = [each["processor"] for each in api.get("/connections")["connections"] if each["listener"] == "http"]
        assert ["control-processor-0"] == http


def test_every_hold_has_a_name() -> None:
    assert [] == reasons(0)
    assert ["throttled", "closing"] == reasons(THROTTLED | CLOSING)
    assert len(Hold) == len(reasons(sum(int(hold) for hold in Hold)))
