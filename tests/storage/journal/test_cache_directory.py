"""Emptying the directory of a broker whose disk is a cache."""

from pathlib import Path

import pytest

from broker.errors import ConfigError
from broker.runtime.disk import SystemDisk
from broker.storage.data_directory import CACHE, CATALOGUE, LOCK
from broker.storage.journal.cache_directory import empty


def test_everything_but_the_lock_goes(tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    data.mkdir()
    (data / LOCK).touch()
    (data / "lost+found").mkdir()
    empty(SystemDisk(), str(data))
    elsewhere.write_text("kept")
    (data / "t-0").mkdir()
    (data / "t-0" / "a.log").write_text("abc")
    (data / "recovery-point-offset-checkpoint").touch()
    (data / "link").symlink_to(elsewhere)
    empty(SystemDisk(), str(data))
    assert {LOCK, CACHE, "lost+found"} == {path.name for path in data.iterdir()}
    assert "kept" == elsewhere.read_text()


@pytest.mark.parametrize(("name", "says"), [(CATALOGUE, "broker migrate"), ("thesis.doc", "thesis.doc")])
def test_what_may_be_no_copy_is_refused_and_stays(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / LOCK).touch()
    (tmp_path / name).write_text("the only copy")
    with pytest.raises(ConfigError, match=says):
        empty(SystemDisk(), str(tmp_path))
    assert {LOCK, name} == {path.name for path in tmp_path.iterdir()}
