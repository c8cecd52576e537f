"""What the broker pins, for how long, and what it leaves out."""

import json
from pathlib import Path

import pytest

from broker.errors import StorageError
from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime.timers import Timer
from broker.storage.backup.backups import LEASE_S, BackupRefused, Backups
from broker.storage.backup.layout import PLAN, plan_from_json
from broker.storage.backup.staging import Staging, cut
from broker.storage.checkpoints import CLEANER_OFFSETS, LOG_STARTS, RECOVERY_POINTS, read_offsets
from broker.storage.recovery import startup
from broker.storage.tier.detach import detach
from tests.storage.helpers import Storage, append, append_many, values
from tests.storage.tier.helpers import TieredStorage


class World:
    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.timer = Timer(storage.clock)
        self.backups = Backups(storage.manager, storage.clock, self.timer, storage.entropy, "cluster")

    def pass_time(self, seconds: float) -> None:
        self.storage.clock.sleep_ms(int(seconds * 1000))
        while self.timer.step(0):
            pass
        while self.storage.manager.housekeeper.step(0):
            pass

    @property
    def directory(self) -> Path:
        return Path(self.storage.directory) / ".backup"


@pytest.fixture
def world(storage: Storage) -> World:
    startup.write_properties(storage.disk, storage.manager.config)
    return World(storage)


def test_backup_files_survive_changes_of_the_log(world: World, tmp_path: Path) -> None:
    storage = world.storage
    log = storage.create(segment_bytes=500)
    append_many(log, 50, 100)
    before = values(log)
    world.backups.begin()
    append_many(log, 50, 100)
    log.trimming.delete_records(70)
    storage.housekeep()
    storage.manager.delete_topic(log.topic)
    plan = plan_from_json(json.loads((world.directory / PLAN).read_text()))
    assert [(50, 0, False)] == [(each.end_offset, each.start_offset, each.offline) for each in plan.partitions]
    copy = tmp_path / "copy"
    for file in plan.files:
        (copy / file.path).parent.mkdir(parents=True, exist_ok=True)
        (copy / file.path).write_bytes((world.directory / file.path).read_bytes()[: file.size])
    restored = Storage(copy)
    assert before == values(restored.log())
    assert 50 == restored.log().log_end_offset
    restored.stop()


def test_recovery_from_backup_reports_missing_pinned_record(world: World) -> None:
    storage = world.storage
    log = storage.create(segment_bytes=500)
    append_many(log, 50, 100)
    log.trimming.delete_records(20)
    world.backups.begin()
    key = (log.topic, 0)
    assert {key: 50} == read_offsets(storage.disk, f"{world.directory}/{RECOVERY_POINTS}")
    assert {key: 20} == read_offsets(storage.disk, f"{world.directory}/{LOG_STARTS}")
    assert {} == read_offsets(storage.disk, f"{world.directory}/{CLEANER_OFFSETS}")


def test_without_a_sign_of_life_it_is_released(world: World) -> None:
    world.storage.create()
    backup_id, directory = world.backups.begin()
    world.pass_time(LEASE_S - 1)
    world.backups.renew(backup_id)
    world.pass_time(LEASE_S - 1)
    assert Path(directory).exists()
    world.pass_time(2)
    assert not Path(directory).exists()
    with pytest.raises(BackupRefused, match="not pinned any more"):
        world.backups.renew(backup_id)
    world.backups.end(world.backups.begin()[0])


def test_moments_are_apart_because_appends_wait_during_one(world: World) -> None:
    world.backups.end(world.backups.begin()[0])
    with pytest.raises(BackupRefused, match="try again in a second"):
        world.backups.begin()
    world.pass_time(1)
    world.backups.end(world.backups.begin()[0])


def test_leftovers_of_killed_broker_removed_at_next_start(world: World) -> None:
    world.directory.mkdir()
    (world.directory / "t-0").mkdir()
    (world.directory / "t-0" / "file").touch()
    world.backups.remove_left_over()
    world.pass_time(0)
    assert not world.directory.exists()
    world.backups.end(world.backups.begin()[0])


def test_a_failure_releases_everything(world: World) -> None:
    world.storage.create()
    world.storage.disk.check = lambda what, path: (
        (_ for _ in ()).throw(OSError(5, "broken", path)) if ".backup" in path else None
    )  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="could not be pinned"):
        world.backups.begin()
    del world.storage.disk.check
    assert not world.directory.exists()
    world.backups.end(world.backups.begin()[0])


def test_backup_omits_topic_deleted_after_the_moment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = world.storage
    append(storage.create("stays"), b"1")
    append(storage.create("goes", 2), b"1")
    add = Staging.add

    def add_late(self: Staging, each: object) -> None:
        if storage.manager.topic("goes"):
            storage.manager.delete_topic("goes")
            append(storage.create("goes", 2), b"another")  # of the same name
        add(self, each)  # type: ignore[arg-type]

    monkeypatch.setattr(Staging, "add", add_late)
    world.backups.begin()
    plan = plan_from_json(json.loads((world.directory / PLAN).read_text()))
    assert {"stays"} == {each.topic for each in plan.partitions}
    assert not any(file.path.startswith("goes") for file in plan.files)
    catalogue = SqliteCatalogue(f"{world.directory}/catalogue.sqlite")
    assert ["stays"] == [row.name for row in catalogue.topics()]
    catalogue.close()


def test_offline_partition_is_copied_as_it_is(world: World) -> None:
    log = world.storage.create()
    append(log, b"1")
    log.state.go_offline("for this test")
    world.backups.begin()
    plan = plan_from_json(json.loads((world.directory / PLAN).read_text()))
    assert [True] == [each.offline for each in plan.partitions]
    assert f"{log.topic}-0/{0:020d}.log" in {file.path for file in plan.files}


def test_no_compaction_begins_while_files_are_pinned(storage: Storage) -> None:
    log = storage.create(cleanup_policy="compact", segment_bytes=300, min_cleanable_dirty_ratio=0)
    for _ in range(20):
        append(log, b"v" * 100, keys=[b"k"])
    sizes = [segment.size for segment in log.view.segments]
    with storage.manager.housekeeper.without_new_cleanings():
        storage.housekeep()
        assert sizes == [segment.size for segment in log.view.segments]
        assert [20] == [each.end_offset for each in cut([log], storage.clock)]
    storage.housekeep()
    assert sizes != [segment.size for segment in log.view.segments]


def test_backup_has_what_is_in_object_store(tmp_path: Path) -> None:
    """And the copy that is made of it leaves the store alone."""
    (tmp_path / "data").mkdir()
    storage = TieredStorage(tmp_path / "data")
    try:
        startup.write_properties(storage.disk, storage.manager.config)
        log = storage.create()
        append_many(log, 60)
        storage.upload()
        before, objects = values(log), storage.store.names()
        backups = Backups(storage.manager, storage.clock, Timer(storage.clock), storage.entropy, "cluster")
        backups.begin()
        directory = Path(storage.directory) / ".backup"
        plan = plan_from_json(json.loads((directory / PLAN).read_text()))
        for file in plan.files:
            (tmp_path / "copy" / file.path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "copy" / file.path).write_bytes((directory / file.path).read_bytes()[: file.size])
    finally:
        storage.kill()
    catalogue = SqliteCatalogue(f"{tmp_path}/copy/catalogue.sqlite")
    assert objects == sorted({file.object for file in catalogue.load_remote_files()})
    detach(catalogue)
    assert ([], []) == (list(catalogue.load_remote_files()), catalogue.condemned_objects())
    catalogue.close()
    restored = Storage(tmp_path / "copy")
    assert before == values(restored.log())
    restored.stop()
