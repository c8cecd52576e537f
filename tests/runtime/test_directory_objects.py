"""Objects as files: what stays when something fails, and what is tidied up. The contract is tests/contract/test_objects.py."""

import errno
import os
import time
from pathlib import Path

import pytest

from broker.runtime.directory_objects import DirectoryObjects
from broker.runtime.objects import ObjectError, ObjectStore


def put(store: ObjectStore, key: str, data: bytes, *, create: bool = False) -> None:
    store.put(key, [data], len(data), create=create)


def names(root: Path) -> list[str]:
    """All files and directories below it."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def failing(code: int) -> object:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_an_object_is_a_file(tmp_path: Path) -> None:
    put(DirectoryObjects(str(tmp_path)), "a/b", b"data")
    assert b"data" == (tmp_path / "a/b").read_bytes()
    assert [".uploads", "a", "a/b"] == names(tmp_path)


def test_objects_are_there_after_opening_it_again(tmp_path: Path) -> None:
    put(DirectoryObjects(str(tmp_path / "new/place")), "a/b", b"data")
    assert b"data" == DirectoryObjects(str(tmp_path / "new/place")).get("a/b", 0, 4)


@pytest.mark.parametrize("create", [False, True])
def test_what_cannot_be_synced_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, create: bool) -> None:
    store = DirectoryObjects(str(tmp_path))
    monkeypatch.setattr(os, "fdatasync", failing(errno.ENOSPC))
    with pytest.raises(ObjectError, match=r"a/b in file://.*: No space left on device") as caught:
        put(store, "a/b", b"data", create=create)
    assert errno.ENOSPC == caught.value.errno
    assert [".uploads"] == names(tmp_path)


def test_a_name_that_cannot_be_synced_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryObjects(str(tmp_path))
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(ObjectError, match="put a/b in file://"):
        put(store, "a/b", b"data")


def test_every_directory_on_the_way_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryObjects(str(tmp_path))
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    put(store, "a/b/c", b"data")
    assert [os.stat(tmp_path / folder).st_ino for folder in ("a/b", "a", ".")] == synced


def test_empty_directories_are_removed(tmp_path: Path) -> None:
    store = DirectoryObjects(str(tmp_path))
    for key in ("a/b/c/1", "a/2"):
        put(store, key, b"data")
    store.delete(["a/b/c/1"])
    assert [".uploads", "a", "a/2"] == names(tmp_path)
    store.delete(["a/2"])
    assert [".uploads"] == names(tmp_path)


def test_abandoned_uploads_are_removed_after_a_day(tmp_path: Path) -> None:
    DirectoryObjects(str(tmp_path))
    for name, hours in (("old", 25), ("new", 23)):
        (tmp_path / ".uploads" / name).touch()
        os.utime(tmp_path / ".uploads" / name, (0, time.time() - hours * 3600))
    assert [] == list(DirectoryObjects(str(tmp_path)).list(""))
    assert [".uploads", ".uploads/new"] == names(tmp_path)


def test_a_key_below_another_s_is_an_error(tmp_path: Path) -> None:
    store = DirectoryObjects(str(tmp_path))
    put(store, "a", b"data")
    for create in (False, True):
        with pytest.raises(ObjectError, match="a/b in file://"):
            put(store, "a/b", b"data", create=create)
    put(store, "c/d", b"data")
    with pytest.raises(ObjectError, match="put c in file://"):
        put(store, "c", b"data")
    assert [".uploads", "a", "c", "c/d"] == names(tmp_path)


def test_errors_of_the_file_system_keep_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryObjects(str(tmp_path))
    put(store, "a", b"data")
    monkeypatch.setattr(os, "open", failing(errno.EMFILE))
    with pytest.raises(ObjectError, match=r"get a in file://.*: Too many open files") as caught:
        store.get("a", 0, 4)
    assert errno.EMFILE == caught.value.errno


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        DirectoryObjects(str(tmp_path / "file"))
