import sys
from pathlib import Path

import pytest

from broker.runtime.files import read_packaged


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "a_package_with_files" / "data"
    (folder / "deeper").mkdir(parents=True)
    (tmp_path / "a_package_with_files" / "__init__.py").touch()
    (folder / "one.txt").write_bytes(b"1")
    (folder / "deeper" / "two.txt").write_bytes(b"\xff")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "a_package_with_files", raising=False)
    return "a_package_with_files"


def test_packaged_files_of_folder_and_subfolders_are_read(package: str) -> None:
    assert {"deeper/two.txt": b"\xff", "one.txt": b"1"} == read_packaged(package, "data")


def test_missing_packaged_folder_is_an_error(package: str) -> None:
    with pytest.raises(OSError):
        read_packaged(package, "others")
