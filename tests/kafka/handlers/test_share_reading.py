"""What members of a share group get: records from a cold disk, of Pulsar's producers, of damaged logs, of many partitions."""

from typing import Any

import pytest

from broker.errors import StorageError
from broker.kafka import fetches as fetched_entries
from broker.kafka.share import reading
from broker.runtime.disk import FileRegion
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.batch import batches
from protocol.kafka.records.records import records
from protocol.pulsar.pulsar_pb2 import CompressionType
from tests.kafka.handlers.kafka_client import Kafka
from tests.kafka.handlers.share_client import ACCEPT, EARLIEST, Fetched, Member, write
from tests.kafka.handlers.test_fetch_entries import log_of, write_entry
from tests.pulsar.entries.messages import batch_of, compressed_batch_of, message


@pytest.fixture
def kafka(kafka: Kafka) -> Kafka:
    kafka.inside.share.settings = lambda _: EARLIEST
    return kafka


def values(answer: Fetched, partition: int = 0) -> dict[int, bytes | None]:
    """Of the records that were acquired."""
    data = answer.partitions[partition].records
    acquired = {offset for first, last, _ in answer.ranges(partition) for offset in range(first, last + 1)}
    found: dict[int, bytes | None] = {}
    for position, _ in batches(data):
        found.update({record.offset: record.value for record in records(data, position) if record.offset in acquired})
    assert set(found) == acquired
    return found


def test_only_batches_with_the_members_records_are_sent(kafka: Kafka) -> None:
    topic = kafka.topic()
    for number in range(6):
        write(kafka, topic, 2, value=b"%d" % number)
    with Member(kafka, topic, group=topic) as member, Member(kafka, topic, group=topic, member_id="b") as other:
        member.fetch()
        member.acknowledged({0: [(2, 3, [2]), (8, 9, [2])]})
        answer = other.fetch()
        assert [2, 3, 8, 9] == answer.offsets()
        assert {2: b"1", 3: b"1", 8: b"4", 9: b"4"} == values(answer)


def test_cold_records_are_loaded_by_a_handler(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = kafka.topic()
    with Member(kafka, topic, group=topic) as member:
        assert {} == member.fetch().partitions
        write(kafka, topic, 3)
        log = log_of(kafka, topic)
        read, warmed = log.read, []
        warm = FileRegion.warm

        def cold(*args: Any, **options: Any) -> Any:
            return read(*args, **options)._replace(resident=bool(warmed))

        def noted(region: FileRegion) -> None:
            warmed.append(region)
            warm(region)

        monkeypatch.setattr(log, "read", cold)
        monkeypatch.setattr(FileRegion, "warm", noted)
        assert [(0, 2, 1)] == member.fetch().ranges()
        assert warmed


def test_messages_of_pulsar_s_producers_come_as_records(kafka: Kafka) -> None:
    topic = kafka.topic()
    log = log_of(kafka, topic)
    write(kafka, topic, 2, value=b"a")
    write_entry(log, message(b"b"))
    write_entry(log, batch_of(b"c", b"d", b"e"), 3)
    write(kafka, topic, 1, value=b"f")
    with Member(kafka, topic, group=topic) as member:
        answer = member.fetch()
        assert dict(enumerate([b"a", b"a", b"b", b"c", b"d", b"e", b"f"])) == values(answer)
        assert {0: 0} == member.acknowledged({0: [(first, last, [ACCEPT]) for first, last, _ in answer.ranges()]})
        assert (7, 0) == kafka.inside.share.offsets(topic)[topic, 0]


def test_messages_that_do_not_fit_are_given_back(kafka: Kafka) -> None:
    topic = kafka.topic()
    for number in range(12):
        stored = compressed_batch_of(CompressionType.ZLIB, b"%d" % number * 100_000, b"%d" % number * 100_000)
        write_entry(log_of(kafka, topic), stored, 2)
    got: list[int] = []
    with Member(kafka, topic, group=topic) as member:
        for _ in range(12):
            answer = member.fetch(max_bytes=50 << 20)
            if 0 in answer.partitions:
                assert len(answer.partitions[0].records) <= fetched_entries.MOST_BYTES
                got += [offset for _, offset in answer.all()]
                assert {count for _, _, count in answer.ranges()} == {1}
                assert set(values(answer)) == {offset for _, offset in answer.all()}
    assert list(range(24)) == got


def test_what_cannot_be_written_anew_is_given_back(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = kafka.topic()
    write_entry(log_of(kafka, topic), message(b"x"))

    def fail(*_: Any, **__: Any) -> Any:
        raise StorageError("a payload that cannot be opened")

    with Member(kafka, topic, group=topic) as member:
        with monkeypatch.context() as patch:
            patch.setattr(fetched_entries, "translate", fail)
            assert (ErrorCode.kafka_storage_error, 0) == member.fetch(max_wait=30_000).errors()
        assert [(0, 0, 1)] == member.fetch().ranges()


def test_damaged_log_goes_offline_without_locked_records(kafka: Kafka) -> None:
    topic = kafka.topic()
    write(kafka, topic, 3)
    log = log_of(kafka, topic)
    segment = log.view.segments[0]
    segment.log.get().pwrite([b"\xff" * 30], 0)
    with Member(kafka, topic, group=topic) as member:
        assert (ErrorCode.kafka_storage_error, 0) == member.fetch(max_wait=30_000).errors()
        assert kafka.inside.share.entry(topic, (member.topic_id.bytes, 0)) is None


def test_one_fetch_reads_a_bounded_number_of_headers(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading.Wanted, "__init__", _few_headers(reading.Wanted.__init__))
    topic = kafka.topic()
    for _ in range(50):
        write(kafka, topic)
    got: list[tuple[int, int]] = []
    with Member(kafka, topic, group=topic) as member:
        for _ in range(6):
            some = list(member.fetch(max_wait=30_000).all()) if len(got) < 50 else []
            assert len(some) <= 10
            got += some
    assert [(0, offset) for offset in range(50)] == got


def _few_headers(init: Any) -> Any:
    def replaced(wanted: Any, *args: Any) -> None:
        init(wanted, *args)
        wanted.headers = 10

    return replaced


def test_huge_session_is_opened_and_closed_by_handlers(kafka: Kafka) -> None:
    topic = kafka.topic(500)
    share = kafka.inside.share
    with Member(kafka, topic, range(500), group=topic) as member:
        write(kafka, topic, 2, 499)
        assert [(0, 1, 1)] == member.fetch().ranges(499)
        assert 500 == len(share.offsets(topic))
        for partition in range(400):
            write(kafka, topic, 1, partition)
        got: list[tuple[int, int]] = []
        for _ in range(20):
            got += member.fetch().all()
        assert [(partition, 0) for partition in range(400)] == sorted(got)
        member.close_session()
        with Member(kafka, topic, range(500), group=topic, member_id="b") as other:
            got = []
            while len(got) < 402:
                got += other.fetch(max_wait=30_000).all()
        assert 402 == len(set(got))
