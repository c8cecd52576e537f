"""Appending to a log, what is refused, and what failures leave behind. Reading is in test_reading.py."""

import errno
import os
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import Refusal, StorageError
from broker.storage.log import append_rules, reading
from broker.storage.log.append import AppendInfo
from broker.storage.refusals import (
    BatchesTooLarge,
    BatchTooLarge,
    CorruptBatch,
    InvalidBatch,
    InvalidTimestamp,
    KeylessRecords,
    LogEnded,
    OldProducerEpoch,
    OutOfOrderSequence,
)
from protocol.kafka.records.batch import batches, read_header
from tests.storage.helpers import (
    NOW_MS,
    TOPIC,
    Storage,
    append,
    append_many,
    batch,
    garbage,
    lying,
    offsets,
    read_bytes,
    read_records,
    values,
)


def refused(storage: Storage, view: memoryview, **configs: object) -> type[Refusal]:
    log = storage.log() if storage.manager.get("t", 0) else storage.create(**configs)
    with pytest.raises(Refusal) as error:
        log.append(view, now_ms=NOW_MS)
    assert log.log_end_offset == 0
    assert log.size_bytes() == 0
    return type(error.value)


def test_offsets_are_dense_and_batches_are_whole(storage: Storage) -> None:
    log = storage.create()
    assert append(log, b"a", b"b") == AppendInfo(0, 1, -1, 0, False)
    assert append(log, b"c") == AppendInfo(2, 2, -1, 0, False)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (0, 3, 3)
    assert [(record.offset, record.value) for record in read_records(log)] == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_append_writes_offset_and_leader_epoch_into_batch(storage: Storage) -> None:
    log = storage.create()
    append(log, b"a")
    append(log, b"b", b"c")
    headers = [header for _, header in batches(read_bytes(log, 0))]
    assert [(header.base_offset, header.partition_leader_epoch) for header in headers] == [(0, 0), (1, 0)]


def test_several_batches_in_one_request_are_all_stored(storage: Storage) -> None:
    log = storage.create()
    append(log, b"x")
    view = memoryview(bytearray(bytes(batch(b"a", b"b")) + bytes(batch(b"c"))))
    assert log.append(view, now_ms=NOW_MS) == AppendInfo(1, 3, -1, 0, False)
    assert values(log) == [b"x", b"a", b"b", b"c"]


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_compressed_batches_stay_as_they_are(storage: Storage, codec: int) -> None:
    log = storage.create()
    view = batch(*[b"same" * 10] * 1000, compression=codec)
    before = bytes(view)[16:]
    assert log.append(view, now_ms=NOW_MS).last_offset == 999
    assert read_bytes(log, 0)[16:] == before


@pytest.mark.parametrize("position", [17, 20, 21, 22, 23, 30, 40, 50, 60, 61, 65])
def test_a_flipped_bit_is_found_by_the_checksum(storage: Storage, position: int) -> None:
    view = batch(b"abc")
    view[position] ^= 1
    assert refused(storage, view) == CorruptBatch


@pytest.mark.parametrize("size", [0, 1, 12, 60, 61, 70])
def test_a_batch_that_is_cut_short_is_refused(storage: Storage, size: int) -> None:
    assert refused(storage, batch(b"abc")[:size]) == (CorruptBatch if size else InvalidBatch)


def test_bytes_behind_a_batch_are_refused(storage: Storage) -> None:
    assert refused(storage, memoryview(bytearray(bytes(batch(b"abc")) + b"x"))) == CorruptBatch


def test_the_old_message_formats_are_refused(storage: Storage) -> None:
    view = batch(b"abc")
    view[16] = 1
    assert refused(storage, view) == InvalidBatch


def test_batch_larger_than_max_message_bytes_is_refused(storage: Storage) -> None:
    log = storage.create(max_message_bytes=100)
    with pytest.raises(Refusal) as error:
        append(log, b"x" * 100)
    assert type(error.value) is BatchTooLarge
    append(log, b"x" * 20)


def test_records_larger_than_a_segment_are_refused(storage: Storage) -> None:
    log = storage.create(segment_bytes=200)
    with pytest.raises(Refusal) as error:
        append(log, b"x" * 200)
    assert type(error.value) is BatchesTooLarge


def test_ended_log_refuses_appends_after_change_of_settings(storage: Storage) -> None:
    log = storage.create()
    append(log, b"last")
    log.appender.end()
    for _ in range(2):
        with pytest.raises(LogEnded):
            append(log, b"late")
        storage.manager.alter_topic_configs(TOPIC, {"segment.bytes": "2000"})
    assert [b"last"] == values(log)
    assert 1 == len(storage.files(".log"))


@pytest.mark.parametrize("count", [0, 2, 100])
def test_record_count_that_contradicts_offsets_is_refused(storage: Storage, count: int) -> None:
    assert refused(storage, with_header(batch(b"a"), record_count=count)) == InvalidBatch


def test_small_batch_that_claims_million_records_is_refused(storage: Storage) -> None:
    view = with_header(batch(b"a"), record_count=1_000_000, last_offset_delta=999_999)
    assert refused(storage, view) == InvalidBatch


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_batch_of_81_bytes_cannot_claim_2_31(storage: Storage, codec: int) -> None:
    view = batch(b"a" * (13 if codec == 0 else 1), compression=codec)
    for count in (2**31 - 1, 1_000_001):
        lie = with_header(memoryview(bytearray(view)), record_count=count, last_offset_delta=count - 1)
        assert refused(storage, lie, max_message_bytes=100_000_000) == InvalidBatch


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [1000, 100_000, 1_000_000])
def test_records_that_compress_well_are_accepted(storage: Storage, codec: int, count: int) -> None:
    """The smallest there are, all alike: no honest batch has more of them for its size."""
    log = storage.create(max_message_bytes=10_000_000)
    view = batch(*[None] * count, compression=codec)
    assert log.append(view, now_ms=NOW_MS).last_offset == count - 1


@pytest.mark.parametrize(
    ("attributes", "refusal"),
    [
        (0x05, InvalidBatch),  # a codec that does not exist
        (0x08, InvalidTimestamp),  # LogAppendTime is the broker's to set
        (0x10, InvalidBatch),  # a transaction needs a producer
        (0x20, InvalidBatch),  # control batches are the broker's
        (0x40, InvalidBatch),  # so is the delete horizon
        (0x80, InvalidBatch),  # and so are entries
    ],
)
def test_attributes_that_a_producer_must_not_set(storage: Storage, attributes: int, refusal: type[Refusal]) -> None:
    assert refused(storage, with_header(batch(b"a"), attributes=attributes)) == refusal


def with_header(view: memoryview, **fields: int) -> memoryview:
    """The batch with other header fields and the checksum that fits them."""
    from protocol.frames import crc32c
    from protocol.kafka.records.batch import HEADER

    header = read_header(view)._replace(**fields)
    HEADER.pack_into(view, 0, *header)
    HEADER.pack_into(view, 0, *header._replace(crc=crc32c(view[21:])))
    return view


HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("timestamp", "ok"), [(NOW_MS + HOUR_MS, True), (NOW_MS + HOUR_MS + 1, False), (0, True), (-1, True)]
)
def test_timestamps_at_most_hour_ahead_any_time_behind(storage: Storage, timestamp: int, ok: bool) -> None:
    if ok:
        append(storage.create(), b"a", timestamp=timestamp)
    else:
        assert refused(storage, batch(b"a", timestamp=timestamp)) == InvalidTimestamp


def test_the_oldest_timestamp_allowed_is_a_setting(storage: Storage) -> None:
    log = storage.create(message_timestamp_before_max_ms=1000)
    append(log, b"a", timestamp=NOW_MS - 1000)
    append(log, b"a", timestamp=-1)
    with pytest.raises(Refusal) as error:
        append(log, b"a", b"b", timestamps=[NOW_MS - 1001, NOW_MS])
    assert type(error.value) is InvalidTimestamp


def test_log_append_time_replaces_the_timestamps(storage: Storage) -> None:
    log = storage.create(message_timestamp_type="LogAppendTime")
    info = append(log, b"a", b"b", timestamps=[5, 99 * NOW_MS])
    assert info.log_append_time_ms == NOW_MS
    assert [record.timestamp for record in read_records(log)] == [NOW_MS, NOW_MS]
    assert log.times.offset_for_timestamp(NOW_MS) == (0, NOW_MS)


@pytest.mark.parametrize("kind", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("sent", [0, 1, 4])
def test_topic_codec_may_differ_from_producer_codec(storage: Storage, kind: str, sent: int) -> None:
    codec = ["uncompressed", "gzip", "snappy", "lz4", "zstd"].index(kind)
    log = storage.create(compression_type=kind)
    append(log, b"first")
    info = append(log, b"a" * 50, b"b" * 50, keys=[b"k", None], timestamps=[1, 7], compression=sent, producer=(3, 0, 0))
    assert (info.base_offset, info.last_offset) == (1, 2)
    header = list(batches(read_bytes(log, 0)))[1][1]
    assert (header.compression, header.producer_id, header.base_sequence) == (codec, 3, 0)
    found = read_records(log)[1:]
    assert [(r.offset, r.key, r.value, r.timestamp) for r in found] == [
        (1, b"k", b"a" * 50, 1),
        (2, None, b"b" * 50, 7),
    ]


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("attributes", [{}, {"retention_ms": -1}])
def test_records_of_another_shape_are_refused_everywhere(
    storage: Storage, codec: int, attributes: dict[str, Any]
) -> None:
    log = storage.create(**attributes)
    good = batch(b"a" * 100, b"b", compression=codec)
    wrong: list[memoryview] = [
        lying(good, lambda data: b"\xff" * len(data)),
        lying(good, lambda data: b""),
        *([lying(batch(b"a", b"b"), attributes=codec)] if codec else [lying(good, lambda data: data + b"\0")]),
        *([] if codec else [lying(good, lambda data: data[:-1])]),
    ]
    for records in wrong:
        with pytest.raises(InvalidBatch):
            log.append(memoryview(bytearray(records)), now_ms=NOW_MS)
        assert ([], 0) == log.append_run([memoryview(bytearray(records))], now_ms=NOW_MS)
    assert 0 == log.log_end_offset
    log.append(good, now_ms=NOW_MS)


@pytest.mark.parametrize("codec", range(5))
def test_full_record_validation_reads_every_record(storage: Storage, codec: int) -> None:
    log = storage.create()
    unreadable = lying(batch(b"a" * 100, b"b", compression=codec), lambda data: garbage(data, codec))
    log.append(memoryview(bytearray(unreadable)), now_ms=NOW_MS)
    storage.manager.alter_topic_configs("t", {"record.validation": "full"})
    with pytest.raises(InvalidBatch, match="cannot be read"):
        log.append(memoryview(bytearray(unreadable)), now_ms=NOW_MS)
    assert 2 == log.append(batch(b"a", b"b", compression=codec), now_ms=NOW_MS).base_offset


def test_unreadable_records_refused_where_broker_must_read_them(storage: Storage) -> None:
    view = with_header(memoryview(bytearray(bytes(batch(b"a" * 30)))), attributes=4)  # says zstd, and is not
    assert refused(storage, view, compression_type="gzip") == InvalidBatch


def test_a_compacted_topic_refuses_records_without_a_key(storage: Storage) -> None:
    log = storage.create(cleanup_policy="compact")
    append(log, b"a", keys=[b"k"])
    for codec in (0, 1):
        with pytest.raises(Refusal) as error:
            append(log, b"a", b"b", keys=[b"k", None], compression=codec)
        assert type(error.value) is KeylessRecords
    assert offsets(read_records(log)) == [0]


def test_changed_settings_apply_to_the_next_append(storage: Storage) -> None:
    log = storage.create()
    append(log, b"x" * 1000)
    storage.manager.alter_topic_configs("t", {"max.message.bytes": "100"})
    with pytest.raises(Refusal):
        append(log, b"x" * 1000)
    storage.manager.alter_topic_configs("t", {"max.message.bytes": None})
    append(log, b"x" * 1000)


# -- segments ------------------------------------------------------------------------------------------------------------


def test_a_full_segment_is_followed_by_another(storage: Storage) -> None:
    log = storage.create(segment_bytes=300)
    append_many(log, 10)
    sizes = [segment.size for segment in log.view.segments]
    assert len(sizes) == 4
    assert max(sizes) <= 300
    assert storage.files(".log") == [f"{base:020d}.log" for base in log.view.bases]
    assert offsets(read_records(log)) == list(range(10))


def test_read_goes_through_bounded_number_of_segments(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_SEGMENTS", 2)
    log = storage.create(segment_bytes=300)
    append_many(log, 10)
    first = log.read(0, 1 << 20)
    assert [segment.size for segment in log.view.segments[:2]] == [region.size for region in first.regions]
    assert list(range(10)) == offsets(read_records(log))


def test_segment_ends_when_first_record_is_old_enough(storage: Storage) -> None:
    log = storage.create(segment_ms=1000)
    append(log, b"a", timestamp=NOW_MS)
    append(log, b"b", timestamp=NOW_MS + 1000)
    assert len(log.view.segments) == 1
    append(log, b"c", timestamp=NOW_MS + 1001)
    assert log.view.bases == (0, 2)


def test_without_timestamps_a_segment_ends_by_the_clock(storage: Storage) -> None:
    log = storage.create(segment_ms=1000)
    append(log, b"a", timestamp=-1)
    storage.clock.sleep_ms(1001)
    append(log, b"b", timestamp=-1)
    assert log.view.bases == (0, 1)


def test_segment_age_is_known_after_restart(storage: Storage) -> None:
    log = storage.create(segment_ms=1000)
    append(log, b"a", timestamp=NOW_MS)
    storage.restart()
    append(storage.log(), b"b", timestamp=NOW_MS + 1001)
    assert storage.log().view.bases == (0, 1)


def test_clock_jumping_back_neither_rolls_nor_refuses(storage: Storage) -> None:
    log = storage.create(segment_ms=1000)
    append(log, b"a")
    storage.clock.now_ms -= 10 * HOUR_MS
    append(log, b"b", timestamp=storage.clock.now_ms)
    append(log, b"c", timestamp=-1)
    assert offsets(read_records(log)) == [0, 1, 2]
    assert log.times.offset_for_timestamp(storage.clock.now_ms) == (0, NOW_MS)


def test_a_full_index_ends_a_segment(storage: Storage) -> None:
    log = storage.create(segment_index_bytes=16, index_interval_bytes=0)
    append_many(log, 6)
    assert log.view.bases == (0, 3)


def test_segment_ends_at_offsets_too_large_for_index(storage: Storage) -> None:
    log = storage.create()
    append(log, b"a")
    count = 1_000_000
    view = with_header(batch(os.urandom(300), compression=4), record_count=count, last_offset_delta=count - 1)
    for _ in range(2**31 // count):
        log.append(view, now_ms=NOW_MS)
    assert log.view.bases == (0,)
    base = log.append(view, now_ms=NOW_MS).base_offset
    assert log.view.bases == (0, base)
    append(log, b"b")
    assert read_records(log, start=base + count)[0].value == b"b"


# -- idempotence -----------------------------------------------------------------------------------------------------------


def test_repeated_batch_is_not_stored_again(storage: Storage) -> None:
    log = storage.create()
    append(log, b"x")
    first = append(log, b"a", b"b", producer=(7, 0, 0))
    append(log, b"c", producer=(7, 0, 2))
    assert append(log, b"a", b"b", producer=(7, 0, 0)) == AppendInfo(1, 2, -1, 0, True)
    assert (first.base_offset, first.duplicate) == (1, False)
    assert values(log) == [b"x", b"a", b"b", b"c"]


def test_last_five_batches_of_producer_are_recognised(storage: Storage) -> None:
    log = storage.create()
    for sequence in range(7):
        append(log, b"%d" % sequence, producer=(7, 0, sequence))
    for sequence in range(2, 7):
        assert append(log, b"%d" % sequence, producer=(7, 0, sequence)) == AppendInfo(sequence, sequence, -1, 0, True)
    with pytest.raises(Refusal) as error:
        append(log, b"1", producer=(7, 0, 1))
    assert type(error.value) is OutOfOrderSequence


def test_a_gap_in_the_sequence_is_refused(storage: Storage) -> None:
    log = storage.create()
    append(log, b"a", producer=(7, 0, 0))
    with pytest.raises(Refusal) as error:
        append(log, b"b", producer=(7, 0, 2))
    assert type(error.value) is OutOfOrderSequence
    append(log, b"b", producer=(7, 0, 1))


def test_an_old_epoch_is_fenced(storage: Storage) -> None:
    log = storage.create()
    append(log, b"a", producer=(7, 1, 0))
    with pytest.raises(Refusal) as error:
        append(log, b"b", producer=(7, 0, 1))
    assert type(error.value) is OldProducerEpoch


def test_a_new_epoch_begins_with_sequence_number_zero(storage: Storage) -> None:
    log = storage.create()
    append(log, b"a", producer=(7, 0, 0))
    with pytest.raises(Refusal) as error:
        append(log, b"b", producer=(7, 1, 1))
    assert type(error.value) is OutOfOrderSequence
    append(log, b"b", producer=(7, 1, 0))


def test_producer_id_without_sequence_number_is_refused(storage: Storage) -> None:
    assert refused(storage, batch(b"a", producer=(7, 0, -1))) == InvalidBatch


def test_idempotent_producer_sends_one_batch_at_a_time(storage: Storage) -> None:
    view = memoryview(bytearray(bytes(batch(b"a", producer=(7, 0, 0))) + bytes(batch(b"b", producer=(7, 0, 1)))))
    assert refused(storage, view) == InvalidBatch


# -- failures --------------------------------------------------------------------------------------------------------------


def test_full_disk_leaves_nothing_of_the_batch(storage: Storage) -> None:
    log = storage.create()
    append(log, b"a", producer=(7, 0, 0))
    size = (storage.path() / storage.files(".log")[0]).stat().st_size
    storage.disk.room = 50
    with pytest.raises(StorageError, match="No space left"):
        append(log, b"b" * 1000, producer=(7, 0, 1))
    assert (storage.path() / storage.files(".log")[0]).stat().st_size == size
    assert log.offline is None
    assert values(log) == [b"a"]
    storage.disk.room = None
    assert append(log, b"c", producer=(7, 0, 1)).base_offset == 1
    assert values(log) == [b"a", b"c"]


def test_full_disk_at_new_segment_leaves_log_unchanged(storage: Storage) -> None:
    log = storage.create(segment_bytes=300, index_interval_bytes=0)
    append_many(log, 3)
    storage.disk.room = 0
    for _ in range(3):
        with pytest.raises(StorageError, match="No space left"):
            append(log, b"x" * 50)
    storage.disk.room = None
    append_many(log, 3)
    assert offsets(read_records(log)) == list(range(6))
    storage.crash()
    assert offsets(read_records(storage.log())) == list(range(6))


def test_failed_write_that_cannot_be_undone_takes_offline(storage: Storage) -> None:
    log = storage.create()
    append(log, b"a")
    storage.disk.room = 50
    storage.disk.fail["truncate", ".log"] = errno.EIO
    with pytest.raises(StorageError):
        append(log, b"b" * 1000)
    storage.disk.room = None
    storage.disk.fail.clear()
    assert log.offline is not None
    with pytest.raises(StorageError, match="offline"):
        append(log, b"c")
    with pytest.raises(StorageError, match="offline"):
        log.read(0, 100)
    storage.crash()
    assert values(storage.log()) == [b"a"]


def test_io_error_takes_only_its_partition_offline(storage: Storage) -> None:
    storage.create("t", 2)
    storage.disk.fail["write", "/t-0/"] = errno.EIO
    with pytest.raises(StorageError):
        append(storage.log("t", 0), b"a")
    assert storage.log("t", 0).offline is not None
    append(storage.log("t", 1), b"a")


def test_a_slow_write_is_remembered_for_a_while(storage: Storage) -> None:
    log = storage.create()
    append(log, b"a")
    assert log.state.slow_until <= storage.clock.monotonic()
    storage.disk.before = lambda what, path: storage.clock.sleep_ms(60) if what == "write" else None
    append(log, b"a")
    assert log.state.slow_until > storage.clock.monotonic()


def test_single_slow_write_may_have_waited_for_cpu(storage: Storage) -> None:
    log = storage.create()
    for took_ms in (6, 0, 6, 0):
        storage.disk.before = lambda what, path: storage.clock.sleep_ms(took_ms) if what == "write" else None  # noqa: B023
        append(log, b"a")
        assert log.state.slow_until <= storage.clock.monotonic()
    storage.disk.before = lambda what, path: storage.clock.sleep_ms(6) if what == "write" else None
    append(log, b"a")
    append(log, b"a")
    assert log.state.slow_until > storage.clock.monotonic()


# -- watching --------------------------------------------------------------------------------------------------------------


def test_watchers_are_called_after_appends_until_they_leave(storage: Storage) -> None:
    log = storage.create()
    seen: list[int] = []
    token = log.watch(lambda: seen.append(log.high_watermark))
    append(log, b"a")
    append(log, b"b")
    log.unwatch(token)
    log.unwatch(token)
    append(log, b"c")
    assert seen == [1, 2]


def test_watchers_may_use_the_log(storage: Storage) -> None:
    log = storage.create()
    seen: list[object] = []

    def again() -> None:
        log.unwatch(token)
        seen.append(read_bytes(log, 0))
        seen.append(log.lock.locked())

    token = log.watch(again)
    append(log, b"a")
    assert seen[1] is False
    assert len(seen[0]) > 60  # type: ignore[arg-type]


def test_watchers_are_called_when_log_offline_or_deleted(storage: Storage) -> None:
    seen: list[str] = []
    storage.create("a").watch(lambda: seen.append("offline"))
    storage.create("b").watch(lambda: seen.append("deleted"))
    storage.disk.fail["write", "a-0/"] = errno.EIO
    with pytest.raises(StorageError):
        append(storage.log("a"), b"x")
    storage.manager.flusher.threads[0].step(0)
    storage.manager.delete_topic("b")
    assert seen == ["offline", "deleted"]


def test_many_threads_append_and_read_without_disturbance(storage: Storage) -> None:
    log = storage.create(segment_bytes=20_000, index_interval_bytes=100)
    errors: list[BaseException] = []
    done = threading.Event()

    def produce(number: int) -> None:
        try:
            for sequence in range(150):
                append(log, b"%d/%d" % (number, sequence), producer=(number, 0, sequence))
        except BaseException as error:
            errors.append(error)

    def consume() -> None:
        try:
            while not done.is_set():
                found = offsets(read_records(log, 700))
                assert found == list(range(len(found)))
        except BaseException as error:
            errors.append(error)

    producers = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
    consumers = [threading.Thread(target=consume) for _ in range(2)]
    for thread in producers + consumers:
        thread.start()
    for thread in producers:
        thread.join()
    done.set()
    for thread in consumers:
        thread.join()
    assert errors == []
    by_producer: dict[bytes, list[int]] = {}
    for value in values(log):
        assert value is not None
        number, sequence = value.split(b"/")
        by_producer.setdefault(number, []).append(int(sequence))
    assert by_producer == {b"%d" % number: list(range(150)) for number in range(4)}


@given(data=st.binary(max_size=200))
def test_random_bytes_only_ever_raise_request_errors(data: bytes) -> None:
    with pytest.raises(Refusal):
        append_rules.split(memoryview(bytearray(data)))
