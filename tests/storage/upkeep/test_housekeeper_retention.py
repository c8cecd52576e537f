"""Old segments go by time and by size, Kafka's way."""

import errno

import pytest

from broker.errors import StorageError
from broker.storage.log.log import Log
from broker.storage.upkeep.housekeeper import Rule
from tests.storage.helpers import NOW_MS, Storage, append, append_many, offsets, read_records

HOUR_MS = 3_600_000


def rolled(log: Log, *, at_ms: int) -> None:
    """A segment of its own for one record of that time."""
    append(log, b"v" * 50, timestamp=at_ms, now_ms=at_ms)
    with log.lock:
        log.rolling.roll(at_ms)


def test_segments_whose_newest_record_is_too_old_go(storage: Storage) -> None:
    log = storage.create(retention_ms=10 * HOUR_MS)
    for hours in (12, 11, 10, 9):
        rolled(log, at_ms=NOW_MS - hours * HOUR_MS)
    list(storage.manager.housekeeper.apply_retention())
    assert log.log_start_offset == 2
    assert offsets(read_records(log)) == [2, 3]
    storage.crash()
    assert storage.log().log_start_offset == 2


def test_a_young_segment_protects_the_ones_behind_it(storage: Storage) -> None:
    log = storage.create(retention_ms=HOUR_MS)
    rolled(log, at_ms=NOW_MS)
    rolled(log, at_ms=NOW_MS - 5 * HOUR_MS)
    list(storage.manager.housekeeper.apply_retention())
    assert log.log_start_offset == 0


def test_active_segment_is_removed_when_too_old_entirely(storage: Storage) -> None:
    log = storage.create(retention_ms=HOUR_MS)
    append_many(log, 3)
    storage.clock.sleep_ms(2 * HOUR_MS)
    list(storage.manager.housekeeper.apply_retention())
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes()) == (3, 3, 0)
    append(log, b"x")
    storage.crash()
    assert offsets(read_records(storage.log())) == [3]


def test_records_without_time_stay_while_file_is_young(storage: Storage) -> None:
    log = storage.create(retention_ms=HOUR_MS)
    append(log, b"x", timestamp=-1)
    list(storage.manager.housekeeper.apply_retention())
    assert log.log_start_offset == 0
    storage.clock.sleep_ms(2 * HOUR_MS)
    list(storage.manager.housekeeper.apply_retention())
    assert log.log_start_offset == 1


def test_a_clock_that_jumps_back_deletes_nothing(storage: Storage) -> None:
    log = storage.create(retention_ms=HOUR_MS)
    for _ in range(3):
        rolled(log, at_ms=NOW_MS)
    storage.clock.now_ms -= 1000 * HOUR_MS
    list(storage.manager.housekeeper.apply_retention())
    assert log.log_start_offset == 0


def test_segments_are_removed_down_to_retention_bytes(storage: Storage) -> None:
    log = storage.create(retention_bytes=1000, retention_ms=-1, segment_bytes=300)
    append_many(log, 30)
    sizes = [segment.size for segment in log.view.segments]
    list(storage.manager.housekeeper.apply_retention())
    left = [segment.size for segment in log.view.segments]
    assert left == sizes[len(sizes) - len(left) :]
    assert sum(left) >= 1000 > sum(left[1:])
    assert offsets(read_records(log)) == list(range(log.log_start_offset, 30))


def test_compact_policy_alone_removes_nothing(storage: Storage) -> None:
    log = storage.create(retention_ms=1, retention_bytes=1, cleanup_policy="compact")
    for hours in (12, 11):
        append(log, b"v", keys=[b"k"], timestamp=NOW_MS - hours * HOUR_MS)
        with log.lock:
            log.rolling.roll(NOW_MS)
    list(storage.manager.housekeeper.apply_retention())
    assert log.log_start_offset == 0


def test_deleted_records_are_removed_whatever_the_policy(storage: Storage) -> None:
    log = storage.create(segment_bytes=300, cleanup_policy="compact,delete", retention_ms=-1)
    for _ in range(10):
        append(log, b"v", keys=[b"k"])
    log.trimming.delete_records(7)
    assert log.view.bases[0] <= 7 < log.view.bases[1]


def test_files_stay_for_a_while_under_another_name(storage: Storage) -> None:
    log = storage.create(retention_ms=HOUR_MS, file_delete_delay_ms=1000)
    rolled(log, at_ms=NOW_MS - 2 * HOUR_MS)
    rolled(log, at_ms=NOW_MS)
    list(storage.manager.housekeeper.apply_retention())
    assert f"{0:020d}.log.deleted" in storage.files(".deleted")
    storage.manager.housekeeper.step(0)
    assert f"{0:020d}.log.deleted" in storage.files(".deleted")
    storage.clock.sleep_ms(1001)
    storage.manager.housekeeper.step(0)
    assert storage.files(".deleted") == []


def test_a_damaged_time_index_never_makes_data_go(storage: Storage) -> None:
    log = storage.create(retention_ms=HOUR_MS)
    for _ in range(3):
        rolled(log, at_ms=NOW_MS)
    for name in storage.files(".timeindex"):
        path = storage.path() / name
        path.write_bytes(b"\0\0\0\0\0\0\0\5" + path.read_bytes()[8:])
    storage.manager.files.close_all()
    for segment in log.view.segments[:-1]:
        segment.largest_timestamp = -2  # as after a restart
        segment.times._page = None
        segment.times._tail = ([], [])
    list(storage.manager.housekeeper.apply_retention())
    assert log.log_start_offset == 0
    assert log.offline is None


def old_segments(storage: Storage) -> Log:
    """A log of several segments of which nothing is durable yet and the first ones are to go."""
    log = storage.create(segment_bytes=1000)
    append_many(log, 50)
    assert log.trimming.advance_start(log.view.bases[3])
    storage.manager.checkpoints.save_log_starts()
    storage.disk.synced.clear()
    return log


def test_new_segment_is_durable_although_removal_failed(storage: Storage) -> None:
    log = old_segments(storage)
    storage.disk.fail["sync_dir", log.dir] = errno.EMFILE
    with pytest.raises(StorageError):
        log.trimming.drop_old_segments()
    assert log.offline is None
    storage.disk.fail.clear()
    log.durability.flush_to(log.log_end_offset)
    assert log.dir in storage.disk.synced


def test_concurrent_flush_does_not_trust_undurable_directory(storage: Storage) -> None:
    log = old_segments(storage)
    durable: list[list[str]] = []

    def flush(what: str, path: str) -> None:
        if (what, path) == ("sync_dir", log.dir) and not durable:
            durable.append([])
            log.durability.flush_to(log.log_end_offset)  # as another thread, before the directory is durable
            durable[0] += storage.disk.synced

    storage.disk.before = flush
    assert log.trimming.drop_old_segments() == 3
    assert log.dir in durable[0]


@pytest.mark.parametrize(("needed_from", "start"), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (9, 4), (None, 4)])
def test_records_needed_by_service_stay_whatever_their_age(
    storage: Storage, needed_from: int | None, start: int
) -> None:
    log = storage.create(retention_ms=HOUR_MS)
    for hours in (12, 11, 10, 9):
        rolled(log, at_ms=NOW_MS - hours * HOUR_MS)
    storage.manager.housekeeper.retention_rule = lambda of: Rule(needed_from)
    list(storage.manager.housekeeper.apply_retention())
    assert start == log.log_start_offset


def test_service_may_set_own_age_and_size(storage: Storage) -> None:
    log = storage.create(retention_ms=HOUR_MS)
    for hours in (12, 11, 10, 9):
        rolled(log, at_ms=NOW_MS - hours * HOUR_MS)
    size = log.view.segments[0].size
    for rule, start in ((Rule(None, -1), 0), (Rule(None, int(11.5 * HOUR_MS)), 1), (Rule(None, -1, size), 3)):
        storage.manager.housekeeper.retention_rule = lambda of, rule=rule: rule
        list(storage.manager.housekeeper.apply_retention())
        assert start == log.log_start_offset
