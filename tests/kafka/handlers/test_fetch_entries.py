"""Fetches of logs that Pulsar's producers have written to: Kafka's consumers get records, at the offsets of the messages."""

from typing import Any

import pytest

from broker.kafka import fetches
from broker.kafka.handlers import fetch
from broker.runtime.disk import FileRegion
from broker.storage.log import inspection
from broker.storage.log.log import Log
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.batch import batches, check_crc
from protocol.kafka.records.entry import build_entry
from protocol.kafka.records.records import Record, build_batch, records
from protocol.pulsar.pulsar_pb2 import CompressionType
from tests.kafka.handlers.kafka_client import Beside, Kafka, versions
from tests.kafka.handlers.test_fetch import ask, results
from tests.kafka.handlers.test_fetch_waiting import response, waiting_fetch
from tests.loops import loop_over
from tests.pulsar.entries.messages import batch_of, compressed_batch_of, message
from tests.waiting import wait_for

all_versions = loop_over("version", versions(fetch.API))
NOW_MS = 1_700_000_000_000


def log_of(kafka: Kafka, topic: str, partition: int = 0) -> Log:
    log = kafka.inside.logs.get(topic, partition)
    assert log is not None
    return log


def write_entry(log: Log, stored: bytes, messages: int = 1) -> None:
    log.append(memoryview(build_entry(stored, messages, NOW_MS)), now_ms=NOW_MS, entries=True)


def write_records(log: Log, *values: bytes) -> None:
    log.append(memoryview(build_batch([(None, value, [], NOW_MS) for value in values])), now_ms=NOW_MS)


def records_of(data: bytes | None, offset: int = 0) -> list[Record]:
    """What a consumer that asked for ``offset`` sees."""
    fetched: list[Record] = []
    for position, header in batches(data or b""):
        check_crc(memoryview(data or b""), position, header)
        assert not header.is_entry
        fetched += [record for record in records(data or b"", position) if record.offset >= offset]
    return fetched


def seen(result: Any, offset: int = 0) -> list[tuple[int, bytes | None]]:
    assert result.error_code == ErrorCode.none
    return [(record.offset, record.value) for record in records_of(result.records, offset)]


@all_versions
def test_entries_are_fetched_as_records_between_kafka_batches(kafka: Kafka, version: int) -> None:
    topic = kafka.topic()
    log = log_of(kafka, topic)
    write_records(log, b"a", b"b")
    write_entry(log, message(b"c", partition_key="k", properties=[{"key": "p", "value": "v"}]))
    write_entry(log, batch_of(b"d", b"e", b"f"), 3)
    write_records(log, b"g")
    (result,) = results(ask(kafka, version, topic, {}))
    assert [*enumerate([b"a", b"b", b"c", b"d", b"e", b"f", b"g"])] == seen(result)
    record = records_of(result.records)[2]
    assert (b"k", [("p", b"v")], NOW_MS) == (record.key, record.headers, record.timestamp)


@pytest.mark.parametrize(
    "codec", [CompressionType.LZ4, CompressionType.ZLIB, CompressionType.ZSTD, CompressionType.SNAPPY]
)
def test_entries_of_every_codec_come_as_records(kafka: Kafka, codec: Any) -> None:
    topic = kafka.topic()
    write_entry(log_of(kafka, topic), compressed_batch_of(codec, b"a" * 100, b"b" * 100), 2)
    (result,) = results(ask(kafka, 11, topic, {}))
    assert [(0, b"a" * 100), (1, b"b" * 100)] == seen(result)


@pytest.mark.parametrize("offset", range(8))
def test_a_fetch_may_begin_within_an_entry(kafka: Kafka, offset: int) -> None:
    topic = kafka.topic()
    log = log_of(kafka, topic)
    write_records(log, b"0")
    write_entry(log, batch_of(b"1", b"2", b"3", b"4", b"5"), 5)
    write_records(log, b"6", b"7")
    (result,) = results(ask(kafka, 11, topic, {"fetch_offset": offset}))
    assert [(number, b"%d" % number) for number in range(offset, 8)] == seen(result, offset)


@pytest.mark.parametrize("limit", [1, 300, 1000, 1 << 20])
def test_limits_hold_but_one_batch_always_comes(kafka: Kafka, limit: int) -> None:
    topic = kafka.topic()
    log = log_of(kafka, topic)
    for number in range(50):
        if number % 3:
            write_entry(log, batch_of(*[b"%d" % number] * 3), 3)
        else:
            write_records(log, *[b"%d" % number] * 3)
    offset = 0
    while offset < log.high_watermark:
        (result,) = results(ask(kafka, 11, topic, {"fetch_offset": offset, "partition_max_bytes": limit}))
        fetched = [header for _, header in batches(result.records)]
        assert len(fetched) == 1 or len(result.records) <= limit
        assert [(offset // 3 + i) for i, _ in enumerate(fetched)] == [
            int(record.value or b"") for record in records_of(result.records)[::3]
        ]
        offset = fetched[-1].next_offset


def test_response_has_a_bounded_number_of_entry_bytes(kafka: Kafka) -> None:
    topic = kafka.topic(2)
    for partition in (0, 1):
        for _ in range(40):
            write_entry(log_of(kafka, topic, partition), message(b"x" * 50_000))
    answer = ask(kafka, 11, topic, {"partition_max_bytes": 10 << 20}, {"partition": 1}, max_bytes=10 << 20)
    sizes = [len(result.records or b"") for result in results(answer)]
    assert 900_000 <= sum(sizes) <= fetches.MOST_BYTES
    assert 0 == sizes[1]


def test_many_partitions_rewrite_few_entries_in_vain(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = kafka.topic(50)
    for partition in range(50):
        write_entry(log_of(kafka, topic, partition), message(b"x" * 100_000))
    translated = []
    as_records = inspection.as_records

    def counted(*args: Any) -> Any:
        translated.append(1)
        return as_records(*args)

    monkeypatch.setattr(inspection, "as_records", counted)
    answer = ask(kafka, 11, topic, *[{"partition": number} for number in range(50)], max_bytes=10 << 20)
    with_records = [result for result in results(answer) if result.records]
    assert 10 == len(with_records)
    assert 11 == len(translated)


def test_entry_of_too_many_messages_is_sent_unchanged(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "MOST_MESSAGES", 2)
    topic = kafka.topic()
    write_entry(log_of(kafka, topic), batch_of(b"a", b"b", b"c"), 3)
    write_entry(log_of(kafka, topic), batch_of(b"d", b"e"), 2)
    (result,) = results(ask(kafka, 11, topic, {}))
    first, second = batches(result.records)
    assert (True, 0, 2) == (first[1].is_entry, first[1].base_offset, first[1].last_offset)
    assert [b"d", b"e"] == [record.value for record in records(result.records, second[0])]


def test_an_entry_that_becomes_large_is_sent_alone(kafka: Kafka) -> None:
    topic = kafka.topic()
    log = log_of(kafka, topic)
    for _ in range(2):
        write_entry(log, compressed_batch_of(CompressionType.ZSTD, *[bytes(1 << 20)] * 4), 4)
    (result,) = results(ask(kafka, 11, topic, {}))
    assert [0, 1, 2, 3] == [offset for offset, _ in seen(result)]
    (result,) = results(ask(kafka, 11, topic, {"fetch_offset": 4}))
    assert [4, 5, 6, 7] == [offset for offset, _ in seen(result)]


def test_records_between_entries_leave_by_sendfile(kafka: Kafka) -> None:
    log = log_of(kafka, kafka.topic())
    for number in range(3):
        write_records(log, b"x" * 1000)
        write_records(log, b"x" * 400_000)  # larger than one read of the file
        if number == 1:
            write_entry(log, message(b"entry"))
    read = log.read(0, 10 << 20)
    parts, size, _ = fetches.translate(log, read.regions, 10 << 20, at_least_one=True)
    assert [True, False, True] == [isinstance(part, FileRegion) for part in parts]
    data = b"".join(
        part.file.pread(part.size, part.offset) if isinstance(part, FileRegion) else bytes(part) for part in parts
    )
    assert len(data) == size
    assert [*range(7)] == [record.offset for record in records_of(data)]


def test_unreadable_payload_is_sent_unchanged(kafka: Kafka) -> None:
    topic = kafka.topic()
    log = log_of(kafka, topic)
    write_entry(log, message(b"secret", encryption_keys=[{"key": "k", "value": b"v"}], num_messages_in_batch=3), 3)
    write_entry(log, message(b"not zstd", compression=CompressionType.ZSTD, uncompressed_size=100))
    write_entry(log, message(b"after"))
    (result,) = results(ask(kafka, 11, topic, {}))
    assert [(0, b"secret"), (3, b"not zstd"), (4, b"after")] == seen(result)


def test_batch_with_only_the_mark_is_sent_unchanged(kafka: Kafka) -> None:
    topic = kafka.topic()
    log = log_of(kafka, topic)
    stored = build_entry(b"no metadata", 1, NOW_MS)
    log.append(memoryview(stored), now_ms=NOW_MS, entries=True)
    (result,) = results(ask(kafka, 11, topic, {}))
    assert bytes(stored) == result.records


def test_committed_reader_skips_aborted_records_between_entries(kafka: Kafka) -> None:
    topic = kafka.topic()
    log = log_of(kafka, topic)
    write_entry(log, message(b"a"))
    log.transactions.allow(7, 0)
    log.append(
        memoryview(
            build_batch(
                [(None, b"aborted", [], NOW_MS)], attributes=0x10, producer_id=7, producer_epoch=0, base_sequence=0
            )
        ),
        now_ms=NOW_MS,
    )
    write_entry(log, message(b"b"))
    (result,) = results(ask(kafka, 11, topic, {}, isolation_level=1))
    assert [(0, b"a")] == seen(result)
    log.transactions.append_marker(7, 0, commit=False, coordinator_epoch=0, now_ms=NOW_MS)
    (result,) = results(ask(kafka, 11, topic, {}, isolation_level=1))
    assert [(7, 1)] == [
        (transaction.producer_id, transaction.first_offset) for transaction in result.aborted_transactions
    ]
    assert 4 == result.last_stable_offset


@pytest.mark.parametrize("many", [False, True])
def test_waiting_fetch_gets_the_records_of_an_entry(kafka: Kafka, many: bool) -> None:
    topic = kafka.topic(400 if many else 1)
    log = log_of(kafka, topic)
    log.allow_entries()
    with Beside(kafka) as client:
        client.tell(ApiKey.FETCH, 11, **waiting_fetch(topic, range(400 if many else 1), min_bytes=1))
        wait_for(lambda: kafka.inside.watches.taken > 0, "the fetch does not wait")
        write_entry(log, batch_of(b"a", b"b"), 2)
        (result, *_) = response(client)[0].partitions
        assert [(0, b"a"), (1, b"b")] == seen(result)


def test_fetch_of_too_few_bytes_ends_at_deadline(kafka: Kafka) -> None:
    topic = kafka.topic()
    write_entry(log_of(kafka, topic), message(b"a"))
    (result,) = results(ask(kafka, 11, topic, {}, min_bytes=100_000, max_wait=50))
    assert [(0, b"a")] == seen(result)


def test_a_damaged_entry_takes_the_partition_offline(kafka: Kafka) -> None:
    topic = kafka.topic()
    log = log_of(kafka, topic)
    write_entry(log, message(b"a"))
    write_entry(log, message(b"b"))
    region = log.read(0, 1 << 20).regions[0]
    region.file.pwrite([b"\0" * 30], region.size // 2 + 3)
    (result,) = results(ask(kafka, 11, topic, {}))
    assert ErrorCode.kafka_storage_error == result.error_code
    assert log.offline is not None
