"""`broker faults`, as processes against a real broker whose clients meet the faults."""

import json
import subprocess
from collections.abc import Callable, Iterator

import attrs
import pytest
from confluent_kafka import KafkaError, Producer

from broker.cli.faults import _HELP
from broker.client import Broker
from broker.faults.fault import Fault
from tests.cli.conftest import Run, Serving, command_line

LISTENERS = ("kafka://127.0.0.1:0", "http://127.0.0.1:0")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(listeners=LISTENERS, faults_enabled=True) as running:
        yield running


@pytest.fixture
def url(broker: Broker) -> Iterator[str]:
    yield f"http://{broker.address('http')}"
    broker.faults.clear()


def produce(broker: Broker, topic: str) -> KafkaError | None:
    told: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": "shop"})
    producer.produce(topic, b"value", on_delivery=lambda error, _message: told.append(error))
    assert producer.flush(60) == 0
    return told[0]


def test_a_client_meets_a_fault_of_the_command(run_alone: Run, broker: Broker, url: str) -> None:
    options = ("--api", "Produce", "--topic", "orders", "--error", "TOPIC_AUTHORIZATION_FAILED")
    added = run_alone("faults", "add", "error", *options, "-a", url).stdout.decode()
    (handle,) = broker.faults.list()
    number = handle.number
    assert added == (
        f"added fault {number}: error api=PRODUCE topic=orders error=TOPIC_AUTHORIZATION_FAILED (0 hits, 1 left)\n"
    )
    waiting = subprocess.Popen(
        command_line("faults", "show", str(number), "--wait", "1", "--timeout", "60", "-a", url), stdout=subprocess.PIPE
    )
    error = produce(broker, "orders")
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    shown = waiting.communicate(timeout=120)[0].decode().splitlines()
    assert shown[0].endswith("(1 hits, 0 left)")
    assert shown[1].split("\t")[1:] == ["PRODUCE", "shop", "User:ANONYMOUS", "topic=orders partition=0"]


def test_every_field_is_an_option(run_alone: Run, broker: Broker, url: str) -> None:
    fields = {
        "kind": "delay",
        "api": "TXN_OFFSET_COMMIT",  # which names all of them
        "client_id": "shop",
        "principal": "User:alice",
        "topic": "o\x1b",
        "partition": 0,
        "group": "g",
        "transactional_id": "t",
        "count": 3,
        "skip": 2,
        "probability": 0.5,
        "seed": 7,
        "after_ms": 3,
        "for_ms": 60_000,
        "delay_ms": 10,
    }
    options = [f"--{name.replace('_', '-')}={value}" for name, value in fields.items() if name != "kind"]
    output = run_alone("faults", "add", "delay", *options, "-a", url, "--output", "json").stdout
    (handle,) = broker.faults.list()
    assert handle.fault.as_json() == fields
    assert json.loads(output) == {"number": handle.number, "fault": fields, "hits": 0, "left": 3, "passed": []}


def test_faults_are_listed_and_removed(run_alone: Run, broker: Broker, url: str) -> None:
    one = broker.faults.add("observe", topic="a b")
    two = broker.faults.add("lost", count=None)
    run_alone("faults", "add", "observe", "--unlimited", "-a", url)
    three = broker.faults.list()[2]
    assert three.left is None
    listed = run_alone("faults", "list", "-a", url).stdout.decode().splitlines()
    assert listed == [
        f"{one.number}\tobserve\ttopic=a b\t0\t1",
        f"{two.number}\tlost\tcount=None\t0\t-",
        f"{three.number}\tobserve\tcount=None\t0\t-",
    ]
    output = run_alone("faults", "list", "-a", url, "--output", "json").stdout
    assert [each["number"] for each in map(json.loads, output.splitlines())] == [
        handle.number for handle in broker.faults.list()
    ]
    removed = run_alone("faults", "remove", str(one.number), str(three.number), "-a", url).stdout.decode()
    assert removed == f"removed fault {one.number}\nremoved fault {three.number}\n"
    assert broker.faults.list() == [two]
    output = run_alone("faults", "remove", "--all", "-a", url, "--output", "json").stdout
    assert json.loads(output) == {"fault": None, "done": "removed"}
    assert broker.faults.list() == []
    assert run_alone("faults", "list", "-a", url).stdout == b""


def test_more_than_a_page_is_listed(run_alone: Run, broker: Broker, url: str) -> None:
    for _ in range(101):
        broker.faults.add("observe")
    assert len(run_alone("faults", "list", "-a", url).stdout.splitlines()) == 101


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["add", "nothing"], 1, b"There is no kind 'nothing'"),
        (["add", "error", "--error", "NOT_LEADER"], 1, b"Did you mean NOT_LEADER_OR_FOLLOWER?"),
        (["add", "error"], 1, b"Give error"),
        (["add"], 2, b"KIND"),
        (["add", "observe", "--count", "many"], 2, b"--count"),
        (["add", "observe", "--count", "1", "--unlimited"], 2, b"one of --count and --unlimited"),
        (["show", "999999"], 1, b"There is no fault '999999'"),
        (["remove"], 2, b"or --all"),
        (["remove", "1", "--all"], 2, b"or --all"),
        (["remove", "999999"], 1, b"There is no fault"),
    ],
)
def test_errors_are_one_sentence(run_alone: Run, url: str, arguments: list[str], status: int, words: bytes) -> None:
    assert words in run_alone("faults", *arguments, "-a", url, fails=status).stderr


def test_hits_that_do_not_come_are_an_error(run_alone: Run, broker: Broker, url: str) -> None:
    fault = broker.faults.add("observe", api="PRODUCE", topic="ended")
    failed = run_alone("faults", "show", str(fault.number), "--wait", "2", "--timeout", "0", "-a", url, fails=1)
    assert b"has 0 of 2 hits after 0 s." in failed.stderr
    produce(broker, "ended")
    failed = run_alone("faults", "show", str(fault.number), "--wait", "2", "-a", url, fails=1)
    assert b"has ended after 1 of 2 hits." in failed.stderr


def test_a_broker_without_the_setting_says_which_it_is(run_alone: Run) -> None:
    with Broker(listeners=LISTENERS) as running:
        failed = run_alone("faults", "list", "-a", f"http://{running.address('http')}", fails=1)
    assert b"set faults_enabled to true" in failed.stderr


def test_a_fault_is_triggered(run_alone: Run, broker: Broker, url: str) -> None:
    broker.create_topic("grows")
    options = ("partitions_added", "--topic", "grows", "--partitions", "2", "-a", url)
    done = run_alone("faults", "trigger", *options).stdout
    assert done == b"triggered partitions_added topic=grows partitions=2\n"
    info = broker.server.kafka.logs.topic("grows")
    assert info is not None
    assert info.partitions == 3
    output = run_alone("faults", "trigger", *options, "--output", "json").stdout
    assert json.loads(output) == {
        "fault": {"kind": "partitions_added", "topic": "grows", "partitions": 2},
        "done": "triggered",
    }
    assert (
        b"There is no topic"
        in run_alone("faults", "trigger", "topic_deleted", "--topic", "no-such", "-a", url, fails=1).stderr
    )
    assert broker.faults.list() == []


def test_every_option_is_explained() -> None:
    assert {field.name for field in attrs.fields(Fault)} - {"kind", "when"} == set(_HELP)


def test_the_machine_of_a_served_broker_has_faults(run_alone: Run, serve: Callable[..., Serving]) -> None:
    listeners = ("--listener", "kafka://127.0.0.1:0", "--listener", "http://127.0.0.1:0")
    serving = serve(*listeners, "--set", "faults_enabled=true")
    ready = json.loads(serving.ready_file.read_text())["listeners"]
    url, kafka = f"http://{ready['http']}", ready["kafka"]
    run_alone("faults", "add", "disk_full", "-a", url)
    assert b"orders" in run_alone("topics", "create", "orders", "-b", kafka, fails=1).stderr
    assert b"disk_full" in run_alone("faults", "list", "-a", url).stdout
    run_alone("faults", "remove", "--all", "-a", url)
    run_alone("topics", "create", "orders", "-b", kafka)
    # Only a program that has the broker in it can start it again.
    assert b"There is no kind 'restart'" in run_alone("faults", "add", "restart", "-a", url, fails=1).stderr
