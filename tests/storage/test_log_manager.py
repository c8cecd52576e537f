"""Topics: made, changed and deleted, whole or not at all."""

import errno
import os
import threading
from pathlib import Path

import pytest

from broker.config.setting import InvalidSetting
from broker.errors import Refusal, StorageError
from broker.metadata.catalogue import TopicRow
from broker.storage.refusals import InvalidPartitionCount, InvalidTopicName, TopicExists, UnknownTopic
from tests.storage.helpers import Storage, append, append_many, offsets, read_records, values


def refused(call: object, *arguments: object, **options: object) -> type[Refusal]:
    with pytest.raises(Refusal) as error:
        call(*arguments, **options)  # type: ignore[operator]
    return type(error.value)


def test_a_topic_is_there_with_all_its_partitions(storage: Storage) -> None:
    manager = storage.manager
    info = manager.create_topic("orders", 3, {"retention.ms": "5"})
    assert (info.name, info.partitions, dict(info.configs)) == ("orders", 3, {"retention.ms": "5"})
    assert manager.topic("orders") == info
    assert manager.topics() == [info]
    for number in range(3):
        log = manager.get("orders", number)
        assert log is not None
        assert log is manager.partitions["orders", number]
        assert (log.topic, log.partition, log.topic_id, log.config.retention_ms) == ("orders", number, info.topic_id, 5)
    assert manager.get("orders", 3) is None
    assert manager.get("nothing", 0) is None
    assert manager.topic("nothing") is None


@pytest.mark.parametrize("stop", [Storage.restart, Storage.crash])
def test_topics_survive(storage: Storage, stop: object) -> None:
    info = storage.manager.create_topic("orders", 2, {"retention.ms": "5"})
    append(storage.log("orders", 1), b"x")
    stop(storage)  # type: ignore[operator]
    again = storage.manager.topic("orders")
    assert again == info
    assert storage.manager.topic_by_id(info.topic_id) is again
    assert storage.manager.partitions_by_id == {
        (info.topic_id.bytes, number): storage.log("orders", number) for number in range(2)
    }
    assert storage.log("orders", 0).config.retention_ms == 5
    assert values(storage.log("orders", 1)) == [b"x"]


def test_topic_without_number_has_default_of_broker(tmp_path: Path) -> None:
    storage = Storage(tmp_path, num_partitions=4)
    assert storage.manager.create_topic("t").partitions == 4
    storage.kill()


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "a\0", "ä", "x" * 250, "a\n"])
def test_names_that_kafka_refuses(storage: Storage, name: str) -> None:
    assert refused(storage.manager.create_topic, name, 1) == InvalidTopicName


def test_the_longest_name_works(storage: Storage) -> None:
    name = "x" * 249
    storage.manager.create_topic(name, 1)
    append(storage.log(name), b"x")
    storage.crash()
    assert values(storage.log(name)) == [b"x"]
    storage.manager.delete_topic(name)
    storage.manager.create_topic(name, 1)


def test_existing_topic_cannot_be_made_again(storage: Storage) -> None:
    storage.create()
    assert refused(storage.manager.create_topic, "t", 1) == TopicExists


def test_topics_that_differ_in_dots_and_underscores_collide(storage: Storage) -> None:
    storage.create("a.b")
    assert refused(storage.manager.create_topic, "a_b", 1) == InvalidTopicName
    storage.manager.delete_topic("a.b")
    storage.create("a_b")


@pytest.mark.parametrize("count", [0, -1, 100_001])
def test_numbers_of_partitions_that_cannot_be(storage: Storage, count: int) -> None:
    assert refused(storage.manager.create_topic, "t", count) == InvalidPartitionCount


def test_settings_are_checked_before_anything_is_made(storage: Storage) -> None:
    assert refused(storage.manager.create_topic, "t", 1, {"no.such": "1"}) == InvalidSetting
    assert refused(storage.manager.create_topic, "t", 1, {"retention.ms": "x"}) == InvalidSetting
    assert not storage.path().exists()


def test_a_dry_run_makes_nothing(storage: Storage) -> None:
    info = storage.manager.create_topic("t", 2, {}, validate_only=True)
    assert info.partitions == 2
    assert storage.manager.topic("t") is None
    assert not storage.path().exists()


def test_the_generation_rises_with_each_change(storage: Storage) -> None:
    manager = storage.manager
    seen = [manager.generation]
    for change in (
        lambda: manager.create_topic("t", 1),
        lambda: manager.add_partitions("t", 2),
        lambda: manager.alter_topic_configs("t", {"retention.ms": "1"}),
        lambda: manager.delete_topic("t"),
    ):
        change()
        seen.append(manager.generation)
    assert seen == sorted(set(seen))


# -- deletion --------------------------------------------------------------------------------------------------------------


def test_deleted_topic_is_gone_and_name_is_free(storage: Storage) -> None:
    manager = storage.manager
    deleted: list[str] = []
    manager.on_topic_deleted.append(deleted.append)
    log = storage.create()
    first_id = log.topic_id
    append(log, b"old")
    manager.delete_topic("t")
    assert deleted == ["t"]
    assert (manager.topic("t"), manager.get("t", 0)) == (None, None)
    for use in (lambda: log.read(0, 100), lambda: append(log, b"x")):
        assert refused(use) == UnknownTopic
    log = storage.create()
    assert log.topic_id != first_id
    append(log, b"new")
    assert values(log) == [b"new"]
    storage.crash()
    assert values(storage.log()) == [b"new"]


def test_new_topic_inherits_nothing_from_deleted_topic(storage: Storage) -> None:
    log = storage.create(cleanup_policy="compact,delete", segment_bytes=300)
    for _ in range(20):
        append(log, b"v", keys=[b"k"])
    log.trimming.delete_records(15)
    storage.housekeep()
    storage.manager.delete_topic("t")
    storage.create()
    storage.crash()
    log = storage.log()
    assert (log.offline, log.log_start_offset, log.log_end_offset, log.recovery_point) == (None, 0, 0, 0)
    append_many(log, 3)
    storage.crash()
    assert offsets(read_records(storage.log())) == [0, 1, 2]


def test_files_of_deleted_topic_are_removed_later(storage: Storage) -> None:
    storage.create(file_delete_delay_ms=1000)
    storage.manager.delete_topic("t")
    waiting = [path.name for path in Path(storage.directory).iterdir() if path.name.endswith("-delete")]
    assert len(waiting) == 1
    assert waiting[0].startswith("t-0.")
    storage.clock.sleep_ms(1000)
    storage.manager.housekeeper.step(0)
    assert not list(Path(storage.directory).glob("*-delete"))


def test_unused_descriptors_of_deleted_topic_close_at_once(storage: Storage) -> None:
    def open_logs() -> list[str]:
        paths = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
        return [path for path in paths if f"{storage.directory}/t-" in path]

    storage.create(partitions=3)
    logs = [storage.log(partition=number) for number in range(3)]
    for log in logs:
        append_many(log, 3)
    (region,) = logs[0].read(0, 1000).regions
    content = region.read()
    assert len(open_logs()) >= 3
    storage.manager.delete_topic("t")
    # One is being sent. It is read as before, and closed when it was sent.
    assert len(open_logs()) == 1
    append_many(storage.create(), 1)  # another topic of that name
    assert region.read() == content
    del region
    assert [path for path in open_logs() if "-delete" in path] == []
    # A thread that has begun before may open the file again: that of the topic which was deleted.
    (old,) = logs[0].view.segments
    assert old.log.get().pread(len(content), 0) == content


def test_pending_removal_at_stop_happens_at_next_start(storage: Storage) -> None:
    storage.create()
    storage.manager.delete_topic("t")
    storage.restart()
    storage.manager.housekeeper.step(0)
    assert not list(Path(storage.directory).glob("*-delete"))


def test_an_unknown_topic_cannot_be_deleted_or_changed(storage: Storage) -> None:
    manager = storage.manager
    unknown = UnknownTopic
    assert refused(manager.delete_topic, "t") == unknown
    assert refused(manager.add_partitions, "t", 5) == unknown
    assert refused(manager.alter_topic_configs, "t", {}) == unknown
    assert refused(manager.topic_config, "t") == unknown


@pytest.mark.parametrize("operation", ["rename", "sync_dir"])
def test_failed_deletion_is_finished_by_next_start(storage: Storage, operation: str) -> None:
    append(storage.create(), b"x")
    storage.disk.fail[operation, "data"] = errno.EIO
    storage.manager.delete_topic("t")
    assert storage.manager.topic("t") is None
    storage.disk.fail.clear()
    storage.crash()
    assert storage.manager.topic("t") is None
    assert not storage.path().exists()
    assert storage.catalogue.deleted_topic_ids() == set()
    storage.create()


# -- more partitions -------------------------------------------------------------------------------------------------------


def test_partitions_are_added_behind_those_that_are_there(storage: Storage) -> None:
    append(storage.create(), b"x")
    info = storage.manager.add_partitions("t", 3)
    assert (info.partitions, info.version) == (3, 1)
    append(storage.log("t", 2), b"y")
    storage.crash()
    assert [values(storage.log("t", number)) for number in range(3)] == [[b"x"], [], [b"y"]]


@pytest.mark.parametrize("total", [2, 1, 0, -1, 100_001])
def test_partitions_do_not_become_fewer(storage: Storage, total: int) -> None:
    storage.manager.create_topic("t", 2)
    assert refused(storage.manager.add_partitions, "t", total) == InvalidPartitionCount


# -- settings --------------------------------------------------------------------------------------------------------------


def test_settings_are_set_and_taken_back(storage: Storage) -> None:
    log = storage.create(retention_ms=5)
    storage.manager.alter_topic_configs("t", {"retention.bytes": "7", "segment.bytes": "1000"})
    assert (log.config.retention_ms, log.config.retention_bytes, log.config.segment_bytes) == (5, 7, 1000)
    storage.manager.alter_topic_configs("t", {"retention.ms": None, "segment.bytes": None})
    storage.crash()
    info = storage.manager.topic("t")
    assert info is not None
    assert dict(info.configs) == {"retention.bytes": "7"}
    assert storage.manager.topic_config("t") == storage.log().config
    assert storage.log().config.retention_bytes == 7


@pytest.mark.parametrize(
    "changes", [{"no.such": "1"}, {"no.such": None}, {"retention.ms": "x"}, {"cleanup.policy": "shred"}]
)
def test_settings_that_are_wrong_change_nothing(storage: Storage, changes: dict[str, str | None]) -> None:
    log = storage.create(retention_ms=5)
    assert refused(storage.manager.alter_topic_configs, "t", {"retention.bytes": "7", **changes}) == InvalidSetting
    assert (log.config.retention_ms, log.config.retention_bytes) == (5, -1)


def test_a_dry_run_changes_no_setting(storage: Storage) -> None:
    log = storage.create()
    assert dict(storage.manager.alter_topic_configs("t", {"retention.ms": "1"}, validate_only=True).configs) == {
        "retention.ms": "1"
    }
    assert log.config.retention_ms != 1


def test_setting_of_later_version_does_not_prevent_start(storage: Storage) -> None:
    append(storage.create(), b"x")
    row = storage.catalogue.topics()[0]
    storage.catalogue.put_topic(TopicRow(row.name, row.topic_id, 1, {"a.new.one": "1"}))
    storage.crash()
    assert values(storage.log()) == [b"x"]
    storage.manager.alter_topic_configs("t", {"a.new.one": None})


# -- failures --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "where"), [("makedirs", "t-1"), ("open", "t-1"), ("sync_dir", "t-1"), ("sync_dir", "data")]
)
def test_topic_that_cannot_be_made_whole_is_refused(storage: Storage, operation: str, where: str) -> None:
    storage.disk.fail[operation, where] = errno.ENOSPC
    with pytest.raises(StorageError):
        storage.manager.create_topic("t", 3)
    storage.disk.fail.clear()
    assert storage.manager.topic("t") is None
    assert not list(Path(storage.directory).glob("t-*"))
    storage.manager.create_topic("t", 3)
    storage.crash()
    assert storage.manager.topic("t") is not None


@pytest.mark.parametrize(("operation", "where"), [("makedirs", "many-3"), ("open", "many-3/"), ("sync_dir", "many-9")])
@pytest.mark.parametrize("added", [False, True])
def test_partitions_being_made_are_given_up_at_close(storage: Storage, operation: str, where: str, added: bool) -> None:
    if added:
        storage.create("many", 2)
        append(storage.log("many"), b"kept")
    manager = storage.manager
    done: list[str] = []

    def at(what: str, path: str) -> None:
        if what == "makedirs":
            done.append(path)
        if what == operation and where in path:
            manager.make_no_more()

    storage.disk.before = at
    make = manager.add_partitions if added else manager.create_topic
    with pytest.raises(StorageError, match="the broker is stopping"):
        make("many", 10)
    assert done[-1].endswith("many-9" if operation == "sync_dir" else "many-3")
    storage.disk.before = lambda what, path: None
    storage.restart()
    there = ["many-0", "many-1"] if added else []
    assert there == sorted(path.name for path in Path(storage.directory).iterdir() if path.name.startswith("many"))
    if added:
        assert values(storage.log("many")) == [b"kept"]
        storage.manager.add_partitions("many", 10)
    else:
        storage.create("many", 10)
    assert storage.log("many", 9).offline is None


def test_unwritable_catalogue_makes_no_topic(storage: Storage) -> None:
    storage.catalogue._database._connection.execute(
        "CREATE TRIGGER no BEFORE INSERT ON topics BEGIN SELECT RAISE(ABORT, 'full'); END"
    )
    with pytest.raises(StorageError):
        storage.manager.create_topic("t", 1)
    assert storage.manager.topic("t") is None
    assert not storage.path().exists()


class Dies(BaseException):
    pass


@pytest.mark.parametrize("what", ["create", "add", "delete"])
@pytest.mark.parametrize("die_at", range(1, 25))
def test_crash_leaves_topic_whole_or_absent(storage: Storage, what: str, die_at: int) -> None:
    manager = storage.manager
    if what != "create":
        manager.create_topic("t", 2)
        append(storage.log("t", 1), b"x")
    count = 0

    def before(operation: str, path: str) -> None:
        nonlocal count
        count += 1
        if count == die_at:
            raise Dies

    storage.disk.before = before
    try:
        if what == "create":
            manager.create_topic("t", 2)
        elif what == "add":
            manager.add_partitions("t", 3)
        else:
            manager.delete_topic("t")
    except Dies:
        pass
    storage.disk.before = lambda operation, path: None
    storage.crash()
    storage.housekeep()
    info = storage.manager.topic("t")
    # An empty directory stays: nothing says that it is not the user's, and it is in nobody's way.
    there = sorted(path.name for path in Path(storage.directory).glob("t-*") if list(path.iterdir()))
    if info is None:
        assert (what != "add", there) == (True, [])
        assert storage.catalogue.deleted_topic_ids() == set()
        storage.manager.create_topic("t", 2)
        return
    assert there == [f"t-{number}" for number in range(info.partitions)]
    assert all(storage.log("t", number).offline is None for number in range(info.partitions))
    assert info.partitions in ((2, 3) if what == "add" else (2,))
    if what != "create":
        assert values(storage.log("t", 1)) == [b"x"]
    append(storage.log("t", info.partitions - 1), b"y")


def test_many_threads_make_and_delete_topics(storage: Storage) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(5):
                name = f"t{number}-{turn}"
                storage.manager.create_topic(name, 2)
                append(storage.log(name, 1), b"x")
                if turn % 2:
                    storage.manager.delete_topic(name)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(storage.manager.topics()) == 18
    storage.crash()
    assert len(storage.manager.topics()) == 18


def test_a_thousand_topics_need_few_descriptors(tmp_path: Path) -> None:
    storage = Storage(tmp_path, max_open_files=20)
    for number in range(300):
        append(storage.create(f"t{number}"), b"x")
    assert storage.manager.files.count() <= 20
    assert all(values(storage.log(f"t{number}")) == [b"x"] for number in range(300))
    storage.restart()
    assert storage.manager.files.count() <= 20
    storage.kill()
