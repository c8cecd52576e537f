"""The time-outs that requests bring: who changes topics, or waits for an fsync, is told when his time is over."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.errors import StorageError
from broker.storage.log.log import Log
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.records import build_batch
from tests.kafka.handlers.kafka_client import Kafka
from tests.waiting import wait_for


@pytest.fixture
def kafka() -> Iterator[Kafka]:
    with Kafka() as kafka:
        yield kafka


def produce(kafka: Kafka, topic: str, *, timeout: int, partitions: int = 2) -> Any:
    batch = bytes(build_batch([(b"key", b"value", [], 1_700_000_000_000)]))
    data = [{"index": number, "records": batch} for number in range(partitions)]
    answer = kafka.ask(
        ApiKey.PRODUCE, 8, acks=-1, timeout=timeout, topic_data=[{"name": topic, "partition_data": data}]
    )
    return [response.error_code for response in answer.responses[0].partition_responses]


def test_produce_without_fsync_times_out_and_keeps_records(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = kafka.topic(2)
    log = kafka.inside.logs.partitions[topic, 0]
    wait_durable = kafka.inside.flusher.wait_durable

    def other_at_once(of: Log, offset: int, callback: Callable[[StorageError | None], None]) -> None:
        """The other partition's fsync may take longer than the time that is given."""
        if of is log:
            wait_durable(of, offset, callback)
        else:
            callback(None)

    free, began = threading.Event(), threading.Event()

    def wait(_: object) -> None:
        began.set()
        free.wait(60)

    kafka.fill(topic, 1_700_000_000_000)
    kafka.inside.flusher.wait_durable(log, 1, wait)  # on a flusher thread, for this log only
    assert began.wait(60)
    monkeypatch.setattr(kafka.inside.flusher, "wait_durable", other_at_once)
    try:
        assert produce(kafka, topic, timeout=50) == [ErrorCode.request_timed_out, ErrorCode.none]
        assert produce(kafka, topic, timeout=50, partitions=1) == [ErrorCode.request_timed_out]
    finally:
        free.set()
    wait_for(lambda: log.durable_offset == 3)
    assert produce(kafka, topic, timeout=30_000) == [ErrorCode.none] * 2
    assert log.log_end_offset == 4
    assert len(kafka.inside.ack_deadlines) == 0


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("compression", ["producer", "gzip"])  # gzip: a handler stores it, and not the processor
def test_a_produce_whose_fsync_fails_is_told_so(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, compression: str, partitions: int
) -> None:
    topic = kafka.topic(partitions, compression_type=compression)

    def fail(log: Log, offset: int, callback: Callable[[StorageError | None], None]) -> None:
        callback(StorageError("no fsync"))

    monkeypatch.setattr(kafka.inside.flusher, "wait_durable", fail)
    before = kafka.inside.errors.read().get(("Produce", "KAFKA_STORAGE_ERROR"), 0)
    assert produce(kafka, topic, timeout=30_000, partitions=partitions) == [ErrorCode.kafka_storage_error] * partitions
    assert kafka.inside.errors.read()["Produce", "KAFKA_STORAGE_ERROR"] == before + partitions


@pytest.mark.parametrize("version", [2, 7])
def test_late_topics_are_not_created(kafka: Kafka, version: int) -> None:
    names = [f"topic{number}" for number in range(60)]
    answer = kafka.ask(
        ApiKey.CREATE_TOPICS,
        version,
        topics=[{"name": name, "num_partitions": 20, "replication_factor": 1} for name in names],
        timeout=5,
    )
    errors = {topic.name: topic.error_code for topic in answer.topics}
    assert list(errors) == names
    assert errors[names[-1]] == ErrorCode.request_timed_out
    for name, error in errors.items():
        assert error in (ErrorCode.none, ErrorCode.request_timed_out)
        assert (kafka.inside.logs.topic(name) is None) == (error == ErrorCode.request_timed_out)


def test_late_partitions_are_not_created(kafka: Kafka) -> None:
    names = [kafka.topic() for _ in range(60)]
    answer = kafka.ask(
        ApiKey.CREATE_PARTITIONS,
        3,
        topics=[{"name": name, "count": 20} for name in names],
        timeout=5,
    )
    errors = {result.name: result.error_code for result in answer.results}
    assert errors[names[-1]] == ErrorCode.request_timed_out
    for name, error in errors.items():
        info = kafka.inside.logs.topic(name)
        assert info is not None
        assert info.partitions == (1 if error else 20)


@pytest.mark.parametrize("timeout", [0, -1])
def test_request_without_a_timeout_waits_indefinitely(kafka: Kafka, timeout: int) -> None:
    names = [f"topic{number}" for number in range(5)]
    answer = kafka.ask(
        ApiKey.CREATE_TOPICS,
        7,
        topics=[{"name": name, "num_partitions": 5, "replication_factor": 1} for name in names],
        timeout=timeout,
    )
    assert {0} == {topic.error_code for topic in answer.topics}
