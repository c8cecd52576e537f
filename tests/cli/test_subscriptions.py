"""`broker subscriptions`, as processes against a real broker."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client import Broker
from tests.cli.conftest import Run
from tests.pulsar.admin.test_rights import KEY, token
from tests.pulsar.clients import client

LISTENERS = ("pulsar://127.0.0.1:0", "http://127.0.0.1:0")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(listeners=LISTENERS) as running:
        yield running


@pytest.fixture
def url(broker: Broker) -> str:
    return f"http://{broker.address('http')}"


@pytest.fixture
def filled(broker: Broker, topic: str) -> str:
    """A topic of five messages, and a subscription that has acknowledged the first."""
    with client(f"pulsar://{broker.address('pulsar')}") as pulsar:
        consumer = pulsar.subscribe(topic, "s u/b")
        producer = pulsar.create_producer(topic)
        for number in range(5):
            producer.send(b"%d" % number)
        consumer.acknowledge(consumer.receive(30_000))
        consumer.close()
    return topic


def listed(run: Run, url: str, *arguments: str) -> list[dict[str, object]]:
    output = run("subscriptions", "list", *arguments, "-a", url, "--output", "json").stdout
    return [json.loads(line) for line in output.splitlines()]


def test_missing_pulsar_listener_is_reported(run_alone: Run) -> None:
    with Broker(listeners=("http://127.0.0.1:0",)) as running:
        failed = run_alone("subscriptions", "list", "-a", f"http://{running.address('http')}", fails=1)
    assert b"does not serve Pulsar. Start the broker with a pulsar:// listener, too." in failed.stderr


def test_subscriptions_are_listed_with_their_backlogs(run_alone: Run, url: str, filled: str) -> None:
    expected = {
        "topic": f"persistent://public/default/{filled}",
        "subscription": "s u/b",
        "type": "Exclusive",
        "backlog": 4,
        "unacknowledged": 0,
        "consumers": 0,
    }
    assert [expected] == listed(run_alone, url, filled)
    assert expected in listed(run_alone, url)
    text = run_alone("subscriptions", "list", filled, "-a", url).stdout.decode()
    assert f"persistent://public/default/{filled}\ts u/b\tExclusive\t4\t0\t0\n" == text


def test_a_subscription_is_described(run_alone: Run, url: str, filled: str) -> None:
    output = run_alone("subscriptions", "describe", filled, "s u/b", "-a", url, "--output", "json").stdout
    (place,) = json.loads(output)["partitions"]
    assert place["mark_delete"].endswith(":0")
    assert 4 == place["backlog"]
    assert b"has no subscription" in run_alone("subscriptions", "describe", filled, "x", "-a", url, fails=1).stderr


def test_messages_are_skipped_and_come_back(run_alone: Run, url: str, filled: str) -> None:
    def backlog(*arguments: str) -> bytes:
        verb, *options = arguments
        return run_alone("subscriptions", verb, filled, "s u/b", *options, "-a", url).stdout

    assert b"s u/b: 2 messages are not acknowledged\n" == backlog("skip", "--messages", "2")
    assert b"s u/b: 2 messages" in backlog("skip", "--older-than", "3600")
    assert b"s u/b: 0 messages" in backlog("skip", "--all")
    assert b"s u/b: 5 messages" in backlog("reset", "--to-earliest")
    assert 3 == json.loads(backlog("skip", "--messages", "2", "--output", "json"))["backlog"]
    assert 5 == json.loads(backlog("reset", "--to-earliest", "--output", "json"))["backlog"]
    assert b"s u/b: 0 messages" in backlog("reset", "--to-latest")
    assert b"s u/b: 5 messages" in backlog("reset", "--to", "-1h")
    output = run_alone("subscriptions", "describe", filled, "s u/b", "-a", url, "--output", "json").stdout
    ledger = json.loads(output)["partitions"][0]["read"].partition(":")[0]
    assert b"s u/b: 2 messages" in backlog("reset", "--to-message", f"{ledger}:3")


def test_a_partitioned_topic_counts_as_one(run_alone: Run, broker: Broker, url: str, topic: str) -> None:
    import http.client

    connection = http.client.HTTPConnection(broker.address("http"), timeout=30)
    for path in (f"{topic}/partitions", f"{topic}/subscription/s"):
        connection.request("PUT", f"/admin/v2/persistent/public/default/{path}", "2" if "partitions" in path else None)
        connection.getresponse().read()
    connection.close()
    rows = [row for row in listed(run_alone, url) if topic in str(row["topic"])]
    assert [f"persistent://public/default/{topic}"] == [row["topic"] for row in rows]
    output = run_alone("subscriptions", "describe", topic, "s", "-a", url, "--output", "json").stdout
    assert 2 == len(json.loads(output)["partitions"])


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["list", "-a", "localhost:8080"], 2, b"http://host:port"),
        (["list", "-a", "http://127.0.0.1:1"], 1, b"http:// listener"),
        (["list", "-n", "nothing"], 2, b"tenant/namespace"),
        (["list", "-n", "no/where"], 1, b"does not exist"),
        (["list", "a/b"], 2, b"persistent://tenant/namespace/topic"),
        (["skip", "t", "s"], 2, b"one of --messages"),
        (["skip", "t", "s", "--all", "-m", "3"], 2, b"one of --messages"),
        (["skip", "none", "s", "--all"], 1, b"not found"),
        (["reset", "t", "s"], 2, b"one of --to"),
        (["reset", "t", "s", "--to-message", "3"], 2, b"LEDGER:ENTRY"),
    ],
)
def test_errors_are_one_sentence(run_alone: Run, url: str, arguments: list[str], status: int, words: bytes) -> None:
    where = [] if "-a" in arguments else ["-a", url]
    assert words in run_alone("subscriptions", *arguments, *where, fails=status).stderr


def test_a_token_is_shown_where_the_broker_asks(run_alone: Run, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    settings = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\nsasl.oauthbearer.token="
    file.write_text(f"{settings}{token('me')}\n")
    file.chmod(0o600)
    key = base64.b64encode(KEY).decode()
    with Broker(listeners=["pulsar+sasl://127.0.0.1:0", "http://127.0.0.1:0"], pulsar_token_secret_key=key) as broker:
        url = f"http://{broker.address('http')}"
        refused = run_alone("subscriptions", "list", "-a", url, fails=1).stderr
        assert b"has not proved who it is" in refused
        run_alone("subscriptions", "list", "-a", url, "--client-config", str(file))
