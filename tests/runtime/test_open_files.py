"""The bounded set of open files."""

import errno
import os
import threading
from pathlib import Path

import pytest

from broker.runtime import open_files
from broker.runtime.disk import FileRegion, SystemDisk
from broker.runtime.open_files import CachedFile, OpenFiles
from tests.descriptors import in_own_process, none_left
from tests.network.harness import descriptors


def make(tmp_path: Path, count: int, limit: int) -> tuple[OpenFiles, list[CachedFile]]:
    for number in range(count):
        (tmp_path / str(number)).write_bytes(b"%d" % number)
    files = OpenFiles(SystemDisk(), limit)
    return files, [files.cached(f"{tmp_path}/{number}") for number in range(count)]


def test_never_more_than_the_limit_are_open(tmp_path: Path) -> None:
    files, cached = make(tmp_path, 10, 3)
    for _ in range(3):
        for number, file in enumerate(cached):
            assert file.get().pread(5, 0) == b"%d" % number
            assert files.count() <= 3


def sent_files_stay_open(tmp_path: Path) -> None:
    files, cached = make(tmp_path, 10, 3)
    before = descriptors()
    unsent = []
    for _ in range(5):
        unsent += [FileRegion(file.get(), 0, 1) for file in cached]
        files.close_idle()
        assert not files.give_back()  # there is nothing to be had
        assert descriptors() - before == len(cached)
    assert all(region.read() == b"%d" % (number % 10) for number, region in enumerate(unsent))
    unsent.clear()
    cached[0].get()
    files.close_idle()
    files.close_idle()
    assert descriptors() == before
    for file in cached:
        file.get()
    assert descriptors() - before == files.count() == 3


def test_file_being_sent_is_not_opened_again(tmp_path: Path) -> None:
    in_own_process(
        sent_files_stay_open, tmp_path
    )  # what earlier tests left behind would change the number of descriptors


def test_the_ones_in_use_stay_open(tmp_path: Path) -> None:
    _files, cached = make(tmp_path, 10, 3)
    first = cached[0].get()
    for file in cached[1:]:
        file.get()
        assert cached[0].get() is first or file is cached[1]


def test_file_unused_since_last_time_is_closed(tmp_path: Path) -> None:
    files, cached = make(tmp_path, 2, 10)
    cached[0].get()
    files.close_idle()
    assert files.count() == 1
    cached[1].get()
    files.close_idle()
    assert (cached[0].file, files.count()) == (None, 1)
    files.close_all()
    assert files.count() == 0


def test_many_idle_files_are_closed_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "_LOOKED_AT", 2)
    files, cached = make(tmp_path, 7, 10)
    for file in cached:
        file.get()
    files.close_idle()
    assert 7 == files.count()
    used = cached[3].get()
    files.close_idle()
    assert [cached[3]] == [file for file in cached if file.file is not None]
    assert used is cached[3].file


def test_a_pinned_file_stays_open(tmp_path: Path) -> None:
    files, cached = make(tmp_path, 5, 2)
    cached[0].get()
    cached[0].pinned = True
    for file in cached[1:] * 3:
        file.get()
    files.close_idle()
    files.close_idle()
    assert cached[0].file is not None


def test_region_keeps_file_open_after_drop(tmp_path: Path) -> None:
    _files, cached = make(tmp_path, 1, 1)
    region = FileRegion(cached[0].get(), 0, 1)
    cached[0].drop()
    assert cached[0].file is None
    assert region.file.pread(1, 0) == b"0"


def test_file_is_opened_at_new_path_after_rename(tmp_path: Path) -> None:
    _files, cached = make(tmp_path, 1, 1)
    os.rename(tmp_path / "0", tmp_path / "new")
    with pytest.raises(FileNotFoundError):
        cached[0].get()
    cached[0].path = f"{tmp_path}/new"
    assert cached[0].get().pread(1, 0) == b"0"


def test_threads_that_open_the_same_file_share_it(tmp_path: Path) -> None:
    files, cached = make(tmp_path, 20, 5)
    errors: list[BaseException] = []

    def use() -> None:
        try:
            for _ in range(200):
                for number, file in enumerate(cached):
                    assert file.get().pread(5, 0) == b"%d" % number
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert files.count() <= 5


def test_least_recently_used_files_close_without_descriptors(tmp_path: Path) -> None:
    in_own_process(least_recently_used_make_room, tmp_path)


def least_recently_used_make_room(tmp_path: Path) -> None:
    files, cached = make(tmp_path, 40, 100)
    for file in cached[:39]:
        file.get()
    with none_left():
        assert cached[39].get().pread(5, 0) == b"39"
        assert files.count() == 40 - 16
        assert [file.file is None for file in cached[:39]] == [True] * 16 + [False] * 23
        files.disk.sync_dir(str(tmp_path))
        assert len(files.disk.listdir(str(tmp_path))) == 40


def test_pinned_or_sent_files_do_not_make_room(tmp_path: Path) -> None:
    in_own_process(pinned_and_sent_make_no_room, tmp_path)


def pinned_and_sent_make_no_room(tmp_path: Path) -> None:
    files, cached = make(tmp_path, 4, 100)
    pinned = cached[0]
    pinned.get()
    pinned.pinned = True
    sending = FileRegion(cached[1].get(), 0, 1)
    with none_left():
        with pytest.raises(OSError, match="Too many open files") as failure:
            cached[2].get()
        assert failure.value.errno == errno.EMFILE
        assert pinned.file is not None
        del sending
        assert cached[2].get().pread(5, 0) == b"2"
    assert files.count() == 2
