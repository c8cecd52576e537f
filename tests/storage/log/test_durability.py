"""fsync and checkpoints of one log."""

import errno
from pathlib import Path

import pytest

from broker.errors import StorageError
from broker.storage.refusals import OffsetOutOfRange
from tests.descriptors import in_own_process, none_left
from tests.storage.helpers import Storage, append, append_many, offsets, read_records


def test_flush_syncs_changed_segments_and_the_directory(storage: Storage) -> None:
    log = storage.create(segment_bytes=300)
    append_many(log, 10)
    storage.disk.synced.clear()
    log.durability.flush_to(10)
    assert log.durable_offset == 10
    assert [path.rpartition("/")[2] for path in storage.disk.synced] == [
        f"{base:020d}.log" for base in log.view.bases
    ] + ["t-0"]
    storage.disk.synced.clear()
    append(log, b"x")
    log.durability.flush_to(11)
    assert [path.rpartition("/")[2] for path in storage.disk.synced] == [f"{log.view.bases[-1]:020d}.log"]
    log.durability.flush_to(11)
    assert len(storage.disk.synced) == 1


def test_only_checkpointed_records_are_durable_after_crash(storage: Storage) -> None:
    log = storage.create()
    append_many(log, 10)
    storage.manager.checkpoint()
    append_many(log, 5)
    log.durability.flush_to(15)
    storage.crash()
    assert (storage.log().durable_offset, storage.log().log_end_offset) == (10, 15)
    storage.disk.synced.clear()
    storage.log().durability.flush_to(15)
    assert len(storage.disk.synced) == 2  # the file, and the directory, of which nobody knows


def test_a_failed_fsync_takes_the_partition_offline(storage: Storage) -> None:
    log = storage.create()
    append_many(log, 3)
    storage.disk.fail["sync", ".log"] = errno.EIO
    with pytest.raises(StorageError, match="fsync failed"):
        log.durability.flush_to(3)
    storage.disk.fail.clear()
    # The kernel may have forgotten the pages that it could not write: a second fsync would lie.
    with pytest.raises(StorageError):
        log.durability.flush_to(3)
    assert log.durable_offset == 0
    storage.crash()
    assert offsets(read_records(storage.log())) == [0, 1, 2]


def test_offline_error_has_no_growing_traceback(storage: Storage) -> None:
    """One exception raised over and over gathers the frames of all who raise it, and what they hold: buffers, files."""
    log = storage.create()
    append_many(log, 3)
    storage.disk.fail["sync", ".log"] = errno.EIO
    for _ in range(3):
        with pytest.raises(StorageError):
            log.durability.flush_to(3)
        with pytest.raises(StorageError):
            log.read(0, 100)
        with pytest.raises(StorageError):
            append(log, b"x")
    assert log.offline is not None
    assert log.offline.__traceback__ is None
    assert log.offline.__context__ is None


def test_flush_messages_syncs_within_the_append(storage: Storage) -> None:
    log = storage.create(flush_messages=3)
    append(log, b"a", b"b")
    assert log.durable_offset == 0
    append(log, b"c")
    assert log.durable_offset == 3


def test_a_checkpoint_makes_data_indexes_and_producers_durable(storage: Storage) -> None:
    log = storage.create(index_interval_bytes=0)
    append(log, b"a", producer=(7, 0, 0))
    append(log, b"b", producer=(7, 0, 1))
    storage.disk.synced.clear()
    assert log.durability.checkpoint()
    assert log.recovery_point == log.durable_offset == 2
    names = {path.rpartition("/")[2] for path in storage.disk.synced}
    assert names == {f"{0:020d}.log", f"{0:020d}.index", f"{0:020d}.timeindex", f"{2:020d}.snapshot", "t-0"}
    assert not log.durability.checkpoint()


def test_the_snapshots_of_the_last_two_checkpoints_stay(storage: Storage) -> None:
    log = storage.create(segment_bytes=300)
    for _ in range(4):
        append_many(log, 4)
        log.durability.checkpoint()
    assert storage.files(".snapshot") == [f"{offset:020d}.snapshot" for offset in (12, 16)]


def test_appends_continue_while_producer_snapshot_is_written(storage: Storage) -> None:
    log = storage.create()
    for number in range(3):
        append(log, b"x", producer=(7, 0, number))
    during: list[int] = []

    def append_another(what: str, path: str) -> None:
        if path.endswith(".snapshot") and not during:  # on the same thread: were the lock held, for ever
            during.append(log.log_end_offset)
            append(log, b"x", producer=(7, 0, 3))
            append(log, b"x", producer=(8, 0, 0))

    storage.disk.before = append_another
    assert log.durability.checkpoint()
    assert during == [3]
    storage.disk.before = lambda what, path: None
    assert log.recovery_point == 3
    storage.crash()
    assert append(storage.log(), b"x", producer=(7, 0, 3)).duplicate
    assert append(storage.log(), b"x", producer=(8, 0, 0)).duplicate


def test_a_new_segment_costs_no_snapshot(storage: Storage) -> None:
    log = storage.create(segment_bytes=300)
    for number in range(20):
        append(log, b"x" * 50, producer=(7, 0, number))
    assert len(log.view.segments) > 3
    assert storage.files(".snapshot") == []
    storage.crash()
    assert append(storage.log(), b"x" * 50, producer=(7, 0, 16)).duplicate


def test_newest_snapshot_survives_removal_of_its_segment(storage: Storage) -> None:
    log = storage.create(segment_bytes=300, file_delete_delay_ms=0)
    append(log, b"x", producer=(7, 0, 0))
    while log.view.bases[-1] != log.log_end_offset - 1:
        append(log, b"y" * 60)
    base = log.view.bases[-1]
    with log.lock:
        log.rolling.roll(0)
    log.durability.checkpoint()
    storage.manager.checkpoints.save_recovery_points()
    end = log.log_end_offset
    while len(log.view.segments) < 5:
        append(log, b"y" * 60)
    assert end in log.view.bases
    assert base < end
    log.trimming.delete_records(log.view.bases[-1])
    storage.crash()
    assert append(storage.log(), b"x", producer=(7, 0, 0)).duplicate


def test_a_checkpoint_that_fails_moves_nothing(storage: Storage) -> None:
    log = storage.create()
    append_many(log, 3)
    storage.disk.fail["sync", ".timeindex"] = errno.EIO
    with pytest.raises(StorageError):
        log.durability.checkpoint()
    assert log.recovery_point == 0


def test_cut_after_failed_write_durable_before_next_segment(storage: Storage) -> None:
    log = storage.create(segment_bytes=300)
    append_many(log, 2)
    log.durability.flush_to(2)
    storage.disk.room = 20
    with pytest.raises(StorageError):
        append(log, b"x")
    storage.disk.room = None
    storage.disk.synced.clear()
    append(log, b"x" * 150)
    assert len(log.view.segments) == 2
    assert any(path.endswith(f"{0:020d}.log") for path in storage.disk.synced)


def test_a_clean_stop_writes_no_snapshot_of_nothing(storage: Storage) -> None:
    append_many(storage.create(), 3)
    storage.restart()
    assert storage.files(".snapshot") == []
    append(storage.log(), b"x", producer=(7, 0, 0))
    storage.restart()
    assert storage.files(".snapshot") == [f"{4:020d}.snapshot"]
    storage.restart()
    assert append(storage.log(), b"x", producer=(7, 0, 0)).duplicate


def test_flush_without_descriptor_leaves_partition_online_for_next(
    tmp_path: Path,
) -> None:
    in_own_process(flush_that_cannot_open_its_file, tmp_path)


def flush_that_cannot_open_its_file(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    log = storage.create(segment_bytes=300)
    append_many(log, 10)
    assert len(log.view.segments) > 1
    storage.manager.files.close_all()
    with none_left(), pytest.raises(StorageError, match="Too many open files"):
        log.durability.flush_to(10)
    assert log.offline is None
    assert log.durable_offset == 0
    storage.disk.synced.clear()
    log.durability.flush_to(10)
    assert log.durable_offset == 10
    assert len(storage.disk.synced) == len(log.view.segments) + 1  # the directory, too


def test_checkpoint_without_descriptor_leaves_partition_online(tmp_path: Path) -> None:
    in_own_process(checkpoint_that_cannot_open_a_file, tmp_path)


def checkpoint_that_cannot_open_a_file(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    log = storage.create(segment_bytes=300)
    append_many(log, 10)
    storage.manager.files.close_all()
    with none_left(), pytest.raises(StorageError, match="Too many open files"):
        log.durability.checkpoint()
    assert log.offline is None
    assert log.durability.checkpoint()
    assert log.recovery_point == 10


# -- what consumers see ----------------------------------------------------------------------------------------------------


def test_visible_durable_shows_consumers_only_durable_records(storage: Storage) -> None:
    log = storage.create(visible="durable", segment_bytes=300)
    woken: list[int] = []
    log.watch(lambda: woken.append(log.high_watermark))
    append_many(log, 20)
    assert len(storage.files(".log")) > 2
    assert (20, 0, 0) == (log.log_end_offset, log.high_watermark, log.last_stable_offset)
    assert ([], None) == (read_records(log), log.times.offset_for_timestamp(0))
    assert [] == woken
    log.durability.flush_to(1)
    assert [20] == woken
    assert [record.offset for record in read_records(log)] == list(range(20))
    assert log.times.offset_for_timestamp(0) == (0, read_records(log)[0].timestamp)
    append_many(log, 20)
    assert [record.offset for record in read_records(log)] == list(range(20))  # and segments that begin after that
    for offset in (20, 21, 40):
        assert ([], 20) == (log.read(offset, 100).regions, log.read(offset, 100).high_watermark)
    with pytest.raises(OffsetOutOfRange):
        log.read(41, 100)
    assert storage.manager.flusher.waiting == 0  # nobody waits for what was queued
    while storage.manager.flusher.threads[0].step(0):
        pass
    assert (40, 40) == (log.high_watermark, len(read_records(log)))


def test_records_after_kill_are_fsynced_before_consumers_see(storage: Storage) -> None:
    append_many(storage.create(visible="durable"), 20)
    storage.kill()
    storage.disk.synced.clear()
    storage.open()
    log = storage.log()
    assert (20, 20) == (log.high_watermark, log.durable_offset)
    assert any(path.endswith(".log") for path in storage.disk.synced)
    storage.restart()
    assert (20, 20) == (storage.log().high_watermark, len(read_records(storage.log())))


def test_change_of_visibility_never_takes_records_back(storage: Storage) -> None:
    log = storage.create()
    append_many(log, 5)
    storage.manager.alter_topic_configs("t", {"visible": "durable"})
    assert 5 == log.high_watermark
    append_many(log, 5)
    assert 5 == log.high_watermark
    storage.manager.alter_topic_configs("t", {"visible": "written"})
    assert 10 == log.high_watermark == len(read_records(log))
    append_many(log, 1)
    assert 11 == log.high_watermark


def test_a_failed_fsync_shows_nothing(storage: Storage) -> None:
    log = storage.create(visible="durable")
    append_many(log, 5)
    storage.disk.fail["sync", ".log"] = errno.EIO
    with pytest.raises(StorageError):
        log.durability.flush_to(5)
    assert 0 == log.high_watermark


def test_retention_takes_no_segment_that_nobody_could_see(storage: Storage) -> None:
    log = storage.create(visible="durable", segment_bytes=300, retention_bytes=1)
    append_many(log, 50)
    storage.housekeep()
    assert 0 < log.log_start_offset <= log.high_watermark == 50
