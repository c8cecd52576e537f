"""Compaction: what stays, what goes and when, and that no crash on the way does harm."""

import errno
import shutil
import tempfile
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.storage.log.log import Log
from broker.storage.upkeep import cleaner
from broker.storage.upkeep.cleaner import cleanable
from protocol.kafka.records.batch import DELETE_HORIZON, batches
from tests.storage.helpers import (
    NOW_MS,
    Storage,
    append,
    batch,
    garbage,
    lying,
    offsets,
    read_bytes,
    read_records,
    records_in,
)

DAY_MS = 86_400_000


def compacted(storage: Storage, **configs: object) -> Log:
    return storage.create(
        **{"cleanup_policy": "compact", "segment_bytes": 400, "min_cleanable_dirty_ratio": 0, "file_delete_delay_ms": 0}
        | configs
    )


def put(log: Log, key: bytes, value: bytes | None, **options: object) -> None:
    append(log, value, keys=[key], **options)


def clean(storage: Storage) -> None:
    """A checkpoint first: only what is durable is compacted."""
    storage.housekeep()
    storage.housekeep()


def pairs(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in read_records(log, 300)]


def closed(log: Log) -> int:
    return log.view.bases[-1]


def test_last_record_of_each_key_stays_at_offset(storage: Storage) -> None:
    log = compacted(storage)
    for number in range(40):
        put(log, b"k%d" % (number % 3), b"v%d" % number)
    end = closed(log)
    clean(storage)
    # Keys repeat every three records, so of the closed part only the last three stay.
    kept = [*range(end - 3, end), *range(end, 40)]
    assert pairs(log) == [(n, b"k%d" % (n % 3), b"v%d" % n) for n in kept]
    assert log.log_start_offset == 0
    assert log.log_end_offset == 40


def test_the_active_segment_is_left_alone(storage: Storage) -> None:
    log = compacted(storage, segment_bytes=100_000)
    for _ in range(5):
        put(log, b"k", b"v")
    clean(storage)
    assert offsets(read_records(log)) == [0, 1, 2, 3, 4]


def test_read_in_gap_continues_after_it(storage: Storage) -> None:
    log = compacted(storage)
    put(log, b"a", b"first")
    for _ in range(20):
        put(log, b"k", b"v")
    end = closed(log)
    clean(storage)
    there = offsets(read_records(log))
    assert there[:2] == [0, end - 1]
    for offset in range(log.log_end_offset):
        found = [o for o in offsets(records_in(read_bytes(log, offset, 1))) if o >= offset]
        assert found[0] == next(o for o in there if o >= offset)


def test_compaction_stays_below_the_durable_recovery_point(storage: Storage) -> None:
    log = compacted(storage)
    for _ in range(20):
        put(log, b"k", b"v")
    log.durability.flush_to(20)
    assert cleanable(log, NOW_MS) is None
    log.durability.checkpoint()  # in memory only
    assert cleanable(log, NOW_MS) is None
    storage.manager.checkpoints.save_recovery_points()
    assert cleanable(log, NOW_MS) is not None


def test_small_segments_become_one(storage: Storage) -> None:
    log = compacted(storage)
    for number in range(60):
        put(log, b"k%d" % (number % 2), b"v")
    before = len(log.view.segments)
    clean(storage)  # how small they become is known only afterwards
    put(log, b"k", b"v" * 200)
    put(log, b"k", b"v" * 200)
    clean(storage)
    assert before > 8
    assert len(log.view.segments) < before / 2
    assert max(segment.size for segment in log.view.segments) <= 400
    assert storage.files(".log") == [f"{base:020d}.log" for base in log.view.bases]


def test_cleaning_again_changes_nothing_more(storage: Storage) -> None:
    log = compacted(storage)
    for number in range(40):
        put(log, b"k%d" % (number % 3), b"v%d" % number)
    clean(storage)
    found, first_dirty = pairs(log), log.first_dirty_offset
    clean(storage)
    assert pairs(log) == found
    assert log.first_dirty_offset == first_dirty == closed(log)
    assert cleanable(log, NOW_MS) is None


def test_batches_keep_their_codec_and_lose_only_records(storage: Storage) -> None:
    log = compacted(storage, segment_bytes=1000)
    append(log, b"x" * 50, b"y" * 50, b"z" * 50, keys=[b"a", b"b", b"c"], timestamps=[1, 2, 3], compression=4)
    while len(log.view.segments) == 1:
        put(log, b"b", b"new" * 20, timestamp=4)
    clean(storage)
    first = records_in(read_bytes(log, 0))[:2]
    assert [(r.offset, r.key, r.value, r.timestamp) for r in first] == [
        (0, b"a", b"x" * 50, 1),
        (2, b"c", b"z" * 50, 3),
    ]
    header = next(batches(read_bytes(log, 0)))[1]
    assert (header.compression, header.base_offset, header.last_offset, header.record_count) == (4, 0, 2, 2)
    assert (header.base_timestamp, header.max_timestamp) == (1, 3)


def test_headers_of_records_survive(storage: Storage) -> None:
    from protocol.kafka.records.records import build_batch

    log = compacted(storage)
    rows = [(b"a", b"1", [("h", b"x"), ("n", None)], NOW_MS), (b"b", b"2", [], NOW_MS)]
    log.append(memoryview(build_batch(rows)), now_ms=NOW_MS)
    while len(log.view.segments) == 1:
        put(log, b"b", b"new" * 20)
    clean(storage)
    assert read_records(log)[0].headers == [("h", b"x"), ("n", None)]


def test_tombstone_removes_its_key_and_expires_later(storage: Storage) -> None:
    log = compacted(storage)
    put(log, b"a", b"value")
    put(log, b"a", None)
    for _ in range(10):
        put(log, b"b", b"x" * 40)
    clean(storage)
    assert pairs(log)[0] == (1, b"a", None)
    header = next(batches(read_bytes(log, 0)))[1]
    assert header.attributes & DELETE_HORIZON
    assert header.base_timestamp == NOW_MS + DAY_MS
    assert read_records(log)[0].timestamp == NOW_MS

    storage.clock.sleep_ms(DAY_MS - 1)
    for _ in range(10):
        put(log, b"b", b"x" * 40)
    clean(storage)
    assert pairs(log)[0] == (1, b"a", None)

    storage.clock.sleep_ms(1)
    for _ in range(10):
        put(log, b"b", b"x" * 40)
    clean(storage)
    assert pairs(log)[0][1] == b"b"


def test_key_that_returns_after_its_tombstone_stays(storage: Storage) -> None:
    log = compacted(storage)
    put(log, b"a", None)
    put(log, b"a", b"again")
    for _ in range(10):
        put(log, b"b", b"x" * 40)
    clean(storage)
    assert pairs(log)[0] == (1, b"a", b"again")


def test_young_records_wait(storage: Storage) -> None:
    log = compacted(storage, min_compaction_lag_ms=1000)
    for _ in range(20):
        put(log, b"k", b"v" * 40)
    clean(storage)
    assert len(read_records(log)) == 20
    storage.clock.sleep_ms(1001)
    clean(storage)
    assert len(read_records(log)) < 10


def test_little_dirt_waits_until_it_is_overdue(storage: Storage) -> None:
    log = compacted(storage, min_cleanable_dirty_ratio=0.99, max_compaction_lag_ms=5000)
    for number in range(40):
        put(log, b"k%d" % (number % 20), b"v" * 40)
    clean(storage)
    for _ in range(8):
        put(log, b"k", b"v" * 40)
    before = len(read_records(log))
    clean(storage)
    assert len(read_records(log)) == before
    storage.clock.sleep_ms(5001)
    clean(storage)
    assert len(read_records(log)) < before


def test_a_record_that_is_overdue_ends_its_segment(storage: Storage) -> None:
    log = compacted(storage, segment_bytes=100_000, max_compaction_lag_ms=5000)
    put(log, b"k", b"v")
    put(log, b"k", b"v", timestamp=NOW_MS + 5001)
    assert len(log.view.segments) == 2


def test_too_many_keys_are_cleaned_in_several_passes(tmp_path_factory: pytest.TempPathFactory) -> None:
    storage = Storage(tmp_path_factory.mktemp("data"), log_cleaner_dedupe_buffer_size=1000)
    try:
        log = compacted(storage)
        for number in range(80):
            put(log, b"k%d" % (number % 20), b"v%d" % number)
        end = closed(log)
        storage.housekeep()
        for _ in range(40):
            storage.housekeep()
        latest = {b"k%d" % (n % 20): n for n in range(end)}
        assert offsets(read_records(log)) == sorted({*latest.values(), *range(end, 80)})
    finally:
        storage.kill()


def test_last_batch_of_producer_stays_even_without_records(storage: Storage) -> None:
    log = compacted(storage)
    append(log, b"v", b"v", keys=[b"a", b"b"], producer=(7, 3, 0))
    for _ in range(20):
        append(log, b"x" * 30, b"y" * 30, keys=[b"a", b"b"])
    clean(storage)
    header = next(batches(read_bytes(log, 0)))[1]
    assert (header.record_count, header.base_offset, header.last_offset) == (0, 0, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 0)
    storage.crash()
    log = storage.log()
    assert append(log, b"v", b"v", keys=[b"a", b"b"], producer=(7, 3, 0)).duplicate
    assert not append(log, b"v", keys=[b"a"], producer=(7, 3, 2)).duplicate
    assert log.times.offset_for_timestamp(0) is not None


def test_log_append_time_stays(storage: Storage) -> None:
    log = compacted(storage, message_timestamp_type="LogAppendTime")
    append(log, b"v", b"v", keys=[b"a", b"b"])
    storage.clock.sleep_ms(5)
    for _ in range(20):
        put(log, b"a", b"x" * 30)
    clean(storage)
    assert next((r.offset, r.timestamp) for r in read_records(log)) == (1, NOW_MS)


def test_compaction_survives_a_restart_and_a_crash(storage: Storage) -> None:
    log = compacted(storage)
    for number in range(40):
        put(log, b"k%d" % (number % 3), b"v%d" % number)
    clean(storage)
    found = pairs(log)
    for stop in (storage.crash, storage.restart, storage.crash):
        stop()
        log = storage.log()
        assert log.offline is None
        assert pairs(log) == found
        storage.manager.housekeeper.scrub.step(storage.manager.partitions, 1 << 30)
        assert log.offline is None
    for number in range(40):
        put(log, b"k%d" % (number % 3), b"w%d" % number)
    clean(storage)
    assert len(pairs(log)) < 20


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_unreadable_batch_of_producer_is_kept_unchanged(storage: Storage, codec: int) -> None:
    """It came when the topic was not compacted yet, so that nobody looked inside."""
    log = storage.create(segment_bytes=400, min_cleanable_dirty_ratio=0)
    put(log, b"k", b"v" * 30)
    unreadable = lying(batch(b"w" * 30, keys=[b"k"], compression=codec), lambda data: garbage(data, codec))
    log.append(memoryview(bytearray(unreadable)), now_ms=NOW_MS)
    for number in range(20):
        put(log, b"k", b"v%d" % number * 10)
    # Of this one the first record is well formed and the second is not: the key of the first does not count either.
    put(log, b"other", b"older")
    log.append(lying(batch(b"w", b"w", keys=[b"other", b"k"]), lambda data: data[:-1] + b"\x02"), now_ms=NOW_MS)
    for number in range(20):
        put(log, b"k", b"v%d" % number * 10)
    storage.manager.alter_topic_configs("t", {"cleanup.policy": "compact"})
    clean(storage)
    assert log.offline is None
    headers = [header for _, header in batches(read_bytes(log, 0))]
    closed_ones = [header.base_offset for header in headers if header.base_offset < closed(log)]
    assert [1, 22, 23] == closed_ones[:3]  # garbage, "other", garbage
    assert len(closed_ones) == 4  # and the last one of "k"
    assert bytes(unreadable)[17:] == read_bytes(log, 1, 1)[17:]
    storage.crash()
    assert storage.log().offline is None


def test_damaged_records_take_the_partition_offline(storage: Storage) -> None:
    log = compacted(storage)
    for _ in range(20):
        put(log, b"k", b"v" * 30)
    storage.housekeep()
    path = storage.path() / storage.files(".log")[-2]
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)
    put(log, b"k", b"v" * 300)
    clean(storage)
    assert log.offline is not None


def test_full_disk_ends_compaction_and_nothing_else(storage: Storage) -> None:
    log = compacted(storage)
    for number in range(40):  # something of every segment is kept, so that there is something to write
        put(log, b"k%d" % (number % 3 if number % 3 else number), b"v%d" % number)
    storage.manager.checkpoint()
    storage.disk.room = 0
    storage.housekeep()
    storage.disk.room = None
    assert log.offline is None
    assert storage.files(".cleaned") == []
    assert offsets(read_records(log)) == list(range(40))
    clean(storage)
    assert len(read_records(log)) < 30


def test_a_segment_deleted_meanwhile_is_not_brought_back(storage: Storage) -> None:
    log = compacted(storage, cleanup_policy="compact,delete")
    for number in range(40):
        put(log, b"k%d" % number, b"v")
    storage.manager.checkpoint()
    plan = cleanable(log, NOW_MS)
    assert plan is not None
    steps = cleaner.clean(plan, 1 << 20, NOW_MS)
    next(steps)
    log.trimming.delete_records(20)
    for _ in steps:
        pass
    assert log.log_start_offset == 20
    assert offsets(read_records(log)) == list(range(20, 40))
    assert storage.files(".cleaned") + storage.files(".swap") == []


def test_reader_of_old_segment_never_gets_new_file(storage: Storage) -> None:
    log = compacted(storage)
    for _ in range(20):
        put(log, b"k", b"v")
    old = log.view.segments[0]
    clean(storage)
    assert old not in log.view.segments
    with pytest.raises(FileNotFoundError):
        old.log.get()


def names_in_order(storage: Storage, run: Callable[[], object]) -> list[str]:
    """What ``run`` does to the names in the partition's directory; the same thing several times in a row only once."""
    done: list[str] = []

    def before(what: str, path: str) -> None:
        if what == "sync_dir" or (what == "rename" and "/t-0/" in path):
            suffix = path.rpartition(".")[2] if what == "rename" else "t-0" if path.endswith("t-0") else None
            if suffix is not None and (not done or done[-1] != f"{what} {suffix}"):
                done.append(f"{what} {suffix}")

    storage.disk.before = before
    run()
    storage.disk.before = lambda what, path: None
    return done


def test_replacement_steps_are_durable_one_after_another(storage: Storage) -> None:
    log = compacted(storage, segment_bytes=600)
    for number in range(20):
        put(log, b"k%d" % (number % 3), b"v")
    storage.manager.checkpoint()
    plan = cleanable(log, NOW_MS)
    assert plan is not None
    done = names_in_order(storage, lambda: list(cleaner.clean(plan, 1 << 20, NOW_MS)))
    one = ["rename cleaned", "sync_dir t-0"]  # the new file is complete, and from here on it counts
    old = ["rename index", "rename timeindex", "sync_dir t-0"]  # the old ones get out of the way
    new = ["rename swap", "rename cleaned", "sync_dir t-0"]  # and it gets their name
    groups = done.count("rename swap")
    assert groups > 0
    assert [step for step in done if step != "rename log"] == (one + old + new) * groups


class Dies(BaseException):
    pass


def moments(storage: Storage, die_at: int) -> Callable[[str, str], None]:
    count = 0

    def before(what: str, path: str) -> None:
        nonlocal count
        count += 1
        if count == die_at:
            raise Dies

    return before


@pytest.mark.parametrize("die_at", range(1, 120, 1))
def test_crash_at_any_moment_of_compaction_is_harmless(storage: Storage, die_at: int) -> None:
    log = compacted(storage, segment_bytes=600)
    for number in range(30):
        put(log, b"k%d" % (number % 3), b"v%d" % number)
    latest = {b"k%d" % (n % 3): b"v%d" % n for n in range(30)}
    storage.manager.checkpoint()
    plan = cleanable(log, NOW_MS)
    assert plan is not None
    storage.manager.files.close_all()
    storage.disk.before = moments(storage, die_at)
    try:
        for _ in cleaner.clean(plan, 1 << 20, NOW_MS):
            pass
    except Dies:
        pass
    storage.disk.before = lambda what, path: None
    storage.crash()
    log = storage.log()
    assert log.offline is None
    found = pairs(log)
    assert {key: value for _, key, value in found} == latest
    assert [offset for offset, _, _ in found] == sorted({offset for offset, _, _ in found})
    assert storage.files(".cleaned") + storage.files(".swap") + storage.files(".deleted") == []
    assert log.log_end_offset == 30


@pytest.mark.parametrize("operation", ["rename", "sync_dir", "open", "sync", "read"])
def test_compaction_io_error_is_reported_and_healed_later(storage: Storage, operation: str) -> None:
    log = compacted(storage)
    for number in range(30):
        put(log, b"k%d" % (number % 3), b"v%d" % number)
    storage.manager.checkpoint()
    plan = cleanable(log, NOW_MS)
    assert plan is not None
    storage.manager.files.close_all()
    storage.disk.fail[operation, "/t-0"] = errno.EIO
    for _ in cleaner.clean(plan, 1 << 20, NOW_MS):
        pass
    storage.disk.fail.clear()
    assert log.offline is not None
    storage.crash()
    assert {key: value for _, key, value in pairs(storage.log())} == {b"k%d" % (n % 3): b"v%d" % n for n in range(30)}


KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"long" * 20])


@settings(max_examples=40)
@given(
    rounds=st.lists(
        st.tuples(
            st.lists(
                st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=40)), min_size=1, max_size=4),
                min_size=1,
                max_size=15,
            ),
            st.sampled_from(["", "", "crash", "restart"]),
            st.sampled_from([0, DAY_MS]),
        ),
        min_size=1,
        max_size=5,
    ),
    key_bytes=st.sampled_from([300, 1 << 20]),
    codec=st.sampled_from([0, 3]),
)
def test_reader_of_everything_knows_last_value_of_keys(
    rounds: list[tuple[list[list[tuple[bytes, bytes | None]]], str, int]], key_bytes: int, codec: int
) -> None:
    directory = tempfile.mkdtemp()
    storage = Storage(directory, log_cleaner_dedupe_buffer_size=key_bytes)
    try:
        log = compacted(storage, index_interval_bytes=100, segment_bytes=600)
        appended: dict[int, tuple[bytes, bytes | None]] = {}
        state: dict[bytes, bytes | None] = {}
        for rows, stop, passes in rounds:
            for row in rows:
                for i, (key, value) in enumerate(row):
                    appended[log.log_end_offset + i] = (key, value)
                    state[key] = value
                append(log, *[v for _, v in row], keys=[k for k, _ in row], compression=codec)
            clean(storage)
            storage.clock.sleep_ms(passes)
            if stop:
                (storage.crash if stop == "crash" else storage.restart)()
                log = storage.log()
            found = pairs(log)
            assert all(appended[offset] == (key, value) for offset, key, value in found)
            assert [offset for offset, _, _ in found] == sorted({offset for offset, _, _ in found})
            read = {key: value for _, key, value in found}
            # A key whose tombstone is gone was deleted; nobody sees an older value of it.
            assert {key: read.get(key) for key in state if key is not None} == state
            assert log.log_end_offset == len(appended)
        storage.manager.housekeeper.scrub.step(storage.manager.partitions, 1 << 30)
        assert log.offline is None
    finally:
        storage.kill()
        shutil.rmtree(directory)
