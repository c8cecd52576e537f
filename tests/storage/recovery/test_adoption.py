"""Directories that the catalogue does not know: what becomes a topic, what goes, and what is nobody's business."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from broker.errors import StorageError
from tests.storage.helpers import Storage, append, read_records, values


def lose_catalogue(storage: Storage) -> None:
    for path in Path(storage.directory).glob("catalogue.sqlite*"):
        path.unlink()


def root(storage: Storage) -> Path:
    return Path(storage.directory)


def directories(storage: Storage) -> list[str]:
    return sorted(path.name for path in root(storage).iterdir() if path.is_dir())


def test_topics_come_back_when_the_catalogue_is_lost(storage: Storage) -> None:
    storage.manager.create_topic("t", 3)
    topic_id = storage.log().topic_id
    append(storage.log("t", 2), b"x")
    storage.stop()
    lose_catalogue(storage)
    storage.open()
    info = storage.manager.topic("t")
    assert info is not None
    assert (info.partitions, info.topic_id) == (3, topic_id)
    assert values(storage.log("t", 2)) == [b"x"]


def test_partition_put_there_by_hand_becomes_a_topic(storage: Storage) -> None:
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


def test_what_creations_that_were_interrupted_have_left_goes(storage: Storage) -> None:
    storage.create()
    for name in ("half-0", "t-1", "torn-0", "torn-1"):
        shutil.copytree(storage.path(), root(storage) / name)
    (root(storage) / "torn-0" / "partition.metadata").write_bytes(b"")
    (root(storage) / "torn-1" / "partition.metadata").unlink()
    storage.crash()
    assert directories(storage) == ["t-0"]
    assert [info.name for info in storage.manager.topics()] == ["t"]


def test_a_surplus_partition_with_records_is_left_alone(storage: Storage) -> None:
    append(storage.create(), b"x")
    storage.stop()
    shutil.copytree(storage.path(), Path(storage.directory) / "t-7")
    storage.open()
    assert storage.manager.get("t", 7) is None
    assert (Path(storage.directory) / "t-7").exists()


# -- the user's own -----------------------------------------------------------------------------------------------------


def users_own(storage: Storage, elsewhere: Path) -> dict[str, str]:
    """Directories whose names look like a partition's or a deleted one's; what is in each."""
    hexadecimal = "0123456789abcdef" * 2
    for name in ("backup-2024/photos", "t-1", "2024-11", f"old.{hexadecimal}-delete", f"t-0.{hexadecimal}-delete/t-0"):
        (root(storage) / name).mkdir(parents=True)
        (root(storage) / name / "a.jpg").write_text(name)
    (elsewhere / "deep").mkdir(parents=True)
    (elsewhere / "deep" / "thesis.odt").write_text("thesis")
    (root(storage) / "thesis-1").symlink_to(elsewhere)
    (root(storage) / f"thesis-2.{hexadecimal}-delete").symlink_to(elsewhere)
    (root(storage) / "note-1").write_text("a file")
    return read_all(storage, elsewhere)


def read_all(storage: Storage, elsewhere: Path) -> dict[str, str]:
    found = [path for path in root(storage).rglob("*") if path.suffix in (".jpg", ".odt") or path.is_symlink()]
    found += [*elsewhere.rglob("*.odt"), root(storage) / "note-1"]
    return {str(path): os.readlink(path) if path.is_symlink() else path.read_text() for path in found}


@pytest.mark.parametrize("how", ["restart", "crash", "lost"])
def test_the_user_s_own_directories_are_left_alone(storage: Storage, tmp_path: Path, how: str) -> None:
    append(storage.create(), b"x")
    before = users_own(storage, tmp_path / "elsewhere")
    assert len(before) == 9
    for _ in range(2):
        if how == "lost":
            storage.stop()
            lose_catalogue(storage)
            storage.open()
        else:
            getattr(storage, how)()
        storage.housekeep()
        assert read_all(storage, tmp_path / "elsewhere") == before
        assert [(info.name, info.partitions) for info in storage.manager.topics()] == [("t", 1)]
        assert values(storage.log()) == [b"x"]


def test_no_topic_is_made_over_directories_of_user(storage: Storage, tmp_path: Path) -> None:
    before = users_own(storage, tmp_path / "elsewhere")
    for topic, partitions in (("backup", 2025), ("t", 2), ("thesis", 2), ("note", 2)):
        with pytest.raises(StorageError, match=r"move it away|could not be made"):
            storage.manager.create_topic(topic, partitions)
    storage.housekeep()
    assert read_all(storage, tmp_path / "elsewhere") == before
    assert storage.manager.topics() == []
    assert "t-0" not in directories(storage)


def test_an_empty_directory_is_no_obstacle(storage: Storage) -> None:
    (root(storage) / "t-0").mkdir()
    storage.crash()
    append(storage.create(), b"x")
    assert values(storage.log()) == [b"x"]


def test_deleted_topic_directory_keeps_only_files_of_user(storage: Storage) -> None:
    storage.create(partitions=2, file_delete_delay_ms=0)
    append(storage.log(), b"x")
    (storage.path() / "notes").mkdir()
    (storage.path() / "notes" / "a.txt").write_text("mine")
    (storage.path() / "notes.tmp").write_text("mine too")
    storage.crash()
    storage.manager.delete_topic("t")
    storage.housekeep()
    (kept,) = [root(storage) / name for name in directories(storage)]
    assert kept.name.startswith("t-0.") and kept.name.endswith("-kept")
    assert sorted(path.name for path in kept.rglob("*")) == ["a.txt", "notes", "notes.tmp"]
    storage.restart()
    storage.housekeep()
    assert sorted(path.name for path in kept.rglob("*")) == ["a.txt", "notes", "notes.tmp"]


def test_partition_behind_link_is_served_and_never_removed(storage: Storage, tmp_path: Path) -> None:
    append(storage.create(file_delete_delay_ms=0), b"x")
    storage.stop()
    elsewhere = tmp_path / "elsewhere"
    storage.path().rename(elsewhere)
    storage.path().symlink_to(elsewhere)
    storage.open()
    append(storage.log(), b"y")
    storage.restart()
    assert values(storage.log()) == [b"x", b"y"]
    before = sorted(path.name for path in elsewhere.iterdir())
    storage.manager.delete_topic("t")
    storage.housekeep()
    storage.crash()
    storage.housekeep()
    assert sorted(path.name for path in elsewhere.iterdir()) == before
    assert storage.manager.topics() == []


def test_user_directory_in_partition_place_is_left_alone(storage: Storage) -> None:
    storage.create(partitions=2, file_delete_delay_ms=0)
    storage.stop()
    shutil.rmtree(storage.path(partition=1))
    storage.path(partition=1).mkdir()
    (storage.path(partition=1) / "a.jpg").write_text("a photo")
    storage.open()
    assert "no files of a partition" in str(storage.log(partition=1).offline)
    storage.manager.delete_topic("t")
    storage.housekeep()
    assert [path.name for path in storage.path(partition=1).iterdir()] == ["a.jpg"]


def test_interrupted_removal_is_finished_at_next_start(storage: Storage) -> None:
    append(storage.create(), b"x")
    storage.manager.delete_topic("t")
    (gone,) = root(storage).glob("t-0.*-delete")
    storage.disk.before = lambda what, path: None
    for path in gone.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    storage.crash()
    storage.housekeep()
    assert directories(storage) == []


def test_directory_of_unknown_deleted_topic_is_moved_aside(storage: Storage) -> None:
    append(storage.create(), b"x")
    storage.disk.fail["rename", "t-0"] = errno.EIO
    storage.manager.delete_topic("t")
    storage.disk.fail.clear()
    (storage.path() / "partition.metadata").write_bytes(b"")  # the power went before it was on the disk
    storage.crash()
    storage.housekeep()
    assert storage.manager.topics() == []
    (kept,) = [root(storage) / name for name in directories(storage)]
    assert kept.name.startswith("t-0.") and kept.name.endswith("-kept")
    assert (kept / f"{0:020d}.log").stat().st_size > 0
    storage.create()


# -- how many partitions ------------------------------------------------------------------------------------------------


def keyed(storage: Storage, total: int, *written: int) -> None:
    storage.manager.create_topic("t", total)
    for number in written:
        append(storage.log("t", number), b"%d" % number)


def assert_topic(storage: Storage, total: int, *written: int) -> None:
    info = storage.manager.topic("t")
    assert info is not None
    assert info.partitions == total
    for number in range(total):
        log = storage.log("t", number)
        assert log.offline is None
        assert values(log) == ([b"%d" % number] if number in written else [])
    append(storage.log("t", total - 1), b"more")


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("written", [(), (0,), (1, 3), (5,)])
def test_without_the_catalogue_no_partition_is_lost(storage: Storage, how: str, written: tuple[int, ...]) -> None:
    keyed(storage, 6, *written)
    getattr(storage, how)()
    lose_catalogue(storage)
    storage.open()
    assert_topic(storage, 6, *written)
    storage.restart()


def test_topic_copied_from_kafka_keeps_all_its_partitions(storage: Storage) -> None:
    """Kafka's file does not say how many partitions there are, but each has its directory, with index files."""
    keyed(storage, 6, 0, 1)
    storage.stop()
    for path in root(storage).glob("t-*"):
        lines = (path / "partition.metadata").read_text().splitlines()
        (path / "partition.metadata").write_text("\n".join(lines[:2]))
        for suffix in ("index", "timeindex"):
            (path / f"{0:020d}.{suffix}").touch()
        path.rename(path.with_name(path.name.replace("t-", "u-")))
    lose_catalogue(storage)
    storage.open()  # nothing is left of t
    storage.stop()
    for path in root(storage).glob("u-*"):
        path.rename(path.with_name(path.name.replace("u-", "t-")))
    storage.open()
    assert_topic(storage, 6, 0, 1)


def test_empty_topic_copied_from_kafka_is_adopted(storage: Storage) -> None:
    storage.create("other")
    storage.stop()
    for number in range(3):
        path = root(storage) / f"t-{number}"
        path.mkdir()
        for suffix in ("log", "index", "timeindex"):
            (path / f"{0:020d}.{suffix}").touch()
        (path / "partition.metadata").write_text("version: 0\ntopic_id: -0_44n1cS9WPOp1_bBsqPg")
    storage.open()
    assert_topic(storage, 3)


def test_missing_trailing_directories_are_made_again(storage: Storage) -> None:
    keyed(storage, 6, 1)
    storage.stop()
    lose_catalogue(storage)
    for number in (0, 4, 5):
        shutil.rmtree(storage.path(partition=number))
    storage.open()
    assert_topic(storage, 6, 1)


@pytest.mark.parametrize("name", ["t-3", "t-007", "t-9999999999"])
def test_foreign_directory_name_adds_no_partitions(storage: Storage, name: str) -> None:
    keyed(storage, 2, 0)
    storage.stop()
    lose_catalogue(storage)
    if name == "t-3":
        (root(storage) / name).mkdir()
    else:
        shutil.copytree(storage.path(), root(storage) / name)
    storage.open()
    assert_topic(storage, 2, 0)


class _Died(BaseException):
    pass


def test_partition_count_right_after_crash_while_adding_partitions(tmp_path: Path) -> None:
    """With and without the catalogue afterwards: the old number, or the new one, and the new one if it was answered."""
    step = 0
    finished = False
    while not finished:
        (tmp_path / str(step)).mkdir()
        storage = Storage(tmp_path / str(step))
        keyed(storage, 2, 0, 1)
        left = [step]

        def die(what: str, path: str) -> None:
            if left[0] == 0:  # noqa: B023 (called in this round)
                raise _Died
            left[0] -= 1  # noqa: B023

        storage.disk.before = die
        try:
            storage.manager.add_partitions("t", 4)
            finished = True
        except _Died:
            pass
        storage.disk.before = lambda what, path: None
        storage.kill()
        for name in ("with", "without"):
            copy = tmp_path / f"{step}-{name}"
            shutil.copytree(tmp_path / str(step), copy)
            if name == "without":
                for path in copy.glob("catalogue.sqlite*"):
                    path.unlink()
            survivor = Storage(copy)
            info = survivor.manager.topic("t")
            assert info is not None
            assert info.partitions in ((4,) if finished else (2, 4)), step
            said = {path.read_text().splitlines()[2] for path in copy.glob("t-*/partition.metadata")}
            assert said == {f"partitions: {info.partitions}"}
            assert values(survivor.log("t", 1)) == [b"1"]
            survivor.kill()
        step += 1
    assert step > 8


def test_partition_with_unwritable_topic_id_is_served(storage: Storage) -> None:
    append(storage.create(), b"x")
    storage.stop()
    (storage.path() / "partition.metadata").unlink()
    storage.disk.fail["open", "partition.metadata.tmp"] = errno.ENOSPC
    storage.open()
    assert len(read_records(storage.log())) == 1
    storage.disk.fail.clear()
