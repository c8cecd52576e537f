"""Closed segments go to the object store and come back, whatever happens meanwhile."""

import itertools

import pytest

from broker.config.setting import InvalidSetting
from broker.errors import StorageError, UnknownOutcome
from broker.metadata.catalogue import RemoteFile
from broker.storage.log.log import Log
from broker.storage.log.reading import Elsewhere
from broker.storage.tier import keys
from broker.storage.tier.orphans import DAY_MS, Used, find_orphans
from tests.storage.helpers import NOW_MS, append, append_many, offsets, read_records, values
from tests.storage.log.test_transactions import end, transact
from tests.storage.tier.helpers import TieredStorage, steps


def filled(storage: TieredStorage, count: int = 60, **configs: object) -> Log:
    log = storage.create(**configs)
    append_many(log, count)
    return log


def everything(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in read_records(log)]


def test_closed_segments_are_uploaded_and_read_from_there(storage: TieredStorage) -> None:
    log = filled(storage)
    before = everything(log)
    storage.upload()
    assert len(log.view.segments) - 1 == len(storage.store.names()) > 3
    assert storage.local(".log") == [f"{log.view.bases[-1]:020d}.log"]
    assert before == everything(log)
    assert storage.store.gets


def rows_of_segments(log: Log) -> list[str]:
    return [f"t-0/{base:020d}.log" for base in log.view.bases[:-1]]


def test_names_of_objects_say_what_is_in_them(storage: TieredStorage) -> None:
    log = filled(storage)
    storage.upload()
    found = [keys.parse(key) for key in storage.store.names()]
    bases = log.view.bases
    assert [(key.base, key.end) for key in found if key] == list(itertools.pairwise(bases))
    assert {(key.topic_id, key.partition, key.largest_timestamp) for key in found if key} == {(log.topic_id, 0, NOW_MS)}


def test_nothing_is_uploaded_that_is_not_durable_or_may_be_aborted(storage: TieredStorage) -> None:
    log = filled(storage, 20)
    storage.go_round()
    assert [] == storage.store.names()
    open_at = log.log_end_offset
    transact(log, 7, b"open")
    append_many(log, 40)
    storage.upload()
    uploaded = [keys.parse(key) for key in storage.store.names()]
    assert uploaded
    assert all(key is not None and key.end <= open_at for key in uploaded)


def test_start_asks_store_for_nothing(storage: TieredStorage) -> None:
    log = filled(storage, 400)
    before = everything(log)
    storage.upload()
    assert len(storage.store.names()) > 30
    for again in (storage.restart, storage.crash):
        storage.store.gets.clear()
        again()
        assert [] == storage.store.gets
        assert (0, 400) == (storage.log().log_start_offset, storage.log().log_end_offset)
    assert before == everything(storage.log())


def test_start_without_checkpoint_trusts_what_was_uploaded(storage: TieredStorage) -> None:
    before = everything(filled(storage))
    storage.upload()
    storage.kill()
    (storage.path().parent / "recovery-point-offset-checkpoint").unlink()
    for snapshot in storage.path().glob("*.snapshot"):
        snapshot.unlink()
    storage.open()
    assert before == everything(storage.log())


def test_missing_segment_in_store_is_noticed_at_start(storage: TieredStorage) -> None:
    log = filled(storage)
    storage.upload()
    second = f"t-0/{log.view.bases[1]:020d}"
    gone = [file.path for file in storage.tier.disk.remote_files() if file.path.startswith(second)]
    storage.catalogue.alter_remote_files((), gone, NOW_MS)
    storage.crash()
    assert storage.log().offline is not None
    assert f"has no records from offset {log.view.bases[1]}" in str(storage.log().offline)


def test_reader_that_must_not_wait_is_told(storage: TieredStorage) -> None:
    log = filled(storage)
    storage.upload()
    with pytest.raises(Elsewhere):
        log.read(0, 1000, may_wait=False)
    assert log.read(log.view.bases[-1], 1000, may_wait=False).size > 0
    assert not log.read(0, 1000).resident
    assert {True} == {region.file.is_remote for region in log.read(0, 1000).regions}


def test_times_are_looked_up_in_store(storage: TieredStorage) -> None:
    log = storage.create()
    for number in range(60):
        append(log, b"%d" % number * 20, timestamp=NOW_MS + number)
    storage.upload()
    storage.restart()
    storage.store.gets.clear()
    assert (40, NOW_MS + 40) == storage.log().times.offset_for_timestamp(NOW_MS + 40)
    assert 1 == len({key for key, _, _ in storage.store.gets}), "only the segment with that time is read"
    assert (59, NOW_MS + 59) == storage.log().times.max_timestamp_offset()


def test_aborted_transactions_are_known_from_store(storage: TieredStorage) -> None:
    log = storage.create()
    transact(log, 7, b"a" * 100)
    end(log, 7, commit=False)
    append_many(log, 60)
    storage.upload()
    storage.store.gets.clear()
    storage.restart()
    assert [] == storage.store.gets
    log = storage.log()
    append_many(log, 1)
    storage.manager.checkpoint()
    assert [] == storage.store.gets
    read = log.read(0, 500)
    assert [(7, 0)] == [(each.producer_id, each.first_offset) for each in log.transactions.aborted(0, read, 60)]


# -- local copies ---------------------------------------------------------------------------------------------------------


def test_local_copies_stay_as_long_as_setting_says(storage: TieredStorage) -> None:
    log = filled(storage, local_retention_bytes=-2)
    storage.upload()
    assert len(log.view.segments) == len(storage.local(".log"))
    storage.manager.alter_topic_configs("t", {"local.retention.bytes": "2500"})
    storage.go_round()
    kept = [segment.size for segment in log.view.segments[-len(storage.local(".log")) :]]
    assert sum(kept) - kept[0] < 2500 <= sum(kept)
    storage.manager.alter_topic_configs("t", {"local.retention.bytes": "-2", "local.retention.ms": "1000"})
    storage.go_round()
    assert len(kept) == len(storage.local(".log"))
    storage.clock.sleep_ms(1001)
    storage.go_round()
    assert 1 == len(storage.local(".log")) == len(storage.local(".index"))


def test_copy_that_differs_from_store_is_not_evicted(storage: TieredStorage) -> None:
    log = filled(storage, local_retention_bytes=-2)
    storage.upload()
    index = storage.path() / f"{log.view.bases[0]:020d}.index"
    index.write_bytes(index.read_bytes() + bytes(8))
    storage.manager.alter_topic_configs("t", {"local.retention.bytes": "0"})
    storage.go_round()
    assert index.exists()


def test_reader_goes_on_with_evicted_copy(storage: TieredStorage) -> None:
    log = filled(storage, local_retention_bytes=-2)
    region = log.read(0, 100).regions[0]
    storage.manager.alter_topic_configs("t", {"local.retention.bytes": "0"})
    storage.upload()
    assert region.size == len(region.read())
    assert [] == storage.store.gets


# -- failures -------------------------------------------------------------------------------------------------------------


def test_store_that_is_down_is_asked_again(storage: TieredStorage) -> None:
    log = filled(storage)
    storage.store.down = True
    storage.upload()
    assert (0, {}) == (storage.uploads.counts.copied, storage.rows())
    assert storage.uploads.counts.copy_errors
    storage.store.down = False
    storage.go_round()
    assert len(log.view.segments) - 1 == storage.uploads.counts.copied


def test_reading_while_store_is_down_fails_and_goes_on_later(storage: TieredStorage) -> None:
    log = filled(storage)
    before = everything(log)
    storage.upload()
    storage.store.down = True
    with pytest.raises(StorageError, match=r"cannot be read now.*it is down"):
        values(log)
    assert log.offline is None
    storage.store.down = False
    assert before == everything(log)


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_lost_object_is_named_and_others_are_read(storage: TieredStorage, damage: str) -> None:
    log = filled(storage)
    other = storage.create("other")
    append_many(other, 60)
    storage.upload()
    key = storage.rows()[f"t-0/{0:020d}.log"]
    if damage == "cut":
        storage.store.cut(key, 100)
    else:
        storage.store.delete([key])
    with pytest.raises(StorageError, match=key):
        values(log)
    assert 60 == len(values(other))
    after = log.view.bases[1]
    assert list(range(after, 60)) == offsets(read_records(log, start=after))


def test_kill_between_object_and_row_leaves_orphan(storage: TieredStorage) -> None:
    log = filled(storage)
    before = everything(log)

    def killed(operation: str, key: str) -> None:
        raise StorageError("kill -9")

    storage.store.after = killed
    storage.upload()
    storage.store.after = lambda operation, key: None
    lost = storage.store.names()
    assert (1, {}) == (len(lost), storage.rows())
    storage.crash()
    storage.upload()
    assert before == everything(storage.log())
    assert storage.store.names() == sorted([*lost, *storage.objects_of_rows()])
    used = Used(set(storage.objects_of_rows()), set())
    now_ms = storage.clock.time_ms()
    assert {} == find_orphans(storage.store, lambda: used, now_ms).found, "the upload may not have ended yet"
    assert lost == list(find_orphans(storage.store, lambda: used, now_ms + DAY_MS + 1).found)


def test_unknown_outcome_of_rows_is_looked_up(storage: TieredStorage) -> None:
    log = filled(storage)
    before = everything(log)
    alter = storage.catalogue.alter_remote_files

    def unknown(put: list[RemoteFile], removed: list[str], now_ms: int) -> None:
        alter(put, removed, now_ms)
        raise UnknownOutcome("the connection was lost")

    storage.catalogue.alter_remote_files = unknown  # type: ignore[assignment, method-assign]
    storage.upload()
    storage.catalogue.alter_remote_files = alter  # type: ignore[method-assign]
    assert 1 == len(set(storage.rows().values()))
    storage.go_round()
    assert before == everything(log)
    assert storage.store.names() == storage.objects_of_rows()


def test_damaged_segment_is_not_uploaded(storage: TieredStorage) -> None:
    filled(storage)
    file = storage.path() / f"{0:020d}.log"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    storage.upload()
    assert {} == storage.rows()


def test_index_that_is_damaged_in_store_is_built_again_here(storage: TieredStorage) -> None:
    log = filled(storage, index_interval_bytes=50)
    before = everything(log)
    storage.upload()
    index = next(file for file in storage.tier.disk.remote_files() if file.path == f"t-0/{0:020d}.index")
    assert index.size > 16
    data = bytearray(storage.store.get(index.object, 0, storage.store.size(index.object)))
    data[index.position : index.position + index.size] = b"\x7f" * index.size
    storage.store.put(index.object, [data], len(data))
    assert before[5:] == [(each.offset, each.key, each.value) for each in read_records(log, start=5, max_bytes=300)]
    assert log.offline is None


# -- what else happens to segments ----------------------------------------------------------------------------------------


def test_retention_removes_rows_and_objects_after_grace_time(storage: TieredStorage) -> None:
    log = filled(storage, retention_bytes=2000)
    storage.upload()
    kept = storage.store.names()
    storage.housekeep()
    storage.housekeep()
    assert log.log_start_offset > 0
    assert rows_of_segments(log) == sorted(path for path in storage.rows() if path.endswith(".log"))
    storage.go_round()
    assert kept == storage.store.names(), "somebody may still read them"
    storage.clock.sleep_ms(60_001)
    storage.go_round()
    assert storage.store.names() == storage.objects_of_rows()
    assert [] == storage.catalogue.condemned_objects()
    assert offsets(read_records(log)) == list(range(log.log_start_offset, 60))


def test_deleted_records_and_topics_leave_store(storage: TieredStorage) -> None:
    log = filled(storage)
    storage.upload()
    log.trimming.delete_records(30)
    storage.housekeep()
    assert all(keys.parse(key).end > 30 for key in storage.objects_of_rows())  # type: ignore[union-attr]
    storage.manager.delete_topic("t")
    storage.housekeep()
    assert {} == storage.rows()
    storage.clock.sleep_ms(60_001)
    storage.go_round()
    assert [] == storage.store.names()
    assert [".remote-cache"] == [path.name for path in storage.path().parent.iterdir() if path.is_dir()]


def test_topic_that_is_made_again_has_nothing_of_old_one(storage: TieredStorage) -> None:
    filled(storage)
    storage.upload()
    storage.manager.delete_topic("t")
    log = storage.create()
    append(log, b"new")
    assert [b"new"] == values(log)
    storage.crash()
    storage.housekeep()
    assert [b"new"] == values(storage.log())
    assert {} == storage.rows()


def test_kill_while_topic_is_deleted(storage: TieredStorage) -> None:
    """The names in the catalogue have changed, the directory's has not."""
    filled(storage)
    storage.upload()
    storage.disk.fail["rename", "t-0"] = 5
    storage.manager.delete_topic("t")
    storage.disk.fail.clear()
    storage.crash()
    storage.housekeep()
    storage.housekeep()
    assert {} == storage.rows()
    append(storage.create(), b"new")
    assert [b"new"] == values(storage.log())


def test_segment_that_goes_while_it_is_uploaded_gets_no_rows(storage: TieredStorage) -> None:
    log = filled(storage)
    storage.manager.checkpoint()

    def trim(operation: str, key: str) -> None:
        storage.store.after = lambda operation, key: None
        log.trimming.delete_records(30)

    storage.store.after = trim
    storage.go_round()
    storage.housekeep()
    assert offsets(read_records(log)) == list(range(30, 60))
    assert rows_of_segments(log) == sorted(path for path in storage.rows() if path.endswith(".log"))
    assert storage.store.names() == storage.objects_of_rows()
    assert storage.objects_of_rows()


def size(storage: TieredStorage, name: str) -> int:
    return (storage.path() / name).stat().st_size


def put(log: Log, number: int) -> None:
    append(log, b"v%d" % number + b"." * 60, keys=[b"k%d" % (number % 5)])


def latest(log: Log) -> dict[bytes | None, bytes | None]:
    return {key: value for _, key, value in everything(log)}


def test_compaction_replaces_segments_in_store(storage: TieredStorage) -> None:
    log = storage.create(cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    for number in range(60):
        put(log, number)
    before = latest(log)
    storage.upload()
    uploaded = storage.store.names()
    for _ in range(3):
        storage.housekeep()
    assert len(everything(log)) < 30
    assert before == latest(log)
    storage.upload()
    assert before == latest(log)
    storage.clock.sleep_ms(60_001)
    storage.go_round()
    assert not set(uploaded) & set(storage.store.names())
    assert storage.store.names() == storage.objects_of_rows()
    assert [f"{log.view.bases[-1]:020d}.log"] == [name for name in storage.local(".log") if size(storage, name)]
    for again in (storage.restart, storage.crash):
        again()
        assert before == latest(storage.log())


def test_compaction_while_segment_is_uploaded(storage: TieredStorage) -> None:
    log = storage.create(cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    for number in range(60):
        put(log, number)
    before = latest(log)
    storage.manager.checkpoint()

    def compact(operation: str, key: str) -> None:
        storage.store.after = lambda operation, key: None
        for _ in range(3):
            storage.housekeep()

    storage.store.after = compact
    storage.go_round()
    storage.upload()
    assert before == latest(log)
    storage.clock.sleep_ms(60_001)
    storage.go_round()
    assert storage.store.names() == storage.objects_of_rows()
    storage.crash()
    assert before == latest(storage.log())


@pytest.mark.parametrize("killed_at", range(12))
def test_kill_while_compacted_segment_replaces_one_in_store(storage: TieredStorage, killed_at: int) -> None:
    log = storage.create(cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    for number in range(60):
        put(log, number)
    before = latest(log)
    storage.upload()
    operations = 0

    def die(what: str, path: str) -> None:
        nonlocal operations
        if what in ("rename", "sync_dir") and "/t-0" in path:
            operations += 1
            if operations > killed_at:
                raise OSError(5, "kill -9", path)

    storage.disk.before = die
    storage.housekeep()
    storage.housekeep()
    storage.disk.before = lambda what, path: None
    storage.crash()
    assert before == latest(storage.log())
    for _ in range(3):
        storage.housekeep()
    storage.upload()
    storage.crash()
    assert before == latest(storage.log())


def test_tiering_is_switched_off(storage: TieredStorage) -> None:
    log = filled(storage, local_retention_bytes=2000)
    storage.upload()
    local = storage.tier.earliest_local(log)
    storage.manager.alter_topic_configs(
        "t", {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true", "local.retention.bytes": "-2"}
    )
    storage.go_round()
    storage.housekeep()
    assert {} == storage.rows()
    assert local == log.log_start_offset > 0
    assert offsets(read_records(log)) == list(range(local, 60))
    storage.crash()
    assert offsets(read_records(storage.log())) == list(range(local, 60))


def test_tiering_is_not_switched_off_by_chance(storage: TieredStorage) -> None:
    filled(storage)
    with pytest.raises(InvalidSetting, match="disable remote storage without deleting remote data"):
        storage.manager.alter_topic_configs("t", {"remote.storage.enable": "false"})
    assert storage.log().config.remote_storage_enable


def test_no_copies_are_made_where_setting_forbids_it(storage: TieredStorage) -> None:
    log = filled(storage)
    storage.upload()
    before = storage.store.names()
    storage.manager.alter_topic_configs("t", {"remote.log.copy.disable": "true"})
    append_many(log, 60)
    storage.upload()
    assert before == storage.store.names()
    assert list(range(120)) == offsets(read_records(log))


def test_whoever_wakes_thread_interrupts_upload(storage: TieredStorage) -> None:
    filled(storage)
    storage.manager.checkpoint()
    storage.store.before = lambda operation, key: storage.uploads.wakeup()
    storage.go_round()
    assert [] == storage.store.names()
    storage.store.before = lambda operation, key: None
    storage.go_round()
    assert storage.store.names()


def test_pieces_of_work_are_short(storage: TieredStorage) -> None:
    log = filled(storage)
    storage.manager.checkpoint()
    for _ in steps(storage.uploads):
        assert len(storage.store.puts) <= len(log.view.segments)
    assert len(list(storage.store.puts)) == len(log.view.segments) - 1
