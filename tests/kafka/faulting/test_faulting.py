from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from broker.faults.fault import Entity
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.records import build_batch
from tests.kafka.handlers.kafka_client import Beside, Kafka
from tests.kafka_connection import fetch_fields, produce_fields
from tests.waiting import wait_for

BATCH = build_batch([(None, b"value", [], 1)])
PRODUCE, FETCH, METADATA = ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA


class HeldTimer:
    """Keeps (deadline, callback)."""

    def __init__(self) -> None:
        self.held: list[tuple[float, Callable[[], None]]] = []

    def at(self, deadline: float, callback: Callable[[], None]) -> None:
        self.held.append((deadline, callback))


@pytest.fixture
def client(kafka: Kafka) -> Iterator[Kafka]:
    """A connection of the test's own, and no fault before and after it."""
    with Beside(kafka) as client:
        yield client
    kafka.broker.faults.clear()
    kafka.inside.throttling.end_all()  # those that no longer get answers
    wait_for(lambda: not kafka.inside.throttling)


def end_offset(client: Kafka, topic: str, partition: int = 0) -> int:
    log = client.inside.logs.get(topic, partition)
    assert log is not None
    return log.log_end_offset


def produce(client: Kafka, topic: str, **fields: Any) -> Any:
    """The error of a Produce request."""
    answer = client.ask(PRODUCE, 9, **produce_fields(topic, BATCH, **fields))
    return answer.responses[0].partition_responses[0].error_code


def add(client: Kafka, kind: str, **fields: Any) -> Any:
    return client.broker.faults.add(kind, **fields)


# -- errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 9, 13])
def test_the_faulted_partition_alone_is_not_written(client: Kafka, version: int) -> None:
    topic, other = client.topic(2), client.topic()
    fault = add(client, "error", api="PRODUCE", topic=topic, partition=1, error="NOT_LEADER_OR_FOLLOWER")
    data = [
        {"name": topic, "partition_data": [{"index": number, "records": BATCH} for number in (0, 1)]},
        {"name": other, "partition_data": [{"index": 0, "records": BATCH}]},
    ]
    answer = client.ask(PRODUCE, version, acks=-1, timeout=30_000, topic_data=data)
    codes = {
        (client.name_of(each), one.index): one.error_code
        for each in answer.responses
        for one in each.partition_responses
    }
    assert {(topic, 0): 0, (topic, 1): ErrorCode.not_leader_or_follower, (other, 0): 0} == codes
    assert (1, 0, 1) == (end_offset(client, topic), end_offset(client, topic, 1), end_offset(client, other))
    assert [(Entity(topic, 1),)] == [each.entities for each in fault.passed]


def test_the_fault_ends_after_its_count(client: Kafka) -> None:
    topic = client.topic()
    fault = add(client, "error", api="PRODUCE", topic=topic, error="REQUEST_TIMED_OUT", count=2, skip=1)
    codes = [produce(client, topic) for _ in range(4)]
    assert [0, ErrorCode.request_timed_out, ErrorCode.request_timed_out, 0] == codes
    assert (2, 2, 0) == (end_offset(client, topic), fault.hits, fault.left)
    assert client.inside.faults is None


def test_error_after_has_done_the_work(client: Kafka) -> None:
    topic = client.topic()
    add(client, "error_after", api="PRODUCE", error="REQUEST_TIMED_OUT")
    assert ErrorCode.request_timed_out == produce(client, topic)
    assert 1 == end_offset(client, topic)


def test_a_fetch_keeps_the_records_of_other_partitions(client: Kafka) -> None:
    topic = client.topic(2)
    for partition in (0, 1):
        client.fill(topic, 1, partition=partition)
    add(client, "error", topic=topic, partition=0, error="OFFSET_OUT_OF_RANGE")
    answer = client.ask(FETCH, 17, **fetch_fields(topic, (0, 1)))
    found = {one.partition_index: one for each in answer.responses for one in each.partitions}
    assert (ErrorCode.offset_out_of_range, b"") == (found[0].error_code, found[0].records)
    assert not found[1].error_code
    assert len(found[1].records) > 50


@pytest.mark.parametrize("when", ["error", "error_after"])
def test_an_answer_without_partitions_has_one_error(client: Kafka, when: str) -> None:
    add(client, when, api="HEARTBEAT", group="g", error="NOT_COORDINATOR")
    answer = client.ask(ApiKey.HEARTBEAT, 4, group_id="g", generation_id=1, member_id="m")
    assert ErrorCode.not_coordinator == answer.error_code


def test_metadata_lists_all_with_the_error(client: Kafka) -> None:
    topic = client.topic()
    add(client, "error", api="METADATA", error="LEADER_NOT_AVAILABLE")
    answer = client.ask(METADATA, 9, topics=None)
    assert {ErrorCode.leader_not_available} == {each.error_code for each in answer.topics}
    assert topic in {each.name for each in answer.topics}
    assert answer.brokers


def test_an_error_without_an_answer_closes(client: Kafka) -> None:
    topic = client.topic()
    add(client, "error", api="PRODUCE", error="NOT_LEADER_OR_FOLLOWER")
    client.tell(PRODUCE, 9, **produce_fields(topic, BATCH, acks=0))
    assert client.is_closed()
    assert 0 == end_offset(client, topic)


def test_another_s_requests_pass(client: Kafka) -> None:
    topic = client.topic()
    faults = [
        add(client, "error", error="UNKNOWN_SERVER_ERROR", **{name: value})
        for name, value in {
            "client_id": "other",
            "principal": "User:other",
            "topic": "other",
            "partition": 1,
            "group": "g",
            "transactional_id": "x",
            "api": "FETCH",
        }.items()
    ]
    same = {"client_id": "test", "principal": "User:ANONYMOUS", "topic": topic, "partition": 0, "api": "PRODUCE"}
    seen = add(client, "observe", **same)
    assert not produce(client, topic)
    assert 1 == seen.hits
    assert [0] * 7 == [fault.hits for fault in faults]


# -- answers that come late or never -------------------------------------------------------------------------------------


def test_a_lost_answer_leaves_the_connection_open(client: Kafka) -> None:
    topic = client.topic()
    fault = add(client, "lost", api="PRODUCE")
    client.tell(PRODUCE, 9, **produce_fields(topic, BATCH))
    client.tell(ApiKey.API_VERSIONS, 0)
    fault.wait()
    wait_for(lambda: end_offset(client, topic) == 1)
    wait_for(lambda: client.inside.throttling)  # it is not read from any more
    with Beside(client) as another:
        assert not produce(another, topic)
    client.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.socket.recv(1)


def test_a_reset_comes_before_the_work(client: Kafka) -> None:
    topic = client.topic()
    add(client, "reset", api="PRODUCE")
    client.tell(PRODUCE, 9, **produce_fields(topic, BATCH))
    assert client.is_closed()
    assert 0 == end_offset(client, topic)


def test_a_reset_after_comes_after_the_work(client: Kafka) -> None:
    topic = client.topic()
    add(client, "reset_after", api="PRODUCE")
    client.tell(PRODUCE, 9, **produce_fields(topic, BATCH))
    assert client.is_closed()
    assert 1 == end_offset(client, topic)


def test_a_delayed_answer_waits_for_the_timer(client: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = client.topic()
    timer = HeldTimer()
    monkeypatch.setattr(client.inside, "timer", timer)
    began = client.inside.clock.monotonic()
    add(client, "delay", api="PRODUCE", delay_ms=3_600_000)
    client.tell(PRODUCE, 9, **produce_fields(topic, BATCH, acks=1))
    wait_for(lambda: timer.held)
    (deadline, answer) = timer.held[0]
    assert 1 == end_offset(client, topic)  # the work is not delayed
    assert deadline >= began + 3600
    client.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.socket.recv(1)
    client.socket.setblocking(True)
    answer()
    assert not client.answer(PRODUCE, 9).responses[0].partition_responses[0].error_code


def test_a_throttled_answer_has_the_time(client: Kafka) -> None:
    topic = client.topic()
    add(client, "throttle", api="PRODUCE", delay_ms=3_600_000)
    answer = client.ask(PRODUCE, 9, **produce_fields(topic, BATCH))
    assert 3600 == answer.throttle_time.total_seconds()
    assert 1 == len(client.inside.throttling)  # and the connection is muted meanwhile


# -- how requests get there ----------------------------------------------------------------------------------------------


def test_a_request_that_is_handed_over_keeps_its_fault(client: Kafka) -> None:
    """With validation of records, a handler hands Produce over to its lane."""
    topic = client.topic(compression_type="gzip")
    add(client, "error_after", api="PRODUCE", error="REQUEST_TIMED_OUT")
    assert ErrorCode.request_timed_out == produce(client, topic)
    assert 1 == end_offset(client, topic)


def test_a_parked_fetch_keeps_its_fault(client: Kafka) -> None:
    topic = client.topic()
    fault = add(client, "error_after", api="FETCH", error="OFFSET_OUT_OF_RANGE")
    client.tell(FETCH, 12, **fetch_fields(topic, max_wait=30_000))
    fault.wait()
    client.fill(topic, 1)
    answer = client.answer(FETCH, 12)
    assert ErrorCode.offset_out_of_range == answer.responses[0].partitions[0].error_code


def test_pipelined_requests_meet_faults_one_by_one(client: Kafka) -> None:
    topic = client.topic()
    assert not produce(client, topic)  # from now on the broker knows the client's requests
    add(client, "error", api="PRODUCE", error="REQUEST_TIMED_OUT", skip=1)
    for _ in range(3):
        client.tell(PRODUCE, 9, **produce_fields(topic, BATCH))
    answers = [client.answer(PRODUCE, 9).responses[0].partition_responses[0].error_code for _ in range(3)]
    assert [0, ErrorCode.request_timed_out, 0] == answers


def test_a_malformed_request_is_refused_as_always(client: Kafka) -> None:
    seen = add(client, "observe", count=None)
    client.tell(ApiKey.HEARTBEAT, 4, group_id="g")
    client.answer(ApiKey.HEARTBEAT, 4)
    client.send(b"\0\0\0\x0c\0\x0c\0\x04\0\0\0\x01\0\0\0\xff")
    assert client.is_closed()
    assert 1 == seen.hits


def test_a_version_that_is_not_served_is_negotiated(client: Kafka) -> None:
    seen = add(client, "observe", count=None)
    client.send(b"\0\0\0\x0b\0\x12\0\x63\0\0\0\x07\0\0\0")  # ApiVersions, version 99
    assert ErrorCode.unsupported_version == client.answer(ApiKey.API_VERSIONS, 0).error_code
    assert 1 == seen.hits


def test_logins_meet_no_faults() -> None:
    with Kafka(listeners=("kafka+sasl://127.0.0.1:0",)) as kafka:
        seen = kafka.broker.faults.add("observe", count=None)
        kafka.ask(ApiKey.API_VERSIONS, 3, client_software_name="a", client_software_version="1")
        kafka.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")
        assert 0 == seen.hits


def test_faults_stay_over_a_restart() -> None:
    with Kafka() as kafka:
        topic = kafka.topic()
        fault = kafka.broker.faults.add("error", api="PRODUCE", error="REQUEST_TIMED_OUT")
        kafka.broker.stop()
        kafka.broker.start()
        kafka.inside = kafka.broker.server.kafka
        with Beside(kafka) as client:
            assert ErrorCode.request_timed_out == produce(client, topic)
            assert not produce(client, topic)
        assert 1 == fault.hits


def test_without_faults_nothing_is_asked(client: Kafka) -> None:
    assert client.inside.faults is None
    with add(client, "observe", topic="nobody's"):
        assert client.inside.faults is client.broker.faults
    assert client.inside.faults is None


# -- clients -------------------------------------------------------------------------------------------------------------


def producer(client: Kafka, **settings: Any) -> Producer:
    times = {"socket.timeout.ms": 1000, "request.timeout.ms": 1000}
    return Producer({"bootstrap.servers": client.broker.bootstrap_servers, "log_level": 0} | times | settings)


def send(by: Producer, topic: str) -> Any:
    """The error of the delivery, or None."""
    errors: list[Any] = []
    by.produce(topic, b"value", on_delivery=lambda error, _: errors.append(error))
    assert not by.flush(60)
    return errors[0]


def test_a_producer_repeats_what_may_be_repeated(client: Kafka) -> None:
    topic = client.topic()
    seen = add(client, "observe", api="PRODUCE", topic=topic, count=None)
    fault = add(client, "error", api="PRODUCE", topic=topic, error="NOT_LEADER_OR_FOLLOWER", count=2)
    assert send(producer(client), topic) is None
    assert (2, 3, 1) == (fault.hits, seen.hits, end_offset(client, topic))


def test_a_producer_reports_what_is_final(client: Kafka) -> None:
    topic = client.topic()
    add(client, "error", api="PRODUCE", topic=topic, error="TOPIC_AUTHORIZATION_FAILED")
    assert ErrorCode.topic_authorization_failed == send(producer(client), topic).code()
    assert 0 == end_offset(client, topic)


@pytest.mark.parametrize(("idempotent", "records"), [(False, 2), (True, 1)])
def test_a_lost_answer_makes_a_duplicate(client: Kafka, idempotent: bool, records: int) -> None:
    topic = client.topic()
    fault = add(client, "lost", api="PRODUCE", topic=topic)
    assert send(producer(client, **{"enable.idempotence": idempotent}), topic) is None
    assert (1, records) == (fault.hits, end_offset(client, topic))


def test_a_consumer_begins_again_after_offset_out_of_range(client: Kafka) -> None:
    topic = client.topic()
    client.fill(topic, 1, 2)
    settings = {"group.id": topic, "auto.offset.reset": "earliest", "log_level": 0}
    consumer = Consumer({"bootstrap.servers": client.broker.bootstrap_servers} | settings)
    try:
        consumer.subscribe([topic])
        offsets = [message.offset() for message in consumer.consume(2, 60)]
        fault = add(client, "error", api="FETCH", topic=topic, error="OFFSET_OUT_OF_RANGE")
        offsets += [message.offset() for message in consumer.consume(2, 60)]
        assert [0, 1, 0, 1] == offsets
        assert 1 == fault.hits
    finally:
        consumer.close()
