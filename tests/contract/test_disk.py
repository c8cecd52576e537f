"""The contract of every Disk: the real disk and the simulator's."""

import contextlib
from pathlib import Path

import pytest

from broker.runtime.disk import Disk, File
from tests.contract.implementations import DISKS


@pytest.fixture(params=list(DISKS))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    return DISKS[request.param](tmp_path)


@pytest.fixture
def disk(place: tuple[Disk, str]) -> Disk:
    return place[0]


@pytest.fixture
def root(place: tuple[Disk, str]) -> str:
    return place[1]


def make(disk: Disk, path: str, data: bytes = b"") -> File:
    file = disk.open(path, create=True)
    file.pwrite([data], 0)
    return file


def test_what_was_written_is_read(disk: Disk, root: str) -> None:
    file = make(disk, f"{root}/a", b"0123456789")
    assert file.pread(4, 3) == b"3456"
    assert file.size() == 10


def test_buffers_of_every_kind_are_written_in_order(disk: Disk, root: str) -> None:
    file = make(disk, f"{root}/a")
    assert file.pwrite([b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3], b""], 2) == 6
    assert file.pread(100, 0) == b"\0\0abcdef"


def test_nothing_may_be_written_at_all(disk: Disk, root: str) -> None:
    file = make(disk, f"{root}/a", b"abc")
    assert file.pwrite([], 1) == 0
    assert file.pread(10, 0) == b"abc"


def test_a_large_write_is_whole(disk: Disk, root: str) -> None:
    data = bytes(range(256)) * 4096 + b"end"
    file = make(disk, f"{root}/a")
    assert file.pwrite([memoryview(data)], 5) == len(data)
    assert file.pread(len(data), 5) == data


def test_read_at_end_is_short_and_beyond_empty(disk: Disk, root: str) -> None:
    file = make(disk, f"{root}/a", b"abc")
    assert file.pread(10, 1) == b"bc"
    assert file.pread(10, 3) == b""
    assert file.pread(10, 99) == b""


def test_truncating_cuts_and_extends_with_zeros(disk: Disk, root: str) -> None:
    file = make(disk, f"{root}/a", b"abcdef")
    file.truncate(2)
    assert file.pread(10, 0) == b"ab"
    file.truncate(4)
    assert file.pread(10, 0) == b"ab\0\0"


def test_opening_what_is_not_there_fails(disk: Disk, root: str) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/a")
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/a", read_only=True)
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/none/a", create=True)


def test_opening_with_create_keeps_what_is_there(disk: Disk, root: str) -> None:
    make(disk, f"{root}/a", b"abc").close()
    assert disk.open(f"{root}/a", create=True).pread(10, 0) == b"abc"


def test_a_file_opened_for_reading_cannot_be_written(disk: Disk, root: str) -> None:
    make(disk, f"{root}/a", b"abc")
    file = disk.open(f"{root}/a", read_only=True)
    with pytest.raises(OSError):
        file.pwrite([b"x"], 0)
    with pytest.raises(OSError):
        file.truncate(0)
    assert file.pread(10, 0) == b"abc"


def test_a_closed_file_cannot_be_used(disk: Disk, root: str) -> None:
    file = make(disk, f"{root}/a", b"abc")
    file.close()
    file.close()
    with pytest.raises(OSError):
        file.pread(1, 0)
    with pytest.raises(OSError):
        file.pwrite([b"x"], 0)


def test_two_open_files_of_one_path_share_data(disk: Disk, root: str) -> None:
    first, second = make(disk, f"{root}/a"), disk.open(f"{root}/a")
    first.pwrite([b"abc"], 0)
    assert second.pread(3, 0) == b"abc"


def test_an_open_file_outlives_its_name(disk: Disk, root: str) -> None:
    file = make(disk, f"{root}/a", b"abc")
    disk.rename(f"{root}/a", f"{root}/b")
    assert file.pread(3, 0) == b"abc"
    disk.remove(f"{root}/b")
    assert file.pread(3, 0) == b"abc"
    file.sync()


def test_a_rename_replaces_the_file_that_is_there(disk: Disk, root: str) -> None:
    old = make(disk, f"{root}/b", b"old")
    make(disk, f"{root}/a", b"new")
    disk.rename(f"{root}/a", f"{root}/b")
    assert disk.listdir(root) == ["b"]
    assert disk.open(f"{root}/b").pread(3, 0) == b"new"
    assert old.pread(3, 0) == b"old"


def test_directory_is_renamed_with_its_contents(disk: Disk, root: str) -> None:
    disk.makedirs(f"{root}/a")
    file = make(disk, f"{root}/a/f", b"abc")
    disk.rename(f"{root}/a", f"{root}/b")
    assert disk.open(f"{root}/b/f").pread(3, 0) == b"abc"
    assert file.pread(3, 0) == b"abc"
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/a/f")


def test_names_are_listed_in_order(disk: Disk, root: str) -> None:
    for name in ("b", "c", "a"):
        make(disk, f"{root}/{name}")
    disk.makedirs(f"{root}/d")
    assert disk.listdir(root) == ["a", "b", "c", "d"]


def test_what_is_there_and_what_is_a_directory(disk: Disk, root: str) -> None:
    make(disk, f"{root}/a")
    disk.makedirs(f"{root}/d/e")
    disk.makedirs(f"{root}/d/e")
    there = {
        name: (disk.exists(f"{root}/{name}"), disk.is_dir(f"{root}/{name}")) for name in ("a", "d", "d/e", "x", "a/b")
    }
    assert there == {
        "a": (True, False),
        "d": (True, True),
        "d/e": (True, True),
        "x": (False, False),
        "a/b": (False, False),
    }


def test_removing(disk: Disk, root: str) -> None:
    make(disk, f"{root}/a")
    disk.makedirs(f"{root}/d")
    make(disk, f"{root}/d/a")
    with pytest.raises(OSError):
        disk.rmdir(f"{root}/d")
    disk.remove(f"{root}/d/a")
    disk.rmdir(f"{root}/d")
    disk.remove(f"{root}/a")
    assert disk.listdir(root) == []


def test_missing_paths_cannot_be_removed_renamed_or_listed(disk: Disk, root: str) -> None:
    with pytest.raises(FileNotFoundError):
        disk.remove(f"{root}/a")
    with pytest.raises(FileNotFoundError):
        disk.rmdir(f"{root}/a")
    with pytest.raises(FileNotFoundError):
        disk.rename(f"{root}/a", f"{root}/b")
    with pytest.raises(FileNotFoundError):
        disk.listdir(f"{root}/a")


def test_files_and_directories_can_be_synced(disk: Disk, root: str) -> None:
    file = make(disk, f"{root}/a", b"abc")
    file.sync()
    file.sync(data_only=False)
    disk.sync_dir(root)
    assert file.pread(3, 0) == b"abc"


def test_several_files_can_be_synced_at_once(disk: Disk, root: str) -> None:
    files = [make(disk, f"{root}/{number}", b"abc") for number in range(disk.syncs_at_once())]
    done = [each for each in disk.sync_all(files, 1.0) if each is not None]
    assert sorted(number for number, _ in done) == list(range(len(files)))
    assert {error for _, error in done} == {None}
    assert list(disk.sync_all([], 1.0)) == []


def test_files_can_be_synced_in_the_background(disk: Disk, root: str) -> None:
    queue = disk.sync_queue()
    if queue is None:
        pytest.skip("not offered here")
    with contextlib.closing(queue):
        left = {number: make(disk, f"{root}/{number}", b"abc") for number in range(10)}
        assert queue.fileno() >= 0
        assert list(queue.results()) == []
        while left or queue.pending:
            room, requests = queue.room, list(left.items())[: queue.room]
            taken = queue.start(requests)
            assert 0 <= taken <= len(requests)
            assert (queue.pending, queue.room) == (queue.pending, room - taken)
            for number, file in requests[:taken]:
                file.close()
                del left[number]
            before = queue.pending
            done = queue.results(30.0)
            assert {error for _, error in done} <= {None}
            assert queue.pending == before - len(done)
    assert not left


def test_what_was_just_written_is_in_memory(disk: Disk, root: str) -> None:
    file = make(disk, f"{root}/a", bytes(300_000))
    assert file.is_resident(0, 300_000)
    assert file.is_resident(5, 0)


def test_free_room_is_part_of_all_room(disk: Disk, root: str) -> None:
    assert 0 < disk.free_bytes(root) <= disk.total_bytes(root)


def test_size_is_known_without_opening_the_file(disk: Disk, root: str) -> None:
    make(disk, f"{root}/a", b"abc")
    assert disk.file_size(f"{root}/a") == 3
    with pytest.raises(FileNotFoundError):
        disk.file_size(f"{root}/b")


def test_files_directories_and_missing_paths_are_not_links(disk: Disk, root: str) -> None:
    make(disk, f"{root}/a")
    disk.makedirs(f"{root}/d")
    assert [disk.is_link(f"{root}/{name}") for name in ("a", "d", "x")] == [False, False, False]


def test_a_lock_is_had_by_one(disk: Disk, root: str) -> None:
    held = disk.lock(f"{root}/.lock")
    with pytest.raises(BlockingIOError):
        disk.lock(f"{root}/.lock")
    held.close()
    disk.lock(f"{root}/.lock").close()


def test_lock_file_names_its_holder_while_held(disk: Disk, root: str) -> None:
    held = disk.lock(f"{root}/.lock")
    with pytest.raises(BlockingIOError):
        disk.lock(f"{root}/.lock")
    assert disk.open(f"{root}/.lock", read_only=True).pread(100, 0).startswith(b"pid ")
    held.close()


def test_link_outlives_its_first_name(disk: Disk, root: str) -> None:
    make(disk, f"{root}/a", b"abc")
    disk.makedirs(f"{root}/d")
    disk.link(f"{root}/a", f"{root}/d/b")
    with pytest.raises(FileExistsError):
        disk.link(f"{root}/a", f"{root}/d/b")
    disk.remove(f"{root}/a")
    assert disk.open(f"{root}/d/b", read_only=True).pread(10, 0) == b"abc"
    with pytest.raises(FileNotFoundError):
        disk.link(f"{root}/a", f"{root}/c")
