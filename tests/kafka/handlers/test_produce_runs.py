"""Produce requests that come together, over a socket: they are answered and stored as if each had come alone."""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest

from broker.errors import StorageError
from broker.kafka.handlers.produce import API
from broker.kafka.kafka_session import RunFinder
from broker.security.acl import Operation, ResourceType
from broker.storage.log.log import Log
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.batch import batches
from protocol.kafka.records.records import build_batch
from protocol.kafka.schema import control
from tests.kafka.handlers.kafka_client import Beside, Kafka, versions
from tests.security.grants import Grants

NOW_MS = 1_000_000
Way = Callable[["Kafka", "Sequence[Sent]", int, int], list[tuple[int, int]]]
CORRELATION_ID = 100


@attrs.frozen
class Sent:
    """One request: the bytes of a batch for one partition."""

    topic: str
    records: bytes
    partition: int = 0
    timeout_ms: int = 30_000

    def frame(self, kafka: Kafka, version: int, acks: int, number: int) -> bytes:
        data = [{"name": self.topic, "partition_data": [{"index": self.partition, "records": self.records}]}]
        fields = kafka.by_id(ApiKey.PRODUCE, version, {"acks": acks, "timeout": self.timeout_ms, "topic_data": data})
        return control.encode_request(ApiKey.PRODUCE, version, CORRELATION_ID + number, "client", fields)


def batch(value: bytes = b"value", producer: tuple[int, int, int] = (-1, -1, -1), **options: Any) -> bytes:
    producer_id, epoch, sequence = producer
    return bytes(
        build_batch(
            [(None, value, [], NOW_MS)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            **options,
        )
    )


def together(
    kafka: Kafka, sent: Sequence[Sent], version: int = API.max_version, acks: int = 1
) -> list[tuple[int, int]]:
    """Send all at once. Error and base offset of each answer, which come in order."""
    kafka.send(b"".join(one.frame(kafka, version, acks, number) for number, one in enumerate(sent)))
    found = []
    for number in range(len(sent)):
        correlation_id, response = control.parse_response(ApiKey.PRODUCE, version, kafka.frame())
        assert CORRELATION_ID + number == correlation_id
        (topic,) = response.responses
        (result,) = topic.partition_responses
        found.append((int(result.error_code), int(result.base_offset)))
    return found


def in_turn(kafka: Kafka, sent: Sequence[Sent], version: int = API.max_version, acks: int = 1) -> list[tuple[int, int]]:
    """Wait for each answer before the next one is sent."""
    return [answer for one in sent for answer in together(kafka, [one], version, acks)]


def alone(kafka: Kafka, sent: Sequence[Sent], version: int = API.max_version, acks: int = 1) -> list[tuple[int, int]]:
    """The same while no runs are looked for, so that each request is parsed as a whole."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFinder, "find", lambda self, data, first: first)
        return in_turn(kafka, sent, version, acks)


def log_of(kafka: Kafka, topic: str, partition: int = 0) -> Log:
    log = kafka.inside.logs.get(topic, partition)
    assert log is not None
    return log


def stored(kafka: Kafka, topic: str, partition: int = 0) -> list[tuple[int, bytes]]:
    """Base offset of each batch, and what follows the part that the broker writes into it."""
    result = log_of(kafka, topic, partition).read(0, 1 << 30)
    data = b"".join(region.file.pread(region.size, region.offset) for region in result.regions)
    return [(header.base_offset, data[at + 16 : at + 12 + header.batch_length]) for at, header in batches(data)]


class Runs:
    """Counts how many batches each run of a log has stored."""

    def __init__(self, log: Log) -> None:
        self.sizes: list[int] = []
        self._append_run = log.append_run
        log.append_run = self  # type: ignore[method-assign, assignment]

    def __call__(self, run: Sequence[memoryview], *, now_ms: int) -> tuple[list[int], int]:
        bases, start = self._append_run(run, now_ms=now_ms)
        self.sizes.append(len(bases))
        return bases, start


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", versions(API))
@pytest.mark.parametrize("way", [together, in_turn])
def test_runs_and_single_requests_have_equal_results(kafka: Kafka, way: Way, version: int, acks: int) -> None:
    one, other = kafka.topic(), kafka.topic()
    values = [b"%d" % number * 50 for number in range(20)]
    sent = alone(kafka, [Sent(one, batch(value)) for value in values], version, acks)
    assert sent == way(kafka, [Sent(other, batch(value)) for value in values], version, acks)
    assert [(0, number) for number in range(20)] == sent
    assert stored(kafka, one) == stored(kafka, other)


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", [7, 9, 13])
def test_what_comes_together_is_written_together(kafka: Kafka, version: int, acks: int) -> None:
    topic = kafka.topic()
    runs = Runs(log_of(kafka, topic))
    for _ in range(50):  # the network may still divide what was sent at once
        together(kafka, [Sent(topic, batch())] * 10, version, acks)
        if max(runs.sizes, default=0) > 5:
            break
    else:
        raise AssertionError(f"runs of {runs.sizes}")


@pytest.mark.parametrize("acks", [1, -1])
def test_each_partition_gets_its_own_in_order(kafka: Kafka, acks: int) -> None:
    topic = kafka.topic(partitions=3)
    sent = [Sent(topic, batch(b"%d" % number), number % 3) for number in range(30)]
    assert [(0, number // 3) for number in range(30)] == together(kafka, sent, 9, acks)
    for partition in range(3):
        expected = [one.records[16:] for one in sent if one.partition == partition]
        assert expected == [data for _, data in stored(kafka, topic, partition)]


@pytest.mark.parametrize("acks", [1, -1])
def test_differing_requests_for_one_partition_keep_their_order(kafka: Kafka, acks: int) -> None:
    topic = kafka.topic()
    sent = [Sent(topic, batch(producer=(7, 0, number)), timeout_ms=30_000 + number % 2) for number in range(20)]
    assert [(0, number) for number in range(20)] == together(kafka, sent, 9, acks)


def test_runs_are_not_longer_than_the_longest_request() -> None:
    with Kafka(message_max_bytes=2000, socket_request_max_bytes=3000) as kafka:
        topic = kafka.topic()
        sent = [Sent(topic, batch(b"x" * 1000))] * 20
        assert [(0, number) for number in range(20)] == together(kafka, sent, 9)


def test_a_failed_fsync_of_flush_messages_is_answered(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(offset: int) -> None:
        raise StorageError("no fsync")

    topic = kafka.topic(flush_messages="1")
    alone(kafka, [Sent(topic, batch())])
    monkeypatch.setattr(log_of(kafka, topic).appender, "_flush_appended", fail)
    with Beside(kafka) as kafka:
        assert [(ErrorCode.kafka_storage_error, -1)] * 10 == together(kafka, [Sent(topic, batch())] * 10, 9)


def refusals(kafka: Kafka, topic: str) -> list[Sent]:
    """Good batches, and between them those that are refused, each for another reason."""
    bad = bytearray(batch())
    bad[-1] ^= 1
    return [
        Sent(topic, batch(b"a")),
        Sent(topic, bytes(bad)),
        Sent(topic, batch(b"b", (7, 0, 0))),
        Sent(topic, batch(b"c", (7, 0, 1))),
        Sent(topic, batch(b"c", (7, 0, 1))),  # again: it has the same offset
        Sent(topic, batch(b"gap", (7, 0, 5))),
        Sent(topic, batch(b"d", (7, 0, 2))),
        Sent(topic, b"no batch at all, but long enough to have a header, if it had one, and so on"),
        Sent(topic, batch(b"transactional", (8, 0, 0), attributes=16)),
        Sent(topic, batch(b"e", (7, 0, 3)) + batch(b"f", (7, 0, 4))),
        Sent(topic, b""),
        Sent(topic, batch(b"nowhere"), partition=9),
        Sent(topic, batch(b"x" * 2000)),
        Sent(topic, batch(b"g")),
    ]


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", [5, 8, 9, 12, 13])
@pytest.mark.parametrize("way", [together, in_turn])
def test_refused_request_does_not_affect_its_run(kafka: Kafka, way: Way, version: int, acks: int) -> None:
    one, other = (kafka.topic(max_message_bytes="1000") for _ in range(2))
    expected = alone(kafka, refusals(kafka, one), version, acks)
    assert {0, ErrorCode.corrupt_message} < {error for error, _ in expected}
    assert expected == way(kafka, refusals(kafka, other), version, acks)
    assert stored(kafka, one) == stored(kafka, other)


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", [8, 13])
@pytest.mark.parametrize("way", [together, in_turn])
def test_denied_topics_are_refused_as_in_single_requests(way: Way, version: int, acks: int) -> None:
    with Kafka() as kafka:
        allowed, denied = kafka.topic(), kafka.topic()
        kafka.inside.authorizer = grants = Grants()
        grants.rules = frozenset({(Operation.WRITE, ResourceType.TOPIC, allowed)})
        transactional = batch(b"transactional", (8, 0, 0), attributes=16)
        sent = [
            Sent(topic, records, partition)
            for topic, partition in ((allowed, 0), (denied, 0), (allowed, 9), (denied, 9))
            for records in (batch(), transactional, transactional[:-1])
        ]
        expected = [error for error, _ in alone(kafka, sent, version, acks)]
        assert {0, ErrorCode.topic_authorization_failed, ErrorCode.transactional_id_authorization_failed} < set(
            expected
        )
        assert expected == [error for error, _ in way(kafka, sent, version, acks)]


@pytest.mark.parametrize("acks", [1, -1])
def test_a_topic_that_is_not_there(kafka: Kafka, acks: int) -> None:
    topic = kafka.topic()
    sent = [Sent(topic, batch()), Sent("topic-absent"[: len(topic)], batch())] * 3
    unknown = (ErrorCode.unknown_topic_or_partition, -1)
    assert [(0, 0), unknown, (0, 1), unknown, (0, 2), unknown] == together(kafka, sent, 9, acks)


def test_acks_0_and_others_between_them(kafka: Kafka) -> None:
    topic = kafka.topic()
    unanswered = [Sent(topic, batch()).frame(kafka, 9, 0, number) for number in range(3)]
    kafka.send(b"".join(unanswered))
    assert [(0, 3), (0, 4)] == together(kafka, [Sent(topic, batch())] * 2, 9, 1)


@pytest.mark.parametrize("configs", [{"compression_type": "gzip"}, {"cleanup_policy": "compact"}])
def test_batches_that_have_to_be_decompressed(kafka: Kafka, configs: dict[str, str]) -> None:
    topic = kafka.topic(**configs)
    rows = [(b"key", b"value", [], NOW_MS)]
    sent = [Sent(topic, bytes(build_batch(rows)))] * 5
    assert [(0, number) for number in range(5)] == together(kafka, sent, 9)


def test_log_append_time(kafka: Kafka) -> None:
    topic = kafka.topic(message_timestamp_type="LogAppendTime")
    assert [(0, number) for number in range(5)] == together(kafka, [Sent(topic, batch())] * 5, 9)


def test_run_may_exceed_the_largest_request() -> None:
    with Kafka(socket_request_max_bytes=2000, message_max_bytes=1500) as kafka:
        topic = kafka.topic()
        assert [(0, number) for number in range(40)] == together(kafka, [Sent(topic, batch(b"x" * 300))] * 40, 9)


def test_a_run_is_counted_as_many_requests(kafka: Kafka) -> None:
    def answered() -> tuple[int, int]:
        processors = kafka.broker.server.sockets.processors
        times = [processor.times for processor in processors]
        return (
            sum(table.at_once["Produce"] + table.later["Produce"] for table in times),
            sum(processor.stats.requests for processor in processors),
        )

    topic = kafka.topic()
    for acks in (1, -1):
        before = answered()
        together(kafka, [Sent(topic, batch())] * 40, 9, acks)
        assert (40, 40) == tuple(after - then for after, then in zip(answered(), before, strict=True))
