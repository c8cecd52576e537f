"""Offsets by time: against a list of the records that are there, and where batches are not what their headers say."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.errors import StorageError
from broker.storage.log import inspection, times
from broker.storage.log.log import Log
from tests.storage.helpers import NOW_MS, Storage, append, batch, garbage, lying, read_records


def check(log: Log, *wanted: int) -> None:
    """What is found is what a look at every record finds."""
    there = [(record.offset, record.timestamp) for record in read_records(log)]
    for timestamp in wanted:
        expected = next((record for record in there if record[1] >= timestamp), None)
        assert expected == log.times.offset_for_timestamp(timestamp), timestamp
    for offset, _ in there:
        log.times.timestamp_at(offset)
    latest = max((timestamp for _, timestamp in there), default=-1)
    expected = next(record for record in there if record[1] == latest) if latest >= 0 else None
    assert expected == log.times.max_timestamp_offset()


# -- any history -----------------------------------------------------------------------------------------------------------

some_times = st.lists(st.integers(-1, 50), min_size=1, max_size=4)
appends = st.tuples(st.just("append"), some_times, st.sampled_from([0, 0, 1, 4]))
others = st.one_of(
    st.tuples(st.sampled_from(["restart", "crash", "tear", "retention", "compact", "log append time", "create time"])),
    st.tuples(st.just("delete"), st.floats(0, 1)),
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(st.one_of(appends, appends, appends, others), min_size=1, max_size=40),
    interval=st.sampled_from([0, 150, 4096]),
    segment_bytes=st.sampled_from([300, 700, 100_000]),
    wanted=st.lists(st.integers(-1, 52), min_size=1, max_size=5),
)
def test_any_time_is_found_whatever_happened_to_log(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple], interval: int, segment_bytes: int, wanted: list[int]
) -> None:
    storage = Storage(tmp_path_factory.mktemp("time"))
    keys = [b"a", b"b", b"c"]
    sequence = 0
    try:
        log = storage.create(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            cleanup_policy="compact,delete",
            min_cleanable_dirty_ratio=0,
            retention_bytes=-1,
            retention_ms=-1,
            file_delete_delay_ms=0,
            delete_retention_ms=0,
        )
        for step in steps:
            if step[0] == "append":
                _, stamps, codec = step
                storage.clock.now_ms += 1
                append(
                    log,
                    *[b"v"] * len(stamps),
                    keys=[keys[(sequence + at) % 3] for at in range(len(stamps))],
                    timestamps=stamps,
                    compression=codec,
                    producer=(7, 0, sequence),
                )
                sequence += len(stamps)
            elif step[0] == "delete":
                log.trimming.delete_records(round(log.log_end_offset * step[1]))
            elif step[0] == "retention":
                storage.manager.alter_topic_configs("t", {"retention.bytes": str(log.size_bytes() // 2)})
                storage.housekeep()
                storage.manager.alter_topic_configs("t", {"retention.bytes": None})
            elif step[0] == "compact":
                storage.housekeep()
                storage.housekeep()
            elif step[0] == "log append time":
                storage.manager.alter_topic_configs("t", {"message.timestamp.type": "LogAppendTime"})
            elif step[0] == "create time":
                storage.manager.alter_topic_configs("t", {"message.timestamp.type": "CreateTime"})
            elif step[0] == "tear":
                path = storage.path() / storage.files(".log")[-1]
                durable = log.recovery_point >= log.log_end_offset
                storage.kill()
                if not durable and path.stat().st_size > 0:
                    with path.open("r+b") as file:
                        file.truncate(path.stat().st_size - 1)
                storage.open()
                log = storage.log()
                assert log.offline is None
                producer = log.producers.get(7)
                sequence = 0 if producer is None else producer.next_sequence
            else:
                (storage.restart if step[0] == "restart" else storage.crash)()
                log = storage.log()
            check(log, *wanted, storage.clock.now_ms)
    finally:
        storage.kill()


def test_largest_timestamp_is_among_the_remaining_records(storage: Storage) -> None:
    log = storage.create()
    append(log, b"a", b"b", b"c", timestamps=[90, 20, 30])
    append(log, b"d", b"e", timestamps=[25, 10])
    append(log, b"f", timestamp=29)
    for start, latest in [(0, (0, 90)), (1, (2, 30)), (2, (2, 30)), (3, (5, 29)), (4, (5, 29)), (6, None)]:
        log.trimming.delete_records(start)
        assert latest == log.times.max_timestamp_offset()


def test_headers_are_read_once_for_largest_remaining_timestamp(storage: Storage) -> None:
    log = storage.create(index_interval_bytes=100_000)
    append(log, b"first", timestamp=1_000)
    for number in range(200):
        append(log, b"v" * 500, timestamp=number)
    log.trimming.delete_records(1)
    assert (200, 199) == log.times.max_timestamp_offset()
    storage.disk.read_bytes = 0
    assert (200, 199) == log.times.max_timestamp_offset()
    append(log, b"next", timestamp=500)
    assert (201, 500) == log.times.max_timestamp_offset()
    log.trimming.delete_records(50)
    assert (201, 500) == log.times.max_timestamp_offset()
    assert storage.disk.read_bytes < 40_000
    log.trimming.delete_records(202)
    assert log.times.max_timestamp_offset() is None


# -- batches that are not what their headers say ---------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_garbage_batch_is_answered_as_a_whole(storage: Storage, codec: int) -> None:
    log = storage.create()
    append(log, b"a", timestamp=10)
    log.append(
        lying(batch(b"b" * 9, b"c" * 9, timestamps=[20, 30], compression=codec), lambda data: garbage(data, codec)),
        now_ms=NOW_MS,
    )
    append(log, b"d", timestamp=25)
    for _ in range(2):
        assert (0, 10) == log.times.offset_for_timestamp(5)
        assert (1, 30) == log.times.offset_for_timestamp(15)
        assert (1, 30) == log.times.max_timestamp_offset()
        assert log.times.offset_for_timestamp(31) is None
        log.trimming.delete_records(2)
        assert (2, 30) == log.times.max_timestamp_offset()
        storage.manager.housekeeper.scrub.step(storage.manager.partitions, 1 << 30)
        assert log.offline is None
        storage.crash()
        log = storage.log()
        log.state.log_start_offset = 0


def test_damage_of_the_disk_takes_the_partition_offline(storage: Storage) -> None:
    log = storage.create()
    append(log, b"a" * 50, timestamp=10)
    path = storage.path() / storage.files(".log")[0]
    content = bytearray(path.read_bytes())
    content[80] ^= 1
    path.write_bytes(content)
    with pytest.raises(Exception, match="damaged"):
        log.times.offset_for_timestamp(5)
    assert log.offline is not None


def test_batches_with_false_promises_opened_few_times_only(storage: Storage) -> None:
    log = storage.create(index_interval_bytes=1_000_000)
    for _ in range(200):
        log.append(lying(batch(b"v" * 2000, timestamp=10), max_timestamp=1000), now_ms=NOW_MS)
    append(log, b"v", timestamp=1000)
    storage.disk.read_bytes = 0
    # An offset before the record that is the right answer: nothing is missed by who begins there.
    assert (times.MOST_OPENED, 1000) == log.times.offset_for_timestamp(500)
    assert storage.disk.read_bytes < 40 * 2000
    assert (0, 1000) == log.times.max_timestamp_offset()


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_batch_too_large_inside_is_not_opened(storage: Storage, codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "LARGEST_BYTES", 1_000_000)
    log = storage.create(max_message_bytes=200_000)
    view = batch(*[bytes(100)] * 10_000, timestamp=20, compression=codec)
    log.append(view, now_ms=NOW_MS)
    assert (0, 20) == log.times.offset_for_timestamp(5)
    assert (0, 20) == log.times.max_timestamp_offset()
    assert log.offline is None


# -- by offset -------------------------------------------------------------------------------------------------------------


def test_time_of_offset_is_that_of_its_batch(storage: Storage) -> None:
    log = storage.create(segment_bytes=300)
    for number in range(20):
        append(log, b"a", b"b", timestamps=[10 * number, 10 * number + 5])
    assert [10 * (offset // 2) + 5 for offset in range(40)] == [log.times.timestamp_at(offset) for offset in range(40)]
    assert -1 == log.times.timestamp_at(40)
    log.trimming.delete_records(7)
    assert 35 == log.times.timestamp_at(0)  # of the first record that is served


def test_time_of_offset_in_offline_log_is_refused(storage: Storage) -> None:
    log = storage.create()
    append(log, b"a")
    log.state.go_offline("the disk has failed")
    with pytest.raises(StorageError):
        log.times.timestamp_at(0)
