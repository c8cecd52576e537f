"""The data directory: taken by one broker, understood or refused, and what lies about in it."""

import errno
import shutil
from pathlib import Path

import pytest

from broker.errors import ConfigError
from broker.storage.catalogue import SqliteCatalogue
from tests.storage.helpers import Storage, append, append_many, offsets, read_records, values


def test_a_second_broker_is_refused_and_told_who_has_the_directory(storage: Storage) -> None:
    with pytest.raises(ConfigError, match=r"Another broker \(pid \d+\) uses .*: stop it, or choose another data_dir\."):
        Storage(storage.directory)
    storage.restart()


def test_a_directory_of_a_newer_broker_is_refused(storage: Storage) -> None:
    storage.stop()
    (Path(storage.directory) / "meta.properties").write_text("version=1\nnode.id=1\nlayout=2\n")
    with pytest.raises(ConfigError, match="written by a newer broker"):
        storage.open()
    (Path(storage.directory) / "meta.properties").write_text("version=1\nnode.id=1\nlayout=1\n")
    storage.open()


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.stop()
    for operation in ("makedirs", "open", "sync_dir", "rename"):
        storage.disk.fail[operation, str(tmp_path)] = errno.EROFS
        if operation in ("sync_dir", "rename"):
            (tmp_path / "meta.properties").unlink()
        with pytest.raises(ConfigError) as error:
            storage.open()
        assert str(tmp_path) in str(error.value)
        storage.disk.fail.clear()
    storage.open()
    storage.kill()


def test_a_data_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    from broker.storage.config import StorageConfig
    from broker.storage.log_manager import LogManager
    from tests.storage.helpers import CountingEntropy, FaultyDisk, HandClock

    (tmp_path / "data").write_text("a file")
    catalogue = SqliteCatalogue(f"{tmp_path}/c.sqlite")
    manager = LogManager(
        FaultyDisk(), HandClock(), CountingEntropy(), StorageConfig(data_dir=f"{tmp_path}/data"), catalogue
    )
    with pytest.raises(ConfigError, match="Choose another data_dir"):
        manager.open()
    catalogue.close()


def test_the_mark_of_a_clean_stop_is_there_only_after_one(storage: Storage) -> None:
    mark = Path(storage.directory) / ".kafka_cleanshutdown"
    append(storage.create(), b"x")
    assert not mark.exists()
    storage.stop()
    assert mark.exists()
    storage.open()
    assert not mark.exists()
    storage.crash()
    assert not mark.exists()


def test_there_is_no_mark_when_something_was_wrong(storage: Storage) -> None:
    append(storage.create(), b"x")
    storage.log().go_offline("for a test")
    storage.stop()
    assert not (Path(storage.directory) / ".kafka_cleanshutdown").exists()
    storage.open()


def test_a_stop_that_fails_for_one_log_is_made_for_the_others(storage: Storage) -> None:
    for name in ("a", "b"):
        append_many(storage.create(name), 5)
    storage.disk.fail["sync", "a-0"] = errno.EIO
    storage.stop()
    storage.disk.fail.clear()
    storage.open()
    assert storage.log("b").recovery_point == 5
    assert values(storage.log("a")) == values(storage.log("b"))


def test_closing_twice_is_fine(storage: Storage) -> None:
    storage.manager.close()
    storage.manager.close()


@pytest.mark.parametrize(
    "name", ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "cleaner-offset-checkpoint"]
)
@pytest.mark.parametrize("junk", [b"", b"junk", b"0\n5\n", b"\xff\xfe\0"])
def test_a_damaged_checkpoint_costs_time_and_no_records(storage: Storage, name: str, junk: bytes) -> None:
    log = storage.create(segment_bytes=300)
    append_many(log, 20)
    log.delete_records(10)
    storage.stop()
    (Path(storage.directory) / name).write_bytes(junk)
    storage.open()
    found = offsets(read_records(storage.log()))
    assert found == list(range(found[0], 20))
    assert found[0] <= 10
    append(storage.log(), b"x")
    storage.restart()


def test_topics_come_back_when_the_catalogue_is_lost(storage: Storage) -> None:
    storage.manager.create_topic("t", 3)
    topic_id = storage.log().topic_id
    append(storage.log("t", 2), b"x")
    storage.stop()
    for path in Path(storage.directory).glob("catalogue.sqlite*"):
        path.unlink()
    storage.open()
    info = storage.manager.topic("t")
    assert info is not None
    assert (info.partitions, info.topic_id) == (3, topic_id)
    assert values(storage.log("t", 2)) == [b"x"]


def test_a_partition_that_is_put_there_by_hand_becomes_a_topic(storage: Storage) -> None:
    log = storage.create("source", cleanup_policy="compact", segment_bytes=300, min_cleanable_dirty_ratio=0)
    for number in range(20):
        append(log, b"v%d" % number, keys=[b"k"])
    storage.housekeep()
    storage.housekeep()
    expected = [(r.offset, r.value) for r in read_records(log)]
    assert len(expected) < 20
    storage.stop()
    target = Path(storage.directory) / "moved-0"
    shutil.copytree(storage.path("source"), target)
    (target / "partition.metadata").unlink()
    storage.open()
    log = storage.log("moved")
    assert log.offline is None
    assert [(r.offset, r.value) for r in read_records(log)] == expected
    append(log, b"x", keys=[b"k"])
    storage.crash()
    assert storage.log("moved").offline is None


def test_empty_directories_of_topics_that_were_never_finished_go(storage: Storage) -> None:
    storage.create()
    root = Path(storage.directory)
    for name in ("half-0", "t-1"):
        (root / name).mkdir()
        (root / name / f"{0:020d}.log").touch()
    (root / "not a partition").mkdir()
    storage.crash()
    assert sorted(path.name for path in root.iterdir() if path.is_dir()) == ["not a partition", "t-0"]
    assert [info.name for info in storage.manager.topics()] == ["t"]


def test_a_surplus_partition_with_records_is_left_alone(storage: Storage) -> None:
    append(storage.create(), b"x")
    storage.stop()
    shutil.copytree(storage.path(), Path(storage.directory) / "t-7")
    storage.open()
    assert storage.manager.get("t", 7) is None
    assert (Path(storage.directory) / "t-7").exists()


def test_a_directory_of_another_topic_of_the_same_name_is_not_served(storage: Storage) -> None:
    append(storage.create(), b"x")
    storage.create("u")
    storage.stop()
    shutil.copy(storage.path("u") / "partition.metadata", storage.path() / "partition.metadata")
    storage.open()
    assert "another id" in str(storage.log().offline)


def test_a_lost_topic_id_is_written_again(storage: Storage) -> None:
    append(storage.create(), b"x")
    storage.stop()
    before = (storage.path() / "partition.metadata").read_text()
    (storage.path() / "partition.metadata").write_text("")
    storage.open()
    assert storage.log().offline is None
    assert (storage.path() / "partition.metadata").read_text() == before


def test_a_new_data_directory_is_durable_itself(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    storage = Storage(tmp_path / "a" / "b")
    assert {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")} <= set(storage.disk.synced)
    storage.kill()
