"""Looking into the data directory of a stopped broker."""

from pathlib import Path

import pytest

from broker.errors import ConfigError
from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime.disk import SystemDisk
from broker.storage.data_directory import RESTORING
from broker.storage.stopped_directory import copy_of_catalogue, locked

DISK = SystemDisk()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    catalogue = SqliteCatalogue(str(tmp_path / "catalogue.sqlite"))
    catalogue.set_meta("a", "1")
    catalogue.close()
    return tmp_path


def test_a_copy_of_the_catalogue_is_opened_and_removed(directory: Path) -> None:
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    with copy_of_catalogue(DISK, str(directory)) as catalogue:
        assert "1" == catalogue.meta("a")
        catalogue.set_meta("a", "2")
    assert before == {path.name: path.read_bytes() for path in directory.iterdir()}


def test_changes_that_are_only_in_the_log_are_in_the_copy(directory: Path) -> None:
    catalogue = SqliteCatalogue(str(directory / "catalogue.sqlite"))
    catalogue.set_meta("a", "3")
    with copy_of_catalogue(DISK, str(directory)) as copy:
        assert "3" == copy.meta("a")
    catalogue.close()


def test_only_one_may_use_a_directory(directory: Path) -> None:
    with (
        locked(DISK, str(directory)),
        pytest.raises(ConfigError, match="Stop the broker that uses"),
        locked(DISK, str(directory)),
    ):
        pass
    with locked(DISK, str(directory)):
        pass


def test_directories_of_nobody_and_incomplete_ones_are_refused(directory: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no catalogue\.sqlite"), locked(DISK, str(directory / "none")):
        pass
    (directory / RESTORING).touch()
    with pytest.raises(ConfigError, match="Name a complete data directory"), locked(DISK, str(directory)):
        pass


def test_a_directory_of_a_newer_broker_is_refused(directory: Path) -> None:
    (directory / "meta.properties").write_text("version=1\nnode.id=1\nlayout=99\n")
    with pytest.raises(ConfigError, match="written by a newer broker"), locked(DISK, str(directory)):
        pass
