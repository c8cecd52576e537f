"""The directories of partitions: what their names say, and what in them is the broker's."""

import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import StorageError
from broker.runtime.disk import SystemDisk
from broker.storage import partition_dir
from broker.storage.checkpoints import LEADER_EPOCHS, PARTITION_METADATA, TXN_INDEX_CHECKPOINT

ID = uuid.UUID(int=7)
SEGMENT = "0" * 20 + ".log"
DISK = SystemDisk()


@given(st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True), st.integers(0, partition_dir.MOST_PARTITIONS - 1))
def test_a_directory_s_name_says_topic_and_partition(topic: str, partition: int) -> None:
    name = partition_dir.directory_name(topic, partition)
    if not partition_dir.is_deleted(name):
        assert partition_dir.parse_name(name) == (topic, partition)


@pytest.mark.parametrize("name", ["t", "t-", "-3", "t-03", "t-x", "t-100000", "a b-1", "x" * 250 + "-1"])
def test_what_is_not_a_partition_s_name(name: str) -> None:
    assert partition_dir.parse_name(name) is None


@given(st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True), st.integers(0, 99_999), st.uuids())
def test_deleted_partition_name_is_short_and_not_partition(topic: str, partition: int, unique: uuid.UUID) -> None:
    name = partition_dir.deleted_name(topic, partition, unique)
    assert len(name) <= 255
    assert partition_dir.is_deleted(name)
    assert partition_dir.parse_name(name) is None


@pytest.mark.parametrize(
    "name",
    [
        SEGMENT,
        SEGMENT + ".deleted",
        "0" * 20 + ".index.cleaned",
        PARTITION_METADATA,
        PARTITION_METADATA + ".tmp",
        LEADER_EPOCHS,
        TXN_INDEX_CHECKPOINT,
    ],
)
def test_the_broker_s_own_files(name: str) -> None:
    assert partition_dir.is_own(name)


@pytest.mark.parametrize("name", ["notes.txt", "0.log", SEGMENT + ".bak", "x" + SEGMENT, SEGMENT + "\n"])
def test_other_files(name: str) -> None:
    assert not partition_dir.is_own(name)


def test_a_new_partition_is_empty_and_looks_unfinished(tmp_path: Path) -> None:
    path = f"{tmp_path}/t-0"
    partition_dir.make(DISK, path, ID, 3)
    contents = partition_dir.read_contents(DISK, path)
    assert (contents.own, contents.foreign) == ({PARTITION_METADATA, SEGMENT}, frozenset())
    assert contents.is_partition
    assert partition_dir.is_unfinished(DISK, path, contents)
    Path(path, SEGMENT).write_bytes(b"x")
    assert partition_dir.has_records(DISK, path, contents)
    assert not partition_dir.is_unfinished(DISK, path, contents)


def test_what_an_earlier_attempt_has_left_makes_way(tmp_path: Path) -> None:
    path = f"{tmp_path}/t-0"
    partition_dir.make_way(DISK, path)
    partition_dir.make(DISK, path, ID, 3)
    partition_dir.make_way(DISK, path)
    assert not DISK.exists(path)


def test_records_and_links_do_not_make_way(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    partition_dir.make(DISK, str(path), ID, 3)
    (path / SEGMENT).write_bytes(b"x")
    with pytest.raises(StorageError, match="is not empty"):
        partition_dir.make_way(DISK, str(path))
    (tmp_path / "u-0").symlink_to(path)
    with pytest.raises(StorageError, match="is a link"):
        partition_dir.make_way(DISK, f"{tmp_path}/u-0")
    assert (path / SEGMENT).read_bytes() == b"x"


def test_deleted_partition_gets_a_name_without_conflict(tmp_path: Path) -> None:
    path = f"{tmp_path}/t-0"
    assert partition_dir.rename_deleted(DISK, path, "t", 0, ID) is None
    partition_dir.make(DISK, path, ID, 1)
    renamed = partition_dir.rename_deleted(DISK, path, "t", 0, ID)
    assert renamed == f"{tmp_path}/{partition_dir.deleted_name('t', 0, ID)}"
    assert (DISK.exists(path), DISK.is_dir(renamed)) == (False, True)
    partition_dir.dispose(DISK, renamed)
    assert not DISK.exists(renamed)


def test_foreign_directory_in_partition_place_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "notes.txt").write_text("mine")
    assert partition_dir.rename_deleted(DISK, f"{tmp_path}/t-0", "t", 0, ID) is None
    assert not partition_dir.remove(DISK, f"{tmp_path}/t-0")
    assert (tmp_path / "t-0" / "notes.txt").read_text() == "mine"


def test_directory_with_other_files_loses_only_partition_files(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    partition_dir.make(DISK, str(path), ID, 1)
    (path / "notes.txt").write_text("mine")
    assert not partition_dir.remove(DISK, str(path))
    assert [child.name for child in (tmp_path / "t-0-kept").iterdir()] == ["notes.txt"]
