"""Produce: the errors of refused records, and repeated batches."""

from contextlib import ExitStack
from random import Random
from typing import Any

import pytest

from broker.kafka.handlers.produce import API
from broker.network.work import INSPECTION, VALIDATION
from broker.storage.log.append_rules import MOST_NAMED
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.records import build_batch
from protocol.kafka.schema import control
from tests.kafka.handlers.kafka_client import FIRST_BY_ID, Beside, Kafka, get, versions
from tests.kafka_connection import produce_fields
from tests.loops import loop_over
from tests.waiting import wait_for

all_versions = loop_over("version", versions(API))
TIMESTAMP = 1_000_000


def produce(kafka: Kafka, topic: str, batch: bytes | bytearray, version: int = API.max_version, acks: int = 1) -> Any:
    (answered,) = kafka.ask(ApiKey.PRODUCE, version, **produce_fields(topic, batch, acks=acks)).responses
    if version < FIRST_BY_ID[ApiKey.PRODUCE]:
        assert topic == answered.name
    else:
        assert kafka.inside.logs.topic(topic).topic_id == answered.topic_id
    (result,) = answered.partition_responses
    return result


def rows(*keys: bytes | None) -> list[tuple[bytes | None, bytes, list[Any], int]]:
    return [(key, b"value", [], TIMESTAMP) for key in keys]


def append_time(result: Any) -> int:
    time = result.log_append_time
    return -1 if time is None else round(time.timestamp() * 1000)


@all_versions
@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_keyless_records_are_named_on_a_compacted_topic(kafka: Kafka, version: int, codec: int) -> None:
    topic = kafka.topic(cleanup_policy="compact")
    result = produce(kafka, topic, build_batch(rows(b"a", None, b"b", None), compression=codec), version)
    if codec == 4 and version < 7:
        assert ErrorCode.unsupported_compression_type == result.error_code
        return
    assert ErrorCode.invalid_record == result.error_code
    assert -1 == result.base_offset
    message = f"Compacted topic cannot accept message without key in topic partition {topic}-0."
    named = [(error.batch_index, error.batch_index_error_message) for error in get(result, "record_errors", ())]
    if version >= 8:
        assert [(1, message), (3, message)] == named
        assert "without a key" in result.error_message
    else:
        assert [] == named
    # Nothing of it is there, and the same producer's next batch is.
    assert 0 == produce(kafka, topic, build_batch(rows(b"a", b"b")), version).base_offset


@pytest.mark.parametrize("codec", [0, 1])
def test_mistimed_records_are_named_if_readable_at_once(kafka: Kafka, codec: int) -> None:
    topic = kafka.topic(message_timestamp_before_max_ms="3600000")
    now_ms = kafka.inside.clock.time_ms()
    records = [(None, b"v", [], now_ms - age) for age in (9_000_000, 0, 1, 8_000_000)]
    result = produce(kafka, topic, build_batch(records, compression=codec))
    assert ErrorCode.invalid_timestamp == result.error_code
    assert ([] if codec else [0, 3]) == [error.batch_index for error in result.record_errors]
    assert all("is out of range" in error.batch_index_error_message for error in result.record_errors)


@all_versions
def test_zstd_needs_a_version_whose_clients_know_it(kafka: Kafka, version: int) -> None:
    topic = kafka.topic()
    batch = build_batch(rows(b"a"), compression=4)
    expected = ErrorCode.unsupported_compression_type if version < 7 else ErrorCode.none
    for _ in range(3):  # also as one of a run
        assert expected == produce(kafka, topic, batch, version).error_code


def test_so_many_records_are_named_and_no_more(kafka: Kafka) -> None:
    topic = kafka.topic(cleanup_policy="compact")
    result = produce(kafka, topic, build_batch(rows(*[None] * (3 * MOST_NAMED)), compression=4))
    assert list(range(MOST_NAMED)) == [error.batch_index for error in result.record_errors]


@all_versions
@pytest.mark.parametrize("acks", [1, -1])
def test_repeated_batch_gets_the_same_answer(kafka: Kafka, version: int, acks: int) -> None:
    topic = kafka.topic(message_timestamp_type="LogAppendTime")
    batches = [
        build_batch(rows(b"a", b"b"), producer_id=7, producer_epoch=0, base_sequence=2 * number) for number in range(3)
    ]
    first = [produce(kafka, topic, batch, version, acks) for batch in batches]
    assert all(append_time(result) > TIMESTAMP for result in first)
    again = [produce(kafka, topic, batch, version, acks) for batch in batches]
    assert [(result.base_offset, append_time(result)) for result in first] == [
        (result.base_offset, append_time(result)) for result in again
    ]


def test_unverifiable_records_are_refused(kafka: Kafka) -> None:
    topic = kafka.topic()
    result = produce(kafka, topic, build_batch(rows(b"a"), compression=1, last_offset_delta=2**31 - 2))
    assert ErrorCode.invalid_record == result.error_code
    assert 0 == produce(kafka, topic, build_batch(rows(b"a"))).base_offset


def test_handlers_do_not_wait_for_what_is_decompressed(kafka: Kafka) -> None:
    """More requests than handlers, of each kind that decompresses clients' batches."""
    compacted = kafka.topic(cleanup_policy="compact", max_message_bytes="4000000")
    plain = kafka.topic()
    log = kafka.inside.logs.get(plain, 0)
    assert log is not None
    short = build_batch([(b"key", b"v" * 2_000_000, [], TIMESTAMP)], compression=1)
    long = build_batch([(b"key", Random(1).randbytes(3_000_000), [], TIMESTAMP)], compression=1)
    assert produce(kafka, plain, short).error_code == 0
    by_time = {"topics": [{"name": plain, "partitions": [{"partition_index": 0, "timestamp": TIMESTAMP}]}]}
    latest = {"topics": [{"name": plain, "partitions": [{"partition_index": 0, "timestamp": -1}]}]}
    requests = [
        *(
            control.encode_request(ApiKey.PRODUCE, 12, 7, "x", {"acks": 1, "timeout": 30_000, "topic_data": [topic]})
            for records in (short, long)
            for topic in [{"name": compacted, "partition_data": [{"index": 0, "records": bytes(records)}]}]
        ),
        control.encode_request(ApiKey.LIST_OFFSETS, 7, 7, "x", {"replica_id": -1} | by_time),
    ]
    with ExitStack() as connections:
        clients = [connections.enter_context(Beside(kafka)) for _ in range(10 * len(requests))]
        with log.around.large, log.around.large_sought:  # as if a batch were decompressed for long
            for number, client in enumerate(clients):
                client.send(requests[number % len(requests)])
            queues = kafka.broker.server.sockets.planes[0].channel
            wait_for(lambda: queues.in_lanes().get(VALIDATION) == 20 and queues.in_lanes().get(INSPECTION) == 10)
            (made,) = kafka.ask(
                ApiKey.CREATE_TOPICS,
                5,
                topics=[{"name": f"{plain}-2", "num_partitions": 1, "replication_factor": 1}],
                timeout=60_000,
            ).topics
            assert made.error_code == 0
            (ends,) = kafka.ask(ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, **latest).topics
            assert ends.partitions[0].offset == 1
        answers = [client.frame() for client in clients]
    assert len(answers) == len(clients)
