"""`broker transactions`, and what `broker inspect` says of transactions, against a real broker and a real client."""

import pytest
from confluent_kafka import KafkaException, Producer

from broker.client import Broker
from tests.cli.conftest import Run


@pytest.fixture
def producer(session_broker: Broker, topic: str) -> Producer:
    """With an open transaction, whose id is the topic's name."""
    producer = Producer({"bootstrap.servers": session_broker.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"value", partition=0)
    producer.flush(30)
    return producer


def lines(run: Run, *arguments: str) -> list[str]:
    return run(*arguments).stdout.decode().splitlines()


def test_an_open_transaction_is_listed_described_and_aborted(run: Run, topic: str, producer: Producer) -> None:
    (listed,) = [line for line in lines(run, "transactions", "list", "--state", "Ongoing") if line.startswith(topic)]
    assert listed.split("\t")[2] == "Ongoing"
    about, partition = lines(run, "transactions", "describe", topic)
    assert about.startswith(f"{topic}: Ongoing, producer ")
    assert partition == f"  {topic}-0"
    assert lines(run, "transactions", "abort", topic) == [f"aborted {topic}"]
    assert lines(run, "transactions", "describe", topic)[0].startswith(f"{topic}: Empty, producer ")
    with pytest.raises(KafkaException):
        producer.commit_transaction(30)


def test_unknown_transactional_id_is_error_and_not_created(run: Run, topic: str) -> None:
    for command in ("describe", "abort"):
        assert b"not found" in run("transactions", command, topic, fails=1).stderr
    assert not [line for line in lines(run, "transactions", "list") if line.startswith(topic)]


def test_missing_broker_is_reported(run_alone: Run) -> None:
    assert b"No broker answers" in run_alone("transactions", "list", "-b", "localhost:1", fails=1).stderr


def test_inspect_shows_open_transactions_and_markers(
    run: Run, topic: str, producer: Producer, session_broker: Broker
) -> None:
    directory = f"{session_broker.server.config.data_dir}/{topic}-0"
    assert lines(run, "inspect", directory)[-1].endswith("has an open transaction from offset 0 on")
    producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b"value", partition=0)
    producer.commit_transaction(30)
    shown = lines(run, "inspect", "--batches", directory)[1:]
    kinds = [line.rsplit(", ", 1)[1] for line in shown]
    commit, abort = "control: commit by coordinator epoch 0", "control: abort by coordinator epoch 0"
    assert kinds == ["transactional", abort, "transactional", commit]
    assert "open transaction" not in "".join(lines(run, "inspect", directory))
