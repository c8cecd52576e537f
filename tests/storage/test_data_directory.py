"""The data directory as a whole: taken by one broker, understood or refused."""

import errno
import os
import tempfile
from pathlib import Path

import pytest

from broker.errors import ConfigError
from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime.disk import SystemDisk
from broker.storage import data_directory
from broker.storage.config import StorageConfig
from broker.storage.log.log_config import LogConfig
from tests.storage.helpers import Storage, append


def take(directory: Path, **settings: bool) -> data_directory.DataDirectory:
    return data_directory.take(SystemDisk(), StorageConfig(data_dir=str(directory), **settings))


def everything(directory: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None for path in directory.rglob("*")
    }


def test_second_broker_is_refused_and_told_the_holder(storage: Storage) -> None:
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


def test_data_directory_that_is_file_is_refused(tmp_path: Path) -> None:
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


def test_a_new_data_directory_is_durable_itself(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    storage = Storage(tmp_path / "a" / "b")
    assert {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")} <= set(storage.disk.synced)
    storage.kill()


@pytest.mark.parametrize("name", ["thesis.odt", "backup-2024", "meta.properties", "photos.0f" + "0" * 30 + "-delete"])
def test_directory_with_foreign_files_is_refused_and_unchanged(tmp_path: Path, name: str) -> None:
    if "." in name and not name.endswith("-delete"):
        (tmp_path / name).write_text("not a broker's")
    else:
        (tmp_path / name / "photos").mkdir(parents=True)
        (tmp_path / name / "photos" / "a.jpg").write_text("a photo")
    (tmp_path / "music").mkdir()
    before = everything(tmp_path)
    with pytest.raises(
        ConfigError, match=r"is not empty and no broker has used it yet .*data_dir_accept_foreign_files"
    ):
        take(tmp_path)
    assert everything(tmp_path) == before


def test_setting_allows_directory_with_foreign_files(tmp_path: Path) -> None:
    (tmp_path / "backup-2024" / "photos").mkdir(parents=True)
    take(tmp_path, data_dir_accept_foreign_files=True).close()
    storage = Storage(tmp_path)
    storage.create()
    storage.restart()
    assert (tmp_path / "backup-2024" / "photos").is_dir()
    storage.kill()


def test_files_of_systems_desktops_version_control_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".DS_Store").touch()
    (tmp_path / ".gitkeep").touch()
    take(tmp_path).close()


def test_directory_used_by_broker_may_hold_other_files(storage: Storage) -> None:
    storage.stop()
    (Path(storage.directory) / "thesis.odt").touch()
    take(Path(storage.directory)).close()
    (Path(storage.directory) / "meta.properties").write_bytes(b"\0" * 10)  # spoilt, but there is the catalogue
    take(Path(storage.directory)).close()
    storage.open()


def test_a_directory_of_kafka_s_is_taken(tmp_path: Path) -> None:
    (tmp_path / "bootstrap.checkpoint").touch()
    with pytest.raises(ConfigError):
        take(tmp_path)
    (tmp_path / "meta.properties").write_text(
        "#\n#Sat Nov 21\ncluster.id=4L6g3nShT-eMCtK--X86sw\nnode.id=1\nversion=1\n"
    )
    take(tmp_path).close()


def test_a_directory_with_nothing_but_partitions_is_taken(storage: Storage, tmp_path: Path) -> None:
    append(storage.create(), b"x")
    storage.path().rename(tmp_path / "data" / "u-0")
    moved = tmp_path / "moved"
    moved.mkdir()
    (tmp_path / "data" / "u-0").rename(moved / "u-0")
    take(moved).close()
    (moved / "u-0" / "partition.metadata").unlink()  # as before Kafka 2.8
    take(moved).close()


def test_interrupted_start_leaves_usable_directory(tmp_path: Path) -> None:
    for name in (".lock", "meta.properties.tmp", "recovery-point-offset-checkpoint.tmp"):
        (tmp_path / name).touch()
    take(tmp_path).close()


def test_lock_is_held_until_released(tmp_path: Path) -> None:
    taken = take(tmp_path)
    with pytest.raises(ConfigError, match="Another broker"):
        take(tmp_path)
    taken.close()
    take(tmp_path).close()


def test_full_disk_does_not_prevent_taking_the_lock(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.stop()
    storage.disk.room = 0
    config = StorageConfig(data_dir=str(tmp_path))
    data_directory.take(storage.disk, config).close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take another user's place")
def test_refused_volume_of_another_user_names_the_owner() -> None:
    volume = tempfile.mkdtemp(dir="/tmp")  # pytest's own directories are for its user only
    os.chmod(volume, 0o755)
    os.seteuid(10001)
    try:
        with pytest.raises(ConfigError) as refusal:
            data_directory.take(SystemDisk(), StorageConfig(data_dir=volume))
    finally:
        os.seteuid(0)
        os.rmdir(volume)
    assert "this process runs as uid 10001" in str(refusal.value)
    assert f"{volume} belongs to uid 0" in str(refusal.value)
    assert f"chown -R 10001:0 {volume}" in str(refusal.value)


def test_a_cache_is_taken_whatever_a_power_cut_has_left_of_it(tmp_path: Path) -> None:
    (tmp_path / data_directory.CACHE).touch()
    (tmp_path / "t-0").mkdir()
    (tmp_path / "meta.properties").write_text("layout=\0\0")
    config = StorageConfig(data_dir=str(tmp_path), defaults=LogConfig(is_shipped=True))
    data_directory.take(SystemDisk(), config).close()


def test_a_cache_is_not_taken_for_the_data(tmp_path: Path) -> None:
    (tmp_path / data_directory.CACHE).touch()
    before = everything(tmp_path)
    with pytest.raises(ConfigError, match="Set catalogue"):
        take(tmp_path)
    assert everything(tmp_path) == before
