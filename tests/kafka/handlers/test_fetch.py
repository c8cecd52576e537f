"""Fetch: refusals, how the limits of a request are shared, and records that are not in memory."""

from typing import Any

import attrs
import pytest

from broker.kafka import fetches
from broker.kafka.fetches import Reading
from broker.kafka.handlers import fetch
from broker.network.service import Handover
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.batch import batches
from protocol.kafka.records.records import build_batch
from tests.kafka.handlers.kafka_client import Kafka, versions
from tests.loops import loop_over

all_versions = loop_over("version", versions(fetch.API))
VALUE = bytes(1000)


def write(kafka: Kafka, topic: str, partition: int = 0, batches: int = 1) -> int:
    """The size of one of the batches."""
    log = kafka.inside.logs.get(topic, partition)
    assert log is not None
    for _ in range(batches):
        batch = build_batch([(None, VALUE, [], 1_000_000)])
        log.append(memoryview(batch), now_ms=1_000_000)
    return len(batch)


def ask(
    kafka: Kafka, version: int, topic: str, *partitions: dict[str, Any], max_bytes: int = 1 << 20, **fields: Any
) -> Any:
    """The whole response."""
    wanted = [
        {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1, **partition}
        for partition in partitions
    ]
    request = {"max_wait": 0, "min_bytes": 1, "max_bytes": max_bytes}
    return kafka.ask(
        ApiKey.FETCH, version, **request | fields, topics=[{"topic": topic, "partitions": wanted}] if wanted else []
    )


def results(answer: Any) -> list[Any]:
    return [partition for topic in answer.responses for partition in topic.partitions]


def offsets(result: Any) -> list[int]:
    return [header.base_offset for _, header in batches(result.records)]


@all_versions
def test_records_come_with_the_offsets_of_their_log(kafka: Kafka, version: int) -> None:
    topic = kafka.topic()
    write(kafka, topic, batches=3)
    (result,) = results(ask(kafka, version, topic, {"fetch_offset": 1}))
    assert (result.error_code, result.high_watermark) == (ErrorCode.none, 3)
    assert offsets(result) == [1, 2]


@all_versions
def test_unreadable_partitions_are_refused_individually(kafka: Kafka, version: int) -> None:
    topic = kafka.topic(2)
    write(kafka, topic)
    beyond, right, unknown = results(
        ask(kafka, version, topic, {"fetch_offset": 7}, {"partition": 1}, {"partition": 2})
    )
    assert [beyond.error_code, right.error_code, unknown.error_code] == [
        ErrorCode.offset_out_of_range,
        ErrorCode.none,
        ErrorCode.unknown_topic_or_partition,
    ]
    assert beyond.high_watermark == 1  # by which the client sees where it may go on


@pytest.mark.parametrize("version", [9, 12])
@pytest.mark.parametrize(("epoch", "error"), [(0, 0), (-1, 0), (1, ErrorCode.unknown_leader_epoch)])
def test_other_leader_epoch_is_refused(kafka: Kafka, version: int, epoch: int, error: int) -> None:
    topic = kafka.topic()
    (result,) = results(ask(kafka, version, topic, {"current_leader_epoch": epoch}))
    assert result.error_code == error


def test_offline_partition_is_refused_until_reopened(kafka: Kafka) -> None:
    topic = kafka.topic()
    write(kafka, topic)
    kafka.take_offline(topic)
    (result,) = results(ask(kafka, 12, topic, {}))
    assert result.error_code == ErrorCode.kafka_storage_error


def test_first_batch_is_sent_despite_the_limits(kafka: Kafka) -> None:
    topic = kafka.topic(2)
    size = write(kafka, topic, 0, batches=2)
    write(kafka, topic, 1, batches=2)
    first, second = results(ask(kafka, 12, topic, {}, {"partition": 1}, max_bytes=1))
    assert (len(first.records or b""), len(second.records or b"")) == (size, 0)
    # Room for three: two of the first partition, one of the second.
    first, second = results(ask(kafka, 12, topic, {}, {"partition": 1}, max_bytes=3 * size))
    assert (len(first.records), len(second.records)) == (2 * size, size)
    first, second = results(ask(kafka, 12, topic, {"partition_max_bytes": size}, {"partition": 1}))
    assert (len(first.records), len(second.records)) == (size, 2 * size)


def test_response_sends_from_a_bounded_number_of_files(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes at once then, however many bytes the client waits for."""
    monkeypatch.setattr(fetches, "FILES_MAX", 2)
    topic = kafka.topic(4)
    sizes = [write(kafka, topic, number) if number != 1 else 0 for number in range(4)]
    wanted = [{"partition": number} for number in range(4)]
    answer = ask(kafka, 12, topic, *wanted, max_wait=60_000, min_bytes=1 << 20)
    assert [len(result.records or b"") for result in results(answer)] == [sizes[0], 0, sizes[2], 0]


@pytest.mark.parametrize("version", [7, 12])
def test_sessions_are_not_kept(kafka: Kafka, version: int) -> None:
    topic = kafka.topic()
    full = ask(kafka, version, topic, {}, session_id=0, session_epoch=0)
    assert (full.error_code, full.session_id) == (ErrorCode.none, 0)
    known = ask(kafka, version, topic, {}, session_id=17, session_epoch=1)
    assert known.error_code == ErrorCode.fetch_session_id_not_found
    later = ask(kafka, version, topic, {}, session_id=0, session_epoch=1)
    assert later.error_code == ErrorCode.invalid_fetch_session_epoch


def test_cold_records_are_read_by_a_handler_first(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = kafka.topic()
    write(kafka, topic, batches=2)
    warmed: list[int] = []
    log = kafka.inside.logs.get(topic, 0)
    assert log is not None
    warm, read = Reading.warm, log.read

    def cold(*args: Any, **options: Any) -> Any:
        return read(*args, **options)._replace(resident=False)

    def noted(reading: Any, context: Any) -> None:
        warmed.append(reading.size)
        warm(reading, context)

    monkeypatch.setattr(log, "read", cold)
    monkeypatch.setattr(Reading, "warm", noted)
    (result,) = results(ask(kafka, 12, topic, {}))
    assert offsets(result) == [0, 1]
    assert warmed == [len(result.records)]


def test_reading_is_handed_over_with_the_request(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = kafka.topic()
    write(kafka, topic)
    seen: list[Any] = []
    apis = kafka.broker.server.part("kafka").apis  # type: ignore[union-attr]
    handle = fetch._handle

    def noted(context: Any, request: Any, outbox: Any, prepared: Any) -> None:
        seen.append(prepared)
        handle(context, request, outbox, prepared)

    def on_a_handler(*arguments: Any) -> Handover:
        return Handover(None, fetch._prepare(*arguments))

    monkeypatch.setitem(apis, ApiKey.FETCH, attrs.evolve(fetch.API, prepare=on_a_handler, handle_raw=noted))
    results(ask(kafka, 12, topic, {}))
    ((parsed, reading),) = seen
    assert [wanted.topic for wanted in parsed.partitions] == [topic]
    assert reading.size > len(VALUE)
