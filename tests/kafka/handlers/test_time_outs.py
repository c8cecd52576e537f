"""The time-outs that requests bring: who changes topics, or waits for an fsync, is told when his time is over."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.records import build_batch
from tests.faults.raw import wait_for
from tests.kafka.handlers.kafka_client import Kafka


@pytest.fixture
def kafka() -> Iterator[Kafka]:
    with Kafka() as kafka:
        yield kafka


def produce(kafka: Kafka, topic: str, *, timeout: int) -> Any:
    batch = bytes(build_batch([(b"key", b"value", [], 1_700_000_000_000)]))
    partitions = [{"index": number, "records": batch} for number in range(2)]
    answer = kafka.ask(
        ApiKey.PRODUCE, 8, acks=-1, timeout=timeout, topic_data=[{"name": topic, "partition_data": partitions}]
    )
    return [one.error_code for one in answer.responses[0].partition_responses]


def test_a_produce_whose_fsync_does_not_come_is_told_so_and_its_records_stay(kafka: Kafka) -> None:
    topic = kafka.topic(2)
    log = kafka.inside.logs.partitions[topic, 0]
    free, began = threading.Event(), threading.Event()

    def wait(_: object) -> None:
        began.set()
        free.wait(60)

    kafka.fill(topic, 1_700_000_000_000)
    kafka.inside.flusher.wait_durable(log, 1, wait)  # on a flusher thread, for this log only
    assert began.wait(60)
    try:
        assert produce(kafka, topic, timeout=50) == [ErrorCode.request_timed_out, ErrorCode.none]
    finally:
        free.set()
    wait_for(lambda: log.durable_offset == 2)
    assert produce(kafka, topic, timeout=30_000) == [ErrorCode.none] * 2
    assert log.log_end_offset == 3
    assert len(kafka.inside.ack_deadlines) == 0


@pytest.mark.parametrize("version", [2, 7])
def test_topics_whose_turn_comes_too_late_are_not_made(kafka: Kafka, version: int) -> None:
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


def test_partitions_whose_turn_comes_too_late_are_not_made(kafka: Kafka) -> None:
    names = [kafka.topic() for _ in range(60)]
    answer = kafka.ask(
        ApiKey.CREATE_PARTITIONS,
        3,
        topics=[{"name": name, "count": 20, "assignments": None} for name in names],
        timeout=5,
    )
    errors = {result.name: result.error_code for result in answer.results}
    assert errors[names[-1]] == ErrorCode.request_timed_out
    for name, error in errors.items():
        info = kafka.inside.logs.topic(name)
        assert info is not None
        assert info.partitions == (1 if error else 20)


@pytest.mark.parametrize("timeout", [0, -1])
def test_who_sets_no_time_out_waits_as_long_as_it_takes(kafka: Kafka, timeout: int) -> None:
    names = [f"topic{number}" for number in range(5)]
    answer = kafka.ask(
        ApiKey.CREATE_TOPICS,
        7,
        topics=[{"name": name, "num_partitions": 5, "replication_factor": 1} for name in names],
        timeout=timeout,
    )
    assert {0} == {topic.error_code for topic in answer.topics}
