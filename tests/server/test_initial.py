"""Topics and users that the settings ask for."""

import base64
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from broker import log
from broker.client import Broker
from broker.config import load
from broker.errors import ConfigError

SASL = ("kafka+sasl://127.0.0.1:0",)


def topics(broker: Broker) -> dict[str, int]:
    return {info.name: info.partitions for info in broker.server.kafka.logs.topics()}


def logs_in(broker: Broker, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> bool:
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "log_level": 0,
    }
    failed: list[Any] = []
    producer = Producer({**settings, "error_cb": failed.append})
    try:
        while not failed:
            try:
                producer.list_topics(timeout=1)
                return True
            except KafkaException:
                producer.poll(0)  # which reports a failed login
        return False
    finally:
        producer.flush(0)


def test_topics_are_made_where_they_are_missing(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", create_topics=["orders:3", "users"], num_partitions=2) as broker:
        assert topics(broker) == {"orders": 3, "users": 2}
        broker.produce("orders", ["kept"])
    with Broker(tmp_path / "data", create_topics="orders:5, audit") as broker:
        assert topics(broker) == {"orders": 3, "users": 2, "audit": 1}
        assert [record.value for record in broker.records("orders")] == [b"kept"]


def test_clients_see_the_topics_also_after_a_reset() -> None:
    with Broker(create_topics=["orders:5"]) as broker:
        broker.produce("other", ["one"])
        broker.reset()
        assert topics(broker) == {"orders": 5}, "as after the first start"
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
        assert len(consumer.list_topics("orders", timeout=30).topics["orders"].partitions) == 5
        consumer.close()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_users_log_in_and_keep_their_password(tmp_path: Path, mechanism: str) -> None:
    with Broker(tmp_path / "data", listeners=SASL, users=["alice:se:cret", "bob:pass,word"]) as broker:
        assert logs_in(broker, "alice", "se:cret", mechanism)
        assert logs_in(broker, "bob", "pass,word", mechanism)
        assert not logs_in(broker, "alice", "secret", mechanism)
        broker.add_user("alice", "changed")
        assert broker.server.security.credentials.users() == ["alice", "bob"]
    with Broker(tmp_path / "data", listeners=SASL, users="alice:se:cret,carol:new") as broker:
        assert logs_in(broker, "alice", "changed", mechanism), "the setting does not undo the change"
        assert broker.server.security.credentials.users() == ["alice", "bob", "carol"]


def test_passwords_are_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    log.configure("debug")
    try:
        with Broker(listeners=(*SASL, "http://127.0.0.1:0"), users=["alice:hidden-word"]) as broker:
            proof = base64.b64encode(b"alice:hidden-word").decode()
            request = Request(f"http://{broker.address('http')}/api/v1/settings")
            request.add_header("Authorization", f"Basic {proof}")
            with urlopen(request) as answer:
                settings = answer.read().decode()
            assert '"users"' in settings
            shown = [settings, repr(broker), repr(broker.server.config), *(repr(event) for event in log.recent())]
    finally:
        log.configure("warning")
    output = "".join(capfd.readouterr())
    assert "user_added" in output
    assert "hidden-word" not in output + "".join(shown)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"create_topics": ["orders:0"]}, "NAME:PARTITIONS"),
        ({"create_topics": ["orders:x"]}, "NAME:PARTITIONS"),
        ({"create_topics": [":3"]}, "NAME:PARTITIONS"),
        ({"create_topics": ["a:1:2"]}, "NAME:PARTITIONS"),
        ({"create_topics": ["a:1", "a"]}, "only once"),
        ({"users": ["alice:secret"]}, r"Add a \+sasl listener"),
        ({"users": ["alice"], "listeners": SASL}, "number 1 is something else"),
        ({"users": ["a:b", ":hidden-word"], "listeners": SASL}, "number 2 is something else"),
        ({"users": ["a:b", "hidden-word:"], "listeners": SASL}, "number 2 is something else"),
    ],
)
def test_a_wrong_setting_is_refused_before_the_start(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        load(**settings)
    assert "hidden-word" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"create_topics": ["or/ders"]}, "Correct create_topics: .*or/ders"),
        ({"create_topics": ["a.b", "a_b"]}, "collides"),
        ({"create_topics": ["many:999999999"]}, "partitions"),
        ({"users": [f"{'u' * 2000}:hidden-word"], "listeners": SASL}, "cannot be stored"),
    ],
)
def test_what_the_storage_refuses_ends_the_start(settings: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        Broker(tmp_path / "data", **settings).start()
    assert "hidden-word" not in str(refused.value)
    with Broker(tmp_path / "data") as broker:  # nothing is left behind that keeps it from starting
        assert broker.server.started_ms
