"""The checkpoint files of the data directory: which logs they name, and when they are written."""

import errno
from pathlib import Path

import pytest

from broker.errors import StorageError
from broker.storage.checkpoints import CLEANER_OFFSETS, LOG_STARTS, RECOVERY_POINTS, read_offsets
from tests.storage.helpers import Storage, append, append_many


def on_disk(storage: Storage, name: str) -> dict[tuple[str, int], int]:
    return read_offsets(storage.disk, f"{storage.directory}/{name}")


def test_log_with_offset_is_listed(storage: Storage) -> None:
    append_many(storage.create("a", 2), 3)
    storage.create("b")
    storage.manager.checkpoint()
    assert on_disk(storage, RECOVERY_POINTS) == {("a", 0): 3}


def test_unchanged_file_is_not_written(storage: Storage) -> None:
    append(storage.create(), b"a")
    storage.manager.checkpoint()
    before = len(storage.disk.synced)
    storage.manager.checkpoints.save_recovery_points()
    assert len(storage.disk.synced) == before


def test_a_log_knows_what_is_saved_of_it(storage: Storage) -> None:
    log = storage.create()
    append_many(log, 3)
    log.durability.checkpoint()
    assert (log.recovery_point, log.saved_point) == (3, 0)
    storage.manager.checkpoints.save_recovery_points()
    assert log.saved_point == 3
    log.trimming.delete_records(2)
    assert (log.state.saved_start, on_disk(storage, LOG_STARTS)) == (2, {("t", 0): 2})


def test_log_that_could_not_be_opened_keeps_lines(storage: Storage) -> None:
    append_many(storage.create("lost"), 3)
    append_many(storage.create("t"), 2)
    storage.log("lost").trimming.delete_records(1)
    storage.manager.checkpoint()
    storage.kill()
    storage.path("lost").rename(Path(storage.directory).parent / "elsewhere")
    storage.open()
    assert storage.log("lost").offline is not None
    append(storage.log("t"), b"more")
    storage.manager.checkpoint()
    assert on_disk(storage, RECOVERY_POINTS) == {("lost", 0): 3, ("t", 0): 3}
    assert on_disk(storage, LOG_STARTS) == {("lost", 0): 1}


def test_new_partition_inherits_nothing_from_deleted_one(storage: Storage) -> None:
    append_many(storage.create(), 3)
    storage.log().trimming.delete_records(2)
    storage.manager.checkpoint()
    storage.manager.delete_topic("t")
    assert on_disk(storage, RECOVERY_POINTS) == {("t", 0): 3}, "nobody has written the file since"
    storage.create()
    assert (on_disk(storage, RECOVERY_POINTS), on_disk(storage, LOG_STARTS)) == ({}, {})


def test_log_with_possible_gaps_is_listed_at_zero(storage: Storage) -> None:
    log = storage.create()
    log.trimming.expect_gaps_before(5)
    storage.manager.checkpoints.save_cleaner_offsets()
    assert on_disk(storage, CLEANER_OFFSETS) == {("t", 0): 0}


def test_what_could_not_be_written_is_tried_again(storage: Storage) -> None:
    append(storage.create(), b"a")
    storage.disk.fail["rename", RECOVERY_POINTS] = errno.EIO
    storage.log().durability.checkpoint()
    with pytest.raises(StorageError, match="recovery-point-offset-checkpoint could not be written"):
        storage.manager.checkpoints.save_recovery_points()
    assert storage.log().saved_point == 0
    storage.disk.fail.clear()
    storage.manager.checkpoints.save_recovery_points()
    assert on_disk(storage, RECOVERY_POINTS) == {("t", 0): 1}


def test_recovery_points_move_up_one_log_a_step(storage: Storage) -> None:
    for name in ("a", "b", "c"):
        append(storage.create(name), b"x")
    steps = storage.manager.checkpoints.move_up_each()
    next(steps)
    assert sorted(storage.log(name).recovery_point for name in ("a", "b", "c")) == [0, 0, 1]
    list(steps)
    assert on_disk(storage, RECOVERY_POINTS) == {("a", 0): 1, ("b", 0): 1, ("c", 0): 1}
