"""Opening a log after a clean stop, after kill -9, after a power loss, and with damaged files."""

import errno
from pathlib import Path

import pytest

from broker.errors import StorageError
from broker.storage.segments.index_file import OffsetIndex, TimeIndex
from tests.storage.helpers import NOW_MS, Storage, append, append_many, batch, offsets, read_bytes, read_records, values


def cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def flip(path: Path, position: int) -> None:
    content = path.read_bytes()
    overwrite(path, position, bytes([content[position] ^ 0x10]))


def log_file(storage: Storage, number: int = -1) -> Path:
    return storage.path() / storage.files(".log")[number]


def test_clean_stop_keeps_everything_and_reads_little(storage: Storage) -> None:
    log = storage.create(segment_bytes=1_000_000)
    append_many(log, 3000, size=1000)
    storage.stop()
    storage.disk.read_bytes = 0
    storage.open()
    assert storage.disk.read_bytes < 3_000_000 / 40
    log = storage.log()
    assert offsets(read_records(log)) == list(range(3000))
    append_many(log, 10)
    assert offsets(read_records(log)) == list(range(3010))


def test_kill_9_loses_nothing(storage: Storage) -> None:
    log = storage.create(segment_bytes=1000)
    append_many(log, 50)
    for _ in range(3):
        storage.crash()
        assert offsets(read_records(storage.log())) == list(range(storage.log().log_end_offset))
        append_many(storage.log(), 5)
    assert offsets(read_records(storage.log())) == list(range(65))


def test_only_records_after_checkpoint_are_read_again(storage: Storage) -> None:
    log = storage.create()
    append_many(log, 3000, size=100)
    storage.manager.checkpoint()
    append_many(log, 20)
    storage.kill()
    storage.disk.read_bytes = 0
    storage.open()
    assert storage.disk.read_bytes < 40_000
    assert storage.log().recovery_point == 3000
    assert offsets(read_records(storage.log())) == list(range(3020))


@pytest.mark.parametrize("lost", [[".index"], [".timeindex"], [".index", ".timeindex"]])
@pytest.mark.parametrize("stop", ["stop", "kill", "kill on a full disk"])
def test_times_found_after_index_loss_and_two_starts(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, lost: list[str], stop: str
) -> None:
    # Small pages, so that a start writes some of what it makes again.
    monkeypatch.setattr(OffsetIndex, "PAGE_ENTRIES", 16)
    monkeypatch.setattr(TimeIndex, "PAGE_ENTRIES", 11)
    log = storage.create(index_interval_bytes=100)
    # Each tenth is newer than the nine that follow it. The last ones are older than all.
    times = [NOW_MS + number - (100 if number % 10 else 0) for number in range(400)]
    times[-40:] = [NOW_MS - 1000] * 40
    for number, timestamp in enumerate(times):
        append(log, b"%d" % number, timestamp=timestamp)
    storage.stop()
    for suffix in lost:
        (storage.path() / f"{0:020d}{suffix}").unlink()
    for start in range(3):
        if stop == "kill on a full disk" and start < 2:
            storage.disk.fail["write", [".timeindex", ".index"][start]] = errno.ENOSPC
        storage.open()
        storage.disk.fail.clear()
        log = storage.log()
        for wanted in range(NOW_MS - 100, NOW_MS + 360, 7):
            first = next((n, time) for n, time in enumerate(times) if time >= wanted) if wanted <= max(times) else None
            assert log.times.offset_for_timestamp(wanted) == first
        assert log.times.max_timestamp_offset() == (350, NOW_MS + 350)
        storage.disk.synced.clear()
        getattr(storage, stop.split()[0])()
        synced = [path for path in storage.disk.synced if path.endswith("index")]
        # What was made again is durable after the first stop in order. The following starts change nothing.
        assert len(synced) == (2 if stop == "stop" and start == 0 else 0)
    storage.open()


@pytest.mark.parametrize("lost", [".index", ".timeindex"])
@pytest.mark.parametrize("failing", range(12))
def test_partly_rebuilt_indexes_are_rebuilt_by_next_start(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, lost: str, failing: int
) -> None:
    monkeypatch.setattr(OffsetIndex, "PAGE_ENTRIES", 16)
    monkeypatch.setattr(TimeIndex, "PAGE_ENTRIES", 11)
    log = storage.create(index_interval_bytes=100)
    for number in range(100):
        append(log, b"%d" % number, timestamp=NOW_MS + number)
    with log.lock:
        log.rolling.roll(NOW_MS)
    append(log, b"100", timestamp=NOW_MS + 100)
    storage.stop()
    (storage.path() / f"{0:020d}{lost}").unlink()
    writes = 0

    def die(what: str, path: str) -> None:
        nonlocal writes
        if what == "write" and path.endswith("index"):
            writes += 1
            if writes > failing:
                raise OSError(errno.EIO, "for a test", path)

    storage.disk.before = die
    storage.open()
    storage.disk.before = lambda what, path: None
    storage.crash()
    for number in range(101):
        assert storage.log().times.offset_for_timestamp(NOW_MS + number) == (number, NOW_MS + number)


def test_torn_tail_is_cut_at_last_whole_batch(storage: Storage) -> None:
    log = storage.create()
    append_many(log, 10)
    size = log.size_bytes() // 10
    storage.kill()
    cut(log_file(storage), 9 * size + 40)
    storage.open()
    log = storage.log()
    assert offsets(read_records(log)) == list(range(9))
    assert log_file(storage).stat().st_size == 9 * size
    append(log, b"new")
    assert read_records(log)[-1].value == b"new"
    assert log.log_end_offset == 10


@pytest.mark.parametrize("junk", [b"x" * 10, b"x" * 500, b"\0" * 500, bytes(batch(b"half"))[:65]])
def test_junk_behind_the_last_batch_is_cut(storage: Storage, junk: bytes) -> None:
    log = storage.create()
    append_many(log, 5)
    size = log.size_bytes()
    storage.kill()
    overwrite(log_file(storage), size, junk)
    storage.open()
    assert offsets(read_records(storage.log())) == list(range(5))
    assert log_file(storage).stat().st_size == size


def test_last_batch_with_bad_checksum_is_cut(storage: Storage) -> None:
    log = storage.create()
    append_many(log, 5)
    storage.kill()
    flip(log_file(storage), log.size_bytes() - 5)
    storage.open()
    assert offsets(read_records(storage.log())) == list(range(4))


def positions_in_a_batch() -> list[int]:
    # Base offset, length, leader epoch, magic, checksum, attributes, last offset delta, timestamps, a record.
    return [0, 4, 7, 8, 10, 11, 12, 15, 16, 17, 21, 23, 27, 35, 43, 57, 65]


@pytest.mark.parametrize("position", positions_in_a_batch())
def test_bad_batch_in_the_middle_takes_offline(storage: Storage, position: int) -> None:
    log = storage.create()
    append_many(log, 10)
    size = log.size_bytes() // 10
    storage.kill()
    before = log_file(storage).read_bytes()
    flip(log_file(storage), 4 * size + position)
    storage.open()
    log = storage.log()
    assert log.offline is not None
    assert "damaged" in str(log.offline)
    assert f"position {4 * size} (offset 4)" in str(log.offline)
    with pytest.raises(StorageError):
        log.read(0, 1000)
    with pytest.raises(StorageError):
        append(log, b"x")
    # Nothing was changed: with the byte put right, all of it is there.
    overwrite(log_file(storage), 0, before)
    storage.restart()
    assert offsets(read_records(storage.log())) == list(range(10))


def test_bad_end_batch_of_closed_segment_is_damage(storage: Storage) -> None:
    log = storage.create(segment_bytes=300)
    append_many(log, 10)
    size = log.view.segments[1].size
    storage.kill()
    flip(log_file(storage, 1), size - 1)
    storage.open()
    assert "another segment behind it" in str(storage.log().offline)


def test_other_partitions_go_on_when_one_is_damaged(storage: Storage) -> None:
    storage.create("t", 2)
    for number in (0, 1):
        append_many(storage.log("t", number), 5)
    storage.kill()
    flip(log_file(storage), 100)
    storage.open()
    assert storage.log("t", 0).offline is not None
    append(storage.log("t", 1), b"x")
    assert len(values(storage.log("t", 1))) == 6


def test_damaged_partition_stays_offline_after_clean_stop(storage: Storage) -> None:
    append_many(storage.create(), 10)
    storage.kill()
    flip(log_file(storage), 100)
    storage.open()
    storage.restart()
    assert storage.log().offline is not None


def test_a_damaged_topic_can_be_deleted(storage: Storage) -> None:
    append_many(storage.create(), 10)
    storage.kill()
    flip(log_file(storage), 100)
    storage.open()
    storage.manager.delete_topic("t")
    append(storage.create(), b"new")
    assert values(storage.log()) == [b"new"]


def test_unwritten_pages_are_torn_tail_even_before_others(storage: Storage) -> None:
    log = storage.create()
    append_many(log, 10, size=3000)
    size = log.size_bytes() // 10
    storage.kill()
    page = (4 * size) // 4096 * 4096 + 4096
    overwrite(log_file(storage), page, bytes(4096))
    storage.open()
    assert offsets(read_records(storage.log())) == list(range(4))
    append(storage.log(), b"x")
    assert storage.log().log_end_offset == 5


def test_segment_end_lost_to_power_failure_takes_rest(storage: Storage) -> None:
    log = storage.create(segment_bytes=300)
    append_many(log, 10)
    bases = log.view.bases
    storage.kill()
    cut(log_file(storage, 1), 100)
    storage.open()
    log = storage.log()
    assert log.offline is None
    assert offsets(read_records(log)) == list(range(bases[1] + 1))
    append_many(log, 10)
    storage.crash()
    assert offsets(read_records(storage.log())) == list(range(bases[1] + 11))


def test_lost_durable_records_take_the_partition_offline(storage: Storage) -> None:
    log = storage.create()
    append_many(log, 10)
    storage.stop()
    cut(log_file(storage), log.size_bytes() // 2)
    storage.open()
    assert "ends at offset 5, but was durable up to 10" in str(storage.log().offline)
    storage.stop()
    # What the message says helps.
    checkpoint = Path(storage.directory) / "recovery-point-offset-checkpoint"
    checkpoint.write_text("0\n0\n")
    storage.open()
    assert offsets(read_records(storage.log())) == list(range(5))


def test_a_partition_without_any_segment_is_offline(storage: Storage) -> None:
    append_many(storage.create(), 10)
    storage.stop()
    for path in storage.path().iterdir():
        path.unlink()
    storage.open()
    assert storage.log().offline is not None


def test_a_partition_whose_directory_is_missing_is_offline(storage: Storage) -> None:
    append_many(storage.create(), 10)
    storage.stop()
    storage.path().rename(storage.directory + "/elsewhere")
    storage.open()
    assert "is missing" in str(storage.log().offline)
    storage.stop()
    Path(storage.directory + "/elsewhere").rename(storage.path())
    storage.open()
    assert offsets(read_records(storage.log())) == list(range(10))


def test_unreadable_file_takes_its_partition_offline(storage: Storage) -> None:
    append_many(storage.create(), 10)
    storage.kill()
    storage.disk.fail["read", ".log"] = errno.EIO
    storage.open()
    assert storage.log().offline is not None


def test_left_over_files_of_deletions_and_compactions_go(storage: Storage) -> None:
    append_many(storage.create(), 10)
    storage.stop()
    for name in ("00000000000000000000.log.deleted", "00000000000000000000.log.cleaned", "00000000000000000007.index"):
        (storage.path() / name).write_bytes(b"junk")
    storage.open()
    assert offsets(read_records(storage.log())) == list(range(10))
    assert storage.files(".deleted") + storage.files(".cleaned") == []
    assert "00000000000000000007.index" not in storage.files(".index")


def test_damage_in_segment_with_deleted_records_is_harmless(storage: Storage) -> None:
    log = storage.create(segment_bytes=300)
    append_many(log, 10)
    log.durability.flush_to(10)
    log.trimming.advance_start(5)
    log.around.save_log_start(log)
    storage.kill()  # before the files were taken away
    flip(log_file(storage, 0), 20)
    storage.open()
    assert offsets(read_records(storage.log())) == list(range(5, 10))
    assert log_file(storage, 0).name == f"{3:020d}.log"


def test_an_interrupted_replacement_is_finished_in_durable_steps(storage: Storage) -> None:
    log = storage.create(segment_bytes=300)
    append_many(log, 10)
    storage.stop()
    first, second, *_ = storage.files(".log")
    content = (storage.path() / first).read_bytes() + (storage.path() / second).read_bytes()
    (storage.path() / f"{first}.swap").write_bytes(content)
    done: list[str] = []
    storage.disk.before = lambda what, path: (
        done.append(what) if what in ("rename", "sync_dir") and "/t-0" in path else None
    )
    storage.open()
    assert done[:3] == ["sync_dir", "rename", "sync_dir"]
    assert offsets(read_records(storage.log())) == list(range(10))
    assert first in storage.files(".log")
    assert second not in storage.files(".log")


def test_log_may_begin_after_all_remaining_records(storage: Storage) -> None:
    log = storage.create()
    append_many(log, 10)
    log.trimming.delete_records(10)
    append_many(log, 5)
    storage.kill()
    (Path(storage.directory) / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
    cut(log_file(storage), 0)
    storage.open()
    log = storage.log()
    assert (log.log_start_offset, log.log_end_offset) == (10, 10)
    append(log, b"x")
    storage.restart()
    assert offsets(read_records(storage.log())) == [10]


def test_recovered_records_are_indexed_again(storage: Storage) -> None:
    log = storage.create(index_interval_bytes=500)
    append_many(log, 200)
    storage.crash()
    log = storage.log()
    storage.disk.read_bytes = 0
    assert offsets(read_records(log, 400, start=190))[0] == 190
    assert storage.disk.read_bytes < 100_000
    assert len(log.view.segments[0].offsets) > 20


# -- producers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [Storage.restart, Storage.crash])
def test_the_window_of_five_batches_survives(storage: Storage, stop: object) -> None:
    log = storage.create()
    for sequence in range(8):
        append(log, b"%d" % sequence, producer=(7, 2, sequence))
    stop(storage)  # type: ignore[operator]
    log = storage.log()
    for sequence in range(3, 8):
        info = append(log, b"%d" % sequence, producer=(7, 2, sequence))
        assert (info.base_offset, info.duplicate) == (sequence, True)
    assert append(log, b"8", producer=(7, 2, 8)).base_offset == 8


def test_window_survives_when_its_batches_are_long_gone(storage: Storage) -> None:
    log = storage.create(segment_bytes=300)
    for sequence in range(5):
        append(log, b"%d" % sequence, producer=(7, 0, sequence))
    append_many(log, 20)
    log.trimming.delete_records(20)
    for stop in (storage.restart, storage.crash, storage.crash):
        stop()
        assert append(storage.log(), b"4", producer=(7, 0, 4)).duplicate


def test_batches_in_snapshot_are_not_counted_twice(storage: Storage) -> None:
    log = storage.create()
    for sequence in range(5):
        append(log, b"%d" % sequence, producer=(7, 0, sequence))
    storage.manager.checkpoint()  # recovery begins before it, at the last indexed batch
    storage.crash()
    assert append(storage.log(), b"0", producer=(7, 0, 0)).duplicate


def test_a_crash_continues_from_the_checkpoint_s_snapshot(storage: Storage) -> None:
    log = storage.create()
    append(log, b"a", producer=(7, 0, 0))
    storage.manager.checkpoint()
    append(log, b"b", producer=(7, 0, 1))
    append(log, b"b", producer=(8, 0, 0))
    storage.crash()
    for producer in ((7, 0, 0), (7, 0, 1), (8, 0, 0)):
        assert append(storage.log(), b"x", producer=producer).duplicate


@pytest.mark.parametrize("junk", [b"", b"junk", bytes(100)])
def test_damaged_snapshot_is_ignored_for_the_log(storage: Storage, junk: bytes) -> None:
    log = storage.create(segment_bytes=300)
    for sequence in range(10):
        append(log, b"%d" % sequence, producer=(7, 0, sequence))
    storage.stop()
    for name in storage.files(".snapshot"):
        (storage.path() / name).write_bytes(junk)
    storage.open()
    assert append(storage.log(), b"9", producer=(7, 0, 9)).duplicate
    assert append(storage.log(), b"10", producer=(7, 0, 10)).base_offset == 10


def test_snapshots_ahead_of_the_log_are_removed(storage: Storage) -> None:
    log = storage.create()
    append(log, b"a", producer=(7, 0, 0))
    storage.kill()
    (storage.path() / f"{99:020d}.snapshot").write_bytes(log.producers.freeze().to_snapshot())
    storage.open()
    assert storage.files(".snapshot") == []
    assert append(storage.log(), b"a", producer=(7, 0, 0)).duplicate


def test_producers_that_were_silent_are_forgotten(storage: Storage) -> None:
    log = storage.create()
    append(log, b"a", producer=(7, 0, 0))
    storage.clock.sleep_ms(86_400_000 - 1)
    append(log, b"a", producer=(8, 0, 0))
    storage.clock.sleep_ms(1)
    storage.housekeep()
    assert not append(log, b"a", producer=(7, 0, 5)).duplicate  # an unknown one may begin anywhere
    assert append(log, b"a", producer=(8, 0, 0)).duplicate


def test_producer_is_not_forgotten_for_old_records(storage: Storage) -> None:
    log = storage.create()
    append(log, b"a", timestamp=1, producer=(7, 0, 0))
    storage.crash()
    storage.housekeep()
    assert append(storage.log(), b"a", timestamp=1, producer=(7, 0, 0)).duplicate


# -- settings and files from elsewhere -------------------------------------------------------------------------------------


def test_the_log_start_offset_survives(storage: Storage) -> None:
    log = storage.create()
    append_many(log, 10)
    assert log.trimming.delete_records(4) == 4
    for stop in (storage.crash, storage.restart, storage.crash):
        stop()
        assert storage.log().log_start_offset == 4
        assert offsets(read_records(storage.log()))[0] == 4


def test_time_of_last_record_is_known_after_crash(storage: Storage) -> None:
    log = storage.create(segment_bytes=300)
    for offset in range(10):
        append(log, b"x" * 20, timestamp=NOW_MS + offset)
    storage.crash()
    assert storage.log().times.max_timestamp_offset() == (9, NOW_MS + 9)


def test_leader_epochs_of_an_imported_log_are_kept(storage: Storage) -> None:
    log = storage.create()
    append_many(log, 10)
    storage.stop()
    (storage.path() / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n3 6\n")
    storage.open()
    log = storage.log()
    assert log.leader_epoch == 3
    ends = {epoch: log.end_offset_for_epoch(epoch) for epoch in (0, 1, 3, 4)}
    assert ends == {0: (0, 6), 1: (0, 6), 3: (3, 10), 4: (-1, -1)}
    append(log, b"x")
    storage.crash()
    assert storage.log().log_end_offset == 11
    assert read_bytes(storage.log(), 10)[12:16] == b"\0\0\0\3"


def test_a_cluster_s_later_epoch_is_told_and_not_stored(storage: Storage) -> None:
    """A partition that has moved is led in a new epoch, of which there are no records."""
    log = storage.create()
    append_many(log, 10)
    storage.stop()
    (storage.path() / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n3 6\n")
    storage.open()
    log = storage.log()
    log.leader_epoch = 5  # as the log manager has it where the cluster has come so far
    ends = {epoch: log.end_offset_for_epoch(epoch) for epoch in (0, 3, 4, 5, 6)}
    assert {0: (0, 6), 3: (3, 10), 4: (3, 10), 5: (5, 10), 6: (-1, -1)} == ends
    append(log, b"x")
    assert b"\0\0\0\3" == read_bytes(log, 10)[12:16]
    storage.crash()
    assert 11 == storage.log().log_end_offset


@pytest.mark.parametrize("lost", [None, ".index", ".timeindex"])
def test_recovery_needs_no_room(storage: Storage, lost: str | None) -> None:
    """A broker that was killed on a full disk starts again: the indexes that have no place stay in memory."""
    log = storage.create(segment_bytes=2000, index_interval_bytes=100)
    append_many(log, 100)
    expected = values(log)
    if lost is not None:
        storage.manager.checkpoint()
    storage.kill()
    if lost is not None:
        for path in storage.path().glob(f"*{lost}"):
            path.unlink()
    storage.disk.room = 0
    storage.open()
    log = storage.log()
    assert log.offline is None
    assert values(log) == expected
    for offset in (0, 33, 77):
        assert read_records(log, start=offset)[0].offset == offset
    with pytest.raises(StorageError):
        append(log, b"x" * 10)
    storage.disk.room = None
    append(log, b"x")
    for _ in range(2):
        assert values(storage.crash().log()) == [*expected, b"x"]
